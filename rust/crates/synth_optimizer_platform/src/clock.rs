//! The clocks and the random numbers of the machine.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::os;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Returns the wall clock in milliseconds since 1970. It may jump, so it is only displayed and never used for
/// decisions.
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Returns the milliseconds of the boot clock, which is monotonic and cannot be set. See [`os::System::boot_millis`].
pub fn boot_millis() -> u64 {
    os::system().boot_millis()
}

/// Returns the id of the current boot, or an empty text if the system has none. See [`os::System::boot_id`].
pub fn boot_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| os::system().boot_id())
}

/// Returns `BYTES` random bytes in hexadecimal.
pub fn random_hex<const BYTES: usize>() -> Result<String, OptimizerError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot read random numbers", error))?;
    Ok(hex(&bytes))
}

/// One point in time on both clocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds since 1970, for display.
    pub wall: u64,
    /// Milliseconds since boot, for decisions.
    pub boot: u64,
    /// Id of the boot to which `boot` refers.
    pub boot_id: String,
}

/// A source of time, replaceable in tests.
pub trait Clock: Send + Sync + std::fmt::Debug {
    fn now(&self) -> Moment;
}

/// The clocks of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment { wall: unix_millis(), boot: boot_millis(), boot_id: boot_id().to_owned() }
    }
}

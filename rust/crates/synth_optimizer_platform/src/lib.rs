//! Everything of a run that touches the world: containers, proposers, the cache, the workspace, its files and the loop
//! that drives a pure engine.

pub mod artifacts;
pub mod cache;
pub mod clock;
pub mod container;
mod http;
pub mod logs;
pub mod proposer;
pub mod runtime;
mod unpack;
pub mod workspace;

use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Random bytes of the system, as hex digits.
fn random_hex<const BYTES: usize>() -> Result<String, OptimizerError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "the system gives no random numbers", error))?;
    Ok(hex(&bytes))
}

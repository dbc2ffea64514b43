//! The pauses between retries, as the log names them.

use std::cell::RefCell;
use std::sync::Once;

use synth_optimizer_platform::logs::{self, LOGGERS, LevelFilter};

thread_local! {
    /// Tests run on a thread each.
    static PAUSES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Awaits a future and returns its output with the pauses that it logged, in milliseconds.
pub(crate) async fn with_pauses<T>(work: impl Future<Output = T>) -> (T, Vec<u64>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        logs::install(|record| {
            let pause = record.fields.iter().find(|(name, _)| *name == "pause_ms");
            PAUSES.with_borrow_mut(|pauses| pauses.extend(pause.and_then(|(_, pause)| pause.as_u64())));
        });
        logs::set_levels([LevelFilter::INFO; LOGGERS.len()]);
    });
    PAUSES.take();
    (work.await, PAUSES.take())
}

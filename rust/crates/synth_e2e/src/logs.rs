//! Keeps every log record of a test process, down to the lowest level.

use std::sync::{Mutex, Once, PoisonError};

use synth_optimizer_platform::logs::{self, LOGGERS, LogRecord};

static RECORDS: Mutex<Vec<LogRecord>> = Mutex::new(Vec::new());

/// Keeps records from here on.
pub fn capture_records() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        logs::install(|record| RECORDS.lock().unwrap_or_else(PoisonError::into_inner).push(record));
        logs::set_levels([logs::LevelFilter::TRACE; LOGGERS.len()]);
    });
}

/// Every record up to now, as text.
pub fn captured_records() -> Vec<String> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|record| format!("{record:?}")).collect()
}

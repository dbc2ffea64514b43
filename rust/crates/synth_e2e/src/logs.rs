//! Captures all log records of a test process, at every level.

use std::sync::{Mutex, Once, PoisonError};

use synth_optimizer_platform::logs::{self, LOGGERS, LogRecord};

static RECORDS: Mutex<Vec<LogRecord>> = Mutex::new(Vec::new());

/// Starts capturing records.
pub fn capture_records() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        logs::install(|record| RECORDS.lock().unwrap_or_else(PoisonError::into_inner).push(record));
        logs::set_levels([logs::LevelFilter::TRACE; LOGGERS.len()]);
    });
}

/// Returns all captured records.
pub fn captured_records() -> Vec<LogRecord> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

//! Waiting for something while other Python threads go on and Python looks at its signals.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::logs;

/// How long a wait sleeps before it lets Python look for signals.
const SLICE: Duration = Duration::from_millis(100);

/// Looks until there is something or the time is over. `look` waits as long as it is told, without holding Python up.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    deadline: Option<Instant>,
    look: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    loop {
        let left = deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
        if let Some(found) = py.detach(|| look(left.min(SLICE))) {
            return Ok(Some(found));
        }
        py.check_signals()?;
        logs::refresh(py)?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

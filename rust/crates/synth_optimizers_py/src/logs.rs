//! Forwards log records to Python's `logging`, from a separate thread.
//!
//! A thread that logs only puts the record into a queue and never waits for Python, so a lock of this crate cannot deadlock
//! with the GIL. Records below the level of their logger are not created: the levels are read when a call enters the bridge
//! and while a call waits. The queue ends with the interpreter, and a forked child starts its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use parking_lot::RwLock;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use pyo3::wrap_pyfunction;
use synth_optimizer_platform::logs::{self, LOGGERS, LogRecord};
use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::convert::to_python;

/// Maximum number of queued records. Further records are counted and dropped, so that a slow handler cannot delay a run.
const QUEUE_CAPACITY: usize = 16 * 1024;
/// Maximum number of records per acquisition of the GIL.
const BATCH_RECORDS: usize = 256;
/// How long a call waits at its end until its records are delivered.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long starting the queue waits for threads that log.
const LOCK_TIMEOUT: Duration = Duration::from_millis(50);
/// `logging` has no level below DEBUG; 5 is the customary number for TRACE.
const TRACE: u8 = 5;

static FORWARDER: RwLock<Option<Forwarder>> = RwLock::new(None);
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Set when the interpreter ends.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);
static LOGGING: PyOnceLock<Logging> = PyOnceLock::new();

/// The sender of the queue, with the pid of the process that started its thread.
struct Forwarder {
    pid: u32,
    queue: SyncSender<QueueItem>,
}

enum QueueItem {
    Record(Box<LogRecord>),
    Flush(Sender<()>),
}

/// The objects of the module `logging` that are called.
struct Logging {
    manager: Py<PyAny>,
    /// In the order of `LOGGERS`.
    loggers: Vec<Py<PyAny>>,
}

/// Delivers the records of a call when it is dropped, before the call returns.
#[must_use]
pub(crate) struct LogFlushGuard<'py>(Python<'py>);

impl Drop for LogFlushGuard<'_> {
    fn drop(&mut self) {
        flush(self.0);
    }
}

/// Starts forwarding records, according to the levels of the loggers.
pub(crate) fn forward_logs(py: Python<'_>) -> PyResult<LogFlushGuard<'_>> {
    LOGGING.get_or_try_init(py, || prepare(py))?;
    let pid = std::process::id();
    let is_running = FORWARDER.read().as_ref().is_some_and(|forwarder| forwarder.pid == pid);
    if !is_running && !IS_CLOSED.load(Ordering::Relaxed) {
        let (queue, items) = sync_channel(QUEUE_CAPACITY);
        std::thread::Builder::new().name("synth-optimizers-logs".into()).spawn(move || deliver(&items))?;
        // In a forked child, a thread that no longer exists may hold the lock.
        if let Some(mut forwarder) = FORWARDER.try_write_for(LOCK_TIMEOUT) {
            std::mem::forget(forwarder.replace(Forwarder { pid, queue }));
        }
    }
    refresh(py)?;
    Ok(LogFlushGuard(py))
}

/// Reads the levels of the loggers.
pub(crate) fn refresh(py: Python<'_>) -> PyResult<()> {
    let Some(logging) = LOGGING.get(py) else { return Ok(()) };
    let disabled: i64 = logging.manager.getattr(py, "disable")?.extract(py)?;
    let mut levels = [LevelFilter::OFF; LOGGERS.len()];
    for (level, logger) in levels.iter_mut().zip(&logging.loggers) {
        let effective: i64 = logger.call_method0(py, "getEffectiveLevel")?.extract(py)?;
        *level = match effective.max(disabled + 1) {
            ..=5 => LevelFilter::TRACE,
            6..=10 => LevelFilter::DEBUG,
            11..=20 => LevelFilter::INFO,
            21..=30 => LevelFilter::WARN,
            31..=40 => LevelFilter::ERROR,
            41.. => LevelFilter::OFF,
        };
    }
    logs::set_levels(levels);
    Ok(())
}

/// Waits until all earlier records are delivered, at most `FLUSH_TIMEOUT`.
pub(crate) fn flush(py: Python<'_>) {
    let (done, wait) = channel();
    let is_asked = FORWARDER.try_read().is_some_and(|forwarder| {
        let is_ours = |forwarder: &&Forwarder| forwarder.pid == std::process::id();
        let forwarder = forwarder.as_ref().filter(is_ours);
        forwarder.is_some_and(|forwarder| forwarder.queue.try_send(QueueItem::Flush(done)).is_ok())
    });
    if is_asked {
        // Ignored: a slow handler must not delay the caller further.
        let _ = py.detach(move || wait.recv_timeout(FLUSH_TIMEOUT));
    }
}

fn prepare(py: Python<'_>) -> PyResult<Logging> {
    let logging = py.import("logging")?;
    logging.call_method1("addLevelName", (TRACE, "TRACE"))?;
    let get = |name: &&str| Ok(logging.call_method1("getLogger", (*name,))?.unbind());
    let loggers = LOGGERS.iter().map(get).collect::<PyResult<Vec<_>>>()?;
    // A library does not print: without a handler of the application, records are discarded.
    loggers[0].call_method1(py, "addHandler", (logging.call_method0("NullHandler")?,))?;
    let manager = logging.getattr("Logger")?.getattr("manager")?.unbind();
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(end_logs, py)?,))?;
    let hooks = PyDict::new(py);
    hooks.set_item("after_in_child", wrap_pyfunction!(forget_logs, py)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks))?;
    logs::install(forward);
    Ok(Logging { manager, loggers })
}

/// Called when the interpreter exits: delivers the queued records and closes the queue.
#[pyfunction]
fn end_logs(py: Python<'_>) {
    IS_CLOSED.store(true, Ordering::Relaxed);
    flush(py);
    if let Some(mut forwarder) = FORWARDER.try_write() {
        *forwarder = None;
    }
}

/// Called in a forked child, which has the queue without its thread. The queue is leaked, because its locks may be held by
/// threads that do not exist in the child.
#[pyfunction]
fn forget_logs() {
    if let Some(mut forwarder) = FORWARDER.try_write() {
        std::mem::forget(forwarder.take());
    }
}

/// Puts a record into the queue. Called by the thread that logs; never waits.
fn forward(record: LogRecord) {
    let Some(forwarder) = FORWARDER.try_read() else { return };
    let Some(Forwarder { pid, queue }) = &*forwarder else { return };
    if *pid == std::process::id() && queue.try_send(QueueItem::Record(Box::new(record))).is_err() {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Delivers queued records in batches. The main function of the queue's thread.
fn deliver(items: &Receiver<QueueItem>) {
    while let Ok(first) = items.recv() {
        let mut batch = vec![first];
        batch.extend(items.try_iter().take(BATCH_RECORDS));
        let delivered = Python::try_attach(|py| {
            let Some(logging) = LOGGING.get(py) else { return };
            for item in &batch {
                if let QueueItem::Record(record) = item {
                    logging.deliver(py, record);
                }
            }
            match DROPPED.swap(0, Ordering::Relaxed) {
                0 => {}
                lost => logging.deliver(py, &dropped(lost)),
            }
        });
        // The interpreter is ending.
        if delivered.is_none() {
            return;
        }
        for item in batch {
            if let QueueItem::Flush(done) = item {
                // The caller may have stopped waiting.
                let _ = done.send(());
            }
        }
    }
}

impl Logging {
    fn deliver(&self, py: Python<'_>, record: &LogRecord) {
        let logger = LOGGERS.iter().position(|name| *name == record.logger).unwrap_or_default();
        if let Err(error) = handle(self.loggers[logger].bind(py), record) {
            // A filter of the application raised the exception; `logging` itself reports exceptions of handlers.
            error.write_unraisable(py, None);
        }
    }
}

fn handle(logger: &Bound<'_, PyAny>, record: &LogRecord) -> PyResult<()> {
    let py = logger.py();
    let level = number(record.level);
    if !logger.call_method1("isEnabledFor", (level,))?.is_truthy()? {
        return Ok(());
    }
    let fields = PyDict::new(py);
    for (name, value) in &record.fields {
        fields.set_item(name, to_python(py, value)?)?;
    }
    let LogRecord { logger: name, file, line, message, .. } = record;
    let made = (*name, level, *file, *line, message, PyTuple::empty(py), py.None());
    let entry = logger.call_method1("makeRecord", made)?;
    // A field whose name is an attribute of log records appears in `fields` only.
    for (name, value) in fields.iter() {
        let name: PyBackedStr = name.extract()?;
        if *name != *"message" && *name != *"asctime" && !entry.hasattr(&*name)? {
            entry.setattr(&*name, value)?;
        }
    }
    entry.setattr("fields", fields)?;
    // Time and thread of logging, not of delivery.
    let seconds = record.unix_millis as f64 / 1000.0;
    entry.setattr("created", seconds)?;
    entry.setattr("msecs", (record.unix_millis % 1000) as f64)?;
    entry.setattr("threadName", &record.thread)?;
    logger.call_method1("handle", (entry,)).map(drop)
}

fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => TRACE,
    }
}

fn dropped(records: u64) -> LogRecord {
    LogRecord {
        unix_millis: synth_optimizer_platform::clock::unix_millis(),
        level: Level::WARN,
        logger: LOGGERS[0],
        message: "log records were dropped because the handlers are too slow".into(),
        fields: vec![("records", records.into())],
        file: file!(),
        line: line!(),
        thread: String::new(),
    }
}

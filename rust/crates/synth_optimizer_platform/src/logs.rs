//! Converts `tracing` spans and events into log records, and filters them by logger and level.
//!
//! A record has the fields of its event and of all enclosing spans, so that each line names its run, call and attempt.
//! Spans have the level `error`, so that a warning keeps these fields even if lower levels are disabled. Records of
//! other crates are dropped, because they may contain headers and bodies.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tracing::field::{Field, Visit};
pub use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::unix_millis;

/// The loggers, each named after the module whose records it receives. The first one receives all others.
pub const LOGGERS: [&str; 10] = [
    "synth_optimizers",
    "synth_optimizers.artifacts",
    "synth_optimizers.cache",
    "synth_optimizers.container",
    "synth_optimizers.http",
    "synth_optimizers.proposer",
    "synth_optimizers.queue",
    "synth_optimizers.runtime",
    "synth_optimizers.service",
    "synth_optimizers.workspace",
];

/// The crates whose records are logged.
const CRATES: [&str; 3] = ["synth_optimizer_platform", "synth_optimizer_service", "_synth_optimizers"];

const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// The index of each logger's level in `LEVELS`.
static LOGGER_LEVELS: [AtomicUsize; LOGGERS.len()] = [const { AtomicUsize::new(0) }; LOGGERS.len()];

/// Sets the level of each logger. A disabled record costs one comparison.
pub fn set_levels(levels: [LevelFilter; LOGGERS.len()]) {
    let mut is_changed = false;
    for (shown, level) in LOGGER_LEVELS.iter().zip(levels) {
        let place = LEVELS.iter().position(|known| *known == level).unwrap_or_default();
        is_changed |= shown.swap(place, Ordering::Relaxed) != place;
    }
    if is_changed {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Installs `sink` as the receiver of all records of this process. Returns false if one is already installed.
pub fn install(sink: impl Fn(LogRecord) + Send + Sync + 'static) -> bool {
    let subscriber = tracing_subscriber::registry().with(RecordLayer { sink });
    tracing::subscriber::set_global_default(subscriber).is_ok()
}

/// Returns work for another thread that keeps the current span, so that its records name their run, call and request.
pub fn in_current_span<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = tracing::Span::current();
    move || span.in_scope(work)
}

/// One line of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRecord {
    pub unix_millis: u64,
    pub level: Level,
    /// One of `LOGGERS`.
    pub logger: &'static str,
    pub message: String,
    /// The fields of the spans from the outermost to the innermost, then those of the event. Names occur once.
    pub fields: Vec<(&'static str, Value)>,
    pub file: &'static str,
    pub line: u32,
    pub thread: String,
}

/// Logs an error as a warning; the caller continues without the result.
#[macro_export]
macro_rules! warn_if_err {
    ($result:expr, $message:literal $(, $($field:tt)+)?) => {
        if let Err(error) = $result {
            tracing::warn!($($($field)+,)? %error, $message);
        }
    };
}

struct RecordLayer<S> {
    sink: S,
}

impl<R, S> Layer<R> for RecordLayer<S>
where
    R: Subscriber + for<'a> LookupSpan<'a>,
    S: Fn(LogRecord) + Send + Sync + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, R>) -> bool {
        is_shown(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        LOGGER_LEVELS.iter().map(|shown| LEVELS[shown.load(Ordering::Relaxed)]).max()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, R>) {
        let mut fields = FieldCollector::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, R>) {
        let mut found = FieldCollector::default();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(FieldCollector { fields, .. }) = span.extensions().get() {
                fields.iter().for_each(|(name, value)| found.put(name, value.clone()));
            }
        }
        event.record(&mut found);
        let metadata = event.metadata();
        (self.sink)(LogRecord {
            unix_millis: unix_millis(),
            level: *metadata.level(),
            logger: logger_of(metadata.target()).map_or(LOGGERS[0], |place| LOGGERS[place]),
            message: found.message,
            fields: found.fields,
            file: metadata.file().unwrap_or_default(),
            line: metadata.line().unwrap_or_default(),
            thread: std::thread::current().name().unwrap_or_default().to_owned(),
        });
    }
}

fn is_shown(metadata: &Metadata<'_>) -> bool {
    let Some(logger) = logger_of(metadata.target()) else { return false };
    let shows = |shown: &AtomicUsize| *metadata.level() <= LEVELS[shown.load(Ordering::Relaxed)];
    // The fields of a span belong to the records of every logger.
    if metadata.is_span() { LOGGER_LEVELS.iter().any(shows) } else { shows(&LOGGER_LEVELS[logger]) }
}

/// Returns the index in `LOGGERS` of a module's logger, or `None` for a module of another crate.
fn logger_of(target: &str) -> Option<usize> {
    let mut parts = target.split("::");
    parts.next().filter(|name| CRATES.contains(name))?;
    let module = parts.next();
    let named = |logger: &&str| logger.rsplit('.').next() == module;
    Some(LOGGERS.iter().position(named).unwrap_or_default())
}

/// Collects the message and fields of an event or a span.
#[derive(Default)]
struct FieldCollector {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl FieldCollector {
    fn put(&mut self, name: &'static str, value: Value) {
        match self.fields.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.fields.push((name, value)),
        }
    }
}

impl Visit for FieldCollector {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.put(name, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value.into());
    }
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;

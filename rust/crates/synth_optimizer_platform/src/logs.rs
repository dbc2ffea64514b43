//! Turns `tracing` spans and events into log records, and decides which of them are made.
//!
//! A record carries the fields of its event and of all spans around it, so that each line names its run, call and
//! attempt. Spans are opened at the level `error`: a warning keeps its ids even when nothing below it is shown. Records
//! of other crates are not made: their texts may hold headers and bodies.

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

/// The loggers, each named after the module whose records it gets. The first one gets the rest.
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

/// The crates whose records are made.
const CRATES: [&str; 3] = ["synth_optimizer_platform", "synth_optimizer_service", "_synth_optimizers"];

const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// The place of each logger's level in `LEVELS`.
static SHOWN: [AtomicUsize; LOGGERS.len()] = [const { AtomicUsize::new(0) }; LOGGERS.len()];

/// Says down to which level each logger shows records. What is not shown costs one comparison.
pub fn set_levels(levels: [LevelFilter; LOGGERS.len()]) {
    let mut is_changed = false;
    for (shown, level) in SHOWN.iter().zip(levels) {
        let place = LEVELS.iter().position(|known| *known == level).unwrap_or_default();
        is_changed |= shown.swap(place, Ordering::Relaxed) != place;
    }
    if is_changed {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Hands every record to `sink` from here on, once per process; whether this call was the first one.
pub fn install(sink: impl Fn(Record) + Send + Sync + 'static) -> bool {
    let subscriber = tracing_subscriber::registry().with(Recorder { sink });
    tracing::subscriber::set_global_default(subscriber).is_ok()
}

/// One line of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
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

/// Logs the error of something that the caller goes on without.
#[macro_export]
macro_rules! warn_if_err {
    ($result:expr, $message:literal $(, $($field:tt)+)?) => {
        if let Err(error) = $result {
            tracing::warn!($($($field)+,)? %error, $message);
        }
    };
}

struct Recorder<S> {
    sink: S,
}

impl<R, S> Layer<R> for Recorder<S>
where
    R: Subscriber + for<'a> LookupSpan<'a>,
    S: Fn(Record) + Send + Sync + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, R>) -> bool {
        is_shown(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        SHOWN.iter().map(|shown| LEVELS[shown.load(Ordering::Relaxed)]).max()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, R>) {
        let mut fields = Collected::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, R>) {
        let mut found = Collected::default();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(Collected { fields, .. }) = span.extensions().get() {
                fields.iter().for_each(|(name, value)| found.put(name, value.clone()));
            }
        }
        event.record(&mut found);
        let metadata = event.metadata();
        (self.sink)(Record {
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
    if metadata.is_span() { SHOWN.iter().any(shows) } else { shows(&SHOWN[logger]) }
}

/// The place in `LOGGERS` of the logger of a module; none for a module of another crate.
fn logger_of(target: &str) -> Option<usize> {
    let mut parts = target.split("::");
    parts.next().filter(|name| CRATES.contains(name))?;
    let module = parts.next();
    let named = |logger: &&str| logger.rsplit('.').next() == module;
    Some(LOGGERS.iter().position(named).unwrap_or_default())
}

/// What an event or a span says.
#[derive(Default)]
struct Collected {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Collected {
    fn put(&mut self, name: &'static str, value: Value) {
        match self.fields.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.fields.push((name, value)),
        }
    }
}

impl Visit for Collected {
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

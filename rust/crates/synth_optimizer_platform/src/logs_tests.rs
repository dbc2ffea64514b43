use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing_subscriber::layer::SubscriberExt;

use super::*;

/// Runs code with its own subscriber and returns its records. The levels are global, so only one test may set them.
fn recorded(code: impl FnOnce()) -> Vec<LogRecord> {
    let records = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&records);
    let sink = move |record| kept.lock().unwrap().push(record);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(RecordLayer { sink }), code);
    Arc::try_unwrap(records).unwrap().into_inner().unwrap()
}

#[test]
fn records_carry_the_fields_of_their_spans_and_only_those_that_are_shown_are_made() {
    let say = || {
        let run = tracing::error_span!("run", run_id = "r1");
        let _run = run.enter();
        let call =
            tracing::error_span!(target: "synth_optimizer_platform::container::poll", "call", call = 7, attempt = 1);
        let _call = call.enter();
        tracing::debug!(target: "synth_optimizer_platform::container::poll", seconds = 0.5, "answered");
        tracing::warn!(target: "synth_optimizer_platform::container::poll", attempt = 2, cause = %"no\nroute", "sent again");
        tracing::error!(target: "hyper::proto", "authorization: Bearer x");
        tracing::warn!(target: "synth_optimizer_service::service::guard", "busy");
    };
    let mut levels = [LevelFilter::WARN; LOGGERS.len()];
    set_levels(levels);
    let records = recorded(say);
    let shown: Vec<_> = records.iter().map(|record| (record.logger, record.message.as_str())).collect();
    assert_eq!(shown, [("synth_optimizers.container", "sent again"), ("synth_optimizers.service", "busy")]);
    let fields: Value = records[0].fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    assert_eq!(fields, json!({"run_id": "r1", "call": 7, "attempt": 2, "cause": "no\nroute"}));

    levels[3] = LevelFilter::DEBUG;
    levels[8] = LevelFilter::OFF;
    set_levels(levels);
    let shown: Vec<_> = recorded(say).into_iter().map(|record| (record.level, record.message)).collect();
    assert_eq!(shown, [(Level::DEBUG, "answered".to_owned()), (Level::WARN, "sent again".to_owned())]);

    set_levels([LevelFilter::OFF; LOGGERS.len()]);
    assert_eq!(recorded(say), []);
}

#[test]
fn modules_of_other_crates_have_no_logger() {
    let name = |target| logger_of(target).map(|place| LOGGERS[place]);
    assert_eq!(name("synth_optimizer_service::queue::claim"), Some("synth_optimizers.queue"));
    assert_eq!(name("synth_optimizer_platform::clock"), Some("synth_optimizers"));
    assert_eq!(name("reqwest::connect"), None);
}

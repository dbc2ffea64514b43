//! `events.normalized.jsonl`: what two runs of one config have in common, line by line.

use std::io::Write;

use serde_json::Value;

use super::atomic::AtomicFile;
use super::fault;
use super::log::Each;
use super::run_dir::RunPaths;
use crate::model::canonical::canonical_json;
use crate::model::error::OptimizerError;
use crate::model::message::message;
use crate::model::normalize::normalize;

/// Writes the normalized feed from the log, one event in memory at a time; `log` shows the events from the first on.
pub fn write_normalized(
    paths: &RunPaths,
    log: impl FnOnce(Each<'_>) -> Result<(), OptimizerError>,
) -> Result<(), OptimizerError> {
    let path = paths.normalized_events();
    let mut file = AtomicFile::create(&path)?;
    log(&mut |stored| {
        let mut value = serde_json::to_value(&stored.event).map_err(|error| fault::json("an event", &error))?;
        if let Value::Object(fields) = &mut value {
            fields.insert("message".to_owned(), message(&stored.event).into());
        }
        match normalize(value)? {
            Some(kept) => {
                writeln!(file, "{}", canonical_json(&kept)).map_err(|error| fault::io(&path, "writing", &error))
            }
            None => Ok(()),
        }
    })?;
    file.commit()
}

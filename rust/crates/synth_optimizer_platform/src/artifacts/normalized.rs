//! `events.normalized.jsonl`: what two runs of one config have in common, line by line.

use std::io::Write;

use super::atomic::AtomicFile;
use super::fault;
use super::log::Each;
use super::run_dir::RunPaths;
use synth_optimizer_core::model::envelope::write_normalized_line;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::{Event, message};

/// The normalized feed of a run. It grows with the log and takes its name when the run is over.
#[derive(Debug)]
pub(super) struct NormalizedFeed {
    file: AtomicFile,
    line: Vec<u8>,
}

impl NormalizedFeed {
    pub(super) fn create(paths: &RunPaths) -> Result<Self, OptimizerError> {
        Ok(Self { file: AtomicFile::create(&paths.normalized_events())?, line: Vec::new() })
    }

    /// Adds the next event of the log; `message` is the event in words.
    pub(super) fn push(&mut self, event: &Event, message: &str) -> Result<(), OptimizerError> {
        self.line.clear();
        write_normalized_line(event, message, &mut self.line).map_err(|error| fault::json("an event", error))?;
        self.file.write_all(&self.line).map_err(|error| fault::io(self.file.target(), "writing", error))
    }

    pub(super) fn commit(self) -> Result<(), OptimizerError> {
        self.file.commit()
    }
}

/// Writes the normalized feed from the log, one event in memory at a time; `log` shows the events from the first on.
pub fn write_normalized(
    paths: &RunPaths,
    log: impl FnOnce(Each<'_>) -> Result<(), OptimizerError>,
) -> Result<(), OptimizerError> {
    let mut feed = NormalizedFeed::create(paths)?;
    log(&mut |stored| feed.push(&stored.event, &message(&stored.event)))?;
    feed.commit()
}

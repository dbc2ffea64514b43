//! The files of a run, as the service reads them: none before the run has begun.

use std::sync::Arc;

use camino::Utf8Path;

use super::context::Context;
use super::readers::Readers;
use crate::artifacts::RunPaths;
use crate::model::envelope::Envelope;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::queue::RequestEntry;
use crate::workspace::{Reader, Stored};

/// Where a run is.
#[derive(Debug, Clone)]
pub(super) struct RunFiles {
    request_id: String,
    paths: RunPaths,
    readers: Readers,
}

impl RunFiles {
    pub(super) fn new(entry: &RequestEntry, readers: Readers) -> Result<Self, OptimizerError> {
        let paths = RunPaths::new(Utf8Path::new(&entry.output_dir), &entry.run_id)?;
        Ok(Self { request_id: entry.request_id.clone(), paths, readers })
    }

    pub(super) fn run_id(&self) -> &str {
        self.paths.run_id()
    }

    pub(super) fn paths(&self) -> &RunPaths {
        &self.paths
    }

    /// The workspace, once there is one.
    pub(super) fn reader(&self) -> Result<Option<Arc<Reader>>, OptimizerError> {
        let path = self.paths.workspace_db();
        if path.is_file() { self.readers.open(&path).map(Some) } else { Ok(None) }
    }

    /// The last event of the log.
    pub(super) fn last_sequence(&self) -> Result<Option<u64>, OptimizerError> {
        self.reader()?.map_or(Ok(None), |reader| reader.last_sequence())
    }

    /// Lines of the feed from a sequence on, with their sequences.
    pub(super) fn lines(&self, from: u64, limit: usize) -> Result<Vec<(u64, String)>, OptimizerError> {
        let Some(reader) = self.reader()? else { return Ok(Vec::new()) };
        let written = |stored: Stored| {
            let envelope = Envelope::new(stored.sequence, self.run_id(), stored.unix_millis, stored.event);
            serde_json::to_string(&envelope)
                .map(|line| (stored.sequence, line))
                .map_err(|error| OptimizerError::new(ErrorCode::Json, format!("an event cannot be written: {error}")))
        };
        reader.events(from, limit)?.into_iter().map(written).collect()
    }

    /// The final status of the request, once it is over.
    pub(super) async fn end(&self, context: &Arc<Context>) -> Result<Option<String>, OptimizerError> {
        let (context, request_id) = (Arc::clone(context), self.request_id.clone());
        let reading = Arc::clone(&context);
        let entry =
            context.read(move || reading.queue().get_request(&request_id).map_err(OptimizerError::from)).await?;
        Ok(entry.is_terminal.then(|| entry.status.word().to_owned()))
    }
}

//! The runs of a queue, for the page.

use std::sync::Arc;

use super::super::context::{ReaderCache, RunFiles};
use super::super::workers::Workers;
use super::{files_of, invalid_cursor};
use crate::ServiceErrorCode;
use crate::queue::{Queue, QueueError, RequestEntry};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::views::{
    ListedRun, RunControls, RunFilesRead, RunList, RunListQuery, RunSource, ServiceHealth, ShownRun, WaitingNote,
};
use synth_optimizer_platform::workspace::models::{ReadError, Refusal};

/// Runs per page of the list.
const PAGE: usize = 50;
/// How many requests a search by name reads at most.
const MAX_SEARCHED: usize = 2000;

/// The runs of a queue.
#[derive(Debug)]
pub(in crate::service) struct QueueRuns<'a> {
    pub(in crate::service) queue: &'a Queue,
    pub(in crate::service) readers: ReaderCache,
    pub(in crate::service) place: String,
    /// The service that executes them; `None` if only the files are read.
    pub(in crate::service) executor: Option<Executor>,
}

/// The service that executes the runs of a queue.
#[derive(Debug, Clone)]
pub(in crate::service) struct Executor {
    pub(in crate::service) workers: Arc<Workers>,
    pub(in crate::service) started_at: String,
}

impl QueueRuns<'_> {
    fn controls(&self) -> RunControls {
        if self.executor.is_some() { RunControls::Service } else { RunControls::ReadOnly }
    }

    /// Returns the requests that match a query, and the cursor of the next page.
    fn find(&self, query: &RunListQuery) -> Result<(Vec<RequestEntry>, Option<String>), ReadError> {
        let states = match query.state.as_deref() {
            None => Vec::new(),
            Some("running") => vec![RequestState::Leased, RequestState::Running],
            Some(word) => match RequestState::parse(word) {
                Some(state) => vec![state],
                // A run directory can be in this state, but no request of a queue is.
                None => return Ok((Vec::new(), None)),
            },
        };
        let Some(name) = &query.name else {
            let page = self.queue.list(&states, PAGE, query.cursor.as_deref()).map_err(failed)?;
            return Ok((page.items, page.next_cursor));
        };
        let (mut found, mut cursor, mut searched) = (Vec::new(), query.cursor.clone(), 0);
        loop {
            let page = self.queue.list(&states, PAGE, cursor.as_deref()).map_err(failed)?;
            searched += page.items.len();
            found.extend(page.items.into_iter().filter(|entry| entry.run_id.contains(name.as_str())));
            cursor = page.next_cursor;
            if cursor.is_none() || found.len() >= PAGE || searched >= MAX_SEARCHED {
                return Ok((found, cursor));
            }
        }
    }

    /// Returns the paths of a run, and what can be read of its files.
    fn read(&self, entry: &RequestEntry) -> Result<(RunPaths, RunFilesRead), OptimizerError> {
        let paths = RunFiles::new(entry, self.readers.clone())?.paths;
        let read = RunFilesRead::read(&paths, |path| self.readers.open(path))?;
        Ok((paths, read))
    }

    fn listed(&self, entry: RequestEntry) -> ListedRun {
        let read = self.read(&entry);
        let listed = ListedRun {
            state: state_of(&entry).to_owned(),
            is_terminal: entry.is_terminal,
            waiting: waiting(&entry),
            submitted_at: Some(entry.submitted_at),
            run_id: entry.run_id,
            overview: None,
            limits: Vec::new(),
            steps: Vec::new(),
            problem: None,
        };
        // A run that has not started has no figures.
        let has_files = |read: &RunFilesRead| read.reader.is_some() || read.problem.is_some();
        match read.map(|(_, read)| read) {
            Ok(read) if has_files(&read) => files_of(listed.clone(), read)
                .unwrap_or_else(|error| ListedRun { problem: Some(error.to_string()), ..listed }),
            Ok(_) => listed,
            Err(error) => ListedRun { problem: Some(error.message), ..listed },
        }
    }
}

/// Returns the state of a run in one word. A claimed request is a running one.
fn state_of(entry: &RequestEntry) -> &'static str {
    match entry.status {
        RequestState::Leased => RequestState::Running.as_str(),
        state => state.as_str(),
    }
}

fn waiting(entry: &RequestEntry) -> Option<WaitingNote> {
    entry.waiting.as_ref().map(|waiting| WaitingNote {
        message: waiting.message.clone(),
        since: waiting.since.clone(),
        until: waiting.deadline_at.clone(),
    })
}

fn failed(refused: QueueError) -> ReadError {
    let error = OptimizerError::from(refused.clone());
    match refused.code {
        Some(code) if code.row().1 == 404 => ReadError::NotFound(Refusal {
            code: "run_not_found",
            field: "run_id",
            message: error.message,
            hint: "List the runs; it may have been deleted.".to_owned(),
        }),
        Some(ServiceErrorCode::InvalidCursor) => invalid_cursor(error.message),
        _ => ReadError::Failed(error),
    }
}

impl RunSource for QueueRuns<'_> {
    fn runs(&self, query: &RunListQuery) -> Result<RunList, ReadError> {
        let (found, next_cursor) = self.find(query)?;
        let runs = found.into_iter().map(|entry| self.listed(entry)).collect();
        Ok(RunList { runs, next_cursor, controls: self.controls() })
    }

    fn run_ids(&self) -> Result<Vec<String>, ReadError> {
        let page = self.queue.list(&[], PAGE, None).map_err(failed)?;
        Ok(page.items.into_iter().map(|entry| entry.run_id).collect())
    }

    fn run(&self, run_id: &str) -> Result<ShownRun, ReadError> {
        let entry = self.queue.get(run_id).map_err(failed)?;
        let (paths, RunFilesRead { reader, problem, .. }) = self.read(&entry)?;
        Ok(ShownRun {
            reader,
            problem,
            paths,
            error: entry.error.clone(),
            state: state_of(&entry).to_owned(),
            is_terminal: entry.is_terminal,
            waiting: waiting(&entry),
            submitted_at: Some(entry.submitted_at),
            controls: self.controls(),
        })
    }

    fn health(&self) -> Result<Option<ServiceHealth>, ReadError> {
        let Some(Executor { workers, started_at }) = &self.executor else { return Ok(None) };
        let (counts, leases) = (self.queue.counts().map_err(failed)?, self.queue.leases().map_err(failed)?);
        let database_bytes = std::fs::metadata(&workers.settings.db).map(|about| about.len()).unwrap_or(0);
        let lease = |lease: crate::queue::LeaseEntry| {
            let text = Option::unwrap_or_default;
            [lease.run_id, text(lease.worker_id), text(lease.leased_at), text(lease.lease_expires_at)]
        };
        let jobs = workers.jobs();
        Ok(Some(ServiceHealth {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: started_at.clone(),
            counts: counts.into_iter().map(|(state, count)| (state, u64::try_from(count).unwrap_or(0))).collect(),
            leases: leases.into_iter().map(lease).collect(),
            workers: jobs
                .iter()
                .map(|job| (job.request.run_id.clone(), job.time_since_progress().as_secs_f64()))
                .collect(),
            worker_limit: workers.settings.workers,
            invariants: self.queue.invariants().map_err(failed)?,
            database_bytes,
        }))
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}

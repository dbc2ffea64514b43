//! How a run is controlled from outside: through a channel by its own process, and through a file in its directory by others.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, mpsc, watch};

use crate::artifacts::{FileLock, RunPaths, write_atomic};
use crate::warn_if_err;
use crate::workspace::{Reader, Stored};
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::RunState;
use synth_optimizer_core::words;

/// How often a run looks for the control file of another process.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How far a held run is: one that sends only what a step lets it send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepReport {
    /// Steps that are settled: everything that they sent has its answer in the log.
    pub steps_done: u64,
    /// Whether the run waits for a step.
    pub is_waiting: bool,
    /// The last event of the log. None before the first.
    pub last_sequence: Option<u64>,
    pub state: Option<RunState>,
    /// Whether the work of this process on the run has ended. The run itself need not be over.
    pub has_ended: bool,
}

/// Controls a run of this process; may be cloned and used from any thread.
#[derive(Debug, Clone)]
pub struct Control {
    requests: mpsc::UnboundedSender<ControlRequest>,
    live: broadcast::Sender<Arc<Stored>>,
    steps: watch::Receiver<StepReport>,
}

/// The run's end of a `Control`.
#[derive(Debug)]
pub struct Controlled {
    pub(super) requests: mpsc::UnboundedReceiver<ControlRequest>,
    pub(super) live: broadcast::Sender<Arc<Stored>>,
    pub(super) steps: watch::Sender<StepReport>,
    /// What was asked before the loop of the run began.
    pub(super) early: Vec<ControlRequest>,
}

impl Control {
    /// Makes both ends. A subscriber that falls `buffer` events behind misses some, and reads them from the workspace.
    pub fn new(buffer: u32) -> (Self, Controlled) {
        let (sender, requests) = mpsc::unbounded_channel();
        let (live, _) = broadcast::channel(buffer.max(1) as usize);
        let (reports, steps) = watch::channel(StepReport::default());
        let controlled = Controlled { requests, live: live.clone(), steps: reports, early: Vec::new() };
        (Self { requests: sender, live, steps }, controlled)
    }

    /// Sends a request; returns whether the run was still there to receive it. A second request ends the grace of the first;
    /// a stop or a cancel among them takes effect as well.
    pub fn send(&self, request: ControlRequest) -> bool {
        self.requests.send(request).is_ok()
    }

    /// Every event from now on, as soon as it is stored.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Stored>> {
        self.live.subscribe()
    }

    /// Lets a held run take a step and waits until that is done or the run has ended. None when the run has ended
    /// before, or never began. A run that is not held never does one: this then waits for its end.
    pub async fn step(&self) -> Option<StepReport> {
        let mut steps = self.steps.clone();
        let before = steps.borrow().steps_done;
        if !self.send(ControlRequest::new(ControlAction::Step)) {
            return None;
        }
        let done = |report: &StepReport| report.has_ended || (report.is_waiting && report.steps_done > before);
        steps.wait_for(done).await.ok().map(|report| *report)
    }
}

words! {
    /// Whether a control request has an effect.
    Acknowledgement { Accepted = "accepted", Noop = "noop", }
}

/// What became of a control request to another process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asked {
    pub run_id: String,
    pub acknowledgement: Acknowledgement,
    /// The run's state when it was asked.
    pub state: Option<String>,
    /// Why nothing will happen, or which process was asked.
    pub reason: String,
}

/// The content of the control file.
#[derive(Serialize, Deserialize)]
struct ControlFile {
    /// The process that is meant: its note in the lock. A process that takes the run later ignores the file.
    holder: String,
    request: ControlRequest,
}

/// Asks the process that executes a run.
pub fn ask(paths: &RunPaths, request: ControlRequest) -> Result<Asked, OptimizerError> {
    let state = match paths.workspace_db().is_file() {
        true => Some(Reader::open(paths.workspace_db().as_std_path())?.totals()?.state.word().to_owned()),
        false => None,
    };
    let asked = |acknowledgement, reason| Asked { run_id: paths.run_id().to_owned(), acknowledgement, state, reason };
    let Some(holder) = FileLock::holder(&paths.lock())? else {
        return Ok(asked(Acknowledgement::Noop, "no process works on this run".to_owned()));
    };
    let text = serde_json::to_vec(&ControlFile { holder: holder.clone(), request })
        .map_err(|error| OptimizerError::new(ErrorCode::Json, format!("the request cannot be written: {error}")))?;
    write_atomic(&paths.control_file(), &text)?;
    Ok(asked(Acknowledgement::Accepted, format!("{holder} was asked")))
}

/// Waits for the next request of another process for the run that this process executes.
pub(super) async fn next_from_file(paths: &RunPaths) -> ControlRequest {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let Ok(text) = std::fs::read(paths.control_file()) else { continue };
        // Each request is read once. One for a process that has ended is dropped.
        warn_if_err!(std::fs::remove_file(paths.control_file()), "the request of another process was not removed");
        let file = match serde_json::from_slice::<ControlFile>(&text) {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(%error, "the request of another process cannot be read");
                continue;
            }
        };
        let own = format!("pid {} since ", std::process::id());
        if file.holder.starts_with(&own)
            && std::fs::read_to_string(paths.lock()).is_ok_and(|note| note.trim() == file.holder)
        {
            return file.request;
        }
    }
}

//! Control requests to a run: through a channel from its own process, and through a file in the run directory from other
//! processes.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, mpsc, watch};

use crate::artifacts::{FileLock, RunPaths, write_atomic};
use crate::warn_if_err;
use crate::workspace::{Reader, StoredEvent};
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::RunState;
use synth_optimizer_core::string_enum;

/// How often a run checks for a control file from another process.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of a manually stepped run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepReport {
    /// Completed steps: every call that they sent has its answer in the log.
    pub steps_done: u64,
    /// Whether the run waits for a step.
    pub is_waiting: bool,
    /// Sequence number of the last event in the log. `None` before the first.
    pub last_sequence: Option<u64>,
    pub state: Option<RunState>,
    /// Whether this process has stopped working on the run. The run itself may be resumable.
    pub has_ended: bool,
}

/// Controls a run of this process. Clones control the same run and can be used from any thread.
#[derive(Debug, Clone)]
pub struct RunControl {
    requests: mpsc::UnboundedSender<ControlRequest>,
    live: broadcast::Sender<Arc<StoredEvent>>,
    steps: watch::Receiver<StepReport>,
}

/// The receiving side of a `RunControl`, which the run owns.
#[derive(Debug)]
pub struct ControlReceiver {
    pub(super) requests: mpsc::UnboundedReceiver<ControlRequest>,
    pub(super) live: broadcast::Sender<Arc<StoredEvent>>,
    pub(super) steps: watch::Sender<StepReport>,
    /// Control requests that arrived before the loop of the run started.
    pub(super) early_requests: Vec<ControlRequest>,
}

impl RunControl {
    /// Creates both sides. A subscriber that falls `buffer` events behind misses events and has to read them from the
    /// workspace.
    pub fn new(buffer: u32) -> (Self, ControlReceiver) {
        let (sender, requests) = mpsc::unbounded_channel();
        let (live, _) = broadcast::channel(buffer.max(1) as usize);
        let (reports, steps) = watch::channel(StepReport::default());
        let receiver = ControlReceiver { requests, live: live.clone(), steps: reports, early_requests: Vec::new() };
        (Self { requests: sender, live, steps }, receiver)
    }

    /// Sends a control request and returns whether the run can still receive it. A second request ends the grace period of
    /// the first. If the second one is a stop or a cancel, it also takes effect.
    pub fn send(&self, request: ControlRequest) -> bool {
        self.requests.send(request).is_ok()
    }

    /// Subscribes to every event from now on. Each is delivered once it is stored.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<StoredEvent>> {
        self.live.subscribe()
    }

    /// Requests one step of a manually stepped run and waits until it is complete or the run has ended. Returns `None` if
    /// the run had already ended or never started. A run in continuous mode takes no steps, so this waits for its end.
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

string_enum! {
    /// Whether a control request has an effect.
    Acknowledgement { Accepted = "accepted", Noop = "noop", }
}

/// The reply to a control request to another process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ControlReply {
    pub run_id: String,
    pub acknowledgement: Acknowledgement,
    /// The state of the run at the time of the request.
    pub state: Option<String>,
    /// Which process received the request, or why none did.
    pub reason: String,
}

/// The content of the control file.
#[derive(Serialize, Deserialize)]
struct ControlFile {
    /// The note in the lock of the process that the request is for. A later holder of the run ignores the file.
    holder: String,
    request: ControlRequest,
}

/// Writes a control request for the process that executes a run.
pub fn request_control(paths: &RunPaths, request: ControlRequest) -> Result<ControlReply, OptimizerError> {
    let state = match paths.workspace_db().is_file() {
        true => Some(Reader::open(paths.workspace_db().as_std_path())?.totals()?.state.as_str().to_owned()),
        false => None,
    };
    let asked =
        |acknowledgement, reason| ControlReply { run_id: paths.run_id().to_owned(), acknowledgement, state, reason };
    let Some(holder) = FileLock::holder(&paths.lock())? else {
        return Ok(asked(Acknowledgement::Noop, "no process executes this run".to_owned()));
    };
    let text = serde_json::to_vec(&ControlFile { holder: holder.clone(), request })
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "cannot encode the control request", error))?;
    write_atomic(&paths.control_file(), &text)?;
    Ok(asked(Acknowledgement::Accepted, format!("the control request was sent to {holder}")))
}

/// Waits for the next control request from another process.
pub(super) async fn next_from_file(paths: &RunPaths) -> ControlRequest {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        // Usually there is no file. One that cannot be read is not logged, because it is tried again every second.
        let Ok(text) = std::fs::read(paths.control_file()) else { continue };
        // Each file is read once. A request for a process that has ended is dropped.
        warn_if_err!(std::fs::remove_file(paths.control_file()), "the control request was not removed");
        let parsed = serde_json::from_slice::<ControlFile>(&text);
        warn_if_err!(&parsed, "the control request of another process is not valid");
        let Ok(file) = parsed else { continue };
        let own = format!("pid {} since ", std::process::id());
        if file.holder.starts_with(&own)
            && std::fs::read_to_string(paths.lock()).is_ok_and(|note| note.trim() == file.holder)
        {
            return file.request;
        }
    }
}

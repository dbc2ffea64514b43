//! Shared by the tests of the queue: a queue in a temporary directory, a clock under control of the test, and helpers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use camino::Utf8Path;
use serde_json::json;
use synth_optimizer_core::config::{ConfigContent, ConfigSource, ResolvedConfig, load};
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_service::queue::{
    Claim, ClaimFilter, Clock, ControlOutcome, HistoryEntry, LeaseHolder, LeaseProof, Moment, Queue, QueueError,
    RequestEntry, Submission,
};
use tempfile::TempDir;

pub(crate) const LEASE: Duration = Duration::from_secs(60);

/// A clock that moves only when the test advances it.
#[derive(Debug)]
pub(crate) struct TestClock(Mutex<Moment>);

impl TestClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.lock().unwrap().boot += by.as_millis() as u64;
    }

    pub(crate) fn set_wall(&self, millis: u64) {
        self.0.lock().unwrap().wall = millis;
    }

    pub(crate) fn reboot(&self) {
        let mut now = self.0.lock().unwrap();
        now.boot_id.push('+');
        now.boot = 1000;
    }
}

impl Clock for TestClock {
    fn now(&self) -> Moment {
        self.0.lock().unwrap().clone()
    }
}

/// A queue in a temporary directory.
pub(crate) struct QueueFixture {
    pub(crate) dir: TempDir,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) queue: Queue,
}

impl QueueFixture {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let now = Moment { wall: 1_700_000_000_000, boot: 5_000_000, boot_id: "this boot".to_owned() };
        let clock = Arc::new(TestClock(Mutex::new(now)));
        let queue = open(&dir.path().join("service.sqlite"), &clock);
        Self { dir, clock, queue }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("service.sqlite")
    }

    /// Opens the same file again.
    pub(crate) fn reopen(&self) -> Queue {
        open(&self.path(), &self.clock)
    }

    /// Submits a run with its own container.
    pub(crate) fn submit(&self, run_id: &str) -> RequestEntry {
        submit(&self.queue, &config(run_id, &format!("http://{run_id}.test:9100"), None))
    }

    /// Claims the next request.
    pub(crate) fn claim(&self) -> Option<RequestEntry> {
        claim(&self.queue, "lease", ClaimFilter::Any)
    }

    /// Submits, claims and starts a request. Returns it with its fencing token.
    pub(crate) fn running(&self, run_id: &str) -> (RequestEntry, i64) {
        let submitted = self.submit(run_id);
        let claimed = claim(&self.queue, "lease", ClaimFilter::Request(&submitted.request_id)).unwrap();
        let token = claimed.fencing_token;
        (self.queue.start(&claimed.request_id, LeaseProof::Token(token)).unwrap(), token)
    }
}

pub(crate) fn open(path: &std::path::Path, clock: &Arc<TestClock>) -> Queue {
    let clock: Arc<dyn Clock> = clock.clone();
    Queue::open_with(path, clock, Duration::from_secs(30)).unwrap()
}

pub(crate) fn config(run_id: &str, url: &str, namespace: Option<&str>) -> ResolvedConfig {
    let mut value = json!({
        "run": {"output_dir": "/nowhere/runs"},
        "container": {"url": url},
        "dataset": {"train_seeds": [0, 1, 2], "heldout_seeds": [10, 11]},
        "candidate": {"target_modules": ["instruction"]},
        "policy": {"provider": "openai", "model": "m"},
        "proposer": {"model": "m"},
        "cache": {"mode": "readwrite"},
    });
    if !run_id.is_empty() {
        value["run"]["run_id"] = json!(run_id);
    }
    if let Some(namespace) = namespace {
        value["cache"]["namespace"] = json!(namespace);
    }
    let source =
        ConfigSource { name: "test", content: ConfigContent::Mapping(value), base_dir: Utf8Path::new("/nowhere") };
    load(source, &BTreeMap::new(), &[]).unwrap()
}

/// Returns a submission with default values.
pub(crate) fn submission(config: &ResolvedConfig) -> Submission<'_> {
    Submission {
        config,
        config_path: None,
        priority: 0,
        auto_start: true,
        manual_step: false,
        idempotency_key: None,
        body_digest: "digest",
        max_queued: None,
    }
}

pub(crate) fn submit(queue: &Queue, config: &ResolvedConfig) -> RequestEntry {
    queue.submit(&submission(config)).unwrap().entry
}

pub(crate) fn claim(queue: &Queue, lease_id: &str, filter: ClaimFilter<'_>) -> Option<RequestEntry> {
    try_claim(queue, lease_id, filter).unwrap()
}

pub(crate) fn try_claim(
    queue: &Queue,
    lease_id: &str,
    filter: ClaimFilter<'_>,
) -> Result<Option<RequestEntry>, QueueError> {
    queue.claim(&Claim { lease_id, worker_id: Some("w"), lease: LEASE, holder: LeaseHolder::Caller, filter })
}

/// Sends a control request.
pub(crate) fn send_control(
    queue: &Queue,
    id: &str,
    action: ControlAction,
    reason: Option<&str>,
) -> Result<ControlOutcome, QueueError> {
    queue.control(id, &ControlRequest::new(action).with_reason(reason))
}

/// Returns the pending control request for the holder with this token; `None` if another holder has the request.
pub(crate) fn pending_control(queue: &Queue, id: &str, token: i64) -> Option<Option<ControlRequest>> {
    let held = queue.active_requests().unwrap().into_iter();
    held.filter(|held| held.request_id == id && held.fencing_token == token).map(|held| held.pending_control).next()
}

pub(crate) fn failure() -> OptimizerError {
    OptimizerError::new(ErrorCode::RunFailed, "no")
}

/// Returns the history of a request.
pub(crate) fn history(queue: &Queue, request_id: &str) -> Vec<HistoryEntry> {
    let run_id = queue.get_request(request_id).unwrap().run_id;
    let mut history = queue.history(&run_id).unwrap();
    history.retain(|row| row.request_id == request_id);
    history
}

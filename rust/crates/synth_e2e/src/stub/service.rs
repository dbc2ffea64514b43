//! The routes of the stub, and the execution of a rollout.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use synth_optimizer_core::model::ids::{CandidateId, Payload};

use super::bill::BillFile;
use super::flags::{Dialect, Flags, Memory, Modes};
use super::latency::Running;
use super::records::{Progress, RolloutRecords, Submission};
use super::render::{Renderer, detail, unfinished};
use super::task::{Row, StubTask};

/// How often a rollout checks whether its gate is open.
const GATE_INTERVAL: Duration = Duration::from_millis(2);

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StubReply {
    Json { status: u16, body: Arc<[u8]> },
    Endless,
    Close,
}

/// The parts of a rollout request that the stub reads.
#[derive(Deserialize)]
struct RolloutRequest<'a> {
    #[serde(borrow, default)]
    rollout_id: Cow<'a, str>,
    #[serde(borrow, default)]
    submission_mode: Cow<'a, str>,
    #[serde(default)]
    candidate: Payload,
    #[serde(borrow, default)]
    task: Option<RowKey<'a>>,
    #[serde(borrow, default)]
    dataset_row: Option<RowKey<'a>>,
    #[serde(borrow, default)]
    policy: Policy<'a>,
}

#[derive(Default, Deserialize)]
struct Policy<'a> {
    #[serde(borrow, default)]
    model: Cow<'a, str>,
}

#[derive(Deserialize)]
struct RowKey<'a> {
    #[serde(borrow, default)]
    task_id: Cow<'a, str>,
    #[serde(borrow, default)]
    split: Cow<'a, str>,
    #[serde(default)]
    seed: u32,
}

/// The stub container.
#[derive(Debug)]
pub struct StubContainer {
    flags: Flags,
    task: StubTask,
    bill: BillFile,
    records: RolloutRecords,
    renderer: Renderer,
    metadata: Arc<[u8]>,
    program: Arc<[u8]>,
    rows: Arc<[u8]>,
    requests: AtomicU64,
    executions: AtomicU64,
    running: Running,
}

impl StubContainer {
    pub fn new(flags: Flags) -> io::Result<Self> {
        let task = StubTask::new(&flags);
        let modes: &[&str] = match flags.modes {
            Modes::Both => &["blocking", "async"],
            Modes::Blocking | Modes::AtOnce if flags.faults.refuse_async => &["blocking", "async"],
            Modes::Blocking | Modes::AtOnce => &["blocking"],
            Modes::Async => &["async"],
        };
        Ok(Self {
            bill: BillFile::open(flags.bill.as_deref())?,
            records: RolloutRecords::default(),
            renderer: Renderer::new(flags.reply_bytes, &flags.faults)?,
            metadata: bytes(&task.metadata(
                flags.dialect,
                modes,
                matches!(flags.memory, Memory::Remember | Memory::Strict),
            )),
            program: bytes(&task.program()),
            rows: bytes(&task.rows()),
            task,
            flags,
            requests: AtomicU64::new(0),
            executions: AtomicU64::new(0),
            running: Running::default(),
        })
    }

    /// Handles one request.
    pub async fn answer(self: &Arc<Self>, method: &str, path: &str, body: &[u8]) -> StubReply {
        match (method, path) {
            ("POST", "/rollouts" | "/rollout") => self.rollout(body).await,
            ("GET", "/health") => json_reply(200, r#"{"status":"ok"}"#),
            ("GET", "/metadata" | "/info") => ready(&self.metadata),
            ("GET", "/program") => ready(&self.program),
            ("GET", "/task_info") => json_reply(200, r#"{"task":{"description":"Find the house rules."}}"#),
            ("GET", "/taskset") if self.flags.dialect != Dialect::Dataset => ready(&self.rows),
            ("GET", "/dataset") if self.flags.dialect != Dialect::Taskset => ready(&self.rows),
            ("POST", "/taskset/tasks") if self.flags.dialect != Dialect::Dataset => self.tasks(body),
            ("POST", "/dataset/rows") if self.flags.dialect != Dialect::Taskset => self.dataset_rows(body),
            ("GET", "/counts") => self.counts(),
            _ => self.by_id(method, path),
        }
    }

    /// Returns the counts of requests and executions. Not part of the contract.
    fn counts(&self) -> StubReply {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (elapsed, rollouts) = self.running.times();
        let counts = json!({
            "rollout_requests": read(&self.requests), "executions": read(&self.executions),
            "most_at_once": self.running.most(),
            "elapsed_seconds": elapsed.as_secs_f64(), "rollout_seconds": rollouts.as_secs_f64(),
        });
        ready(&bytes(&counts))
    }

    fn tasks(&self, body: &[u8]) -> StubReply {
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let ids = request["task_ids"].as_array().cloned().unwrap_or_default();
        let rows = ids.iter().map(|id| self.task.row_of_id(id.as_str()?));
        match rows.collect::<Option<Vec<Row>>>() {
            Some(rows) => self.rows_reply("tasks", &rows),
            None => json_reply(422, &detail("unknown task id")),
        }
    }

    fn dataset_rows(&self, body: &[u8]) -> StubReply {
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let split = request["split"].as_str().unwrap_or("train");
        let seeds = request["seeds"].as_array().cloned().unwrap_or_default();
        let rows = seeds.iter().map(|seed| self.task.row(split, u32::try_from(seed.as_u64()?).ok()?));
        match rows.collect::<Option<Vec<Row>>>() {
            Some(rows) => self.rows_reply("rows", &rows),
            None => json_reply(422, &detail("unknown seed")),
        }
    }

    fn rows_reply(&self, key: &str, rows: &[Row]) -> StubReply {
        let rows: Vec<Value> = rows.iter().map(|row| self.task.row_json(*row)).collect();
        ready(&bytes(&json!({key: rows, "metadata": {}})))
    }

    /// Handles the routes of one rollout.
    fn by_id(&self, method: &str, path: &str) -> StubReply {
        let Some(rest) = path.strip_prefix("/rollouts/") else { return json_reply(404, &detail("Not Found")) };
        let (id, action) = rest.split_once('/').unwrap_or((rest, ""));
        if method == "POST" && action == "terminate" {
            self.records.end(id, Progress::ProcessOutput("terminated", "terminated"));
        } else if method != "GET" || !matches!(action, "" | "state") {
            return json_reply(404, &detail("Not Found"));
        }
        match self.records.get(id) {
            None => json_reply(404, &detail(&format!("unknown_rollout:{id}"))),
            Some(Progress::Running) if self.flags.memory == Memory::Ended => {
                json_reply(404, &detail(&format!("unknown_rollout:{id}")))
            }
            Some(Progress::Running) => json_reply(200, &unfinished(id, "running", "running", "")),
            Some(Progress::ProcessOutput(status, why)) => json_reply(200, &unfinished(id, status, "failed", why)),
            Some(Progress::Done(_)) if action == "state" => {
                json_reply(200, &unfinished(id, "completed", "succeeded", ""))
            }
            Some(Progress::Done(record)) => ready(&record),
        }
    }

    async fn rollout(self: &Arc<Self>, body: &[u8]) -> StubReply {
        let Ok(request) = serde_json::from_slice::<RolloutRequest<'_>>(body) else {
            return json_reply(422, &detail("the body is not a rollout request"));
        };
        if request.rollout_id.is_empty() {
            return json_reply(422, &detail("rollout_id is missing"));
        }
        let wants_async = request.submission_mode == "async";
        let refused = match self.flags.modes {
            Modes::Blocking => wants_async,
            Modes::Async => !wants_async,
            Modes::Both | Modes::AtOnce => wants_async && self.flags.faults.refuse_async,
        };
        if refused {
            return json_reply(422, &detail("this submission_mode is not supported"));
        }
        if nth(&self.requests, self.flags.faults.overload_every) {
            return json_reply(429, &detail("too many rollouts"));
        }
        let row = self.requested_row(&request);
        let candidate = CandidateId::of("gepa_", &request.candidate).to_string();
        let later = wants_async && self.flags.modes != Modes::AtOnce;
        let id = request.rollout_id.into_owned();
        let is_able = self.flags.faults.bad_model.as_deref() != Some(&*request.policy.model);
        if self.flags.faults.endless && self.executions.load(Ordering::Relaxed) >= self.flags.faults.free {
            return StubReply::Endless;
        }
        let identity = match self.flags.memory {
            Memory::Remember => Some(format!("{row:?} {candidate}")),
            Memory::Strict => Some(String::from_utf8_lossy(body).into_owned()),
            Memory::Ended | Memory::Forget => None,
        };
        if self.flags.memory == Memory::Ended {
            if matches!(self.records.get(&id), Some(Progress::Done(_))) {
                return self.by_id("GET", &format!("/rollouts/{id}"));
            }
            self.records.restart(&id);
        }
        if let Some(identity) = identity {
            match self.records.begin(&id, identity) {
                Submission::New => {}
                Submission::Conflict => {
                    let conflict = json!({"detail": {"error": "rollout_identity_conflict", "rollout_id": id}});
                    return StubReply::Json { status: 409, body: bytes(&conflict) };
                }
                Submission::Repeated(_) if later => return self.by_id("GET", &format!("/rollouts/{id}")),
                Submission::Repeated(mut progress) => {
                    let _ = progress.wait_for(|progress| *progress != Progress::Running).await;
                    return self.by_id("GET", &format!("/rollouts/{id}"));
                }
            }
        } else if later {
            self.records.restart(&id);
        }
        if self.bill.add(&id, row, &candidate).is_err() {
            return json_reply(500, &detail("the bill cannot be written"));
        }
        if later {
            let (service, running) = (Arc::clone(self), unfinished(&id, "running", "running", ""));
            tokio::spawn(async move { service.execute(&id, row, &request.candidate, is_able).await });
            return json_reply(200, &running);
        }
        self.execute(&id, row, &request.candidate, is_able).await
    }

    /// Executes a rollout.
    async fn execute(&self, id: &str, row: Row, candidate: &Payload, is_able: bool) -> StubReply {
        let faults = &self.flags.faults;
        let count = self.executions.fetch_add(1, Ordering::Relaxed) + 1;
        let hit = |every: u64| every > 0 && count.is_multiple_of(every);
        self.running.begin();
        if faults.hang {
            std::future::pending::<()>().await;
        }
        if let Some(gate) = faults.gate.as_ref().filter(|_| count > faults.free) {
            while !gate.exists() {
                tokio::time::sleep(GATE_INTERVAL).await;
            }
        }
        let latency = self.flags.latency.of(id);
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        self.running.end();
        if hit(faults.fail_every) {
            self.records.end(id, Progress::ProcessOutput("failed", "the task broke"));
            return json_reply(500, &detail("the task broke"));
        }
        let record: Arc<[u8]> = self.renderer.completed(&self.task, id, row, candidate, is_able).into();
        self.records.end(id, Progress::Done(Arc::clone(&record)));
        if hit(faults.reset_every) { StubReply::Close } else { ready(&record) }
    }

    /// Returns the row of a request. Like some real containers, the stub runs a default row if it finds none.
    fn requested_row(&self, request: &RolloutRequest<'_>) -> Row {
        let first = Row { heldout: false, index: 0 };
        if self.flags.faults.wrong_row {
            return first;
        }
        let found = match self.flags.dialect {
            Dialect::Taskset => request.task.as_ref().and_then(|key| self.task.row_of_id(&key.task_id)),
            Dialect::Dataset | Dialect::Both => {
                request.dataset_row.as_ref().and_then(|key| self.task.row(&key.split, key.seed))
            }
        };
        found.unwrap_or(first)
    }
}

fn nth(counter: &AtomicU64, every: u64) -> bool {
    let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
    every > 0 && count.is_multiple_of(every)
}

fn bytes(value: &Value) -> Arc<[u8]> {
    value.to_string().into_bytes().into()
}

fn ready(body: &Arc<[u8]>) -> StubReply {
    StubReply::Json { status: 200, body: Arc::clone(body) }
}

fn json_reply(status: u16, body: &str) -> StubReply {
    StubReply::Json { status, body: body.as_bytes().into() }
}

//! Prepares what a run needs before its first call: disk, cache, container, task and proposer.
//!
//! The documents of the container are always requested again and stored in the cache for replays. A readonly run reads
//! them from the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::warn;

use super::execute::RunContext;
use crate::artifacts::DiskWatch;
use crate::cache::{Cache, CacheSettings, Lookup};
use crate::clock::unix_millis;
use crate::container::{
    Client, ManagedProcess, SetupCall, SetupCalls, SetupReply, Task, load, load_again, reap_orphans, run_blocking,
    start,
};
use crate::proposer::Proposer;
use crate::warn_if_err;
use crate::workspace::{CacheAction, CacheUse, Reader, Record, SnapshotKind};
use synth_optimizer_core::config::redacted;
use synth_optimizer_core::config::sections::{CacheMode, CacheSection};
use synth_optimizer_core::model::cache_key::{CacheBoundary, cache_key};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;

/// Everything that a run needs before it writes its first event.
pub(super) struct Prepared {
    pub(super) task: Task,
    pub(super) cache: Cache,
    pub(super) client: Option<Client>,
    pub(super) disk: DiskWatch,
    /// The calls that loaded the task, with their use of the cache.
    pub(super) setup_calls: Vec<Record>,
    pub(super) proposer: Arc<dyn Proposer>,
    pub(super) ready: Option<ProposerReady>,
}

/// Prepares a run. Returns the container process if the run starts one; on an error, the process is stopped.
pub(super) async fn prepare(
    run: &RunContext<'_>,
    proposer: &Arc<dyn Proposer>,
    is_new: bool,
) -> Result<(Option<ManagedProcess>, Prepared), OptimizerError> {
    let (config, dir) = (&run.request.config, run.dir);
    end_orphans(run).await?;
    let disk = DiskWatch::new(&config.disk_budget, &config.run.output_dir);
    if is_new {
        disk.check_start()?;
    }
    if let Some((_, refusal)) = run.request.access.refusals(config).await.into_iter().next() {
        return Err(refusal);
    }
    let cache = Cache::open(&CacheSettings::of(&config.cache, dir.dir(), dir.run_id()))?;
    let client = run.request.client().await?;
    run.ownership.check()?;
    let process = match &client {
        Some(client) => start(config, dir.dir(), client).await?,
        None => None,
    };
    let setup = CachedSetup::new(&cache, client.as_ref());
    let loaded = async {
        let task = if is_new { load(config, &setup).await? } else { load_again(config, &setup).await? };
        // The proposer must be ready before the first rollout is sent.
        let ready = if client.is_some() { proposer.prepare().await? } else { None };
        if let Some(warning) = ready.as_ref().and_then(ProposerReady::shutdown_warning) {
            warn!("{warning}");
        }
        Ok((task, ready))
    };
    let (task, ready) = match loaded.await {
        Ok(loaded) => loaded,
        Err(error) => {
            if let Some(process) = process {
                // The error that is returned is the cause; this one is only logged.
                warn_if_err!(process.stop().await, "stopping the container failed");
            }
            return Err(error);
        }
    };
    let setup_calls = setup.calls.into_inner();
    Ok((process, Prepared { task, cache, client, disk, setup_calls, proposer: Arc::clone(proposer), ready }))
}

/// Prepares a run that is only cancelled, from its stored documents. Calls nothing and starts no process.
pub(super) async fn prepare_from_stored(
    run: &RunContext<'_>,
    stored: &Reader,
    proposer: &Arc<dyn Proposer>,
) -> Result<Prepared, OptimizerError> {
    let (config, dir) = (&run.request.config, run.dir);
    end_orphans(run).await?;
    let unused = CacheSection { mode: CacheMode::Off, ..config.cache.clone() };
    let cache = Cache::open(&CacheSettings::of(&unused, dir.dir(), dir.run_id()))?;
    let task = load(config, &StoredSetup::new(stored)).await?;
    let disk = DiskWatch::new(&config.disk_budget, &config.run.output_dir);
    let (client, setup_calls, ready) = (None, Vec::new(), None);
    Ok(Prepared { task, cache, client, disk, setup_calls, proposer: Arc::clone(proposer), ready })
}

/// Ends the processes that a crashed process of this run left behind.
async fn end_orphans(run: &RunContext<'_>) -> Result<(), OptimizerError> {
    // A process that has taken the run over has its own processes in this directory.
    run.ownership.check()?;
    let place = run.dir.dir().to_owned();
    // Ending a process can take a while, so this does not block the runtime, which still handles control requests.
    match run_blocking(move || reap_orphans(&place)).await? {
        0 => {}
        processes => warn!(processes, "orphaned processes of a crashed run were ended"),
    }
    Ok(())
}

/// A cached reply to a setup call. A failure is cached too, because a replay must meet it again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CachedSetupReply {
    Answered(Value),
    Failed(String),
}

/// Setup calls through the cache.
#[derive(Debug)]
pub(super) struct CachedSetup<'a> {
    cache: &'a Cache,
    /// `None` in a readonly run, which calls nothing.
    client: Option<&'a Client>,
    calls: Mutex<Vec<Record>>,
}

impl<'a> CachedSetup<'a> {
    pub(super) fn new(cache: &'a Cache, client: Option<&'a Client>) -> Self {
        Self { cache, client, calls: Mutex::default() }
    }

    async fn answer(&self, call: SetupCall<'_>) -> Result<Value, OptimizerError> {
        let (boundary, route) = (call.boundary, call.route);
        let request = json!({ "method": call.method.as_str(), "route": route, "body": call.body });
        let key = cache_key(self.cache.namespace(), boundary, &request);
        let seen = |action| {
            let (boundary, cache) = (boundary.as_str().to_owned(), Some(CacheUse { key: key.clone(), action }));
            self.calls.lock().push(Record::SetupCall { boundary, unix_millis: unix_millis(), cache });
        };
        let Some(client) = self.client else {
            let Lookup::Hit(bytes) = self.cache.get(boundary, &key)? else {
                return Err(self.cache.miss_error(boundary, &key, &format!("the answer of {route}")));
            };
            seen(CacheAction::Hit);
            let reply: CachedSetupReply = serde_json::from_slice(&bytes).map_err(|error| {
                OptimizerError::from_cause(ErrorCode::CacheCorrupt, format!("the cached answer of {route}"), error)
            })?;
            return match reply {
                CachedSetupReply::Answered(value) => Ok(value),
                CachedSetupReply::Failed(reason) => Err(OptimizerError::new(ErrorCode::Container, reason)),
            };
        };
        let answer =
            client.call(call).await.map(|value| if is_only_shown(boundary) { redacted(&value) } else { value });
        if self.cache.mode() == CacheMode::Readwrite {
            let reply = match &answer {
                Ok(value) => CachedSetupReply::Answered(value.clone()),
                // Only optional task information is cached as missing. Any other failure ends the preparation.
                Err(error) if boundary == CacheBoundary::TaskInfo => CachedSetupReply::Failed(error.message.clone()),
                // The caller receives the error.
                Err(_) => return answer,
            };
            let bytes = serde_json::to_vec(&reply).map_err(crate::file_error::json(route))?;
            self.cache.put(boundary, &key, bytes.into())?;
            seen(CacheAction::Write);
        }
        answer
    }
}

/// Returns whether a document is only shown to users and proposers. Such documents are stored with credentials redacted.
fn is_only_shown(boundary: CacheBoundary) -> bool {
    matches!(boundary, CacheBoundary::Metadata | CacheBoundary::TaskInfo | CacheBoundary::Dataset)
}

impl SetupCalls for CachedSetup<'_> {
    fn call<'a>(&'a self, call: SetupCall<'a>) -> SetupReply<'a> {
        Box::pin(self.answer(call))
    }
}

/// Answers setup calls with the documents that the container returned when the run was started.
#[derive(Debug)]
pub(super) struct StoredSetup<'a> {
    stored: &'a Reader,
    /// Whether the train rows were returned. They are requested before the held-out rows.
    has_train: AtomicBool,
}

impl<'a> StoredSetup<'a> {
    pub(super) fn new(stored: &'a Reader) -> Self {
        Self { stored, has_train: AtomicBool::new(false) }
    }

    fn answer(&self, boundary: CacheBoundary) -> Result<Value, OptimizerError> {
        let kind = match boundary {
            CacheBoundary::Metadata => SnapshotKind::Contract,
            CacheBoundary::Program => SnapshotKind::Program,
            CacheBoundary::TaskInfo => SnapshotKind::TaskInfo,
            CacheBoundary::Dataset => SnapshotKind::Dataset,
            CacheBoundary::DatasetRows if self.has_train.swap(true, Ordering::Relaxed) => SnapshotKind::HeldoutRows,
            CacheBoundary::DatasetRows => SnapshotKind::TrainRows,
            CacheBoundary::Rollout | CacheBoundary::Proposer => {
                return Err(OptimizerError::new(ErrorCode::Invariant, "a run that is being ended sends no calls"));
            }
        };
        let reply = self.stored.snapshot(kind)?.ok_or_else(|| {
            let message = format!("the workspace has no snapshot of the container's {}", kind.as_str());
            OptimizerError::new(ErrorCode::Container, message)
        })?;
        Ok(match boundary {
            CacheBoundary::DatasetRows => json!({ "rows": reply, "tasks": reply }),
            _ => reply,
        })
    }
}

impl SetupCalls for StoredSetup<'_> {
    fn call<'a>(&'a self, call: SetupCall<'a>) -> SetupReply<'a> {
        Box::pin(std::future::ready(self.answer(call.boundary)))
    }
}

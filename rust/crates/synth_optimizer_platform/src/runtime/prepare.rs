//! What a run needs before it begins: disk, cache, container, task and proposer.

use std::sync::Arc;

use tracing::warn;

use super::fence::Fence;
use super::request::Request;
use super::setup::{CachedSetup, SetupAccess, StoredSetup};
use crate::artifacts::{DiskWatch, RunDir};
use crate::cache::{Cache, CacheSettings};
use crate::container::{Client, ManagedProcess, Task, load, reap_orphans, start};
use crate::proposer::Proposer;
use crate::warn_if_err;
use crate::workspace::Reader;
use synth_optimizer_core::config::sections::{CacheMode, CacheSection};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;

/// Everything that must be there before anything is written down.
pub(super) struct Prepared {
    pub(super) task: Task,
    pub(super) cache: Cache,
    pub(super) client: Option<Client>,
    pub(super) disk: DiskWatch,
    pub(super) accesses: Vec<SetupAccess>,
    pub(super) proposer: Arc<dyn Proposer>,
    pub(super) ready: Option<ProposerReady>,
}

/// Prepares a run; a container that was started is handed over, or ended again when something else is missing.
pub(super) async fn prepare(
    request: &Request,
    dir: &RunDir,
    fence: &Fence,
    proposer: &Arc<dyn Proposer>,
    is_new: bool,
) -> Result<(Option<ManagedProcess>, Prepared), OptimizerError> {
    let config = &request.config;
    reap(dir, fence).await?;
    let disk = DiskWatch::new(&config.disk_budget, &config.run.output_dir);
    if is_new {
        disk.check_start()?;
    }
    let cache = Cache::open(&CacheSettings::of(&config.cache, dir.dir(), dir.run_id()))?;
    let client = match config.cache.mode {
        CacheMode::Readonly => None,
        CacheMode::Off | CacheMode::Readwrite => Some(Client::within(&config.container, &request.reach).await?),
    };
    fence.check()?;
    let process = match &client {
        Some(client) => start(config, dir.dir(), client).await?,
        None => None,
    };
    let setup = CachedSetup::new(&cache, client.as_ref());
    let loaded = async {
        let task = load(config, &setup).await?;
        // Nothing is paid for before the proposer can work.
        let ready = if client.is_some() { proposer.prepare().await? } else { None };
        Ok((task, ready))
    };
    let (task, ready) = match loaded.await {
        Ok(loaded) => loaded,
        Err(error) => {
            if let Some(process) = process {
                // The first error is the one that matters.
                warn_if_err!(process.stop().await, "the container was not stopped");
            }
            return Err(error);
        }
    };
    let accesses = setup.accesses();
    Ok((process, Prepared { task, cache, client, disk, accesses, proposer: Arc::clone(proposer), ready }))
}

/// The same from what the run has stored, for one that only has to end: nobody is called and nothing is started.
pub(super) async fn recall(
    request: &Request,
    dir: &RunDir,
    fence: &Fence,
    stored: &Reader,
    proposer: &Arc<dyn Proposer>,
) -> Result<Prepared, OptimizerError> {
    let config = &request.config;
    reap(dir, fence).await?;
    let unused = CacheSection { mode: CacheMode::Off, ..config.cache.clone() };
    let cache = Cache::open(&CacheSettings::of(&unused, dir.dir(), dir.run_id()))?;
    let task = load(config, &StoredSetup::new(stored)).await?;
    let disk = DiskWatch::new(&config.disk_budget, &config.run.output_dir);
    let (client, accesses, ready) = (None, Vec::new(), None);
    Ok(Prepared { task, cache, client, disk, accesses, proposer: Arc::clone(proposer), ready })
}

/// Ends what a crash has left.
async fn reap(dir: &RunDir, fence: &Fence) -> Result<(), OptimizerError> {
    // Whoever has taken the run over has processes of its own there.
    fence.check()?;
    let place = dir.dir().to_owned();
    // What does not want to end takes a while, in which the run can be told to leave.
    let reaped = tokio::task::spawn_blocking(move || reap_orphans(&place)).await.map_err(|error| {
        OptimizerError::from_cause(ErrorCode::Invariant, "looking for what a crash has left was broken off", error)
    })?;
    match reaped? {
        0 => {}
        processes => warn!(processes, "processes that a crashed run left were ended"),
    }
    Ok(())
}

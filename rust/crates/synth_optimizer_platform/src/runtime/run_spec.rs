//! What to run, and the options under which to run it.

use std::fmt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::ownership::RunLease;
use crate::access::AccessPolicy;
use crate::container::Client;
use crate::proposer::{Proposer, proposer_from_config};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::error::OptimizerError;

/// How much a preflight check verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckScope {
    Everything,
    /// What needs no process of its own: a container or a codex that the run would start is left out.
    WithoutProcesses,
    /// Only what needs neither the container nor the proposer: settings, output directory, cache and limits.
    Settings,
}

/// What to run. `new` returns the defaults of the command line; a service sets further fields.
#[derive(Debug, Clone)]
pub struct RunSpec {
    pub config: Config,
    /// `None` selects the proposer that the config names.
    pub proposer: Option<Arc<dyn Proposer>>,
    /// The codex binary that the Python package installs.
    pub codex_runtime: Option<Utf8PathBuf>,
    pub hooks: Hooks,
    /// The process to supersede if it holds the run: `pid N`, or its whole note in `run.lock`. This run continues from
    /// what that process stored, and every later write of that process is rejected. Any other holder keeps the run.
    pub takeover: Option<String>,
    /// A lease on the run. When it expires, this process stops as if another process had taken the run over.
    pub lease: Option<RunLease>,
    /// Whether the run is stepped manually: each step sends the calls that wait at that moment, and calls that follow
    /// from their answers wait for the next step.
    pub stepping: bool,
    /// What the configuration may reach and start.
    pub access: AccessPolicy,
    /// How much `check` verifies.
    pub check_scope: CheckScope,
    /// Directory for the files of the processes that `check` starts. `None` selects the system's temporary directory.
    pub scratch: Option<Utf8PathBuf>,
    /// Whether another run of this service uses the container. `check` then calls that container and starts none.
    pub container_in_use: bool,
}

impl RunSpec {
    /// Returns a run of this config with default options.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            proposer: None,
            codex_runtime: None,
            hooks: Hooks::default(),
            takeover: None,
            lease: None,
            stepping: false,
            access: AccessPolicy::default(),
            check_scope: CheckScope::Everything,
            scratch: None,
            container_in_use: false,
        }
    }

    /// Returns a client of the container, or an error if its address is not allowed. `None` in a readonly run, which calls
    /// nothing.
    pub(super) async fn client(&self) -> Result<Option<Client>, OptimizerError> {
        if self.config.cache.mode == CacheMode::Readonly {
            return Ok(None);
        }
        Client::with_egress_policy(&self.config.container, &self.access.containers).await.map(Some)
    }

    /// Returns the proposer of the run. It keeps its files in `dir`.
    pub(super) fn proposer_in(&self, dir: &Utf8Path) -> Result<Arc<dyn Proposer>, OptimizerError> {
        match &self.proposer {
            Some(proposer) => Ok(Arc::clone(proposer)),
            None => proposer_from_config(&self.config, dir, self.codex_runtime.as_deref(), &self.access.proposers),
        }
    }
}

/// A point between two durable writes at which hooks are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookPoint {
    BeforeCommit,
    AfterCommit,
    AfterFeed,
    BeforeResults,
    AfterResults,
}

/// A function that is called at every `HookPoint`. Tests use it to kill the process there.
#[derive(Clone, Default)]
pub struct Hooks(Option<Arc<dyn Fn(HookPoint) + Send + Sync>>);

impl Hooks {
    pub fn new(hook: impl Fn(HookPoint) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(super) fn call(&self, boundary: HookPoint) {
        if let Some(hook) = &self.0 {
            hook(boundary);
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Hooks({})", if self.0.is_some() { "set" } else { "none" })
    }
}

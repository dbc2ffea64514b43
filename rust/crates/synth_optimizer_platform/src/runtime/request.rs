//! What is to be run, and under which conditions.

use std::fmt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::fence::LeaseWatch;
use crate::container::{Client, Reach};
use crate::proposer::{Proposer, configured};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::error::OptimizerError;

/// How much a check looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    Everything,
    /// Only what can be known without asking anybody: settings, output, cache and limits.
    Settings,
}

/// What to run. `new` gives one for a run from a command line; a service sets what it needs besides.
#[derive(Debug)]
pub struct Request {
    pub config: Config,
    /// None: the one that the config names.
    pub proposer: Option<Arc<dyn Proposer>>,
    /// The codex binary that is installed with the package.
    pub codex_runtime: Option<Utf8PathBuf>,
    pub hooks: Hooks,
    /// The process that may be superseded when it holds the run: `pid N`, or its whole note in `run.lock`. What it has
    /// stored is gone on with; what it does after that is refused. Any other holder keeps the run.
    pub takeover: Option<String>,
    /// A lease on the run. When it ends, the run ends as one that was taken over.
    pub lease: Option<LeaseWatch>,
    /// Whether the run is held: it sends nothing before a step, and what the answers lead to waits for the next one.
    pub stepping: bool,
    /// What the container may be.
    pub reach: Reach,
    /// How much `check` looks at.
    pub verify: Verify,
    /// Where `check` keeps what it starts; the directory for temporary files if none is named.
    pub scratch: Option<Utf8PathBuf>,
    /// Whether another run of this service uses the container: `check` then asks it as it is and starts none.
    pub container_in_use: bool,
}

impl Request {
    /// A run of this config, with nothing else asked for.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            proposer: None,
            codex_runtime: None,
            hooks: Hooks::default(),
            takeover: None,
            lease: None,
            stepping: false,
            reach: Reach::default(),
            verify: Verify::Everything,
            scratch: None,
            container_in_use: false,
        }
    }

    /// A client of the container, if it may be reached. None where nothing may be called.
    pub(super) async fn client(&self) -> Result<Option<Client>, OptimizerError> {
        if self.config.cache.mode == CacheMode::Readonly {
            return Ok(None);
        }
        Client::within(&self.config.container, &self.reach).await.map(Some)
    }

    /// The proposer of the run, which keeps its files in this directory.
    pub(super) fn proposer_in(&self, dir: &Utf8Path) -> Result<Arc<dyn Proposer>, OptimizerError> {
        match &self.proposer {
            Some(proposer) => Ok(Arc::clone(proposer)),
            None => configured(&self.config, dir, self.codex_runtime.as_deref()),
        }
    }
}

/// A moment between two durable steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    BeforeCommit,
    AfterCommit,
    AfterFeed,
    BeforeResults,
    AfterResults,
}

/// Called at every boundary; tests end the process there.
#[derive(Clone, Default)]
pub struct Hooks(Option<Arc<dyn Fn(Boundary) + Send + Sync>>);

impl Hooks {
    pub fn new(hook: impl Fn(Boundary) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(super) fn at(&self, boundary: Boundary) {
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

//! What is to be run, and under which conditions.

use std::sync::Arc;

use camino::Utf8PathBuf;

use super::fence::LeaseWatch;
use super::hooks::Hooks;
use crate::container::Reach;
use crate::proposer::Proposer;
use synth_optimizer_core::config::Config;

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
    /// Name of the algorithm; a run is resumed by the one that began it.
    pub algorithm: String,
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
    pub fn new(config: Config, algorithm: &str) -> Self {
        Self {
            config,
            algorithm: algorithm.to_owned(),
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
}

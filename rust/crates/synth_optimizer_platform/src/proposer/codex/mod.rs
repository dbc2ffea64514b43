//! The backend `codex_app_server`: one warm codex process in a sandbox, a thread of its own for every turn.
//!
//! `access` decides how it signs in, `home` writes its configuration, `process` finds and starts it, `wire` speaks with it. `session` puts them together, tries the sandbox and checks what came out. `turn` takes a turn in a
//! `workdir` of its own, which `watch` follows.

mod access;
mod home;
mod process;
mod session;
mod turn;
mod watch;
mod wire;
mod workdir;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, watch as signal};

use session::Session;
use workdir::Workdir;

use super::brief::BRIEF_VERSION;
use super::files::make_dir;
use super::transcript::Redactor;
use super::{Doing, Outcome, ProposalRequest, Proposer, Turn, TurnId};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::proposer::ProposerSection;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;

/// The model that is asked when the config names none.
const MODEL: &str = "gpt-5.4-mini";

/// Looks up variables.
pub type Lookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Told when the turns under way must end.
type Stop = signal::Receiver<u64>;

/// Proposals by codex.
pub struct CodexProposer {
    section: ProposerSection,
    model: String,
    run_dir: Utf8PathBuf,
    env: Lookup,
    /// The binary of the PyPI package.
    runtime: Option<Utf8PathBuf>,
    session: AsyncMutex<Option<Arc<Session>>>,
    stop: signal::Sender<u64>,
    /// Workspaces in which something may still run: they are gone over when nothing does any more.
    unswept: Mutex<BTreeMap<Workdir, Redactor>>,
}

impl fmt::Debug for CodexProposer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CodexProposer").field("run_dir", &self.run_dir).finish_non_exhaustive()
    }
}

impl CodexProposer {
    /// Touches nothing outside; `prepare` does. `runtime` is the binary of the PyPI package, if it is installed.
    pub fn new(
        config: &Config,
        run_dir: &Utf8Path,
        env: Lookup,
        runtime: Option<Utf8PathBuf>,
    ) -> Result<Self, OptimizerError> {
        let section = config.proposer.clone();
        let model = section.model.clone().unwrap_or_else(|| MODEL.to_owned());
        let run_dir = camino::absolute_utf8(run_dir).map_err(|error| {
            OptimizerError::from_cause(ErrorCode::Io, format!("{run_dir} is no place for a run"), error)
        })?;
        Ok(Self {
            section,
            model,
            run_dir,
            env,
            runtime,
            session: AsyncMutex::default(),
            stop: signal::Sender::new(0),
            unswept: Mutex::default(),
        })
    }

    /// The run directory, made if it is not there, by the name that codex will call it.
    fn made_run_dir(&self) -> Result<Utf8PathBuf, OptimizerError> {
        let dir = &self.run_dir;
        let made = make_dir(dir).and_then(|()| dir.canonicalize_utf8());
        made.map_err(|error| OptimizerError::from_cause(ErrorCode::Io, format!("{dir} cannot be made"), error))
    }

    /// The process that serves the run; one that has ended is replaced.
    async fn session(&self) -> Result<Arc<Session>, OptimizerError> {
        let mut held = self.session.lock().await;
        if let Some(session) = held.as_ref() {
            if session.is_usable() {
                return Ok(Arc::clone(session));
            }
            // The next one uses the same places.
            session.end(Duration::ZERO).await;
            *held = None;
        }
        let session = Arc::new(Session::start(self).await?);
        *held = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Goes over a workspace in which nothing runs any more.
    async fn sweep(&self, workdir: Workdir) {
        let Some(redactor) = self.unswept.lock().get(&workdir).cloned() else { return };
        let swept = workdir.clone();
        // Where this breaks off, it is done when the run is over.
        if tokio::task::spawn_blocking(move || swept.sweep(&redactor)).await.is_ok() {
            self.unswept.lock().remove(&workdir);
        }
    }
}

impl Proposer for CodexProposer {
    fn identity(&self) -> Value {
        let section = &self.section;
        json!({
            "backend": section.backend.word(),
            "model": self.model,
            "provider": section.provider,
            "reasoning_effort": section.reasoning_effort.map(|effort| effort.word()),
            "answer": section.answer.word(),
            "max_evidence_kb": section.max_evidence_kb,
            "brief": BRIEF_VERSION,
        })
    }

    fn prepare(&self) -> Doing<'_, Result<Option<ProposerReady>, OptimizerError>> {
        Box::pin(async move { Ok(Some(self.session().await?.ready.clone())) })
    }

    fn propose(&self, turn: TurnId, request: ProposalRequest) -> Turn<'_> {
        let stop = self.stop.subscribe();
        Box::pin(async move {
            let mut outcome = Outcome::default();
            let taken = turn::take(self, turn, &request, stop, &mut outcome).await;
            taken.map_err(|reason| outcome.failed(reason))
        })
    }

    fn interrupt(&self) {
        self.stop.send_modify(|times| *times += 1);
    }

    fn close(&self) -> Doing<'_, ()> {
        Box::pin(async move {
            let mut held = self.session.lock().await;
            // It is let go of only when it has ended, so that a close that is broken off can be taken up again.
            if let Some(session) = held.as_ref() {
                session.end(Duration::from_secs(self.section.interrupt_timeout_seconds)).await;
            }
            *held = None;
            let left = std::mem::take(&mut *self.unswept.lock());
            left.iter().for_each(|(workdir, redactor)| workdir.sweep(redactor));
        })
    }
}

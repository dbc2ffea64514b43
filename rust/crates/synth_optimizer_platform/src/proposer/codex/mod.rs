//! The backend `codex_app_server`: one long-lived codex process in a sandbox, with a separate thread for every turn.
//!
//! `access` selects the credentials, `home` writes the configuration, `process` finds and starts the binary, and `rpc`
//! implements its protocol. `session` combines them, probes the sandbox and verifies the settings. `turn` runs a turn
//! in its own `workdir` and tracks it in `turn_state`.

mod access;
mod home;
mod process;
mod rpc;
mod session;
mod turn;
mod turn_state;
mod workdir;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, watch as signal};

use access::ModelAccess;
use process::locate;
use session::Session;
use workdir::Workdir;

use super::brief::BRIEF_VERSION;
use super::connection::Connection;
use super::credentials::base_url;
use super::files::make_dir;
use super::transcript::Redactor;
use super::{CheckFuture, ProposalRequest, Proposer, ProposerFuture, TurnAccount, TurnFuture, TurnId};
use crate::access::EgressPolicy;
use crate::file_error;
use crate::logs::in_current_span;
use crate::model_name::is_same_model;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::proposer::ProposerSection;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::{ModelShutdown, ProposerReady};

/// Looks up environment variables.
pub type EnvLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Signals that the active turns must end.
type StopSignal = signal::Receiver<u64>;

/// Proposer that runs codex.
pub struct CodexProposer {
    section: ProposerSection,
    /// The model of the run: the configured one, or else the first one that codex used.
    model: OnceLock<String>,
    run_dir: Utf8PathBuf,
    env: EnvLookup,
    /// The codex binary of the PyPI package.
    runtime: Option<Utf8PathBuf>,
    egress_policy: EgressPolicy,
    session: AsyncMutex<Option<Arc<Session>>>,
    stop: signal::Sender<u64>,
    /// Workspaces in which a command may still run. They are redacted when none does.
    unredacted: Mutex<BTreeMap<Workdir, Redactor>>,
}

impl fmt::Debug for CodexProposer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CodexProposer").field("run_dir", &self.run_dir).finish_non_exhaustive()
    }
}

impl CodexProposer {
    /// Creates the proposer without touching files or processes; `prepare` does. `runtime` is the codex binary of the
    /// PyPI package, if it is installed.
    pub fn new(
        config: &Config,
        run_dir: &Utf8Path,
        env: EnvLookup,
        runtime: Option<Utf8PathBuf>,
    ) -> Result<Self, OptimizerError> {
        let section = config.proposer.clone();
        let model = section.model.clone().map_or_else(OnceLock::new, OnceLock::from);
        let run_dir = camino::absolute_utf8(run_dir)
            .map_err(|error| file_error::classified(format!("the run directory {run_dir} is not usable"), error))?;
        Ok(Self {
            section,
            model,
            run_dir,
            env,
            runtime,
            egress_policy: EgressPolicy::default(),
            session: AsyncMutex::default(),
            stop: signal::Sender::new(0),
            unredacted: Mutex::default(),
        })
    }

    /// Restricts the addresses at which the check may ask for the model. Codex itself connects to the endpoint that the
    /// check has accepted.
    #[must_use]
    pub fn with_egress_policy(self, egress_policy: &EgressPolicy) -> Self {
        Self { egress_policy: egress_policy.clone(), ..self }
    }

    /// Checks credentials, endpoint, model and program. Before codex is started, the model may be unknown. Returns every
    /// problem, or the end of the model if the endpoint names it.
    async fn check_access(&self) -> Result<Option<ModelShutdown>, Vec<OptimizerError>> {
        let access = ModelAccess::decide(&self.section, &*self.env);
        // Without a key, the endpoint can still be reached.
        let (base, key) = match &access {
            Ok(ModelAccess::Endpoint { base_url, key }) => (Some(base_url.as_str()), key.as_ref()),
            Ok(ModelAccess::Host { .. }) => (None, None),
            Err(_) => (self.section.base_url.as_deref(), None),
        };
        let redactor = Redactor::new(key.map(|key| key.value.clone()));
        let connection = match base.map(|base| base_url(Some(base))) {
            Some(Ok(base)) => Some(Connection::new(&base, key, &self.egress_policy)),
            // `ModelAccess::decide` has reported an invalid URL.
            Some(Err(_)) | None => None,
        };
        let model = self.model.get().map(String::as_str);
        let checked = match connection {
            Some(Ok(connection)) => connection.check_model(model, access.is_err(), &redactor).await,
            Some(Err(error)) => Err(error),
            None => Ok(None),
        };
        let program = locate(&self.section.command, &*self.env, self.runtime.as_deref());
        match (access, checked, program) {
            (Ok(_), Ok(shutdown), Ok(_)) => Ok(shutdown),
            (access, checked, program) => {
                Err(access.err().into_iter().chain(checked.err()).chain(program.err()).collect())
            }
        }
    }

    /// Creates the run directory if it is missing and returns its canonical path, which codex also uses.
    fn create_run_dir(&self) -> Result<Utf8PathBuf, OptimizerError> {
        let dir = &self.run_dir;
        let made = make_dir(dir).and_then(|()| dir.canonicalize_utf8());
        made.map_err(file_error::io(dir, "creating"))
    }

    /// Returns the codex session of the run. Replaces one that has ended.
    async fn session(&self) -> Result<Arc<Session>, OptimizerError> {
        let mut current = self.session.lock().await;
        if let Some(session) = current.as_ref() {
            if session.is_usable() {
                return Ok(Arc::clone(session));
            }
            // The next session uses the same directories.
            session.end(Duration::ZERO).await;
            *current = None;
        }
        let session = Arc::new(Session::start(self).await?);
        *current = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Redacts a workspace in which no command runs any more.
    async fn redact_workdir(&self, workdir: Workdir) {
        let Some(redactor) = self.unredacted.lock().get(&workdir).cloned() else { return };
        let copy = workdir.clone();
        // If this fails, `close` redacts the workspace at the end of the run.
        if tokio::task::spawn_blocking(in_current_span(move || copy.redact(&redactor))).await.is_ok() {
            self.unredacted.lock().remove(&workdir);
        }
    }
}

impl Proposer for CodexProposer {
    fn identity(&self) -> Value {
        let section = &self.section;
        json!({
            "backend": section.backend.as_str(),
            // Without a configured model, a replay finds the answers of the model that codex chose.
            "model": section.model,
            "provider": section.provider,
            "reasoning_effort": section.reasoning_effort.map(|effort| effort.as_str()),
            "answer": section.answer.as_str(),
            "max_evidence_kb": section.max_evidence_kb,
            "brief": BRIEF_VERSION,
            "instructions": section.instructions,
        })
    }

    fn check(&self) -> CheckFuture<'_> {
        Box::pin(async move {
            let mut model_shutdown = self.check_access().await?;
            let is_model_known = self.model.get().is_some();
            let session = self.session().await.map_err(|error| vec![error])?;
            if !is_model_known {
                // Codex has named its model only now.
                model_shutdown = self.check_access().await?;
            }
            Ok(Some(ProposerReady { model_shutdown, ..session.ready.clone() }))
        })
    }

    fn adopt_model(&self, model: &str) -> bool {
        let used = self.model.get_or_init(|| model.to_owned());
        used == model || is_same_model(used, model)
    }

    fn propose(&self, turn: TurnId, request: ProposalRequest) -> TurnFuture<'_> {
        let stop = self.stop.subscribe();
        Box::pin(async move {
            let mut outcome = TurnAccount::default();
            let taken = turn::run_turn(self, turn, &request, stop, &mut outcome).await;
            taken.map_err(|reason| outcome.failed(reason))
        })
    }

    fn interrupt(&self) {
        self.stop.send_modify(|times| *times += 1);
    }

    fn close(&self) -> ProposerFuture<'_, ()> {
        Box::pin(async move {
            let mut current = self.session.lock().await;
            // Keep the session until it has ended, so that an aborted close can be repeated.
            if let Some(session) = current.as_ref() {
                session.end(Duration::from_secs(self.section.interrupt_timeout_seconds)).await;
            }
            *current = None;
            let left = std::mem::take(&mut *self.unredacted.lock());
            left.iter().for_each(|(workdir, redactor)| workdir.redact(redactor));
        })
    }
}

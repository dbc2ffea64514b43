//! One codex process that is ready for turns: started, initialized, its sandbox tried and its settings confirmed.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::Plan;
use super::access::Access;
use super::echo::{Wanted, mismatches};
use super::faults::fatal;
use super::home::{Home, PROFILE, Settings, may_write};
use super::locate::{Program, locate};
use super::probe::{Network, probe};
use super::process::{CodexProcess, Launch, PROPOSER_LOG};
use super::wire::{Left, RpcFault, Wire};
use crate::container::{Holder, Lease, reap};
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::event_fields::ProposerReady;
use crate::proposer::prices::Prices;
use crate::proposer::transcript::Redactor;

/// Notifications that tell nothing that is used.
const UNUSED: [&str; 9] = [
    "item/agentMessage/delta",
    "item/commandExecution/outputDelta",
    "item/fileChange/outputDelta",
    "item/reasoning/textDelta",
    "item/reasoning/summaryTextDelta",
    "item/reasoning/summaryPartAdded",
    "account/rateLimits/updated",
    "remoteControl/status/changed",
    "turn/diff/updated",
];

/// A warm process. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Session {
    wire: Wire,
    process: CodexProcess,
    home: Home,
    run_dir: Utf8PathBuf,
    program: Program,
    version: String,
    provider: &'static str,
    auth: String,
    prices: Prices,
    network: Network,
    redactor: Redactor,
    /// Whether nothing of it is left. Held by the one who ends it, so that every other waits for the end.
    is_ended: Mutex<bool>,
}

/// A thread that is as it was asked for.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: String,
    pub(super) model: String,
}

/// Why there is no thread.
#[derive(Debug)]
pub(super) enum NoThread {
    Fault(RpcFault),
    /// It is not what was asked for; no turn may run in it.
    Mismatch {
        message: String,
        model: Option<String>,
    },
}

impl Session {
    /// Starts codex and checks everything that a turn needs.
    pub(super) async fn start(plan: &Plan) -> Result<Self, OptimizerError> {
        let limit = Duration::from_secs(plan.section.startup_timeout_seconds);
        let late = || {
            let message = format!("codex was not ready within {} s", limit.as_secs());
            OptimizerError::new(ErrorCode::Proposer, message)
                .with_hint(format!("{PROPOSER_LOG} has what it said; proposer.startup_timeout_seconds is the limit."))
        };
        tokio::time::timeout(limit, Self::begin(plan)).await.map_err(|_| late())?
    }

    async fn begin(plan: &Plan) -> Result<Self, OptimizerError> {
        let run_dir = plan.made_run_dir()?;
        let dir = run_dir.clone();
        tokio::task::spawn_blocking(move || reap(&dir, Holder::Proposer))
            .await
            .map_err(|_| OptimizerError::new(ErrorCode::Proposer, "looking for left processes broke off"))??;
        let section = &plan.section;
        let access = Access::decide(section, &plan.env)?;
        let program = locate(&section.command, &plan.env, plan.runtime.as_deref())?;
        let redactor = Redactor::new(access.secrets());
        let lease = Lease::new(section.interrupt_timeout_seconds)?;
        let (model, token) = (plan.model.as_str(), lease.token.clone());
        let settings = Settings { section, model, access: &access, package: &program.package, token: &token };
        let home = Home::create(&run_dir, &settings)?;
        let path = plan.env.get("PATH");
        let launch = Launch {
            program: &program,
            access: &access,
            home: &home,
            run_dir: &run_dir,
            path: path.as_deref(),
            redactor: &redactor,
        };
        let (process, pipes) = match CodexProcess::start(launch, lease) {
            Ok(started) => started,
            Err(error) => {
                let _ = home.remove();
                return Err(error);
            }
        };
        let provider = settings.provider();
        let mut session = Self {
            wire: Wire::new(pipes.stdin, pipes.stdout),
            process,
            home,
            run_dir,
            provider,
            auth: access.describe(),
            prices: Prices::new(section, access.is_list_priced()),
            network: Network::Untried,
            program,
            version: String::new(),
            redactor,
            is_ended: Mutex::new(false),
        };
        match session.check(plan).await {
            Ok(()) => Ok(session),
            Err(error) => {
                // Whatever it says about itself stands in its log; it must be there before it is read.
                session.end(Duration::ZERO).await;
                let detail = error.detail.clone().unwrap_or_else(|| session.log_tail());
                let message = session.redactor.text(&error.message);
                Err(OptimizerError { message, ..error.with_detail(session.redactor.text(&detail)) })
            }
        }
    }

    async fn check(&mut self, plan: &Plan) -> Result<(), OptimizerError> {
        let limit = Duration::from_secs(plan.section.rpc_timeout_seconds);
        let params = json!({
            "clientInfo": { "name": "synth_optimizers", "title": "synth-optimizers", "version": env!("CARGO_PKG_VERSION") },
            // Leaving no command behind is an experimental call, and so is the name of the permission profile.
            "capabilities": { "experimentalApi": true, "requestAttestation": false, "optOutNotificationMethods": UNUSED },
        });
        let unready = |fault: RpcFault| fatal(format!("codex at {} cannot be used: {fault}", self.program.path));
        let hello = self.wire.call("initialize", params, limit).await.map_err(unready)?;
        self.wire.notify("initialized");
        let agent = hello.get("userAgent").and_then(Value::as_str).unwrap_or_default();
        let version = agent.split('/').nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap_or("unknown");
        self.version = version.to_owned();
        self.network = probe(&self.wire, &self.home, may_write(&plan.section), limit).await?;
        match self.thread(plan, &self.home.desk()).await {
            Ok(thread) => {
                self.wire.leave(&thread.id, Left::Idle);
                Ok(())
            }
            Err(NoThread::Fault(fault)) => Err(unready(fault)),
            Err(NoThread::Mismatch { message, .. }) => Err(fatal(message)),
        }
    }

    /// A new thread in a workspace that is not trusted.
    pub(super) async fn thread(&self, plan: &Plan, workspace: &Utf8Path) -> Result<Thread, NoThread> {
        let params = json!({
            "cwd": workspace,
            "model": plan.model,
            "modelProvider": self.provider,
            "approvalPolicy": "never",
            "ephemeral": true,
            // Else codex would trust the workspace by itself and obey what lies in it.
            "config": { "projects": { (workspace.as_str()): { "trust_level": "untrusted" } } },
        });
        let limit = Duration::from_secs(plan.section.rpc_timeout_seconds);
        let echo = self.wire.call("thread/start", params, limit).await.map_err(NoThread::Fault)?;
        let text = |place: &str| echo.pointer(place).and_then(Value::as_str).map(str::to_owned);
        let wanted =
            Wanted { model: &plan.model, provider: self.provider, cwd: workspace, may_write: may_write(&plan.section) };
        let mut found = mismatches(&echo, &wanted);
        let id = text("/thread/id");
        if id.is_none() {
            found.push("it has no id".into());
        }
        match (id, text("/model")) {
            (Some(id), Some(model)) if found.is_empty() => Ok(Thread { id, model }),
            (_, model) => {
                let message = format!("codex did not set up what was asked for: {}", found.join("; "));
                Err(NoThread::Mismatch { message: self.redactor.text(&message), model })
            }
        }
    }

    pub(super) fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(super) fn prices(&self) -> &Prices {
        &self.prices
    }

    pub(super) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    pub(super) fn is_usable(&self) -> bool {
        self.wire.is_open() && self.process.ended().is_none()
    }

    pub(super) fn ready(&self, plan: &Plan) -> ProposerReady {
        let right = if may_write(&plan.section) { "write" } else { "read" };
        let network = match self.network {
            Network::Tried => "no network",
            Network::Untried => "no network (not tried: there is neither bash nor python3)",
        };
        ProposerReady {
            backend: plan.section.backend.word().to_owned(),
            model: plan.model.clone(),
            provider: plan.section.provider.clone(),
            program: self.program.path.to_string(),
            source: self.program.source.to_owned(),
            version: self.version.clone(),
            auth: self.auth.clone(),
            sandbox: format!("profile {PROFILE}: workspace {right}, system read, nothing else, {network}"),
        }
    }

    /// Ends the process: its input is closed, and after `patience` it is killed with all it started. When this returns,
    /// its places are free, whoever has ended it; broken off, it can be called again.
    pub(super) async fn end(&self, patience: Duration) {
        self.wire.close();
        let mut is_ended = self.is_ended.lock().await;
        if *is_ended {
            return;
        }
        // The lease stays where something could not be ended; the next start tries again.
        let is_gone = self.process.end_within(patience).await.is_ok();
        *is_ended = self.home.remove().is_ok() && is_gone;
    }

    /// The last lines of the log.
    fn log_tail(&self) -> String {
        const LINES: usize = 10;
        let text = std::fs::read(self.run_dir.join(PROPOSER_LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !*self.is_ended.get_mut() {
            self.wire.close();
            self.process.kill_now();
            let _ = self.home.remove();
        }
    }
}

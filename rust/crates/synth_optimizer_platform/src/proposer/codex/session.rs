//! One codex process that is ready for turns: started, initialized, its sandbox tried and its settings confirmed.

use std::net::TcpListener;
use std::process::Child;
use std::time::Duration;

use camino::Utf8Path;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::CodexProposer;
use super::access::Access;
use super::home::{Home, PROFILE, may_write};
use super::process::{PROPOSER_LOG, locate, log_tail, spawn};
use super::wire::{RpcFault, Wire};
use crate::container::{AFTER_KILL, Family, GLANCE, Holder, Lease, reap};
use crate::proposer::prices::Prices;
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;

/// How long a drop may block.
const AT_DROP: Duration = Duration::from_millis(200);

/// What to do when codex is not what it should be.
pub(super) const HINT: &str =
    "Check proposer.model, proposer.base_url and the key or sign-in; proposer.log has what codex said.";

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
    pub(super) wire: Wire,
    /// What is written down of it.
    pub(super) ready: ProposerReady,
    provider: &'static str,
    pub(super) prices: Prices,
    pub(super) redactor: Redactor,
    home: Home,
    child: Mutex<Child>,
    family: Family,
    /// Whether nothing of it runs. Held by the one who ends it, so that every other waits for the end.
    is_over: AsyncMutex<bool>,
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
    pub(super) async fn start(proposer: &CodexProposer) -> Result<Self, OptimizerError> {
        let limit = Duration::from_secs(proposer.section.startup_timeout_seconds);
        tokio::time::timeout(limit, Self::begin(proposer)).await.map_err(|_elapsed| {
            let message = format!("codex was not ready within {} s", limit.as_secs());
            OptimizerError::new(ErrorCode::Proposer, message)
                .with_hint(format!("{PROPOSER_LOG} has what it said; proposer.startup_timeout_seconds is the limit."))
        })?
    }

    async fn begin(proposer: &CodexProposer) -> Result<Self, OptimizerError> {
        let run_dir = proposer.made_run_dir()?;
        let dir = run_dir.clone();
        tokio::task::spawn_blocking(move || reap(&dir, Holder::Proposer))
            .await
            .map_err(|_| OptimizerError::new(ErrorCode::Proposer, "looking for left processes broke off"))??;
        let section = &proposer.section;
        let access = Access::decide(section, &*proposer.env)?;
        let program = locate(&section.command, &*proposer.env, proposer.runtime.as_deref())?;
        let redactor = Redactor::new(access.secrets());
        let mut lease = Lease::new(section.interrupt_timeout_seconds)?;
        let home = Home::create(&run_dir, section, &proposer.model, &access, &program.package, &lease.token)?;
        let path = (proposer.env)("PATH");
        let spawned = spawn(&program, &access, &home, path.as_deref(), &redactor, &lease);
        let (child, wire) = spawned.inspect_err(|_| {
            warn_if_err!(Lease::remove(&run_dir, Holder::Proposer), "the lease of a start that failed stays");
            warn_if_err!(home.remove(), "the home of codex stays");
        })?;
        let id = child.id();
        let mut session = Self {
            wire,
            ready: ProposerReady {
                backend: section.backend.word().to_owned(),
                model: proposer.model.clone(),
                provider: section.provider.clone(),
                program: program.path.into_string(),
                source: program.source.to_owned(),
                version: String::new(),
                auth: access.describe(),
                sandbox: String::new(),
            },
            provider: access.provider(),
            prices: Prices::new(section, access.is_list_priced()),
            redactor,
            home,
            family: Family { holder: Holder::Proposer, token: lease.token.clone(), group: i32::try_from(id).ok() },
            child: Mutex::new(child),
            is_over: AsyncMutex::new(false),
        };
        (lease.pid, lease.pgid) = (Some(id), Some(id));
        lease.write(&run_dir, Holder::Proposer)?;
        match session.check(proposer).await {
            Ok(()) => Ok(session),
            Err(error) => {
                // Whatever it says about itself stands in its log; it must be there before it is read.
                session.end(Duration::ZERO).await;
                let detail = error.detail.clone().unwrap_or_else(|| log_tail(&run_dir));
                let message = session.redactor.text(&error.message);
                Err(OptimizerError { message, ..error.with_detail(session.redactor.text(&detail)) })
            }
        }
    }

    async fn check(&mut self, proposer: &CodexProposer) -> Result<(), OptimizerError> {
        let limit = Duration::from_secs(proposer.section.rpc_timeout_seconds);
        let params = json!({
            "clientInfo": { "name": "synth_optimizers", "title": "synth-optimizers", "version": env!("CARGO_PKG_VERSION") },
            // Leaving no command behind is an experimental call, and so is the name of the permission profile.
            "capabilities": { "experimentalApi": true, "requestAttestation": false, "optOutNotificationMethods": UNUSED },
        });
        let fatal = |message: String| OptimizerError::new(ErrorCode::Proposer, message).with_hint(HINT);
        let program = self.ready.program.clone();
        let unready = |fault: RpcFault| fatal(format!("codex at {program} cannot be used: {fault}"));
        let (wire, home) = (&self.wire, &self.home);
        let hello = wire.call("initialize", params, limit).await.map_err(unready)?;
        wire.lock().send(json!({ "method": "initialized" }));
        let agent = hello.get("userAgent").and_then(Value::as_str).unwrap_or_default();
        let version = agent.split('/').nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap_or("unknown");
        self.ready.version = version.to_owned();
        let may_write = may_write(&proposer.section);
        let right = if may_write { "write" } else { "read" };
        let network = probe(wire, home, may_write, limit).await?;
        self.ready.sandbox = format!("profile {PROFILE}: workspace {right}, system read, nothing else, {network}");
        match self.thread(proposer, &home.desk()).await {
            Ok(thread) => {
                wire.lock().leave(&thread);
                Ok(())
            }
            Err(NoThread::Fault(fault)) => Err(unready(fault)),
            Err(NoThread::Mismatch { message, .. }) => Err(fatal(message)),
        }
    }

    /// A new thread in a workspace that is not trusted, by its id.
    pub(super) async fn thread(&self, proposer: &CodexProposer, workspace: &Utf8Path) -> Result<String, NoThread> {
        let params = json!({
            "cwd": workspace,
            "model": proposer.model,
            "modelProvider": self.provider,
            "approvalPolicy": "never",
            "ephemeral": true,
            // Else codex would trust the workspace by itself and obey what lies in it.
            "config": { "projects": { (workspace.as_str()): { "trust_level": "untrusted" } } },
        });
        let limit = Duration::from_secs(proposer.section.rpc_timeout_seconds);
        let echo = self.wire.call("thread/start", params, limit).await.map_err(NoThread::Fault)?;
        let text = |place: &str| echo.pointer(place).and_then(Value::as_str).map(str::to_owned);
        let mut found = mismatches(&echo, &proposer.model, self.provider, workspace, may_write(&proposer.section));
        match text("/thread/id") {
            Some(id) if found.is_empty() => return Ok(id),
            Some(_) => {}
            None => found.push("it has no id".into()),
        }
        let message = format!("codex did not set up what was asked for: {}", found.join("; "));
        Err(NoThread::Mismatch { message, model: text("/model") })
    }

    pub(super) fn is_usable(&self) -> bool {
        self.wire.lock().is_open() && !self.has_ended()
    }

    fn has_ended(&self) -> bool {
        !matches!(self.child.lock().try_wait(), Ok(None))
    }

    /// Ends the process: its input is closed, and after `patience` it is killed with all it started. When this returns,
    /// its places are free, whoever has ended it; broken off, it can be called again.
    pub(super) async fn end(&self, patience: Duration) {
        self.wire.lock().close();
        let mut is_over = self.is_over.lock().await;
        if *is_over {
            return;
        }
        // The lease stays where something could not be ended; the next start tries again.
        let gone = self.gone_within(patience).await;
        *is_over = gone.is_ok();
        let (run_dir, token) = (&self.home.run_dir, &self.family.token);
        let freed = gone.and_then(|()| Lease::remove_own(run_dir, Holder::Proposer, token));
        warn_if_err!(freed, "the lease of codex stays");
        warn_if_err!(self.home.remove(), "the home of codex stays");
    }

    /// Waits until nothing is left, and kills what is still there after `patience`.
    async fn gone_within(&self, patience: Duration) -> Result<(), OptimizerError> {
        let (polite, last) = (Instant::now() + patience, Instant::now() + patience + AFTER_KILL);
        while !self.has_ended() || !self.family.members().is_empty() {
            let now = Instant::now();
            if now >= last {
                return Err(self.family.still_there());
            }
            // What codex itself leaves behind when it has ended has no reason to stay.
            if now >= polite || self.has_ended() {
                self.family.signal(rustix::process::Signal::KILL);
            }
            sleep(GLANCE).await;
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !*self.is_over.get_mut() {
            self.wire.lock().close();
            // The lease stays: the next start looks for what is left, if anything is.
            if !self.family.kill_within(AT_DROP) || !self.has_ended() {
                warn!("codex was killed and is not gone yet");
            }
            warn_if_err!(self.home.remove(), "the home of codex stays");
        }
    }
}

/// Everything in the answer to `thread/start` that is not as it was asked.
fn mismatches(echo: &Value, model: &str, provider: &str, cwd: &Utf8Path, may_write: bool) -> Vec<String> {
    let sandbox = if may_write { "workspaceWrite" } else { "readOnly" };
    let expected = [
        ("model", "/model", model),
        ("provider", "/modelProvider", provider),
        ("approval policy", "/approvalPolicy", "never"),
        ("directory", "/cwd", cwd.as_str()),
        ("sandbox", "/sandbox/type", sandbox),
        ("permission profile", "/activePermissionProfile/id", PROFILE),
    ];
    let mut found: Vec<String> = Vec::new();
    for (what, place, wanted) in expected {
        let seen = echo.pointer(place).unwrap_or(&Value::Null);
        if seen.as_str() != Some(wanted) {
            found.push(format!("{what} is {seen}, not {wanted:?}"));
        }
    }
    if echo.pointer("/sandbox/networkAccess").is_some_and(|access| access != &Value::Bool(false)) {
        found.push("its sandbox has network".into());
    }
    for (what, place) in [("writable directories", "/sandbox/writableRoots"), ("instructions", "/instructionSources")] {
        let mut others = echo.pointer(place).and_then(Value::as_array).into_iter().flatten();
        if let Some(other) = others.find(|other| other.as_str() != Some(cwd.as_str())) {
            found.push(format!("it has {what} of its own: {other}"));
        }
    }
    found
}

const SANDBOX_HINT: &str = "Commands of codex need unprivileged user namespaces: allow them for this user \
                            (kernel.unprivileged_userns_clone, user.max_user_namespaces, or the AppArmor rule for bwrap), or run \
                            the optimizer where they are allowed.";

/// What is tried in the sandbox.
const PROBE: &str = include_str!("probe.sh");

/// Runs one command under the profile of the turns, looks at what it could do, and tells what is known of its network.
async fn probe(wire: &Wire, home: &Home, may_write: bool, limit: Duration) -> Result<&'static str, OptimizerError> {
    let broken = |message: String| OptimizerError::new(ErrorCode::Proposer, message).with_hint(SANDBOX_HINT);
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("the system gives no random numbers: {error}")))?;
    let (secret, canary) = (hex(&secret), home.path.join("canary"));
    let io = |error: std::io::Error| OptimizerError::new(ErrorCode::Io, format!("{canary}: {error}"));
    std::fs::write(&canary, &secret).map_err(io)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let outside = home.path.join("outside");
    let command = ["/bin/sh", "-c", PROBE, "sh", outside.as_str(), canary.as_str(), &port.to_string()];
    let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    // Without a policy of its own, the command runs under the profile that the turns run under; its workspace is the desk.
    let params = json!({ "command": command, "timeoutMs": millis });
    let patience = limit + Duration::from_secs(1);
    let done = wire.call("command/exec", params, patience).await.map_err(|fault| broken(fault.to_string()))?;
    let text = |name: &str| done.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (out, code) = (text("stdout"), done.get("exitCode").and_then(Value::as_i64));
    if code != Some(0) || !out.contains("probed") {
        let code = code.map_or("no exit code".to_owned(), |code| format!("exit code {code}"));
        return Err(broken(format!("the sandbox of codex does not work: a command in it ended with {code}"))
            .with_detail(text("stderr").chars().take(500).collect::<String>()));
    }
    let has_written = home.desk().join("inside").exists();
    let findings = [
        (out.contains(&secret), "it can read files outside its workspace"),
        (outside.exists(), "it can write files outside its workspace"),
        (out.contains("connected"), "it has network"),
        (may_write && !has_written, "it cannot write its workspace"),
        (!may_write && has_written, "it can write its workspace although sandbox_mode is \"read_only\""),
    ];
    let found: Vec<&str> = findings.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect();
    // Lost: a sandbox that may only read has not made it, and the home is removed with the process.
    let _ = std::fs::remove_file(home.desk().join("inside"));
    if !found.is_empty() {
        return Err(broken(format!("the sandbox of codex is not what was asked for: {}", found.join("; "))));
    }
    Ok(if out.contains("tried") { "no network" } else { "no network (not tried: there is neither bash nor python3)" })
}

#[cfg(test)]
#[path = "echo_tests.rs"]
mod tests;

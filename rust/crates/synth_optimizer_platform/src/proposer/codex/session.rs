//! One codex process that is ready for turns: started, initialized, with a probed sandbox and verified settings.

use std::net::TcpListener;
use std::time::Duration;

use camino::Utf8Path;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::CodexProposer;
use super::access::ModelAccess;
use super::home::{CodexHome, PROFILE, may_write};
use super::process::{PROPOSER_LOG, locate, log_tail, spawn};
use super::rpc::{RpcClient, RpcError};
use crate::clock::random_hex;
use crate::container::{
    KILL_TIMEOUT, PROCESS_POLL_INTERVAL, ProcessLease, ProcessOwner, ProcessSet, reap_orphans_of, run_blocking,
};
use crate::os;
use crate::proposer::prices::Prices;
use crate::proposer::transcript::Redactor;
use crate::warn_if_err;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;

/// How long dropping a session may block.
const DROP_TIMEOUT: Duration = Duration::from_millis(200);

/// Hint for errors about the settings or credentials of codex.
pub(super) const HINT: &str =
    "Check proposer.model, proposer.base_url and the key or sign-in; proposer.log has the output of codex.";

/// Notifications that this client does not need.
const UNUSED_NOTIFICATIONS: [&str; 9] = [
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

/// A running codex process. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) rpc: RpcClient,
    /// Description of the session that the run records.
    pub(super) ready: ProposerReady,
    provider: &'static str,
    pub(super) prices: Prices,
    pub(super) redactor: Redactor,
    home: CodexHome,
    processes: ProcessSet,
    /// `None` once all processes have exited. The caller that ends the session holds the lock, so other callers wait
    /// for the end.
    child: Mutex<Option<Child>>,
}

/// A started thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: String,
    /// The model of the run.
    pub(super) model: String,
}

/// Why a thread could not be started.
#[derive(Debug)]
pub(super) enum ThreadError {
    Fault(RpcError),
    /// The thread differs from the requested one; no turn may run in it.
    Mismatch {
        message: String,
        model: Option<String>,
    },
}

impl Session {
    /// Starts codex and checks everything that a turn needs.
    pub(super) async fn start(proposer: &CodexProposer) -> Result<Self, OptimizerError> {
        let limit = Duration::from_secs(proposer.section.startup_timeout_seconds);
        tokio::time::timeout(limit, Self::launch(proposer)).await.map_err(|_elapsed| {
            let message = format!("codex was not ready within {} s", limit.as_secs());
            OptimizerError::new(ErrorCode::Proposer, message)
                .with_hint(format!("Read its output in {PROPOSER_LOG}; proposer.startup_timeout_seconds is the limit."))
        })?
    }

    async fn launch(proposer: &CodexProposer) -> Result<Self, OptimizerError> {
        let run_dir = proposer.create_run_dir()?;
        let dir = run_dir.clone();
        run_blocking(move || reap_orphans_of(&dir, ProcessOwner::Proposer)).await?;
        let section = &proposer.section;
        let access = ModelAccess::decide(section, &*proposer.env)?;
        let program = locate(&section.command, &*proposer.env, proposer.runtime.as_deref())?;
        let redactor = Redactor::new(access.secrets());
        let prices = Prices::new(section, access.is_list_priced())?;
        let mut lease = ProcessLease::new(section.interrupt_timeout_seconds)?;
        let home = CodexHome::create(&run_dir, section, &access, &program.package, &lease.token)?;
        let path = (proposer.env)("PATH");
        let spawned = spawn(&program, &access, &home, path.as_deref(), &redactor, &lease);
        let (child, rpc) = spawned.inspect_err(|_| {
            warn_if_err!(
                ProcessLease::remove(&run_dir, ProcessOwner::Proposer),
                "releasing the lease of a failed start failed"
            );
            warn_if_err!(home.remove(), "removing the home of codex failed");
        })?;
        // Without an id the child has already exited, and the first call fails.
        let id = child.id().unwrap_or_default();
        let mut session = Self {
            rpc,
            ready: ProposerReady {
                backend: section.backend.as_str().to_owned(),
                model: String::new(),
                provider: section.provider.clone(),
                program: program.path.into_string(),
                source: program.source.to_owned(),
                version: String::new(),
                auth: access.describe(),
                sandbox: String::new(),
                model_shutdown: None,
            },
            provider: access.provider(),
            prices,
            redactor,
            home,
            processes: ProcessSet {
                owner: ProcessOwner::Proposer,
                token: lease.token.clone(),
                group: i32::try_from(id).ok().filter(|group| *group > 0),
            },
            child: Mutex::new(Some(child)),
        };
        (lease.pid, lease.pgid) = (Some(id), Some(id));
        lease.write(&run_dir, ProcessOwner::Proposer)?;
        match session.check(proposer).await {
            Ok(()) => Ok(session),
            Err(error) => {
                // End codex first, so that its log is complete when it is read.
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
            // Ending background commands and naming the permission profile are experimental calls.
            "capabilities": { "experimentalApi": true, "requestAttestation": false, "optOutNotificationMethods": UNUSED_NOTIFICATIONS },
        });
        let fatal = |message: String| OptimizerError::new(ErrorCode::Proposer, message).with_hint(HINT);
        let program = self.ready.program.clone();
        let unready = |fault: RpcError| fatal(format!("codex at {program} cannot be used: {fault}"));
        let (rpc, home) = (&self.rpc, &self.home);
        let hello = rpc.call("initialize", params, limit).await.map_err(unready)?;
        rpc.lock().send(json!({ "method": "initialized" }));
        let agent = hello.get("userAgent").and_then(Value::as_str).unwrap_or_default();
        let version = agent.split('/').nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap_or("unknown");
        self.ready.version = version.to_owned();
        let may_write = may_write(&proposer.section);
        let right = if may_write { "write" } else { "read" };
        let network = probe(rpc, home, may_write, limit).await?;
        self.ready.sandbox = format!("profile {PROFILE}: workspace {right}, system read, nothing else, {network}");
        match self.thread(proposer, &home.scratch_dir()).await {
            Ok(Thread { id, model }) => {
                rpc.lock().leave(&id);
                self.ready.model = model;
                Ok(())
            }
            Err(ThreadError::Fault(fault)) => Err(unready(fault)),
            Err(ThreadError::Mismatch { message, .. }) => Err(fatal(message)),
        }
    }

    /// Starts a thread in an untrusted workspace. Its model is the configured one. Without one, codex chooses, and the
    /// model of the first thread is the model of the run.
    pub(super) async fn thread(&self, proposer: &CodexProposer, workspace: &Utf8Path) -> Result<Thread, ThreadError> {
        let mut params = json!({
            "cwd": workspace,
            "modelProvider": self.provider,
            "approvalPolicy": "never",
            "ephemeral": true,
            // Otherwise codex would trust the workspace and obey the configuration in it.
            "config": { "projects": { (workspace.as_str()): { "trust_level": "untrusted" } } },
        });
        if let Some(model) = &proposer.section.model {
            params["model"] = model.as_str().into();
        }
        let limit = Duration::from_secs(proposer.section.rpc_timeout_seconds);
        let echo = self.rpc.call("thread/start", params, limit).await.map_err(ThreadError::Fault)?;
        let text = |place: &str| echo.pointer(place).and_then(Value::as_str).map(str::to_owned);
        let model = proposer.model.get().map(String::as_str);
        let mut found = mismatches(&echo, model, self.provider, workspace, may_write(&proposer.section));
        let used = text("/model").filter(|model| !model.trim().is_empty());
        match (text("/thread/id"), used) {
            (Some(id), Some(used)) if found.is_empty() => {
                let model = proposer.model.get_or_init(|| used).clone();
                return Ok(Thread { id, model });
            }
            (Some(_), Some(_)) => {}
            (None, _) => found.push("the thread has no id".into()),
            (_, None) => found.push("the thread has no model".into()),
        }
        let mut message = format!("codex did not apply the requested settings: {}", found.join("; "));
        if proposer.section.model.is_none() && text("/model").as_deref() != model {
            message.push_str("; codex chose the model itself, because proposer.model is not set");
        }
        Err(ThreadError::Mismatch { message, model: text("/model") })
    }

    pub(super) fn is_usable(&self) -> bool {
        // While the lock is held, the session is being ended.
        let child = self.child.try_lock();
        self.rpc.lock().is_open() && child.is_ok_and(|mut child| child.as_mut().is_some_and(is_alive))
    }

    /// Ends the process: closes its input, and after `patience` kills it with all its descendants. When this returns,
    /// its directories are free. An aborted call can be repeated.
    pub(super) async fn end(&self, patience: Duration) {
        self.rpc.lock().close();
        let mut child = self.child.lock().await;
        let Some(process) = child.as_mut() else { return };
        // The lease file stays if a process could not be ended; the next start tries again.
        let gone = self.wait_until_gone(process, patience).await;
        if gone.is_ok() {
            *child = None;
        }
        let (run_dir, token) = (&self.home.run_dir, &self.processes.token);
        let freed = gone.and_then(|()| ProcessLease::remove_own(run_dir, ProcessOwner::Proposer, token));
        warn_if_err!(freed, "releasing the lease of codex failed");
        warn_if_err!(self.home.remove(), "removing the home of codex failed");
    }

    /// Waits for codex to exit, at most `patience`, and kills it then with all processes that it left behind.
    async fn wait_until_gone(&self, child: &mut Child, patience: Duration) -> Result<(), OptimizerError> {
        if let Ok(Err(error)) = timeout(patience, child.wait()).await {
            warn!(%error, "waiting for the exit of codex failed");
        }
        let last = Instant::now() + KILL_TIMEOUT;
        while is_alive(child) || !self.processes.members().is_empty() {
            if Instant::now() >= last {
                return Err(self.processes.survivors_error());
            }
            self.processes.signal(rustix::process::Signal::KILL);
            sleep(PROCESS_POLL_INTERVAL).await;
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(child) = self.child.get_mut() {
            self.rpc.lock().close();
            // The lease file stays, so that the next start can find processes that still run.
            if !self.processes.kill_within(DROP_TIMEOUT) || is_alive(child) {
                warn!("codex was killed and has not exited yet");
            }
            warn_if_err!(self.home.remove(), "removing the home of codex failed");
        }
    }
}

/// Returns whether a child still runs. Reaps it otherwise.
fn is_alive(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

/// Returns all differences between the answer to `thread/start` and the request. Without a `model`, codex chooses one.
fn mismatches(echo: &Value, model: Option<&str>, provider: &str, cwd: &Utf8Path, may_write: bool) -> Vec<String> {
    let sandbox = if may_write { "workspaceWrite" } else { "readOnly" };
    let expected = [
        ("provider", "/modelProvider", provider),
        ("approval policy", "/approvalPolicy", "never"),
        ("directory", "/cwd", cwd.as_str()),
        ("sandbox", "/sandbox/type", sandbox),
        ("permission profile", "/activePermissionProfile/id", PROFILE),
    ];
    let mut found: Vec<String> = Vec::new();
    for (what, place, wanted) in model.map(|model| ("model", "/model", model)).into_iter().chain(expected) {
        let seen = echo.pointer(place).unwrap_or(&Value::Null);
        if seen.as_str() != Some(wanted) {
            found.push(format!("{what} is {seen}, not {wanted:?}"));
        }
    }
    if echo.pointer("/sandbox/networkAccess").is_some_and(|access| access != &Value::Bool(false)) {
        found.push("its sandbox has network access".into());
    }
    for (what, place) in [("writable directories", "/sandbox/writableRoots"), ("instructions", "/instructionSources")] {
        let mut others = echo.pointer(place).and_then(Value::as_array).into_iter().flatten();
        if let Some(other) = others.find(|other| other.as_str() != Some(cwd.as_str())) {
            found.push(format!("it has {what} of its own: {other}"));
        }
    }
    found
}

/// Script that probes the sandbox.
const PROBE: &str = include_str!("probe.sh");

/// Runs a probe command under the permission profile of the turns and checks what it could do. Returns a description of
/// its network access.
async fn probe(
    rpc: &RpcClient,
    home: &CodexHome,
    may_write: bool,
    limit: Duration,
) -> Result<&'static str, OptimizerError> {
    let broken =
        |message: String| OptimizerError::new(ErrorCode::Proposer, message).with_hint(os::system().sandbox_hint());
    let (secret, canary) = (random_hex::<16>()?, home.path.join("canary"));
    let io = |error: std::io::Error| OptimizerError::from_cause(ErrorCode::Io, &canary, error);
    std::fs::write(&canary, &secret).map_err(io)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let outside = home.path.join("outside");
    let command = ["/bin/sh", "-c", PROBE, "sh", outside.as_str(), canary.as_str(), &port.to_string()];
    let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    // Without a policy in the call, the command runs under the default profile, which the turns use too.
    let params = json!({ "command": command, "timeoutMs": millis });
    let patience = limit + Duration::from_secs(1);
    let done = rpc.call("command/exec", params, patience).await.map_err(|fault| broken(fault.to_string()))?;
    let text = |name: &str| done.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (out, code) = (text("stdout"), done.get("exitCode").and_then(Value::as_i64));
    if code != Some(0) || !out.contains("probed") {
        let code = code.map_or("no exit code".to_owned(), |code| format!("exit code {code}"));
        return Err(broken(format!("the sandbox of codex does not work: a command in it ended with {code}"))
            .with_detail(text("stderr").chars().take(500).collect::<String>()));
    }
    let has_written = home.scratch_dir().join("inside").exists();
    let findings = [
        (out.contains(&secret), "it can read files outside its workspace"),
        (outside.exists(), "it can write files outside its workspace"),
        (out.contains("connected"), "it has network access"),
        (may_write && !has_written, "it cannot write its workspace"),
        (!may_write && has_written, "it can write its workspace although sandbox_mode is \"read_only\""),
    ];
    let found: Vec<&str> = findings.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect();
    // Errors are ignored: a read-only sandbox did not create the file, and the home is removed at the end.
    let _ = std::fs::remove_file(home.scratch_dir().join("inside"));
    if !found.is_empty() {
        return Err(broken(format!("the sandbox of codex differs from the requested one: {}", found.join("; "))));
    }
    Ok(if out.contains("tried") { "no network" } else { "no network (not tried: there is neither bash nor python3)" })
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;

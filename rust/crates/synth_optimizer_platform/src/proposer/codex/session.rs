//! One codex process that is ready for turns: started, initialized, its sandbox tried and its settings confirmed.

use std::net::TcpListener;
use std::time::Duration;

use camino::Utf8Path;
use serde_json::{Value, json};

use super::Plan;
use super::access::Access;
use super::home::{Home, PROFILE, may_write};
use super::locate::locate;
use super::process::{CodexProcess, PROPOSER_LOG};
use super::wire::{RpcFault, Wire};
use crate::container::{Holder, Lease, reap};
use crate::proposer::prices::Prices;
use crate::proposer::transcript::Redactor;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;

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
    pub(super) process: CodexProcess,
    /// What is written down of it.
    pub(super) ready: ProposerReady,
    provider: &'static str,
    pub(super) prices: Prices,
    pub(super) redactor: Redactor,
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
        let home = Home::create(&run_dir, section, &plan.model, &access, &program.package, &lease.token)?;
        let path = plan.env.get("PATH");
        let mut session = Self {
            process: CodexProcess::start(&program, &access, home, path.as_deref(), &redactor, lease)?,
            ready: ProposerReady {
                backend: section.backend.word().to_owned(),
                model: plan.model.clone(),
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
        };
        match session.check(plan).await {
            Ok(()) => Ok(session),
            Err(error) => {
                // Whatever it says about itself stands in its log; it must be there before it is read.
                session.process.end(Duration::ZERO).await;
                let detail = error.detail.clone().unwrap_or_else(|| session.process.log_tail());
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
        let fatal = |message: String| OptimizerError::new(ErrorCode::Proposer, message).with_hint(HINT);
        let program = self.ready.program.clone();
        let unready = |fault: RpcFault| fatal(format!("codex at {program} cannot be used: {fault}"));
        let CodexProcess { wire, home, .. } = &self.process;
        let hello = wire.call("initialize", params, limit).await.map_err(unready)?;
        wire.notify("initialized");
        let agent = hello.get("userAgent").and_then(Value::as_str).unwrap_or_default();
        let version = agent.split('/').nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap_or("unknown");
        self.ready.version = version.to_owned();
        let may_write = may_write(&plan.section);
        let right = if may_write { "write" } else { "read" };
        let network = probe(wire, home, may_write, limit).await?;
        self.ready.sandbox = format!("profile {PROFILE}: workspace {right}, system read, nothing else, {network}");
        match self.thread(plan, &home.desk()).await {
            Ok(thread) => {
                wire.leave(&thread);
                Ok(())
            }
            Err(NoThread::Fault(fault)) => Err(unready(fault)),
            Err(NoThread::Mismatch { message, .. }) => Err(fatal(message)),
        }
    }

    /// A new thread in a workspace that is not trusted, by its id.
    pub(super) async fn thread(&self, plan: &Plan, workspace: &Utf8Path) -> Result<String, NoThread> {
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
        let echo = self.process.wire.call("thread/start", params, limit).await.map_err(NoThread::Fault)?;
        let text = |place: &str| echo.pointer(place).and_then(Value::as_str).map(str::to_owned);
        let mut found = mismatches(&echo, &plan.model, self.provider, workspace, may_write(&plan.section));
        match text("/thread/id") {
            Some(id) if found.is_empty() => return Ok(id),
            Some(_) => {}
            None => found.push("it has no id".into()),
        }
        let message = format!("codex did not set up what was asked for: {}", found.join("; "));
        Err(NoThread::Mismatch { message, model: text("/model") })
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

/// Writes inside, writes to `$1`, reads `$2` and connects to the port `$3`. A shell that is built without `/dev/tcp` could
/// connect to nothing, so that every way that there is is tried.
const SCRIPT: &str = r#"
(echo x > inside) 2>/dev/null
(echo x > "$1") 2>/dev/null
cat "$2" 2>/dev/null
has() { command -v "$1" >/dev/null 2>&1; }
if has bash; then
  echo tried
  bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1"' bash "$3" 2>/dev/null && echo connected
fi
if has python3; then
  echo tried
  python3 -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)' "$3" 2>/dev/null && echo connected
fi
echo probed
"#;

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
    let command = ["/bin/sh", "-c", SCRIPT, "sh", outside.as_str(), canary.as_str(), &port.to_string()];
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

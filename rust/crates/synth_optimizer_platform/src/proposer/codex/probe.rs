//! Tries the sandbox before anything is paid for: codex itself would run a turn to its end with a broken one.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use super::home::Home;
use super::wire::Wire;
use crate::model::canonical::hex;
use crate::model::error::{ErrorCode, OptimizerError};

const HINT: &str = "Commands of codex need unprivileged user namespaces: allow them for this user \
                    (kernel.unprivileged_userns_clone, user.max_user_namespaces, or the AppArmor rule for bwrap), or run \
                    the optimizer where they are allowed.";

/// Runs one command under the profile of the turns and looks at what it could do.
pub(super) async fn probe(wire: &Wire, home: &Home, may_write: bool, limit: Duration) -> Result<(), OptimizerError> {
    let broken = |message: String| OptimizerError::new(ErrorCode::Proposer, message).with_hint(HINT);
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("the system gives no random numbers: {error}")))?;
    let (secret, canary) = (hex(&secret), home.path().join("canary"));
    let io = |error: std::io::Error| OptimizerError::new(ErrorCode::Io, format!("{canary}: {error}"));
    std::fs::write(&canary, &secret).map_err(io)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let script = format!(
        "(echo x > inside) 2>/dev/null; (echo x > '{outside}') 2>/dev/null; cat '{canary}' 2>/dev/null; \
         bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo connected; echo probed",
        outside = home.path().join("outside"),
    );
    let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    // Without a policy of its own, the command runs under the profile that the turns run under; its workspace is the desk.
    let params = json!({ "command": ["/bin/sh", "-c", script], "timeoutMs": millis });
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
        (home.path().join("outside").exists(), "it can write files outside its workspace"),
        (out.contains("connected"), "it has network"),
        (may_write && !has_written, "it cannot write its workspace"),
        (!may_write && has_written, "it can write its workspace although sandbox_mode is \"read_only\""),
    ];
    let found: Vec<&str> = findings.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect();
    let _ = std::fs::remove_file(home.desk().join("inside"));
    if found.is_empty() {
        return Ok(());
    }
    Err(broken(format!("the sandbox of codex is not what was asked for: {}", found.join("; "))))
}

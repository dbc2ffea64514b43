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

/// Whether a connection was tried. Without bash and python3 there is nothing to try one with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    Tried,
    Untried,
}

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

/// Runs one command under the profile of the turns and looks at what it could do.
pub(super) async fn probe(
    wire: &Wire,
    home: &Home,
    may_write: bool,
    limit: Duration,
) -> Result<Network, OptimizerError> {
    let broken = |message: String| OptimizerError::new(ErrorCode::Proposer, message).with_hint(HINT);
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("the system gives no random numbers: {error}")))?;
    let (secret, canary) = (hex(&secret), home.path().join("canary"));
    let io = |error: std::io::Error| OptimizerError::new(ErrorCode::Io, format!("{canary}: {error}"));
    std::fs::write(&canary, &secret).map_err(io)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let outside = home.path().join("outside");
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
    let _ = std::fs::remove_file(home.desk().join("inside"));
    if found.is_empty() {
        return Ok(if out.contains("tried") { Network::Tried } else { Network::Untried });
    }
    Err(broken(format!("the sandbox of codex is not what was asked for: {}", found.join("; "))))
}

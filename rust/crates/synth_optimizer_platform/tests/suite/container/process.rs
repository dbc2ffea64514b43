//! Managed containers: starting, waiting for health, and ending them with all their descendants.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::json;
use synth_optimizer_core::config::Config;
use synth_optimizer_platform::clock::boot_id;
use synth_optimizer_platform::container::{CONTAINER_LEASE_FILE, CONTAINER_LOG_FILE, Client, reap_orphans, start};
use synth_optimizer_platform::os;

use super::server::{Server, json as reply, unused_address};
use super::toy::config;
use crate::waiting::{wait_for, wait_until_async, with_timeout};

const LEASE_VARIABLE: &str = "SYNTH_OPTIMIZERS_CONTAINER_LEASE";

/// Variables that every container receives, and those that a shell sets itself.
const USUAL_VARIABLES: [&str; 9] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "TERM", "_", "SHLVL"];

/// Python code of a container that answers `/health`.
const SERVE: &str = r#"
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"#;

fn dir() -> (tempfile::TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap();
    (dir, path)
}

fn shell(port: u16, script: &str) -> Config {
    let mut config = config(&format!("http://127.0.0.1:{port}"));
    let script = format!("{script}\nexec python3 -c '{SERVE}' {port}");
    config.container.command = vec!["sh".into(), "-c".into(), script];
    config.container.health_interval_ms = 10;
    config.container.startup_timeout_seconds = 10;
    config.container.stop_timeout_seconds = 1;
    config
}

fn client(config: &Config) -> Client {
    Client::new(&config.container).unwrap()
}

fn environment(pid: &str) -> BTreeMap<String, String> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    text.split('\0').filter_map(|entry| entry.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

fn is_running(pid: &str) -> bool {
    os::system().process_start_time(pid.parse().unwrap()).is_some()
}

/// Waits for the line that a process writes to a file, and returns it.
fn written(path: &Utf8Path) -> String {
    let line = || std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'));
    wait_for("a process has written its line", line).trim().to_owned()
}

#[tokio::test]
async fn without_a_command_nothing_is_started() {
    let (_keep, dir) = dir();
    let config = config("http://127.0.0.1:1");
    assert!(start(&config, &dir, &client(&config)).await.unwrap().is_none());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[tokio::test]
async fn a_container_is_ended_with_all_its_descendants() {
    let (_keep, dir) = dir();
    // One grandchild stays in the process group and ignores SIGTERM; the other leaves the group.
    let script = format!(
        "sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo $! > {dir}/a\nsetsid sleep 60 & echo $! > {dir}/b"
    );
    let mut config = shell(unused_address().port(), &script);
    config.container.cwd = Some("/".into());
    let usual =
        |name: &str| name.starts_with("LC_") || name.starts_with("SSL_CERT_") || USUAL_VARIABLES.contains(&name);
    let mut others = std::env::vars()
        .map(|(name, _)| name)
        .filter(|name| !usual(name) && !["PWD", "CARGO_PKG_VERSION"].contains(&name.as_str()));
    let (passed, kept) = (others.next(), others.next());
    config.container.pass_env = passed.iter().cloned().collect();
    config.container.token_env = Some("CARGO_PKG_VERSION".into());
    let process = start(&config, &dir, &client(&config)).await.unwrap().unwrap();
    assert!(client(&config).is_healthy().await);
    let grandchildren = [written(&dir.join("a")), written(&dir.join("b"))];
    assert!(grandchildren.iter().all(|pid| is_running(pid)));

    let pid = process.pid().to_string();
    let environment = environment(&pid);
    assert!(passed.is_none_or(|name| environment.contains_key(&name)));
    assert_eq!(environment["CARGO_PKG_VERSION"], env!("CARGO_PKG_VERSION"), "the container knows its token");
    assert!(kept.is_none_or(|name| !environment.contains_key(&name)), "only named variables are passed");
    let lease: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join(CONTAINER_LEASE_FILE)).unwrap()).unwrap();
    assert_eq!(lease["token"].as_str(), environment.get(LEASE_VARIABLE).map(String::as_str));
    assert_eq!(lease["pid"].to_string(), pid);
    for file in [CONTAINER_LEASE_FILE, CONTAINER_LOG_FILE] {
        assert_eq!(std::fs::metadata(dir.join(file)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));

    process.stop().await.unwrap();
    assert!(!is_running(&pid) && !grandchildren.iter().any(|pid| is_running(pid)));
    assert!(!dir.join(CONTAINER_LEASE_FILE).exists());
    assert!(!client(&config).is_healthy().await);
}

#[tokio::test]
async fn dropping_a_container_kills_it() {
    let (_keep, dir) = dir();
    let config = shell(unused_address().port(), &format!("sleep 60 & echo $! > {dir}/a"));
    let process = start(&config, &dir, &client(&config)).await.unwrap().unwrap();
    let pids = [process.pid().to_string(), written(&dir.join("a"))];
    drop(process);
    wait_until_async("the end of all processes", || !pids.iter().any(|pid| is_running(pid))).await;
}

#[tokio::test]
async fn an_existing_server_at_the_address_is_an_error() {
    let server = Server::start(|_| reply(200, &json!({ "status": "ok" })));
    let (_keep, dir) = dir();
    let config = shell(server.address.port(), &format!("echo started > {dir}/a"));
    let error = start(&config, &dir, &client(&config)).await.unwrap_err();
    assert!(error.message.contains("another program already listens on 127.0.0.1:"), "{error}");
    assert!(error.hint.contains("remove container.command"));
    assert!(!dir.join("a").exists() && server.seen().is_empty());
}

#[tokio::test]
async fn an_early_exit_of_the_container_is_reported_at_once() {
    let (_keep, dir) = dir();
    std::fs::write(dir.join(CONTAINER_LOG_FILE), "of an earlier start\n").unwrap();
    let config =
        shell(unused_address().port(), "echo no module named foo; echo api_key=sk-1234567890abcdef >&2; exit 3");
    let error = with_timeout(start(&config, &dir, &client(&config))).await.unwrap_err();
    assert_eq!(error.message, "the container \"sh\" exited before /health answered (exit code 3)");
    assert_eq!(error.detail.as_deref(), Some("no module named foo\napi_key=[hidden]"));
    assert!(error.hint.contains(CONTAINER_LOG_FILE));
    assert!(
        std::fs::read_to_string(dir.join(CONTAINER_LOG_FILE)).unwrap().starts_with("of an earlier start\nno module")
    );
    assert!(!dir.join(CONTAINER_LEASE_FILE).exists());
}

#[tokio::test]
async fn a_container_that_never_becomes_healthy_is_ended() {
    let (_keep, dir) = dir();
    let mut config = shell(unused_address().port(), &format!("echo $$ > {dir}/a; echo waiting; exec sleep 60"));
    config.container.startup_timeout_seconds = 1;
    let error = start(&config, &dir, &client(&config)).await.unwrap_err();
    assert_eq!(error.message, "the container \"sh\" did not answer /health within 1 s");
    assert_eq!(error.detail.as_deref(), Some("waiting"));
    assert!(!is_running(&written(&dir.join("a"))));
}

#[tokio::test]
async fn a_missing_command_is_named_in_the_error() {
    let (_keep, dir) = dir();
    let mut config = shell(unused_address().port(), "");
    config.container.command = vec!["no-such-program-here".into()];
    let error = start(&config, &dir, &client(&config)).await.unwrap_err();
    assert!(error.message.contains("\"no-such-program-here\" cannot be started"), "{error}");
    assert!(!dir.join(CONTAINER_LEASE_FILE).exists());
}

fn sleeper(token: Option<&str>) -> Child {
    let mut command = Command::new("sleep");
    command.arg("60").stdin(Stdio::null()).process_group(0).env_remove(LEASE_VARIABLE);
    if let Some(token) = token {
        command.env(LEASE_VARIABLE, token);
    }
    command.spawn().unwrap()
}

fn lease(dir: &Utf8Path, token: &str, pid: u32, boot: &str) {
    let lease = json!({ "token": token, "pid": pid, "pgid": pid, "boot_id": boot, "stop_timeout_seconds": 1 });
    std::fs::write(dir.join(CONTAINER_LEASE_FILE), lease.to_string()).unwrap();
}

#[tokio::test]
async fn processes_left_by_a_crash_are_ended_at_the_next_start() {
    let (_keep, dir) = dir();
    let config = shell(unused_address().port(), &format!("setsid sleep 60 & echo $! > {dir}/a"));
    let process = start(&config, &dir, &client(&config)).await.unwrap().unwrap();
    let pids = [process.pid().to_string(), written(&dir.join("a"))];
    // Simulates a kill of this process.
    std::mem::forget(process);
    let again = start(&config, &dir, &client(&config)).await.unwrap().unwrap();
    assert!(!pids.iter().any(|pid| is_running(pid)));
    assert_ne!(again.pid().to_string(), pids[0]);
    again.stop().await.unwrap();
}

#[test]
fn only_processes_with_the_token_are_ended() {
    let (_keep, dir) = dir();
    let token = format!("{:032x}", std::process::id());
    let (mut foreign, mut plain, mut own) = (sleeper(Some("another")), sleeper(None), sleeper(Some(&token)));
    // The pid of the lease now belongs to a foreign process.
    lease(&dir, &token, plain.id(), boot_id());
    assert_eq!(reap_orphans(&dir).unwrap(), 1);
    assert!(!is_running(&own.id().to_string()));
    assert!(is_running(&foreign.id().to_string()) && is_running(&plain.id().to_string()));
    assert!(!dir.join(CONTAINER_LEASE_FILE).exists());
    // A lease of an earlier boot ends no process.
    lease(&dir, "another", foreign.id(), "an-earlier-boot");
    assert_eq!(reap_orphans(&dir).unwrap(), 0);
    assert!(is_running(&foreign.id().to_string()) && !dir.join(CONTAINER_LEASE_FILE).exists());
    for child in [&mut foreign, &mut plain, &mut own] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_missing_or_unreadable_lease_ends_no_process() {
    let (_keep, dir) = dir();
    assert_eq!(reap_orphans(&dir).unwrap(), 0);
    std::fs::write(dir.join(CONTAINER_LEASE_FILE), "{\"token\":").unwrap();
    assert_eq!(reap_orphans(&dir).unwrap(), 0);
    assert!(!dir.join(CONTAINER_LEASE_FILE).exists());
}

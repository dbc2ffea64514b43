//! The container as a child process: started in its own group, waited for until healthy, and ended with all it started.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tracing::{info, warn};

use super::broken;
use super::client::Client;
use super::orphans::{Family, Holder, Lease, reap};
use crate::warn_if_err;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::ContainerSection;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::secrets::scrub;

/// Name of the container's log in the run directory.
pub const LOG_FILE: &str = "container.log";

/// How long a drop may block.
const AT_DROP: Duration = Duration::from_millis(200);

/// Variables that every container gets.
const PASSED: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "TERM"];
const PASSED_PREFIXES: [&str; 2] = ["LC_", "SSL_CERT_"];

/// A container that this process has started. Dropped without `stop`, it is killed.
#[derive(Debug)]
pub struct ManagedProcess {
    child: Child,
    family: Family,
    run_dir: Utf8PathBuf,
    stop_timeout: Duration,
    /// Where this start begins in the log, which keeps those before it.
    log_start: u64,
    stopped: bool,
}

/// Starts `container.command` and waits until `/health` answers; `None` when there is no command.
///
/// What an earlier, crashed start has left behind is ended first. A server that already listens at the address is an
/// error: it would be measured in place of the one that the config names.
pub async fn start(
    config: &Config,
    run_dir: &Utf8Path,
    client: &Client,
) -> Result<Option<ManagedProcess>, OptimizerError> {
    let container = &config.container;
    let Some(program) = container.command.first() else { return Ok(None) };
    let dir = run_dir.to_owned();
    blocking(move || reap(&dir, Holder::Container)).await?;
    refuse_stale_server(client).await?;
    let mut process = ManagedProcess::spawn(config, program, run_dir)?;
    match process.wait_until_healthy(client, container).await {
        Ok(()) => Ok(Some(process)),
        Err(problem) => {
            let error = process.failure(format!("the container {program:?} {problem}"));
            // The reason for the failed start matters more than a failed stop.
            warn_if_err!(process.stop().await, "the container was not stopped");
            Err(error)
        }
    }
}

impl ManagedProcess {
    /// The pid of the process that was started, which leads the group.
    pub fn pid(&self) -> u32 {
        self.family.group.unwrap_or_default().unsigned_abs()
    }

    /// Waits until the container has ended by itself, and tells how.
    pub async fn ended(&mut self) -> OptimizerError {
        let end = self.end().await;
        self.failure(format!("the container ended: {end}"))
    }

    /// Asks the container and everything it started to end, kills what does not, and returns when nothing is left.
    pub async fn stop(mut self) -> Result<(), OptimizerError> {
        let (family, patience) = (self.family.clone(), self.stop_timeout);
        blocking(move || family.end_within(patience)).await?;
        // Buries the child; until then its pid cannot be given to another process.
        warn_if_err!(self.child.wait().await, "the end of the container cannot be seen");
        self.stopped = true;
        Lease::remove_own(&self.run_dir, Holder::Container, &self.family.token)
    }

    fn spawn(config: &Config, program: &str, run_dir: &Utf8Path) -> Result<Self, OptimizerError> {
        let container = &config.container;
        let path = run_dir.join(LOG_FILE);
        let log_error = |error| OptimizerError::from_cause(ErrorCode::Io, format!("{path} cannot be opened"), error);
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(log_error)?;
        let log_start = log.metadata().map_err(log_error)?.len();
        let mut lease = Lease::new(container.stop_timeout_seconds)?;
        let mut command = Command::new(program);
        command
            .args(&container.command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().map_err(log_error)?))
            .stderr(Stdio::from(log))
            .process_group(0)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(|name| is_passed(config, name))))
            .env(Holder::Container.variable(), &lease.token);
        if let Some(cwd) = &container.cwd {
            command.current_dir(cwd);
        }
        // Written before the process exists, so that no crash leaves one that nobody finds.
        lease.write(run_dir, Holder::Container)?;
        let child = command.spawn().map_err(|error| {
            let place = container.cwd.as_ref().map(|cwd| format!(" in {cwd}")).unwrap_or_default();
            let message = format!("the container {program:?} cannot be started{place}: {error}");
            warn_if_err!(Lease::remove(run_dir, Holder::Container), "the lease of a start that failed stays");
            broken(message, "container.command names the program and its arguments; container.cwd is where it runs.")
        })?;
        // Without an id it has ended already, which the wait for its health finds.
        let pid = child.id().unwrap_or_default();
        let group = i32::try_from(pid).ok().filter(|group| *group > 0);
        info!(pid, program, "container started");
        let process = Self {
            family: Family { holder: Holder::Container, token: lease.token.clone(), group },
            run_dir: run_dir.to_owned(),
            stop_timeout: Duration::from_secs(container.stop_timeout_seconds),
            log_start,
            stopped: false,
            child,
        };
        (lease.pid, lease.pgid) = (Some(pid), Some(pid));
        lease.write(run_dir, Holder::Container)?;
        Ok(process)
    }

    /// The rest of the sentence that begins with the container, when it is not healthy in time.
    async fn wait_until_healthy(&mut self, client: &Client, container: &ContainerSection) -> Result<(), String> {
        let limit = Duration::from_secs(container.startup_timeout_seconds);
        let healthy = async {
            while !client.is_healthy().await {
                sleep(Duration::from_millis(container.health_interval_ms)).await;
            }
        };
        tokio::select! {
            // A child that is gone has not become healthy, whoever answers.
            biased;
            ended = self.end() => Err(format!("ended before /health answered ({ended})")),
            () = healthy => Ok(()),
            () = sleep(limit) => Err(format!("did not answer /health within {} s", limit.as_secs())),
        }
    }

    /// Waits for the child's end.
    async fn end(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}")),
            Err(error) => format!("its end cannot be seen: {error}"),
        }
    }

    /// What went wrong, with what the container has said last.
    fn failure(&self, message: String) -> OptimizerError {
        let hint = format!("Its whole output is in {}.", self.run_dir.join(LOG_FILE));
        broken(message, hint).with_detail(self.log_tail())
    }

    /// The last lines that this start has written, without secrets.
    fn log_tail(&self) -> String {
        const LINES: usize = 20;
        const BYTES: u64 = 8 * 1024;
        let read = || -> std::io::Result<Vec<u8>> {
            let mut log = File::open(self.run_dir.join(LOG_FILE))?;
            let from = log.metadata()?.len().saturating_sub(BYTES).max(self.log_start);
            log.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            log.take(BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read();
        warn_if_err!(&bytes, "the log of the container cannot be read");
        let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LINES)..].join("\n");
        if tail.trim().is_empty() { "it has written nothing".into() } else { scrub(&tail) }
    }
}

impl Drop for ManagedProcess {
    fn drop(&mut self) {
        if !self.stopped {
            // The lease stays: the next start looks for what is left, if anything is.
            if !self.family.kill_within(AT_DROP) {
                warn!(pid = self.pid(), "the container was killed and is not gone yet");
            }
            // Buries the child; one that is not gone yet is buried by the runtime.
            let _ = self.child.try_wait();
        }
    }
}

/// Something that listens before we start is not what we start.
async fn refuse_stale_server(client: &Client) -> Result<(), OptimizerError> {
    if !client.is_taken().await {
        return Ok(());
    }
    let (host, port) = client.host_and_port();
    let message = format!("something already listens at {host}:{port}, where the container is to be started");
    Err(broken(message, "Stop it, or remove container.command to use it as it is."))
}

/// Looks at processes on a thread that may wait.
async fn blocking<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, OptimizerError> + Send + 'static,
) -> Result<T, OptimizerError> {
    tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| {
        Err(OptimizerError::from_cause(ErrorCode::Container, "looking for left processes broke off", error))
    })
}

fn is_passed(config: &Config, name: &str) -> bool {
    PASSED.contains(&name)
        || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || config.container.pass_env.iter().any(|passed| passed == name)
        || config.policy.api_key_env.as_deref() == Some(name)
}

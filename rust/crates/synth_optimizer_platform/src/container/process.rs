//! Runs the container as a child process: starts it in its own process group, waits until it is healthy, and ends it
//! with all its descendants.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tracing::{info, warn};

use super::client::Client;
use super::container_error;
use super::orphaned_processes::{ProcessLease, ProcessOwner, ProcessSet, reap_orphans_of};
use crate::container_log::{CONTAINER_LOG_FILE, log_tail};
use crate::file_error;
use crate::logs::in_current_span;
use crate::warn_if_err;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::ContainerSection;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How long dropping a process may block.
const DROP_TIMEOUT: Duration = Duration::from_millis(200);

/// Environment variables that every container receives.
const PASSED_VARIABLES: [&str; 7] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "TERM"];
const PASSED_PREFIXES: [&str; 2] = ["LC_", "SSL_CERT_"];

/// The variable with the directory of the run, where a container can keep files across restarts.
const RUN_DIR_VARIABLE: &str = "SYNTH_OPTIMIZERS_RUN_DIR";

/// A container that this process started. Dropping it without `stop` kills the container.
#[derive(Debug)]
pub struct ManagedProcess {
    child: Child,
    processes: ProcessSet,
    run_dir: Utf8PathBuf,
    stop_timeout: Duration,
    /// Offset of this start's output in the log file. The log also keeps the output of earlier starts.
    log_start: u64,
    stopped: bool,
}

/// Starts `container.command` and waits until `/health` answers. Returns `None` if the config has no command.
///
/// First ends processes that an earlier, crashed start left behind. Fails if a server already listens at the address:
/// it would be measured instead of the configured container.
pub async fn start(
    config: &Config,
    run_dir: &Utf8Path,
    client: &Client,
) -> Result<Option<ManagedProcess>, OptimizerError> {
    let container = &config.container;
    let Some(program) = container.command.first() else { return Ok(None) };
    let dir = run_dir.to_owned();
    run_blocking(move || reap_orphans_of(&dir, ProcessOwner::Container)).await?;
    refuse_stale_server(client).await?;
    let mut process = ManagedProcess::spawn(config, program, run_dir)?;
    match process.wait_until_healthy(client, container).await {
        Ok(()) => Ok(Some(process)),
        Err(problem) => {
            let error = process.failure(format!("the container {program:?} {problem}"));
            // Return the reason for the failed start, even if the stop fails too.
            warn_if_err!(process.stop().await, "stopping the container failed");
            Err(error)
        }
    }
}

impl ManagedProcess {
    /// Returns the pid of the child, which is also its process group.
    pub fn pid(&self) -> u32 {
        self.processes.group.unwrap_or_default().unsigned_abs()
    }

    /// Waits until the container exits by itself, and returns an error that says how it exited.
    pub async fn ended(&mut self) -> OptimizerError {
        let end = self.wait_for_exit().await;
        self.failure(format!("the container exited: {end}")).of_outage()
    }

    /// Sends SIGTERM to the container and its descendants, kills those that do not exit in time, and returns when all
    /// have exited.
    pub async fn stop(mut self) -> Result<(), OptimizerError> {
        let (processes, patience) = (self.processes.clone(), self.stop_timeout);
        run_blocking(move || processes.end_within(patience)).await?;
        // Reaps the child. Until then its pid is not reused.
        warn_if_err!(self.child.wait().await, "waiting for the exit of the container failed");
        self.stopped = true;
        ProcessLease::remove_own(&self.run_dir, ProcessOwner::Container, &self.processes.token)
    }

    fn spawn(config: &Config, program: &str, run_dir: &Utf8Path) -> Result<Self, OptimizerError> {
        let container = &config.container;
        let path = run_dir.join(CONTAINER_LOG_FILE);
        let log_error = |error| file_error::classified(format!("{path} cannot be opened"), error);
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(log_error)?;
        let log_start = log.metadata().map_err(log_error)?.len();
        let mut lease = ProcessLease::new(container.stop_timeout_seconds)?;
        let mut command = Command::new(program);
        command
            .args(&container.command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().map_err(log_error)?))
            .stderr(Stdio::from(log))
            .process_group(0)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(|name| is_passed(config, name))))
            .env(ProcessOwner::Container.variable(), &lease.token)
            .env(RUN_DIR_VARIABLE, run_dir);
        if let Some(cwd) = &container.cwd {
            command.current_dir(cwd);
        }
        // Write the lease before the process exists, so that a later start can find it after any crash.
        lease.write(run_dir, ProcessOwner::Container)?;
        let child = command.spawn().map_err(|error| {
            let place = container.cwd.as_ref().map(|cwd| format!(" in {cwd}")).unwrap_or_default();
            let message = format!("the container {program:?} cannot be started{place}: {error}");
            warn_if_err!(
                ProcessLease::remove(run_dir, ProcessOwner::Container),
                "releasing the lease of a failed start failed"
            );
            if file_error::is_out_of_files(&error) {
                return file_error::classified(format!("the container {program:?} cannot be started{place}"), error);
            }
            let hint = "Check container.command (program and arguments) and container.cwd (working directory).";
            container_error(message, hint).caused_by(error)
        })?;
        // Without an id the child has already exited; `wait_until_healthy` reports that.
        let pid = child.id().unwrap_or_default();
        let group = i32::try_from(pid).ok().filter(|group| *group > 0);
        info!(pid, program, "container started");
        let process = Self {
            processes: ProcessSet { owner: ProcessOwner::Container, token: lease.token.clone(), group },
            run_dir: run_dir.to_owned(),
            stop_timeout: Duration::from_secs(container.stop_timeout_seconds),
            log_start,
            stopped: false,
            child,
        };
        (lease.pid, lease.pgid) = (Some(pid), Some(pid));
        lease.write(run_dir, ProcessOwner::Container)?;
        Ok(process)
    }

    /// Waits until `/health` answers. An error is the rest of a sentence whose subject is the container.
    async fn wait_until_healthy(&mut self, client: &Client, container: &ContainerSection) -> Result<(), String> {
        let limit = Duration::from_secs(container.startup_timeout_seconds);
        let healthy = async {
            while !client.is_healthy().await {
                sleep(Duration::from_millis(container.health_interval_ms)).await;
            }
        };
        tokio::select! {
            // If the child has exited, an answer comes from another server.
            biased;
            ended = self.wait_for_exit() => Err(format!("exited before /health answered ({ended})")),
            () = healthy => Ok(()),
            () = sleep(limit) => Err(format!("did not answer /health within {} s", limit.as_secs())),
        }
    }

    /// Waits until the child exits, and describes its exit status.
    async fn wait_for_exit(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}")),
            Err(error) => format!("waiting for its exit failed: {error}"),
        }
    }

    /// Creates an error with the last lines of the container's log.
    fn failure(&self, message: String) -> OptimizerError {
        let hint = format!("Read its whole output in {}.", self.run_dir.join(CONTAINER_LOG_FILE));
        let tail = log_tail(&self.run_dir, self.log_start).unwrap_or_else(|| "it wrote no output".into());
        container_error(message, hint).with_detail(tail)
    }
}

impl Drop for ManagedProcess {
    fn drop(&mut self) {
        if !self.stopped {
            // The lease file stays, so that the next start can find processes that still run.
            if !self.processes.kill_within(DROP_TIMEOUT) {
                warn!(pid = self.pid(), "the container was killed and has not exited yet");
            }
            // Reaps the child if it has exited; otherwise the runtime reaps it later.
            let _ = self.child.try_wait();
        }
    }
}

/// Fails if a server already listens at the container's address.
async fn refuse_stale_server(client: &Client) -> Result<(), OptimizerError> {
    if !client.is_listening().await {
        return Ok(());
    }
    let (host, port) = client.host_and_port();
    let message = format!("another program already listens on {host}:{port}, the address of the container");
    Err(container_error(message, "Stop that program, or remove container.command to use it as the container."))
}

/// Runs a blocking function on a thread for blocking work.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OptimizerError> + Send + 'static,
) -> Result<T, OptimizerError> {
    tokio::task::spawn_blocking(in_current_span(work)).await.unwrap_or_else(|error| {
        Err(OptimizerError::from_cause(ErrorCode::Invariant, "a blocking task ended without a result", error))
    })
}

fn is_passed(config: &Config, name: &str) -> bool {
    let policy_key = config.policy.as_ref().and_then(|policy| policy.api_key_env.as_ref());
    PASSED_VARIABLES.contains(&name)
        || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || config.container.pass_env.iter().any(|passed| passed == name || passed == "*")
        || [policy_key, config.container.token_env.as_ref()].into_iter().flatten().any(|named| named == name)
}

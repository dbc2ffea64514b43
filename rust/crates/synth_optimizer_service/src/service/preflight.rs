//! Evaluates a submitted run. `POST /runs/preflight` reports the result, and `POST /runs` decides by it.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::io::Errno;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit};
use tracing::warn;

use super::api_error::{ApiError, hide_in_finding};
use super::checks::Check;
use super::context::{Context, MAX_CHECKS};
use super::handlers::submit::{ConfigBody, RunBody};
use crate::ServiceErrorCode;
use crate::queue::QueueError;
use synth_optimizer_core::config::{
    Config, ConfigContent, ConfigFinding, ConfigSource, ResolvedConfig, Severity, hidden_fields, redacted_config,
    try_load_with,
};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::access::starts_processes;
use synth_optimizer_platform::container::kill_orphans;
use synth_optimizer_platform::os;
use synth_optimizer_platform::runtime::{CheckReport, CheckScope, CheckStage, Finding};
use synth_optimizer_platform::warn_if_err;

/// Highest priority. The lowest is its negative.
const MAX_PRIORITY: i64 = 1_000_000;

/// The result of evaluating a submitted run.
#[derive(Debug)]
pub(super) struct Evaluation {
    pub(super) report: CheckReport,
    /// `None` if the configuration cannot be loaded.
    pub(super) loaded: Option<ResolvedConfig>,
    pub(super) config_path: Option<String>,
    /// The error if the run id is taken.
    pub(super) conflict: Option<QueueError>,
}

/// Finds every problem of a submitted run. Writes nothing.
pub(super) async fn evaluate(context: &Arc<Context>, body: &RunBody) -> Result<Evaluation, ApiError> {
    if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&body.priority) {
        let message = format!("priority {} is not between -{MAX_PRIORITY} and {MAX_PRIORITY}", body.priority);
        return Err(ApiError::new(ServiceErrorCode::BadRequest, message));
    }
    let (reading, submitted) = (Arc::clone(context), body.clone());
    // Loading a large configuration takes time, so it runs on a blocking thread.
    let (read, config_path) = context.run_blocking(move || load(&reading, &submitted)).await?;
    let loaded = match read {
        Ok(loaded) => loaded,
        Err(error) if !error.findings.is_empty() => {
            let mut report = CheckReport::of_config(&error.findings);
            hide_report_paths(&mut report);
            return Ok(Evaluation { report, loaded: None, config_path, conflict: None });
        }
        Err(error) => return Err(error.into()),
    };
    let problems = loaded.warnings.clone();
    let secrets = find_secrets(&loaded);
    let check_scope = if body.allow_unverified { CheckScope::Settings } else { CheckScope::Everything };
    let conflict = find_conflict(context, &loaded).await?;
    let taken = conflict.as_ref().map(|taken| {
        let (code, OptimizerError { message, hint, .. }) =
            (taken.code.map_or("", ServiceErrorCode::as_str), &taken.error);
        Finding::new(CheckStage::Output, code, message.clone(), hint).at("run.run_id")
    });
    let found: Vec<Finding> = secrets.into_iter().chain(taken).collect();
    let mut report = check_before_processes(context, &loaded.config, check_scope, &problems, &found).await?;
    report.blockers.extend(found);
    report.ok = report.blockers.is_empty();
    hide_report_paths(&mut report);
    let is_sound = !problems.iter().any(|found| found.severity == Severity::Error);
    Ok(Evaluation { report, loaded: is_sound.then_some(loaded), config_path, conflict })
}

/// Returns the conflict if a run with this id is queued, running or completed.
async fn find_conflict(context: &Arc<Context>, loaded: &ResolvedConfig) -> Result<Option<QueueError>, ApiError> {
    let Some(run_id) = loaded.config.run.run_id.clone() else { return Ok(None) };
    let asking = Arc::clone(context);
    match context.run_blocking(move || asking.workers.queue.check_run_id(&run_id)).await {
        Ok(()) => Ok(None),
        Err(taken) if matches!(taken.code, Some(ServiceErrorCode::RunIdInUse | ServiceErrorCode::RunExists)) => {
            Ok(Some(taken))
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes the directories of this machine from the findings, because clients may be remote.
fn hide_report_paths(report: &mut CheckReport) {
    report.blockers.iter_mut().chain(&mut report.warnings).for_each(hide_in_finding);
}

type ReadConfig = (Result<ResolvedConfig, OptimizerError>, Option<String>);

/// Loads the configuration from a file or from the body. The environment of the service does not override its fields.
fn load(context: &Context, body: &RunBody) -> Result<ReadConfig, ApiError> {
    let environment = BTreeMap::new();
    let read = |path: &Utf8Path| read_named_text(&context.config_root, path);
    match (&body.config_path, &body.config) {
        (Some(path), None) => {
            let file = read_beneath(&context.config_root, path)?;
            let source =
                ConfigSource { name: &file.name, content: ConfigContent::Toml(&file.text), base_dir: &file.base_dir };
            Ok((try_load_with(source, &environment, &body.overrides, &read), Some(file.name.clone())))
        }
        (None, Some(config)) => {
            let content = match config {
                ConfigBody::Text(text) => ConfigContent::Toml(text),
                ConfigBody::Sections(sections) => ConfigContent::Mapping(serde_json::Value::Object(sections.clone())),
            };
            let source = ConfigSource { name: "config", content, base_dir: &context.config_root };
            Ok((try_load_with(source, &environment, &body.overrides, &read), None))
        }
        (Some(_), Some(_)) => Err(ApiError::new(ServiceErrorCode::BadRequest, "config_path and config are both set")
            .with_hint("Send config_path, a file beneath the config root, or config, the configuration.")),
        (None, None) => Err(ApiError::new(ServiceErrorCode::BadRequest, "config_path and config are both missing")
            .with_hint("Send config_path, a file beneath the config root, or config, the configuration.")),
    }
}

/// Returns a finding for every secret in the configuration. Secrets are never stored, so such a run could not be resumed.
fn find_secrets(loaded: &ResolvedConfig) -> Vec<Finding> {
    let found = hidden_fields(&redacted_config(&loaded.config)).into_iter().map(|field| {
        let message = format!("{field} holds a secret, which the service does not store");
        let hint = "Name the variable that holds it in api_key_env, and set it in the environment of the service.";
        Finding::new(CheckStage::Config, ServiceErrorCode::InlineSecret.as_str(), message, hint).at(&field)
    });
    found.collect()
}

/// How long a check may wait for a free slot.
const CHECK_SLOT_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a check. A run that starts processes is first checked without them, so that a submission that is refused has
/// started nothing.
async fn check_before_processes(
    context: &Arc<Context>,
    config: &Config,
    check_scope: CheckScope,
    problems: &[ConfigFinding],
    found: &[Finding],
) -> Result<CheckReport, ApiError> {
    if check_scope == CheckScope::Everything && starts_processes(config) {
        let report = check(context, config, CheckScope::WithoutProcesses, problems).await?;
        if !found.is_empty() || !report.blockers.is_empty() {
            return Ok(report);
        }
    }
    check(context, config, check_scope, problems).await
}

/// Runs a check. It ends early when the client disconnects or the service shuts down.
async fn check(
    context: &Arc<Context>,
    config: &Config,
    check_scope: CheckScope,
    problems: &[ConfigFinding],
) -> Result<CheckReport, ApiError> {
    let checking = async {
        let worker = &context.workers;
        let start = |container_in_use: bool, guards: CheckGuards| {
            let mut request = worker.request(config.clone());
            request.scratch = Some(context.workers.settings.checks_dir());
            (request.check_scope, request.container_in_use) = (check_scope, container_in_use);
            Check::start(request, problems.to_vec(), guards)
        };
        if check_scope == CheckScope::Settings {
            // Such a check calls and starts nothing, so it needs no slot and no lock.
            return Ok::<_, ApiError>(start(false, (None, None))?.report().await?);
        }
        let starts_container = check_scope == CheckScope::Everything && !config.container.command.is_empty();
        let lock = starts_container.then(|| worker.container_locks.lock_for(&config.container.url));
        loop {
            // While the lock is held, no run and no other check starts a container at the address.
            let (taken, is_held) = match &lock {
                Some(lock) => {
                    let (taken, url) = (lock.lock().await, config.container.url.clone());
                    (Some(taken), context.query(move |queue| queue.is_container_held(&url)).await?)
                }
                None => (None, false),
            };
            // A run that starts at the address takes precedence. The check then continues with the container of the run.
            let demanded = async {
                match &lock {
                    Some(lock) if !is_held => lock.wait_for_demand().await,
                    _ => std::future::pending().await,
                }
            };
            let checked = async {
                let queueing = tokio::time::timeout(CHECK_SLOT_TIMEOUT, Arc::clone(&context.checks).acquire_owned());
                let Ok(Ok(slot)) = queueing.await else {
                    return Err(ApiError::new(
                        ServiceErrorCode::PreflightBusy,
                        format!("{MAX_CHECKS} preflight checks are running"),
                    ));
                };
                Ok(start(is_held, (Some(slot), taken))?.report().await?)
            };
            tokio::select! {
                report = checked => return report,
                () = demanded => {}
            }
        }
    };
    tokio::select! {
        report = checking => report,
        () = context.wait_for_shutdown() => Err(ApiError::new(ServiceErrorCode::Draining, "the service is shutting down")),
    }
}

/// What a check holds until it has ended completely: its slot, and the lock of its container.
type CheckGuards = (Option<OwnedSemaphorePermit>, Option<OwnedMutexGuard<()>>);

/// Ends the leftover processes of checks of an earlier service, and deletes their files.
pub(super) fn remove_stale_checks(slot: &Utf8Path) {
    // Without the directory, no check has run.
    let Ok(entries) = slot.read_dir_utf8() else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        match kill_orphans(entry.path()) {
            Ok(_) => warn_if_err!(std::fs::remove_dir_all(entry.path()), "files of an earlier check were not removed"),
            Err(error) => warn!(%error, "processes of an earlier check were not ended"),
        }
    }
}

/// Maximum size of a configuration file.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// A configuration file beneath the config root.
#[derive(Debug)]
struct ConfigFile {
    /// Path relative to the config root.
    name: String,
    text: String,
    /// The directory against which its relative paths resolve.
    base_dir: Utf8PathBuf,
}

/// Reads a configuration file that a client names. The file must be a regular file of limited size beneath the config root.
/// Errors do not show its content.
fn read_beneath(root: &Utf8Path, named: &str) -> Result<ConfigFile, ApiError> {
    let (relative, text) = read_text_beneath(root, named, |why| format!("config_path {named:?} {why}"))?;
    let base_dir = root.join(relative.parent().unwrap_or(Utf8Path::new("")));
    Ok(ConfigFile { name: relative.to_string(), text, base_dir })
}

/// Reads a text file that a configuration names. Only notes beneath the config root are read, because the run records the text
/// and its clients can see it.
fn read_named_text(root: &Utf8Path, path: &Utf8Path) -> Result<String, String> {
    if !matches!(path.extension(), Some("md" | "txt")) {
        return Err("is not read by the service, which reads .md and .txt files only".to_owned());
    }
    match read_text_beneath(root, path.as_str(), str::to_owned) {
        Ok((_, text)) => Ok(text),
        Err(refusal) => Err(refusal.public_message()),
    }
}

/// Reads a regular file of limited size beneath the root. Returns its path relative to the root and its text. `describe` makes the
/// message of a refusal from the rest of a sentence.
fn read_text_beneath<'n>(
    root: &Utf8Path,
    named: &'n str,
    describe: impl Fn(&str) -> String,
) -> Result<(&'n Utf8Path, String), ApiError> {
    let refused = |why: &str| ApiError::new(ServiceErrorCode::ConfigPathRefused, describe(why));
    if named.is_empty() || named.contains('\0') {
        return Err(refused("is not the name of a file"));
    }
    let path = Utf8Path::new(named);
    // An absolute path is allowed if it is beneath the config root.
    let Ok(relative) = (if path.is_absolute() { path.strip_prefix(root) } else { Ok(path) }) else {
        return Err(refused("is not beneath the config root"));
    };
    let opened = os::system().open_beneath(root.as_std_path(), relative.as_std_path());
    let mut file = opened.map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR => refused("does not exist beneath the config root"),
        Errno::XDEV | Errno::LOOP => refused("leads out of the config root"),
        Errno::ACCESS | Errno::PERM => refused("is not readable"),
        Errno::NAMETOOLONG => refused("is too long"),
        error => refused("cannot be opened").because(&error),
    })?;
    let found = file.metadata().map_err(|error| refused("cannot be read").because(&error))?;
    if !found.is_file() {
        return Err(refused("is not a regular file"));
    }
    if found.len() > MAX_CONFIG_BYTES {
        return Err(refused("is larger than 1 MB"));
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    let read = (&mut file).take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| refused("cannot be read").because(&error))?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(refused("is larger than 1 MB"));
    }
    let text = String::from_utf8(bytes).map_err(|error| refused("is not UTF-8 text").because(&error.utf8_error()))?;
    Ok((relative, text))
}

#[cfg(test)]
#[path = "preflight_tests.rs"]
mod tests;

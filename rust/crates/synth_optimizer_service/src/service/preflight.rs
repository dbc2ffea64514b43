//! The one evaluator of a submitted run: what `POST /runs/preflight` tells is what `POST /runs` goes by.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit};
use tracing::warn;

use super::checks::Check;
use super::context::{CHECKS, Context};
use super::handlers::submit::{ConfigBody, RunBody};
use super::refusal::{Refusal, hide_in_finding};
use crate::Code;
use crate::queue::QueueError;
use synth_optimizer_core::config::{
    Config, Content, Diagnostic, Loaded, Severity, Source, hidden_fields, shown, try_load,
};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::container::kill_orphans;
use synth_optimizer_platform::runtime::{CheckReport, CheckStage, Finding, Verify};
use synth_optimizer_platform::warn_if_err;

/// Priorities are between this and its negative.
const PRIORITIES: i64 = 1_000_000;

/// What was found about a submitted run.
#[derive(Debug)]
pub(super) struct Evaluated {
    pub(super) report: CheckReport,
    /// Nothing when it cannot even be read.
    pub(super) loaded: Option<Loaded>,
    pub(super) config_path: Option<String>,
    /// The id of the run is taken.
    pub(super) conflict: Option<QueueError>,
}

/// Finds everything that stands in the way. Nothing is written.
pub(super) async fn evaluate(context: &Arc<Context>, body: &RunBody) -> Result<Evaluated, Refusal> {
    if !(-PRIORITIES..=PRIORITIES).contains(&body.priority) {
        let message = format!("priority {} is not between -{PRIORITIES} and {PRIORITIES}", body.priority);
        return Err(Refusal::new(Code::BadRequest, message));
    }
    let (reading, asked) = (Arc::clone(context), body.clone());
    // A large configuration takes its time, and nobody else waits for it.
    let (read, config_path) = context.read(move || load(&reading, &asked)).await?;
    let loaded = match read {
        Ok(loaded) => loaded,
        Err(error) if !error.findings.is_empty() => {
            let mut report = CheckReport::of_config(&error.findings);
            hide(&mut report);
            return Ok(Evaluated { report, loaded: None, config_path, conflict: None });
        }
        Err(error) => return Err(error.into()),
    };
    let problems = loaded.warnings.clone();
    let secrets = secrets(&loaded);
    let verify = if body.allow_unverified { Verify::Settings } else { Verify::Everything };
    let conflict = conflict(context, &loaded).await?;
    let mut report = check(context, &loaded.config, verify, &problems).await?;
    report.blockers.extend(secrets);
    report.blockers.extend(conflict.as_ref().map(|taken| {
        let (code, OptimizerError { message, hint, .. }) = (taken.code.map_or("", Code::wire), &taken.error);
        Finding::new(CheckStage::Output, code, message.clone(), hint).at("run.run_id")
    }));
    report.ok = report.blockers.is_empty();
    hide(&mut report);
    let is_sound = !problems.iter().any(|found| found.severity == Severity::Error);
    Ok(Evaluated { report, loaded: is_sound.then_some(loaded), config_path, conflict })
}

/// Whether a run of this id waits, goes on, or is completed.
async fn conflict(context: &Arc<Context>, loaded: &Loaded) -> Result<Option<QueueError>, Refusal> {
    let Some(run_id) = loaded.config.run.run_id.clone() else { return Ok(None) };
    let asking = Arc::clone(context);
    match context.read(move || asking.workers.queue.check_run_id(&run_id)).await {
        Ok(()) => Ok(None),
        Err(taken) if matches!(taken.code, Some(Code::RunIdInUse | Code::RunExists)) => Ok(Some(taken)),
        Err(error) => Err(error.into()),
    }
}

/// Where things are on this machine is nobody's business but its owner's.
fn hide(report: &mut CheckReport) {
    report.blockers.iter_mut().chain(&mut report.warnings).for_each(hide_in_finding);
}

type ReadConfig = (Result<Loaded, OptimizerError>, Option<String>);

/// Reads the configuration from wherever it is. The environment of the service changes nothing about it.
fn load(context: &Context, body: &RunBody) -> Result<ReadConfig, Refusal> {
    let environment = BTreeMap::new();
    match (&body.config_path, &body.config) {
        (Some(path), None) => {
            let file = read_beneath(&context.config_root, path)?;
            let source = Source { name: &file.name, content: Content::Toml(&file.text), base_dir: &file.base_dir };
            Ok((try_load(source, &environment, &body.overrides), Some(file.name.clone())))
        }
        (None, Some(config)) => {
            let content = match config {
                ConfigBody::Text(text) => Content::Toml(text),
                ConfigBody::Sections(sections) => Content::Mapping(serde_json::Value::Object(sections.clone())),
            };
            let source = Source { name: "config", content, base_dir: &context.config_root };
            Ok((try_load(source, &environment, &body.overrides), None))
        }
        (Some(_), Some(_)) => Err(Refusal::new(Code::BadRequest, "both config_path and config are given")
            .with_hint("Give one of them: a file beneath the config root, or the configuration itself.")),
        (None, None) => Err(Refusal::new(Code::BadRequest, "neither config_path nor config is given")
            .with_hint("Give one of them: a file beneath the config root, or the configuration itself.")),
    }
}

/// Secrets are never stored, so that a run that has some could not be begun again.
fn secrets(loaded: &Loaded) -> Vec<Finding> {
    let found = hidden_fields(&shown(&loaded.config)).into_iter().map(|field| {
        let message = format!("{field} holds a secret, and a secret is never stored");
        let hint = "Name the variable that holds it (api_key_env), and set it where the service runs.";
        Finding::new(CheckStage::Config, Code::InlineSecret.wire(), message, hint).at(&field)
    });
    found.collect()
}

/// How long a check may wait for its place beside others.
const QUEUEING: Duration = Duration::from_secs(30);

/// Checks, until the client has left or the service shuts down.
async fn check(
    context: &Arc<Context>,
    config: &Config,
    verify: Verify,
    problems: &[Diagnostic],
) -> Result<CheckReport, Refusal> {
    let checking = async {
        let worker = &context.workers;
        let start = |container_in_use: bool, kept: Kept| {
            let mut request = worker.request(config.clone());
            request.scratch = Some(context.workers.settings.checks_dir());
            (request.verify, request.container_in_use) = (verify, container_in_use);
            Check::start(request, problems.to_vec(), kept)
        };
        if verify == Verify::Settings {
            // Nobody is asked and nothing is started.
            return Ok::<_, Refusal>(start(false, (None, None))?.report().await?);
        }
        let lock = (!config.container.command.is_empty()).then(|| worker.container_locks.of(&config.container.url));
        loop {
            // No run starts a container of its own there meanwhile, and no other check does.
            let (taken, is_held) = match &lock {
                Some(lock) => {
                    let (taken, url) = (lock.lock().await, config.container.url.clone());
                    (Some(taken), context.ask(move |queue| queue.is_container_held(&url)).await?)
                }
                None => (None, false),
            };
            // A run that begins there is not kept waiting: the check goes on with the container that the run starts.
            let demanded = async {
                match &lock {
                    Some(lock) if !is_held => lock.demanded().await,
                    _ => std::future::pending().await,
                }
            };
            let checked = async {
                let queueing = tokio::time::timeout(QUEUEING, Arc::clone(&context.checks).acquire_owned());
                let Ok(Ok(place)) = queueing.await else {
                    return Err(Refusal::new(Code::ChecksBusy, format!("{CHECKS} checks are under way")));
                };
                Ok(start(is_held, (Some(place), taken))?.report().await?)
            };
            tokio::select! {
                report = checked => return report,
                () = demanded => {}
            }
        }
    };
    tokio::select! {
        report = checking => report,
        () = context.closing() => Err(Refusal::new(Code::Draining, "the service is shutting down")),
    }
}

/// What a check has as long as anything of it is left: its place beside others, and the lock of its container.
type Kept = (Option<OwnedSemaphorePermit>, Option<OwnedMutexGuard<()>>);

/// Ends what checks of an earlier service have left running, and removes what they left behind.
pub(super) fn sweep(place: &Utf8Path) {
    // Without the directory there was no check.
    let Ok(entries) = place.read_dir_utf8() else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        match kill_orphans(entry.path()) {
            Ok(_) => warn_if_err!(std::fs::remove_dir_all(entry.path()), "the files of an earlier check are left"),
            Err(error) => warn!(%error, "the processes of an earlier check are left"),
        }
    }
}

/// Larger than any configuration that a person writes.
const MOST_BYTES: u64 = 1024 * 1024;

/// A file beneath the root.
#[derive(Debug)]
struct ConfigFile {
    /// As the client may name it again.
    name: String,
    text: String,
    /// The directory that its relative paths start at.
    base_dir: Utf8PathBuf,
}

/// Reads a configuration file that a client has named: beneath the config root, a regular file, and not large. What is refused is told without what is in it.
fn read_beneath(root: &Utf8Path, named: &str) -> Result<ConfigFile, Refusal> {
    let refused = |why: &str| Refusal::new(Code::ConfigPathRefused, format!("config_path {named:?} {why}"));
    if named.is_empty() || named.contains('\0') {
        return Err(refused("is not the name of a file"));
    }
    let path = Utf8Path::new(named);
    // A path from the root of the file system is fine where it leads to the same place.
    let Ok(relative) = (if path.is_absolute() { path.strip_prefix(root) } else { Ok(path) }) else {
        return Err(refused("is not beneath the config root"));
    };
    let file = open_beneath(root, relative).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR => refused("does not exist beneath the config root"),
        Errno::XDEV | Errno::LOOP => refused("leads out of the config root"),
        Errno::ACCESS | Errno::PERM => refused("may not be read"),
        Errno::NAMETOOLONG => refused("is too long"),
        _ => refused("cannot be opened"),
    })?;
    let mut file = File::from(file);
    let found = file.metadata().map_err(|_| refused("cannot be read"))?;
    if !found.is_file() {
        return Err(refused("is not a regular file"));
    }
    if found.len() > MOST_BYTES {
        return Err(refused("is larger than 1 MB"));
    }
    let mut bytes = Vec::new();
    // A file may grow while it is read.
    let read = (&mut file).take(MOST_BYTES + 1).read_to_end(&mut bytes);
    if read.is_err() || bytes.len() as u64 > MOST_BYTES {
        return Err(refused("cannot be read"));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused("is not UTF-8 text"))?;
    let base_dir = root.join(relative.parent().unwrap_or(Utf8Path::new("")));
    Ok(ConfigFile { name: relative.to_string(), text, base_dir })
}

/// The kernel itself keeps `..`, links and links of `/proc` from leading out, also when they change meanwhile.
fn open_beneath(root: &Utf8Path, relative: &Utf8Path) -> Result<OwnedFd, Errno> {
    let directory =
        rustix::fs::open(root.as_std_path(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Without NONBLOCK the opening of a pipe would wait for somebody to write into it.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&directory, relative.as_std_path(), flags, Mode::empty(), within)
}

#[cfg(test)]
#[path = "preflight_tests.rs"]
mod tests;

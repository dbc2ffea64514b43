//! Preflight check: verifies everything that a run needs and reports every problem at once. It sends no rollout and no
//! proposer turn.
//!
//! Containers and proposers that a run would start are started in a scratch directory, and stopped again.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use camino::{Utf8Path, Utf8PathBuf};

use super::findings::{CheckReport, CheckStage, ContainerFacts, Finding, RowFacts};
use super::prepare::CachedSetup;
use super::run_spec::{CheckScope, RunSpec};
use super::start::check_same_search;
use crate::artifacts::{DiskWatch, RunPaths};
use crate::cache::{Cache, CacheSettings};
use crate::clock::random_hex;
use crate::container::{EarlierRollouts, ProcessOwner, SetupPart, Transport, has_orphans, inspect_container, start};
use crate::file_error;
use crate::warn_if_err;
use crate::workspace::Reader;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::config::{Config, ConfigFinding, Severity};
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;
use synth_optimizer_core::secrets::scrub;

/// How often a directory that another check removes concurrently is created again.
const MAX_CREATE_ATTEMPTS: usize = 50;

/// Checks a run without starting it. Sends no rollout and no proposer turn, and leaves no files in the output directory and
/// no processes.
///
/// The check takes as long as the timeouts of the config allow. `problems` are the findings about the config itself; parts
/// that depend on a section with an error are skipped. `budget` are the algorithm's findings about the limits.
pub async fn check<E: Engine>(request: &RunSpec, problems: &[ConfigFinding], budget: &[ConfigFinding]) -> CheckReport {
    let mut report = CheckReport::default();
    report.config(problems);
    let place = CheckPaths::of(&request.config);
    if has_no_errors(problems, &["run", "disk_budget"]) {
        place.check_output::<E>(&request.config, &mut report);
    }
    if has_no_errors(problems, &["run", "cache"]) {
        place.check_cache(&request.config, &mut report);
    }
    // Nothing is called or started for a configuration that is refused anyway.
    let is_refused = check_access(request, problems, &mut report).await;
    let config = &request.config;
    let (has_command, is_codex) =
        (!config.container.command.is_empty(), config.proposer.backend == ProposerBackend::CodexAppServer);
    let is_asked = |needs_process: bool| match request.check_scope {
        CheckScope::Everything => !is_refused,
        CheckScope::WithoutProcesses => !is_refused && !needs_process,
        CheckScope::Settings => false,
    };
    let sections = ["run", "cache", "container", "dataset", "taskset", "candidate", "policy"];
    let asks = is_asked(has_command) && has_no_errors(problems, &sections);
    let tries = is_asked(is_codex) && has_no_errors(problems, &["run", "proposer"]);
    match &ScratchDir::new(request.scratch.as_deref()) {
        Ok(ScratchDir(path)) => {
            let asked = async {
                if asks {
                    check_container::<E>(request, &place, path, &mut report).await
                }
            };
            let ready = async { if tries { check_proposer(request, path).await } else { Ok(None) } };
            match tokio::join!(asked, ready).1 {
                Ok(ready) => {
                    report.warnings.extend(ready.as_ref().and_then(model_shutdown));
                    report.facts.proposer = ready;
                }
                Err(errors) => {
                    let findings = errors.iter().map(|error| Finding::of(CheckStage::Proposer, error));
                    report.blockers.extend(findings.map(|finding| without_scratch(finding, path)));
                }
            }
        }
        Err(error) => {
            let finding = Finding::of(CheckStage::Output, error);
            report.blockers.push(Finding { field: None, ..finding });
        }
    }
    report.budget(budget);
    report.ok = report.blockers.is_empty();
    report
}

/// Reports what the configuration may not reach or start. Returns whether there is such a thing.
async fn check_access(request: &RunSpec, problems: &[ConfigFinding], report: &mut CheckReport) -> bool {
    let mut refusals = request.access.refusals(&request.config).await;
    // The config check has reported an invalid field.
    refusals.retain(|(field, _)| has_no_errors(problems, &[field.split('.').next().unwrap_or_default()]));
    let is_refused = !refusals.is_empty();
    report.blockers.extend(refusals.iter().map(|(field, error)| {
        let is_container = error.code == ErrorCode::Container;
        let stage = if is_container { CheckStage::Container } else { CheckStage::Proposer };
        Finding::of(stage, error).at(field)
    }));
    is_refused
}

/// Returns whether these sections of the config have no errors.
fn has_no_errors(problems: &[ConfigFinding], sections: &[&str]) -> bool {
    let mut errors = problems.iter().filter(|found| found.severity == Severity::Error);
    errors.all(|found| found.field.split('.').next().is_none_or(|section| !sections.contains(&section)))
}

/// The paths that a check verifies: the run directory, if the run has an id, and the cache.
struct CheckPaths {
    paths: Result<Option<RunPaths>, OptimizerError>,
    cache: CacheSettings,
}

impl CheckPaths {
    fn of(config: &Config) -> Self {
        let root = &config.run.output_dir;
        let run_id = config.run.run_id.as_deref();
        let dir: Utf8PathBuf = run_id.map_or_else(|| root.join("new"), |run_id| root.join(run_id));
        Self {
            paths: run_id.map(|run_id| RunPaths::new(root, run_id)).transpose(),
            cache: CacheSettings::of(&config.cache, &dir, run_id.unwrap_or("new")),
        }
    }

    /// Returns whether a crashed process of this run left its container running. The container of an executing run does
    /// not count.
    fn has_orphan(&self) -> bool {
        let Ok(Some(paths)) = &self.paths else { return false };
        paths.check_unlocked().is_ok() && has_orphans(paths.dir(), ProcessOwner::Container)
    }

    /// Checks the output directory, the run in it, and the disk budget.
    fn check_output<E: Engine>(&self, config: &Config, report: &mut CheckReport) {
        let output_dir = &config.run.output_dir;
        let tried = report.require(CheckStage::Output, "run.output_dir", check_writable(output_dir));
        if tried.is_none() && !output_dir.is_dir() {
            // The directory does not exist and cannot be created.
            return;
        }
        let is_new = match &self.paths {
            Ok(Some(paths)) => !check_existing_run::<E>(config, paths, report),
            Ok(None) => true,
            Err(error) => {
                report.blockers.push(Finding::of(CheckStage::Output, error).at("run.run_id"));
                true
            }
        };
        if is_new && let Err(error) = DiskWatch::new(&config.disk_budget, output_dir).check_start() {
            report.blockers.push(Finding::of(CheckStage::Output, &error));
        }
    }

    /// Checks the cache file, or whether a new one can be created.
    fn check_cache(&self, config: &Config, report: &mut CheckReport) {
        let settings = &self.cache;
        let is_there = settings.path.exists();
        let checked = match settings.mode {
            CacheMode::Off => Ok(()),
            CacheMode::Readonly if !is_there => {
                let message = format!("cache.mode is \"readonly\", and the cache {} does not exist", settings.path);
                Err(OptimizerError::new(ErrorCode::CacheMiss, message))
            }
            CacheMode::Readonly => Cache::check_file(settings),
            // A cache in the run directory is writable if the run directory is.
            CacheMode::Readwrite if !is_there && config.cache.path.is_none() => Ok(()),
            CacheMode::Readwrite => Cache::check_file(settings).and_then(|()| {
                settings.path.parent().filter(|dir| !dir.as_str().is_empty()).map_or(Ok(()), check_writable)
            }),
        };
        if let Err(error) = checked {
            let retryable = error.code == ErrorCode::Sqlite;
            let finding = Finding::of(CheckStage::Cache, &error).at("cache.path");
            report.blockers.push(Finding { retryable, ..finding });
        }
    }
}

/// Checks an existing run directory. Returns whether it has a workspace.
fn check_existing_run<E: Engine>(config: &Config, paths: &RunPaths, report: &mut CheckReport) -> bool {
    let run_id = paths.run_id();
    if paths.dir().exists() {
        report.require(CheckStage::Output, "run.output_dir", check_writable(paths.dir()));
    }
    report.require(CheckStage::Output, "run.run_id", paths.check_is_run_dir());
    let held = paths.check_unlocked();
    if let Err(error) = &held {
        let finding = Finding::of(CheckStage::Output, error).at("run.run_id");
        report.blockers.push(Finding { retryable: true, ..finding });
    }
    if !paths.workspace_db().exists() {
        return false;
    }
    let stored = Reader::open(paths.workspace_db().as_std_path()).and_then(|reader| {
        let (row, is_terminal) = (reader.run_row()?, reader.totals()?.is_terminal());
        check_same_search::<E>(&row, config)?;
        Ok(is_terminal)
    });
    let (code, message, hint) = match report.require(CheckStage::Output, "run.run_id", stored) {
        Some(true) => {
            let message = format!("run {run_id} has ended; the command returns its stored result");
            ("run_already_ended", message, "Choose another run.run_id to start a new search.")
        }
        Some(false) if held.is_ok() => {
            let message = format!("run {run_id} was started before; the command resumes it");
            ("run_is_resumed", message, "Choose another run.run_id to start a new run.")
        }
        Some(false) | None => return true,
    };
    report.warnings.push(Finding::new(CheckStage::Output, code, message, hint).at("run.run_id"));
    true
}

/// Makes the setup calls of a run to the container. Starts the container if the run would start it.
async fn check_container<E: Engine>(
    request: &RunSpec,
    place: &CheckPaths,
    scratch: &Utf8Path,
    report: &mut CheckReport,
) {
    let config = &request.config;
    let (mut other, mut stopped) = (None, Ok(()));
    let client = match request.client().await {
        Ok(client) => client,
        Err(error) => {
            let finding = Finding::of(CheckStage::Container, &error);
            let field = finding.field.clone().unwrap_or_else(|| "container.url".to_owned());
            return report.blockers.push(finding.at(&field));
        }
    };
    let inspection = if let Some(client) = &client {
        if request.container_in_use && !config.container.command.is_empty() {
            other = Some((
                "container_in_use",
                "another run uses the container at this address, and the check used that container",
                "Nothing to do: the run waits for the other run, then starts its own container.",
            ));
        } else if place.has_orphan() {
            other = Some((
                "container_left_behind",
                "a crashed process of this run left its container running, and the check used that container",
                "Nothing to do: the run ends that container and starts its own.",
            ));
        }
        let process = match other {
            Some(_) => None,
            None => match start(config, scratch, client).await {
                Ok(process) => process,
                Err(error) => {
                    let finding = Finding::of(CheckStage::Container, &error).at("container.command");
                    return report.blockers.push(without_scratch(finding, scratch));
                }
            },
        };
        let inspection = inspect_container(config, client).await;
        if let Some(process) = process {
            stopped = process.stop().await;
        }
        inspection
    } else {
        // `check_cache` has reported a cache that cannot be opened.
        let cache = Some(&place.cache).filter(|cache| cache.path.exists()).and_then(|cache| Cache::open(cache).ok());
        let Some(cache) = cache else { return };
        inspect_container(config, &CachedSetup::new(&cache, None)).await
    };
    // The container of another run may still be starting, or differ from the one that this run starts. Its problems are
    // therefore only warnings.
    let is_unsure = other.is_some_and(|(code, _, _)| code == "container_in_use");
    let say = |report: &mut CheckReport, finding| match is_unsure {
        true => report.warnings.push(finding),
        false => report.blockers.push(finding),
    };
    if !is_unsure || inspection.contract.is_some() {
        let problems = inspection.problems.iter().map(|(part, error)| problem(config, *part, error));
        problems.for_each(|finding| say(report, finding));
    }
    report.require(CheckStage::Container, "container.command", stopped);
    if let Some((code, message, hint)) = other {
        let finding = Finding::new(CheckStage::Container, code, message.to_owned(), hint);
        report.warnings.push(finding.at("container.command"));
    }
    let Some(contract) = &inspection.contract else { return };
    let program = inspection.task.as_ref().map(|task| &task.inputs.program);
    report.facts.container = Some(ContainerFacts {
        url: scrub(&config.container.url),
        contract_version: contract.version.clone(),
        dialects: contract.routes.dialects(),
        rollout_modes: contract.rollout_modes.clone(),
        program_id: program.map(|program| program.program_id.clone()),
        fields: program.iter().flat_map(|program| &program.modules).map(|module| module.field.clone()).collect(),
    });
    let transport = client.map(|client| Transport::new(client, contract, config, EarlierRollouts::default()));
    if let Some(fallback) = transport.as_ref().and_then(Transport::fallback_at_start) {
        let message =
            format!("rollouts are sent {}, not {}: {}", fallback.effective, fallback.requested, fallback.reason);
        let finding = Finding::new(CheckStage::Container, "transport_fallback", message, "Nothing to do.");
        report.warnings.push(finding.at("gepa.rollout_submission_mode"));
    }
    let Some(task) = inspection.task else { return };
    let (inputs, config) = (task.inputs, &task.config);
    report.resolved = Some(Box::new(config.clone()));
    report.facts.rows = Some(RowFacts {
        train: inputs.train.len(),
        heldout: inputs.heldout.len(),
        pareto_pool: inputs.pareto_pool.len(),
        minibatch_pool: inputs.minibatch_pool.len(),
        reflection_pool: inputs.reflection_pool.len(),
        heldout_pool: inputs.heldout_pool.len(),
    });
    if let Err(error) = E::new(config, inputs) {
        say(report, Finding::of(CheckStage::Task, &error));
    }
}

/// Returns the finding for a problem of the survey, with the config field that it concerns.
fn problem(config: &Config, part: SetupPart, error: &OptimizerError) -> Finding {
    if matches!(error.code, ErrorCode::CacheMiss | ErrorCode::CacheCorrupt) {
        return Finding::of(CheckStage::Cache, error).at("cache.path");
    }
    let rows = |seeds, ids| Some(if config.dataset.is_some() { seeds } else { ids });
    let (stage, field) = match part {
        SetupPart::Settings => (CheckStage::Container, None),
        SetupPart::Connection | SetupPart::Contract => (CheckStage::Container, Some("container.url")),
        SetupPart::Program | SetupPart::Rows => (CheckStage::Task, None),
        SetupPart::TrainRows => (CheckStage::Task, rows("dataset.train_seeds", "taskset.train_ids")),
        SetupPart::HeldoutRows => (CheckStage::Task, rows("dataset.heldout_seeds", "taskset.heldout_ids")),
    };
    let finding = Finding { retryable: part == SetupPart::Connection, ..Finding::of(stage, error) };
    match field {
        Some(field) => finding.at(field),
        None => finding,
    }
}

/// Checks the proposer as a run does, and returns every problem. A readonly run uses none.
async fn check_proposer(request: &RunSpec, scratch: &Utf8Path) -> Result<Option<ProposerReady>, Vec<OptimizerError>> {
    let proposer = request.proposer_in(scratch).map_err(|error| vec![error])?;
    let ready = match request.config.cache.mode {
        CacheMode::Readonly => Ok(None),
        CacheMode::Off | CacheMode::Readwrite => proposer.check().await,
    };
    proposer.close().await;
    ready
}

/// Returns the warning about a model whose end the endpoint has announced.
fn model_shutdown(ready: &ProposerReady) -> Option<Finding> {
    let hint = "Choose another model for runs that may last beyond that day.";
    let finding = Finding::new(CheckStage::Proposer, "model_shutdown", ready.shutdown_warning()?, hint);
    Some(finding.at("proposer.model"))
}

/// Replaces a hint that points to a file in the scratch directory, which is removed, by the general hint of the error.
/// The message has the last lines of that file.
fn without_scratch(finding: Finding, scratch: &Utf8Path) -> Finding {
    let leads_away = finding.hint.contains(scratch.as_str()) || finding.hint.contains(".log");
    let general = ErrorCode::parse(&finding.code).map(|code| code.row().hint.to_owned());
    match general {
        Some(hint) if leads_away => Finding { hint, ..finding },
        Some(_) | None => finding,
    }
}

/// A directory for the processes of a check. It is removed with its contents when this is dropped.
struct ScratchDir(Utf8PathBuf);

impl ScratchDir {
    /// Creates a scratch directory in `place`, which is created if it is missing, or in the system's temporary directory.
    fn new(place: Option<&Utf8Path>) -> Result<Self, OptimizerError> {
        let root = match place {
            Some(place) => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(place);
                made.map_err(|error| failed(place, "made", error))?;
                place.to_owned()
            }
            None => Utf8PathBuf::try_from(std::env::temp_dir()).map_err(|error| {
                OptimizerError::from_cause(ErrorCode::Io, "the directory for temporary files", error)
            })?,
        };
        let path = root.join(format!("synth-optimizers-check-{}", random_hex::<8>()?));
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| failed(&path, "made", error))?;
        Ok(Self(path))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        warn_if_err!(std::fs::remove_dir_all(&self.0), "removing the files of a check failed");
    }
}

/// Checks that a directory exists or can be created, and is writable. Removes everything that it creates for this.
fn check_writable(dir: &Utf8Path) -> Result<(), OptimizerError> {
    let is_missing = |place: &&Utf8Path| !place.as_str().is_empty() && !place.exists();
    // The deepest directory comes first, which is the order of removal.
    let missing: Vec<&Utf8Path> = dir.ancestors().take_while(is_missing).collect();
    let file = dir.join(format!(".check-{}", random_hex::<8>()?));
    let attempt = || {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
        std::fs::remove_file(&file)
    };
    let mut tried = attempt();
    // A concurrent check may remove a directory that both of them created.
    for _ in 0..MAX_CREATE_ATTEMPTS {
        if tried.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            tried = attempt();
        }
    }
    for made in missing {
        // An error means that the directory was not created, or that another process uses it and it is not empty.
        let _ = std::fs::remove_dir(made);
    }
    tried.map_err(|error| failed(dir, "written to", error))
}

fn failed(path: &Utf8Path, done: &str, error: std::io::Error) -> OptimizerError {
    file_error::classified(format!("{path} cannot be {done}"), error)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

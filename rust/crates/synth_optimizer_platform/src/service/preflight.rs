//! The one evaluator of a submitted run: what `POST /runs/preflight` tells is what `POST /runs` goes by.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8Path;

use super::checking::Checking;
use super::config_file;
use super::context::Context;
use super::handlers::submit::{ConfigBody, RunBody};
use super::hide::hide_in_finding;
use super::refusal::{Code, Refusal};
use crate::config::{Diagnostic, Loaded, Severity, Source, hidden_fields, shown, try_load, try_load_value};
use crate::container::reap_orphans;
use crate::model::error::OptimizerError;
use crate::queue::{QueueCode, QueueError};
use crate::runtime::{CheckReport, CheckStage, Finding, Request, Verify};

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
    let mut request = Request::new(loaded.config.clone(), context.workers.crew().algorithm.name());
    request.codex_runtime = context.settings().codex_runtime.clone();
    request.reach = context.settings().reach.clone();
    if body.allow_unverified {
        request.verify = Verify::Settings;
    }
    request.scratch = Some(context.settings().checks_dir());
    let conflict = conflict(context, &loaded).await?;
    let mut report = check(context, request, problems.clone()).await?;
    report.blockers.extend(secrets);
    report.blockers.extend(conflict.as_ref().map(|taken| {
        let OptimizerError { message, hint, .. } = &taken.error;
        Finding::new(CheckStage::Output, taken.code.word(), message.clone(), hint).at("run.run_id")
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
    match context.read(move || asking.queue().check_run_id(&run_id)).await {
        Ok(()) => Ok(None),
        Err(taken) if matches!(taken.code, QueueCode::RunIdInUse | QueueCode::RunExists) => Ok(Some(taken)),
        Err(error) => Err(error.into()),
    }
}

/// Where things are on this machine is nobody's business but its owner's.
fn hide(report: &mut CheckReport) {
    report.blockers.iter_mut().chain(&mut report.warnings).for_each(hide_in_finding);
}

type Read = (Result<Loaded, OptimizerError>, Option<String>);

/// Reads the configuration from wherever it is. The environment of the service changes nothing about it.
fn load(context: &Context, body: &RunBody) -> Result<Read, Refusal> {
    let environment = BTreeMap::new();
    match (&body.config_path, &body.config) {
        (Some(path), None) => {
            let file = config_file::read(context.config_root(), path)?;
            let source = Source { name: &file.name, text: &file.text, base_dir: &file.base_dir };
            Ok((try_load(&source, &environment, &body.overrides), Some(file.name.clone())))
        }
        (None, Some(ConfigBody::Text(text))) => {
            let source = Source { name: "config", text, base_dir: context.config_root() };
            Ok((try_load(&source, &environment, &body.overrides), None))
        }
        (None, Some(ConfigBody::Sections(sections))) => {
            let value = serde_json::Value::Object(sections.clone());
            Ok((try_load_value(value, "config", context.config_root(), &environment, &body.overrides), None))
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

/// Checks, until the client has left or the service shuts down.
async fn check(context: &Arc<Context>, request: Request, problems: Vec<Diagnostic>) -> Result<CheckReport, Refusal> {
    let crew = context.workers.crew();
    let checking = async {
        let place = Arc::clone(&context.checks).acquire_owned().await;
        let mut request = request;
        let mut turn = None;
        if !request.config.container.command.is_empty() {
            let url = request.config.container.url.clone();
            // No run starts a container of its own there meanwhile, and no other check does.
            turn = Some(crew.turns.of(&url).lock_owned().await);
            request.container_in_use = context.ask(move |queue| queue.is_container_held(&url)).await?;
        }
        let mut checking = Checking::start(Arc::clone(&crew.algorithm), request, problems, (place, turn))?;
        Ok::<_, Refusal>(checking.report().await?)
    };
    tokio::select! {
        report = checking => report,
        () = context.closing() => Err(Refusal::new(Code::Draining, "the service is shutting down")),
    }
}

/// Ends what checks of an earlier service have left running, and removes what they left behind.
pub(super) fn sweep(place: &Utf8Path) -> Result<(), OptimizerError> {
    let Ok(entries) = place.read_dir_utf8() else { return Ok(()) };
    for entry in entries.flatten() {
        reap_orphans(entry.path())?;
        let _ = std::fs::remove_dir_all(entry.path());
    }
    Ok(())
}

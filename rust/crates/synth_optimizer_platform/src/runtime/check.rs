//! Looks at everything that a run needs and finds every problem at once, without paying for anything.
//!
//! Containers and proposers that a run would start are really started, in a directory of their own, and ended again.

use std::sync::Arc;

use camino::Utf8Path;

use super::findings::{CheckReport, CheckStage, ContainerFacts, Finding, RowFacts};
use super::place::{Left, Place};
use super::probe::Scratch;
use super::request::{Request, Verify};
use super::setup::CachedSetup;
use crate::cache::Cache;
use crate::container::{Client, Part, Survey, Transport, start, survey};
use crate::proposer::configured;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::config::{Config, Diagnostic, Severity};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;
use synth_optimizer_core::model::program::Inputs;
use synth_optimizer_core::secrets::scrub;

/// Checks a run without beginning it: no rollout, no turn, nothing left in the output directory, no process left behind.
///
/// It takes as long as the timeouts of the config allow. `problems` is what was found about the config itself: what rests
/// on a section with an error is not looked at. `budget` is what the algorithm has found about the limits, and `engine`
/// builds it from the loaded task, as in `execute`.
pub async fn check<E, F>(request: &Request, problems: &[Diagnostic], budget: &[Diagnostic], engine: F) -> CheckReport
where
    F: FnOnce(&Config, Inputs) -> Result<E, OptimizerError>,
{
    let mut report = CheckReport::default();
    report.config(problems);
    let place = Place::of(&request.config);
    if is_sound(problems, &["run", "disk_budget"]) {
        place.look_at_output(request, &mut report);
    }
    if is_sound(problems, &["run", "cache"]) {
        place.look_at_cache(&request.config, &mut report);
    }
    let is_asked = request.verify == Verify::Everything;
    if !is_asked && request.config.cache.mode != CacheMode::Readonly && is_sound(problems, &["container"]) {
        // Who may be called is known without calling anybody.
        if let Err(error) = request.reach.check(&request.config.container.url).await {
            report.block(Finding::of(CheckStage::Container, &error).at("container.url"));
        }
    }
    let sections = ["run", "cache", "container", "dataset", "taskset", "candidate", "policy"];
    let asks = is_asked && is_sound(problems, &sections);
    let tries = is_asked && is_sound(problems, &["run", "proposer"]);
    match Scratch::new(request.scratch.as_deref()) {
        Ok(scratch) => {
            let asked = async {
                match asks {
                    true => Some(ask_container(request, &place, scratch.path()).await),
                    false => None,
                }
            };
            let ready = async { if tries { try_proposer(request, &scratch).await } else { Ok(None) } };
            let (asked, ready) = tokio::join!(asked, ready);
            if let Some(asked) = asked {
                judge_container(&request.config, asked, engine, &scratch, &mut report);
            }
            match ready {
                Ok(ready) => report.facts.proposer = ready,
                Err(error) => report.block(without_scratch(Finding::of(CheckStage::Proposer, &error), &scratch)),
            }
        }
        Err(error) => report.block(Finding::of(CheckStage::Output, &error).nowhere()),
    }
    report.budget(budget);
    report.ok = report.blockers.is_empty();
    report
}

/// Whether nothing is wrong in these sections.
fn is_sound(problems: &[Diagnostic], sections: &[&str]) -> bool {
    let mut errors = problems.iter().filter(|found| found.severity == Severity::Error);
    errors.all(|found| found.field.split('.').next().is_none_or(|section| !sections.contains(&section)))
}

/// What came of asking the container.
enum Asked {
    /// Nothing may be called, and nothing is kept either.
    NoCache,
    NoClient(OptimizerError),
    NotStarted(OptimizerError),
    Surveyed {
        survey: Box<Survey>,
        client: Option<Box<Client>>,
        left: Left,
        stopped: Result<(), OptimizerError>,
    },
}

async fn ask_container(request: &Request, place: &Place, scratch: &Utf8Path) -> Asked {
    let config = &request.config;
    if config.cache.mode == CacheMode::Readonly {
        // What keeps the file from being opened was told before.
        let Some(cache) =
            Some(&place.cache).filter(|cache| cache.path.exists()).and_then(|cache| Cache::open(cache).ok())
        else {
            return Asked::NoCache;
        };
        let survey = Box::new(survey(config, &CachedSetup::new(&cache, None)).await);
        return Asked::Surveyed { survey, client: None, left: Left::Nothing, stopped: Ok(()) };
    }
    let client = match Client::within(&config.container, &request.reach).await {
        Ok(client) => client,
        Err(error) => return Asked::NoClient(error),
    };
    let is_started = !config.container.command.is_empty();
    let left = if request.container_in_use && is_started { Left::InUse } else { place.left() };
    let process = match left {
        Left::Container | Left::InUse => None,
        Left::Nothing => match start(config, scratch, &client).await {
            Ok(process) => process,
            Err(error) => return Asked::NotStarted(error),
        },
    };
    let survey = Box::new(survey(config, &client).await);
    let stopped = match process {
        Some(process) => process.stop().await,
        None => Ok(()),
    };
    Asked::Surveyed { survey, client: Some(Box::new(client)), left, stopped }
}

fn judge_container<E, F>(config: &Config, asked: Asked, engine: F, scratch: &Scratch, report: &mut CheckReport)
where
    F: FnOnce(&Config, Inputs) -> Result<E, OptimizerError>,
{
    let (survey, client, left, stopped) = match asked {
        Asked::NoCache => return,
        Asked::NoClient(error) => return report.block(Finding::of(CheckStage::Container, &error).at("container.url")),
        Asked::NotStarted(error) => {
            let finding = Finding::of(CheckStage::Container, &error).at("container.command");
            return report.block(without_scratch(finding, scratch));
        }
        Asked::Surveyed { survey, client, left, stopped } => (survey, client, left, stopped),
    };
    // The container of another run may be starting, or be another one altogether: it says nothing for sure.
    let say: fn(&mut CheckReport, Finding) = if left == Left::InUse { CheckReport::warn } else { CheckReport::block };
    if left != Left::InUse || survey.contract.is_some() {
        let problems = survey.problems.iter().map(|(part, error)| problem(config, *part, error));
        problems.for_each(|finding| say(report, finding));
    }
    if let Err(error) = stopped {
        report.block(Finding::of(CheckStage::Container, &error).at("container.command"));
    }
    let other = match left {
        Left::Nothing => None,
        Left::Container => Some((
            "container_left_behind",
            "a crashed process of this run has left its container running, and that one was asked",
            "The run ends it and starts its own.",
        )),
        Left::InUse => Some((
            "container_in_use",
            "another run uses the container at this address, and that one was asked as it is",
            "The run waits for the other one, and then starts its own container.",
        )),
    };
    if let Some((code, message, hint)) = other {
        let finding = Finding::new(CheckStage::Container, code, message.to_owned(), hint);
        report.warn(finding.at("container.command"));
    }
    let Some(contract) = &survey.contract else { return };
    let program = survey.task.as_ref().map(|task| &task.inputs.program);
    report.facts.container = Some(ContainerFacts {
        url: scrub(&config.container.url),
        contract_version: contract.version.clone(),
        dialects: contract.routes.dialects(),
        rollout_modes: contract.rollout_modes.clone(),
        program_id: program.map(|program| program.program_id.clone()),
        fields: program.iter().flat_map(|program| &program.modules).map(|module| module.field.clone()).collect(),
    });
    let transport = client.map(|client| Transport::new(*client, contract, config));
    if let Some(fallback) = transport.as_ref().and_then(Transport::fallback_at_start) {
        let message =
            format!("rollouts are sent {}, not {}: {}", fallback.effective, fallback.requested, fallback.reason);
        let finding = Finding::new(CheckStage::Container, "transport_fallback", message, "Nothing needs to be done.");
        report.warn(finding.at("gepa.rollout_submission_mode"));
    }
    let Some(task) = survey.task else { return };
    let inputs = task.inputs;
    report.facts.rows = Some(RowFacts {
        train: inputs.train.len(),
        heldout: inputs.heldout.len(),
        pareto_pool: inputs.pareto_pool.len(),
        minibatch_pool: inputs.minibatch_pool.len(),
        reflection_pool: inputs.reflection_pool.len(),
        heldout_pool: inputs.heldout_pool.len(),
    });
    if let Err(error) = engine(config, inputs) {
        say(report, Finding::of(CheckStage::Task, &error));
    }
}

/// A problem of the survey, with the field that it is about.
fn problem(config: &Config, part: Part, error: &OptimizerError) -> Finding {
    if matches!(error.code, ErrorCode::CacheMiss | ErrorCode::CacheCorrupt) {
        return Finding::of(CheckStage::Cache, error).at("cache.path");
    }
    let rows = |seeds, ids| if config.dataset.is_some() { seeds } else { ids };
    match part {
        Part::Settings => Finding::of(CheckStage::Container, error),
        Part::Reach => Finding::of(CheckStage::Container, error).at("container.url").passing(),
        Part::Contract => Finding::of(CheckStage::Container, error).at("container.url"),
        Part::Program | Part::Rows => Finding::of(CheckStage::Task, error),
        Part::TrainRows => Finding::of(CheckStage::Task, error).at(rows("dataset.train_seeds", "taskset.train_ids")),
        Part::HeldoutRows => {
            Finding::of(CheckStage::Task, error).at(rows("dataset.heldout_seeds", "taskset.heldout_ids"))
        }
    }
}

/// Prepares the proposer as a run does, unless the run may call nobody.
async fn try_proposer(request: &Request, scratch: &Scratch) -> Result<Option<ProposerReady>, OptimizerError> {
    let config = &request.config;
    let proposer = match &request.proposer {
        Some(proposer) => Arc::clone(proposer),
        None => configured(config, scratch.path(), request.codex_runtime.as_deref())?,
    };
    let ready = match config.cache.mode {
        CacheMode::Readonly => Ok(None),
        CacheMode::Off | CacheMode::Readwrite => proposer.prepare().await,
    };
    proposer.close().await;
    ready
}

/// A finding whose hint leads to a file that is removed gets the general hint: the message has its last lines.
fn without_scratch(finding: Finding, scratch: &Scratch) -> Finding {
    let leads_away = finding.hint.contains(scratch.path().as_str()) || finding.hint.contains(".log");
    let general = ErrorCode::from_wire(&finding.code).map(|code| code.row().hint.to_owned());
    match general {
        Some(hint) if leads_away => Finding { hint, ..finding },
        Some(_) | None => finding,
    }
}

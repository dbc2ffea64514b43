//! Where a run begins: with its first events, or with whatever its log says. And what is written down when a process takes
//! it up: what the run is, who works on it, and what the container told.

use std::collections::BTreeSet;

use super::execute::Run;
use crate::cache::CacheSettings;
use crate::clock::unix_millis;
use crate::container::Task;
use crate::workspace::{Reader, Record, RunRow, SnapshotKind, Workspace};
use synth_optimizer_core::config::{Config, search_differences, search_digest, shown};
use synth_optimizer_core::engine::{Engine, Session};
use synth_optimizer_core::model::answer::Observation;
use synth_optimizer_core::model::canonical::digest_of;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    ContractVerified, Reason, RunResumed, RunStarted, StopKind, TaskInfoLoaded,
};
use synth_optimizer_core::model::ids::RequestId;
use synth_optimizer_core::model::program::Inputs;
use synth_optimizer_core::secrets::scrub;

/// A session and what it has to store first.
pub(super) struct Begun<'e, E: Engine> {
    pub(super) session: Session<'e, E>,
    pub(super) events: Vec<Event>,
    pub(super) next_sequence: u64,
    /// Time of earlier processes of this run.
    pub(super) elapsed_before: u64,
    /// Requests that an earlier process sent and that have no answer.
    pub(super) unanswered: BTreeSet<RequestId>,
    /// Requests whose answers wait in the stored inbox.
    pub(super) waiting: BTreeSet<RequestId>,
}

/// Refuses to go on with a run that was another search.
pub(super) fn check_same_search<E: Engine>(stored: &RunRow, config: &Config) -> Result<(), OptimizerError> {
    if stored.algorithm == E::NAME && stored.config_digest == search_digest(config) {
        return Ok(());
    }
    let mut differences = search_differences(&stored.config, config);
    if stored.algorithm != E::NAME {
        differences.insert(0, format!("algorithm: {} -> {}", stored.algorithm, E::NAME));
    }
    let message = format!("run {} was begun with another configuration: {}", stored.run_id, differences.join("; "));
    Err(OptimizerError::new(ErrorCode::Config, message)
        .with_hint("Put the named fields back, or choose another run.run_id; a shared cache.path and cache.namespace keep what was paid for."))
}

/// A new run: its first events up to the first requests.
pub(super) fn begin<'e, E: Engine>(
    engine: &'e E,
    config: &Config,
    task: &Task,
) -> Result<Begun<'e, E>, OptimizerError> {
    let mut session = Session::new(engine);
    let mut events = session.open(RunStarted {
        algorithm: E::NAME.to_owned(),
        config_digest: search_digest(config),
        seed: config.run.seed,
        container_url: scrub(&config.container.url),
    });
    let contract = &task.contract;
    events.push(Event::ContractVerified(ContractVerified {
        version: contract.version.clone(),
        dialects: contract.routes.dialects(),
        rollout_modes: contract.rollout_modes.clone(),
        routes: contract.routes.named(),
    }));
    events.push(match &task.task_info {
        Ok(info) => Event::TaskInfoLoaded(TaskInfoLoaded { digest: digest_of(info) }),
        Err(reason) => Event::TaskInfoMissing(Reason { reason: reason.clone() }),
    });
    events.extend(task.mapping.clone().map(Event::RowsMapped));
    events.extend(session.observe(&Observation::Begin)?);
    let (unanswered, waiting) = (BTreeSet::new(), BTreeSet::new());
    Ok(Begun { session, events, next_sequence: 0, elapsed_before: 0, unanswered, waiting })
}

/// A run that goes on: its state is rebuilt from the log, and answers that had come are not asked for again.
pub(super) fn resume<'e, E: Engine>(
    engine: &'e E,
    stored: &Reader,
    inputs: &Inputs,
) -> Result<Begun<'e, E>, OptimizerError> {
    let mut state = engine.initial();
    let (mut count, mut elapsed_before, mut ended_from_outside) = (0, 0, false);
    stored.log(0, |stored| {
        check_same_inputs(&stored.event, inputs)?;
        match &stored.event {
            Event::ClockObserved(clock) => elapsed_before = clock.elapsed_millis,
            Event::StopDecided(stop) => {
                ended_from_outside = matches!(stop.stopped_by.kind, StopKind::External | StopKind::MaxTime);
            }
            Event::HeldoutStarted(_) => ended_from_outside = false,
            _ => {}
        }
        engine.evolve(&mut state, &stored.event);
        count = stored.sequence + 1;
        Ok(())
    })?;
    let (mut session, decided) = Session::resume(engine, state)?;
    let (inbox, unanswered) = (stored.inbox()?, BTreeSet::from_iter(stored.unanswered()?));
    let waiting: BTreeSet<RequestId> = inbox.iter().map(|(request, _)| *request).collect();
    let mut events = vec![Event::RunResumed(RunResumed {
        events: count,
        waiting: waiting.len() as u32,
        unknown_outcomes: unanswered.len() as u32,
    })];
    events.extend(decided);
    for (request, answer) in inbox {
        events.extend(session.offer(request, answer)?);
    }
    if ended_from_outside {
        events.extend(session.withdraw(|request| unanswered.contains(&request))?);
    }
    Ok(Begun { session, events, next_sequence: count, elapsed_before, unanswered, waiting })
}

/// Scores of two programs or two sets of rows are never mixed.
fn check_same_inputs(event: &Event, inputs: &Inputs) -> Result<(), OptimizerError> {
    let changed = match event {
        Event::ProgramLoaded(program) if program.program_digest != inputs.program_digest() => "program",
        Event::RowsLoaded(rows) if rows.rows_digest != inputs.rows_digest() => "rows",
        _ => return Ok(()),
    };
    Err(OptimizerError::new(ErrorCode::Container, format!("the container's {changed} changed since the run began"))
        .with_hint("Start the container as it was, or begin another run."))
}

/// What the workspace keeps of the run itself.
pub(super) fn row<E: Engine>(run: &Run<'_>) -> RunRow {
    let (config, dir) = (&run.request.config, run.dir);
    let cache = CacheSettings::of(&config.cache, dir.dir(), dir.run_id());
    RunRow {
        run_id: dir.run_id().to_owned(),
        algorithm: E::NAME.to_owned(),
        config: shown(config),
        config_digest: search_digest(config),
        container_url: scrub(&config.container.url),
        cache_mode: config.cache.mode.word().to_owned(),
        cache_namespace: cache.namespace,
        cache_path: Some(cache.path.into()),
        output_dir: config.run.output_dir.to_string(),
        run_dir: dir.dir().to_string(),
        created_at: unix_millis(),
    }
}

/// Writes down who runs this, and what the container told.
pub(super) fn record_start(
    workspace: &Workspace,
    task: &Task,
    setup_calls: Vec<Record>,
    how: &str,
) -> Result<(), OptimizerError> {
    let now = unix_millis();
    let rows = |heldout: bool| {
        let rows = if heldout { &task.inputs.heldout } else { &task.inputs.train };
        rows.iter().filter_map(|row| task.rows.get(&row.id)).map(|row| row.value.clone()).collect()
    };
    let mut documents = vec![
        (SnapshotKind::Contract, task.metadata.clone()),
        (SnapshotKind::Program, task.program.clone()),
        (SnapshotKind::Dataset, task.dataset.clone()),
        (SnapshotKind::TrainRows, rows(false)),
        (SnapshotKind::HeldoutRows, rows(true)),
    ];
    documents.extend(task.task_info.clone().ok().map(|info| (SnapshotKind::TaskInfo, info)));
    let snapshots = documents.into_iter().map(|(kind, document)| Record::Snapshot { kind, unix_millis: now, document });
    let operation = Record::Operation { operation_type: how.to_owned(), subject: subject(), unix_millis: now };
    workspace.record_all(snapshots.chain(setup_calls).chain([operation]).collect())
}

/// Takes the run in the name of this process. Who held it before can write nothing from here on.
pub(super) fn hold(workspace: &Workspace) -> Result<(), OptimizerError> {
    workspace.hold(subject())
}

fn subject() -> String {
    format!("pid {}", std::process::id())
}

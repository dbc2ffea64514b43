//! Opens the session of a run, new or from its log, and records how the run was started: its description, the process
//! that executes it, and the documents of the container.

use std::collections::{BTreeMap, BTreeSet};

use super::execute::RunContext;
use crate::cache::CacheSettings;
use crate::clock::unix_millis;
use crate::container::{Sending, Task, changed_program, changed_rows};
use crate::workspace::{Reader, Record, RunRow, SnapshotKind, UnansweredCall, Workspace};
use synth_optimizer_core::config::{Config, adopt_stored, redacted_config, search_differences, search_digest};
use synth_optimizer_core::engine::{Engine, Session};
use synth_optimizer_core::model::answer::Observation;
use synth_optimizer_core::model::canonical::canonical_digest;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{ContractVerified, Reason, RunResumed, RunStarted, TaskInfoLoaded};
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_core::model::program::Inputs;
use synth_optimizer_core::secrets::scrub;

/// A session and the events that it has to store first.
pub(super) struct OpenedSession<'e, E: Engine> {
    pub(super) session: Session<'e, E>,
    pub(super) events: Vec<Event>,
    pub(super) next_sequence: u64,
    /// Milliseconds that earlier processes spent on this run.
    pub(super) elapsed_before: u64,
    /// Calls that an earlier process sent and that have no answer.
    pub(super) unanswered: BTreeMap<CallId, Sending>,
    /// Calls whose answers wait in the stored inbox.
    pub(super) waiting: BTreeSet<CallId>,
}

/// Fails if the stored run was started with another algorithm or search configuration. Values that this configuration leaves
/// to the run are those that the run started with.
pub(super) fn check_same_search<E: Engine>(stored: &RunRow, config: &Config) -> Result<(), OptimizerError> {
    let mut config = config.clone();
    adopt_stored(&mut config, &stored.config);
    let config = &config;
    let mut differences = search_differences(&stored.config, config);
    // The digest also depends on the fields that a release knows. A field that the release of the stored run did not know has
    // its default there.
    let is_same = stored.config_digest == search_digest(config) || differences.is_empty();
    if stored.algorithm == E::NAME && is_same {
        return Ok(());
    }
    if stored.algorithm != E::NAME {
        differences.insert(0, format!("algorithm: {} -> {}", stored.algorithm, E::NAME));
    }
    let message = format!("run {} was started with another configuration: {}", stored.run_id, differences.join("; "));
    Err(OptimizerError::new(ErrorCode::Config, message)
        .with_hint("Restore the named fields, or choose another run.run_id; with the same cache.path and cache.namespace it reuses the stored answers."))
}

/// Opens a new run. Its events lead up to the first calls.
pub(super) fn open_new<'e, E: Engine>(
    engine: &'e E,
    config: &Config,
    task: &Task,
) -> Result<OpenedSession<'e, E>, OptimizerError> {
    let mut session = Session::new(engine);
    let mut events = session.start(RunStarted {
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
        Ok(info) => Event::TaskInfoLoaded(TaskInfoLoaded { digest: canonical_digest(info) }),
        Err(reason) => Event::TaskInfoMissing(Reason { reason: reason.clone() }),
    });
    events.extend(task.mapping.clone().map(Event::RowsMapped));
    events.extend(session.observe(&Observation::Begin)?);
    let (unanswered, waiting) = (BTreeMap::new(), BTreeSet::new());
    Ok(OpenedSession { session, events, next_sequence: 0, elapsed_before: 0, unanswered, waiting })
}

/// Reopens a stored run: rebuilds its state from the log and takes the answers that wait in the inbox.
pub(super) fn reopen<'e, E: Engine>(
    engine: &'e E,
    stored: &Reader,
    inputs: &Inputs,
) -> Result<OpenedSession<'e, E>, OptimizerError> {
    let mut state = engine.initial_state();
    let (mut count, mut elapsed_before, mut ended_from_outside) = (0, 0, false);
    let mut charged: BTreeMap<CallId, u32> = BTreeMap::new();
    stored.log(0, |stored| {
        check_same_inputs(&stored.event, inputs)?;
        match &stored.event {
            Event::ClockObserved(clock) => elapsed_before = clock.elapsed_millis,
            Event::StopDecided(stop) => ended_from_outside = stop.stopped_by.kind.withdraws_waiting_calls(),
            Event::HeldoutStarted(_) => ended_from_outside = false,
            Event::OutcomeUnknown(lost) => *charged.entry(lost.call_id).or_default() += 1,
            _ => {}
        }
        engine.evolve(&mut state, &stored.event);
        count = stored.sequence + 1;
        Ok(())
    })?;
    let (mut session, decided) = Session::resume(engine, state)?;
    let inbox = stored.inbox()?;
    let sending = |call: UnansweredCall| {
        // The earlier process charged every copy, and stopped before it sent the call again.
        let is_charged = charged.get(&call.call_id).is_some_and(|charged| *charged >= call.sends);
        (call.call_id, if is_charged { Sending::Again } else { Sending::AskFirst { sent_at: call.sent_at } })
    };
    let unanswered: BTreeMap<CallId, Sending> = stored.unanswered()?.into_iter().map(sending).collect();
    let waiting: BTreeSet<CallId> = inbox.iter().map(|(request, _)| *request).collect();
    let mut events = vec![Event::RunResumed(RunResumed {
        stored_events: count,
        waiting_answers: waiting.len() as u32,
        unknown_outcomes: unanswered.len() as u32,
    })];
    events.extend(decided);
    for (request, answer) in inbox {
        events.extend(session.accept_answer(request, answer)?);
    }
    if ended_from_outside {
        events.extend(session.withdraw_unsent(|request| unanswered.contains_key(&request))?);
    }
    Ok(OpenedSession { session, events, next_sequence: count, elapsed_before, unanswered, waiting })
}

/// Fails if the container's program or rows differ from those in the log: their scores cannot be compared.
fn check_same_inputs(event: &Event, inputs: &Inputs) -> Result<(), OptimizerError> {
    match event {
        Event::ProgramLoaded(program) if program.program_digest != inputs.program_digest() => Err(changed_program()),
        Event::RowsLoaded(rows) if rows.rows_digest != inputs.rows_digest() => Err(changed_rows()),
        _ => Ok(()),
    }
}

/// Returns the description of the run that the workspace stores.
pub(super) fn run_row<E: Engine>(run: &RunContext<'_>) -> RunRow {
    let (config, dir) = (&run.request.config, run.dir);
    let cache = CacheSettings::of(&config.cache, dir.dir(), dir.run_id());
    RunRow {
        run_id: dir.run_id().to_owned(),
        algorithm: E::NAME.to_owned(),
        config: redacted_config(config),
        config_digest: search_digest(config),
        container_url: scrub(&config.container.url),
        cache_mode: config.cache.mode.as_str().to_owned(),
        cache_namespace: cache.namespace,
        cache_path: Some(cache.path.into()),
        output_dir: config.run.output_dir.to_string(),
        run_dir: dir.dir().to_string(),
        created_at: unix_millis(),
    }
}

/// Records this process as the one that executes the run, and the documents of the container.
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

/// Acquires the run's lease in the workspace for this process. Every later write of an earlier holder is rejected.
pub(super) fn acquire_lease(workspace: &Workspace) -> Result<(), OptimizerError> {
    workspace.acquire_lease(subject())
}

fn subject() -> String {
    format!("pid {}", std::process::id())
}

//! Where a run begins: with its first events, or with whatever its log says.

use std::collections::BTreeSet;

use crate::container::Task;
use crate::workspace::{Reader, RunRow};
use synth_optimizer_core::config::{Config, search_differences, search_digest};
use synth_optimizer_core::model::answer::Observation;
use synth_optimizer_core::model::canonical::digest_of;
use synth_optimizer_core::model::engine::{Engine, Session};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    ContractVerified, Reason, RunResumed, RunStarted, StopKind, TaskInfoLoaded,
};
use synth_optimizer_core::model::ids::RequestId;
use synth_optimizer_core::model::program::Inputs;

/// A session and what it has to store first.
pub(super) struct Begun<'e, E: Engine> {
    pub(super) session: Session<'e, E>,
    pub(super) events: Vec<Event>,
    pub(super) next_sequence: u64,
    pub(super) elapsed_before: u64,
    /// Requests that an earlier process sent and that have no answer.
    pub(super) unanswered: BTreeSet<RequestId>,
    /// Requests whose answers wait in the stored inbox.
    pub(super) waiting: BTreeSet<RequestId>,
}

/// Refuses to go on with a run that was another search.
pub(super) fn check_same_search(stored: &RunRow, config: &Config, algorithm: &str) -> Result<(), OptimizerError> {
    if stored.algorithm == algorithm && stored.config_digest == search_digest(config) {
        return Ok(());
    }
    let mut differences = search_differences(&stored.config, config);
    if stored.algorithm != algorithm {
        differences.insert(0, format!("algorithm: {} -> {algorithm}", stored.algorithm));
    }
    let message = format!("run {} was begun with another configuration: {}", stored.run_id, differences.join("; "));
    Err(OptimizerError::new(ErrorCode::Config, message)
        .with_hint("Put the named fields back, or choose another run.run_id; a shared cache.path and cache.namespace keep what was paid for."))
}

/// A new run: its first events up to the first requests.
pub(super) fn begin<'e, E: Engine>(
    engine: &'e E,
    started: RunStarted,
    task: &Task,
) -> Result<Begun<'e, E>, OptimizerError> {
    let mut session = Session::new(engine);
    let mut events = session.open(started);
    events.extend(told(task));
    events.extend(session.observe(&Observation::Begin)?);
    Ok(Begun {
        session,
        events,
        next_sequence: 0,
        elapsed_before: 0,
        unanswered: BTreeSet::new(),
        waiting: BTreeSet::new(),
    })
}

/// What the container told before the search.
fn told(task: &Task) -> Vec<Event> {
    let contract = &task.contract;
    let mut events = vec![
        Event::ContractVerified(ContractVerified {
            version: contract.version.clone(),
            dialects: contract.routes.dialects(),
            rollout_modes: contract.rollout_modes.clone(),
            routes: contract.routes.named(),
        }),
        match &task.task_info {
            Ok(info) => Event::TaskInfoLoaded(TaskInfoLoaded { digest: digest_of(info) }),
            Err(reason) => Event::TaskInfoMissing(Reason { reason: reason.clone() }),
        },
    ];
    events.extend(task.mapping.clone().map(Event::RowsMapped));
    events
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

//! The list of all events: every type with its stable name, its volatile fields and its message.

use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::canonical::write_canonical;
use super::event_fields::{self, CandidateDecided, EvaluationCompleted};

/// The properties of one event type, for readers of feeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventType {
    /// The stable name: the `type` of the event in feeds and tables.
    pub name: &'static str,
    /// Fields that may differ between two runs of one config that make the same decisions.
    pub volatile: &'static [&'static str],
    /// Whether the event only describes how the run was executed. No decision depends on it, and normalized feeds omit it.
    pub is_operational: bool,
    pub about: &'static str,
}

macro_rules! events {
    ($(
        $(#[doc = $about:literal])+
        $variant:ident($bound:tt: $fields:ident) = $wire:literal, volatile [$($volatile:literal),*] $(, $operational:ident)?
            => $message:expr;
    )+) => {
        /// One event of a run. The list of events is the source of truth about a run.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", content = "fields")]
        pub enum Event {
            $($(#[doc = $about])+ #[serde(rename = $wire)] $variant(event_fields::$fields),)+
        }

        /// Every event type.
        pub const EVENT_TYPES: &[EventType] = &[
            $(EventType {
                name: $wire,
                volatile: &[$($volatile),*],
                is_operational: events!(@operational $($operational)?),
                about: concat!($($about,)+).trim_ascii(),
            },)+
        ];

        /// Returns every event type with its documentation and the JSON Schema of its fields.
        pub fn event_catalogue() -> Value {
            let mut schemas = SchemaSettings::draft2020_12().for_serialize().into_generator();
            let events = vec![$(json!({
                "type": $wire,
                "about": concat!($($about,)+).trim_ascii(),
                "volatile": [$($volatile),*],
                "operational": events!(@operational $($operational)?),
                "fields": schemas.subschema_for::<event_fields::$fields>(),
            }),)+];
            json!({"events": events, "$defs": schemas.take_definitions(true)})
        }

        /// Returns one sentence about an event. It contains no volatile value, so normalized feeds include it.
        pub fn message(event: &Event) -> String {
            match event { $(Event::$variant($bound) => $message,)+ }
        }

        impl Event {
            /// Returns the stable name of its type, such as `candidate.accepted`.
            pub const fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $wire,)+ }
            }

            /// Returns the fields as JSON.
            pub fn fields_json(&self) -> Result<String, serde_json::Error> {
                match self { $(Self::$variant(fields) => serde_json::to_string(fields),)+ }
            }

            /// Appends the fields that are not volatile as canonical JSON. Returns whether normalized feeds contain the event.
            pub(super) fn write_stable_fields(&self, out: &mut Vec<u8>) -> Result<bool, serde_json::Error> {
                match self {
                    $(Self::$variant(fields) => {
                        write_canonical(fields, &[$($volatile),*], out)?;
                        Ok(!events!(@operational $($operational)?))
                    })+
                }
            }
        }
    };
    (@operational operational) => { true };
    (@operational) => { false };
}

events! {
    /// The run started, with this config and random seed.
    RunStarted(run: RunStarted) = "gepa.run.started", volatile ["container_url"]
        => format!("run started with random seed {}", run.seed);
    /// The run moved along its lifecycle.
    StateTransitioned(change: StateTransitioned) = "optimizer.state.transitioned", volatile []
        => format!("{} -> {}", change.from.as_str(), change.to.as_str());
    /// The container's contract was read: version, dialect and routes.
    ContractVerified(contract: ContractVerified) = "container.contract.verified", volatile []
        => format!("container speaks {} ({})", contract.version, contract.dialects.join(" and "));
    /// The container describes its task.
    TaskInfoLoaded(_: TaskInfoLoaded) = "container.task_info.loaded", volatile []
        => "the container describes its task".to_owned();
    /// The container does not describe its task. The description is optional.
    TaskInfoMissing(_: Reason) = "container.task_info.missing", volatile ["reason"]
        => "the container does not describe its task".to_owned();
    /// The config names rows by row number and the container by task id: the id of each row number.
    RowsMapped(map: RowsMapped) = "dataset.seeds.mapped", volatile []
        => format!("{} row numbers mapped to task ids", map.train.len() + map.heldout.len());
    /// The program and its mutable fields were loaded.
    ProgramLoaded(program: ProgramLoaded) = "container.program.loaded", volatile []
        => format!("program {} with fields {}", program.program_id, program.target_fields.join(", "));
    /// The rows were loaded.
    RowsLoaded(rows: RowsLoaded) = "dataset.rows.loaded", volatile []
        => format!("{} train rows, {} held-out rows", rows.train_rows, rows.heldout_rows);
    /// The objectives of the run, with their directions.
    ObjectiveSetDeclared(set: ObjectiveSetDeclared) = "objective_set.declared", volatile []
        => format!("{} decides", set.selection_objective);
    /// A candidate was registered after it passed every check that needs no rollout.
    CandidateRegistered(candidate: CandidateRegistered) = "candidate.registered", volatile []
        => format!("candidate {} registered ({}){}", candidate.candidate_id, candidate.operation.as_str(),
            without(&candidate.dropped_fields));
    /// Rollouts were requested: one call per row, numbered from `first_call_id`.
    RolloutsRequested(batch: RolloutsRequested) = "rollout.requested", volatile []
        => format!("{} of {} for {}", counted(batch.row_ids.len(), "rollout"), batch.candidate_id,
            batch.stage.as_str());
    /// A rollout returned a score.
    RolloutFinished(rollout: RolloutFinished) = "rollout.finished", volatile ["cached", "trace_digest"]
        => format!("{} on {}: {}", rollout.candidate_id, rollout.row_id, number(rollout.reward));
    /// A rollout failed. Its score is missing, never zero.
    RolloutFailed(rollout: RolloutFailed) = "rollout.failed", volatile ["cached", "message"]
        => {
            let next = if rollout.retried { "; trying again" } else { "; no score" };
            format!("{} on {}: {}{next}", rollout.candidate_id, rollout.row_id, rollout.class.as_str())
        };
    /// The initial candidate was evaluated on the train rows.
    SeedEvaluated(done: EvaluationCompleted) = "candidate.evaluated", volatile [] => evaluated("seed evaluated", done);
    /// The parent was measured on the rows of a generation.
    ReferenceCompleted(done: EvaluationCompleted) = "parent_minibatch_reference.completed", volatile []
        => evaluated("parent evaluated on the minibatch", done);
    /// A candidate was screened on the minibatch.
    MinibatchEvaluated(done: EvaluationCompleted) = "candidate.minibatch_evaluated", volatile []
        => evaluated("screened", done);
    /// A candidate was evaluated on the train rows.
    FullTrainEvaluated(done: EvaluationCompleted) = "candidate.full_train_evaluated", volatile []
        => evaluated("fully evaluated", done);
    /// A candidate passed its screening and gets a full evaluation.
    CandidatePromoted(decision: CandidateDecided) = "candidate.promoted", volatile [] => decided("promoted", decision);
    /// A candidate was accepted.
    CandidateAccepted(decision: CandidateDecided) = "candidate.accepted", volatile [] => decided("accepted", decision);
    /// A candidate lost a comparison.
    CandidateRejected(decision: CandidateDecided) = "candidate.rejected", volatile [] => decided("rejected", decision);
    /// A candidate was deferred: there was not enough evidence for a decision.
    CandidateDeferred(deferred: CandidateDeferred) = "candidate.deferred", volatile []
        => format!("{} deferred: {}", deferred.candidate_id, deferred.reason.as_str());
    /// A candidate was superseded: its change is part of another candidate, or its sprint is over.
    CandidateSuperseded(superseded: CandidateSuperseded) = "candidate.superseded", volatile []
        => format!("{} superseded: {}", superseded.candidate_id, superseded.reason);
    /// The kind of search was chosen.
    SearchChosen(choice: SearchChosen) = "search.chosen", volatile []
        => format!("{} search: {}", choice.search.as_str(), choice.reason);
    /// Repeated rollouts were compared, to learn whether scores are noisy.
    NoiseMeasured(noise: NoiseMeasured) = "noise.measured", volatile []
        => match (noise.pairs, noise.is_noisy) {
            (0, _) => "scores are treated as noisy, because no rollout was repeated".to_owned(),
            (pairs, true) => format!("scores are noisy: {} of {pairs} repeated rollouts differ", noise.differing),
            (pairs, false) => format!("scores repeat exactly in {}", counted(pairs as usize, "repeated rollout")),
        };
    /// The number of generations that may be in progress at the same time changed.
    WindowChanged(window: WindowChanged) = "window.changed", volatile []
        => format!("at most {} at the same time: {}", counted(window.generations as usize, "generation"), window.reason);
    /// The next proposals start from another candidate.
    HeadMoved(moved: HeadMoved) = "head.moved", volatile []
        => format!("{} is the head of sprint {}, {} after the best candidate", moved.candidate_id, moved.sprint,
            counted(moved.steps as usize, "change"));
    /// Rollouts of a repeat, a glance or a check are complete.
    MeasurementCompleted(done: MeasurementCompleted) = "measurement.completed", volatile []
        => format!("{} measured on {} for {}", done.candidate_id, counted(done.rows as usize, "row"), done.stage.as_str());
    /// A check of the sprint started: head and best candidate on the same rows.
    CheckStarted(check: CheckStarted) = "check.started", volatile []
        => format!("check {} of {} against {} after {}", check.check, check.head_id, check.anchor_id,
            counted(check.steps as usize, "change"));
    /// A check of the sprint was decided.
    CheckDecided(check: CheckDecided) = "check.decided", volatile []
        => format!("check {} {}: {}", check.check, check.verdict.as_str(), check.reason);
    /// A generation started, with these parents, rows and components.
    GenerationStarted(generation: GenerationStarted) = "generation.started", volatile []
        => {
            let parents: Vec<&str> = generation.parent_ids.iter().map(|id| id.as_str()).collect();
            let operation = generation.operation.as_str();
            format!("generation {} ({operation}) from {}", generation.generation, parents.join(" and "))
        };
    /// A minibatch was skipped because its parent has nothing to gain on it.
    MinibatchSkipped(skip: MinibatchSkipped) = "minibatch.skipped", volatile []
        => format!("{} has nothing to gain on these {} rows; drawing again", skip.parent_id, skip.rows);
    /// A proposer turn was requested.
    ProposerStarted(turn: ProposerStarted) = "proposer.started", volatile []
        => if turn.problems.is_empty() {
            format!("requested {} for generation {}", counted(turn.proposal_count as usize, "proposal"), turn.generation)
        } else {
            format!("requested the repair of {} for generation {}", counted(turn.problems.len(), "problem"), turn.generation)
        };
    /// The proposer answered.
    ProposerCompleted(turn: ProposerCompleted) = "proposer.completed", volatile ["cached"]
        => format!("{} for generation {}", counted(turn.proposal_count as usize, "proposal"), turn.generation);
    /// A proposer turn failed.
    ProposerFailed(turn: ProposerFailed) = "proposer.failed", volatile ["cached", "message"]
        => {
            let next = if turn.retried { "; trying again" } else { "" };
            format!("proposer {} for generation {}{next}", turn.class.as_str(), turn.generation)
        };
    /// A proposal was rejected because it violates a rule. No rollout was spent on it.
    ProposalRejected(rejected: ProposalRejected) = "proposal.rejected", volatile []
        => {
            let codes: Vec<&str> = rejected.problems.iter().map(|problem| problem.code.as_str()).collect();
            format!("proposal {} of generation {} rejected: {}", rejected.index, rejected.generation, codes.join(", "))
        };
    /// A proposal was skipped because it repeats a known candidate. No rollout was spent on it.
    DuplicateSkipped(skip: DuplicateSkipped) = "candidate.duplicate_skipped", volatile []
        => format!("proposal {} repeats {}", skip.index, skip.candidate_id);
    /// A candidate repeats text of train rows, and `gepa.leakage.policy` is `warn`.
    LeakageDetected(leak: LeakageDetected) = "candidate.leakage_detected", volatile []
        => format!("{} repeats {} characters of row {} in {}", leak.candidate_id, leak.chars, leak.row_id, leak.field);
    /// The frontier changed.
    FrontierUpdated(update: FrontierUpdated) = "frontier.updated", volatile []
        => format!("{} holds {} cells; frontier of {}", update.candidate_id, update.cells_won, update.size);
    /// A generation completed.
    GenerationCompleted(done: GenerationCompleted) = "generation.completed", volatile []
        => {
            let best = done.best_train_score.map_or("unknown".to_owned(), |score| number(score.mean));
            let (accepted, registered) = (done.accepted, done.registered);
            format!("generation {} done: {accepted} of {registered} accepted, best {best}", done.generation)
        };
    /// A limit refused work that the search needed.
    BudgetRefused(refused: BudgetRefused) = "budget.refused", volatile []
        => {
            let (available, limited) = (refused.available, refused.dimension.as_str());
            format!("{available} of {limited} left, {} required for {}", refused.required, refused.purpose)
        };
    /// So many rollouts failed that the search stops.
    CircuitBreakerTripped(breaker: CircuitBreakerTripped) = "rollout.circuit_breaker.tripped", volatile []
        => format!("{} of the last {} rows failed", breaker.failures, breaker.window);
    /// A stop rule ended the search.
    StopDecided(stop: StopDecided) = "gepa.stop", volatile []
        => format!("search ends: {}", stop.stopped_by.kind.as_str());
    /// A control request asked the run to finish early.
    StopRequested(_: Reason) = "gepa.stop.requested", volatile [] => "early finish requested".to_owned();
    /// A control request cancelled the run.
    CancelRequested(_: Reason) = "gepa.cancel.requested", volatile [] => "cancel requested".to_owned();
    /// Something that the run needs is broken, so the run fails.
    FailureRaised(failure: Failure) = "gepa.failure.raised", volatile ["hint", "message"]
        => format!("the run cannot continue: {}", failure.code.as_str());
    /// The proposer is ready, with this program, version, model and sandbox.
    ProposerReady(ready: ProposerReady) = "proposer.ready", volatile [], operational
        => format!("proposer {} with {}", format!("{} {}", ready.backend, ready.version).trim_end(), ready.model);
    /// A new process resumed the run.
    RunResumed(resumed: RunResumed) = "run.resumed", volatile [], operational
        => {
            let (waiting, unknown) = (resumed.waiting_answers, resumed.unknown_outcomes);
            format!("resumed after {} events; {waiting} answers in the inbox, {unknown} unknown outcomes", resumed.stored_events)
        };
    /// The process saved the run and stopped working on it. The run can be resumed.
    RunInterrupted(_: Reason) = "run.interrupted", volatile [], operational
        => "interrupted; the run can be resumed".to_owned();
    /// A sent call has no answer, and its outcome cannot be determined: a crash or an outage lost it. It is charged like a
    /// call that ran, and sent again.
    OutcomeUnknown(lost: OutcomeUnknown) = "call.outcome_unknown", volatile [], operational
        => format!("the outcome of {} call {} is unknown; it is charged and sent again", lost.kind.as_str(), lost.call_id.0);
    /// The container or the proposer is unavailable. The run waits and tries again.
    RunWaiting(waiting: RunWaiting) = "run.waiting", volatile [], operational
        => format!("waiting for the {}", waiting.waiting_for.as_str());
    /// The container or the proposer is available again.
    WaitingEnded(ended: WaitingEnded) = "run.waiting.ended", volatile [], operational
        => format!("the {} is available again", ended.waiting_for.as_str());
    /// The container does not support the configured submission mode.
    TransportFallback(fallback: TransportFallback) = "rollout.transport.fallback", volatile [], operational
        => format!("rollouts are sent {} instead of {}", fallback.effective, fallback.requested);
    /// The limit of concurrent rollouts was adjusted to the container's load.
    ConcurrencyAdjusted(change: ConcurrencyAdjusted) = "rollout.concurrency.adjusted", volatile [], operational
        => {
            let because = change.status.map_or(String::new(), |status| format!(", because the container answered {status}"));
            format!("{} of {} rollouts at once{because}", change.new_limit, change.workers)
        };
    /// The container does not report which row it ran, so the row cannot be verified.
    EchoMissing(_: Reason) = "container.echo.missing", volatile [], operational
        => "the container does not report which row it ran".to_owned();
    /// The JSON of a reply is not readable for every reader, so a changed form is stored.
    ReplyAltered(reply: ReplyAltered) = "container.reply.altered", volatile [], operational
        => format!("the reply to call {} was altered: {}", reply.call_id.0, reply.changes);
    /// The container reports usage that cannot be true, which counts as unknown. Recorded once by each process.
    UsageRefused(_: Reason) = "container.usage.refused", volatile [], operational
        => "the container reports usage that cannot be true; it counts as unknown".to_owned();
    /// A cache entry cannot be read or belongs to another request, and the call is sent again.
    CacheDamaged(damage: CacheDamaged) = "cache.damaged", volatile [], operational
        => format!("a cached answer of {} is damaged; the call is sent again", damage.boundary);
    /// The running time was measured, for a time limit.
    ClockObserved(_: ClockObserved) = "clock.observed", volatile [], operational => "clock".to_owned();
    /// The held-out evaluation of these candidates started.
    HeldoutStarted(chosen: HeldoutChosen) = "heldout.started", volatile []
        => format!("{} on {} held-out rows", counted(chosen.candidate_ids.len(), "candidate"), chosen.rows);
    /// The budget is too small to measure these candidates on held-out rows.
    HeldoutPartial(chosen: HeldoutChosen) = "heldout.partial", volatile []
        => format!("the budget does not cover {} on held-out rows", counted(chosen.candidate_ids.len(), "candidate"));
    /// The held-out evaluation was skipped.
    HeldoutSkipped(_: Reason) = "heldout.skipped", volatile [] => "no held-out evaluation".to_owned();
    /// A candidate was measured on held-out rows.
    HeldoutCompleted(done: EvaluationCompleted) = "heldout.completed", volatile []
        => evaluated("evaluated on held-out rows", done);
    /// The run completed.
    RunFinished(run: RunFinished) = "gepa.run.finished", volatile ["bill", "rollouts"]
        => format!("run completed with {}", run.best_candidate_id);
    /// The run failed. The log keeps every answer that arrived.
    RunFailed(run: RunFailed) = "gepa.run.failed", volatile ["bill", "hint", "message", "rollouts"]
        => format!("run failed: {}", run.error_code.as_str());
    /// The run was cancelled. The log keeps every answer that arrived.
    RunCancelled(_: RunCancelled) = "gepa.run.cancelled", volatile ["bill", "rollouts"] => "run cancelled".to_owned();
}

/// `1 rollout`, `2 rollouts`
pub fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn evaluated(what: &str, done: &EvaluationCompleted) -> String {
    let failed = if done.failed > 0 { format!(", {} failed", done.failed) } else { String::new() };
    match &done.score {
        Some(score) => format!("{} {what}: {} on {} rows{failed}", done.candidate_id, number(score.mean), score.n),
        None => format!("{} {what}: no score on {} rows{failed}", done.candidate_id, done.rows),
    }
}

fn decided(what: &str, decision: &CandidateDecided) -> String {
    let delta = decision
        .comparison
        .as_ref()
        .map_or(String::new(), |found| format!(" ({:+.4} on {} rows)", found.primary_delta, found.rows));
    let detail = decision.detail.as_ref().map_or(String::new(), |detail| format!(": {detail}"));
    format!("{} {what}: {}{delta}{detail}", decision.candidate_id, decision.reason)
}

/// `, without its change of a, b, which was not requested`; empty if there are no fields.
pub fn without(dropped: &[String]) -> String {
    match dropped {
        [] => String::new(),
        fields => format!(", without its change of {}, which was not requested", fields.join(", ")),
    }
}

fn number(value: f64) -> String {
    format!("{value:.4}")
}

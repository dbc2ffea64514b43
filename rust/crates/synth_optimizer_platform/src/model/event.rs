//! THE list of events: every type, its stable wire name, and which of its fields are volatile.

use serde::{Deserialize, Serialize};

use super::canonical::write_canonical;
use super::event_fields::{
    BudgetRefused, CacheDamaged, CandidateDecided, CandidateDeferred, CandidateRegistered, CircuitBreakerTripped,
    ClockObserved, ConcurrencyAdjusted, ContractVerified, DuplicateSkipped, EvaluationCompleted, Failure,
    FrontierUpdated, GenerationCompleted, GenerationStarted, HeldoutChosen, LeakageDetected, MinibatchSkipped,
    ObjectiveSetDeclared, ProgramLoaded, ProposalRejected, ProposerCompleted, ProposerFailed, ProposerReady,
    ProposerStarted, Reason, RolloutFailed, RolloutFinished, RolloutsRequested, RowsLoaded, RowsMapped, RunEnded,
    RunFailed, RunFinished, RunResumed, RunStarted, StateTransitioned, StopDecided, TaskInfoLoaded, TransportFallback,
};

/// What a reader of feeds needs to know about one event type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventType {
    pub wire: &'static str,
    /// Fields that may differ between two runs of one config without any decision being different.
    pub volatile: &'static [&'static str],
    /// Whether the event tells only how the run was carried out: no decision rests on it, normalized feeds leave it out.
    pub aside: bool,
    pub about: &'static str,
}

macro_rules! events {
    ($($(#[doc = $about:literal])+ $variant:ident($fields:ident) = $wire:literal, volatile [$($volatile:literal),*] $(, $aside:ident)?;)+) => {
        /// One thing that happened. The list of these is the truth about a run.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", content = "fields")]
        pub enum Event {
            $($(#[doc = $about])+ #[serde(rename = $wire)] $variant($fields),)+
        }

        /// Every event type.
        pub const EVENT_TYPES: &[EventType] = &[
            $(EventType {
                wire: $wire,
                volatile: &[$($volatile),*],
                aside: events!(@aside $($aside)?),
                about: concat!($($about,)+).trim_ascii(),
            },)+
        ];

        impl Event {
            /// The stable wire name.
            pub const fn wire(&self) -> &'static str {
                match self { $(Self::$variant(_) => $wire,)+ }
            }

            /// The fields as they stand on the wire.
            pub fn fields_json(&self) -> Result<String, serde_json::Error> {
                match self { $(Self::$variant(fields) => serde_json::to_string(fields),)+ }
            }

            /// Adds the fields that are not volatile, as canonical JSON, and tells whether normalized feeds have the event.
            pub(super) fn write_kept_fields(&self, out: &mut String) -> Result<bool, serde_json::Error> {
                match self {
                    $(Self::$variant(fields) => {
                        write_canonical(fields, &[$($volatile),*], out)?;
                        Ok(!events!(@aside $($aside)?))
                    })+
                }
            }
        }
    };
    (@aside aside) => { true };
    (@aside) => { false };
}

events! {
    /// The run exists: its config and seed.
    RunStarted(RunStarted) = "gepa.run.started", volatile ["container_url"];
    /// The run moved along its lifecycle.
    StateTransitioned(StateTransitioned) = "optimizer.state.transitioned", volatile [];
    /// The container's contract is known: version, dialect and routes.
    ContractVerified(ContractVerified) = "container.contract.verified", volatile [];
    /// The container describes its task.
    TaskInfoLoaded(TaskInfoLoaded) = "container.task_info.loaded", volatile [];
    /// The container does not describe its task, which is allowed.
    TaskInfoMissing(Reason) = "container.task_info.missing", volatile ["reason"];
    /// The config names rows by seed and the container knows task ids: which id each seed became.
    RowsMapped(RowsMapped) = "dataset.seeds.mapped", volatile [];
    /// The program and its mutable fields are known.
    ProgramLoaded(ProgramLoaded) = "container.program.loaded", volatile [];
    /// The rows are known.
    RowsLoaded(RowsLoaded) = "dataset.rows.loaded", volatile [];
    /// What is measured and which way is better.
    ObjectiveSetDeclared(ObjectiveSetDeclared) = "objective_set.declared", volatile [];
    /// A candidate exists and has passed every check that costs nothing.
    CandidateRegistered(CandidateRegistered) = "candidate.registered", volatile [];
    /// Rollouts are wanted: one request per row, numbered from `first_request`.
    RolloutsRequested(RolloutsRequested) = "rollout.requested", volatile [];
    /// A rollout gave a score.
    RolloutFinished(RolloutFinished) = "rollout.finished", volatile ["cached", "trace_digest"];
    /// A rollout gave no score. It is missing evidence, never a zero.
    RolloutFailed(RolloutFailed) = "rollout.failed", volatile ["cached", "message"];
    /// The seed has its train score.
    SeedEvaluated(EvaluationCompleted) = "candidate.evaluated", volatile [];
    /// The parent has been measured on the rows of a generation.
    ReferenceCompleted(EvaluationCompleted) = "parent_minibatch_reference.completed", volatile [];
    /// A candidate has been screened.
    MinibatchEvaluated(EvaluationCompleted) = "candidate.minibatch_evaluated", volatile [];
    /// A candidate has its train score.
    FullTrainEvaluated(EvaluationCompleted) = "candidate.full_train_evaluated", volatile [];
    /// A candidate won its screening and is worth a full evaluation.
    CandidatePromoted(CandidateDecided) = "candidate.promoted", volatile [];
    /// A candidate is accepted.
    CandidateAccepted(CandidateDecided) = "candidate.accepted", volatile [];
    /// A candidate lost a comparison.
    CandidateRejected(CandidateDecided) = "candidate.rejected", volatile [];
    /// A candidate could not be judged.
    CandidateDeferred(CandidateDeferred) = "candidate.deferred", volatile [];
    /// A generation begins: parents, rows and components are chosen.
    GenerationStarted(GenerationStarted) = "generation.started", volatile [];
    /// A minibatch was passed over because its parent has nothing to gain on it.
    MinibatchSkipped(MinibatchSkipped) = "minibatch.skipped", volatile [];
    /// A proposal is wanted.
    ProposerStarted(ProposerStarted) = "proposer.started", volatile [];
    /// The proposer answered.
    ProposerCompleted(ProposerCompleted) = "proposer.completed", volatile ["cached"];
    /// The proposer gave no answer.
    ProposerFailed(ProposerFailed) = "proposer.failed", volatile ["cached", "message"];
    /// A proposal broke a rule; no rollout was spent on it.
    ProposalRejected(ProposalRejected) = "proposal.rejected", volatile [];
    /// A proposal repeats a known candidate; no rollout was spent on it.
    DuplicateSkipped(DuplicateSkipped) = "candidate.duplicate_skipped", volatile [];
    /// A candidate repeats text of train rows, and the policy is to warn.
    LeakageDetected(LeakageDetected) = "candidate.leakage_detected", volatile [];
    /// The frontier changed.
    FrontierUpdated(FrontierUpdated) = "frontier.updated", volatile [];
    /// A generation is over.
    GenerationCompleted(GenerationCompleted) = "generation.completed", volatile [];
    /// A limit forbade work that was wanted.
    BudgetRefused(BudgetRefused) = "budget.refused", volatile [];
    /// So many rollouts failed that the run ends.
    CircuitBreakerTripped(CircuitBreakerTripped) = "rollout.circuit_breaker.tripped", volatile [];
    /// A stop rule fired.
    StopDecided(StopDecided) = "gepa.stop", volatile [];
    /// Somebody asked for an early finish.
    StopRequested(Reason) = "gepa.stop.requested", volatile [];
    /// Somebody cancelled the run.
    CancelRequested(Reason) = "gepa.cancel.requested", volatile [];
    /// Something broke that the run cannot go on without.
    FailureRaised(Failure) = "gepa.failure.raised", volatile ["message"];
    /// The proposer is there and can work: which program, version, model and sandbox.
    ProposerReady(ProposerReady) = "proposer.ready", volatile [], aside;
    /// The run goes on in a new process.
    RunResumed(RunResumed) = "run.resumed", volatile [], aside;
    /// The process lets go of the run; it can be resumed.
    RunInterrupted(Reason) = "run.interrupted", volatile [], aside;
    /// The container cannot do what was asked of the transport.
    TransportFallback(TransportFallback) = "rollout.transport.fallback", volatile [], aside;
    /// The number of rollouts at once follows the container's load.
    ConcurrencyAdjusted(ConcurrencyAdjusted) = "rollout.concurrency.adjusted", volatile [], aside;
    /// The container does not say which row it ran, so that the row cannot be checked.
    EchoMissing(Reason) = "container.echo.missing", volatile [], aside;
    /// A row of the cache is damaged; the call was made again.
    CacheDamaged(CacheDamaged) = "cache.damaged", volatile [], aside;
    /// The clock was looked at, for a time limit.
    ClockObserved(ClockObserved) = "clock.observed", volatile [], aside;
    /// The candidates that are measured on held-out rows are chosen.
    HeldoutStarted(HeldoutChosen) = "heldout.started", volatile [];
    /// The budget does not reach for every candidate that should be measured on held-out rows.
    HeldoutPartial(HeldoutChosen) = "heldout.partial", volatile [];
    /// Nothing is measured on held-out rows.
    HeldoutSkipped(Reason) = "heldout.skipped", volatile [];
    /// A candidate has its held-out score.
    HeldoutCompleted(EvaluationCompleted) = "heldout.completed", volatile [];
    /// The run ended well.
    RunFinished(RunFinished) = "gepa.run.finished", volatile ["bill"];
    /// The run ended with an error; what was paid for is kept.
    RunFailed(RunFailed) = "gepa.run.failed", volatile ["bill", "message"];
    /// The run was cancelled; what was paid for is kept.
    RunCancelled(RunEnded) = "gepa.run.cancelled", volatile ["bill"];
}

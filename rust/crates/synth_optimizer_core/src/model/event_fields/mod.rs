//! The fields of each event, as they stand on the wire.

mod run;
mod search;

pub use run::{
    Bill, BudgetRefused, CacheDamaged, CircuitBreakerTripped, ClockObserved, ConcurrencyAdjusted, ContractVerified,
    Failure, NamedScore, ProgramLoaded, ProposerReady, Reason, RolloutCount, RowsLoaded, RowsMapped, RunEnded,
    RunFailed, RunFinished, RunResumed, RunStarted, StateTransitioned, StopDecided, StopKind, StoppedBy,
    TaskInfoLoaded, TransportFallback,
};
pub use search::{
    CandidateDecided, CandidateDeferred, CandidateRegistered, CarriedFailure, CellWon, DuplicateSkipped,
    EvaluationCompleted, FrontierUpdated, GenerationCompleted, GenerationStarted, HeldoutChosen, LeakageDetected,
    MinibatchSkipped, Objective, ObjectiveSetDeclared, Operation, ParentSelection, Problem, ProposalRejected,
    ProposerCompleted, ProposerFailed, ProposerStarted, RolloutFailed, RolloutFinished, RolloutsRequested, Stage,
    TurnModels,
};

impl schemars::JsonSchema for super::usage::Cost {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Cost".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"description": "Dollars; null is unknown.", "type": ["number", "null"]})
    }
}

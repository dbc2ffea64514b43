//! The lifecycles of runs, run requests and candidates as transition tables. No other transition is legal.

use std::fmt::{Debug, Display};

use super::error::{ErrorCode, OptimizerError};
use crate::string_enum;

/// One row of a transition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition<S, T> {
    pub from: S,
    pub trigger: T,
    pub to: S,
}

/// A lifecycle, defined by its transition table.
pub trait Lifecycle: Copy + Eq + Debug + Display + 'static {
    type Trigger: Copy + Eq + Debug + Display + 'static;
    const INITIAL: Self;
    const STATES: &'static [Self];
    const TABLE: &'static [Transition<Self, Self::Trigger>];

    /// Returns the state that a trigger leads to. Fails if the table has no such transition.
    fn next(self, trigger: Self::Trigger) -> Result<Self, OptimizerError> {
        let row = Self::TABLE.iter().find(|row| row.from == self && row.trigger == trigger);
        row.map(|row| row.to).ok_or_else(|| {
            let message = format!("{trigger} is not possible in state {self}");
            OptimizerError::new(ErrorCode::StateTransition, message)
        })
    }

    /// Returns whether no transition leaves the state.
    fn is_final(self) -> bool {
        !Self::TABLE.iter().any(|row| row.from == self)
    }

    /// Returns the table as a Mermaid state diagram.
    fn diagram() -> String {
        let first = format!("stateDiagram-v2\n    [*] --> {}\n", Self::INITIAL);
        let rows = Self::TABLE.iter().map(|row| format!("    {} --> {}: {}\n", row.from, row.to, row.trigger));
        let ends = Self::STATES.iter().filter(|state| state.is_final()).map(|state| format!("    {state} --> [*]\n"));
        std::iter::once(first).chain(rows).chain(ends).collect()
    }
}

macro_rules! lifecycle {
    ($state:ident, $trigger:ident, $initial:ident, { $($($from:ident)|+ + $by:ident => $to:ident;)+ }) => {
        impl Lifecycle for $state {
            type Trigger = $trigger;
            const INITIAL: Self = Self::$initial;
            const STATES: &'static [Self] = &Self::ALL;
            const TABLE: &'static [Transition<Self, $trigger>] = &[
                $($(Transition { from: Self::$from, trigger: $trigger::$by, to: Self::$to },)+)+
            ];
        }

        impl Default for $state {
            fn default() -> Self {
                Self::INITIAL
            }
        }
    };
}

string_enum! {
    /// The state of a run.
    RunState {
        Created = "created",
        Initializing = "initializing",
        Ready = "ready",
        Proposing = "proposing",
        RolloutQueueing = "rollout_queueing",
        RolloutRunning = "rollout_running",
        Evaluating = "evaluating",
        Paused = "paused",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
    /// A trigger of a run's transition.
    RunTrigger {
        RunStarted = "run_started",
        ContainerReady = "container_ready",
        ProposerStarted = "proposer_started",
        ProposerFinished = "proposer_finished",
        RolloutsQueued = "rollouts_queued",
        RolloutsStarted = "rollouts_started",
        RolloutsFinished = "rollouts_finished",
        EvaluationFinished = "evaluation_finished",
        PauseRequested = "pause_requested",
        ResumeRequested = "resume_requested",
        CancelRequested = "cancel_requested",
        FailureRaised = "failure_raised",
        RunCompleted = "run_completed",
    }
}

lifecycle! {
    RunState, RunTrigger, Created, {
        Created + RunStarted => Initializing;
        Initializing + ContainerReady => Ready;
        Ready + ProposerStarted => Proposing;
        Ready + RolloutsQueued => RolloutQueueing;
        Ready + RunCompleted => Completed;
        Proposing + ProposerFinished => Ready;
        Proposing + RolloutsQueued => RolloutQueueing;
        RolloutQueueing + RolloutsStarted => RolloutRunning;
        RolloutRunning + RolloutsFinished => Evaluating;
        Evaluating + EvaluationFinished => Ready;
        Ready | Proposing | RolloutRunning + PauseRequested => Paused;
        Paused + ResumeRequested => Ready;
        Created | Initializing | Ready | Proposing | RolloutQueueing | RolloutRunning | Evaluating | Paused
            + FailureRaised => Failed;
        Created | Initializing | Ready | Proposing | RolloutQueueing | RolloutRunning | Evaluating | Paused
            + CancelRequested => Cancelled;
    }
}

string_enum! {
    /// The state of a run request in the queue.
    RequestState {
        Queued = "queued",
        Leased = "leased",
        Running = "running",
        Paused = "paused",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
    /// A trigger of a run request's transition.
    RequestTrigger {
        Claim = "claim",
        Start = "start",
        Complete = "complete",
        Fail = "fail",
        Cancel = "cancel",
        Pause = "pause",
        Resume = "resume",
        LeaseExpired = "lease_expired",
        /// The timeout of a pause has passed. A pause without a timeout never expires.
        PauseExpired = "pause_expired",
        /// The worker gives up its lease, so that another worker can continue.
        Release = "release",
    }
}

lifecycle! {
    RequestState, RequestTrigger, Queued, {
        Queued + Claim => Leased;
        Leased + Start => Running;
        Running + Complete => Completed;
        Leased | Running + Fail => Failed;
        Queued | Leased | Running | Paused + Cancel => Cancelled;
        Queued | Leased | Running + Pause => Paused;
        Paused + Resume => Queued;
        Leased | Running + LeaseExpired => Queued;
        Leased | Running + Release => Queued;
        Paused + PauseExpired => Cancelled;
    }
}

string_enum! {
    /// The state of a candidate.
    CandidateStatus {
        Registered = "registered",
        MinibatchEvaluated = "minibatch_evaluated",
        RejectedMinibatch = "rejected_minibatch",
        FullTrainEvaluated = "full_train_evaluated",
        Accepted = "accepted",
        RejectedFullTrain = "rejected_full_train",
        DeferredBudget = "deferred_budget",
        DeferredFailures = "deferred_failures",
        DeferredStop = "deferred_stop",
        Superseded = "superseded",
    }
    /// A trigger of a candidate's transition.
    CandidateTrigger {
        MinibatchDone = "minibatch_done",
        MinibatchLost = "minibatch_lost",
        FullTrainDone = "full_train_done",
        Accept = "accept",
        FullTrainLost = "full_train_lost",
        /// A limit refused the rollouts that it needs.
        BudgetRefused = "budget_refused",
        /// Too many of its rollouts failed.
        TooManyFailures = "too_many_failures",
        /// The search ended before the decision about it.
        RunStopped = "run_stopped",
        /// Another candidate was decided in its place, or its sprint is over.
        Supersede = "supersede",
    }
}

lifecycle! {
    CandidateStatus, CandidateTrigger, Registered, {
        Registered + MinibatchDone => MinibatchEvaluated;
        Registered + FullTrainDone => FullTrainEvaluated;
        Registered + BudgetRefused => DeferredBudget;
        Registered + RunStopped => DeferredStop;
        Registered + Supersede => Superseded;
        MinibatchEvaluated + MinibatchLost => RejectedMinibatch;
        MinibatchEvaluated + FullTrainDone => FullTrainEvaluated;
        MinibatchEvaluated + BudgetRefused => DeferredBudget;
        MinibatchEvaluated + TooManyFailures => DeferredFailures;
        MinibatchEvaluated + RunStopped => DeferredStop;
        MinibatchEvaluated + Supersede => Superseded;
        FullTrainEvaluated + Accept => Accepted;
        FullTrainEvaluated + FullTrainLost => RejectedFullTrain;
        FullTrainEvaluated + BudgetRefused => DeferredBudget;
        FullTrainEvaluated + TooManyFailures => DeferredFailures;
        FullTrainEvaluated + RunStopped => DeferredStop;
    }
}

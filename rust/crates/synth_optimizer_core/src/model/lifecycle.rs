//! Lifecycles as constant tables: a run, a request and a candidate move only along the rows written here.

use std::fmt::Write;

use super::error::{ErrorCode, OptimizerError};
use crate::words;

/// One row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition<S, T> {
    pub from: S,
    pub trigger: T,
    pub to: S,
}

/// A lifecycle: its table gives legality, finality and a diagram.
pub trait Lifecycle: Copy + Eq + std::fmt::Debug + 'static {
    type Trigger: Copy + Eq + std::fmt::Debug + 'static;
    const INITIAL: Self;
    const STATES: &'static [Self];
    const TABLE: &'static [Transition<Self, Self::Trigger>];

    fn state_word(self) -> &'static str;
    fn trigger_word(trigger: Self::Trigger) -> &'static str;

    /// The state that a trigger leads to.
    fn next(self, trigger: Self::Trigger) -> Result<Self, OptimizerError> {
        Self::TABLE.iter().find(|row| row.from == self && row.trigger == trigger).map(|row| row.to).ok_or_else(|| {
            OptimizerError::new(
                ErrorCode::StateTransition,
                format!("{} is not possible in state {}", Self::trigger_word(trigger), self.state_word()),
            )
        })
    }

    /// Whether nothing leads out of the state.
    fn is_final(self) -> bool {
        !Self::TABLE.iter().any(|row| row.from == self)
    }

    /// The table as a Mermaid state diagram.
    fn diagram() -> String {
        let mut out = String::from("stateDiagram-v2\n");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "    [*] --> {}", Self::INITIAL.state_word());
        for row in Self::TABLE {
            let _ = writeln!(
                out,
                "    {} --> {}: {}",
                row.from.state_word(),
                row.to.state_word(),
                Self::trigger_word(row.trigger)
            );
        }
        for state in Self::STATES.iter().filter(|state| state.is_final()) {
            let _ = writeln!(out, "    {} --> [*]", state.state_word());
        }
        out
    }
}

macro_rules! lifecycle {
    ($state:ident, $trigger:ident, $initial:ident, [$($all:ident),+ $(,)?], { $($from:ident + $by:ident => $to:ident;)+ }) => {
        impl Default for $state {
            fn default() -> Self {
                Self::INITIAL
            }
        }

        impl Lifecycle for $state {
            type Trigger = $trigger;
            const INITIAL: Self = Self::$initial;
            const STATES: &'static [Self] = &[$(Self::$all,)+];
            const TABLE: &'static [Transition<Self, $trigger>] = &[
                $(Transition { from: Self::$from, trigger: $trigger::$by, to: Self::$to },)+
            ];

            fn state_word(self) -> &'static str {
                self.word()
            }

            fn trigger_word(trigger: $trigger) -> &'static str {
                trigger.word()
            }
        }
    };
}

words! {
    /// Where a run is.
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
}
words! {
    /// What moves a run.
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
    RunState, RunTrigger, Created,
    [Created, Initializing, Ready, Proposing, RolloutQueueing, RolloutRunning, Evaluating, Paused, Completed, Failed, Cancelled],
    {
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
        Ready + PauseRequested => Paused;
        Proposing + PauseRequested => Paused;
        RolloutRunning + PauseRequested => Paused;
        Paused + ResumeRequested => Ready;
        Created + FailureRaised => Failed;
        Initializing + FailureRaised => Failed;
        Ready + FailureRaised => Failed;
        Proposing + FailureRaised => Failed;
        RolloutQueueing + FailureRaised => Failed;
        RolloutRunning + FailureRaised => Failed;
        Evaluating + FailureRaised => Failed;
        Paused + FailureRaised => Failed;
        Created + CancelRequested => Cancelled;
        Initializing + CancelRequested => Cancelled;
        Ready + CancelRequested => Cancelled;
        Proposing + CancelRequested => Cancelled;
        RolloutQueueing + CancelRequested => Cancelled;
        RolloutRunning + CancelRequested => Cancelled;
        Evaluating + CancelRequested => Cancelled;
        Paused + CancelRequested => Cancelled;
    }
}

words! {
    /// Where a queued request is.
    RequestState {
        Queued = "queued",
        Leased = "leased",
        Running = "running",
        Paused = "paused",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}
words! {
    /// What moves a request.
    RequestTrigger {
        Claim = "claim",
        Start = "start",
        Complete = "complete",
        Fail = "fail",
        Cancel = "cancel",
        Pause = "pause",
        Resume = "resume",
        LeaseExpired = "lease_expired",
        PauseExpired = "pause_expired",
        /// The holder lets go of it and leaves the rest to another one.
        Release = "release",
    }
}

lifecycle! {
    RequestState, RequestTrigger, Queued,
    [Queued, Leased, Running, Paused, Completed, Failed, Cancelled],
    {
        Queued + Claim => Leased;
        Leased + Start => Running;
        Running + Complete => Completed;
        Leased + Fail => Failed;
        Running + Fail => Failed;
        Queued + Cancel => Cancelled;
        Leased + Cancel => Cancelled;
        Running + Cancel => Cancelled;
        Paused + Cancel => Cancelled;
        Queued + Pause => Paused;
        Leased + Pause => Paused;
        Running + Pause => Paused;
        Paused + Resume => Queued;
        Leased + LeaseExpired => Queued;
        Running + LeaseExpired => Queued;
        Leased + Release => Queued;
        Running + Release => Queued;
        Paused + PauseExpired => Cancelled;
    }
}

words! {
    /// Where a candidate is.
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
    }
}
words! {
    /// What moves a candidate.
    CandidateTrigger {
        MinibatchDone = "minibatch_done",
        MinibatchLost = "minibatch_lost",
        FullTrainDone = "full_train_done",
        Accept = "accept",
        FullTrainLost = "full_train_lost",
        /// A limit forbade the rollouts that it needs.
        BudgetRefused = "budget_refused",
        /// Too many of its rollouts failed.
        TooManyFailures = "too_many_failures",
        /// The search ended before it was judged.
        RunStopped = "run_stopped",
    }
}

lifecycle! {
    CandidateStatus, CandidateTrigger, Registered,
    [Registered, MinibatchEvaluated, RejectedMinibatch, FullTrainEvaluated, Accepted, RejectedFullTrain, DeferredBudget, DeferredFailures, DeferredStop],
    {
        Registered + MinibatchDone => MinibatchEvaluated;
        Registered + FullTrainDone => FullTrainEvaluated;
        Registered + BudgetRefused => DeferredBudget;
        Registered + RunStopped => DeferredStop;
        MinibatchEvaluated + MinibatchLost => RejectedMinibatch;
        MinibatchEvaluated + FullTrainDone => FullTrainEvaluated;
        MinibatchEvaluated + BudgetRefused => DeferredBudget;
        MinibatchEvaluated + TooManyFailures => DeferredFailures;
        MinibatchEvaluated + RunStopped => DeferredStop;
        FullTrainEvaluated + Accept => Accepted;
        FullTrainEvaluated + FullTrainLost => RejectedFullTrain;
        FullTrainEvaluated + BudgetRefused => DeferredBudget;
        FullTrainEvaluated + TooManyFailures => DeferredFailures;
        FullTrainEvaluated + RunStopped => DeferredStop;
    }
}

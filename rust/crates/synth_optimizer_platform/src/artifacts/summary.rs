//! A run as its log tells it: everything that the result files say is read from here.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use super::candidates::CandidateRecord;
use super::chart::{ChartData, ChartPoint, HeldoutBar};
use super::log::Each;
use crate::config::gepa::Direction;
use crate::model::answer::FailureClass;
use crate::model::envelope::rfc3339;
use crate::model::error::OptimizerError;
use crate::model::event::Event;
use crate::model::event_fields::{
    ObjectiveSetDeclared, RunEnded, RunFailed, RunFinished, StateTransitioned, StoppedBy,
};
use crate::model::ids::CandidateId;
use crate::model::lifecycle::{RunState, RunTrigger};
use crate::workspace::Stored;

/// The log of a run, summed up.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunSummary {
    /// In order of registration.
    pub candidates: Vec<CandidateRecord>,
    pub frontier: BTreeSet<CandidateId>,
    pub state_history: Vec<StateChange>,
    pub stopped_by: Option<StoppedBy>,
    /// None while the run goes on.
    pub end: Option<RunEnd>,
    pub calls: Calls,
    pub config_digest: String,
    pub seed: u64,
    /// When the last event was stored.
    pub unix_millis: u64,
    objectives: Option<ObjectiveSetDeclared>,
    places: HashMap<CandidateId, usize>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    Finished(RunFinished),
    Failed(RunFailed),
    Cancelled(RunEnded),
}

/// A step along the lifecycle of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StateChange {
    pub sequence_number: u64,
    pub from_state: RunState,
    pub to_state: RunState,
    pub trigger: RunTrigger,
    pub transition_at: String,
}

/// Calls that may have been made, from the cache or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Calls {
    pub rollout_calls: u64,
    pub proposer_calls: u64,
    pub rollouts_finished: u64,
    /// With those that were tried again.
    pub rollouts_failed: u64,
}

impl RunSummary {
    /// Reads a log; `log` shows the events from the first on.
    pub fn of(log: impl FnOnce(Each<'_>) -> Result<(), OptimizerError>) -> Result<Self, OptimizerError> {
        let mut summary = Self::default();
        log(&mut |stored| {
            summary.see(&stored);
            Ok(())
        })?;
        Ok(summary)
    }

    pub fn candidate(&self, id: &CandidateId) -> Option<&CandidateRecord> {
        self.places.get(id).and_then(|place| self.candidates.get(*place))
    }

    /// The candidate that the run returns, or would return.
    pub fn best_candidate_id(&self) -> Option<&CandidateId> {
        match self.end.as_ref()? {
            RunEnd::Finished(run) => Some(&run.best_candidate_id),
            RunEnd::Failed(run) => run.best_candidate_id.as_ref(),
            RunEnd::Cancelled(run) => run.best_candidate_id.as_ref(),
        }
    }

    /// What the score chart shows.
    pub fn chart(&self, title: &str) -> ChartData {
        let objective = self.objectives.as_ref().map_or("score", |set| set.selection_objective.as_str());
        let declared = self.objectives.iter().flat_map(|set| &set.objectives).find(|known| known.name == objective);
        let point = |candidate: &CandidateRecord| ChartPoint {
            label: candidate.candidate_id.to_string(),
            train: candidate.train_score,
            accepted: candidate.is_accepted(),
        };
        let seed = self.candidates.first().map(|seed| ("seed", &seed.candidate_id));
        let best = self
            .best_candidate_id()
            .map(|best| ("best", best))
            .filter(|(_, best)| Some(*best) != seed.map(|(_, id)| id));
        let bar = |(role, id): (&str, &CandidateId)| {
            let score = self.candidate(id)?.heldout_score?;
            Some(HeldoutBar { role: role.to_owned(), label: id.to_string(), score })
        };
        ChartData {
            title: title.to_owned(),
            objective: objective.to_owned(),
            direction: declared.map_or(Direction::Maximize, |known| known.direction),
            candidates: self.candidates.iter().map(point).collect(),
            heldout: seed.into_iter().chain(best).filter_map(bar).collect(),
        }
    }

    pub(super) fn see(&mut self, stored: &Stored) {
        self.unix_millis = stored.unix_millis;
        match &stored.event {
            Event::RunStarted(run) => {
                self.config_digest.clone_from(&run.config_digest);
                self.seed = run.seed;
            }
            Event::StateTransitioned(change) => self.moved(stored, change),
            Event::ObjectiveSetDeclared(set) => self.objectives = Some(set.clone()),
            Event::CandidateRegistered(registered) => {
                self.places.insert(registered.candidate_id.clone(), self.candidates.len());
                self.candidates.push(CandidateRecord::new(registered));
            }
            Event::RolloutFinished(rollout) => {
                self.calls.rollout_calls += 1;
                self.calls.rollouts_finished += 1;
                self.with(&rollout.candidate_id, |candidate| candidate.finished(rollout));
            }
            Event::RolloutFailed(rollout) => {
                self.calls.rollout_calls += u64::from(was_sent(rollout.class));
                self.calls.rollouts_failed += 1;
                self.with(&rollout.candidate_id, |candidate| candidate.failed(rollout));
            }
            Event::ProposerCompleted(_) => self.calls.proposer_calls += 1,
            Event::ProposerFailed(turn) => self.calls.proposer_calls += u64::from(was_sent(turn.class)),
            Event::SeedEvaluated(done) | Event::FullTrainEvaluated(done) => {
                self.with(&done.candidate_id, |candidate| candidate.evaluated(done));
            }
            Event::MinibatchEvaluated(done) => self.with(&done.candidate_id, |candidate| candidate.screened(done)),
            Event::HeldoutCompleted(done) => self.with(&done.candidate_id, |candidate| candidate.measured(done)),
            Event::CandidatePromoted(decision) => {
                self.with(&decision.candidate_id, |candidate| candidate.promoted(decision));
            }
            Event::CandidateAccepted(decision) => {
                self.with(&decision.candidate_id, |candidate| candidate.accepted(decision));
            }
            Event::CandidateRejected(decision) => {
                self.with(&decision.candidate_id, |candidate| candidate.rejected(decision));
            }
            Event::CandidateDeferred(deferred) => {
                self.with(&deferred.candidate_id, |candidate| candidate.deferred(deferred));
            }
            Event::FrontierUpdated(update) => {
                if update.joined {
                    self.frontier.insert(update.candidate_id.clone());
                }
                for left in &update.left {
                    self.frontier.remove(left);
                }
            }
            Event::StopDecided(stop) => self.stopped_by = Some(stop.stopped_by.clone()),
            Event::RunFinished(run) => self.end = Some(RunEnd::Finished(run.clone())),
            Event::RunFailed(run) => self.end = Some(RunEnd::Failed(run.clone())),
            Event::RunCancelled(run) => self.end = Some(RunEnd::Cancelled(run.clone())),
            Event::ContractVerified(_)
            | Event::TaskInfoLoaded(_)
            | Event::TaskInfoMissing(_)
            | Event::RowsMapped(_)
            | Event::ProgramLoaded(_)
            | Event::RowsLoaded(_)
            | Event::RolloutsRequested(_)
            | Event::ReferenceCompleted(_)
            | Event::GenerationStarted(_)
            | Event::MinibatchSkipped(_)
            | Event::ProposerStarted(_)
            | Event::ProposalRejected(_)
            | Event::DuplicateSkipped(_)
            | Event::LeakageDetected(_)
            | Event::GenerationCompleted(_)
            | Event::BudgetRefused(_)
            | Event::CircuitBreakerTripped(_)
            | Event::StopRequested(_)
            | Event::CancelRequested(_)
            | Event::FailureRaised(_)
            | Event::RunResumed(_)
            | Event::ProposerReady(_)
            | Event::RunInterrupted(_)
            | Event::TransportFallback(_)
            | Event::ConcurrencyAdjusted(_)
            | Event::EchoMissing(_)
            | Event::CacheDamaged(_)
            | Event::ClockObserved(_)
            | Event::HeldoutStarted(_)
            | Event::HeldoutPartial(_)
            | Event::HeldoutSkipped(_) => {}
        }
    }

    fn moved(&mut self, stored: &Stored, change: &StateTransitioned) {
        self.state_history.push(StateChange {
            sequence_number: stored.sequence,
            from_state: change.from,
            to_state: change.to,
            trigger: change.trigger,
            transition_at: rfc3339(stored.unix_millis),
        });
    }

    fn with(&mut self, id: &CandidateId, change: impl FnOnce(&mut CandidateRecord)) {
        if let Some(candidate) = self.places.get(id).and_then(|place| self.candidates.get_mut(*place)) {
            change(candidate);
        }
    }
}

/// Whether a failed call may have run.
fn was_sent(class: FailureClass) -> bool {
    match class {
        FailureClass::NotSent | FailureClass::Withdrawn => false,
        FailureClass::UnknownOutcome
        | FailureClass::Failed
        | FailureClass::Timeout
        | FailureClass::Contract
        | FailureClass::InvalidScore
        | FailureClass::Abandoned => true,
    }
}

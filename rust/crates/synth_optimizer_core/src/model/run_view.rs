//! Everything that is shown of a run, folded from its events: totals, candidates with their scores by row, lifecycle, and
//! work in flight.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::candidate_view::{Candidate, affected_candidates, final_train_scores};
use super::claim::{Claim, ClaimRules, HeldoutEvidence, MeasuredRows};
use super::envelope::rfc3339;
use super::event::{Event, message};
use super::event_fields::{
    Direction, ObjectiveSetDeclared, RolloutFailed, RolloutFinished, RunStarted, SearchMode, Stage,
};
use super::frontier_view::FrontierView;
use super::ids::{CandidateId, RowId};
use super::in_flight::InFlight;
use super::lifecycle::{RunState, RunTrigger};
use super::run_totals::{RolloutPurposes, RunTotals};
use super::score::OUTCOME_REWARD;

/// A run, folded from its log.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunView {
    pub totals: RunTotals,
    pub started: Option<RunStarted>,
    pub objectives: Option<ObjectiveSetDeclared>,
    /// In order of registration.
    pub candidates: Vec<MeasuredCandidate>,
    pub frontier_cells: FrontierView,
    pub state_history: Vec<StateChange>,
    pub in_flight: InFlight,
    /// Rollouts that count against the limits.
    pub rollouts_by_purpose: RolloutPurposes,
    /// The message of the last decision about a candidate.
    pub last_decision: Option<String>,
    /// The search that the run has chosen.
    pub search: Option<SearchMode>,
    /// The event that ended the run; `None` before.
    pub end: Option<Event>,
    /// The place of each candidate by [`CandidateId::number`], which has the order of the ids.
    index_by_number: BTreeMap<u64, usize>,
    /// The best value of each row on the selection objective.
    best_by_row: BTreeMap<RowId, f64>,
}

/// A candidate with its scores by row: an entry of `candidate_registry.json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredCandidate {
    #[serde(flatten)]
    pub candidate: Candidate,
    pub minibatch_scores: RowScores,
    /// Scores of all train rows, from every stage.
    pub train_scores: RowScores,
    pub heldout_scores: RowScores,
    /// Rows without a score after the last attempt.
    pub failed_rows: Vec<FailedRow>,
}

/// A row without a score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailedRow {
    pub example_id: RowId,
    pub evaluation_stage: Stage,
    pub failure_class: &'static str,
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

impl RunView {
    /// Applies the next event.
    pub fn apply(&mut self, sequence: u64, unix_millis: u64, event: &Event) {
        self.totals.apply(sequence, unix_millis, event);
        self.in_flight.apply(unix_millis, event);
        self.rollouts_by_purpose.count(event);
        for id in affected_candidates(event) {
            self.update_candidate(id, |known| known.candidate.apply(sequence, unix_millis, event));
        }
        for (id, score) in final_train_scores(event) {
            self.update_candidate(id, |known| known.candidate.record_final_score(score));
        }
        match event {
            Event::RunStarted(run) => self.started = Some(run.clone()),
            Event::SearchChosen(choice) => self.search = Some(choice.search),
            Event::StateTransitioned(change) => self.state_history.push(StateChange {
                sequence_number: sequence,
                from_state: change.from,
                to_state: change.to,
                trigger: change.trigger,
                transition_at: rfc3339(unix_millis),
            }),
            Event::ObjectiveSetDeclared(set) => self.objectives = Some(set.clone()),
            Event::CandidateRegistered(registered) => {
                self.index_by_number.insert(registered.candidate_id.number(), self.candidates.len());
                let candidate = Candidate::new(sequence, unix_millis, registered);
                self.candidates.push(MeasuredCandidate::new(candidate));
            }
            Event::CandidateAccepted(decision) if decision.stage != Stage::SeedFullTrain => {
                self.last_decision = Some(message(event));
            }
            Event::CandidateRejected(_) | Event::CandidateDeferred(_) => self.last_decision = Some(message(event)),
            Event::RolloutFinished(rollout) => {
                self.update_candidate(&rollout.candidate_id, |known| known.record_score(rollout))
            }
            Event::RolloutFailed(rollout) => {
                self.update_candidate(&rollout.candidate_id, |known| known.record_failure(rollout))
            }
            Event::FrontierUpdated(update) => {
                self.frontier_cells.apply(update);
                let selected = self.objectives.as_ref().map(|set| set.selection_objective.as_str());
                let cells = update.cells.iter().filter(|cell| selected == Some(cell.objective.as_str()));
                self.best_by_row.extend(cells.filter_map(|cell| Some((cell.row_id.clone()?, cell.value))));
            }
            Event::RunFinished(_) | Event::RunFailed(_) | Event::RunCancelled(_) => self.end = Some(event.clone()),
            _ => {}
        }
    }

    pub fn candidate(&self, id: &CandidateId) -> Option<&MeasuredCandidate> {
        self.index_by_number.get(&id.number()).and_then(|index| self.candidates.get(*index))
    }

    /// Returns the best candidate so far; after the run, the one that it returns.
    pub fn best(&self) -> Option<&MeasuredCandidate> {
        self.candidate(self.totals.best_candidate_id()?)
    }

    /// Returns what the held-out rows show about the result; `None` unless the run is completed. `failure_tolerance` is
    /// `gepa.rollout_failure_rate_tolerance`.
    pub fn claim(&self, failure_tolerance: f64) -> Option<Claim> {
        let Some(Event::RunFinished(run)) = &self.end else { return None };
        if let Some(claim) = &run.claim {
            return Some(Claim::clone(claim));
        }
        let (initial, preferred) = (self.candidates.first()?, self.candidate(&run.best_candidate_id)?);
        let set = self.objectives.as_ref();
        let objective = set.map_or(OUTCOME_REWARD, |set| set.selection_objective.as_str());
        let declared = set.and_then(|set| set.objectives.iter().find(|known| known.name == objective));
        let pair = |row: &RowScore| {
            let other = initial.heldout_scores.row(&row.example_id)?;
            Some((row.value(objective)?, other.value(objective)?))
        };
        let evidence = HeldoutEvidence {
            initial: initial.candidate.candidate_id.clone(),
            preferred: run.best_candidate_id.clone(),
            pairs: preferred.heldout_scores.rows().iter().filter_map(pair).collect(),
            direction: declared.map_or(Direction::Maximize, |known| known.direction),
            sides: (preferred.measured_heldout(), initial.measured_heldout()),
            tried: self.candidates.len(),
            candidates: self.candidates.iter().filter(|known| !known.heldout_scores.rows.is_empty()).count(),
            variance: 0.0,
        };
        let seed = self.started.as_ref().map_or(0, |run| run.seed);
        Some(Claim::of(&evidence, &ClaimRules { seed, failure_tolerance, returns_unproven: true }))
    }

    /// Returns the candidates on the frontier, sorted by id.
    pub fn frontier(&self) -> Vec<&Candidate> {
        let by_id = self.index_by_number.values().filter_map(|index| self.candidates.get(*index));
        by_id.map(|known| &known.candidate).filter(|candidate| candidate.on_frontier).collect()
    }

    /// Returns the mean over rows of the best value that a candidate has there.
    pub fn frontier_mean(&self) -> Option<f64> {
        let count = self.best_by_row.len();
        (count > 0).then(|| self.best_by_row.values().sum::<f64>() / count as f64)
    }

    fn update_candidate(&mut self, id: &CandidateId, change: impl FnOnce(&mut MeasuredCandidate)) {
        if let Some(known) = self.index_by_number.get(&id.number()).and_then(|index| self.candidates.get_mut(*index)) {
            change(known);
        }
    }
}

impl MeasuredCandidate {
    fn new(candidate: Candidate) -> Self {
        Self {
            candidate,
            minibatch_scores: RowScores::default(),
            train_scores: RowScores::default(),
            heldout_scores: RowScores::default(),
            failed_rows: Vec::new(),
        }
    }

    fn record_score(&mut self, rollout: &RolloutFinished) {
        if rollout.stage == Stage::Heldout {
            return self.heldout_scores.add(rollout);
        }
        if rollout.stage == Stage::CandidateMinibatch {
            self.minibatch_scores.add(rollout);
        }
        self.train_scores.add(rollout);
    }

    /// Returns how many held-out rows have a score and how many have none.
    fn measured_heldout(&self) -> MeasuredRows {
        let failed = self.failed_rows.iter().filter(|row| row.evaluation_stage == Stage::Heldout).count();
        MeasuredRows { scored: self.heldout_scores.rows.len(), failed }
    }

    fn record_failure(&mut self, rollout: &RolloutFailed) {
        if !rollout.retried {
            self.failed_rows.push(FailedRow {
                example_id: rollout.row_id.clone(),
                evaluation_stage: rollout.stage,
                failure_class: rollout.class.as_str(),
            });
        }
    }
}

/// Scores by row, in the order of their first rollout. A long run has one entry per rollout, so entries are small.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowScores {
    rows: Vec<RowScore>,
    index_by_row: BTreeMap<RowId, usize>,
}

/// The score of a row: the mean over its rollouts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowScore {
    pub example_id: RowId,
    pub reward: f64,
    pub rollouts: u32,
    #[serde(skip_serializing_if = "Objectives::is_empty")]
    pub objectives: Objectives,
}

/// Scores by objective, sorted by name. Rows share the names.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Objectives(Vec<(Arc<str>, f64)>);

impl RowScores {
    pub fn rows(&self) -> &[RowScore] {
        &self.rows
    }

    fn row(&self, id: &RowId) -> Option<&RowScore> {
        self.index_by_row.get(id).and_then(|index| self.rows.get(*index))
    }

    fn add(&mut self, rollout: &RolloutFinished) {
        let Some(known) = self.index_by_row.get(&rollout.row_id).and_then(|index| self.rows.get_mut(*index)) else {
            let objectives = Objectives::of(&rollout.objectives, self.rows.last().map(|row| &row.objectives));
            self.index_by_row.insert(rollout.row_id.clone(), self.rows.len());
            self.rows.push(RowScore {
                example_id: rollout.row_id.clone(),
                reward: rollout.reward,
                rollouts: 1,
                objectives,
            });
            return;
        };
        let before = f64::from(known.rollouts);
        let mean = |mean: f64, value: f64| (mean * before + value) / (before + 1.0);
        known.reward = mean(known.reward, rollout.reward);
        for (name, value) in &rollout.objectives {
            let entry = known.objectives.entry(name, *value);
            *entry = mean(*entry, *value);
        }
        known.rollouts += 1;
    }
}

impl RowScore {
    /// Returns the score on an objective.
    fn value(&self, objective: &str) -> Option<f64> {
        self.objectives.get(objective).or_else(|| (objective == OUTCOME_REWARD).then_some(self.reward))
    }
}

impl Objectives {
    fn get(&self, name: &str) -> Option<f64> {
        let index = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        self.0.get(index).map(|(_, value)| *value)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Builds the list. Shares the names of `template`, which usually has the same ones.
    fn of(scores: &BTreeMap<String, f64>, template: Option<&Self>) -> Self {
        let shared = |index: usize, name: &str| {
            let known = template.and_then(|template| template.0.get(index)).filter(|(known, _)| **known == *name);
            known.map_or_else(|| Arc::from(name), |(known, _)| Arc::clone(known))
        };
        Self(scores.iter().enumerate().map(|(index, (name, value))| (shared(index, name), *value)).collect())
    }

    /// Returns the score of an objective, and inserts `value` if it has none yet.
    fn entry(&mut self, name: &str, value: f64) -> &mut f64 {
        let index = match self.0.binary_search_by(|(known, _)| (**known).cmp(name)) {
            Ok(index) => index,
            Err(index) => {
                self.0.insert(index, (Arc::from(name), value));
                index
            }
        };
        &mut self.0[index].1
    }
}

impl Serialize for Objectives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (&**name, value)))
    }
}

impl Serialize for RowScores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows.serialize(serializer)
    }
}

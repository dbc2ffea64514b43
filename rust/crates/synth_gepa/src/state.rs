//! The state of the search. Only `evolve` changes it, by applying events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::budget::{Budget, Dimension, Resources, reported};
use synth_optimizer_core::model::event_fields::{
    CarriedFailure, Failure, Operation, Problem, Stage, StopKind, StoppedBy,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, HeldoutRow, Payload, RowId, TrainRow};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, RunState};
use synth_optimizer_core::model::run_totals::RunCounts;
use synth_optimizer_core::model::score::Score;
use synth_optimizer_core::model::usage::Usage;

use crate::frontier::Frontier;
use crate::outstanding::OutstandingCalls;
use crate::sprint::{CandidateSprint, Sprint};
use crate::window::Window;

/// The state of a search.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    pub run: RunState,
    pub phase: Phase,
    pub candidates: Vec<Candidate>,
    /// The index of every registered candidate by the number in its id. It is looked up for every event, so the key is
    /// small.
    pub candidate_indexes: BTreeMap<u64, u32>,
    /// Fully evaluated candidates, in the order in which they joined. The frontier refers to candidates by their index in
    /// this list.
    pub pool: Vec<u32>,
    pub best: Option<u32>,
    pub frontier: Frontier,
    pub budget: Budget,
    pub counts: RunCounts,

    pub next_call_id: u64,
    pub outstanding_calls: OutstandingCalls,

    pub evaluations: BTreeMap<CallId, Evaluation>,
    /// Evaluations whose last answer has retired and whose completion is not recorded yet.
    pub finished_evaluations: VecDeque<CallId>,

    pub generations: BTreeMap<u32, Generation>,
    pub next_generation: u32,
    pub draws: u64,

    pub window: Window,

    /// The candidate under full evaluation for which promoted candidates wait, so that they can build on it.
    pub grouped_evaluation: Option<u32>,

    /// Whether a candidate has joined the pool since the last generation started.
    pub pool_has_grown: bool,
    pub merges_due: u32,
    pub merges_built: u32,
    pub merges_tried: BTreeSet<(u32, u32, u32)>,

    pub rejected: VecDeque<CarriedFailure>,
    /// Consecutive turns without a valid proposal, and without a valid and new one.
    pub invalid_turns: u32,
    pub turns_without_candidate: u32,
    /// The first generation whose turn counts among them. Turns that ran at the same time count once, because they had the
    /// same question.
    pub turns_counted_from: u32,
    pub generations_without_improvement: u32,
    pub has_improved: bool,
    /// The largest reward so far. A reward above 1 means that 1 is not the perfect score.
    pub largest_reward: f64,

    /// The last rows with an outcome: `None` for a score, otherwise the failure of the row's last attempt.
    pub recent_rows: VecDeque<Option<RowFailure>>,
    /// Whether a rollout ended in another way than with a failure of the task. Until then, the platform sends one rollout
    /// at a time.
    pub has_other_outcome: bool,
    /// Number of attempts that ended with a failure of the task.
    pub task_failures: u32,
    /// Why the last proposer turn without a valid proposal had none.
    pub last_turn_problem: Option<String>,
    /// What sent rollouts have used, if a limit depends on it.
    pub rollout_usage: UsageMean,
    /// What answered rollouts and proposer turns have used, if a limit has no estimate.
    pub learned_rollout: UsageMaximum,
    pub learned_proposal: UsageMaximum,

    pub stop: Option<Stop>,
    pub cancel: Option<String>,
    pub heldout_queue: Vec<u32>,
    pub heldout_measured: BTreeSet<u32>,
    /// The state of a search in sprints; `None` for the reference search.
    pub sprint: Option<Sprint>,
    /// Whether the last event cannot make a new decision possible, so that `Advance` can be skipped.
    pub has_nothing_to_decide: bool,
}

/// The phase of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    #[default]
    New,
    Seed,
    Search,
    Heldout,
    Over,
}

/// Why the search ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Stop {
    pub stopped_by: StoppedBy,
    pub failure: Option<Failure>,
}

/// A row without a score after its last attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct RowFailure {
    pub class: FailureClass,
    pub row_id: RowId,
    pub message: String,
}

/// The mean usage of calls that reported it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct UsageMean {
    sum: Resources,
    /// Number of calls that reported an amount, by dimension.
    count: Resources,
}

impl UsageMean {
    pub fn add(&mut self, usage: &Usage) {
        for (dimension, amount) in reported(usage) {
            if let Some(amount) = amount {
                self.sum = self.sum.with(dimension, self.sum.get(dimension).saturating_add(amount));
                self.count = self.count.with(dimension, self.count.get(dimension) + 1);
            }
        }
    }

    /// Returns an estimate, raised to the mean where that is more.
    pub fn at_least(&self, estimate: &Resources) -> Resources {
        let dimensions = reported(&Usage::default()).map(|(dimension, _)| dimension);
        dimensions.into_iter().filter(|dimension| self.count.get(*dimension) > 0).fold(
            *estimate,
            |amount, dimension| {
                let mean = self.sum.get(dimension).div_ceil(self.count.get(dimension));
                amount.with(dimension, mean.max(estimate.get(dimension)))
            },
        )
    }
}

/// The largest usage of calls that reported it. It replaces an estimate that the configuration does not have.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct UsageMaximum {
    largest: Resources,
    /// Number of calls that reported an amount, by dimension.
    count: Resources,
    /// Number of successful calls, whether they reported an amount or not.
    pub successes: u64,
}

impl UsageMaximum {
    pub fn add(&mut self, usage: &Usage, is_success: bool) {
        self.successes += u64::from(is_success);
        for (dimension, amount) in reported(usage) {
            if let Some(amount) = amount {
                self.largest = self.largest.with(dimension, self.largest.get(dimension).max(amount));
                self.count = self.count.with(dimension, self.count.get(dimension) + 1);
            }
        }
    }

    /// Returns an estimate of the next call: the largest amount so far, and a margin that shrinks with the number of calls,
    /// from the same amount after one call. `None` if no call has reported an amount.
    pub fn estimate(&self, dimension: Dimension) -> Option<u64> {
        let (largest, count) = (self.largest.get(dimension), self.count.get(dimension));
        (count > 0).then(|| largest.saturating_add(largest.div_ceil(count)))
    }
}

/// A candidate with all of its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub id: CandidateId,
    /// Its texts, as long as the search may still use them.
    pub payload: Payload,
    pub operation: Operation,
    pub parents: Vec<u32>,
    pub generation: Option<u32>,
    pub status: CandidateStatus,
    pub train: Scores,
    /// Scores on the deciding objective by held-out row.
    pub heldout: BTreeMap<HeldoutRow, f64>,
    /// The evaluation in flight.
    pub evaluation: Option<CallId>,
    /// Whether it passed its screening and gets a full evaluation.
    pub promoted: bool,
    /// Set once it has joined the pool and may become a parent.
    pub pool_entry: Option<PoolEntry>,
    /// The component that its next child changes, for round robin.
    pub component: u32,
    /// Train rows on which the last attempt failed. They are not requested again.
    pub failed_rows: BTreeSet<TrainRow>,
    /// What only a search in sprints knows of it.
    pub sprint: CandidateSprint,
}

/// A candidate's index and scores when it joined the pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolEntry {
    pub place: u32,
    /// Mean on the deciding objective over the train rows.
    pub score: Score,
    /// The value by which candidates are ranked; larger is better. It is the candidate's mean on the deciding objective,
    /// with the best candidate's score on rows where it has none.
    pub ranking_score: f64,
}

/// One rollout of an evaluation: a candidate on one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rollout {
    pub evaluation: CallId,
    pub candidate: u32,
    pub row: RowRef,
    pub stage: Stage,
    pub attempt: u32,
    pub replicate: u32,
}

/// A train or held-out row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowRef {
    Train(TrainRow),
    Heldout(HeldoutRow),
}

/// An evaluation in flight: a candidate on a set of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    pub candidate: u32,
    pub stage: Stage,
    pub generation: Option<u32>,
    pub rows: u32,
    pub remaining: u32,
    pub failed: u32,
}

/// An open generation: its parents, rows, proposer turns and candidates.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    pub number: u32,
    pub operation: Operation,
    pub parents: Vec<u32>,
    pub ancestor: Option<u32>,
    pub minibatch: Vec<TrainRow>,
    pub evidence: Vec<TrainRow>,
    pub components: Vec<String>,
    pub base: Payload,
    pub draw: u64,
    /// The sprint in which it started; 0 in the reference search.
    pub sprint: u32,
    pub step: GenerationStep,
    /// Failed proposer calls and requested repairs of this generation.
    pub failures: u32,
    pub repairs: u32,
    /// Problems of the last answer, and its call.
    pub problems: Vec<Problem>,
    pub answered: Option<CallId>,
    pub invalid: u32,
    pub duplicates: u32,
    pub candidates: Vec<u32>,
    pub accepted: u32,
}

/// The next step of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationStep {
    /// Measure the parent on rows where it has no score.
    Reference,
    /// Wait for the parent's scores.
    Referencing,
    /// Request proposals.
    Propose,
    /// Wait for the proposer.
    Proposing,
    /// The proposer answered; evaluate the candidates or repair the answer.
    Answered,
    /// Evaluate the candidates; the proposer is not asked again.
    Settled,
}

impl State {
    pub fn candidate(&self, index: u32) -> &Candidate {
        &self.candidates[index as usize]
    }

    pub fn index_of(&self, id: &CandidateId) -> Option<u32> {
        self.candidate_indexes.get(&id.number()).copied()
    }

    /// Returns the ids of candidates.
    pub fn ids(&self, indexes: &[u32]) -> Vec<CandidateId> {
        indexes.iter().map(|index| self.candidate(*index).id.clone()).collect()
    }

    pub fn proposals_outstanding(&self) -> usize {
        self.outstanding_calls.len() - self.counts.rollouts_outstanding() as usize
    }

    /// Returns whether open generations continue: there is no stop, or one that lets them finish.
    pub fn is_searching(&self) -> bool {
        let under_way = matches!(self.phase, Phase::Seed | Phase::Search);
        under_way && self.cancel.is_none() && self.stop.as_ref().is_none_or(Stop::lets_generations_finish)
    }

    /// Returns whether more calls may be requested for open generations or the held-out evaluation.
    pub fn may_send_calls(&self) -> bool {
        self.is_searching() || (self.phase == Phase::Heldout && self.cancel.is_none())
    }
}

impl Stop {
    /// Returns whether open generations may finish. Limits on the amount of work let them finish; other rules end the
    /// search at once.
    pub fn lets_generations_finish(&self) -> bool {
        let ends_now = matches!(
            self.stopped_by.kind,
            StopKind::ScoreThreshold
                | StopKind::MaxTime
                | StopKind::External
                | StopKind::CircuitBreaker
                | StopKind::SeedFailed
                | StopKind::Error
        );
        !ends_now && self.failure.is_none()
    }
}

impl Generation {
    /// Returns whether the proposer is needed. A merge without conflicts is built without it.
    pub fn needs_proposer(&self) -> bool {
        !self.components.is_empty()
    }
}

impl Candidate {
    /// Returns the share of these rows on which its last attempt failed.
    pub fn failed_share(&self, rows: &[TrainRow]) -> f64 {
        share(rows.iter().filter(|row| self.failed_rows.contains(row)).count(), rows.len())
    }

    /// Returns its ranking score, or negative infinity if it is not in the pool.
    pub fn ranking_score(&self) -> f64 {
        self.pool_entry.map_or(f64::NEG_INFINITY, |pooled| pooled.ranking_score)
    }

    /// Returns its score on the deciding objective on a train row. In a noisy search in sprints, scores that have decided
    /// about it do not count any more.
    pub fn score(&self, row: TrainRow) -> Option<f64> {
        self.train.get(row, 0)
    }
}

/// Values of every objective on the rows on which a candidate was measured. Stored compactly, because every candidate has
/// one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    /// In ascending order.
    rows: Vec<TrainRow>,
    /// The values of the first row, then those of the second, and so on.
    values: Vec<f64>,
    /// Number of rollouts of rows with more than one.
    repeats: BTreeMap<TrainRow, u32>,
}

impl Scores {
    /// Adds the values of a rollout, one per objective. A row with several rollouts has their mean.
    pub fn add(&mut self, row: TrainRow, values: &[f64]) {
        self.add_mean(row, values, 1);
    }

    /// Adds all rollouts of other scores.
    pub fn absorb(&mut self, other: &Self) {
        let width = other.values.len() / other.rows.len().max(1);
        for (row, values) in other.rows.iter().zip(other.values.chunks_exact(width.max(1))) {
            self.add_mean(*row, values, other.repeats.get(row).copied().unwrap_or(1));
        }
    }

    fn add_mean(&mut self, row: TrainRow, values: &[f64], rollouts: u32) {
        match self.rows.binary_search(&row) {
            Ok(place) => {
                let total = self.repeats.entry(row).or_insert(1);
                *total += rollouts;
                let weight = f64::from(rollouts) / f64::from(*total);
                for (mean, value) in self.values[place * values.len()..][..values.len()].iter_mut().zip(values) {
                    *mean += (value - *mean) * weight;
                }
            }
            Err(place) => {
                self.rows.insert(place, row);
                let start = place * values.len();
                self.values.splice(start..start, values.iter().copied());
                if rollouts > 1 {
                    self.repeats.insert(row, rollouts);
                }
            }
        }
    }

    pub fn rows(&self) -> &[TrainRow] {
        &self.rows
    }

    pub fn contains(&self, row: TrainRow) -> bool {
        self.rows.binary_search(&row).is_ok()
    }

    /// Returns the measured rows with their values of the deciding objective.
    pub fn first_objective(&self) -> impl Iterator<Item = (TrainRow, f64)> + '_ {
        let width = self.values.len() / self.rows.len().max(1);
        self.rows.iter().copied().zip(self.values.iter().copied().step_by(width.max(1)))
    }

    /// Returns the value of an objective on a row.
    pub fn get(&self, row: TrainRow, objective: usize) -> Option<f64> {
        let place = self.rows.binary_search(&row).ok()?;
        let width = self.values.len() / self.rows.len();
        self.values.get(place * width + objective).copied()
    }
}

/// Returns a part as a share of a whole. All comparisons with a tolerance use this function, so that a share equal to the
/// tolerance passes everywhere.
pub(crate) fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

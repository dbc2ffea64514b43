//! Everything the search knows. It is built by `evolve` from events, and by nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use synth_optimizer_core::model::budget::Budget;
use synth_optimizer_core::model::command::ProposeCommand;
use synth_optimizer_core::model::event_fields::{
    CarriedFailure, Failure, Operation, Problem, Stage, StopKind, StoppedBy,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, HeldoutRow, Payload, TrainRow};
use synth_optimizer_core::model::lifecycle::{CandidateStatus, RunState};
use synth_optimizer_core::model::run_totals::RunCounts;
use synth_optimizer_core::model::score::Score;

use crate::frontier::Frontier;

/// The state of a search.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    pub run: RunState,
    pub phase: Phase,
    pub candidates: Vec<Candidate>,
    /// Every candidate that was ever registered, by the number in its id: looked up for every event, so it must stay
    /// cheap when there are many.
    pub candidate_indexes: BTreeMap<u64, u32>,
    /// Fully evaluated candidates, in the order in which they joined. Frontier places are places in this list.
    pub pool: Vec<u32>,
    pub best: Option<u32>,
    pub frontier: Frontier,
    pub budget: Budget,
    pub counts: RunCounts,

    pub next_call_id: u64,
    /// Requests without an answer. Their answers retire in this order.
    pub outstanding_calls: BTreeMap<CallId, OutstandingCall>,

    pub evaluations: BTreeMap<CallId, Evaluation>,
    /// Evaluations whose last answer has retired and that are not judged yet.
    pub finished_evaluations: VecDeque<CallId>,

    pub generations: BTreeMap<u32, Generation>,
    pub next_generation: u32,
    pub draws: u64,

    /// Whether a candidate has joined the pool since the last generation began.
    pub pool_has_grown: bool,
    pub merges_due: u32,
    pub merges_built: u32,
    pub merges_tried: BTreeSet<(u32, u32, u32)>,

    pub rejected: VecDeque<CarriedFailure>,
    /// Turns in a row without a valid proposal, and without a valid and new one.
    pub invalid_turns: u32,
    pub turns_without_candidate: u32,
    pub generations_without_improvement: u32,
    pub has_improved: bool,
    /// The largest reward met: rewards above 1 mean that 1 is not perfect.
    pub largest_reward: f64,

    /// Whether each of the last rollouts failed.
    pub recent_failures: VecDeque<bool>,

    pub stop: Option<Stop>,
    pub cancel: Option<String>,
    pub heldout_queue: Vec<u32>,
    pub heldout_measured: BTreeSet<u32>,
    /// Whether the last event cannot have made a decision possible.
    pub has_nothing_to_decide: bool,
}

/// Which part of the run is under way.
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

/// A candidate with all of its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub id: CandidateId,
    /// Its texts, as long as they may be shown or built on.
    pub payload: Payload,
    pub operation: Operation,
    pub parents: Vec<u32>,
    pub generation: Option<u32>,
    pub status: CandidateStatus,
    pub train: Scores,
    /// Scores on the deciding objective by held-out row.
    pub heldout: BTreeMap<HeldoutRow, f64>,
    /// The evaluation that is under way.
    pub evaluation: Option<CallId>,
    /// Won its screening; the full evaluation is next.
    pub promoted: bool,
    /// Set when it has joined the pool and may be a parent.
    pub pool_entry: Option<PoolEntry>,
    /// Which component comes next when it is a parent.
    pub component: u32,
    /// Train rows on which it failed for good. They are not asked for again.
    pub failed_rows: BTreeSet<TrainRow>,
}

/// A candidate's standing when it joined the pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolEntry {
    pub place: u32,
    /// Mean on the deciding objective over the train rows.
    pub score: Score,
    /// What it is ranked by, such that larger is better: its mean, with the best one's score where it has none.
    pub ranking_score: f64,
}

/// A request without an answer: what was asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum OutstandingCall {
    Rollout(Rollout),
    /// The whole question, as it was decided on: what comes between that and the sending must not change it.
    Proposal(Box<ProposeCommand>),
}

/// A candidate on one row, as a part of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rollout {
    pub evaluation: CallId,
    pub candidate: u32,
    pub row: RowRef,
    pub stage: Stage,
    pub attempt: u32,
    pub replicate: u32,
}

/// A row of either kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowRef {
    Train(TrainRow),
    Heldout(HeldoutRow),
}

/// A candidate on a set of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    pub candidate: u32,
    pub stage: Stage,
    pub generation: Option<u32>,
    pub rows: u32,
    pub remaining: u32,
    pub failed: u32,
}

/// One round: parents, rows, a proposer turn, and the candidates that come of it.
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
    pub step: GenerationStep,
    /// Proposer calls that failed in this turn, and repairs that were asked for.
    pub failures: u32,
    pub repairs: u32,
    /// Problems of the last answer, and the request that it answered.
    pub problems: Vec<Problem>,
    pub answered: Option<CallId>,
    pub invalid: u32,
    pub duplicates: u32,
    pub candidates: Vec<u32>,
    pub accepted: u32,
}

/// How far a generation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationStep {
    /// The parent is to be measured where it has no scores.
    Reference,
    /// The parent is being measured.
    Referencing,
    /// The proposer is to be asked.
    Propose,
    /// The proposer is at work.
    Proposing,
    /// The answer is in.
    Answered,
    /// Nothing more comes from the proposer.
    Settled,
}

impl State {
    pub fn candidate(&self, index: u32) -> &Candidate {
        &self.candidates[index as usize]
    }

    pub fn index_of(&self, id: &CandidateId) -> Option<u32> {
        self.candidate_indexes.get(&id.number()).copied()
    }

    /// The ids of candidates.
    pub fn ids(&self, indexes: &[u32]) -> Vec<CandidateId> {
        indexes.iter().map(|index| self.candidate(*index).id.clone()).collect()
    }

    pub fn proposals_outstanding(&self) -> usize {
        self.outstanding_calls.len() - self.counts.rollouts_outstanding() as usize
    }

    /// Whether the search goes on: no stop, or one that lets work under way reach its end.
    pub fn is_searching(&self) -> bool {
        let under_way = matches!(self.phase, Phase::Seed | Phase::Search);
        under_way && self.cancel.is_none() && self.stop.as_ref().is_none_or(Stop::lets_generations_finish)
    }

    /// Whether work under way may ask for more: the search goes on, or the held-out evaluation does.
    pub fn may_send_calls(&self) -> bool {
        self.is_searching() || (self.phase == Phase::Heldout && self.cancel.is_none())
    }
}

impl Stop {
    /// Rules about how much is done let generations under way reach their end; the others end the search now.
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
    /// A merge without conflicts is put together without the proposer.
    pub fn needs_proposer(&self) -> bool {
        !self.components.is_empty()
    }
}

impl Candidate {
    /// Share of these rows on which it failed for good.
    pub fn failed_share(&self, rows: &[TrainRow]) -> f64 {
        share(rows.iter().filter(|row| self.failed_rows.contains(row)).count(), rows.len())
    }

    /// Its merit in the pool, or less than anything.
    pub fn ranking_score(&self) -> f64 {
        self.pool_entry.map_or(f64::NEG_INFINITY, |pooled| pooled.ranking_score)
    }

    /// The deciding score on a train row.
    pub fn score(&self, row: TrainRow) -> Option<f64> {
        self.train.get(row, 0)
    }
}

/// Values of every objective on the rows that a candidate has been measured on. Small and close together: there are as many
/// of these as candidates.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    /// In ascending order.
    rows: Vec<TrainRow>,
    /// The values of the first row, then those of the second, and so on.
    values: Vec<f64>,
}

impl Scores {
    /// Sets the values of a row, one per objective.
    pub fn insert(&mut self, row: TrainRow, values: &[f64]) {
        match self.rows.binary_search(&row) {
            Ok(place) => self.values[place * values.len()..][..values.len()].copy_from_slice(values),
            Err(place) => {
                self.rows.insert(place, row);
                let start = place * values.len();
                self.values.splice(start..start, values.iter().copied());
            }
        }
    }

    pub fn contains(&self, row: TrainRow) -> bool {
        self.rows.binary_search(&row).is_ok()
    }

    /// The measured rows with their values of the deciding objective.
    pub fn first_objective(&self) -> impl Iterator<Item = (TrainRow, f64)> + '_ {
        let width = self.values.len() / self.rows.len().max(1);
        self.rows.iter().copied().zip(self.values.iter().copied().step_by(width.max(1)))
    }

    /// The value of an objective on a row.
    pub fn get(&self, row: TrainRow, objective: usize) -> Option<f64> {
        let place = self.rows.binary_search(&row).ok()?;
        let width = self.values.len() / self.rows.len();
        self.values.get(place * width + objective).copied()
    }
}

/// A part of a whole. Shares are compared with a tolerance in this one form, so that exactly what is tolerated passes.
pub(crate) fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

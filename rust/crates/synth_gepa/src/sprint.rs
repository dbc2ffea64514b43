//! The state of a search in sprints, and the changes that events make to it.
//!
//! The *anchor* is the best candidate: the last one that a check has confirmed. The *head* is the candidate that the next
//! proposals start from. A sprint moves the head with every screened change; a check then compares head and anchor.

use std::collections::BTreeSet;

use synth_optimizer_core::model::event_fields::{
    CandidateDecided, CheckDecided, CheckStarted, CheckVerdict, HeadMoved, NoiseMeasured, Operation, Stage,
};
use synth_optimizer_core::model::ids::{CandidateId, TrainRow};

use crate::check::PooledVariance;
use crate::settings::Settings;
use crate::state::{Rollout, Scores, State};

/// Scores of two rollouts that differ by more than this are different.
const SAME_SCORE: f64 = 1e-9;

/// If scores repeat exactly, a sprint has at most this many rollouts for each row.
const SPRINT_ROLLOUTS_PER_ROW: u64 = 3;

/// Maximum number of rows on which carried changes are screened.
const MAX_REBASE_ROWS: usize = 8;

/// The state of a search in sprints.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sprint {
    /// The candidate that the next proposals start from.
    pub head: u32,
    /// The number of the sprint. A rollback starts the next one.
    pub number: u32,
    /// Train rollouts of this sprint, without those of checks.
    pub spent: u64,
    /// Number of sprints that were clearly worse than their anchor.
    pub clearly_worse: u32,
    /// Number of rollbacks without an adoption to make up for it. Each halves the sprint, if scores repeat exactly.
    pub rollbacks: u32,
    pub noise: Noise,
    pub range: ScoreRange,
    pub check: Option<Check>,
    /// Number of checks so far.
    pub checks: u32,
    /// Head and anchor of the last check.
    pub last_checked: Option<(u32, u32)>,
    /// Head and anchor of the last check that could use all rollouts that were left.
    pub fully_checked: Option<(u32, u32)>,
    pub variance: PooledVariance,
    /// Screened candidates that wait to become the head, in the order of their screening.
    pub waiting: Vec<Waiting>,
    /// The candidate that carries late changes over to the head.
    pub rebase: Option<Rebase>,
    /// Screened candidates of this sprint that no check has decided yet.
    pub undecided: Vec<u32>,
}

/// What a search in sprints knows of a candidate.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CandidateSprint {
    /// Scores that have decided about the candidate. They are no evidence for it any more.
    pub used: Scores,
    /// Number of changes since the initial candidate.
    pub depth: u32,
    /// The `replicate` of its next rollout. It rises before a row is rolled out again.
    pub replicate: u32,
    /// Train rows whose rollouts have no answer yet.
    pub pending: BTreeSet<TrainRow>,
    /// The rows of its glance.
    pub glance: Vec<TrainRow>,
}

/// Whether rollouts repeat exactly.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Noise {
    /// Whether repeated rollouts of the initial candidate were requested, and whether they were judged.
    pub requested: bool,
    pub is_known: bool,
    pub is_noisy: bool,
    /// Number of repeated rollouts, how many differ, and the sum of their squared differences.
    pub pairs: u32,
    pub differing: u32,
    pub squares: f64,
    /// The last generation before which a rollout was repeated.
    pub probed: Option<u32>,
}

impl Noise {
    /// Records the difference of two rollouts of one candidate on one row.
    pub fn add(&mut self, difference: f64) {
        self.pairs += 1;
        self.differing += u32::from(difference.abs() > SAME_SCORE);
        self.squares += difference * difference;
    }

    /// Returns the variance of a score between rollouts of the same candidate on the same row.
    pub fn variance(&self) -> f64 {
        self.squares / 2.0 / f64::from(self.pairs.max(1))
    }
}

/// The smallest and the largest score so far, where larger is better.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScoreRange {
    seen: Option<(f64, f64)>,
}

impl ScoreRange {
    pub(crate) fn add(&mut self, score: f64) {
        let (low, high) = self.seen.unwrap_or((score, score));
        self.seen = Some((low.min(score), high.max(score)));
    }

    /// Returns the ends of the range. Scores are from 0 to 1 until one is not.
    fn ends(&self) -> (f64, f64) {
        match self.seen {
            Some((low, high)) if low >= -1.0 && high <= 0.0 && low < 0.0 => (-1.0, 0.0),
            Some((low, high)) if (low < 0.0 || high > 1.0) && high > low => (low, high),
            _ => (0.0, 1.0),
        }
    }

    pub fn low(&self) -> f64 {
        self.ends().0
    }

    pub fn width(&self) -> f64 {
        let (low, high) = self.ends();
        high - low
    }
}

/// A check under way.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    pub number: u32,
    pub head: u32,
    pub anchor: u32,
    pub steps: u32,
    pub max_rollouts: Option<u64>,
    pub rollouts: u64,
    /// Rows that were rolled out once more, because scores are noisy and all rows were compared.
    pub repeated: BTreeSet<TrainRow>,
}

/// A screened candidate that waits to become the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiting {
    pub candidate: u32,
    pub generation: Option<u32>,
    /// Its gain on the rows of its screening.
    pub gain: f64,
}

/// A candidate that carries late changes over to the head, and the rows of its screening.
#[derive(Debug, Clone, PartialEq)]
pub struct Rebase {
    pub candidate: u32,
    pub sprint: u32,
    pub rows: Vec<TrainRow>,
}

impl Sprint {
    /// Returns the number of rollouts of this sprint before its check.
    ///
    /// If scores repeat exactly, a check of a few rows is cheap and certain. So the sprint is then limited by the rows, and every
    /// rollback halves it, down to one generation: near the optimum, single changes are kept that a longer sprint would lose.
    pub(crate) fn rollouts(&self, settings: &Settings, rows: usize) -> u64 {
        let usual = settings.sprint_rollouts();
        if self.noise.is_noisy {
            return usual;
        }
        let by_rows = SPRINT_ROLLOUTS_PER_ROW * rows as u64;
        let halved = usual.min(by_rows).checked_shr(self.rollbacks).unwrap_or(0);
        halved.max(2 * u64::from(settings.minibatch_size)).min(usual)
    }

    /// Returns whether a candidate waits to become the head, or carries changes of such candidates.
    pub fn is_moving(&self) -> bool {
        self.rebase.is_some() || !self.waiting.is_empty()
    }

    /// Records a score on the deciding objective.
    pub(crate) fn record_score(&mut self, score: f64) {
        self.range.add(score);
    }
}

impl State {
    /// Returns the check under way.
    pub(crate) fn check(&self) -> Option<&Check> {
        self.sprint.as_ref().and_then(|sprint| sprint.check.as_ref())
    }

    /// Records whether scores are noisy. If they seemed to repeat exactly until now, scores that have decided about the head and
    /// the best candidate have been kept as evidence: they are set aside. No score has decided about the initial candidate.
    pub(crate) fn record_noise(&mut self, fields: &NoiseMeasured) {
        let Some(sprint) = &mut self.sprint else { return };
        let turns_out_noisy = sprint.noise.is_known && !sprint.noise.is_noisy && fields.is_noisy;
        (sprint.noise.is_known, sprint.noise.is_noisy) = (true, fields.is_noisy);
        let chosen: BTreeSet<u32> = [Some(sprint.head), self.best].into_iter().flatten().collect();
        for index in chosen.into_iter().filter(|index| turns_out_noisy && *index != 0) {
            self.retire_scores(index);
        }
    }

    /// Records the depth of a new candidate, and the rows on which a rebase is screened.
    pub(crate) fn register_in_sprint(&mut self, index: u32) {
        let candidate = self.candidate(index);
        let before = candidate.parents.first().map_or(0, |parent| self.candidate(*parent).sprint.depth);
        let steps = match candidate.operation {
            Operation::Seed => 0,
            Operation::Mutate | Operation::Merge => 1,
            Operation::Rebase => candidate.parents.len() as u32 - 1,
        };
        let rows = candidate.parents.iter().skip(1).flat_map(|parent| self.candidate(*parent).train.rows().to_vec());
        let rows: BTreeSet<TrainRow> = rows.collect();
        let is_rebase = candidate.operation == Operation::Rebase;
        self.candidates[index as usize].sprint.depth = before + steps;
        if let Some(sprint) = self.sprint.as_mut().filter(|_| is_rebase) {
            let all: Vec<TrainRow> = rows.into_iter().collect();
            let count = all.len().min(MAX_REBASE_ROWS);
            let rows = (0..count).map(|place| all[place * all.len() / count]).collect();
            sprint.rebase = Some(Rebase { candidate: index, sprint: sprint.number, rows });
        }
    }

    /// Records a requested rollout of a train row.
    pub(crate) fn add_rollout_in_sprint(&mut self, rollout: &Rollout, row: TrainRow) {
        let Some(sprint) = &mut self.sprint else { return };
        let candidate = &mut self.candidates[rollout.candidate as usize];
        candidate.sprint.pending.insert(row);
        candidate.sprint.replicate = candidate.sprint.replicate.max(rollout.replicate);
        match (rollout.stage, &mut sprint.check) {
            (Stage::Check, Some(check)) => {
                check.rollouts += 1;
                if candidate.score(row).is_some() {
                    check.repeated.insert(row);
                }
            }
            (Stage::Repeat, _) => {
                sprint.noise.requested = true;
                sprint.noise.probed = Some(self.next_generation);
            }
            (Stage::Glance, _) if rollout.attempt == 1 => {
                candidate.sprint.glance.push(row);
                sprint.spent += 1;
            }
            (Stage::SeedFullTrain, _) => {}
            _ => sprint.spent += 1,
        }
    }

    /// Records a screened candidate: it waits to become the head, and a check decides about it.
    pub(crate) fn promote_in_sprint(&mut self, fields: &CandidateDecided) {
        let Some(index) = self.index_of(&fields.candidate_id) else { return };
        let generation = self.candidate(index).generation;
        let Some(sprint) = &mut self.sprint else { return };
        let gain = fields.comparison.as_ref().map_or(0.0, |found| found.primary_delta);
        sprint.waiting.push(Waiting { candidate: index, generation, gain });
        sprint.undecided.push(index);
        sprint.rebase = sprint.rebase.take().filter(|rebase| rebase.candidate != index);
    }

    /// Removes a decided candidate from what waits for a decision.
    pub(crate) fn settle_in_sprint(&mut self, id: &CandidateId) {
        let Some(index) = self.index_of(id) else { return };
        let Some(sprint) = &mut self.sprint else { return };
        sprint.waiting.retain(|waiting| waiting.candidate != index);
        sprint.undecided.retain(|undecided| *undecided != index);
        sprint.rebase = sprint.rebase.take().filter(|rebase| rebase.candidate != index);
    }

    /// Moves the head. Scores that led to it do not count as evidence for it, if scores are noisy.
    pub(crate) fn move_head(&mut self, fields: &HeadMoved) {
        let Some(index) = self.index_of(&fields.candidate_id) else { return };
        let Some(sprint) = &mut self.sprint else { return };
        sprint.head = index;
        sprint.waiting.retain(|waiting| waiting.candidate != index);
        self.retire_scores(index);
    }

    /// Sets the scores of a candidate aside, if scores are noisy: they have decided about it.
    pub(crate) fn retire_scores(&mut self, index: u32) {
        let is_noisy = self.sprint.as_ref().is_some_and(|sprint| sprint.noise.is_noisy);
        let candidate = &mut self.candidates[index as usize];
        if is_noisy {
            let used = std::mem::take(&mut candidate.train);
            candidate.sprint.used.absorb(&used);
            candidate.sprint.replicate += 1;
        }
    }

    pub(crate) fn start_check(&mut self, fields: &CheckStarted) {
        let (Some(head), Some(anchor)) = (self.index_of(&fields.head_id), self.index_of(&fields.anchor_id)) else {
            return;
        };
        let Some(sprint) = &mut self.sprint else { return };
        sprint.checks = fields.check + 1;
        sprint.last_checked = Some((head, anchor));
        if fields.max_rollouts.is_none() {
            sprint.fully_checked = sprint.last_checked;
        }
        sprint.check = Some(Check {
            number: fields.check,
            head,
            anchor,
            steps: fields.steps,
            max_rollouts: fields.max_rollouts,
            rollouts: 0,
            repeated: BTreeSet::new(),
        });
    }

    pub(crate) fn end_check(&mut self, fields: &CheckDecided, drop: f64) {
        let Some(sprint) = &mut self.sprint else { return };
        sprint.check = None;
        if let Some(variance) = fields.variance {
            let width = sprint.range.width();
            sprint.variance.add(variance / (width * width), fields.n);
        }
        match fields.verdict {
            CheckVerdict::Adopted => {
                sprint.spent = 0;
                sprint.rollbacks = sprint.rollbacks.saturating_sub(1);
            }
            CheckVerdict::RolledBack => {
                sprint.head = self.best.unwrap_or(0);
                sprint.number += 1;
                sprint.rollbacks += 1;
                sprint.spent = 0;
                sprint.waiting.clear();
                let is_clear = fields.probability.is_some_and(|probability| probability <= drop);
                sprint.clearly_worse += u32::from(is_clear);
            }
            CheckVerdict::Undecided => sprint.spent /= 2,
        }
    }
}

#[cfg(test)]
#[path = "sprint_tests.rs"]
mod tests;

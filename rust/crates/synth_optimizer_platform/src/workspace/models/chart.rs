//! What the score chart of a run shows: every score with what the run had spent when it was known.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::projector::totals;
use super::super::query::{MILESTONES, list};
use super::super::reader::{Reader, event};
use super::effort_sums::EffortSums;
use super::lineage::LineageCandidate;
use super::read_error::ReadError;
use super::scores::objectives;
use synth_optimizer_core::model::candidate_view::affected_candidates;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CheckVerdict, Direction};
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::model::run_totals::Effort;
use synth_optimizer_core::model::score::Score;
use synth_optimizer_core::model::usage::NanoUsd;

/// The scores of a run in the order in which candidates were registered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RunChart {
    /// The deciding objective. Null before the task is loaded.
    pub metric: Option<String>,
    /// Whether a higher or a lower value is better.
    pub direction: Option<Direction>,
    /// Every candidate, in the order of registration.
    pub candidates: Vec<ChartCandidate>,
    /// The decided checks of a search in sprints.
    pub checks: Vec<CheckMark>,
    /// Held-out scores of the initial and the best candidate, as far as they are measured.
    pub heldout: Vec<HeldoutScore>,
    /// What the run has spent.
    pub spent: SpentEffort,
    /// Whether the run has not ended.
    pub is_live: bool,
}

/// A candidate of the chart.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ChartCandidate {
    /// The candidate.
    pub candidate_id: String,
    /// Its score on train rows, or before it the score of its screening.
    pub score: Option<Score>,
    /// Whether the score is that of its screening.
    pub is_screening: bool,
    /// Whether it was accepted.
    pub is_accepted: bool,
    /// What the run had spent when the score was known.
    pub at: SpentEffort,
}

/// A decided check of a search in sprints.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CheckMark {
    /// The verdict.
    pub verdict: CheckVerdict,
    /// The reason in words.
    pub reason: String,
    /// What the run had spent when it was decided.
    pub at: SpentEffort,
}

/// A score on held-out rows.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HeldoutScore {
    /// The candidate.
    pub candidate_id: String,
    /// Whether it is the initial candidate.
    pub is_initial: bool,
    /// The score.
    pub score: Score,
}

/// What a run has spent on its search. A cached call counts like a sent one, so equal runs have equal values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct SpentEffort {
    /// Rollouts on train rows that count against the limits.
    pub rollouts: u64,
    /// Cost of rollouts and proposer turns. Null if the cost of one of them is unknown.
    pub cost_usd: Option<f64>,
}

impl From<Effort> for SpentEffort {
    fn from(effort: Effort) -> Self {
        Self { rollouts: effort.rollouts, cost_usd: effort.cost.known().map(NanoUsd::usd) }
    }
}

impl Reader {
    /// Returns what the score chart shows. Reads the rollouts that were settled since the last call, and of the log only the
    /// events with scores.
    pub fn score_chart(&self) -> Result<RunChart, ReadError> {
        self.in_snapshot(|db| {
            let (lineage, totals) = (self.lineage()?, totals(db)?);
            let mut efforts = self.efforts().lock();
            efforts.update(db)?;
            let moments = ScoreMoments::read(db, &efforts)?;
            drop(efforts);
            let is_marked = |known: &&LineageCandidate| {
                known.is_best || lineage.initial_candidate_id.as_ref() == Some(&known.candidate_id)
            };
            let heldout = |known: &LineageCandidate| {
                let is_initial = lineage.initial_candidate_id.as_ref() == Some(&known.candidate_id);
                Some(HeldoutScore { candidate_id: known.candidate_id.clone(), is_initial, score: known.heldout_score? })
            };
            let candidate = |known: &LineageCandidate| ChartCandidate {
                candidate_id: known.candidate_id.clone(),
                score: known.train_score.or(known.minibatch_score),
                is_screening: known.train_score.is_none(),
                is_accepted: known.status == CandidateStatus::Accepted,
                at: moments.scored_at.get(&known.candidate_id).copied().unwrap_or_default(),
            };
            Ok(RunChart {
                candidates: lineage.candidates.iter().map(candidate).collect(),
                heldout: lineage.candidates.iter().filter(is_marked).filter_map(heldout).collect(),
                checks: moments.checks,
                spent: totals.counts.effort().into(),
                is_live: !totals.is_terminal(),
                metric: lineage.metric,
                direction: lineage.direction,
            })
        })
    }
}

/// The most steps of `score_steps`.
const MAX_STEPS: usize = 60;

impl Reader {
    /// Returns the best train score so far after each accepted candidate, for a small picture. Long lists are thinned. Reads
    /// only accepted candidates.
    pub fn score_steps(&self) -> Result<Vec<f64>, ReadError> {
        self.in_snapshot(|db| {
            let sql = "SELECT train_reward FROM candidates WHERE status = 'accepted' AND train_reward IS NOT NULL
                       ORDER BY registered_sequence";
            let direction = objectives(db)?.and_then(|set| Some(set.objectives.first()?.direction));
            let mut steps: Vec<f64> = list(db, "read the scores", sql, [], |row| row.get(0))?;
            for place in 1..steps.len() {
                steps[place] = match direction {
                    Some(Direction::Minimize) => steps[place].min(steps[place - 1]),
                    Some(Direction::Maximize) | None => steps[place].max(steps[place - 1]),
                };
            }
            // The last step is always kept.
            let every = steps.len().div_ceil(MAX_STEPS).max(1);
            Ok(steps.iter().rev().step_by(every).rev().copied().collect())
        })
    }
}

/// When each candidate was scored and each check decided.
#[derive(Debug, Default)]
struct ScoreMoments {
    scored_at: HashMap<String, SpentEffort>,
    checks: Vec<CheckMark>,
}

impl ScoreMoments {
    fn read(db: &Connection, sums: &EffortSums) -> Result<Self, OptimizerError> {
        let sql = format!(
            "SELECT sequence, type, unix_millis, fields FROM {MILESTONES} AND type IN ('candidate.evaluated',
               'candidate.minibatch_evaluated', 'candidate.full_train_evaluated', 'check.decided') ORDER BY sequence"
        );
        let (mut found, mut has_train_score) = (Self::default(), HashSet::new());
        for stored in list(db, "read the scores", &sql, [], |row| row.try_into())? {
            let stored = event(stored)?;
            let at = sums.until(stored.sequence);
            let is_screening = matches!(stored.event, Event::MinibatchEvaluated(_));
            for id in affected_candidates(&stored.event) {
                // A screening after the score on train rows changes nothing that is shown.
                if is_screening && has_train_score.contains(id.as_str()) {
                    continue;
                }
                if !is_screening {
                    has_train_score.insert(id.to_string());
                }
                found.scored_at.insert(id.to_string(), at);
            }
            if let Event::CheckDecided(check) = stored.event {
                found.checks.push(CheckMark { verdict: check.verdict, reason: check.reason, at });
            }
        }
        Ok(found)
    }
}

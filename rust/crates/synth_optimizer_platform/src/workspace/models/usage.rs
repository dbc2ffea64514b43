//! What a run has used, with rollouts and proposer apart.

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::reader::Reader;
use super::super::totals::Totals;
use super::query::{at_one_moment, first, whole};
use super::refusal::ReadError;
use crate::model::error::OptimizerError;

/// What a run has used so far. The names are those of `usage` in the workspace status.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunUsage {
    /// Prompt tokens of paid calls, as far as known.
    pub prompt_tokens: u64,
    /// Completion tokens of paid calls, as far as known.
    pub completion_tokens: u64,
    /// Tokens of paid calls, as far as known.
    pub total_tokens: u64,
    /// Rollouts that have an outcome.
    pub rollout_calls: u64,
    /// Proposer turns that were begun.
    pub proposer_calls: u64,
    /// Calls that were made.
    pub paid_calls: u64,
    /// Calls that the cache answered.
    pub cached_calls: u64,
    /// Paid calls whose cost nobody told.
    pub unpriced_calls: u64,
    /// Calls that were sent and of which nobody knows whether they ran.
    pub unknown_outcomes: u64,
    /// What was paid; null as soon as the cost of one paid call is unknown.
    pub cost_usd: Option<f64>,
    /// The known part of what was paid.
    pub known_cost_usd: f64,
    /// The part of the rollouts.
    pub rollouts: UsagePart,
    /// The part of the proposer.
    pub proposer: UsagePart,
}

/// A part of what was used.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct UsagePart {
    /// Prompt tokens of paid calls, as far as known.
    pub prompt_tokens: u64,
    /// Completion tokens of paid calls, as far as known.
    pub completion_tokens: u64,
    /// Tokens of paid calls, as far as known.
    pub total_tokens: u64,
    /// Calls that were made.
    pub paid_calls: u64,
    /// Calls that the cache answered.
    pub cached_calls: u64,
    /// Paid calls whose cost nobody told.
    pub unpriced_calls: u64,
    /// Calls that were sent and of which nobody knows whether they ran.
    pub unknown_outcomes: u64,
    /// What was paid; null as soon as the cost of one paid call is unknown.
    pub cost_usd: Option<f64>,
    /// The known part of what was paid.
    pub known_cost_usd: f64,
}

impl Reader {
    /// What the run has used so far.
    pub fn run_usage(&self) -> Result<RunUsage, ReadError> {
        at_one_moment(self, |db| {
            let totals = Totals::read(db)?;
            let all = Counts {
                prompt_tokens: totals.prompt_tokens,
                completion_tokens: totals.completion_tokens,
                total_tokens: totals.total_tokens,
                paid_calls: totals.paid_calls,
                cached_calls: totals.cached_calls,
                unpriced_calls: totals.unpriced_calls,
                unknown_outcomes: totals.unknown_outcomes,
                known_nano_usd: totals.known_cost.0,
            };
            let proposer = Counts::of_proposer(db)?;
            let whole = all.part();
            Ok(RunUsage {
                prompt_tokens: whole.prompt_tokens,
                completion_tokens: whole.completion_tokens,
                total_tokens: whole.total_tokens,
                rollout_calls: totals.rollouts_finished + totals.rollouts_failed,
                proposer_calls: totals.proposer_turns,
                paid_calls: whole.paid_calls,
                cached_calls: whole.cached_calls,
                unpriced_calls: whole.unpriced_calls,
                unknown_outcomes: whole.unknown_outcomes,
                cost_usd: whole.cost_usd,
                known_cost_usd: whole.known_cost_usd,
                // What the proposer did not use, the rollouts did: turns are few, rollouts are many.
                rollouts: all.without(&proposer).part(),
                proposer: proposer.part(),
            })
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Counts {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    paid_calls: u64,
    cached_calls: u64,
    unpriced_calls: u64,
    unknown_outcomes: u64,
    known_nano_usd: u64,
}

impl Counts {
    /// Counts turns by the rule of the totals: what was not sent counts for nothing, what nobody knows the outcome of was
    /// paid at an unknown price, and what the cache answered was paid for before.
    fn of_proposer(db: &Connection) -> Result<Self, OptimizerError> {
        let sql = "WITH turns AS (
                     SELECT *, coalesce(failure_class IN ('unknown_outcome', 'abandoned'), 0) AS unknown FROM proposer_calls
                     WHERE status <> 'started' AND coalesce(failure_class NOT IN ('not_sent', 'withdrawn'), 1)),
                   counted AS (SELECT *, unknown OR NOT cached AS paid FROM turns)
                   SELECT coalesce(sum(prompt_tokens) FILTER (WHERE paid), 0),
                     coalesce(sum(completion_tokens) FILTER (WHERE paid), 0),
                     coalesce(sum(total_tokens) FILTER (WHERE paid), 0),
                     count(*) FILTER (WHERE paid), count(*) FILTER (WHERE NOT paid),
                     count(*) FILTER (WHERE paid AND (unknown OR cost_nano_usd IS NULL)), count(*) FILTER (WHERE unknown),
                     coalesce(sum(cost_nano_usd) FILTER (WHERE paid AND NOT unknown), 0)
                   FROM counted";
        let found = first(db, "count the proposer turns", sql, [], |row| {
            Ok(Self {
                prompt_tokens: whole(row, 0)?,
                completion_tokens: whole(row, 1)?,
                total_tokens: whole(row, 2)?,
                paid_calls: whole(row, 3)?,
                cached_calls: whole(row, 4)?,
                unpriced_calls: whole(row, 5)?,
                unknown_outcomes: whole(row, 6)?,
                known_nano_usd: whole(row, 7)?,
            })
        })?;
        found.ok_or_else(|| super::super::error::invariant("a sum has no row"))
    }

    fn without(&self, part: &Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.saturating_sub(part.prompt_tokens),
            completion_tokens: self.completion_tokens.saturating_sub(part.completion_tokens),
            total_tokens: self.total_tokens.saturating_sub(part.total_tokens),
            paid_calls: self.paid_calls.saturating_sub(part.paid_calls),
            cached_calls: self.cached_calls.saturating_sub(part.cached_calls),
            unpriced_calls: self.unpriced_calls.saturating_sub(part.unpriced_calls),
            unknown_outcomes: self.unknown_outcomes.saturating_sub(part.unknown_outcomes),
            known_nano_usd: self.known_nano_usd.saturating_sub(part.known_nano_usd),
        }
    }

    fn part(&self) -> UsagePart {
        let known_cost_usd = self.known_nano_usd as f64 / 1e9;
        UsagePart {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            total_tokens: self.total_tokens,
            paid_calls: self.paid_calls,
            cached_calls: self.cached_calls,
            unpriced_calls: self.unpriced_calls,
            unknown_outcomes: self.unknown_outcomes,
            cost_usd: (self.unpriced_calls == 0).then_some(known_cost_usd),
            known_cost_usd,
        }
    }
}

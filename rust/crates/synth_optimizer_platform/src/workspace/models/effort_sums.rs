//! What a run had spent after each event that settled a call.

use rusqlite::{Connection, params};

use super::super::query::{MILESTONES, first, list};
use super::chart::SpentEffort;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::run_totals::Effort;
use synth_optimizer_core::model::usage::{Cost, NanoUsd};

/// The effort of a run after each event that settled a call. A reader keeps it, so that an update reads only later calls.
#[derive(Debug, Default)]
pub(in crate::workspace) struct EffortSums {
    sums: Vec<(u64, Effort)>,
    /// The number of events that are summed.
    events: u64,
    /// The first call that may be unsettled.
    first_call: u64,
}

/// Sequence number of the event that settled a call, whether it is a rollout on a train row, and its cost.
type SettledCall = (u64, bool, Option<u64>);

impl EffortSums {
    /// Adds the calls that were settled since the last update.
    pub(super) fn update(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        let sql = "SELECT coalesce(max(sequence) + 1, 0) FROM events";
        let events = first(db, "read the log", sql, [], |row| row.get(0))?.unwrap_or(0);
        if events < self.events {
            *self = Self::default();
        }
        if events == self.events {
            return Ok(());
        }
        let mut sum = self.sums.last().map_or(Effort { rollouts: 0, cost: Cost::Known(NanoUsd(0)) }, |(_, sum)| *sum);
        for (sequence, is_train, cost) in self.settled_calls(db)? {
            sum.rollouts += u64::from(is_train);
            sum.cost = match (sum.cost, cost) {
                (Cost::Known(sum), Some(cost)) => Cost::Known(sum.plus(NanoUsd(cost))),
                (Cost::Unknown, _) | (_, None) => Cost::Unknown,
            };
            self.sums.push((sequence, sum));
        }
        let open =
            "SELECT coalesce((SELECT min(call_id) FROM rollouts WHERE call_id >= ?1 AND settled_sequence IS NULL),
                      (SELECT max(call_id) + 1 FROM rollouts), 0)";
        self.first_call = first(db, "read the calls", open, [self.first_call], |row| row.get(0))?.unwrap_or(0);
        self.events = events;
        Ok(())
    }

    /// Returns the calls that were settled since the last update, in the order of their events.
    fn settled_calls(&self, db: &Connection) -> Result<Vec<SettledCall>, OptimizerError> {
        // An unknown outcome that was sent again has an event of its own, and counts beside the call that settled it.
        let sql = format!(
            "SELECT settled_sequence, evaluation_stage <> 'heldout', iif(billing = 'unknown', NULL, cost_nano_usd)
               FROM rollouts WHERE call_id >= ?2 AND settled_sequence >= ?1 AND billing <> 'unsent'
             UNION ALL SELECT settled_sequence, 0, iif(billing = 'unknown', NULL, cost_nano_usd)
               FROM proposer_calls WHERE settled_sequence >= ?1 AND billing <> 'unsent'
             UNION ALL SELECT sequence, fields ->> 'stage' IS NOT NULL AND fields ->> 'stage' <> 'heldout', NULL
               FROM {MILESTONES} AND type = 'call.outcome_unknown' AND sequence >= ?1"
        );
        let values = params![self.events, self.first_call];
        let mut calls: Vec<SettledCall> = list(db, "read the calls", &sql, values, |row| row.try_into())?;
        calls.sort_unstable_by_key(|(sequence, ..)| *sequence);
        Ok(calls)
    }

    /// Returns the effort up to an event.
    pub(super) fn until(&self, sequence: u64) -> SpentEffort {
        let after = self.sums.partition_point(|(settled, _)| *settled <= sequence);
        match after.checked_sub(1).and_then(|last| self.sums.get(last)) {
            Some((_, effort)) => (*effort).into(),
            None => SpentEffort { rollouts: 0, cost_usd: Some(0.0) },
        }
    }
}

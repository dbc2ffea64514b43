//! A few figures of a run that a live view asks for again and again.

use rusqlite::OptionalExtension;
use serde_json::Value;

use super::error::{json, sqlite};
use super::reader::Reader;
use crate::model::error::OptimizerError;
use crate::model::score::Score;

/// What a live view shows besides the totals.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Glance {
    pub best_train: Option<Score>,
    pub best_heldout: Option<Score>,
    pub seed_train: Option<Score>,
    /// Candidates that hold a cell of the frontier.
    pub frontier_size: u64,
    /// Answers that wait for their turn to become events.
    pub waiting: u64,
}

impl Reader {
    /// Reads the figures; the cost does not grow with the number of rollouts.
    pub fn glance(&self) -> Result<Glance, OptimizerError> {
        let best = "candidate_id = (SELECT best_candidate_id FROM run_state)";
        Ok(Glance {
            best_train: self.score("train_score", best)?,
            best_heldout: self.score("heldout_score", best)?,
            seed_train: self.score("train_score", "operation = 'seed'")?,
            frontier_size: self.count(
                "SELECT fields ->> 'size' FROM milestones WHERE type = 'frontier.updated'
                 ORDER BY sequence DESC LIMIT 1",
            )?,
            waiting: self.count("SELECT count(*) FROM inbox")?,
        })
    }

    /// The best candidate so far with its texts; none before the seed is measured.
    pub fn best(&self) -> Result<Option<Value>, OptimizerError> {
        let sql = "SELECT json_object('candidate_id', candidate_id, 'payload', json(payload_json),
                     'parent_ids', json(parent_ids_json), 'source', operation, 'generation', generation,
                     'status', status, 'changed_fields', json(changed_fields_json), 'rationale', rationale,
                     'train_score', json(train_score), 'heldout_score', json(heldout_score))
                   FROM candidates WHERE candidate_id = (SELECT best_candidate_id FROM run_state)";
        let found = self.list("read the best candidate", sql, [], |row| row.get::<_, String>(0))?;
        found.first().map(|text| serde_json::from_str(text).map_err(json("read the best candidate"))).transpose()
    }

    fn score(&self, column: &str, which: &str) -> Result<Option<Score>, OptimizerError> {
        let sql = format!("SELECT {column} FROM candidates WHERE {which}");
        let found: Option<Option<String>> = self.with(|db| {
            db.prepare_cached(&sql)
                .and_then(|mut statement| statement.query_row([], |row| row.get(0)).optional())
                .map_err(sqlite("read a score"))
        })?;
        found.flatten().map(|text| serde_json::from_str(&text).map_err(json("read a score"))).transpose()
    }

    fn count(&self, sql: &str) -> Result<u64, OptimizerError> {
        let found = self.list("count", sql, [], |row| row.get::<_, i64>(0))?;
        Ok(found.first().map_or(0, |count| count.unsigned_abs()))
    }
}

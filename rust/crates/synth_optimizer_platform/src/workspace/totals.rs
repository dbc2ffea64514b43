//! Where a run is and what it has used: the one row of `run_state`.

use rusqlite::{Connection, params};

use super::error::{invariant, sqlite};
use super::store::{int, run};
use crate::model::answer::FailureClass;
use crate::model::error::OptimizerError;
use crate::model::lifecycle::{Lifecycle, RunState};
use crate::model::usage::{Cost, NanoUsd, Usage};

/// Where a run is and what it has used so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Totals {
    pub state: RunState,
    pub best_candidate_id: Option<String>,
    pub last_sequence: Option<u64>,
    /// Milliseconds since 1970: first event, last event, end.
    pub started_at: Option<u64>,
    pub updated_at: Option<u64>,
    pub finished_at: Option<u64>,
    /// Which rule ended the search, as JSON.
    pub stopped_by: Option<String>,
    pub generations: u64,
    pub candidates: u64,
    pub rollouts_requested: u64,
    pub rollouts_finished: u64,
    /// With those that were tried again.
    pub rollouts_failed: u64,
    pub proposer_turns: u64,
    pub paid_calls: u64,
    pub cached_calls: u64,
    /// Paid calls whose cost nobody told.
    pub unpriced_calls: u64,
    /// Calls that were sent and of which nobody knows whether they ran.
    pub unknown_outcomes: u64,
    /// Of paid calls, as far as known.
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    /// The known part of what was paid.
    pub known_cost: NanoUsd,
}

impl Totals {
    /// What was paid; unknown as soon as the cost of one paid call is.
    pub fn cost(&self) -> Cost {
        if self.unpriced_calls == 0 { Cost::Known(self.known_cost) } else { Cost::Unknown }
    }

    pub fn is_over(&self) -> bool {
        self.state.is_final()
    }

    /// Counts a call that ran, or failed with this class.
    pub(super) fn count_call(&mut self, failure: Option<FailureClass>, usage: &Usage, cached: bool) {
        let cost = match failure {
            Some(FailureClass::NotSent | FailureClass::Withdrawn) => return,
            Some(FailureClass::UnknownOutcome | FailureClass::Abandoned) => {
                self.unknown_outcomes += 1;
                Cost::Unknown
            }
            Some(
                FailureClass::Failed | FailureClass::Timeout | FailureClass::Contract | FailureClass::InvalidScore,
            )
            | None => {
                if cached {
                    self.cached_calls += 1;
                    return;
                }
                usage.cost
            }
        };
        self.paid_calls += 1;
        self.prompt_tokens += usage.prompt_tokens.unwrap_or(0);
        self.completion_tokens += usage.completion_tokens.unwrap_or(0);
        self.total_tokens += usage.total().unwrap_or(0);
        match cost {
            Cost::Known(amount) => self.known_cost.0 = self.known_cost.0.saturating_add(amount.0),
            Cost::Unknown => self.unpriced_calls += 1,
        }
    }

    pub(super) fn read(db: &Connection) -> Result<Self, OptimizerError> {
        let sql =
            "SELECT state, best_candidate_id, last_sequence, started_at, updated_at, finished_at, stopped_by_json,
                     generations, candidates, rollouts_requested, rollouts_finished, rollouts_failed, proposer_turns,
                     paid_calls, cached_calls, unpriced_calls, unknown_outcomes, prompt_tokens, completion_tokens,
                     total_tokens, known_cost_nano_usd
                   FROM run_state";
        let (word, totals) = db
            .prepare_cached(sql)
            .and_then(|mut statement| {
                statement.query_row([], |row| {
                    let count = |index: usize| row.get::<_, i64>(index).map(i64::unsigned_abs);
                    let moment = |index: usize| row.get::<_, Option<i64>>(index).map(|at| at.map(i64::unsigned_abs));
                    let word: String = row.get(0)?;
                    let totals = Self {
                        state: RunState::INITIAL,
                        best_candidate_id: row.get(1)?,
                        last_sequence: moment(2)?,
                        started_at: moment(3)?,
                        updated_at: moment(4)?,
                        finished_at: moment(5)?,
                        stopped_by: row.get(6)?,
                        generations: count(7)?,
                        candidates: count(8)?,
                        rollouts_requested: count(9)?,
                        rollouts_finished: count(10)?,
                        rollouts_failed: count(11)?,
                        proposer_turns: count(12)?,
                        paid_calls: count(13)?,
                        cached_calls: count(14)?,
                        unpriced_calls: count(15)?,
                        unknown_outcomes: count(16)?,
                        prompt_tokens: count(17)?,
                        completion_tokens: count(18)?,
                        total_tokens: count(19)?,
                        known_cost: NanoUsd(count(20)?),
                    };
                    Ok((word, totals))
                })
            })
            .map_err(sqlite("read the state of the run"))?;
        let state = RunState::from_word(&word).ok_or_else(|| invariant(format!("{word:?} is not a state of a run")))?;
        Ok(Self { state, ..totals })
    }

    pub(super) fn write(&self, db: &Connection) -> Result<(), OptimizerError> {
        let sql = "UPDATE run_state SET state = ?1, best_candidate_id = ?2, last_sequence = ?3, started_at = ?4,
                     updated_at = ?5, finished_at = ?6, stopped_by_json = ?7, generations = ?8, candidates = ?9,
                     rollouts_requested = ?10, rollouts_finished = ?11, rollouts_failed = ?12, proposer_turns = ?13,
                     paid_calls = ?14, cached_calls = ?15, unpriced_calls = ?16, unknown_outcomes = ?17,
                     prompt_tokens = ?18, completion_tokens = ?19, total_tokens = ?20, known_cost_nano_usd = ?21";
        let values = params![
            self.state.word(),
            self.best_candidate_id,
            self.last_sequence.map(int),
            self.started_at.map(int),
            self.updated_at.map(int),
            self.finished_at.map(int),
            self.stopped_by,
            int(self.generations),
            int(self.candidates),
            int(self.rollouts_requested),
            int(self.rollouts_finished),
            int(self.rollouts_failed),
            int(self.proposer_turns),
            int(self.paid_calls),
            int(self.cached_calls),
            int(self.unpriced_calls),
            int(self.unknown_outcomes),
            int(self.prompt_tokens),
            int(self.completion_tokens),
            int(self.total_tokens),
            int(self.known_cost.0),
        ];
        run(db, "store the state of the run", sql, values)
    }
}

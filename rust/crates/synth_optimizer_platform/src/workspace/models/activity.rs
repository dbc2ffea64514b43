//! What a run does now: evaluations and proposer turns in progress, calls without an answer, and answers in the inbox.

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::projector::totals;
use super::super::query::{documents, first};
use super::super::reader::{Reader, run_row};
use super::read_error::ReadError;
use synth_optimizer_core::config::read_stored;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::Stage;

/// The work of a run that has no outcome yet. Empty for an ended run. An interrupted run has the work that it continues with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RunActivity {
    /// Evaluations in progress, in the order in which they were requested.
    pub evaluations: Vec<EvaluationActivity>,
    /// Proposer turns in progress, in the order in which they were requested.
    pub turns: Vec<TurnActivity>,
    /// Calls that were sent and have no answer, by kind. A kind without such calls is left out.
    pub unanswered: Vec<UnansweredCalls>,
    /// Answers that wait in the inbox for their turn to become events.
    pub waiting_answers: u64,
    /// How many rollouts may be in flight now.
    #[serde(skip)]
    pub rollout_limit: u32,
    /// How many proposer turns may be in flight.
    #[serde(skip)]
    pub turn_limit: u32,
}

/// An evaluation in progress. The rollouts that are not done, answered or running wait to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EvaluationActivity {
    /// The candidate.
    pub candidate_id: String,
    /// The purpose of its rollouts.
    pub stage: Stage,
    /// Rollouts that were requested and not withdrawn. A retry is another rollout.
    pub total: u64,
    /// Rollouts with an outcome.
    pub done: u64,
    /// Rollouts with an outcome and without a score.
    pub failed: u64,
    /// Rollouts whose answer waits for its turn to become an event.
    pub answered: u64,
    /// Rollouts that were sent and have no answer.
    pub running: u64,
    /// When its first rollout was sent or answered from the cache. Null before.
    pub since: Option<String>,
}

/// A proposer turn in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnActivity {
    /// Its number, from 1.
    pub turn: u64,
    /// The generation that requested proposals.
    pub generation: u32,
    /// Whether it asks the proposer to repair the previous answer.
    pub is_repair: bool,
    /// When it was requested.
    pub since: Option<String>,
}

/// The calls of one kind that were sent and have no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnansweredCalls {
    /// The kind.
    pub kind: CallKind,
    /// Number of these calls.
    pub count: u64,
    /// When the oldest of them was sent.
    pub oldest_sent_at: String,
}

/// Selects the evaluations that have a rollout without an outcome, among the calls from `?1` on.
const EVALUATIONS: &str = "SELECT json_object('candidate_id', r.candidate_id, 'stage', r.evaluation_stage,
      'total', count(*) FILTER (WHERE r.billing IS NOT 'unsent'),
      'done', count(*) FILTER (WHERE r.billing <> 'unsent'),
      'failed', count(*) FILTER (WHERE r.billing <> 'unsent' AND r.reward IS NULL),
      'answered', count(*) FILTER (WHERE r.billing IS NULL AND c.answered_at IS NOT NULL),
      'running', count(*) FILTER (WHERE r.billing IS NULL AND c.answered_at IS NULL AND c.sent_at IS NOT NULL),
      'since', strftime('%Y-%m-%dT%H:%M:%fZ', min(coalesce(c.sent_at, c.answered_at)) / 1000.0, 'unixepoch'))
    FROM rollouts r LEFT JOIN calls c ON c.call_id = r.call_id
    WHERE r.call_id >= ?1 GROUP BY r.evaluation HAVING count(*) FILTER (WHERE r.billing IS NULL) > 0 ORDER BY r.evaluation";

const TURNS: &str = "SELECT json_object('turn', (SELECT count(*) FROM proposer_calls e WHERE e.call_id <= p.call_id),
      'generation', p.generation,
      'is_repair', json(iif(coalesce(json_array_length(e.fields, '$.problems'), 0) > 0, 'true', 'false')),
      'since', strftime('%Y-%m-%dT%H:%M:%fZ', e.unix_millis / 1000.0, 'unixepoch'))
    FROM proposer_calls p LEFT JOIN events e ON e.sequence = p.started_sequence
    WHERE p.status = 'started' ORDER BY p.call_id";

/// Selects the outstanding calls without an answer, among the calls from `?1` on.
const UNANSWERED: &str = "SELECT json_object('kind', kind, 'count', count(*),
      'oldest_sent_at', strftime('%Y-%m-%dT%H:%M:%fZ', min(sent_at) / 1000.0, 'unixepoch'))
    FROM calls WHERE call_id >= ?1 AND sent_at IS NOT NULL AND answered_at IS NULL AND (
      EXISTS (SELECT 1 FROM rollouts r WHERE r.call_id = calls.call_id AND r.status = 'requested') OR
      EXISTS (SELECT 1 FROM proposer_calls p WHERE p.call_id = calls.call_id AND p.status = 'started'))
    GROUP BY kind ORDER BY kind DESC";

impl Reader {
    /// Returns what the run does now. Reads the calls since the oldest one without an outcome, not those before.
    pub fn activity(&self) -> Result<RunActivity, ReadError> {
        self.in_snapshot(|db| {
            let totals = totals(db)?;
            if totals.is_terminal() {
                return Ok(RunActivity::default());
            }
            let doing = "read the work in progress";
            let (call, evaluation) = oldest_rollout(db, totals.counts.rollouts_outstanding())?.unzip();
            let turn = "SELECT min(call_id) FROM proposer_calls WHERE status = 'started'";
            let turn: Option<u64> = first(db, doing, turn, [], |row| row.get(0))?.flatten();
            let evaluations = match evaluation {
                Some(evaluation) => documents(db, doing, EVALUATIONS, [evaluation])?,
                None => Vec::new(),
            };
            let unanswered = match call.into_iter().chain(turn).min() {
                Some(oldest) => documents(db, doing, UNANSWERED, [oldest])?,
                None => Vec::new(),
            };
            let waiting_answers = first(db, doing, "SELECT count(*) FROM inbox", [], |row| row.get(0))?.unwrap_or(0);
            let gepa = read_stored(&run_row(db)?.config).unwrap_or_default().gepa;
            let most = gepa.pipeline.concurrent_rollouts();
            Ok(RunActivity {
                evaluations,
                turns: documents(db, doing, TURNS, [])?,
                unanswered,
                waiting_answers,
                rollout_limit: totals.concurrency.map_or(most, |adjusted| adjusted.new_limit),
                turn_limit: gepa.proposer_turns(),
            })
        })
    }
}

/// Returns the first call and the first evaluation among the rollouts without an outcome. The newest calls are read first, until
/// all of these `outstanding` rollouts are found.
fn oldest_rollout(db: &Connection, outstanding: u64) -> Result<Option<(u64, u64)>, OptimizerError> {
    let sql = "SELECT min(call_id), min(evaluation) FROM (
                 SELECT call_id, evaluation FROM rollouts WHERE status = 'requested' ORDER BY call_id DESC LIMIT ?1)";
    let found = first(db, "read the work in progress", sql, [outstanding], |row| {
        Ok(row.get::<_, Option<u64>>(0)?.zip(row.get(1)?))
    })?;
    Ok(found.flatten())
}

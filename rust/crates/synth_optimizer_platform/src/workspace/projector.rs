//! Writes the projections: the tables that are computed from the log alone. No other module writes them.

use rusqlite::types::ToSql;
use rusqlite::{Connection, params, params_from_iter};
use serde::Serialize;

use super::error::{invariant, json, sqlite};
use super::query::{document, run};
use super::records::StoredEvent;
use super::store::digest_from_hex;
use synth_optimizer_core::model::candidate_view::{Candidate, affected_candidates, final_train_scores};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::RolloutsRequested;
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::lifecycle::Lifecycle;
use synth_optimizer_core::model::run_totals::RunTotals;

const FINISH_ROLLOUT: &str =
    "UPDATE rollouts SET status = 'finished', settled_sequence = ?2, billing = ?3, prompt_tokens = ?4,
    completion_tokens = ?5, total_tokens = ?6, cost_nano_usd = ?7, reward = ?8, objectives_json = ?9, trace_digest = ?10
    WHERE call_id = ?1 AND status = 'requested'";
const FAIL_ROLLOUT: &str =
    "UPDATE rollouts SET settled_sequence = ?2, billing = ?3, prompt_tokens = ?4, completion_tokens = ?5,
    total_tokens = ?6, cost_nano_usd = ?7, status = ?8, failure_class = ?9, failure_message = ?10
    WHERE call_id = ?1 AND status = 'requested'";
const COMPLETE_TURN: &str = "UPDATE proposer_calls SET status = 'completed', settled_sequence = ?2, billing = ?3,
    prompt_tokens = ?4, completion_tokens = ?5, total_tokens = ?6, cost_nano_usd = ?7, proposal_count = ?8, ignored = ?9,
    requested_model = ?10, effective_model = ?11
    WHERE call_id = ?1 AND status = 'started'";
const FAIL_TURN: &str = "UPDATE proposer_calls SET settled_sequence = ?2, billing = ?3, prompt_tokens = ?4,
    completion_tokens = ?5, total_tokens = ?6, cost_nano_usd = ?7, status = ?8, failure_class = ?9, failure_message = ?10
    WHERE call_id = ?1 AND status = 'started'";

/// Applies events to the projections. `finish` writes the totals of the run once per transaction.
#[derive(Debug)]
pub(super) struct Projector {
    totals: RunTotals,
    changed: bool,
}

impl Projector {
    pub(super) fn load(db: &Connection) -> Result<Self, OptimizerError> {
        // The temporary tables of a rebuild have no totals yet.
        let stored = read_totals(db)?;
        Ok(Self { changed: stored.is_none(), totals: stored.unwrap_or_default() })
    }

    pub(super) fn last_sequence(&self) -> Option<u64> {
        self.totals.last_sequence
    }

    pub(super) fn finish(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        if std::mem::take(&mut self.changed) { write_totals(db, &self.totals) } else { Ok(()) }
    }

    pub(super) fn apply(&mut self, db: &Connection, events: &[StoredEvent]) -> Result<(), OptimizerError> {
        for stored in events {
            self.changed = true;
            self.totals.apply(stored.sequence, stored.unix_millis, &stored.event);
            project(db, stored)?;
        }
        Ok(())
    }
}

/// Writes the rows that an event changes.
fn project(db: &Connection, stored: &StoredEvent) -> Result<(), OptimizerError> {
    let (at, event) = (stored.sequence, &stored.event);
    match event {
        Event::CandidateRegistered(fields) => {
            save_candidate(db, &Candidate::new(at, stored.unix_millis, fields))?;
        }
        Event::RolloutsRequested(fields) => rollouts_requested(db, fields)?,
        Event::RolloutFinished(fields) => {
            let objectives = if fields.objectives.is_empty() { None } else { Some(text(&fields.objectives)?) };
            let trace = fields.trace_digest.as_deref().map(digest_from_hex).transpose()?;
            settle(db, FINISH_ROLLOUT, stored, &[&fields.reward, &objectives, &trace])?;
        }
        Event::RolloutFailed(fields) => {
            let status = if fields.retried { "retried" } else { "failed" };
            settle(db, FAIL_ROLLOUT, stored, &[&status, &fields.class.as_str(), &fields.message])?;
        }
        Event::ProposerStarted(fields) => {
            let sql =
                "INSERT INTO proposer_calls (call_id, generation, attempt, proposal_count, status, started_sequence)
                       VALUES (?1, ?2, ?3, ?4, 'started', ?5)";
            let values = params![fields.call_id.0, fields.generation, fields.attempt, fields.proposal_count, at];
            run(db, "project a proposer turn", sql, values)?;
        }
        Event::ProposerCompleted(fields) => {
            let more: &[&dyn ToSql] =
                &[&fields.proposal_count, &fields.ignored, &fields.requested_model, &fields.effective_model];
            settle(db, COMPLETE_TURN, stored, more)?;
        }
        Event::ProposerFailed(fields) => {
            let status = if fields.retried { "retried" } else { "failed" };
            settle(db, FAIL_TURN, stored, &[&status, &fields.class.as_str(), &fields.message])?;
        }
        _ => {}
    }
    for id in affected_candidates(event) {
        let mut candidate = read_candidate(db, id.as_str())?
            .ok_or_else(|| invariant(format!("event {at} is about candidate {id}, which is not registered")))?;
        check_move(&candidate, id, event)?;
        candidate.apply(at, stored.unix_millis, event);
        save_candidate(db, &candidate)?;
    }
    for (id, score) in final_train_scores(event) {
        if let Some(mut candidate) = read_candidate(db, id.as_str())? {
            candidate.record_final_score(score);
            save_candidate(db, &candidate)?;
        }
    }
    Ok(())
}

/// Fails if an event moves a candidate along a transition that its lifecycle does not have.
fn check_move(candidate: &Candidate, id: &CandidateId, event: &Event) -> Result<(), OptimizerError> {
    match event.candidate_trigger() {
        Some((moved, trigger)) if moved == id => candidate.status.next(trigger).map(|_| ()),
        Some(_) | None => Ok(()),
    }
}

/// Returns the stored totals, if there are any.
fn read_totals(db: &Connection) -> Result<Option<RunTotals>, OptimizerError> {
    document(db, "read the state of the run", "SELECT totals FROM run_state", [])
}

/// Returns the totals of a run. Every workspace has them.
pub(super) fn totals(db: &Connection) -> Result<RunTotals, OptimizerError> {
    read_totals(db)?.ok_or_else(|| invariant("the workspace has no totals"))
}

pub(super) fn write_totals(db: &Connection, totals: &RunTotals) -> Result<(), OptimizerError> {
    let sql = "INSERT INTO run_state (one, totals, usage_json) VALUES (1, ?1, ?2)
               ON CONFLICT (one) DO UPDATE SET totals = excluded.totals, usage_json = excluded.usage_json";
    run(db, "store the state of the run", sql, [text(totals)?, text(&totals.counts.usage())?]).map(drop)
}

/// Returns a stored candidate.
pub(super) fn read_candidate(db: &Connection, id: &str) -> Result<Option<Candidate>, OptimizerError> {
    document(db, "read a candidate", "SELECT record FROM candidates WHERE candidate_id = ?1", [id])
}

fn save_candidate(db: &Connection, candidate: &Candidate) -> Result<(), OptimizerError> {
    let sql = "INSERT INTO candidates (candidate_id, registered_sequence, updated_sequence, status, on_frontier, record, operation,
                 parent_ids_json, generation)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
               ON CONFLICT (candidate_id) DO UPDATE SET updated_sequence = excluded.updated_sequence, status = excluded.status,
                 on_frontier = excluded.on_frontier, record = excluded.record";
    let values = params![
        candidate.candidate_id.as_str(),
        candidate.registered_sequence,
        candidate.updated_sequence,
        candidate.status.as_str(),
        candidate.on_frontier,
        text(candidate)?,
        candidate.source.as_str(),
        text(&candidate.parent_ids)?,
        candidate.generation,
    ];
    run(db, "project a candidate", sql, values).map(drop)
}

fn rollouts_requested(db: &Connection, fields: &RolloutsRequested) -> Result<(), OptimizerError> {
    let sql = "INSERT INTO rollouts (call_id, evaluation, candidate_id, example_id, evaluation_stage, generation,
                 attempt, replicate, status)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'requested')";
    let mut statement = db.prepare_cached(sql).map_err(sqlite("project a rollout"))?;
    for (offset, row) in fields.row_ids.iter().enumerate() {
        let values = params![
            fields.first_call_id.0 + offset as u64,
            fields.evaluation.0,
            fields.candidate_id.as_str(),
            row.as_str(),
            fields.stage.as_str(),
            fields.generation,
            fields.attempt,
            fields.replicate,
        ];
        statement.execute(values).map_err(sqlite("project a rollout"))?;
    }
    Ok(())
}

/// Settles an outstanding call: sets the columns that every call has, and `more` from ?8 on.
fn settle(db: &Connection, sql: &str, stored: &StoredEvent, more: &[&dyn ToSql]) -> Result<(), OptimizerError> {
    let Some(call) = stored.event.settled_call() else { return Ok(()) };
    let (usage, cost) = (call.usage, call.usage.cost.known().map(|amount| amount.0));
    let (id, at, billing, total) = (call.call_id.0, stored.sequence, call.billing.as_str(), usage.total());
    let common: [&dyn ToSql; 7] = [&id, &at, &billing, &usage.prompt_tokens, &usage.completion_tokens, &total, &cost];
    let values = params_from_iter(common.into_iter().chain(more.iter().copied()));
    if run(db, "project an answer", sql, values)? != 1 {
        return Err(invariant(format!("event {at} settles call {id}, which is not outstanding")));
    }
    Ok(())
}

fn text<T: Serialize>(value: &T) -> Result<String, OptimizerError> {
    serde_json::to_string(value).map_err(json("store an event"))
}

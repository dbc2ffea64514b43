//! The one place that writes projections: each is a function of the log.

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;

use super::batch::Stored;
use super::error::{invariant, json, sqlite};
use super::store::{Reused, digest_bytes, int, run};
use super::totals::Totals;
use crate::model::answer::FailureClass;
use crate::model::error::OptimizerError;
use crate::model::event::Event;
use crate::model::event_fields::{
    CandidateDecided, CandidateRegistered, EvaluationCompleted, RolloutFailed, RolloutFinished, RolloutsRequested,
    RunEnded, RunFailed, Stage,
};
use crate::model::ids::{CandidateId, RequestId};
use crate::model::lifecycle::{CandidateStatus, CandidateTrigger, Lifecycle};
use crate::model::usage::{Cost, Usage};

const FINISH_ROLLOUT: &str = "UPDATE rollouts SET status = 'finished', settled = ?2, cached = ?3, prompt_tokens = ?4,
    completion_tokens = ?5, total_tokens = ?6, cost_nano_usd = ?7, reward = ?8, objectives_json = ?9, trace = ?10
    WHERE request = ?1 AND status = 'requested'";

/// Applies events to the projections. The run's own row is written once per transaction, by `finish`.
#[derive(Debug)]
pub(super) struct Projector {
    totals: Totals,
    changed: bool,
}

/// The columns of a score.
#[derive(Debug, Clone, Copy)]
enum Measured {
    Minibatch,
    Train,
    Heldout,
}

impl Projector {
    pub(super) fn load(db: &Connection) -> Result<Self, OptimizerError> {
        Ok(Self { totals: Totals::read(db)?, changed: false })
    }

    pub(super) fn last_sequence(&self) -> Option<u64> {
        self.totals.last_sequence
    }

    pub(super) fn finish(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        if std::mem::take(&mut self.changed) { self.totals.write(db) } else { Ok(()) }
    }

    pub(super) fn apply(&mut self, db: &Connection, events: &[Stored]) -> Result<(), OptimizerError> {
        let mut finish = Reused::new(db, FINISH_ROLLOUT);
        events.iter().try_for_each(|stored| self.apply_one(db, stored, &mut finish))
    }

    fn apply_one(&mut self, db: &Connection, stored: &Stored, finish: &mut Reused<'_>) -> Result<(), OptimizerError> {
        let at = stored.sequence;
        self.changed = true;
        self.totals.last_sequence = Some(at);
        self.totals.updated_at = Some(stored.unix_millis);
        self.totals.started_at.get_or_insert(stored.unix_millis);
        match &stored.event {
            Event::StateTransitioned(change) => {
                self.totals.state = change.to;
                self.totals.finished_at = change.to.is_final().then_some(stored.unix_millis);
            }
            Event::CandidateRegistered(fields) => self.registered(db, at, fields)?,
            Event::RolloutsRequested(fields) => self.rollouts_requested(db, fields)?,
            Event::RolloutFinished(fields) => self.rollout_finished(finish, at, fields)?,
            Event::RolloutFailed(fields) => self.rollout_failed(db, at, fields)?,
            Event::SeedEvaluated(fields) | Event::FullTrainEvaluated(fields) => {
                move_on(db, at, &fields.candidate_id, CandidateTrigger::FullTrainDone)?;
                measured(db, at, fields, Measured::Train)?;
            }
            Event::MinibatchEvaluated(fields) => {
                move_on(db, at, &fields.candidate_id, CandidateTrigger::MinibatchDone)?;
                measured(db, at, fields, Measured::Minibatch)?;
            }
            Event::HeldoutCompleted(fields) => measured(db, at, fields, Measured::Heldout)?,
            Event::CandidateAccepted(fields) => {
                move_on(db, at, &fields.candidate_id, CandidateTrigger::Accept)?;
                if fields.comparison.as_ref().is_none_or(|comparison| comparison.primary_delta >= 0.0) {
                    self.best(&fields.candidate_id);
                }
            }
            Event::CandidateRejected(fields) => move_on(db, at, &fields.candidate_id, lost(fields))?,
            Event::CandidateDeferred(fields) => move_on(db, at, &fields.candidate_id, fields.reason)?,
            Event::ProposerStarted(fields) => {
                self.totals.proposer_turns += 1;
                let sql = "INSERT INTO proposer_calls (request, generation, attempt, proposal_count, status, started)
                           VALUES (?1, ?2, ?3, ?4, 'started', ?5)";
                let request = int(fields.request.0);
                let values = params![request, fields.generation, fields.attempt, fields.proposal_count, int(at)];
                run(db, "project a proposer turn", sql, values)?;
            }
            Event::ProposerCompleted(fields) => {
                self.totals.count_call(None, &fields.usage, fields.cached);
                let sql =
                    "UPDATE proposer_calls SET status = 'completed', settled = ?2, cached = ?3, prompt_tokens = ?4,
                             completion_tokens = ?5, total_tokens = ?6, cost_nano_usd = ?7, proposal_count = ?8,
                             ignored = ?9, requested_model = ?10, effective_model = ?11
                           WHERE request = ?1 AND status = 'started'";
                let more: &[&dyn ToSql] =
                    &[&fields.proposal_count, &fields.ignored, &fields.requested_model, &fields.effective_model];
                settle(&mut Reused::new(db, sql), at, fields.request, &fields.usage, fields.cached, more)?;
            }
            Event::ProposerFailed(fields) => {
                self.totals.count_call(Some(fields.class), &fields.usage, fields.cached);
                let sql = "UPDATE proposer_calls SET settled = ?2, cached = ?3, prompt_tokens = ?4,
                             completion_tokens = ?5, total_tokens = ?6, cost_nano_usd = ?7, status = ?8,
                             failure_class = ?9, failure_message = ?10
                           WHERE request = ?1 AND status = 'started'";
                let more = failure_columns(fields.retried, fields.class, &fields.message);
                let more: Vec<&dyn ToSql> = more.iter().map(|text| text as &dyn ToSql).collect();
                settle(&mut Reused::new(db, sql), at, fields.request, &fields.usage, fields.cached, &more)?;
            }
            Event::GenerationCompleted(fields) => {
                self.totals.generations += 1;
                self.best(&fields.best_candidate_id);
            }
            Event::StopDecided(fields) => self.totals.stopped_by = Some(text(&fields.stopped_by)?),
            Event::RunFinished(fields) => self.best(&fields.best_candidate_id),
            Event::RunFailed(RunFailed { best_candidate_id, .. })
            | Event::RunCancelled(RunEnded { best_candidate_id, .. }) => {
                if let Some(best) = best_candidate_id {
                    self.best(best);
                }
            }
            Event::RunStarted(_)
            | Event::ContractVerified(_)
            | Event::TaskInfoLoaded(_)
            | Event::TaskInfoMissing(_)
            | Event::RowsMapped(_)
            | Event::ProgramLoaded(_)
            | Event::RowsLoaded(_)
            | Event::ObjectiveSetDeclared(_)
            | Event::ReferenceCompleted(_)
            | Event::CandidatePromoted(_)
            | Event::GenerationStarted(_)
            | Event::MinibatchSkipped(_)
            | Event::ProposalRejected(_)
            | Event::DuplicateSkipped(_)
            | Event::LeakageDetected(_)
            | Event::FrontierUpdated(_)
            | Event::BudgetRefused(_)
            | Event::CircuitBreakerTripped(_)
            | Event::StopRequested(_)
            | Event::CancelRequested(_)
            | Event::FailureRaised(_)
            | Event::RunResumed(_)
            | Event::ProposerReady(_)
            | Event::RunInterrupted(_)
            | Event::TransportFallback(_)
            | Event::ConcurrencyAdjusted(_)
            | Event::EchoMissing(_)
            | Event::CacheDamaged(_)
            | Event::ClockObserved(_)
            | Event::HeldoutStarted(_)
            | Event::HeldoutPartial(_)
            | Event::HeldoutSkipped(_) => {}
        }
        Ok(())
    }

    fn best(&mut self, candidate: &CandidateId) {
        if self.totals.best_candidate_id.as_deref() != Some(candidate.as_str()) {
            self.totals.best_candidate_id = Some(candidate.as_str().to_owned());
        }
    }

    fn registered(&mut self, db: &Connection, at: u64, fields: &CandidateRegistered) -> Result<(), OptimizerError> {
        self.totals.candidates += 1;
        let sql = "INSERT INTO candidates (candidate_id, operation, parent_ids_json, generation, status, payload_json,
                     changed_fields_json, rationale, registered, updated)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)";
        let values = params![
            fields.candidate_id.as_str(),
            fields.operation.word(),
            text(&fields.parent_ids)?,
            fields.generation,
            CandidateStatus::INITIAL.word(),
            text(&fields.payload)?,
            text(&fields.changed_fields)?,
            fields.rationale,
            int(at),
        ];
        run(db, "project a candidate", sql, values)
    }

    fn rollouts_requested(&mut self, db: &Connection, fields: &RolloutsRequested) -> Result<(), OptimizerError> {
        let sql = "INSERT INTO rollouts (request, evaluation, candidate_id, example_id, evaluation_stage, generation,
                     attempt, replicate, status)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'requested')";
        let mut statement = db.prepare_cached(sql).map_err(sqlite("project a rollout"))?;
        for (offset, row) in fields.row_ids.iter().enumerate() {
            let request = int(fields.first_request.0 + offset as u64);
            let values = params![
                request,
                int(fields.evaluation.0),
                fields.candidate_id.as_str(),
                row.as_str(),
                fields.stage.word(),
                fields.generation,
                fields.attempt,
                fields.replicate,
            ];
            statement.execute(values).map_err(sqlite("project a rollout"))?;
        }
        self.totals.rollouts_requested += fields.row_ids.len() as u64;
        Ok(())
    }

    fn rollout_finished(
        &mut self,
        finish: &mut Reused<'_>,
        at: u64,
        fields: &RolloutFinished,
    ) -> Result<(), OptimizerError> {
        self.totals.rollouts_finished += 1;
        self.totals.count_call(None, &fields.usage, fields.cached);
        let objectives = if fields.objectives.is_empty() { None } else { Some(text(&fields.objectives)?) };
        let trace = fields.trace_digest.as_deref().map(digest_bytes).transpose()?;
        let more: &[&dyn ToSql] = &[&fields.reward, &objectives, &trace.as_ref().map(<[u8; 32]>::as_slice)];
        settle(finish, at, fields.request, &fields.usage, fields.cached, more)
    }

    fn rollout_failed(&mut self, db: &Connection, at: u64, fields: &RolloutFailed) -> Result<(), OptimizerError> {
        self.totals.rollouts_failed += 1;
        self.totals.count_call(Some(fields.class), &fields.usage, fields.cached);
        let sql = "UPDATE rollouts SET settled = ?2, cached = ?3, prompt_tokens = ?4, completion_tokens = ?5,
                     total_tokens = ?6, cost_nano_usd = ?7, status = ?8, failure_class = ?9, failure_message = ?10
                   WHERE request = ?1 AND status = 'requested'";
        let more = failure_columns(fields.retried, fields.class, &fields.message);
        let more: Vec<&dyn ToSql> = more.iter().map(|text| text as &dyn ToSql).collect();
        settle(&mut Reused::new(db, sql), at, fields.request, &fields.usage, fields.cached, &more)
    }
}

/// Settles an outstanding request: the columns that every call has, then `more` from ?8 on.
fn settle(
    statement: &mut Reused<'_>,
    at: u64,
    request: RequestId,
    usage: &Usage,
    cached: bool,
    more: &[&dyn ToSql],
) -> Result<(), OptimizerError> {
    let numbers = [usage.prompt_tokens, usage.completion_tokens, usage.total()].map(|count| count.map(int));
    let cost = match usage.cost {
        Cost::Known(amount) => Some(int(amount.0)),
        Cost::Unknown => None,
    };
    let (id, at) = (int(request.0), int(at));
    let common: [&dyn ToSql; 7] = [&id, &at, &cached, &numbers[0], &numbers[1], &numbers[2], &cost];
    let values = rusqlite::params_from_iter(common.into_iter().chain(more.iter().copied()));
    let changed = statement.run("project an answer", values)?;
    if changed != 1 {
        return Err(invariant(format!("event {at} settles request {}, which is not outstanding", request.0)));
    }
    Ok(())
}

fn failure_columns(retried: bool, class: FailureClass, message: &str) -> [&str; 3] {
    [if retried { "retried" } else { "failed" }, class.word(), message]
}

fn move_on(db: &Connection, at: u64, id: &CandidateId, trigger: CandidateTrigger) -> Result<(), OptimizerError> {
    let found: Option<String> = db
        .prepare_cached("SELECT status FROM candidates WHERE candidate_id = ?1")
        .and_then(|mut statement| statement.query_row([id.as_str()], |row| row.get(0)).optional())
        .map_err(sqlite("read a candidate"))?;
    let status = found
        .as_deref()
        .and_then(CandidateStatus::from_word)
        .ok_or_else(|| invariant(format!("event {at} is about candidate {id}, which is not registered")))?;
    let next = status.next(trigger)?;
    let sql = "UPDATE candidates SET status = ?2, updated = ?3 WHERE candidate_id = ?1";
    run(db, "project a candidate", sql, params![id.as_str(), next.word(), int(at)])
}

fn measured(db: &Connection, at: u64, fields: &EvaluationCompleted, what: Measured) -> Result<(), OptimizerError> {
    let sql = match what {
        Measured::Minibatch => "UPDATE candidates SET minibatch_score = ?2, updated = ?3 WHERE candidate_id = ?1",
        Measured::Train => "UPDATE candidates SET train_score = ?2, updated = ?3 WHERE candidate_id = ?1",
        Measured::Heldout => "UPDATE candidates SET heldout_score = ?2, updated = ?3 WHERE candidate_id = ?1",
    };
    let score = fields.score.as_ref().map(text).transpose()?;
    run(db, "project a score", sql, params![fields.candidate_id.as_str(), score, int(at)])
}

fn lost(fields: &CandidateDecided) -> CandidateTrigger {
    match fields.stage {
        Stage::CandidateMinibatch => CandidateTrigger::MinibatchLost,
        Stage::SeedFullTrain | Stage::ParentMinibatchReference | Stage::CandidateFullTrain | Stage::Heldout => {
            CandidateTrigger::FullTrainLost
        }
    }
}

fn text<T: Serialize>(value: &T) -> Result<String, OptimizerError> {
    serde_json::to_string(value).map_err(json("store an event"))
}

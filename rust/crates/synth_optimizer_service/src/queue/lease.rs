//! What the holder of a request does with it. Every write is refused as fenced once another worker has the lease.

use std::time::Duration;

use rusqlite::{Connection, named_params};
use serde_json::{Value, json};

use super::Queue;
use super::entry::{RequestEntry, entry_of};
use super::error::{QueueError, sql};
use super::recover::{cancel, let_go, set_aside};
use super::transitions::{RequestRow, execute, fenced, int, length, transition};
use crate::Code;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::{RequestState, RequestTrigger};
use synth_optimizer_core::secrets::redact;
use synth_optimizer_platform::clock::Moment;

/// By what somebody says that a request is theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold<'a> {
    /// The fencing token of the claim.
    Token(i64),
    /// The id of the lease.
    Lease(&'a str),
    /// Nothing: whoever holds it is meant, as long as the lease has not run out.
    Current,
}

/// What a run left behind.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    pub run_workspace_db_path: Option<String>,
    pub result_manifest_path: Option<String>,
    pub best_candidate_id: Option<String>,
    /// Unknown is not zero.
    pub cost_usd: Option<f64>,
    pub usage: Option<Value>,
    pub result: Option<Value>,
}

/// A request that has a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRequest {
    pub request_id: String,
    pub fencing_token: i64,
    /// What its holder is asked for.
    pub asked: Option<ControlRequest>,
}

impl Queue {
    /// Every request that has a holder, with what the holder is asked for.
    pub fn held_requests(&self) -> Result<Vec<HeldRequest>, QueueError> {
        let held = |row: RequestRow| HeldRequest {
            asked: row.asked(),
            request_id: row.request_id,
            fencing_token: row.fencing_token,
        };
        self.read(|db, _| Ok(RequestRow::held(db)?.into_iter().map(held).collect()))
    }

    /// The holder begins to work on it.
    pub fn start(&self, request_id: &str, hold: Hold<'_>) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, row| transition(db, now, row, RequestTrigger::Start, None, &json!({})))
    }

    /// Makes the lease last that long from now. `progress_at` is when the run last stored an event, in milliseconds since
    /// 1970. `None`: the lease is not the caller's any more.
    pub fn heartbeat(
        &self,
        request_id: &str,
        hold: Hold<'_>,
        lease: Duration,
        progress_at: Option<u64>,
    ) -> Result<Option<RequestEntry>, QueueError> {
        let renewed = self.held(request_id, hold, |db, now, row| {
            let values = named_params! {
                ":now": int(now.wall), ":boot": int(now.boot), ":boot_id": now.boot_id, ":lease": length(lease),
                ":seq": row.seq, ":token": row.fencing_token, ":progress": progress_at.map(int),
            };
            let text = "UPDATE run_requests SET lease_expires_at = :now + :lease,
                lease_deadline_boot = :boot + :lease, lease_boot_id = :boot_id, updated_at = :now,
                progress_at = coalesce(:progress, progress_at)
                WHERE seq = :seq AND fencing_token = :token AND status IN ('leased', 'running')";
            execute(db, "extend a lease", text, values).map(drop)
        });
        match renewed {
            Ok(entry) => Ok(Some(entry)),
            Err(refused) if refused.code == Some(Code::Fenced) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes how far the run is, by any number that changes when it gets on, and tells how many holders were lost since
    /// it was another one.
    pub fn progress(&self, request_id: &str, hold: Hold<'_>, mark: i64) -> Result<i64, QueueError> {
        self.write(|db, now| {
            let row = held_row(db, now, request_id, hold)?;
            db.prepare_cached(
                "UPDATE run_requests SET losses = CASE WHEN progress_mark IS ?1 THEN losses ELSE 0 END,
                   progress_mark = ?1, progress_at = ?2, updated_at = ?2 WHERE seq = ?3 RETURNING losses",
            )
            .and_then(|mut statement| statement.query_row((mark, int(now.wall), row.seq), |row| row.get(0)))
            .map_err(sql("note progress"))
        })
    }

    /// The run is done.
    pub fn complete(&self, request_id: &str, hold: Hold<'_>, done: &Completion) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, row| {
            let detail = json!({"best_candidate_id": done.best_candidate_id});
            transition(db, now, row, RequestTrigger::Complete, None, &detail)?;
            store_result(db, row.seq, done)
        })
    }

    /// Adds to a request that did not end well what its run has left.
    pub fn summarize(&self, request_id: &str, done: &Completion) -> Result<RequestEntry, QueueError> {
        self.write(|db, _| {
            let row = RequestRow::of_request(db, request_id)?;
            if matches!(row.status, RequestState::Failed | RequestState::Cancelled) {
                store_result(db, row.seq, done)?;
            }
            entry_of(db, row.seq)
        })
    }

    /// The run failed. `reason_code` says more precisely why, and the error must not hold a secret.
    pub fn fail(
        &self,
        request_id: &str,
        hold: Hold<'_>,
        error: &OptimizerError,
        reason_code: Option<&str>,
    ) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, row| {
            end_with(db, row, error, reason_code)?;
            transition(db, now, row, RequestTrigger::Fail, None, &error_json(error, reason_code))
        })
    }

    /// The holder has ended the run because it was cancelled.
    pub fn mark_cancelled(&self, request_id: &str, hold: Hold<'_>, reason: &str) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, row| {
            let asked = row.asked().filter(|asked| asked.action == ControlAction::Cancel);
            let message = asked.and_then(|asked| asked.reason).unwrap_or_else(|| reason.to_owned());
            cancel(db, now, row, RequestTrigger::Cancel, "cancelled", &message)
        })
    }

    /// The holder has set the run aside, for this long at most. What it was asked for and has not done takes effect
    /// instead.
    pub fn mark_paused(&self, request_id: &str, hold: Hold<'_>, timeout: Duration) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, row| {
            let detail = json!({"reason": "the run was set aside"});
            match row.asked() {
                Some(_) => let_go(db, now, row, RequestTrigger::Release, &detail),
                None => set_aside(db, now, row, Some(timeout), &detail),
            }
        })
    }

    /// The holder lets go of it, so that somebody else can go on. What it was asked for and has not done takes effect.
    pub fn release(&self, request_id: &str, hold: Hold<'_>, reason: &str) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, row| {
            let_go(db, now, row, RequestTrigger::Release, &json!({"reason": reason}))
        })
    }

    fn held(
        &self,
        request_id: &str,
        hold: Hold<'_>,
        act: impl FnOnce(&Connection, &Moment, &RequestRow) -> Result<(), QueueError>,
    ) -> Result<RequestEntry, QueueError> {
        self.write(|db, now| {
            let row = held_row(db, now, request_id, hold)?;
            act(db, now, &row)?;
            entry_of(db, row.seq)
        })
    }
}

fn store_result(db: &Connection, seq: i64, done: &Completion) -> Result<(), QueueError> {
    let values = named_params! {
        ":db": done.run_workspace_db_path, ":manifest": done.result_manifest_path,
        ":best": done.best_candidate_id, ":cost": done.cost_usd,
        ":usage": done.usage.as_ref().map(Value::to_string),
        ":result": done.result.as_ref().map(Value::to_string), ":seq": seq,
    };
    let text = "UPDATE run_requests SET run_workspace_db_path = :db, result_manifest_path = :manifest,
        best_candidate_id = :best, cost_usd = :cost, usage_json = :usage, result_json = :result WHERE seq = :seq";
    execute(db, "store a result", text, values).map(drop)
}

/// Stores why a request fails or is cancelled, before it is.
pub(super) fn end_with(
    db: &Connection,
    row: &RequestRow,
    error: &OptimizerError,
    reason_code: Option<&str>,
) -> Result<(), QueueError> {
    let payload = redact("", &error_json(error, reason_code)).to_string();
    let text = "UPDATE run_requests SET error_json = ?1 WHERE seq = ?2";
    execute(db, "store why a request ends", text, (payload, row.seq)).map(drop)
}

/// The error of a failed or cancelled request, as it is stored and shown. `error_code` is the code of the table of errors,
/// and `reason_code` says more precisely why, where that is known.
fn error_json(error: &OptimizerError, reason_code: Option<&str>) -> Value {
    let OptimizerError { code, message, detail, hint, findings, cause: _ } = error;
    let is_retryable = matches!(
        code,
        ErrorCode::CacheFull
            | ErrorCode::CacheMiss
            | ErrorCode::Container
            | ErrorCode::DiskBudget
            | ErrorCode::Http
            | ErrorCode::Io
            | ErrorCode::Proposer
            | ErrorCode::Sqlite
    );
    json!({
        "error_code": code.wire(),
        "reason_code": reason_code,
        "message": message,
        "detail": detail,
        "hint": hint,
        "retryable": is_retryable,
        "findings": findings,
    })
}

/// The request as its holder finds it.
fn held_row(db: &Connection, now: &Moment, request_id: &str, hold: Hold<'_>) -> Result<RequestRow, QueueError> {
    let row = RequestRow::of_request(db, request_id)?;
    let token = match hold {
        Hold::Token(token) => Some(token),
        Hold::Lease(_) | Hold::Current => None,
    };
    if hold == Hold::Current && row.lease.is_none() {
        return Err(unheld(&row));
    }
    let is_theirs = row.lease.as_ref().is_some_and(|lease| match hold {
        Hold::Token(token) => token == row.fencing_token,
        Hold::Lease(lease_id) => lease_id == lease.lease_id,
        Hold::Current => !lease.is_over(now),
    });
    if is_theirs { Ok(row) } else { Err(fenced(&row, token)) }
}

fn unheld(row: &RequestRow) -> QueueError {
    let (request_id, run_id, status) = (&row.request_id, &row.run_id, row.status);
    let message = format!("request {request_id} of run {run_id} is {} and held by nobody", status.word());
    QueueError::new(Code::InvalidTransition, message, "A queued request must be claimed first.").in_state(status)
}

//! What becomes of a request: what its holder does with it, and what is asked of it from outside. Every write of a holder is
//! refused as fenced once another worker has the lease. A request without a holder obeys at once; otherwise what is asked is
//! stored, and its holder obeys.

use std::time::Duration;

use rusqlite::named_params;
use serde::Serialize;
use serde_json::{Value, json};

use super::claim::{cancel, let_go, mark_for_cleanup, set_aside};
use super::entry::{RequestEntry, entry_of};
use super::error::{QueueError, sql};
use super::transitions::{RequestRow, execute, fenced, int, length, next, record, transition};
use super::{DEFAULT_PAUSE, Queue, Tx};
use crate::Code;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::{RequestState, RequestTrigger};
use synth_optimizer_core::secrets::{redact, scrub};
use synth_optimizer_platform::runtime::Acknowledgement;

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
        self.read(|tx| Ok(RequestRow::held(tx)?.into_iter().map(held).collect()))
    }

    /// The holder begins to work on it.
    pub fn start(&self, request_id: &str, hold: Hold<'_>) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |tx, row| transition(tx, row, RequestTrigger::Start, None, &json!({})))
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
        let renewed = self.held(request_id, hold, |tx, row| {
            let values = named_params! {
                ":now": int(tx.now.wall), ":boot": int(tx.now.boot), ":boot_id": tx.now.boot_id, ":lease": length(lease),
                ":seq": row.seq, ":token": row.fencing_token, ":progress": progress_at.map(int),
            };
            let text = "UPDATE run_requests SET lease_expires_at = :now + :lease,
                lease_deadline_boot = :boot + :lease, lease_boot_id = :boot_id, updated_at = :now,
                progress_at = coalesce(:progress, progress_at)
                WHERE seq = :seq AND fencing_token = :token AND status IN ('leased', 'running')";
            execute(tx, "extend a lease", text, values)
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
        self.write(|tx| {
            let row = held_row(tx, request_id, hold)?;
            tx.db
                .prepare_cached(
                    "UPDATE run_requests SET losses = CASE WHEN progress_mark IS ?1 THEN losses ELSE 0 END,
                   progress_mark = ?1, progress_at = ?2, updated_at = ?2 WHERE seq = ?3 RETURNING losses",
                )
                .and_then(|mut statement| statement.query_row((mark, int(tx.now.wall), row.seq), |row| row.get(0)))
                .map_err(sql("note progress"))
        })
    }

    /// The run is done.
    pub fn complete(&self, request_id: &str, hold: Hold<'_>, done: &Completion) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |tx, row| {
            let detail = json!({"best_candidate_id": done.best_candidate_id});
            transition(tx, row, RequestTrigger::Complete, None, &detail)?;
            store_result(tx, row.seq, done)
        })
    }

    /// Adds to a request that did not end well, and that no worker holds any more, what its run has left.
    pub fn summarize(&self, request_id: &str, done: &Completion) -> Result<RequestEntry, QueueError> {
        self.write(|tx| {
            let row = RequestRow::of_request(tx, request_id)?;
            if matches!(row.status, RequestState::Failed | RequestState::Cancelled) {
                store_result(tx, row.seq, done)?;
            }
            entry_of(tx, row.seq)
        })
    }

    /// Marks the request as failed, together with what its run has left. `reason_code` says more precisely why, and the error
    /// must not hold a secret.
    pub fn fail(
        &self,
        request_id: &str,
        hold: Hold<'_>,
        error: &OptimizerError,
        reason_code: Option<&str>,
        left: Option<&Completion>,
    ) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |tx, row| {
            left.map_or(Ok(()), |left| store_result(tx, row.seq, left))?;
            end_with(tx, row, error, reason_code)?;
            transition(tx, row, RequestTrigger::Fail, None, &error_json(error, reason_code))
        })
    }

    /// Marks the request as cancelled, together with what its run has left.
    pub fn mark_cancelled(
        &self,
        request_id: &str,
        hold: Hold<'_>,
        reason: &str,
        left: Option<&Completion>,
    ) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |tx, row| {
            left.map_or(Ok(()), |left| store_result(tx, row.seq, left))?;
            let asked = row.asked().filter(|asked| asked.action == ControlAction::Cancel);
            let message = asked.and_then(|asked| asked.reason).unwrap_or_else(|| reason.to_owned());
            cancel(tx, row, RequestTrigger::Cancel, "cancelled", &message)
        })
    }

    /// The holder has set the run aside, for this long at most. What it was asked for and has not done takes effect
    /// instead.
    pub fn mark_paused(&self, request_id: &str, hold: Hold<'_>, timeout: Duration) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |tx, row| {
            let detail = json!({"reason": "the run was set aside"});
            match row.asked() {
                Some(_) => let_go(tx, row, RequestTrigger::Release, &detail),
                None => set_aside(tx, row, Some(timeout), &detail),
            }
        })
    }

    /// The holder lets go of it, so that somebody else can go on. What it was asked for and has not done takes effect.
    pub fn release(&self, request_id: &str, hold: Hold<'_>, reason: &str) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |tx, row| let_go(tx, row, RequestTrigger::Release, &json!({"reason": reason})))
    }

    fn held(
        &self,
        request_id: &str,
        hold: Hold<'_>,
        act: impl FnOnce(&Tx<'_>, &RequestRow) -> Result<(), QueueError>,
    ) -> Result<RequestEntry, QueueError> {
        self.write(|tx| {
            let row = held_row(tx, request_id, hold)?;
            act(tx, &row)?;
            entry_of(tx, row.seq)
        })
    }
}

fn store_result(tx: &Tx<'_>, seq: i64, done: &Completion) -> Result<(), QueueError> {
    let values = named_params! {
        ":db": done.run_workspace_db_path, ":manifest": done.result_manifest_path,
        ":best": done.best_candidate_id, ":cost": done.cost_usd,
        ":usage": done.usage.as_ref().map(Value::to_string),
        ":result": done.result.as_ref().map(Value::to_string), ":seq": seq,
    };
    let text = "UPDATE run_requests SET run_workspace_db_path = :db, result_manifest_path = :manifest,
        best_candidate_id = :best, cost_usd = :cost, usage_json = :usage, result_json = :result WHERE seq = :seq";
    execute(tx, "store a result", text, values)
}

/// Stores why a request fails or is cancelled, before it is.
pub(super) fn end_with(
    tx: &Tx<'_>,
    row: &RequestRow,
    error: &OptimizerError,
    reason_code: Option<&str>,
) -> Result<(), QueueError> {
    let payload = redact("", &error_json(error, reason_code)).to_string();
    let text = "UPDATE run_requests SET error_json = ?1 WHERE seq = ?2";
    execute(tx, "store why a request ends", text, (payload, row.seq))
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
fn held_row(tx: &Tx<'_>, request_id: &str, hold: Hold<'_>) -> Result<RequestRow, QueueError> {
    let row = RequestRow::of_request(tx, request_id)?;
    let is_theirs = match (hold, &row.lease) {
        (Hold::Current, None) => {
            let message =
                format!("request {request_id} of run {} is {} and held by nobody", row.run_id, row.status.word());
            let refused = QueueError::new(Code::InvalidTransition, message, "A queued request must be claimed first.");
            return Err(refused.in_state(row.status));
        }
        (_, None) => false,
        (Hold::Token(token), Some(_)) => token == row.fencing_token,
        (Hold::Lease(lease_id), Some(lease)) => lease_id == lease.lease_id,
        (Hold::Current, Some(lease)) => !lease.is_over(&tx.now),
    };
    let token = if let Hold::Token(token) = hold { Some(token) } else { None };
    if is_theirs { Ok(row) } else { Err(fenced(&row, token)) }
}

/// What became of a control request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ack {
    /// `noop`: the request is in that state already.
    pub acknowledgement: Acknowledgement,
    pub entry: RequestEntry,
}

type Asked = Result<Acknowledgement, QueueError>;

impl Queue {
    /// Asks something of a request.
    ///
    /// * cancel: ends it. Its holder, if it has one, ends the run.
    /// * stop: ends the run with its best candidate so far. A run that has begun and has no holder is taken up once more for
    ///   that; one that has not begun is cancelled.
    /// * pause: sets it aside. Unless it is resumed in time, it is cancelled.
    /// * resume: continues it. A pause that its holder has not obeyed yet is withdrawn.
    pub fn control(&self, request_id: &str, asked: &ControlRequest) -> Result<Ack, QueueError> {
        self.write(|tx| {
            let row = RequestRow::of_request(tx, request_id)?;
            let acknowledgement = match asked.action {
                ControlAction::Cancel | ControlAction::Stop => end(tx, &row, asked),
                ControlAction::Pause => pause(tx, &row, asked),
                ControlAction::Resume => resume(tx, &row, asked),
                action @ (ControlAction::Shutdown | ControlAction::Interrupt | ControlAction::Step) => {
                    let message = format!("{} is asked of the process of a run, not of its request", action.word());
                    Err(QueueError::new(Code::InvalidTransition, message, "").in_state(row.status))
                }
            };
            Ok(Ack { acknowledgement: acknowledgement?, entry: entry_of(tx, row.seq)? })
        })
    }
}

fn end(tx: &Tx<'_>, row: &RequestRow, asked: &ControlRequest) -> Asked {
    let is_stop = asked.action == ControlAction::Stop;
    match row.status {
        RequestState::Queued | RequestState::Paused if is_stop && is_taken_up_again(row) => {
            if row.asked().is_some() {
                return Ok(Acknowledgement::Noop);
            }
            if row.status == RequestState::Paused {
                transition(tx, row, RequestTrigger::Resume, None, &json!({"reason": asked.reason}))?;
            }
            store(tx, &RequestRow::of_request(tx, &row.request_id)?, asked)
        }
        RequestState::Queued | RequestState::Paused => {
            let code = if is_stop { "stopped" } else { "cancelled" };
            let message = asked.reason.as_deref().unwrap_or(code);
            cancel(tx, row, RequestTrigger::Cancel, code, message)?;
            mark_for_cleanup(tx, row)?;
            Ok(Acknowledgement::Accepted)
        }
        RequestState::Leased | RequestState::Running => match row.asked().map(|earlier| earlier.action) {
            Some(earlier) if earlier == ControlAction::Cancel || earlier == asked.action => Ok(Acknowledgement::Noop),
            Some(_) | None => store(tx, row, asked),
        },
        RequestState::Completed | RequestState::Failed | RequestState::Cancelled => Ok(Acknowledgement::Noop),
    }
}

fn pause(tx: &Tx<'_>, row: &RequestRow, asked: &ControlRequest) -> Asked {
    let timeout = asked.pause.unwrap_or(DEFAULT_PAUSE);
    match (row.status, row.asked().map(|earlier| earlier.action)) {
        (RequestState::Paused, _) | (_, Some(ControlAction::Pause)) => Ok(Acknowledgement::Noop),
        (RequestState::Queued | RequestState::Leased | RequestState::Running, Some(ending)) => {
            let (run_id, status) = (&row.run_id, row.status.word());
            let message = format!("run {run_id} is {status} and was asked to {}: it cannot be paused", ending.word());
            let hint = "Wait until it has ended.";
            Err(QueueError::new(Code::InvalidTransition, message, hint).in_state(row.status))
        }
        (RequestState::Queued, None) => {
            let detail = json!({"reason": asked.reason, "timeout_seconds": timeout.as_secs_f64()});
            transition(tx, row, RequestTrigger::Pause, Some(timeout), &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Leased | RequestState::Running, None) => {
            store(tx, row, &ControlRequest { pause: Some(timeout), ..asked.clone() })
        }
        (RequestState::Completed | RequestState::Failed | RequestState::Cancelled, _) => {
            next(row, RequestTrigger::Pause).map(|_| Acknowledgement::Noop)
        }
    }
}

fn resume(tx: &Tx<'_>, row: &RequestRow, asked: &ControlRequest) -> Asked {
    let detail = json!({"reason": asked.reason});
    match (row.status, row.asked().map(|earlier| earlier.action)) {
        (RequestState::Paused, _) => {
            transition(tx, row, RequestTrigger::Resume, None, &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Leased | RequestState::Running, Some(ControlAction::Pause)) => {
            set(tx, row, None)?;
            record(tx, row, row.status, "withdraw_pause", &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Queued | RequestState::Leased | RequestState::Running, _) => Ok(Acknowledgement::Noop),
        (RequestState::Completed | RequestState::Failed | RequestState::Cancelled, _) => {
            next(row, RequestTrigger::Resume).map(|_| Acknowledgement::Noop)
        }
    }
}

/// Stores what the holder of a request is asked for.
fn store(tx: &Tx<'_>, row: &RequestRow, asked: &ControlRequest) -> Asked {
    set(tx, row, Some(asked))?;
    let detail = json!({"reason": asked.reason, "timeout_ms": asked.pause.map(length)});
    record(tx, row, row.status, &format!("ask_{}", asked.action.word()), &detail)?;
    Ok(Acknowledgement::Accepted)
}

fn set(tx: &Tx<'_>, row: &RequestRow, asked: Option<&ControlRequest>) -> Result<(), QueueError> {
    let values = named_params! {
        ":action": asked.map(|asked| asked.action.word()),
        ":reason": asked.and_then(|asked| asked.reason.as_deref()).map(scrub),
        ":pause": asked.and_then(|asked| asked.pause).map(length),
        ":at": asked.map(|_| int(tx.now.wall)), ":now": int(tx.now.wall), ":seq": row.seq,
    };
    let text = "UPDATE run_requests SET control = :action, control_reason = :reason, control_pause_ms = :pause,
        control_at = :at, updated_at = :now WHERE seq = :seq AND status IN ('queued', 'leased', 'running')";
    execute(tx, "store a control request", text, values)
}

/// Whether a worker takes the request up by itself and finds a run to end.
fn is_taken_up_again(row: &RequestRow) -> bool {
    row.started_at.is_some() && row.auto_start && !row.manual_step
}

//! Writes by the holder of a lease, and control requests from outside.
//!
//! The queue rejects a holder's write as fenced once another worker has the lease. A control request takes effect immediately
//! when the run request has no holder. Otherwise it is stored, and the holder obeys it.

use std::time::Duration;

use rusqlite::named_params;
use serde::Serialize;
use serde_json::{Value, json};

use super::claim::{cancel, mark_for_cleanup, release_lease};
use super::entry::{RequestEntry, entry_of};
use super::error::{QueueError, sql};
use super::transitions::{RequestRow, execute, fenced, millis, next_state, record, to_i64, transition};
use super::{Queue, Tx};
use crate::ServiceErrorCode;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::{RequestState, RequestTrigger};
use synth_optimizer_core::secrets::{redact, scrub};
use synth_optimizer_platform::runtime::Acknowledgement;

/// How a caller proves that it holds the lease of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseProof<'a> {
    /// By the fencing token of the claim.
    Token(i64),
    /// By the id of the lease.
    Lease(&'a str),
    /// Without proof: the caller acts for the current holder, as long as the lease has not expired.
    Current,
}

/// The results of a run, as the queue stores them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    pub run_workspace_db_path: Option<String>,
    pub result_manifest_path: Option<String>,
    pub best_candidate_id: Option<String>,
    /// `None` if the cost is unknown.
    pub cost_usd: Option<f64>,
    pub usage: Option<Value>,
    pub result: Option<Value>,
}

/// A leased or running request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveRequest {
    pub request_id: String,
    pub fencing_token: i64,
    /// The control request that its holder has not obeyed yet.
    pub pending_control: Option<ControlRequest>,
}

impl Queue {
    /// Returns every leased or running request, with its pending control request.
    pub fn active_requests(&self) -> Result<Vec<ActiveRequest>, QueueError> {
        let to_active = |row: RequestRow| ActiveRequest {
            pending_control: row.pending_control(),
            request_id: row.request_id,
            fencing_token: row.fencing_token,
        };
        self.read(|tx| Ok(RequestRow::active(tx)?.into_iter().map(to_active).collect()))
    }

    /// Marks a claimed request as running.
    pub fn start(&self, request_id: &str, lease_proof: LeaseProof<'_>) -> Result<RequestEntry, QueueError> {
        self.update_leased(request_id, lease_proof, |tx, row| {
            transition(tx, row, RequestTrigger::Start, None, &json!({}))
        })
    }

    /// Extends the lease to this duration from now. `progress_at` is the time of the run's last stored event, in
    /// milliseconds since 1970. Returns `None` when the caller no longer holds the lease.
    pub fn heartbeat(
        &self,
        request_id: &str,
        lease_proof: LeaseProof<'_>,
        lease: Duration,
        progress_at: Option<u64>,
    ) -> Result<Option<RequestEntry>, QueueError> {
        let renewed = self.update_leased(request_id, lease_proof, |tx, row| {
            let values = named_params! {
                ":now": to_i64(tx.now.wall), ":boot": to_i64(tx.now.boot), ":boot_id": tx.now.boot_id, ":lease": millis(lease),
                ":seq": row.seq, ":token": row.fencing_token, ":progress": progress_at.map(to_i64),
            };
            let text = "UPDATE run_requests SET lease_expires_at = :now + :lease,
                lease_deadline_boot = :boot + :lease, lease_boot_id = :boot_id, updated_at = :now,
                progress_at = coalesce(:progress, progress_at)
                WHERE seq = :seq AND fencing_token = :token AND status IN ('leased', 'running')";
            execute(tx, "extend a lease", text, values)
        });
        match renewed {
            Ok(entry) => Ok(Some(entry)),
            Err(refused) if refused.code == Some(ServiceErrorCode::Fenced) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records the progress of the run as a number that changes whenever the run advances. Returns how many holders were
    /// lost since the number last changed.
    pub fn record_progress(&self, request_id: &str, lease_proof: LeaseProof<'_>, mark: i64) -> Result<i64, QueueError> {
        self.write(|tx| {
            let row = checked_row(tx, request_id, lease_proof)?;
            tx.db
                .prepare_cached(
                    "UPDATE run_requests SET recoveries_without_progress =
                   CASE WHEN progress_mark IS ?1 THEN recoveries_without_progress ELSE 0 END,
                   progress_mark = ?1, progress_at = ?2, updated_at = ?2 WHERE seq = ?3 RETURNING recoveries_without_progress",
                )
                .and_then(|mut statement| statement.query_row((mark, to_i64(tx.now.wall), row.seq), |row| row.get(0)))
                .map_err(sql("note progress"))
        })
    }

    /// Marks a request as completed and stores the results of its run.
    pub fn complete(
        &self,
        request_id: &str,
        lease_proof: LeaseProof<'_>,
        done: &Completion,
    ) -> Result<RequestEntry, QueueError> {
        self.update_leased(request_id, lease_proof, |tx, row| {
            let detail = json!({"best_candidate_id": done.best_candidate_id});
            transition(tx, row, RequestTrigger::Complete, None, &detail)?;
            store_result(tx, row.seq, done)
        })
    }

    /// Stores the results of the run of a failed or cancelled request that no worker holds.
    pub fn summarize(&self, request_id: &str, done: &Completion) -> Result<RequestEntry, QueueError> {
        self.write(|tx| {
            let row = RequestRow::of_request(tx, request_id)?;
            if matches!(row.status, RequestState::Failed | RequestState::Cancelled) {
                store_result(tx, row.seq, done)?;
            }
            entry_of(tx, row.seq)
        })
    }

    /// Marks a request as failed and stores the results of its run. `reason_code` gives a more precise reason. The error must
    /// not contain a secret.
    pub fn fail(
        &self,
        request_id: &str,
        lease_proof: LeaseProof<'_>,
        error: &OptimizerError,
        reason_code: Option<&str>,
        results: Option<&Completion>,
    ) -> Result<RequestEntry, QueueError> {
        self.update_leased(request_id, lease_proof, |tx, row| {
            results.map_or(Ok(()), |results| store_result(tx, row.seq, results))?;
            store_error(tx, row, error, reason_code)?;
            transition(tx, row, RequestTrigger::Fail, None, &error_json(error, reason_code))
        })
    }

    /// Marks a request as cancelled and stores the results of its run. Cleanup ends the log of a run that was only saved.
    pub fn mark_cancelled(
        &self,
        request_id: &str,
        lease_proof: LeaseProof<'_>,
        reason: &str,
        results: Option<&Completion>,
        needs_cleanup: bool,
    ) -> Result<RequestEntry, QueueError> {
        self.update_leased(request_id, lease_proof, |tx, row| {
            results.map_or(Ok(()), |results| store_result(tx, row.seq, results))?;
            needs_cleanup.then(|| mark_for_cleanup(tx, row)).transpose()?;
            let control = row.pending_control().filter(|control| control.action == ControlAction::Cancel);
            let message = control.and_then(|control| control.reason).unwrap_or_else(|| reason.to_owned());
            cancel(tx, row, RequestTrigger::Cancel, "cancelled", &message)
        })
    }

    /// Stores a pause that the holder itself requests. A pending stop or cancel is an error, and takes precedence.
    pub fn pause_held(
        &self,
        request_id: &str,
        lease_proof: LeaseProof<'_>,
        control: &ControlRequest,
    ) -> Result<RequestEntry, QueueError> {
        self.update_leased(request_id, lease_proof, |tx, row| pause(tx, row, control).map(drop))
    }

    /// Gives a request back to the queue, so that another worker can continue it. A pending control request takes effect.
    pub fn release(
        &self,
        request_id: &str,
        lease_proof: LeaseProof<'_>,
        reason: &str,
    ) -> Result<RequestEntry, QueueError> {
        self.update_leased(request_id, lease_proof, |tx, row| {
            release_lease(tx, row, RequestTrigger::Release, &json!({"reason": reason}))
        })
    }

    /// Gives a request back to the queue because something that its run needs is unavailable. A worker claims it again after
    /// the pause. A pending control request takes effect at once.
    pub fn release_for_retry(
        &self,
        request_id: &str,
        lease_proof: LeaseProof<'_>,
        reason: &str,
        pause: Duration,
    ) -> Result<RequestEntry, QueueError> {
        self.update_leased(request_id, lease_proof, |tx, row| {
            release_lease(
                tx,
                row,
                RequestTrigger::Release,
                &json!({"reason": reason, "retry_after_ms": millis(pause)}),
            )?;
            let text = "UPDATE run_requests SET retry_at = :now + :pause, retry_boot = :boot + :pause,
                          retry_boot_id = :boot_id, retry_reason = :reason
                        WHERE seq = :seq AND status = 'queued' AND control IS NULL";
            let values = named_params! {
                ":now": to_i64(tx.now.wall), ":boot": to_i64(tx.now.boot), ":boot_id": tx.now.boot_id,
                ":pause": millis(pause), ":reason": reason, ":seq": row.seq,
            };
            execute(tx, "store when a request is claimed again", text, values)
        })
    }

    fn update_leased(
        &self,
        request_id: &str,
        lease_proof: LeaseProof<'_>,
        act: impl FnOnce(&Tx<'_>, &RequestRow) -> Result<(), QueueError>,
    ) -> Result<RequestEntry, QueueError> {
        self.write(|tx| {
            let row = checked_row(tx, request_id, lease_proof)?;
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

/// Stores the error of a request, before the request moves to `failed` or `cancelled`.
pub(super) fn store_error(
    tx: &Tx<'_>,
    row: &RequestRow,
    error: &OptimizerError,
    reason_code: Option<&str>,
) -> Result<(), QueueError> {
    let payload = redact("", &error_json(error, reason_code)).to_string();
    let text = "UPDATE run_requests SET error_json = ?1 WHERE seq = ?2";
    execute(tx, "store why a request ends", text, (payload, row.seq))
}

/// Returns the error of a failed or cancelled request, as it is stored and shown. `error_code` is a code of the error table;
/// `reason_code` is a more precise reason, where one is known.
fn error_json(error: &OptimizerError, reason_code: Option<&str>) -> Value {
    let OptimizerError { code, message, detail, hint, is_outage: _, findings, cause: _ } = error;
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
            | ErrorCode::StorageFull
    );
    json!({
        "error_code": code.as_str(),
        "reason_code": reason_code,
        "message": message,
        "detail": detail,
        "hint": hint,
        "retryable": is_retryable,
        "findings": findings,
    })
}

/// Returns the row of a request if the caller holds its lease.
fn checked_row(tx: &Tx<'_>, request_id: &str, lease_proof: LeaseProof<'_>) -> Result<RequestRow, QueueError> {
    let row = RequestRow::of_request(tx, request_id)?;
    let is_holder = match (lease_proof, &row.lease) {
        (LeaseProof::Current, None) => {
            let message =
                format!("run request {request_id} of run {} is {} and has no lease", row.run_id, row.status.as_str());
            let refused = QueueError::new(
                ServiceErrorCode::InvalidTransition,
                message,
                "Claim a queued run request before you start or end it.",
            );
            return Err(refused.in_state(row.status));
        }
        (_, None) => false,
        (LeaseProof::Token(token), Some(_)) => token == row.fencing_token,
        (LeaseProof::Lease(lease_id), Some(lease)) => lease_id == lease.lease_id,
        (LeaseProof::Current, Some(lease)) => !lease.has_expired(&tx.now),
    };
    let token = if let LeaseProof::Token(token) = lease_proof { Some(token) } else { None };
    if is_holder { Ok(row) } else { Err(fenced(&row, token)) }
}

/// The result of a control request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ControlOutcome {
    /// `noop` if the run request is already in the wanted state.
    pub acknowledgement: Acknowledgement,
    pub entry: RequestEntry,
}

type AckResult = Result<Acknowledgement, QueueError>;

impl Queue {
    /// Applies a control request to a run request.
    ///
    /// * cancel: ends the run request. Its holder, if it has one, ends the run.
    /// * stop: completes the run with its best candidate so far. A started run without a holder is claimed once more for
    ///   this. A run that has not started is cancelled.
    /// * pause: pauses the run request. If the pause has a timeout, the request is cancelled unless it is resumed in time.
    /// * resume: continues the run request. A pause that its holder has not obeyed yet is withdrawn.
    pub fn control(&self, request_id: &str, control: &ControlRequest) -> Result<ControlOutcome, QueueError> {
        self.write(|tx| {
            let row = RequestRow::of_request(tx, request_id)?;
            let acknowledgement = match control.action {
                ControlAction::Cancel | ControlAction::Stop => cancel_or_stop(tx, &row, control),
                ControlAction::Pause => pause(tx, &row, control),
                ControlAction::Resume => resume(tx, &row, control),
                action @ (ControlAction::Shutdown | ControlAction::Interrupt | ControlAction::Step) => {
                    let message = format!("{} is not a control request for a run request", action.as_str());
                    Err(QueueError::new(ServiceErrorCode::InvalidTransition, message, "").in_state(row.status))
                }
            };
            Ok(ControlOutcome { acknowledgement: acknowledgement?, entry: entry_of(tx, row.seq)? })
        })
    }
}

fn cancel_or_stop(tx: &Tx<'_>, row: &RequestRow, control: &ControlRequest) -> AckResult {
    let is_stop = control.action == ControlAction::Stop;
    match row.status {
        RequestState::Queued | RequestState::Paused if is_stop && can_resume_in_background(row) => {
            if row.pending_control().is_some() {
                return Ok(Acknowledgement::Noop);
            }
            if row.status == RequestState::Paused {
                transition(tx, row, RequestTrigger::Resume, None, &json!({"reason": control.reason}))?;
            }
            store_control(tx, &RequestRow::of_request(tx, &row.request_id)?, control)
        }
        RequestState::Queued | RequestState::Paused => {
            let code = if is_stop { "stopped" } else { "cancelled" };
            let message = control.reason.as_deref().unwrap_or(code);
            cancel(tx, row, RequestTrigger::Cancel, code, message)?;
            mark_for_cleanup(tx, row)?;
            Ok(Acknowledgement::Accepted)
        }
        RequestState::Leased | RequestState::Running => match row.pending_control().map(|earlier| earlier.action) {
            Some(earlier) if earlier == ControlAction::Cancel || earlier == control.action => Ok(Acknowledgement::Noop),
            Some(_) | None => store_control(tx, row, control),
        },
        RequestState::Completed | RequestState::Failed | RequestState::Cancelled => Ok(Acknowledgement::Noop),
    }
}

fn pause(tx: &Tx<'_>, row: &RequestRow, control: &ControlRequest) -> AckResult {
    match (row.status, row.pending_control().map(|earlier| earlier.action)) {
        (RequestState::Paused, _) | (_, Some(ControlAction::Pause)) => Ok(Acknowledgement::Noop),
        (RequestState::Queued | RequestState::Leased | RequestState::Running, Some(ending)) => {
            let (run_id, status) = (&row.run_id, row.status.as_str());
            let message = format!("run {run_id} is {status} and cannot be paused: {} was requested", ending.as_str());
            let hint = "Wait until the run has ended.";
            Err(QueueError::new(ServiceErrorCode::InvalidTransition, message, hint).in_state(row.status))
        }
        (RequestState::Queued, None) => {
            let seconds = control.pause.map(|timeout| timeout.as_secs_f64());
            let detail = json!({"reason": control.reason, "timeout_seconds": seconds});
            transition(tx, row, RequestTrigger::Pause, control.pause, &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Leased | RequestState::Running, None) => store_control(tx, row, control),
        (RequestState::Completed | RequestState::Failed | RequestState::Cancelled, _) => {
            next_state(row, RequestTrigger::Pause).map(|_| Acknowledgement::Noop)
        }
    }
}

fn resume(tx: &Tx<'_>, row: &RequestRow, control: &ControlRequest) -> AckResult {
    let detail = json!({"reason": control.reason});
    match (row.status, row.pending_control().map(|earlier| earlier.action)) {
        (RequestState::Paused, _) => {
            transition(tx, row, RequestTrigger::Resume, None, &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Leased | RequestState::Running, Some(ControlAction::Pause)) => {
            write_control(tx, row, None)?;
            record(tx, row, row.status, "withdraw_pause", &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Queued | RequestState::Leased | RequestState::Running, _) => Ok(Acknowledgement::Noop),
        (RequestState::Completed | RequestState::Failed | RequestState::Cancelled, _) => {
            next_state(row, RequestTrigger::Resume).map(|_| Acknowledgement::Noop)
        }
    }
}

/// Stores a control request for the holder of a request.
fn store_control(tx: &Tx<'_>, row: &RequestRow, control: &ControlRequest) -> AckResult {
    write_control(tx, row, Some(control))?;
    let detail = json!({"reason": control.reason, "timeout_ms": control.pause.map(millis)});
    record(tx, row, row.status, &format!("request_{}", control.action.as_str()), &detail)?;
    Ok(Acknowledgement::Accepted)
}

fn write_control(tx: &Tx<'_>, row: &RequestRow, control: Option<&ControlRequest>) -> Result<(), QueueError> {
    let values = named_params! {
        ":action": control.map(|control| control.action.as_str()),
        ":reason": control.and_then(|control| control.reason.as_deref()).map(scrub),
        ":pause": control.and_then(|control| control.pause).map(millis),
        ":at": control.map(|_| to_i64(tx.now.wall)), ":now": to_i64(tx.now.wall), ":seq": row.seq,
    };
    let text = "UPDATE run_requests SET control = :action, control_reason = :reason, control_pause_ms = :pause,
        control_at = :at, updated_at = :now WHERE seq = :seq AND status IN ('queued', 'leased', 'running')";
    execute(tx, "store a control request", text, values)
}

/// Returns whether a background worker would claim the request and find a started run.
fn can_resume_in_background(row: &RequestRow) -> bool {
    row.started_at.is_some() && row.auto_start && !row.manual_step
}

//! What is asked of a request from outside. A request without a holder changes at once; otherwise the request is stored, and
//! its holder obeys.

use rusqlite::{Connection, named_params};
use serde::Serialize;
use serde_json::json;

use super::entry::{RequestEntry, entry_of};
use super::error::QueueError;
use super::recover::{cancel, mark_for_cleanup};
use super::transitions::{RequestRow, execute, int, length, next, record, transition};
use super::{DEFAULT_PAUSE, Queue};
use crate::Code;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::lifecycle::{RequestState, RequestTrigger};
use synth_optimizer_core::secrets::scrub;
use synth_optimizer_platform::clock::Moment;
use synth_optimizer_platform::runtime::Acknowledgement;

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
        self.write(|db, now| {
            let row = RequestRow::of_request(db, request_id)?;
            let acknowledgement = match asked.action {
                ControlAction::Cancel | ControlAction::Stop => end(db, now, &row, asked),
                ControlAction::Pause => pause(db, now, &row, asked),
                ControlAction::Resume => resume(db, now, &row, asked),
                action @ (ControlAction::Shutdown | ControlAction::Interrupt | ControlAction::Step) => {
                    let message = format!("{} is asked of the process of a run, not of its request", action.word());
                    Err(QueueError::new(Code::InvalidTransition, message, "").in_state(row.status))
                }
            };
            Ok(Ack { acknowledgement: acknowledgement?, entry: entry_of(db, row.seq)? })
        })
    }
}

fn end(db: &Connection, now: &Moment, row: &RequestRow, asked: &ControlRequest) -> Asked {
    let is_stop = asked.action == ControlAction::Stop;
    match row.status {
        RequestState::Queued | RequestState::Paused if is_stop && is_taken_up_again(row) => {
            if row.asked().is_some() {
                return Ok(Acknowledgement::Noop);
            }
            if row.status == RequestState::Paused {
                transition(db, now, row, RequestTrigger::Resume, None, &json!({"reason": asked.reason}))?;
            }
            store(db, now, &RequestRow::of_request(db, &row.request_id)?, asked)
        }
        RequestState::Queued | RequestState::Paused => {
            let code = if is_stop { "stopped" } else { "cancelled" };
            let message = asked.reason.as_deref().unwrap_or(code);
            cancel(db, now, row, RequestTrigger::Cancel, code, message)?;
            mark_for_cleanup(db, row)?;
            Ok(Acknowledgement::Accepted)
        }
        RequestState::Leased | RequestState::Running => match row.asked().map(|earlier| earlier.action) {
            Some(earlier) if earlier == ControlAction::Cancel || earlier == asked.action => Ok(Acknowledgement::Noop),
            Some(_) | None => store(db, now, row, asked),
        },
        RequestState::Completed | RequestState::Failed | RequestState::Cancelled => Ok(Acknowledgement::Noop),
    }
}

fn pause(db: &Connection, now: &Moment, row: &RequestRow, asked: &ControlRequest) -> Asked {
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
            transition(db, now, row, RequestTrigger::Pause, Some(timeout), &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Leased | RequestState::Running, None) => {
            store(db, now, row, &ControlRequest { pause: Some(timeout), ..asked.clone() })
        }
        (RequestState::Completed | RequestState::Failed | RequestState::Cancelled, _) => {
            next(row, RequestTrigger::Pause).map(|_| Acknowledgement::Noop)
        }
    }
}

fn resume(db: &Connection, now: &Moment, row: &RequestRow, asked: &ControlRequest) -> Asked {
    let detail = json!({"reason": asked.reason});
    match (row.status, row.asked().map(|earlier| earlier.action)) {
        (RequestState::Paused, _) => {
            transition(db, now, row, RequestTrigger::Resume, None, &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Leased | RequestState::Running, Some(ControlAction::Pause)) => {
            set(db, now, row, None)?;
            record(db, now, row, row.status, "withdraw_pause", &detail)?;
            Ok(Acknowledgement::Accepted)
        }
        (RequestState::Queued | RequestState::Leased | RequestState::Running, _) => Ok(Acknowledgement::Noop),
        (RequestState::Completed | RequestState::Failed | RequestState::Cancelled, _) => {
            next(row, RequestTrigger::Resume).map(|_| Acknowledgement::Noop)
        }
    }
}

/// Stores what the holder of a request is asked for.
fn store(db: &Connection, now: &Moment, row: &RequestRow, asked: &ControlRequest) -> Asked {
    set(db, now, row, Some(asked))?;
    let detail = json!({"reason": asked.reason, "timeout_ms": asked.pause.map(length)});
    record(db, now, row, row.status, &format!("ask_{}", asked.action.word()), &detail)?;
    Ok(Acknowledgement::Accepted)
}

fn set(db: &Connection, now: &Moment, row: &RequestRow, asked: Option<&ControlRequest>) -> Result<(), QueueError> {
    let values = named_params! {
        ":action": asked.map(|asked| asked.action.word()),
        ":reason": asked.and_then(|asked| asked.reason.as_deref()).map(scrub),
        ":pause": asked.and_then(|asked| asked.pause).map(length),
        ":at": asked.map(|_| int(now.wall)), ":now": int(now.wall), ":seq": row.seq,
    };
    let text = "UPDATE run_requests SET control = :action, control_reason = :reason, control_pause_ms = :pause,
        control_at = :at, updated_at = :now WHERE seq = :seq AND status IN ('queued', 'leased', 'running')";
    execute(db, "store a control request", text, values).map(drop)
}

/// Whether a worker takes the request up by itself and finds a run to end.
fn is_taken_up_again(row: &RequestRow) -> bool {
    row.started_at.is_some() && row.auto_start && !row.manual_step
}

//! Takes requests from holders that are gone, and ends pauses that nobody ended. Never by the clock on the wall.

use std::time::Duration;

use rusqlite::{Connection, named_params};
use serde_json::{Value, json};

use super::Queue;
use super::entry::{RequestEntry, entries, entry_of};
use super::error::QueueError;
use super::lease::end_with;
use super::lock::{Process, ServiceIdentity};
use super::transitions::{Lease, Pause, RequestRow, execute, int, transition};
use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::RequestTrigger;
use synth_optimizer_core::words;
use synth_optimizer_platform::clock::Moment;

words! {
    /// How it is known that a holder is gone.
    Evidence {
        /// The machine was started again since.
        OtherBoot = "other_boot",
        /// The lease was not extended in time, by the boot clock.
        DeadlinePassed = "deadline_passed",
        /// The process has ended.
        HolderGone = "holder_gone",
        /// It was a service, and another one has the lock now.
        EarlierService = "earlier_service",
    }
}

impl Queue {
    /// Requeues what the dead held and cancels what was paused for too long; gives every request that was moved. A
    /// service that holds the lock of the database says so, and then takes over what an earlier one held.
    pub fn recover(&self, this: Option<&ServiceIdentity>) -> Result<Vec<RequestEntry>, QueueError> {
        // Nothing is written, and no other writer waits, as long as there is nothing to recover.
        if self.read(|db, now| due(db, now, this))?.is_empty() {
            return Ok(Vec::new());
        }
        self.write(|db, now| {
            let moved = recover(db, now, this)?;
            moved.into_iter().map(|seq| entry_of(db, seq)).collect()
        })
    }

    /// Requests whose run still needs cleanup, oldest first.
    pub fn needs_cleanup(&self) -> Result<Vec<RequestEntry>, QueueError> {
        self.read(|db, _| entries(db, "WHERE r.needs_cleanup = 1 ORDER BY r.seq", []))
    }

    /// Marks the run of a request as cleaned up, or as given up.
    pub fn mark_cleaned(&self, request_id: &str) -> Result<(), QueueError> {
        let text = "UPDATE run_requests SET needs_cleanup = 0 WHERE request_id = ?1";
        self.write(|db, _| execute(db, "note that a run was cleaned up", text, [request_id]).map(drop))
    }
}

/// Marks a request that ends without its holder: its run, or what that started, has to be ended. One that was never begun
/// has nothing to end.
pub(super) fn mark_for_cleanup(db: &Connection, row: &RequestRow) -> Result<(), QueueError> {
    if row.started_at.is_none() {
        return Ok(());
    }
    let text = "UPDATE run_requests SET needs_cleanup = 1 WHERE seq = ?1";
    execute(db, "note that a run needs cleanup", text, [row.seq]).map(drop)
}

/// Why a request is recovered.
enum Due {
    HolderGone(Evidence),
    /// How long the machine was off is not known: the pause begins again.
    PauseBeginsAgain(Pause),
    PauseOver,
}

/// The requests to recover at this moment.
fn due(db: &Connection, now: &Moment, this: Option<&ServiceIdentity>) -> Result<Vec<(RequestRow, Due)>, QueueError> {
    let mut due = Vec::new();
    for row in RequestRow::held(db)? {
        if let Some(evidence) = row.lease.as_ref().and_then(|lease| evidence(lease, now, this)) {
            due.push((row, Due::HolderGone(evidence)));
        }
    }
    for row in RequestRow::read(db, "WHERE status = 'paused' ORDER BY seq", [])? {
        match row.pause.clone() {
            Some(pause) if pause.pause_boot_id != now.boot_id => due.push((row, Due::PauseBeginsAgain(pause))),
            Some(pause) if pause.pause_deadline_boot <= now.boot => due.push((row, Due::PauseOver)),
            Some(_) | None => {}
        }
    }
    Ok(due)
}

/// Recovers within a transaction; gives the rows that were moved.
pub(super) fn recover(db: &Connection, now: &Moment, this: Option<&ServiceIdentity>) -> Result<Vec<i64>, QueueError> {
    let mut moved = Vec::new();
    for (row, due) in due(db, now, this)? {
        match due {
            Due::HolderGone(evidence) => {
                let counted = "UPDATE run_requests SET recoveries = recoveries + 1, losses = losses + 1 WHERE seq = ?1";
                execute(db, "count a recovery", counted, [row.seq])?;
                let detail = json!({
                    "reason_code": "lease_expired",
                    "evidence": evidence.word(),
                    "recovered_from_status": row.status.word(),
                    "lease_id": row.lease.as_ref().map(|lease| &lease.lease_id),
                });
                let_go(db, now, &row, RequestTrigger::LeaseExpired, &detail)?;
                moved.push(row.seq);
            }
            Due::PauseBeginsAgain(pause) => begin_again(db, now, &row, &pause)?,
            Due::PauseOver => {
                let message = "it was paused for too long";
                cancel(db, now, &row, RequestTrigger::PauseExpired, "pause_timeout", message)?;
                mark_for_cleanup(db, &row)?;
                moved.push(row.seq);
            }
        }
    }
    Ok(moved)
}

/// Ends a request as cancelled, and stores why.
pub(super) fn cancel(
    db: &Connection,
    now: &Moment,
    row: &RequestRow,
    trigger: RequestTrigger,
    code: &str,
    message: &str,
) -> Result<(), QueueError> {
    end_with(db, row, &OptimizerError::new(ErrorCode::Cancelled, message), Some(code))?;
    transition(db, now, row, trigger, None, &json!({"reason_code": code, "message": message}))
}

/// Takes a request from its holder. What the holder was asked for takes effect: a cancel ends it, a pause sets it aside;
/// a stop is left for the next holder, who can end the run with what it has.
pub(super) fn let_go(
    db: &Connection,
    now: &Moment,
    row: &RequestRow,
    trigger: RequestTrigger,
    detail: &Value,
) -> Result<(), QueueError> {
    match row.asked() {
        Some(asked) if asked.action == ControlAction::Cancel => {
            let (code, message) = ("cancelled", asked.reason.as_deref().unwrap_or("cancelled"));
            end_with(db, row, &OptimizerError::new(ErrorCode::Cancelled, message), Some(code))?;
            let payload =
                json!({"reason_code": code, "message": message, "instead_of": trigger.word(), "because": detail});
            transition(db, now, row, RequestTrigger::Cancel, None, &payload)?;
            mark_for_cleanup(db, row)?;
        }
        Some(asked) if asked.action == ControlAction::Pause => {
            let payload = json!({"reason": asked.reason, "instead_of": trigger.word(), "because": detail});
            set_aside(db, now, row, asked.pause, &payload)?;
            if trigger == RequestTrigger::LeaseExpired {
                mark_for_cleanup(db, row)?;
            }
        }
        Some(_) | None => {
            transition(db, now, row, trigger, None, detail)?;
            let is_service = row.lease.as_ref().is_some_and(|lease| lease.holder_kind == "service");
            // Whoever let go on purpose leaves the choice to the user, unless it was the service that shuts down.
            if trigger == RequestTrigger::LeaseExpired || is_service {
                start_by_itself(db, row)?;
            }
        }
    }
    Ok(())
}

/// Pauses a request that somebody holds. It has begun: once it is resumed, it goes on by itself.
pub(super) fn set_aside(
    db: &Connection,
    now: &Moment,
    row: &RequestRow,
    timeout: Option<Duration>,
    detail: &Value,
) -> Result<(), QueueError> {
    transition(db, now, row, RequestTrigger::Pause, timeout, detail)?;
    start_by_itself(db, row)
}

fn start_by_itself(db: &Connection, row: &RequestRow) -> Result<(), QueueError> {
    if row.manual_step {
        return Ok(());
    }
    execute(db, "requeue a request", "UPDATE run_requests SET auto_start = 1 WHERE seq = ?1", [row.seq]).map(drop)
}

fn evidence(lease: &Lease, now: &Moment, this: Option<&ServiceIdentity>) -> Option<Evidence> {
    if lease.lease_boot_id != now.boot_id {
        return Some(Evidence::OtherBoot);
    }
    if lease.lease_deadline_boot <= now.boot {
        return Some(Evidence::DeadlinePassed);
    }
    if let Some(this) = this.filter(|_| lease.holder_kind == "service") {
        let is_earlier = lease.holder_instance.as_deref() != Some(this.instance_id());
        return is_earlier.then_some(Evidence::EarlierService);
    }
    lease.process.as_ref().is_some_and(Process::is_gone).then_some(Evidence::HolderGone)
}

fn begin_again(db: &Connection, now: &Moment, row: &RequestRow, pause: &Pause) -> Result<(), QueueError> {
    let values = named_params! {
        ":now": int(now.wall), ":boot": int(now.boot), ":boot_id": now.boot_id, ":pause": int(pause.pause_ms),
        ":seq": row.seq,
    };
    let text = "UPDATE run_requests SET pause_expires_at = :now + :pause, pause_deadline_boot = :boot + :pause,
        pause_boot_id = :boot_id WHERE seq = :seq";
    execute(db, "extend a pause", text, values).map(drop)
}

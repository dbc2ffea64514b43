//! Takes requests from holders that are gone, and ends pauses that nobody ended. Never by the clock on the wall.

use std::time::Duration;

use rusqlite::{Connection, named_params};
use serde_json::{Value, json};

use super::Queue;
use super::entry::{RequestEntry, entry_of};
use super::error::{QueueError, sql};
use super::holder::ServiceIdentity;
use super::moves::{Lease, Pause, Standing, int, length, shift};
use super::outcome::end_with;
use super::tie::leave_loose;
use super::wish::WishKind;
use crate::clock::Moment;
use crate::config::words::words;
use crate::model::lifecycle::RequestTrigger;

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
        self.write(|db, now| {
            let moved = recover(db, now, this)?;
            moved.into_iter().map(|seq| entry_of(db, seq)).collect()
        })
    }
}

/// The same within a transaction; gives the rows that were moved.
pub(super) fn recover(db: &Connection, now: &Moment, this: Option<&ServiceIdentity>) -> Result<Vec<i64>, QueueError> {
    let mut moved = Vec::new();
    for standing in Standing::held(db)? {
        let found = standing.lease.as_ref().and_then(|lease| evidence(lease, now, this));
        let Some(evidence) = found else { continue };
        count_recovery(db, &standing)?;
        let detail = json!({
            "reason_code": "lease_expired",
            "evidence": evidence.word(),
            "recovered_from_status": standing.status.word(),
            "lease_id": standing.lease.as_ref().map(|lease| &lease.lease_id),
        });
        let_go(db, now, &standing, RequestTrigger::LeaseExpired, &detail)?;
        moved.push(standing.seq);
    }
    for standing in Standing::paused(db)? {
        let Some(pause) = &standing.pause else { continue };
        if pause.boot_id != now.boot_id {
            // How long the machine was off is not known: the pause begins again.
            begin_again(db, now, &standing, pause)?;
        } else if pause.deadline <= now.boot {
            let payload = json!({"reason_code": "pause_timeout", "message": "it was paused for too long"});
            end_with(db, &standing, &payload)?;
            shift(db, now, &standing, RequestTrigger::PauseExpired, None, &payload)?;
            leave_loose(db, &standing)?;
            moved.push(standing.seq);
        }
    }
    Ok(moved)
}

/// Takes a request from its holder. What the holder was asked for takes effect: a cancel ends it, a pause sets it aside;
/// a stop is left for the next holder, who can end the run with what it has.
pub(super) fn let_go(
    db: &Connection,
    now: &Moment,
    standing: &Standing,
    trigger: RequestTrigger,
    detail: &Value,
) -> Result<(), QueueError> {
    match standing.wish.as_ref().map(|wish| (wish.kind, wish)) {
        Some((WishKind::Cancel, wish)) => {
            let message = wish.reason.as_deref().unwrap_or("cancelled");
            let payload = json!({"reason_code": "cancelled", "message": message, "instead_of": trigger.word(), "because": detail});
            end_with(db, standing, &json!({"reason_code": "cancelled", "message": message}))?;
            shift(db, now, standing, RequestTrigger::Cancel, None, &payload)?;
            leave_loose(db, standing)?;
        }
        Some((WishKind::Pause, wish)) => {
            let payload = json!({"reason": wish.reason, "instead_of": trigger.word(), "because": detail});
            set_aside(db, now, standing, wish.pause, &payload)?;
            if trigger == RequestTrigger::LeaseExpired {
                leave_loose(db, standing)?;
            }
        }
        Some((WishKind::Stop, _)) | None => {
            shift(db, now, standing, trigger, None, detail)?;
            let is_service = standing.lease.as_ref().is_some_and(|lease| lease.kind == "service");
            // Whoever let go on purpose leaves the choice to the user, unless it was the service that shuts down.
            if trigger == RequestTrigger::LeaseExpired || is_service {
                start_by_itself(db, standing)?;
            }
        }
    }
    Ok(())
}

/// Pauses a request that somebody holds. It has begun: once it is resumed, it goes on by itself.
pub(super) fn set_aside(
    db: &Connection,
    now: &Moment,
    standing: &Standing,
    timeout: Option<Duration>,
    detail: &Value,
) -> Result<(), QueueError> {
    shift(db, now, standing, RequestTrigger::Pause, timeout, detail)?;
    start_by_itself(db, standing)
}

fn start_by_itself(db: &Connection, standing: &Standing) -> Result<(), QueueError> {
    if standing.manual_step {
        return Ok(());
    }
    db.prepare_cached("UPDATE run_requests SET auto_start = 1 WHERE seq = ?1")
        .and_then(|mut statement| statement.execute([standing.seq]))
        .map(|_| ())
        .map_err(sql("requeue a request"))
}

fn evidence(lease: &Lease, now: &Moment, this: Option<&ServiceIdentity>) -> Option<Evidence> {
    if lease.boot_id != now.boot_id {
        return Some(Evidence::OtherBoot);
    }
    if lease.deadline <= now.boot {
        return Some(Evidence::DeadlinePassed);
    }
    let is_earlier =
        |this: &ServiceIdentity| lease.kind == "service" && lease.instance.as_deref() != Some(this.instance_id());
    if this.is_some_and(is_earlier) {
        return Some(Evidence::EarlierService);
    }
    lease.process.as_ref().is_some_and(super::holder::Process::is_gone).then_some(Evidence::HolderGone)
}

fn count_recovery(db: &Connection, standing: &Standing) -> Result<(), QueueError> {
    db.prepare_cached("UPDATE run_requests SET recoveries = recoveries + 1, losses = losses + 1 WHERE seq = ?1")
        .and_then(|mut statement| statement.execute([standing.seq]))
        .map(|_| ())
        .map_err(sql("count a recovery"))
}

fn begin_again(db: &Connection, now: &Moment, standing: &Standing, pause: &Pause) -> Result<(), QueueError> {
    let values = named_params! {
        ":now": int(now.wall), ":boot": int(now.boot), ":boot_id": now.boot_id, ":pause": int(length(pause.length)),
        ":seq": standing.seq,
    };
    db.prepare_cached(
        "UPDATE run_requests SET pause_expires_at = :now + :pause, pause_deadline_boot = :boot + :pause,
           pause_boot_id = :boot_id WHERE seq = :seq",
    )
    .and_then(|mut statement| statement.execute(values))
    .map(|_| ())
    .map_err(sql("extend a pause"))
}

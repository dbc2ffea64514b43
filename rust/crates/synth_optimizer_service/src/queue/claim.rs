//! Gives the next request to a worker, and takes requests from holders that are gone. Two requests that need the same container
//! or the same cache never run at once. Leases and pauses never end by the clock on the wall.

use std::time::Duration;

use rusqlite::named_params;
use serde_json::{Value, json};
use url::Url;

use super::entry::{RequestEntry, entries, entry_of};
use super::error::{QueueError, not_found, sql};
use super::lease::end_with;
use super::lock::{Holder, Process};
use super::transitions::{Lease, Pause, RequestRow, execute, first, int, length, next, record, transition};
use super::{Queue, Tx};
use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::RequestTrigger;
use synth_optimizer_platform::clock::Moment;

/// Who claims what.
#[derive(Debug, Clone)]
pub struct Claim<'a> {
    pub lease_id: &'a str,
    pub worker_id: Option<&'a str>,
    /// How long the lease lasts without a heartbeat.
    pub lease: Duration,
    pub holder: Holder,
    pub which: Which<'a>,
}

/// Which requests may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// Those that start by themselves.
    Background,
    /// Any but those that are stepped.
    Any,
    /// This one, if it is queued and its lanes are free.
    Request(&'a str),
}

/// The lanes of a queued request `q` are free. Both conditions are those of the indexes, which they are answered from.
const FREE: &str = "NOT EXISTS (SELECT 1 FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.container_lane = q.container_lane)
  AND NOT EXISTS (SELECT 1 FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.cache_lane IS NOT NULL AND a.cache_lane = q.cache_lane)";

impl Queue {
    /// The request with the highest priority, and of those the oldest, whose lanes are free. What the dead held is
    /// requeued first. One whose lane is busy holds up nobody else.
    pub fn claim(&self, claim: &Claim<'_>) -> Result<Option<RequestEntry>, QueueError> {
        self.write(|tx| {
            recover(tx, claim.holder.instance_id())?;
            let found = match claim.which {
                Which::Background => first(tx, &ordered("q.auto_start = 1 AND q.manual_step = 0"), [])?,
                Which::Any => first(tx, &ordered("q.manual_step = 0"), [])?,
                Which::Request(request_id) => {
                    if first(tx, "SELECT seq FROM run_requests WHERE request_id = ?1", [request_id])?.is_none() {
                        return Err(not_found("request", request_id));
                    }
                    first(tx, &ordered("q.request_id = ?1"), [request_id])?
                }
            };
            found.map(|seq| lease(tx, seq, claim)).transpose()
        })
    }
}

fn ordered(rule: &str) -> String {
    format!(
        "SELECT q.seq FROM run_requests AS q WHERE q.status = 'queued' AND {rule} AND {FREE}
         ORDER BY q.priority DESC, q.seq LIMIT 1"
    )
}

fn lease(tx: &Tx<'_>, seq: i64, claim: &Claim<'_>) -> Result<RequestEntry, QueueError> {
    let row = || RequestRow::first(tx, "WHERE seq = ?1", [seq])?.ok_or_else(|| not_found("request", "that was found"));
    let queued = row()?;
    let to = next(&queued, RequestTrigger::Claim)?;
    let token = next_token(tx)?;
    let process = claim.holder.process();
    let values = named_params! {
        ":to": to.word(), ":now": int(tx.now.wall), ":boot": int(tx.now.boot), ":boot_id": tx.now.boot_id,
        ":lease": length(claim.lease), ":lease_id": claim.lease_id, ":worker": claim.worker_id, ":token": token,
        ":kind": claim.holder.kind(), ":instance": claim.holder.instance_id(),
        ":pid": process.as_ref().map(|process| process.holder_pid),
        ":started": process.as_ref().map(|process| int(process.holder_started)),
        ":namespace": process.as_ref().map(|process| &process.holder_pid_namespace),
        ":seq": seq,
    };
    let text =
        "UPDATE run_requests SET status = :to, updated_at = :now, leased_at = :now, lease_expires_at = :now + :lease,
           lease_deadline_boot = :boot + :lease, lease_boot_id = :boot_id, lease_id = :lease_id, worker_id = :worker,
           fencing_token = :token, attempts = attempts + 1, holder_kind = :kind, holder_instance = :instance,
           holder_pid = :pid, holder_started = :started, holder_pid_namespace = :namespace
         WHERE seq = :seq AND status = 'queued'";
    execute(tx, "claim a request", text, values)?;
    // The history names the new holder.
    let mut held = row()?;
    held.status = queued.status;
    let detail = json!({"lease_id": claim.lease_id, "holder": claim.holder.kind()});
    record(tx, &held, to, RequestTrigger::Claim.word(), &detail)?;
    entry_of(tx, seq)
}

/// The next fencing token.
fn next_token(tx: &Tx<'_>) -> Result<i64, QueueError> {
    tx.db
        .prepare_cached("UPDATE fencing SET token = token + 1 RETURNING token")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(sql("take a fencing token"))
}

/// The container, under one name however its address is written. The names of loopback are one.
pub(crate) fn container_lane(url: &str) -> String {
    let Ok(parsed) = Url::parse(url.trim()) else { return url.trim().to_owned() };
    let host = match parsed.host_str().unwrap_or_default() {
        "127.0.0.1" | "[::1]" | "[::ffff:7f00:1]" => "localhost",
        host => host.trim_end_matches('.'),
    };
    let port = parsed.port_or_known_default().unwrap_or_default();
    format!("{}://{host}:{port}{}", parsed.scheme(), parsed.path().trim_end_matches('/'))
}

impl Queue {
    /// Requeues what the dead held and cancels what was paused for too long; gives every request that was moved. A
    /// service that holds the lock of the database names itself, and then takes over what an earlier one held.
    pub fn recover(&self, this: Option<&str>) -> Result<Vec<RequestEntry>, QueueError> {
        // Nothing is written, and no other writer waits, as long as there is nothing to recover.
        if self.read(|tx| due(tx, this))?.is_empty() {
            return Ok(Vec::new());
        }
        self.write(|tx| {
            let moved = recover(tx, this)?;
            moved.into_iter().map(|seq| entry_of(tx, seq)).collect()
        })
    }

    /// Requests whose run still needs cleanup, oldest first.
    pub fn needs_cleanup(&self) -> Result<Vec<RequestEntry>, QueueError> {
        self.read(|tx| entries(tx, "WHERE r.needs_cleanup = 1 ORDER BY r.seq", []))
    }

    /// Marks the run of a request as cleaned up, or as given up.
    pub fn mark_cleaned(&self, request_id: &str) -> Result<(), QueueError> {
        let text = "UPDATE run_requests SET needs_cleanup = 0 WHERE request_id = ?1";
        self.write(|tx| execute(tx, "note that a run was cleaned up", text, [request_id]))
    }
}

/// Marks a request that ends without its holder: its run, or what that started, has to be ended. One that was never begun
/// has nothing to end.
pub(super) fn mark_for_cleanup(tx: &Tx<'_>, row: &RequestRow) -> Result<(), QueueError> {
    if row.started_at.is_none() {
        return Ok(());
    }
    let text = "UPDATE run_requests SET needs_cleanup = 1 WHERE seq = ?1";
    execute(tx, "note that a run needs cleanup", text, [row.seq])
}

/// Why a request is recovered.
enum Due {
    /// With how that is known.
    HolderGone(&'static str),
    /// How long the machine was off is not known: the pause begins again.
    PauseBeginsAgain(Pause),
    PauseOver,
}

/// The requests to recover at this moment.
fn due(tx: &Tx<'_>, this: Option<&str>) -> Result<Vec<(RequestRow, Due)>, QueueError> {
    let mut due = Vec::new();
    for row in RequestRow::held(tx)? {
        if let Some(evidence) = row.lease.as_ref().and_then(|lease| evidence(lease, &tx.now, this)) {
            due.push((row, Due::HolderGone(evidence)));
        }
    }
    for row in RequestRow::read(tx, "WHERE status = 'paused' ORDER BY seq", [])? {
        match row.pause.clone() {
            Some(pause) if pause.pause_boot_id != tx.now.boot_id => due.push((row, Due::PauseBeginsAgain(pause))),
            Some(pause) if pause.pause_deadline_boot <= tx.now.boot => due.push((row, Due::PauseOver)),
            Some(_) | None => {}
        }
    }
    Ok(due)
}

/// Recovers within a transaction; gives the rows that were moved.
pub(super) fn recover(tx: &Tx<'_>, this: Option<&str>) -> Result<Vec<i64>, QueueError> {
    let mut moved = Vec::new();
    for (row, due) in due(tx, this)? {
        match due {
            Due::HolderGone(evidence) => {
                let counted = "UPDATE run_requests SET recoveries = recoveries + 1, losses = losses + 1 WHERE seq = ?1";
                execute(tx, "count a recovery", counted, [row.seq])?;
                let detail = json!({
                    "reason_code": "lease_expired",
                    "evidence": evidence,
                    "recovered_from_status": row.status.word(),
                    "lease_id": row.lease.as_ref().map(|lease| &lease.lease_id),
                });
                let_go(tx, &row, RequestTrigger::LeaseExpired, &detail)?;
                moved.push(row.seq);
            }
            Due::PauseBeginsAgain(pause) => begin_again(tx, &row, &pause)?,
            Due::PauseOver => {
                let message = "it was paused for too long";
                cancel(tx, &row, RequestTrigger::PauseExpired, "pause_timeout", message)?;
                mark_for_cleanup(tx, &row)?;
                moved.push(row.seq);
            }
        }
    }
    Ok(moved)
}

/// Ends a request as cancelled, and stores why.
pub(super) fn cancel(
    tx: &Tx<'_>,
    row: &RequestRow,
    trigger: RequestTrigger,
    code: &str,
    message: &str,
) -> Result<(), QueueError> {
    end_with(tx, row, &OptimizerError::new(ErrorCode::Cancelled, message), Some(code))?;
    transition(tx, row, trigger, None, &json!({"reason_code": code, "message": message}))
}

/// Takes a request from its holder. What the holder was asked for takes effect: a cancel ends it, a pause sets it aside;
/// a stop is left for the next holder, who can end the run with what it has.
pub(super) fn let_go(tx: &Tx<'_>, row: &RequestRow, trigger: RequestTrigger, detail: &Value) -> Result<(), QueueError> {
    match row.asked() {
        Some(asked) if asked.action == ControlAction::Cancel => {
            let (code, message) = ("cancelled", asked.reason.as_deref().unwrap_or("cancelled"));
            end_with(tx, row, &OptimizerError::new(ErrorCode::Cancelled, message), Some(code))?;
            let payload =
                json!({"reason_code": code, "message": message, "instead_of": trigger.word(), "because": detail});
            transition(tx, row, RequestTrigger::Cancel, None, &payload)?;
            mark_for_cleanup(tx, row)?;
        }
        Some(asked) if asked.action == ControlAction::Pause => {
            let payload = json!({"reason": asked.reason, "instead_of": trigger.word(), "because": detail});
            set_aside(tx, row, asked.pause, &payload)?;
            if trigger == RequestTrigger::LeaseExpired {
                mark_for_cleanup(tx, row)?;
            }
        }
        Some(_) | None => {
            transition(tx, row, trigger, None, detail)?;
            let is_service = row.lease.as_ref().is_some_and(|lease| lease.holder_kind == "service");
            // Whoever let go on purpose leaves the choice to the user, unless it was the service that shuts down.
            if trigger == RequestTrigger::LeaseExpired || is_service {
                start_by_itself(tx, row)?;
            }
        }
    }
    Ok(())
}

/// Pauses a request that somebody holds. It has begun: once it is resumed, it goes on by itself.
pub(super) fn set_aside(
    tx: &Tx<'_>,
    row: &RequestRow,
    timeout: Option<Duration>,
    detail: &Value,
) -> Result<(), QueueError> {
    transition(tx, row, RequestTrigger::Pause, timeout, detail)?;
    start_by_itself(tx, row)
}

fn start_by_itself(tx: &Tx<'_>, row: &RequestRow) -> Result<(), QueueError> {
    if row.manual_step {
        return Ok(());
    }
    execute(tx, "requeue a request", "UPDATE run_requests SET auto_start = 1 WHERE seq = ?1", [row.seq])
}

/// How it is known that a holder is gone; nothing when it may be there.
fn evidence(lease: &Lease, now: &Moment, this: Option<&str>) -> Option<&'static str> {
    if lease.lease_boot_id != now.boot_id {
        // The machine was started again since.
        return Some("other_boot");
    }
    if lease.lease_deadline_boot <= now.boot {
        return Some("deadline_passed");
    }
    if let Some(this) = this.filter(|_| lease.holder_kind == "service") {
        let is_earlier = lease.holder_instance.as_deref() != Some(this);
        return is_earlier.then_some("earlier_service");
    }
    lease.process.as_ref().is_some_and(Process::is_gone).then_some("holder_gone")
}

fn begin_again(tx: &Tx<'_>, row: &RequestRow, pause: &Pause) -> Result<(), QueueError> {
    let values = named_params! {
        ":now": int(tx.now.wall), ":boot": int(tx.now.boot), ":boot_id": tx.now.boot_id, ":pause": int(pause.pause_ms),
        ":seq": row.seq,
    };
    let text = "UPDATE run_requests SET pause_expires_at = :now + :pause, pause_deadline_boot = :boot + :pause,
        pause_boot_id = :boot_id WHERE seq = :seq";
    execute(tx, "extend a pause", text, values)
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;

//! Claims the next run request for a worker, and recovers requests whose holder is gone.
//!
//! Two requests that need the same container or the same cache never run at the same time: each of them occupies a lane.
//! Leases and pauses expire by the boot clock.

use std::time::Duration;

use rusqlite::{named_params, params};
use serde_json::{Value, json};
use url::Url;

use super::entry::{RequestEntry, entries, entry_of};
use super::error::{QueueError, not_found, sql};
use super::lease::store_error;
use super::lock::{HolderProcess, LeaseHolder};
use super::transitions::{
    Lease, Pause, RequestRow, execute, first_value, millis, next_state, record, to_i64, transition,
};
use super::{Queue, Tx};
use synth_optimizer_core::model::control::ControlAction;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::lifecycle::RequestTrigger;
use synth_optimizer_platform::clock::Moment;

/// The parameters of a claim.
#[derive(Debug, Clone)]
pub struct Claim<'a> {
    pub lease_id: &'a str,
    pub worker_id: Option<&'a str>,
    /// How long the lease lasts without a heartbeat.
    pub lease: Duration,
    pub holder: LeaseHolder,
    pub filter: ClaimFilter<'a>,
}

/// Which run requests a claim may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimFilter<'a> {
    /// Requests that start automatically.
    Background,
    /// Any request except those in manual-step mode.
    Any,
    /// This request, if it is queued and its lanes are free.
    Request(&'a str),
}

/// SQL condition: the lanes of the queued request `q` are free. Both parts match the conditions of the unique indexes, so
/// that SQLite answers them from the indexes.
const LANES_ARE_FREE: &str = "NOT EXISTS (SELECT 1 FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.container_lane = q.container_lane)
  AND NOT EXISTS (SELECT 1 FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.cache_lane IS NOT NULL AND a.cache_lane = q.cache_lane)";

impl Queue {
    /// Claims the request with the highest priority, and among those the oldest, whose lanes are free. Expired leases are
    /// recovered first. A request whose lane is busy does not block the requests behind it.
    pub fn claim(&self, claim: &Claim<'_>) -> Result<Option<RequestEntry>, QueueError> {
        self.write(|tx| {
            recover(tx, claim.holder.instance_id())?;
            let (boot, boot_id) = (to_i64(tx.now.boot), &tx.now.boot_id);
            let found = match claim.filter {
                ClaimFilter::Background => {
                    first_value(tx, &claim_query("q.auto_start = 1 AND q.manual_step = 0"), params![boot, boot_id])?
                }
                ClaimFilter::Any => first_value(tx, &claim_query("q.manual_step = 0"), params![boot, boot_id])?,
                ClaimFilter::Request(request_id) => {
                    if first_value(tx, "SELECT seq FROM run_requests WHERE request_id = ?1", [request_id])?.is_none() {
                        return Err(not_found("run request", request_id));
                    }
                    // A request that is named is claimed at once.
                    first_value(tx, &claim_query("q.request_id = ?3"), params![i64::MAX, boot_id, request_id])?
                }
            };
            found.map(|seq| lease(tx, seq, claim)).transpose()
        })
    }
}

impl Queue {
    /// Returns the time until the next request that waits for the end of an outage may be claimed.
    pub fn next_retry(&self) -> Result<Option<Duration>, QueueError> {
        self.read(|tx| {
            let text = "SELECT retry_boot FROM run_requests
                        WHERE status = 'queued' AND retry_boot > ?1 AND retry_boot_id = ?2 ORDER BY 1 LIMIT 1";
            let next = first_value(tx, text, params![to_i64(tx.now.boot), tx.now.boot_id])?;
            Ok(next.map(|next| Duration::from_millis(next.saturating_sub(to_i64(tx.now.boot)).unsigned_abs())))
        })
    }
}

/// Returns the query of a claim. ?1 is the boot clock and ?2 the id of the boot: a request that waits for the end of an outage
/// is claimed after its pause, or after a reboot.
fn claim_query(rule: &str) -> String {
    format!(
        "SELECT q.seq FROM run_requests AS q WHERE q.status = 'queued' AND {rule} AND {LANES_ARE_FREE}
         AND (q.retry_boot IS NULL OR q.retry_boot <= ?1 OR q.retry_boot_id <> ?2)
         ORDER BY q.priority DESC, q.seq LIMIT 1"
    )
}

fn lease(tx: &Tx<'_>, seq: i64, claim: &Claim<'_>) -> Result<RequestEntry, QueueError> {
    let row =
        || RequestRow::first(tx, "WHERE seq = ?1", [seq])?.ok_or_else(|| not_found("run request", "that was found"));
    let queued = row()?;
    let to = next_state(&queued, RequestTrigger::Claim)?;
    let token = next_token(tx)?;
    let process = claim.holder.process();
    let values = named_params! {
        ":to": to.as_str(), ":now": to_i64(tx.now.wall), ":boot": to_i64(tx.now.boot), ":boot_id": tx.now.boot_id,
        ":lease": millis(claim.lease), ":lease_id": claim.lease_id, ":worker": claim.worker_id, ":token": token,
        ":kind": claim.holder.kind(), ":instance": claim.holder.instance_id(),
        ":pid": process.as_ref().map(|process| process.holder_pid),
        ":started": process.as_ref().map(|process| to_i64(process.holder_started)),
        ":namespace": process.as_ref().map(|process| &process.holder_pid_namespace),
        ":seq": seq,
    };
    let text =
        "UPDATE run_requests SET status = :to, updated_at = :now, leased_at = :now, lease_expires_at = :now + :lease,
           lease_deadline_boot = :boot + :lease, lease_boot_id = :boot_id, lease_id = :lease_id, worker_id = :worker,
           fencing_token = :token, attempts = attempts + 1, retry_at = NULL, retry_boot = NULL, retry_boot_id = NULL,
           retry_reason = NULL, holder_kind = :kind, holder_instance = :instance,
           holder_pid = :pid, holder_started = :started, holder_pid_namespace = :namespace
         WHERE seq = :seq AND status = 'queued'";
    execute(tx, "claim a request", text, values)?;
    // The history row names the new holder, but the state before the claim.
    let mut claimed = row()?;
    claimed.status = queued.status;
    let detail = json!({"lease_id": claim.lease_id, "holder": claim.holder.kind()});
    record(tx, &claimed, to, RequestTrigger::Claim.as_str(), &detail)?;
    entry_of(tx, seq)
}

/// Issues the next fencing token.
fn next_token(tx: &Tx<'_>) -> Result<i64, QueueError> {
    tx.db
        .prepare_cached("UPDATE fencing SET token = token + 1 RETURNING token")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(sql("take a fencing token"))
}

/// Returns the lane of a container: its address in one canonical form. All names of loopback give the same lane.
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
    /// Requeues requests whose holder is gone, and cancels requests that were paused for too long. Returns every request
    /// that was moved. A service that holds the lock of the database passes its `instance_id`; then the requests that an
    /// earlier service held are recovered as well.
    pub fn recover(&self, this: Option<&str>) -> Result<Vec<RequestEntry>, QueueError> {
        // A read is enough, and blocks no other writer, as long as there is nothing to recover.
        if self.read(|tx| recoveries(tx, this))?.is_empty() {
            return Ok(Vec::new());
        }
        self.write(|tx| {
            let moved = recover(tx, this)?;
            moved.into_iter().map(|seq| entry_of(tx, seq)).collect()
        })
    }

    /// Returns the requests whose run still needs cleanup, oldest first.
    pub fn needs_cleanup(&self) -> Result<Vec<RequestEntry>, QueueError> {
        self.read(|tx| entries(tx, "WHERE r.needs_cleanup = 1 ORDER BY r.seq", []))
    }

    /// Marks the run of a request as cleaned up, or its cleanup as abandoned.
    pub fn mark_cleaned(&self, request_id: &str) -> Result<(), QueueError> {
        let text = "UPDATE run_requests SET needs_cleanup = 0 WHERE request_id = ?1";
        self.write(|tx| execute(tx, "note that a run was cleaned up", text, [request_id]))
    }
}

/// Marks the run of a request that ends without its holder: the run and the processes that it started need cleanup. A
/// request that never started needs none.
pub(super) fn mark_for_cleanup(tx: &Tx<'_>, row: &RequestRow) -> Result<(), QueueError> {
    if row.started_at.is_none() {
        return Ok(());
    }
    let text = "UPDATE run_requests SET needs_cleanup = 1 WHERE seq = ?1";
    execute(tx, "note that a run needs cleanup", text, [row.seq])
}

/// What recovery does with a request.
enum RecoveryAction {
    /// Releases the lease. Carries the evidence that the holder is gone.
    HolderGone(&'static str),
    /// Restarts the pause, because it is unknown how long the machine was off.
    RestartPause(Pause),
    PauseExpired,
}

/// Returns the requests to recover now.
fn recoveries(tx: &Tx<'_>, this: Option<&str>) -> Result<Vec<(RequestRow, RecoveryAction)>, QueueError> {
    let mut recoveries = Vec::new();
    for row in RequestRow::active(tx)? {
        if let Some(evidence) = row.lease.as_ref().and_then(|lease| holder_gone_evidence(lease, &tx.now, this)) {
            recoveries.push((row, RecoveryAction::HolderGone(evidence)));
        }
    }
    for row in RequestRow::read(tx, "WHERE status = 'paused' ORDER BY seq", [])? {
        match row.pause.clone() {
            Some(pause) if pause.pause_boot_id != tx.now.boot_id => {
                recoveries.push((row, RecoveryAction::RestartPause(pause)))
            }
            Some(pause) if pause.pause_deadline_boot <= tx.now.boot => {
                recoveries.push((row, RecoveryAction::PauseExpired))
            }
            Some(_) | None => {}
        }
    }
    Ok(recoveries)
}

/// Recovers within a transaction. Returns the rows that were moved.
pub(super) fn recover(tx: &Tx<'_>, this: Option<&str>) -> Result<Vec<i64>, QueueError> {
    let mut moved = Vec::new();
    for (row, action) in recoveries(tx, this)? {
        match action {
            RecoveryAction::HolderGone(evidence) => {
                let counts_by_key = "UPDATE run_requests SET recoveries = recoveries + 1,
                   recoveries_without_progress = recoveries_without_progress + 1 WHERE seq = ?1";
                execute(tx, "count a recovery", counts_by_key, [row.seq])?;
                let detail = json!({
                    "reason_code": "lease_expired",
                    "evidence": evidence,
                    "recovered_from_status": row.status.as_str(),
                    "lease_id": row.lease.as_ref().map(|lease| &lease.lease_id),
                });
                release_lease(tx, &row, RequestTrigger::LeaseExpired, &detail)?;
                moved.push(row.seq);
            }
            RecoveryAction::RestartPause(pause) => restart_pause(tx, &row, &pause)?,
            RecoveryAction::PauseExpired => {
                let message = "the pause timeout has passed";
                cancel(tx, &row, RequestTrigger::PauseExpired, "pause_timeout", message)?;
                mark_for_cleanup(tx, &row)?;
                moved.push(row.seq);
            }
        }
    }
    Ok(moved)
}

/// Moves a request to `cancelled` and stores the reason.
pub(super) fn cancel(
    tx: &Tx<'_>,
    row: &RequestRow,
    trigger: RequestTrigger,
    code: &str,
    message: &str,
) -> Result<(), QueueError> {
    store_error(tx, row, &OptimizerError::new(ErrorCode::Cancelled, message), Some(code))?;
    transition(tx, row, trigger, None, &json!({"reason_code": code, "message": message}))
}

/// Takes a request from its holder. A pending control request takes effect: cancel cancels it, pause pauses it. A stop
/// stays pending for the next holder, which finalizes the run with its best candidate so far.
pub(super) fn release_lease(
    tx: &Tx<'_>,
    row: &RequestRow,
    trigger: RequestTrigger,
    detail: &Value,
) -> Result<(), QueueError> {
    match row.pending_control() {
        Some(control) if control.action == ControlAction::Cancel => {
            let (code, message) = ("cancelled", control.reason.as_deref().unwrap_or("cancelled"));
            store_error(tx, row, &OptimizerError::new(ErrorCode::Cancelled, message), Some(code))?;
            let payload =
                json!({"reason_code": code, "message": message, "instead_of": trigger.as_str(), "because": detail});
            transition(tx, row, RequestTrigger::Cancel, None, &payload)?;
            mark_for_cleanup(tx, row)?;
        }
        Some(control) if control.action == ControlAction::Pause => {
            let payload = json!({"reason": control.reason, "instead_of": trigger.as_str(), "because": detail});
            transition(tx, row, RequestTrigger::Pause, control.pause, &payload)?;
            // Its run has started, so it continues automatically once it is resumed.
            enable_auto_start(tx, row)?;
            if trigger == RequestTrigger::LeaseExpired {
                mark_for_cleanup(tx, row)?;
            }
        }
        Some(_) | None => {
            transition(tx, row, trigger, None, detail)?;
            let is_service = row.lease.as_ref().is_some_and(|lease| lease.holder_kind == "service");
            // A request restarts automatically after an expired lease or a shutdown of the service. Other holders that
            // release a request leave `auto_start` to the user.
            if trigger == RequestTrigger::LeaseExpired || is_service {
                enable_auto_start(tx, row)?;
            }
        }
    }
    Ok(())
}

fn enable_auto_start(tx: &Tx<'_>, row: &RequestRow) -> Result<(), QueueError> {
    if row.manual_step {
        return Ok(());
    }
    execute(tx, "requeue a request", "UPDATE run_requests SET auto_start = 1 WHERE seq = ?1", [row.seq])
}

/// Returns the evidence that a holder is gone, or `None` when the holder may still be alive.
fn holder_gone_evidence(lease: &Lease, now: &Moment, this: Option<&str>) -> Option<&'static str> {
    if lease.lease_boot_id != now.boot_id {
        // The machine has rebooted since.
        return Some("other_boot");
    }
    if lease.lease_deadline_boot <= now.boot {
        return Some("deadline_passed");
    }
    if let Some(this) = this.filter(|_| lease.holder_kind == "service") {
        let is_earlier = lease.holder_instance.as_deref() != Some(this);
        return is_earlier.then_some("earlier_service");
    }
    lease.process.as_ref().is_some_and(HolderProcess::has_ended).then_some("holder_gone")
}

fn restart_pause(tx: &Tx<'_>, row: &RequestRow, pause: &Pause) -> Result<(), QueueError> {
    let values = named_params! {
        ":now": to_i64(tx.now.wall), ":boot": to_i64(tx.now.boot), ":boot_id": tx.now.boot_id, ":pause": to_i64(pause.pause_ms),
        ":seq": row.seq,
    };
    let text = "UPDATE run_requests SET pause_expires_at = :now + :pause, pause_deadline_boot = :boot + :pause,
        pause_boot_id = :boot_id WHERE seq = :seq";
    execute(tx, "extend a pause", text, values)
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;

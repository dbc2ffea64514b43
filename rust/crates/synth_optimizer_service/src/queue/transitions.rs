//! State transitions of run requests. Every transition is checked against the lifecycle table, guarded by fencing token and
//! state, and recorded in the history.

use std::time::Duration;

use rusqlite::{OptionalExtension, named_params};
use serde::Deserialize;
use serde_json::Value;
use tracing::debug;

use super::Tx;
use super::entry::{decode, rows};
use super::error::{QueueError, not_found, sql};
use super::lock::HolderProcess;
use crate::ServiceErrorCode;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest};
use synth_optimizer_core::model::lifecycle::{Lifecycle, RequestState, RequestTrigger};
use synth_optimizer_core::secrets::redact;
use synth_optimizer_platform::clock::Moment;

/// The columns of a request that decide about transitions. The fields have the names of the columns.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct RequestRow {
    pub(super) seq: i64,
    pub(super) request_id: String,
    pub(super) run_id: String,
    pub(super) status: RequestState,
    pub(super) auto_start: bool,
    pub(super) manual_step: bool,
    /// Time of the first start.
    pub(super) started_at: Option<String>,
    pub(super) fencing_token: i64,
    #[serde(flatten)]
    pub(super) lease: Option<Lease>,
    control: Option<ControlAction>,
    control_reason: Option<String>,
    control_pause_ms: Option<u64>,
    #[serde(flatten)]
    pub(super) pause: Option<Pause>,
}

/// The lease of a request: its holder and its deadline.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Lease {
    pub(super) lease_id: String,
    pub(super) worker_id: Option<String>,
    pub(super) lease_deadline_boot: u64,
    pub(super) lease_boot_id: String,
    pub(super) holder_kind: String,
    pub(super) holder_instance: Option<String>,
    #[serde(flatten)]
    pub(super) process: Option<HolderProcess>,
}

/// The timeout of a pause. A pause without one lasts until the request is resumed or cancelled.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Pause {
    pub(super) pause_deadline_boot: u64,
    pub(super) pause_boot_id: String,
    pub(super) pause_ms: u64,
}

impl Lease {
    pub(super) fn has_expired(&self, now: &Moment) -> bool {
        self.lease_boot_id != now.boot_id || self.lease_deadline_boot <= now.boot
    }
}

impl RequestRow {
    pub(super) fn of_request(tx: &Tx<'_>, request_id: &str) -> Result<Self, QueueError> {
        Self::first(tx, "WHERE request_id = ?1", [request_id])?.ok_or_else(|| not_found("run request", request_id))
    }

    /// Returns all leased and running requests.
    pub(super) fn active(tx: &Tx<'_>) -> Result<Vec<Self>, QueueError> {
        Self::read(tx, "WHERE status IN ('leased', 'running') ORDER BY seq", [])
    }

    pub(super) fn first(tx: &Tx<'_>, rest: &str, values: impl rusqlite::Params) -> Result<Option<Self>, QueueError> {
        Ok(Self::read(tx, rest, values)?.into_iter().next())
    }

    pub(super) fn read(tx: &Tx<'_>, rest: &str, values: impl rusqlite::Params) -> Result<Vec<Self>, QueueError> {
        let columns =
            "seq, request_id, run_id, status, auto_start, manual_step, started_at, fencing_token, lease_id, worker_id,
          lease_deadline_boot, lease_boot_id, holder_kind, holder_instance, holder_pid, holder_started,
          holder_pid_namespace, control, control_reason, control_pause_ms, pause_deadline_boot, pause_boot_id, pause_ms";
        rows(tx, "read a request", &format!("SELECT {columns} FROM run_requests {rest}"), values, decode)
    }

    /// Returns the control request that the holder has not obeyed yet.
    pub(super) fn pending_control(&self) -> Option<ControlRequest> {
        let pause = self.control_pause_ms.map(Duration::from_millis);
        self.control.map(|action| ControlRequest { action, reason: self.control_reason.clone(), grace: None, pause })
    }
}

/// Converts a number to SQLite's integer type. Larger values saturate.
pub(super) fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts a duration to milliseconds.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the state that a trigger leads to, or the error for an illegal transition.
pub(super) fn next_state(row: &RequestRow, trigger: RequestTrigger) -> Result<RequestState, QueueError> {
    row.status.next(trigger).map_err(|_same| {
        let message = format!(
            "{} is not possible: run request {} of run {} is {}",
            trigger.as_str(),
            row.request_id,
            row.run_id,
            row.status.as_str()
        );
        let hint = "Only the transitions in docs/reference/lifecycles.md are possible; check the current state first.";
        QueueError::new(ServiceErrorCode::InvalidTransition, message, hint).in_state(row.status)
    })
}

const CLEAR_LEASE: &str = "lease_id = NULL, worker_id = NULL, lease_expires_at = NULL, lease_deadline_boot = NULL,
  lease_boot_id = NULL, holder_kind = NULL, holder_instance = NULL, holder_pid = NULL, holder_started = NULL,
  holder_pid_namespace = NULL,";
const CLEAR_CONTROL: &str = "control = NULL, control_reason = NULL, control_pause_ms = NULL, control_at = NULL,";

/// Moves a request to any state except `leased`. Clears what belongs to the old state: the lease, the pause and, unless the
/// next holder must obey it, the control request.
pub(super) fn transition(
    tx: &Tx<'_>,
    row: &RequestRow,
    trigger: RequestTrigger,
    pause: Option<Duration>,
    detail: &Value,
) -> Result<(), QueueError> {
    let to = next_state(row, trigger)?;
    let keeps_control = match to {
        RequestState::Running => true,
        // A worker must claim the request to obey a pending stop.
        RequestState::Queued => row.control == Some(ControlAction::Stop),
        _ => false,
    };
    let lease = if to == RequestState::Running { "" } else { CLEAR_LEASE };
    let control = if keeps_control { "" } else { CLEAR_CONTROL };
    let pause = pause.filter(|_| to == RequestState::Paused).map(millis);
    let text = format!(
        "UPDATE run_requests SET status = :to, updated_at = :now, {lease} {control}
           started_at = CASE WHEN :to = 'running' THEN coalesce(started_at, :now) ELSE started_at END,
           finished_at = CASE WHEN :final THEN :now END,
           retry_at = NULL, retry_boot = NULL, retry_boot_id = NULL, retry_reason = NULL,
           last_holder_pid = coalesce(holder_pid, last_holder_pid),
           pause_ms = :pause, pause_expires_at = :now + :pause, pause_deadline_boot = :boot + :pause,
           pause_boot_id = CASE WHEN :pause IS NOT NULL THEN :boot_id END,
           needs_cleanup = CASE WHEN :to = 'running' THEN 0 ELSE needs_cleanup END,
           error_json = CASE WHEN :final THEN error_json END
         WHERE seq = :seq AND fencing_token = :token AND status = :from"
    );
    let values = named_params! {
        ":to": to.as_str(), ":now": to_i64(tx.now.wall), ":final": to.is_final(), ":pause": pause, ":boot": to_i64(tx.now.boot),
        ":boot_id": tx.now.boot_id, ":seq": row.seq, ":token": row.fencing_token, ":from": row.status.as_str(),
    };
    if execute_counted(tx, "move a request", &text, values)? == 0 {
        return Err(fenced(row, None));
    }
    let (from, to_state, trigger) = (row.status.as_str(), to.as_str(), trigger.as_str());
    debug!(run_id = row.run_id, request = row.request_id, from, to = to_state, trigger, "run request moved");
    record(tx, row, to, trigger, detail)
}

/// Adds a row to the history of a request.
pub(super) fn record(
    tx: &Tx<'_>,
    row: &RequestRow,
    to: RequestState,
    trigger: &str,
    detail: &Value,
) -> Result<(), QueueError> {
    let worker = row.lease.as_ref().and_then(|lease| lease.worker_id.as_deref());
    let sql_text = "INSERT INTO request_history
      (request_seq, at, from_state, to_state, \"trigger\", worker_id, fencing_token, detail_json)
      VALUES (:seq, :at, :from, :to, :trigger, :worker, :token, :detail)";
    let values = named_params! {
        ":seq": row.seq, ":at": to_i64(tx.now.wall), ":to": to.as_str(), ":trigger": trigger, ":worker": worker,
        ":from": (trigger != "submit").then(|| row.status.as_str()), ":token": row.fencing_token,
        ":detail": redact("", detail).to_string(),
    };
    execute(tx, "write the history of a request", sql_text, values)
}

/// Returns the error for a write by a caller that no longer holds the lease.
pub(super) fn fenced(row: &RequestRow, token: Option<i64>) -> QueueError {
    let whose = match &row.lease {
        Some(lease) => {
            let worker = lease.worker_id.as_deref().map(|worker| format!(" of worker {worker}")).unwrap_or_default();
            format!("is held by lease {}{worker} with fencing token {}", lease.lease_id, row.fencing_token)
        }
        None => "has no lease".to_owned(),
    };
    let token = token.map(|token| format!(" (fencing token {token})")).unwrap_or_default();
    let message = format!(
        "the lease{token} on run request {} of run {} has ended: the request is {} and {whose}",
        row.request_id,
        row.run_id,
        row.status.as_str()
    );
    let hint = "Stop working on the run. Nothing was written; the current holder resumes from the stored state.";
    QueueError::new(ServiceErrorCode::Fenced, message, hint).in_state(row.status)
}

/// Returns the first column of the first row, if it is not null.
pub(super) fn first_value(tx: &Tx<'_>, text: &str, values: impl rusqlite::Params) -> Result<Option<i64>, QueueError> {
    tx.db
        .prepare_cached(text)
        .and_then(|mut statement| statement.query_row(values, |row| row.get(0)).optional().map(Option::flatten))
        .map_err(sql("look for a request"))
}

/// Executes a statement.
pub(super) fn execute(tx: &Tx<'_>, doing: &str, text: &str, values: impl rusqlite::Params) -> Result<(), QueueError> {
    execute_counted(tx, doing, text, values).map(drop)
}

/// Executes a statement and returns the number of changed rows.
fn execute_counted(tx: &Tx<'_>, doing: &str, text: &str, values: impl rusqlite::Params) -> Result<usize, QueueError> {
    tx.db.prepare_cached(text).and_then(|mut statement| statement.execute(values)).map_err(sql(doing))
}

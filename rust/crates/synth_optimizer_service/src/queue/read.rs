//! Read access to the queue: requests, counts, leases, invariants, and the status as one JSON document. This module never
//! writes.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Row;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::claim::container_lane;
use super::entry::{RequestEntry, decode, entries, format_millis, rows};
use super::error::{QueueError, not_found, sql};
use super::transitions::{first_value, to_i64};
use super::{APPLICATION_ID, Queue, Tx, open};
use crate::ServiceErrorCode;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_platform::clock::{Clock, SystemClock};
use synth_optimizer_platform::workspace::schema::{BUSY_TIMEOUT, kind_of};

/// One page of requests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RequestPage {
    pub items: Vec<RequestEntry>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// An entry in the history of a request: a state transition, or a control request for its holder, which changes no state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    pub sequence: i64,
    pub request_id: String,
    pub at: String,
    pub from: Option<String>,
    pub to: String,
    pub trigger: String,
    pub worker_id: Option<String>,
    pub fencing_token: i64,
    pub detail: Value,
}

/// An active lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseEntry {
    pub lease_id: String,
    pub request_id: String,
    pub run_id: String,
    pub worker_id: Option<String>,
    pub holder: String,
    pub fencing_token: i64,
    pub container: String,
    pub cache_namespace: Option<String>,
    pub leased_at: Option<String>,
    pub lease_expires_at: Option<String>,
    pub progress_at: Option<String>,
}

/// Whether the queue makes progress.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Liveness {
    pub running_count: i64,
    pub oldest_queued_age_seconds: Option<f64>,
    pub last_progress_at: Option<String>,
}

const HISTORY: &str = "SELECT h.sequence, r.request_id, h.at, h.from_state AS \"from\", h.to_state AS \"to\", h.\"trigger\",
  h.worker_id, h.fencing_token, h.detail_json FROM request_history AS h JOIN run_requests AS r ON r.seq = h.request_seq";

impl Queue {
    /// Returns the latest request of a run.
    pub fn get(&self, run_id: &str) -> Result<RequestEntry, QueueError> {
        self.find_one("WHERE r.run_id = ?1 ORDER BY r.seq DESC LIMIT 1", "run", run_id)
    }

    pub fn get_request(&self, request_id: &str) -> Result<RequestEntry, QueueError> {
        self.find_one("WHERE r.request_id = ?1", "run request", request_id)
    }

    /// Returns a page of requests in any of these states, newest first. An empty list selects all states.
    pub fn list(&self, states: &[RequestState], limit: usize, cursor: Option<&str>) -> Result<RequestPage, QueueError> {
        let before = cursor.map(seq_of).transpose()?.unwrap_or(i64::MAX);
        let one_more = to_i64(limit as u64).saturating_add(1);
        self.read(|tx| {
            let rest = format!("WHERE r.seq < ?1 AND {} ORDER BY r.seq DESC LIMIT ?2", is_in("r.status", states));
            let mut items = entries(tx, &rest, (before, one_more))?;
            let has_more = items.len() > limit;
            items.truncate(limit);
            let last = items.last().filter(|_| has_more).map(|entry| seq(tx, &entry.request_id)).transpose()?;
            Ok(RequestPage { items, next_cursor: last.map(cursor_of) })
        })
    }

    /// Returns the history of all requests of a run, in order.
    pub fn history(&self, run_id: &str) -> Result<Vec<HistoryEntry>, QueueError> {
        let text = format!("{HISTORY} WHERE r.run_id = ?1 ORDER BY h.sequence");
        self.read(|tx| rows(tx, "read the history of a run", &text, [run_id], decode))
    }

    /// Returns the resolved configuration, and every field with its value and origin.
    pub fn config(&self, request_id: &str) -> Result<(Value, Value), QueueError> {
        self.read(|tx| {
            let text = "SELECT config_json, values_json FROM run_requests WHERE request_id = ?1";
            let found: Vec<Map<String, Value>> = rows(tx, "read a configuration", text, [request_id], decode)?;
            let mut found = found.into_iter().next().ok_or_else(|| not_found("run request", request_id))?;
            let mut document = |name| found.remove(name).unwrap_or_default();
            Ok((document("config"), document("values")))
        })
    }

    /// Returns the number of requests in each state that has any.
    pub fn counts(&self) -> Result<BTreeMap<String, i64>, QueueError> {
        self.read(|tx| counts_by_key(tx, "SELECT status, count(*) FROM run_requests GROUP BY status"))
    }

    pub fn liveness(&self) -> Result<Liveness, QueueError> {
        self.read(|tx| {
            let number = |text: &str| first_value(tx, text, []);
            let oldest = number("SELECT min(submitted_at) FROM run_requests WHERE status = 'queued'")?;
            let progress = number("SELECT max(progress_at) FROM run_requests WHERE status IN ('leased', 'running')")?;
            let running = number("SELECT count(*) FROM run_requests WHERE status = 'running'")?;
            let age = |since: i64| to_i64(tx.now.wall).saturating_sub(since).max(0) as f64 / 1000.0;
            Ok(Liveness {
                running_count: running.unwrap_or(0),
                oldest_queued_age_seconds: oldest.map(age),
                last_progress_at: progress.map(format_millis),
            })
        })
    }

    /// Returns the active leases.
    pub fn leases(&self) -> Result<Vec<LeaseEntry>, QueueError> {
        let text = "SELECT lease_id, request_id, run_id, worker_id, holder_kind AS holder, fencing_token,
            container_lane AS container, cache_lane AS cache_namespace, leased_at, lease_expires_at, progress_at
            FROM run_requests WHERE status IN ('leased', 'running') ORDER BY seq";
        self.read(|tx| rows(tx, "read the leases", text, [], decode))
    }

    /// Returns whether a leased or running request uses this container.
    pub fn is_container_held(&self, url: &str) -> Result<bool, QueueError> {
        let text = "SELECT 1 FROM run_requests WHERE status IN ('leased', 'running') AND container_lane = ?1";
        self.read(|tx| Ok(first_value(tx, text, [container_lane(url)])?.is_some()))
    }

    /// Checks the invariants of the queue and returns the report.
    pub fn invariants(&self) -> Result<Value, QueueError> {
        self.read(invariant_report)
    }

    fn find_one(&self, rest: &str, what: &str, id: &str) -> Result<RequestEntry, QueueError> {
        self.read(|tx| entries(tx, rest, [id])?.into_iter().next().ok_or_else(|| not_found(what, id)))
    }
}

/// Returns the SQL condition `column IN (…)`, which is always true for an empty list. The words are constants of this crate.
pub(super) fn is_in(column: &str, states: &[RequestState]) -> String {
    let words: Vec<String> = states.iter().map(|state| format!("'{}'", state.as_str())).collect();
    if words.is_empty() { "1".to_owned() } else { format!("{column} IN ({})", words.join(", ")) }
}

/// Returns counts by key.
fn counts_by_key(tx: &Tx<'_>, text: &str) -> Result<BTreeMap<String, i64>, QueueError> {
    rows(tx, "count", text, [], |row| Ok((row.get(0)?, row.get(1)?)))
}

fn seq(tx: &Tx<'_>, request_id: &str) -> Result<i64, QueueError> {
    first_value(tx, "SELECT seq FROM run_requests WHERE request_id = ?1", [request_id])?
        .ok_or_else(|| not_found("run request", request_id))
}

fn cursor_of(seq: i64) -> String {
    format!("c{seq:x}")
}

fn seq_of(cursor: &str) -> Result<i64, QueueError> {
    let known = cursor.strip_prefix('c').and_then(|digits| i64::from_str_radix(digits, 16).ok());
    // Accept exactly the form that pages return: no sign, no capitals, no leading zero.
    known.filter(|seq| *seq > 0 && cursor_of(*seq) == cursor).ok_or_else(|| {
        let message = format!("{cursor:?} is not a cursor of this list");
        let hint = "Pass next_cursor of the previous page, or no cursor for the first page.";
        QueueError::new(ServiceErrorCode::InvalidCursor, message, hint)
    })
}

/// How many requests the status document lists, newest first. Its counts cover all requests.
const MAX_LISTED_REQUESTS: i64 = 200;

/// An invariant: its name, the message for a violation, and the query that finds violations.
type Invariant = (&'static str, &'static str, &'static str);

const INVARIANTS: &[Invariant] = &[
    (
        "active_requests_have_lease",
        "it is leased or running without a lease",
        "SELECT request_id FROM run_requests WHERE status IN ('leased', 'running')
           AND (lease_id IS NULL OR lease_deadline_boot IS NULL OR fencing_token = 0)",
    ),
    (
        "terminal_requests_release_leases",
        "it has ended and has a lease",
        "SELECT request_id FROM run_requests WHERE lease_id IS NOT NULL
           AND status IN ('completed', 'failed', 'cancelled')",
    ),
    (
        "active_leases_point_to_active_requests",
        "it has a lease and is not leased or running",
        "SELECT request_id FROM run_requests WHERE lease_id IS NOT NULL AND status IN ('queued', 'paused')",
    ),
];

/// Returns the status of a file, which is the queue of a service or the workspace of a run. The status of a queue has requests
/// in place of runs. Writes nothing.
pub fn workspace_status(path: &Path) -> Result<Value, OptimizerError> {
    if kind_of(path) != Some(APPLICATION_ID) {
        return synth_optimizer_platform::workspace::workspace_status(path);
    }
    let read = || {
        let mut connection = open::open_read_only(path, BUSY_TIMEOUT)?;
        let transaction = connection.transaction().map_err(sql("begin to read"))?;
        document(&Tx { db: &transaction, now: SystemClock.now() }, path)
    };
    read().map_err(|refused: QueueError| refused.error)
}

fn document(tx: &Tx<'_>, path: &Path) -> Result<Value, QueueError> {
    let invariant_report = invariant_report(tx)?;
    let broken = invariant_report["violation_count"].as_u64().unwrap_or(0);
    let severities = if broken == 0 { json!({}) } else { json!({"error": broken}) };
    let health = invariant_report["status"].as_str().unwrap_or_default();
    let count = |text: &str| counts_by_key(tx, text);
    let leases = "SELECT status, resource_kind, count(*) FROM resource_leases GROUP BY 1, 2";
    let each = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let leases: Vec<(String, String, i64)> = rows(tx, "count the leases", leases, [], each)?;
    let (mut by_status, mut by_kind) = (BTreeMap::<_, i64>::new(), BTreeMap::<_, i64>::new());
    for (status, kind, count) in leases {
        *by_status.entry(status).or_default() += count;
        *by_kind.entry(kind).or_default() += count;
    }
    Ok(json!({
        "schema_version": "synth_optimizers.workspace.v1",
        "path": path.display().to_string(),
        "run_requests": entries(tx, "ORDER BY r.seq DESC LIMIT ?1", [MAX_LISTED_REQUESTS])?,
        "run_request_status_counts": count("SELECT status, count(*) FROM run_requests GROUP BY status")?,
        "operation_status_counts": count(OPERATION_COUNTS)?,
        "resource_lease_status_counts": by_status,
        "resource_lease_kind_counts": by_kind,
        "projection_status_counts": {},
        "invariant_status_counts": {health: 1},
        "invariant_violation_severity_counts": severities,
        "workspace_projection_freshness": [],
        "workspace_invariant_report": invariant_report,
        "runs": [],
    }))
}

/// The counts of the view `operations`, without reading its documents.
const OPERATION_COUNTS: &str = "SELECT CASE WHEN \"trigger\" IN ('request_cancel', 'request_pause', 'request_stop')
    THEN 'accepted' ELSE 'completed' END, count(*) FROM request_history GROUP BY 1";

fn invariant_report(tx: &Tx<'_>) -> Result<Value, QueueError> {
    let mut violations = Vec::new();
    for (name, wrong, query) in INVARIANTS {
        let found: Vec<String> = rows(tx, "check the rules", query, [], |row| row.get(0))?;
        for request_id in found {
            violations.push(json!({
                "invariant_id": name, "severity": "error", "subject_type": "run_request", "subject_id": request_id,
                "message": format!("run request {request_id}: {wrong}"),
                "repair_hint": "Another program changed the file: restore it from a copy, and report it.",
            }));
        }
    }
    Ok(json!({
        "status": if violations.is_empty() { "pass" } else { "fail" },
        "invariants": INVARIANTS.iter().map(|(name, _, _)| *name).collect::<Vec<_>>(),
        "violation_count": violations.len(),
        "checked_at": rfc3339(tx.now.wall),
        "violations": violations,
        "recorded": false,
    }))
}

//! `workspace_status` of a queue: its requests, counts, leases, and whether its rules hold, in one JSON document.

use std::path::Path;

use rusqlite::Connection;
use serde_json::{Value, json};

use super::entry::entries;
use super::error::{QueueError, sql};
use super::read::counted;
use super::{Queue, open};
use crate::clock::{Clock, SystemClock};
use crate::model::envelope::rfc3339;
use crate::workspace::schema::BUSY;

/// Requests in the document: the newest. Counts are over all.
const SHOWN: i64 = 200;

/// A rule: its name, what is wrong with the rows that it finds, and the query that finds them.
type Rule = (&'static str, &'static str, &'static str);

const RULES: &[Rule] = &[
    (
        "active_requests_have_lease",
        "it is worked on without a lease",
        "SELECT request_id FROM run_requests WHERE status IN ('leased', 'running')
           AND (lease_id IS NULL OR lease_deadline_boot IS NULL OR fencing_token = 0)",
    ),
    (
        "terminal_requests_release_leases",
        "it is over and has a lease",
        "SELECT request_id FROM run_requests WHERE status IN ('completed', 'failed', 'cancelled')
           AND (lease_id IS NOT NULL OR finished_at IS NULL)",
    ),
    (
        "active_leases_point_to_active_requests",
        "it has a lease and is not worked on",
        "SELECT request_id FROM run_requests WHERE lease_id IS NOT NULL AND status NOT IN ('leased', 'running')",
    ),
];

/// The document of a file. Nothing is written.
pub fn status(path: &Path) -> Result<Value, QueueError> {
    let mut db = open::open_to_read(path, BUSY)?;
    let moment = db.transaction().map_err(sql("begin to read"))?;
    document(&moment, path, SystemClock.now().wall)
}

impl Queue {
    /// The same document of an open queue.
    pub fn status(&self) -> Result<Value, QueueError> {
        self.read(|db, now| document(db, self.path(), now.wall))
    }
}

fn document(db: &Connection, path: &Path, now: u64) -> Result<Value, QueueError> {
    let mut violations = Vec::new();
    for (name, wrong, query) in RULES {
        for request_id in texts(db, query)? {
            violations.push(json!({
                "invariant_id": name, "severity": "error", "subject_type": "run_request", "subject_id": request_id,
                "message": format!("request {request_id}: {wrong}"),
                "repair_hint": "The file was changed by something else: restore it from a copy, and report it.",
            }));
        }
    }
    let health = if violations.is_empty() { "pass" } else { "fail" };
    let severities = if violations.is_empty() { json!({}) } else { json!({"error": violations.len()}) };
    let count = |text: &str| counted(db, text);
    Ok(json!({
        "schema_version": "synth_optimizers.workspace.v1",
        "path": path.display().to_string(),
        "run_requests": entries(db, "ORDER BY r.seq DESC LIMIT ?1", [SHOWN])?,
        "run_request_status_counts": count("SELECT status, count(*) FROM run_requests GROUP BY status")?,
        "operation_status_counts": count("SELECT status, count(*) FROM operations GROUP BY status")?,
        "resource_lease_status_counts": count("SELECT status, count(*) FROM resource_leases GROUP BY status")?,
        "resource_lease_kind_counts": count("SELECT resource_kind, count(*) FROM resource_leases GROUP BY resource_kind")?,
        "projection_status_counts": {},
        "invariant_status_counts": {health: 1},
        "invariant_violation_severity_counts": severities,
        "workspace_projection_freshness": [],
        "workspace_invariant_report": {
            "status": health,
            "invariants": RULES.iter().map(|(name, _, _)| *name).collect::<Vec<_>>(),
            "violation_count": violations.len(),
            "checked_at": rfc3339(now),
            "violations": violations,
            "recorded": false,
        },
        "runs": [],
    }))
}

fn texts(db: &Connection, query: &str) -> Result<Vec<String>, QueueError> {
    db.prepare_cached(query)
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .map_err(sql("check the rules"))
}

//! `workspace_status` of a queue: its requests, counts, leases, and whether its rules hold, in one JSON document.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, Row};
use serde_json::{Value, json};

use super::entry::entries;
use super::error::{QueueError, sql};
use super::read::counted;
use super::{APPLICATION_ID, Queue, open};
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::clock::{Clock, SystemClock};
use synth_optimizer_platform::workspace::schema::{BUSY, kind_of};

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
        "SELECT request_id FROM run_requests WHERE lease_id IS NOT NULL
           AND status IN ('completed', 'failed', 'cancelled')",
    ),
    (
        "active_leases_point_to_active_requests",
        "it has a lease and nobody works on it",
        "SELECT request_id FROM run_requests WHERE lease_id IS NOT NULL AND status IN ('queued', 'paused')",
    ),
];

/// The status of a file, which may be the queue of a service or the workspace of a run.
///
/// In the status of a queue, requests take the place of the runs; nothing is written.
pub fn workspace_status(path: &Path) -> Result<Value, OptimizerError> {
    if kind_of(path) != Some(APPLICATION_ID) {
        return synth_optimizer_platform::workspace::workspace_status(path);
    }
    let read = || {
        let mut db = open::open_to_read(path, BUSY)?;
        let moment = db.transaction().map_err(sql("begin to read"))?;
        document(&moment, path, SystemClock.now().wall)
    };
    read().map_err(|refused: QueueError| refused.error)
}

impl Queue {
    /// The same document of an open queue.
    pub fn status(&self) -> Result<Value, QueueError> {
        self.read(|db, now| document(db, self.path(), now.wall))
    }

    /// Whether the rules of the queue hold.
    pub fn invariants(&self) -> Result<Value, QueueError> {
        self.read(|db, now| report(db, now.wall))
    }
}

fn document(db: &Connection, path: &Path, now: u64) -> Result<Value, QueueError> {
    let report = report(db, now)?;
    let broken = report["violation_count"].as_u64().unwrap_or(0);
    let severities = if broken == 0 { json!({}) } else { json!({"error": broken}) };
    let health = report["status"].as_str().unwrap_or_default();
    let count = |text: &str| counted(db, text);
    let leases = leases(db)?;
    Ok(json!({
        "schema_version": "synth_optimizers.workspace.v1",
        "path": path.display().to_string(),
        "run_requests": entries(db, "ORDER BY r.seq DESC LIMIT ?1", [SHOWN])?,
        "run_request_status_counts": count("SELECT status, count(*) FROM run_requests GROUP BY status")?,
        "operation_status_counts": count(OPERATIONS)?,
        "resource_lease_status_counts": by(&leases, |(status, _)| status),
        "resource_lease_kind_counts": by(&leases, |(_, kind)| kind),
        "projection_status_counts": {},
        "invariant_status_counts": {health: 1},
        "invariant_violation_severity_counts": severities,
        "workspace_projection_freshness": [],
        "workspace_invariant_report": report,
        "runs": [],
    }))
}

/// What the view `operations` counts, without its documents.
const OPERATIONS: &str = "SELECT CASE WHEN \"trigger\" IN ('ask_cancel', 'ask_pause', 'ask_stop') THEN 'accepted'
    ELSE 'completed' END, count(*) FROM request_history GROUP BY 1";

/// How many leases there are and were, by status and kind.
type Leases = BTreeMap<(String, String), i64>;

fn leases(db: &Connection) -> Result<Leases, QueueError> {
    db.prepare_cached("SELECT status, resource_kind, count(*) FROM resource_leases GROUP BY 1, 2")
        .and_then(|mut statement| {
            let each = |row: &Row<'_>| Ok(((row.get(0)?, row.get(1)?), row.get(2)?));
            statement.query_map([], each)?.collect()
        })
        .map_err(sql("count the leases"))
}

fn by(leases: &Leases, key: impl Fn(&(String, String)) -> &String) -> BTreeMap<String, i64> {
    let mut sums = BTreeMap::new();
    for (known, count) in leases {
        *sums.entry(key(known).clone()).or_default() += count;
    }
    sums
}

fn report(db: &Connection, now: u64) -> Result<Value, QueueError> {
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
    Ok(json!({
        "status": if violations.is_empty() { "pass" } else { "fail" },
        "invariants": RULES.iter().map(|(name, _, _)| *name).collect::<Vec<_>>(),
        "violation_count": violations.len(),
        "checked_at": rfc3339(now),
        "violations": violations,
        "recorded": false,
    }))
}

fn texts(db: &Connection, query: &str) -> Result<Vec<String>, QueueError> {
    db.prepare_cached(query)
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .map_err(sql("check the rules"))
}

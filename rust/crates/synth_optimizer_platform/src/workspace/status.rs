//! `workspace_status`: everything about a workspace in one JSON document, on a live run as on one that is over.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value, json};

use super::census::{Census, Counts};
use super::error::sqlite;
use super::health::Health;
use super::{open, schema};
use crate::clock::unix_millis;
use crate::model::envelope::rfc3339;
use crate::model::error::OptimizerError;
use crate::model::lifecycle::Lifecycle;
use crate::model::usage::Cost;
use crate::queue;

/// How long to wait for the writer when the findings are left behind.
const PATIENCE: Duration = Duration::from_millis(500);

/// Counts, freshness of projections, invariants and totals of the run. What it finds is also left in
/// `projection_freshness`, `invariant_reports` and `invariant_violations`, where the file can be written.
///
/// The file may also be the queue of a service: then the requests take the place of the runs, and nothing is written.
pub fn workspace_status(path: &Path) -> Result<Value, OptimizerError> {
    if schema::kind_of(path) == Some(queue::APPLICATION_ID) {
        return queue::status(path).map_err(|refused| refused.error);
    }
    let now = unix_millis();
    let mut db = open::open_to_read(path)?;
    let (census, health, transition) = {
        // One moment for all counts, while a writer may go on.
        let moment = db.transaction().map_err(sqlite("read the workspace"))?;
        let census = Census::take(&moment)?;
        let health = Health::check(&moment, &census, now)?;
        let transition = latest_transition(&moment)?;
        (census, health, transition)
    };
    drop(db);
    // A status is an answer first: on a read-only disk, or behind a writer that takes long, nothing is left behind.
    let recorded = open_to_record(path).and_then(|mut db| health.record(&mut db, now)).is_ok();
    Ok(document(path, &census, &health, transition, now, recorded))
}

fn open_to_record(path: &Path) -> Result<Connection, OptimizerError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(sqlite("open the workspace"))?;
    db.busy_timeout(PATIENCE).map_err(sqlite("open the workspace"))?;
    db.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;").map_err(sqlite("open the workspace"))?;
    Ok(db)
}

fn document(path: &Path, census: &Census, health: &Health, transition: Value, now: u64, recorded: bool) -> Value {
    let mut fresh = Counts::new();
    for found in &health.freshness {
        *fresh.entry(found.status.to_owned()).or_default() += 1;
    }
    let report = json!({
        "status": health.status(),
        "violation_count": health.violations.len(),
        "checked_at": rfc3339(now),
        "violations": health.violations,
        "recorded": recorded,
    });
    let severities = if health.violations.is_empty() { json!({}) } else { json!({"error": health.violations.len()}) };
    let map = |key: &str| census.maps.get(key).cloned().unwrap_or_default();
    json!({
        "schema_version": "synth_optimizers.workspace.v1",
        "path": path.display().to_string(),
        "run_requests": [],
        "run_request_status_counts": {},
        "operation_status_counts": map("operation_status_counts"),
        "resource_lease_status_counts": map("resource_lease_status_counts"),
        "resource_lease_kind_counts": map("resource_lease_kind_counts"),
        "projection_status_counts": fresh,
        "invariant_status_counts": {health.status(): 1},
        "invariant_violation_severity_counts": severities,
        "workspace_projection_freshness": [],
        "workspace_invariant_report": report,
        "runs": [run_entry(census, health, &report, &severities, transition)],
    })
}

fn run_entry(census: &Census, health: &Health, report: &Value, severities: &Value, transition: Value) -> Value {
    let (run, totals) = (&census.run, &census.totals);
    let usage = json!({
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "total_tokens": totals.total_tokens,
        "rollout_calls": totals.rollouts_finished + totals.rollouts_failed,
        "proposer_calls": totals.proposer_turns,
        "paid_calls": totals.paid_calls,
        "cached_calls": totals.cached_calls,
        "unpriced_calls": totals.unpriced_calls,
        "unknown_outcomes": totals.unknown_outcomes,
    });
    let cost = match totals.cost() {
        Cost::Known(amount) => json!(amount.usd()),
        Cost::Unknown => Value::Null,
    };
    let outstanding = totals.rollouts_requested - totals.rollouts_finished - totals.rollouts_failed;
    let mut entry = json!({
        "run_id": run.run_id,
        "state": totals.state,
        "terminal": totals.state.is_final(),
        "cache_mode": run.cache_mode,
        "cache_namespace": run.cache_namespace,
        "output_dir": run.output_dir,
        "run_dir": run.run_dir,
        "manifest_present": census.count("manifests") > 0,
        "best_candidate_id": totals.best_candidate_id,
        "cost_usd": cost,
        "usage": usage,
        "started_at": rfc3339(totals.started_at.unwrap_or(run.created_at)),
        "completed_at": totals.finished_at.map(rfc3339),
        "updated_at": rfc3339(totals.updated_at.unwrap_or(run.created_at)),
        "counts": census.counts,
        "latest_transition": transition,
        "budget_status": {
            "limits": run.config.get("gepa").map(limits),
            "rollouts_requested": totals.rollouts_requested,
            "rollouts_finished": totals.rollouts_finished,
            "rollouts_failed": totals.rollouts_failed,
            "rollouts_outstanding": outstanding,
            "generations": totals.generations,
            "total_tokens": totals.total_tokens,
            "cost_usd": cost,
            "known_cost_usd": totals.known_cost.usd(),
        },
        "stopped_by": totals.stopped_by.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()),
        "projection_freshness": health.freshness,
        "invariant_report": report,
        "invariant_violation_severity_counts": severities,
    });
    if let Some(entry) = entry.as_object_mut() {
        entry.extend(census.maps.iter().map(|(key, counts)| (key.clone(), json!(counts))));
    }
    entry
}

/// The limits among the settings: those that begin with `max_`, where they are set.
pub(crate) fn limits(settings: &Value) -> Map<String, Value> {
    let set = |(name, value): (&String, &Value)| {
        let limits = name.starts_with("max_") && !name.starts_with("max_perfect") && !name.starts_with("max_field");
        (limits && !value.is_null()).then(|| (name.clone(), value.clone()))
    };
    settings.as_object().map(|settings| settings.iter().filter_map(set).collect()).unwrap_or_default()
}

fn latest_transition(db: &Connection) -> Result<Value, OptimizerError> {
    let sql = "SELECT json_object('sequence_number', sequence_number, 'from_state', from_state, 'to_state', to_state,
                 'trigger', \"trigger\", 'transition_at', transition_at)
               FROM optimizer_state_history ORDER BY sequence_number DESC LIMIT 1";
    let found: Vec<String> = db
        .prepare(sql)
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .map_err(sqlite("read the state history"))?;
    Ok(found.first().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null))
}

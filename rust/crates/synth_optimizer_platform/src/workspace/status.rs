//! `workspace_status`: everything about a workspace in one JSON document, for runs in any state.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Map, Value, json};

use super::counts::{CountMap, WorkspaceCounts};
use super::error::sqlite;
use super::health::HealthReport;
use super::open;
use super::query;
use crate::clock::unix_millis;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::Lifecycle;

/// How long to wait for the writer before the findings are left unrecorded.
const RECORD_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns row counts, freshness of projections, invariants and totals of the run. Also records its findings in
/// `projection_freshness`, `invariant_reports` and `invariant_violations`, if the file is writable.
pub fn workspace_status(path: &Path) -> Result<Value, OptimizerError> {
    let found = Findings::read(path)?;
    // Recording is optional: it fails on a read-only disk or behind a slow writer, and the status is returned anyway.
    let recorded =
        open::open_to_record(path, RECORD_TIMEOUT).and_then(|mut db| found.health.record(&mut db, found.now));
    if let Err(error) = &recorded {
        tracing::debug!(%error, "storing the findings of the status failed");
    }
    Ok(found.document(path, recorded.is_ok()))
}

/// Returns the same as `workspace_status`, and writes nothing.
pub(crate) fn workspace_report(path: &Path) -> Result<Value, OptimizerError> {
    Ok(Findings::read(path)?.document(path, false))
}

/// What a status reads of a workspace.
struct Findings {
    now: u64,
    table_counts: WorkspaceCounts,
    health: HealthReport,
    transition: Value,
}

impl Findings {
    fn read(path: &Path) -> Result<Self, OptimizerError> {
        let now = unix_millis();
        let mut db = open::open_to_read(path)?;
        // One transaction for all counts, because a writer may be active.
        let moment = db.transaction().map_err(sqlite("read the workspace"))?;
        let table_counts = WorkspaceCounts::read(&moment)?;
        let health = HealthReport::check(&moment, &table_counts, now)?;
        let transition = latest_transition(&moment)?;
        Ok(Self { now, table_counts, health, transition })
    }

    fn document(self, path: &Path, recorded: bool) -> Value {
        document(path, &self.table_counts, &self.health, self.transition, self.now, recorded)
    }
}

fn document(
    path: &Path,
    table_counts: &WorkspaceCounts,
    health: &HealthReport,
    transition: Value,
    now: u64,
    recorded: bool,
) -> Value {
    let mut fresh = CountMap::new();
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
    let map = |key: &str| table_counts.maps.get(key).cloned().unwrap_or_default();
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
        "runs": [run_entry(table_counts, health, &report, &severities, transition)],
    })
}

fn run_entry(
    table_counts: &WorkspaceCounts,
    health: &HealthReport,
    report: &Value,
    severities: &Value,
    transition: Value,
) -> Value {
    let (run, totals) = (&table_counts.run, &table_counts.totals);
    let counts = &totals.counts;
    let usage = counts.usage();
    let mut entry = json!({
        "run_id": run.run_id,
        "state": totals.state,
        "terminal": totals.state.is_final(),
        "cache_mode": run.cache_mode,
        "cache_namespace": run.cache_namespace,
        "output_dir": run.output_dir,
        "run_dir": run.run_dir,
        "manifest_present": table_counts.count("manifests") > 0,
        "best_candidate_id": totals.best_candidate_id(),
        "cost_usd": usage.total.cost_usd,
        "usage": usage,
        "started_at": rfc3339(totals.started_at.unwrap_or(run.created_at)),
        "completed_at": totals.finished_at.map(rfc3339),
        "updated_at": rfc3339(totals.updated_at.unwrap_or(run.created_at)),
        "counts": table_counts.counts,
        "latest_transition": transition,
        "budget_status": {
            "limits": run.config.get("gepa").map(limits),
            "rollouts_requested": counts.rollouts_requested,
            "rollouts_finished": counts.rollouts_finished,
            "rollouts_failed": counts.rollouts_failed,
            "rollouts_unsent": counts.rollouts_unsent,
            "rollouts_outstanding": counts.rollouts_outstanding(),
            "generations": counts.generations,
            "total_tokens": usage.total.total_tokens,
            "cost_usd": usage.total.cost_usd,
            "known_cost_usd": usage.total.known_cost_usd,
        },
        "stopped_by": totals.stopped_by,
        "projection_freshness": health.freshness,
        "invariant_report": report,
        "invariant_violation_severity_counts": severities,
    });
    if let Some(entry) = entry.as_object_mut() {
        entry.extend(table_counts.maps.iter().map(|(key, counts)| (key.clone(), json!(counts))));
    }
    entry
}

/// The settings of `[gepa]` that are limits of a run.
const LIMITS: [&str; 9] = [
    "max_generations",
    "max_total_rollouts",
    "max_train_rollouts",
    "max_heldout_rollouts",
    "max_cost_usd",
    "max_time_seconds",
    "max_prompt_tokens",
    "max_completion_tokens",
    "max_total_tokens",
];

/// Returns the limits that are set among the settings of `[gepa]`.
pub(crate) fn limits(settings: &Value) -> Map<String, Value> {
    let set = |name: &&str| {
        settings.get(name).filter(|value| !value.is_null()).map(|value| ((*name).to_owned(), value.clone()))
    };
    LIMITS.iter().filter_map(set).collect()
}

fn latest_transition(db: &Connection) -> Result<Value, OptimizerError> {
    let sql = "SELECT json_object('sequence_number', sequence_number, 'from_state', from_state, 'to_state', to_state,
                 'trigger', \"trigger\", 'transition_at', transition_at)
               FROM optimizer_state_history ORDER BY sequence_number DESC LIMIT 1";
    query::document(db, "read the state history", sql, []).map(Option::unwrap_or_default)
}

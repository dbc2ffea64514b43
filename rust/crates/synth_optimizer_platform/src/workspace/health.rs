//! Checks that a workspace is consistent: the freshness of each projection, and the violated invariants.

use rusqlite::{Connection, TransactionBehavior, params};
use serde::Serialize;
use serde_json::{Value, json};

use super::counts::{WorkspaceCounts, number};
use super::error::sqlite;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::lifecycle::RunState;

const REBUILD_HINT: &str =
    "Run `synth-optimizers workspace rebuild` on this file to compute the projections from the log again.";
const REPORT_HINT: &str = "Keep the file, restore it from a copy, and report the damage of the log.";
const RESUME_HINT: &str = "Resume the run to write its end again.";
/// How long a run may take to write its results after its last event is stored.
const RESULTS_TIMEOUT_MILLIS: u64 = 60_000;
/// The number of latest events whose rewards are compared with the projection. A rebuild compares all.
const MAX_COMPARED_EVENTS: u64 = 20_000;

/// Whether a projection has as many rows as its source requires.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Freshness {
    pub(super) projection_name: &'static str,
    pub(super) status: &'static str,
    pub(super) source_table: &'static str,
    pub(super) source_count: u64,
    pub(super) projected_table: &'static str,
    pub(super) projected_count: u64,
    pub(super) lag_count: u64,
    pub(super) rule: &'static str,
}

#[derive(Debug)]
pub(super) struct HealthReport {
    pub(super) freshness: Vec<Freshness>,
    /// Violated invariants, as the status and the table show them.
    pub(super) violations: Vec<Value>,
}

impl HealthReport {
    pub(super) fn check(db: &Connection, table_counts: &WorkspaceCounts, now: u64) -> Result<Self, OptimizerError> {
        let freshness = freshness(db, table_counts, now)?;
        let mut violations: Vec<Value> = freshness
            .iter()
            .filter(|found| found.lag_count > 0)
            .map(|found| {
                let message = format!(
                    "{} has {} rows, and {} requires {}",
                    found.projected_table, found.projected_count, found.source_table, found.source_count
                );
                let hint = if found.projected_table == "manifests" { RESUME_HINT } else { REBUILD_HINT };
                violation(table_counts, found.projection_name, &message, hint)
            })
            .collect();
        violations.extend(broken_rules(db, table_counts, now)?);
        Ok(Self { freshness, violations })
    }

    pub(super) fn status(&self) -> &'static str {
        if self.violations.is_empty() { "pass" } else { "fail" }
    }

    /// Records the findings in the workspace, for users who query it.
    pub(super) fn record(&self, db: &mut Connection, now: u64) -> Result<(), OptimizerError> {
        self.write(db, now).map_err(sqlite("record the health of the workspace"))
    }

    fn write(&self, db: &mut Connection, now: u64) -> rusqlite::Result<()> {
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(
            "DELETE FROM projection_freshness; DELETE FROM invariant_violations; DELETE FROM invariant_reports;",
        )?;
        transaction.execute(
            "INSERT INTO projection_freshness (projection_name, status, source_table, source_count, projected_table,
               projected_count, lag_count, rule, checked_at)
             SELECT value ->> 'projection_name', value ->> 'status', value ->> 'source_table', value ->> 'source_count',
               value ->> 'projected_table', value ->> 'projected_count', value ->> 'lag_count', value ->> 'rule', ?2
             FROM json_each(?1)",
            params![json!(self.freshness).to_string(), now],
        )?;
        transaction.execute(
            "INSERT INTO invariant_reports (report_id, status, violation_count, checked_at) VALUES ('latest', ?1, ?2, ?3)",
            params![self.status(), self.violations.len(), now],
        )?;
        transaction.execute(
            "INSERT OR IGNORE INTO invariant_violations (report_id, invariant_id, severity, subject_type, subject_id,
               message, repair_hint)
             SELECT 'latest', value ->> 'invariant_id', value ->> 'severity', value ->> 'subject_type',
               value ->> 'subject_id', value ->> 'message', value ->> 'repair_hint'
             FROM json_each(?1)",
            [json!(self.violations).to_string()],
        )?;
        transaction.commit()
    }
}

fn violation(table_counts: &WorkspaceCounts, id: &str, message: &str, repair_hint: &str) -> Value {
    json!({
        "invariant_id": id,
        "severity": "error",
        "subject_type": "run",
        "subject_id": table_counts.run.run_id,
        "message": message,
        "repair_hint": repair_hint,
    })
}

fn freshness(db: &Connection, table_counts: &WorkspaceCounts, now: u64) -> Result<Vec<Freshness>, OptimizerError> {
    let event = |wire: &str| table_counts.of("event_stream_event_type_counts", wire);
    let rollout = |status: &str| table_counts.of("rollout_status_counts", status);
    let count = |name: &str| table_counts.count(name);
    let parents = table_counts.of("plan_link_relation_counts", "candidate_lineage");
    let failed = rollout("failed") + rollout("retried");
    let charged =
        ["rollout.finished", "rollout.failed", "proposer.completed", "proposer.failed", "call.outcome_unknown"];
    let charged: u64 = charged.into_iter().map(event).sum();
    let decided = ["candidate.promoted", "candidate.accepted", "candidate.rejected", "candidate.deferred"];
    let decided: u64 = decided.into_iter().map(event).sum();
    let reached = table_counts.totals.last_sequence.map_or(0, |last| last + 1);
    let stored = number(db, "SELECT coalesce(max(sequence) + 1, 0) FROM events")?;
    let same = |name, source, from, projected| row(name, (source, from), (projected, count(projected)), Rule::Equal);
    let least = |name, source, from, projected| row(name, (source, from), (projected, count(projected)), Rule::AtLeast);
    let events = |name, from, projected, to| row(name, ("events", from), (projected, to), Rule::Equal);
    let mut rows = vec![
        least("resolved_config_from_run_start", "run", 1, "resolved_run_configs"),
        least("run_limits_from_run_start", "run", 1, "run_limits"),
        events("run_state_from_events", stored, "run_state", reached),
        same("candidates_from_events", "events", event("candidate.registered"), "candidates"),
        same("candidate_payloads_from_candidates", "candidates", count("candidates"), "candidate_payloads"),
        same("candidate_deltas_from_parented_candidates", "candidates", parents, "candidate_deltas"),
        same("acceptance_decisions_from_candidates", "events", decided, "acceptance_decisions"),
        least("plan_links_from_candidates", "candidates", count("candidates"), "plan_links"),
        same("rollouts_from_events", "events", table_counts.rows_requested, "rollouts"),
        events("rollouts_finished_from_events", event("rollout.finished"), "rollouts", rollout("finished")),
        events("rollouts_failed_from_events", event("rollout.failed"), "rollouts", failed),
        same("proposer_calls_from_events", "events", event("proposer.started"), "proposer_calls"),
        least(
            "event_stream_events_cover_state_transitions",
            "optimizer_state_history",
            count("optimizer_state_history"),
            "event_stream_events",
        ),
        same("usage_ledger_from_external_calls", "events", charged, "usage_ledger"),
        same("sensor_frames_from_rollouts", "rollouts", rollout("finished") + failed, "sensor_frames"),
        same("rollout_jobs_from_rollouts", "rollouts", count("rollouts"), "rollout_jobs"),
        least("rollout_events_from_rollouts", "rollouts", count("rollouts"), "rollout_events"),
        least("scores_from_sensor_frames", "rollouts", rollout("finished"), "scores"),
        same(
            "subagent_invocations_from_proposer_calls",
            "proposer_calls",
            count("proposer_calls"),
            "subagent_invocations",
        ),
    ];
    if table_counts.totals.state == RunState::Completed {
        rows.extend([
            least("contract_snapshot_from_terminal_run", "run", 1, "container_contract_snapshots"),
            least("prompt_program_snapshot_from_terminal_run", "run", 1, "prompt_program_snapshots"),
            least("dataset_snapshots_from_terminal_run", "run", 2, "dataset_snapshots"),
            least("objective_set_from_terminal_run", "run", 1, "objective_sets"),
        ]);
    }
    if should_be_closed(table_counts, now) {
        rows.push(least("checkpoint_from_terminal_run", "run", 1, "checkpoints"));
        rows.push(least("manifest_from_terminal_run", "run", 1, "manifests"));
    }
    Ok(rows)
}

#[derive(Clone, Copy)]
enum Rule {
    Equal,
    AtLeast,
}

fn row(name: &'static str, source: (&'static str, u64), projected: (&'static str, u64), rule: Rule) -> Freshness {
    let (lag_count, word) = match rule {
        Rule::Equal => (source.1.abs_diff(projected.1), "equal"),
        Rule::AtLeast => (source.1.saturating_sub(projected.1), "at_least"),
    };
    Freshness {
        projection_name: name,
        status: if lag_count == 0 { "fresh" } else { "stale" },
        source_table: source.0,
        source_count: source.1,
        projected_table: projected.0,
        projected_count: projected.1,
        lag_count,
        rule: word,
    }
}

/// Returns whether the run has ended and has had time to write its results.
fn should_be_closed(table_counts: &WorkspaceCounts, now: u64) -> bool {
    table_counts.totals.finished_at.is_some_and(|ended| ended + RESULTS_TIMEOUT_MILLIS < now)
}

/// Invariants as queries that count their violations. Each entry has an id, a message, the query and a hint.
const RULES: &[(&str, &str, &str, &str)] = &[
    (
        "events_without_gaps",
        "events are missing from the log",
        "SELECT coalesce(max(sequence) - min(sequence) + 1 - count(*), 0) FROM events",
        REPORT_HINT,
    ),
    (
        "run_state_matches_last_transition",
        "run_state has another state than the last transition of the log",
        "SELECT count(*) FROM run_state WHERE state IS NOT coalesce(
           (SELECT to_state FROM optimizer_state_history ORDER BY sequence_number DESC LIMIT 1), 'created')",
        REBUILD_HINT,
    ),
    (
        "run_state_matches_rollouts",
        "run_state counts another number of rollouts or candidates than the tables have",
        "SELECT count(*) FROM run_state WHERE rollouts_requested <> (SELECT count(*) FROM rollouts)
           OR rollouts_finished <> (SELECT count(*) FROM rollouts WHERE status = 'finished')
           OR candidates <> (SELECT count(*) FROM candidates)
           OR proposer_turns <> (SELECT count(*) FROM proposer_calls)",
        REBUILD_HINT,
    ),
    (
        "run_state_matches_usage_ledger",
        "run_state has another cost than the sum of the calls",
        "SELECT count(*) FROM run_state
         WHERE (totals ->> '$.rollouts.known_cost_nano_usd') + (totals ->> '$.proposer.known_cost_nano_usd') <> (
           SELECT coalesce(sum(cost_nano_usd), 0) FROM (
             SELECT cost_nano_usd, billing FROM rollouts UNION ALL SELECT cost_nano_usd, billing FROM proposer_calls)
           WHERE billing = 'sent')",
        REBUILD_HINT,
    ),
    (
        "candidate_statuses_match_events",
        "candidates have decisions that are not in the log",
        "SELECT count(*) FROM (SELECT substr(type, 11, 8) AS decision, count(*) AS n FROM milestones
             WHERE type IN ('candidate.accepted', 'candidate.rejected', 'candidate.deferred') GROUP BY 1) AS said
           FULL JOIN (SELECT substr(status, 1, 8) AS decision, count(*) AS n FROM candidates
             WHERE status = 'accepted' OR status LIKE 'rejected%' OR status LIKE 'deferred%' GROUP BY 1) AS held
           ON said.decision = held.decision WHERE said.n IS NOT held.n",
        REBUILD_HINT,
    ),
    (
        "rollouts_have_candidates",
        "rollouts belong to candidates that do not exist",
        "SELECT count(*) FROM (SELECT DISTINCT candidate_id FROM rollouts EXCEPT SELECT candidate_id FROM candidates)",
        REBUILD_HINT,
    ),
    (
        "inbox_answers_are_outstanding",
        "answers to settled calls are in the inbox",
        "SELECT count(*) FROM inbox
         WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE rollouts.call_id = inbox.call_id AND status = 'requested')
           AND NOT EXISTS (SELECT 1 FROM proposer_calls WHERE proposer_calls.call_id = inbox.call_id AND status = 'started')",
        RESUME_HINT,
    ),
    (
        "completed_run_has_best_candidate",
        "the run is completed without a best candidate",
        "SELECT count(*) FROM run_state WHERE state = 'completed' AND (best_candidate_id IS NULL
           OR best_candidate_id NOT IN (SELECT candidate_id FROM candidates))",
        REBUILD_HINT,
    ),
    (
        "completed_run_has_no_outstanding_request",
        "the run is completed, and some rollouts have no outcome",
        "SELECT count(*) FROM rollouts, run_state WHERE state = 'completed' AND status = 'requested'",
        REBUILD_HINT,
    ),
];

fn broken_rules(db: &Connection, table_counts: &WorkspaceCounts, now: u64) -> Result<Vec<Value>, OptimizerError> {
    let mut found = Vec::new();
    let mut check = |id: &str, message: &str, sql: &str, hint: &str| -> Result<(), OptimizerError> {
        let broken = number(db, sql)?;
        if broken > 0 {
            found.push(violation(table_counts, id, &format!("{message} ({broken})"), hint));
        }
        Ok(())
    };
    for (id, message, sql, hint) in RULES {
        check(id, message, sql, hint)?;
    }
    let rewards = format!(
        "SELECT count(*) FROM events LEFT JOIN rollouts ON rollouts.call_id = events.fields ->> 'call_id'
         WHERE events.sequence > (SELECT max(sequence) FROM events) - {MAX_COMPARED_EVENTS} AND type = 'rollout.finished'
           AND (reward IS NULL OR abs(reward - (fields ->> 'reward')) > 1e-9 OR settled_sequence IS NOT sequence
             OR rollouts.candidate_id IS NOT fields ->> 'candidate_id')"
    );
    check("rollouts_match_events", "rollouts have another reward or candidate than the log", &rewards, REBUILD_HINT)?;
    if should_be_closed(table_counts, now) {
        let sql = "SELECT count(*) FROM resource_leases WHERE status = 'active'";
        check("terminal_run_releases_resource_leases", "the run ended and still has leases", sql, RESUME_HINT)?;
    }
    Ok(found)
}

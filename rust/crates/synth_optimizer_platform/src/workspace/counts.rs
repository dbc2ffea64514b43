//! Counts the rows of every table and view of a workspace, in one snapshot.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::projector::totals;
use super::query::{first, list};
use super::reader::run_row;
use super::records::RunRow;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::run_totals::RunTotals;

pub(super) type CountMap = BTreeMap<String, u64>;

/// Tables and views that are small or have an index to count by. The others are derived from the grouped counts.
const COUNTED_TABLES: &[&str] = &[
    "acceptance_decisions",
    "artifact_refs",
    "candidate_deltas",
    "candidate_payloads",
    "candidates",
    "checkpoints",
    "container_contract_snapshots",
    "dataset_snapshots",
    "frontier_cells",
    "inbox",
    "manifests",
    "objective_sets",
    "objectives",
    "operations",
    "optimization_runs",
    "optimizer_state_history",
    "prompt_program_snapshots",
    "proposer_calls",
    "replies",
    "resolved_run_configs",
    "resource_leases",
    "run_limits",
    "setup_calls",
    "stopper_states",
    "subagent_invocations",
];

/// Status keys of small tables, with the queries that count their rows by group.
const GROUPED_COUNTS: &[(&str, &str)] = &[
    ("candidate_status_counts", "SELECT status, count(*) FROM candidates GROUP BY 1"),
    ("candidate_delta_operation_counts", "SELECT operation_kind, count(*) FROM candidate_deltas GROUP BY 1"),
    ("acceptance_decision_counts", "SELECT decision, count(*) FROM acceptance_decisions GROUP BY 1"),
    ("frontier_cell_status_counts", "SELECT 'held', count(*) FROM frontier_cells"),
    ("stopper_state_status_counts", "SELECT status, count(*) FROM stopper_states GROUP BY 1"),
    ("checkpoint_status_counts", "SELECT status, count(*) FROM checkpoints GROUP BY 1"),
    ("checkpoint_kind_counts", "SELECT checkpoint_kind, count(*) FROM checkpoints GROUP BY 1"),
    ("operation_status_counts", "SELECT status, count(*) FROM operations GROUP BY 1"),
    ("resource_lease_status_counts", "SELECT status, count(*) FROM resource_leases GROUP BY 1"),
    ("resource_lease_kind_counts", "SELECT resource_kind, count(*) FROM resource_leases GROUP BY 1"),
    ("subagent_status_counts", "SELECT status, count(*) FROM proposer_calls GROUP BY 1"),
];

/// The row counts of a workspace in one snapshot. Each table with a row per rollout is read once.
#[derive(Debug)]
pub(super) struct WorkspaceCounts {
    pub(super) run: RunRow,
    pub(super) totals: RunTotals,
    pub(super) counts: CountMap,
    pub(super) maps: BTreeMap<String, CountMap>,
    /// Number of rollouts that the log requests.
    pub(super) rows_requested: u64,
}

impl WorkspaceCounts {
    /// Counts inside the caller's transaction, so that all counts are of the same moment.
    pub(super) fn read(db: &Connection) -> Result<Self, OptimizerError> {
        let mut table_counts = Self {
            run: run_row(db)?,
            totals: totals(db)?,
            counts: CountMap::new(),
            maps: BTreeMap::new(),
            rows_requested: 0,
        };
        for name in COUNTED_TABLES {
            table_counts.counts.insert((*name).to_owned(), number(db, &format!("SELECT count(*) FROM {name}"))?);
        }
        for (key, sql) in GROUPED_COUNTS {
            table_counts.tally(db, key, sql)?;
        }
        table_counts.events(db)?;
        table_counts.rollouts(db)?;
        table_counts.scores(db)?;
        table_counts.calls(db)?;
        table_counts.links(db)?;
        Ok(table_counts)
    }

    pub(super) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    pub(super) fn of(&self, map: &str, key: &str) -> u64 {
        self.maps.get(map).and_then(|counts| counts.get(key)).copied().unwrap_or(0)
    }

    fn add(&mut self, map: &str, key: &str, count: u64) {
        // A count of zero has no key, but its map exists even if it is empty.
        let counts = self.maps.entry(map.to_owned()).or_default();
        if count > 0 {
            *counts.entry(key.to_owned()).or_default() += count;
        }
    }

    fn tally(&mut self, db: &Connection, map: &str, sql: &str) -> Result<(), OptimizerError> {
        let found: Vec<(String, u64)> = list(db, COUNTING, sql, [], |row| row.try_into())?;
        found.iter().for_each(|(key, count)| self.add(map, key, *count));
        Ok(())
    }

    fn sum(&self, map: &str) -> u64 {
        self.maps.get(map).map_or(0, |counts| counts.values().sum())
    }

    fn set(&mut self, names: &[&str], count: u64) {
        self.counts.extend(names.iter().map(|name| ((*name).to_owned(), count)));
    }

    fn events(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        let sql = "SELECT type, count(*),
                     coalesce(sum(CASE type WHEN 'rollout.requested' THEN json_array_length(fields, '$.row_ids') END), 0)
                   FROM events GROUP BY type";
        let found: Vec<(String, u64, u64)> = list(db, COUNTING, sql, [], |row| row.try_into())?;
        for (wire, count, asked) in found {
            self.add("event_stream_event_type_counts", &wire, count);
            self.rows_requested += asked;
        }
        self.set(&["events", "event_stream_events"], self.sum("event_stream_event_type_counts"));
        let sql = "SELECT fields ->> 'kind', count(*) FROM events WHERE type = 'call.outcome_unknown' GROUP BY 1";
        let lost: Vec<(String, u64)> = list(db, COUNTING, sql, [], |row| row.try_into())?;
        for (kind, count) in lost {
            self.add("usage_ledger_boundary_counts", &kind, count);
        }
        Ok(())
    }

    fn rollouts(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        let sql = "SELECT evaluation_stage, status, count(*), count(trace_digest) FROM rollouts GROUP BY evaluation_stage, status";
        let found: Vec<(String, String, u64, u64)> = list(db, COUNTING, sql, [], |row| row.try_into())?;
        for (stage, status, count, traces) in found {
            self.add("rollout_status_counts", &status, count);
            self.add("rollout_stage_counts", &stage, count);
            self.add("rollout_event_type_counts", "rollout.requested", count);
            self.add("evidence_frame_kind_counts", "trace_summary", traces);
            if status == "requested" {
                continue;
            }
            self.add("rollout_job_status_counts", &status, count);
            self.add("rollout_record_stage_counts", &stage, count);
            self.add("rollout_event_type_counts", &format!("rollout.{status}"), count);
            self.add("evidence_frame_kind_counts", "rollout_outcome", count);
            self.add("trace_annotation_status_counts", "completed", count);
            self.add("usage_ledger_boundary_counts", "rollout", count);
            self.add("plan_link_relation_counts", "rollout_observation", count);
            let verdict = if status == "finished" { "completed" } else { "failed" };
            self.add("verifier_job_status_counts", verdict, count);
            if status == "finished" {
                self.add("score_objective_counts", "outcome_reward", count);
                self.add("score_stage_counts", &stage, count);
            }
        }
        let sql = "SELECT CASE WHEN answered_at IS NOT NULL THEN 'answered' WHEN sent_at IS NOT NULL THEN 'running'
                     ELSE 'requested' END, count(*)
                   FROM rollouts r LEFT JOIN calls c ON c.call_id = r.call_id WHERE r.status = 'requested' GROUP BY 1";
        self.tally(db, "rollout_job_status_counts", sql)?;
        self.set(&["rollouts", "rollout_jobs"], self.sum("rollout_status_counts"));
        let settled = self.sum("rollout_record_stage_counts");
        self.set(&["sensor_frames", "trace_annotations", "verifier_jobs"], settled);
        Ok(())
    }

    fn scores(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        let sql = "SELECT key, evaluation_stage, count(*) FROM rollouts, json_each(objectives_json)
                   WHERE status = 'finished' AND objectives_json IS NOT NULL AND key <> 'outcome_reward' GROUP BY 1, 2";
        let found: Vec<(String, String, u64)> = list(db, COUNTING, sql, [], |row| row.try_into())?;
        for (objective, stage, count) in found {
            self.add("score_objective_counts", &objective, count);
            self.add("score_stage_counts", &stage, count);
        }
        self.set(&["scores"], self.sum("score_objective_counts"));
        let sql = "SELECT count(*) FROM (SELECT DISTINCT candidate_id, evaluation_stage FROM rollouts WHERE status = 'finished')";
        self.set(&["score_vectors"], number(db, sql)?);
        Ok(())
    }

    fn calls(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        const ACTIONS: &str = "count(*) FILTER (WHERE cache_action = 'hit'),
            count(*) FILTER (WHERE cache_action = 'miss'), count(*) FILTER (WHERE cache_action = 'write')";
        let of = |kind: &str| {
            format!(
                "SELECT '{kind}', {ACTIONS}, count(sent_at), count(answered_at), count(*) FROM calls WHERE kind = '{kind}'"
            )
        };
        let sql = format!(
            "{} UNION ALL {} UNION ALL SELECT boundary, {ACTIONS}, 0, 0, 0 FROM setup_calls
             WHERE cache_action IS NOT NULL GROUP BY boundary",
            of("rollout"),
            of("proposer")
        );
        type CountRow = (String, u64, u64, u64, u64, u64, u64);
        let found: Vec<CountRow> = list(db, COUNTING, &sql, [], |row| row.try_into())?;
        self.set(&["calls"], found.iter().map(|row| row.6).sum());
        for (boundary, hits, misses, writes, sent, answered, _) in found {
            for (action, count) in [("hit", hits), ("miss", misses), ("write", writes)] {
                self.add("cache_access_action_counts", action, count);
                self.add("cache_access_boundary_counts", &boundary, count);
            }
            if boundary == "rollout" {
                self.add("rollout_event_type_counts", "rollout.sent", sent);
                self.add("rollout_event_type_counts", "rollout.answered", answered);
            }
        }
        self.set(&["cache_accesses"], self.sum("cache_access_action_counts"));
        self.set(&["cache_profiles"], 1);
        self.set(&["rollout_events"], self.sum("rollout_event_type_counts"));
        Ok(())
    }

    /// Derives the counts of views from those of their tables.
    fn links(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        let holders = u64::from(self.totals.frontier_size);
        let parents = number(db, "SELECT coalesce(sum(json_array_length(parent_ids_json)), 0) FROM candidates")?;
        let map = "plan_link_relation_counts";
        self.add(map, "candidate_payload", self.count("candidates"));
        self.add(map, "candidate_lineage", parents);
        self.add(map, "acceptance_decision", self.count("acceptance_decisions"));
        self.add(map, "frontier_membership", holders);
        let turns = self.sum("subagent_status_counts") - self.of("subagent_status_counts", "started");
        self.add("usage_ledger_boundary_counts", "proposer", turns);
        let completed = self.of("subagent_status_counts", "completed");
        self.add("evidence_frame_kind_counts", "gepa_proposer_output", completed);
        self.set(&["plan_links"], self.sum(map));
        self.set(&["usage_ledger"], self.sum("usage_ledger_boundary_counts"));
        self.set(&["evidence_frames"], self.sum("evidence_frame_kind_counts"));
        Ok(())
    }
}

const COUNTING: &str = "count the workspace";

/// Returns the single number that a query selects.
pub(super) fn number(db: &Connection, sql: &str) -> Result<u64, OptimizerError> {
    first(db, COUNTING, sql, [], |row| row.get(0)).map(Option::unwrap_or_default)
}

//! Counts everything in a workspace, at one moment.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::error::sqlite;
use super::reader::run_row;
use super::records::RunRow;
use super::totals::Totals;
use crate::model::error::OptimizerError;

pub(super) type Counts = BTreeMap<String, u64>;

/// Tables and views that are small or have an index to count by; the others are counted from the tallies below.
const COUNTED: &[&str] = &[
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

/// Status keys and the queries that count them.
const TALLIES: &[(&str, &str)] = &[
    ("candidate_status_counts", "SELECT status, count(*) FROM candidates GROUP BY 1"),
    ("candidate_delta_operation_counts", "SELECT operation_kind, count(*) FROM candidate_deltas GROUP BY 1"),
    ("acceptance_decision_counts", "SELECT decision, count(*) FROM acceptance_decisions GROUP BY 1"),
    ("frontier_cell_status_counts", "SELECT 'held', count(*) FROM frontier_cells HAVING count(*) > 0"),
    ("cache_access_action_counts", "SELECT action, count(*) FROM cache_accesses GROUP BY 1"),
    ("cache_access_boundary_counts", "SELECT boundary, count(*) FROM cache_accesses GROUP BY 1"),
    ("event_stream_event_type_counts", "SELECT type, count(*) FROM events GROUP BY 1"),
    ("stopper_state_status_counts", "SELECT status, count(*) FROM stopper_states GROUP BY 1"),
    ("checkpoint_status_counts", "SELECT status, count(*) FROM checkpoints GROUP BY 1"),
    ("checkpoint_kind_counts", "SELECT checkpoint_kind, count(*) FROM checkpoints GROUP BY 1"),
    ("rollout_job_status_counts", "SELECT status, count(*) FROM rollout_jobs GROUP BY 1"),
    ("rollout_status_counts", "SELECT status, count(*) FROM rollouts GROUP BY 1"),
    ("rollout_stage_counts", "SELECT evaluation_stage, count(*) FROM rollouts GROUP BY 1"),
    (
        "rollout_record_stage_counts",
        "SELECT evaluation_stage, count(*) FROM rollouts WHERE status <> 'requested' GROUP BY 1",
    ),
    ("operation_status_counts", "SELECT status, count(*) FROM operations GROUP BY 1"),
    ("resource_lease_status_counts", "SELECT status, count(*) FROM resource_leases GROUP BY 1"),
    ("resource_lease_kind_counts", "SELECT resource_kind, count(*) FROM resource_leases GROUP BY 1"),
    ("score_objective_counts", "SELECT objective, count(*) FROM scores GROUP BY 1"),
    ("score_stage_counts", "SELECT evaluation_stage, count(*) FROM scores GROUP BY 1"),
    ("subagent_status_counts", "SELECT status, count(*) FROM proposer_calls GROUP BY 1"),
];

#[derive(Debug)]
pub(super) struct Census {
    pub(super) run: RunRow,
    pub(super) totals: Totals,
    pub(super) counts: Counts,
    pub(super) maps: BTreeMap<String, Counts>,
}

impl Census {
    /// Counts inside the caller's transaction, so that a writer cannot come between two counts.
    pub(super) fn take(db: &Connection) -> Result<Self, OptimizerError> {
        let mut counts = Counts::new();
        for name in COUNTED {
            counts.insert((*name).to_owned(), number(db, &format!("SELECT count(*) FROM {name}"))?);
        }
        let mut maps = BTreeMap::new();
        for (key, sql) in TALLIES {
            maps.insert((*key).to_owned(), tally(db, sql)?);
        }
        let mut census = Self { run: run_row(db)?, totals: Totals::read(db)?, counts, maps };
        census.derive(db)?;
        Ok(census)
    }

    pub(super) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    pub(super) fn of(&self, map: &str, key: &str) -> u64 {
        self.maps.get(map).and_then(|counts| counts.get(key)).copied().unwrap_or(0)
    }

    fn sum(&self, map: &str) -> u64 {
        self.maps.get(map).map_or(0, |counts| counts.values().sum())
    }

    /// Views with one row or a few rows per rollout: their counts follow from what has been counted.
    fn derive(&mut self, db: &Connection) -> Result<(), OptimizerError> {
        let (finished, settled) =
            (self.of("rollout_status_counts", "finished"), self.sum("rollout_record_stage_counts"));
        let (rollouts, turns) = (self.sum("rollout_status_counts"), self.sum("subagent_status_counts"));
        let traces = number(db, "SELECT count(*) FROM rollouts WHERE trace IS NOT NULL")?;
        let sent = number(db, "SELECT count(*) FROM calls WHERE kind = 'rollout' AND sent_at IS NOT NULL")?;
        let answered = number(db, "SELECT count(*) FROM calls WHERE kind = 'rollout' AND answered_at IS NOT NULL")?;
        let holders = number(db, "SELECT count(DISTINCT candidate_id) FROM frontier_cells")?;
        let parents = number(db, "SELECT coalesce(sum(json_array_length(parent_ids_json)), 0) FROM candidates")?;
        let vectors = "SELECT count(*) FROM (SELECT DISTINCT candidate_id, evaluation_stage FROM rollouts WHERE status = 'finished')";
        let completed = self.of("subagent_status_counts", "completed");
        let candidates = self.count("candidates");
        let decisions = self.count("acceptance_decisions");
        let links = [
            ("candidate_payload", candidates),
            ("candidate_lineage", parents),
            ("acceptance_decision", decisions),
            ("frontier_membership", holders),
            ("rollout_observation", settled),
        ];
        let evidence = [("rollout_outcome", settled), ("trace_summary", traces), ("gepa_proposer_output", completed)];
        let mut steps: Counts = self.maps.get("rollout_status_counts").cloned().unwrap_or_default();
        steps.remove("requested");
        let mut steps: Counts = steps.into_iter().map(|(status, count)| (format!("rollout.{status}"), count)).collect();
        steps.extend([("rollout.requested".to_owned(), rollouts), ("rollout.sent".to_owned(), sent)]);
        steps.insert("rollout.answered".to_owned(), answered);
        let verified = [("completed", finished), ("failed", settled - finished)];
        let ledger = [("rollout", settled), ("proposer", turns - self.of("subagent_status_counts", "started"))];
        for (key, counts) in [
            ("plan_link_relation_counts", named(&links)),
            ("evidence_frame_kind_counts", named(&evidence)),
            ("rollout_event_type_counts", steps),
            ("trace_annotation_status_counts", named(&[("completed", settled)])),
            ("verifier_job_status_counts", named(&verified)),
            ("usage_ledger_boundary_counts", named(&ledger)),
        ] {
            self.maps.insert(key.to_owned(), counts.into_iter().filter(|(_, count)| *count > 0).collect());
        }
        for (name, count) in [
            ("event_stream_events", self.sum("event_stream_event_type_counts")),
            ("events", self.sum("event_stream_event_type_counts")),
            ("calls", number(db, "SELECT count(*) FROM calls")?),
            ("rollouts", rollouts),
            ("rollout_jobs", rollouts),
            ("sensor_frames", settled),
            ("trace_annotations", settled),
            ("verifier_jobs", settled),
            ("rollout_events", self.sum("rollout_event_type_counts")),
            ("evidence_frames", self.sum("evidence_frame_kind_counts")),
            ("plan_links", self.sum("plan_link_relation_counts")),
            ("usage_ledger", self.sum("usage_ledger_boundary_counts")),
            ("scores", self.sum("score_objective_counts")),
            ("score_vectors", number(db, vectors)?),
            ("cache_accesses", self.sum("cache_access_action_counts")),
            ("cache_profiles", 1),
        ] {
            self.counts.insert(name.to_owned(), count);
        }
        Ok(())
    }
}

pub(super) fn number(db: &Connection, sql: &str) -> Result<u64, OptimizerError> {
    db.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs).map_err(sqlite("count the workspace"))
}

pub(super) fn tally(db: &Connection, sql: &str) -> Result<Counts, OptimizerError> {
    db.prepare(sql)
        .and_then(|mut statement| {
            statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())))?.collect()
        })
        .map_err(sqlite("count the workspace"))
}

fn named(pairs: &[(&str, u64)]) -> Counts {
    pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

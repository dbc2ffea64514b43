//! Every document that shows the totals, candidates or result of a run shows the same numbers, for any simulated run.

use camino::Utf8PathBuf;
use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::{Value, json};
use synth_e2e::simulated_run::{ExpectedTotals, Simulation, write_run};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::run_view::RunView;
use synth_optimizer_platform::artifacts::{RunDir, run_status, run_summary};
use synth_optimizer_platform::workspace::{StoredEvent, Workspace, workspace_status};

const USAGE_FIELDS: [&str; 9] = [
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "sent_calls",
    "cached_calls",
    "unpriced_calls",
    "unknown_outcomes",
    "rollout_calls",
    "proposer_calls",
];

/// The run directory of a simulated run.
struct TotalsFixture {
    _temporary: tempfile::TempDir,
    dir: RunDir,
    workspace: Workspace,
}

impl TotalsFixture {
    fn new(log: &[StoredEvent], config: &Value) -> (Self, Value) {
        let temporary = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
        let (dir, workspace, manifest) = write_run(&root, "run-1", log, config).unwrap();
        (Self { _temporary: temporary, dir, workspace }, manifest)
    }

    /// Returns the single value that a query selects.
    fn sql(&self, query: &str) -> Value {
        let db = Connection::open(self.dir.workspace_db()).unwrap();
        db.query_row(query, [], |row| {
            Ok(match row.get_ref(0)? {
                rusqlite::types::ValueRef::Integer(number) => json!(number),
                rusqlite::types::ValueRef::Real(number) => json!(number),
                rusqlite::types::ValueRef::Text(text) => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    serde_json::from_str(&text).unwrap_or(json!(text))
                }
                _ => Value::Null,
            })
        })
        .unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_document_shows_the_same_totals(
        seed in 0u64..1000,
        arrival_seed in 0u64..1000,
        failure in prop_oneof![Just(0.0), Just(0.1), Just(0.5)],
        proposer_failure in prop_oneof![Just(0.0), Just(0.4)],
        price in prop_oneof![Just(None), Just(Some(2_000_000u64))],
        stop_after in prop_oneof![3 => Just(None), 1 => (1usize..120).prop_map(Some)],
        cancel_after in prop_oneof![3 => Just(None), 1 => (1usize..120).prop_map(Some)],
        kill_after in prop_oneof![Just(None), (0usize..400).prop_map(Some)],
        forgotten in prop_oneof![Just(0.0), Just(0.5)],
        cached in any::<bool>(),
    ) {
        let simulation = Simulation {
            seed, arrival_seed, failure, proposer_failure, price, stop_after, cancel_after, kill_after, forgotten, cached,
            ..Simulation::default()
        };
        let log = simulation.log();
        let expected = ExpectedTotals::of(&log);
        let config = json!({"gepa": {"max_total_rollouts": 160}});
        let (fixture, manifest) = TotalsFixture::new(&log, &config);

        let status = workspace_status(fixture.dir.workspace_db().as_std_path()).unwrap();
        let status = &status["runs"][0];
        let overview = json!(run_status(&fixture.dir).unwrap());
        let shown = run_summary(&fixture.dir).unwrap();
        let usage = json!(fixture.workspace.run_usage().unwrap());
        let registry = std::fs::read_to_string(fixture.dir.run_registry()).unwrap();
        let registry: Value = serde_json::from_str(registry.lines().last().unwrap()).unwrap();
        let mut view = RunView::default();
        for entry in &log {
            view.apply(entry.sequence, entry.unix_millis, &entry.event);
        }

        // Calls, tokens and cost, in every document that shows usage.
        let sql = fixture.sql("SELECT usage_json FROM optimization_runs");
        let folded = json!(view.totals.counts.usage());
        let books =
            [&manifest["usage"], &status["usage"], &shown["usage"], &usage, &registry["usage"], &sql, &folded];
        for (number, book) in books.into_iter().enumerate() {
            for name in USAGE_FIELDS {
                prop_assert_eq!(&book[name], &json!(expected.get(name)), "{} in book {}", name, number);
            }
            prop_assert_eq!(&book["cost_usd"], &expected.cost_usd(), "cost in book {}", number);
            prop_assert_eq!(book, &usage, "book {}", number);
        }
        for cost in [&manifest["cost_usd"], &status["cost_usd"], &overview["cost_usd"], &registry["cost_usd"]] {
            prop_assert_eq!(cost, &expected.cost_usd());
        }
        for name in ["sent_calls", "cached_calls", "unknown_outcomes", "total_tokens"] {
            prop_assert_eq!(&overview[name], &json!(expected.get(name)), "{}", name);
            prop_assert_eq!(fixture.sql(&format!("SELECT {name} FROM run_state")), json!(expected.get(name)));
        }
        let ledger = "FROM usage_ledger WHERE boundary = 'rollout'";
        prop_assert_eq!(
            fixture.sql(&format!("SELECT coalesce(sum(call_count), 0) {ledger}")),
            json!(expected.get("rollout_calls"))
        );

        // Rollouts.
        prop_assert_eq!(&manifest["rollouts"]["train"], &json!(expected.get("train")));
        prop_assert_eq!(&manifest["rollouts"]["heldout"], &json!(expected.get("heldout")));
        for failed in [&manifest["rollouts"]["failed"], &overview["rollouts_failed"],
            &status["budget_status"]["rollouts_failed"]] {
            prop_assert_eq!(failed, &json!(expected.get("rollouts_failed")));
        }
        prop_assert_eq!(&status["budget_status"]["limits"], &json!({"max_total_rollouts": 160}));

        // The engine's own counts.
        let (rollouts, bill, best) = match &log.last().unwrap().event {
            Event::RunFinished(run) => (&run.rollouts, &run.bill, Some(&run.best_candidate_id)),
            Event::RunFailed(run) => (&run.rollouts, &run.bill, run.best_candidate_id.as_ref()),
            Event::RunCancelled(run) => (&run.rollouts, &run.bill, run.best_candidate_id.as_ref()),
            other => panic!("{other:?} is no end"),
        };
        prop_assert_eq!((rollouts.train, rollouts.heldout), (expected.get("train"), expected.get("heldout")));
        if !cached {
            prop_assert_eq!(bill.sent_calls, expected.get("sent_calls"));
            prop_assert_eq!(bill.total_tokens, expected.get("total_tokens"));
            prop_assert_eq!(json!(bill.cost_usd), expected.cost_usd());
        }

        // The best candidate, and all candidates.
        let named = best.map(|best| json!(best)).unwrap_or(Value::Null);
        let mut bests = vec![&status["best_candidate_id"], &overview["best_candidate_id"],
            &registry["best_candidate_id"]];
        let file = best.map(|_| serde_json::from_slice::<Value>(&std::fs::read(fixture.dir.best_candidate()).unwrap()));
        let file = file.transpose().unwrap();
        if let Some(file) = &file {
            bests.push(&file["candidate_id"]);
        }
        for best in bests {
            prop_assert_eq!(best, &named);
        }
        let stored_best = fixture.workspace.best().unwrap();
        prop_assert_eq!(stored_best.as_ref(), view.best().map(|best| &best.candidate));
        for known in &view.candidates {
            let id = known.candidate.candidate_id.as_str();
            prop_assert_eq!(fixture.workspace.candidate_record(id).unwrap(), Some(known.candidate.clone()));
        }
        let frontier: Value = serde_json::from_slice(&std::fs::read(fixture.dir.frontier()).unwrap()).unwrap();
        let members = |list: &Value| -> Vec<String> {
            list.as_array().unwrap().iter().map(|member| member["candidate_id"].as_str().unwrap().to_owned()).collect()
        };
        let served = json!(fixture.workspace.frontier().unwrap().items);
        prop_assert_eq!(members(&frontier), members(&served));
        prop_assert_eq!(members(&frontier).len() as u64, overview["frontier_size"].as_u64().unwrap());
        let in_cells = fixture.sql("SELECT count(DISTINCT candidate_id) FROM frontier_cells");
        prop_assert_eq!(json!(members(&frontier).len()), in_cells);
    }
}

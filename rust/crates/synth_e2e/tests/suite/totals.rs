//! Every document that shows the totals, candidates or result of a run shows the same numbers, for any simulated run.

#[path = "../../../synth_gepa/tests/suite/sim/mod.rs"]
mod sim;

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::{Value, json};
use sim::{Pace, World};
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{RunResumed, Stage};
use synth_optimizer_core::model::run_view::RunView;
use synth_optimizer_core::model::usage::{Cost, Usage};
use synth_optimizer_platform::artifacts::{FeedWriter, RunDir, run_status, run_summary, write_results};
use synth_optimizer_platform::workspace::{Batch, RunRow, StoredEvent, Workspace, workspace_status};

/// The totals of a run, computed independently from its log.
#[derive(Debug, Default, Clone, PartialEq)]
struct ExpectedTotals {
    calls: BTreeMap<&'static str, u64>,
    cost_nano: u64,
}

impl ExpectedTotals {
    fn add(&mut self, name: &'static str, count: u64) {
        *self.calls.entry(name).or_default() += count;
    }

    fn of(events: &[Event]) -> Self {
        let mut expected = Self::default();
        for event in events {
            match event {
                Event::RolloutFinished(done) => {
                    expected.add(if done.stage == Stage::Heldout { "heldout" } else { "train" }, 1);
                    expected.add("rollout_calls", 1);
                    expected.answered(done.cached, &done.usage, false);
                }
                Event::RolloutFailed(failed) => {
                    if matches!(failed.class, FailureClass::NotSent | FailureClass::Withdrawn) {
                        continue;
                    }
                    expected.add(if failed.stage == Stage::Heldout { "heldout" } else { "train" }, 1);
                    expected.add("rollout_calls", 1);
                    expected.add("rollouts_failed", 1);
                    expected.failed(failed.class, failed.cached, &failed.usage);
                }
                Event::ProposerCompleted(done) => {
                    expected.add("proposer_calls", 1);
                    expected.answered(done.cached, &done.usage, false);
                }
                Event::ProposerFailed(failed) => {
                    if matches!(failed.class, FailureClass::NotSent | FailureClass::Withdrawn) {
                        continue;
                    }
                    expected.add("proposer_calls", 1);
                    expected.failed(failed.class, failed.cached, &failed.usage);
                }
                _ => {}
            }
        }
        expected
    }

    fn failed(&mut self, class: FailureClass, cached: bool, usage: &Usage) {
        let told = usage.total_tokens.is_some() || (usage.prompt_tokens.is_some() && usage.completion_tokens.is_some());
        let unknown = class == FailureClass::UnknownOutcome || (class == FailureClass::Abandoned && !told);
        self.answered(cached && !unknown, usage, unknown);
    }

    fn answered(&mut self, cached: bool, usage: &Usage, unknown: bool) {
        if cached {
            self.add("cached_calls", 1);
            return;
        }
        self.add("sent_calls", 1);
        self.add("unknown_outcomes", u64::from(unknown));
        self.add("prompt_tokens", usage.prompt_tokens.unwrap_or(0));
        self.add("completion_tokens", usage.completion_tokens.unwrap_or(0));
        let sum = usage.prompt_tokens.zip(usage.completion_tokens).map(|(prompt, completion)| prompt + completion);
        self.add("total_tokens", usage.total_tokens.or(sum).unwrap_or(0));
        match usage.cost {
            Cost::Known(amount) if !unknown => self.cost_nano += amount.0,
            Cost::Known(_) | Cost::Unknown => self.add("unpriced_calls", 1),
        }
    }

    fn get(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }

    fn cost_usd(&self) -> Value {
        if self.get("unpriced_calls") > 0 { Value::Null } else { json!(self.cost_nano as f64 / 1e9) }
    }
}

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

/// A run directory with a given log.
struct TotalsFixture {
    _temporary: tempfile::TempDir,
    dir: RunDir,
    workspace: Workspace,
}

impl TotalsFixture {
    fn new(log: &[StoredEvent], config: &Value) -> (Self, Value) {
        let temporary = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
        let dir = RunDir::open(&root, "run-1").unwrap();
        let run = RunRow {
            run_id: "run-1".into(),
            algorithm: "gepa".into(),
            config: config.clone(),
            config_digest: "0123456789abcdef".repeat(4),
            container_url: "http://127.0.0.1:1".into(),
            cache_mode: "off".into(),
            cache_namespace: "gepa:run-1".into(),
            cache_path: None,
            output_dir: root.to_string(),
            run_dir: dir.dir().to_string(),
            created_at: START,
        };
        let workspace = Workspace::create(dir.workspace_db().as_std_path(), &run, Durability::Process).unwrap();
        let mut feed_writer = FeedWriter::open(&dir, |each| workspace.log(0, each)).unwrap();
        // Stored in several batches, as a run does.
        for part in log.chunks(97) {
            workspace.commit_blocking(Batch { events: part.to_vec(), ..Batch::default() }).unwrap();
            feed_writer.append(part).unwrap();
        }
        let result = write_results(&dir, &workspace, feed_writer, None).unwrap();
        (Self { _temporary: temporary, dir, workspace }, result)
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

const START: u64 = 1_811_980_800_000;

/// Adds times to the events, and a `run.resumed` event at each of the given positions.
fn stored(events: &[Event], resumes: &[usize]) -> Vec<StoredEvent> {
    let mut log: Vec<Event> = events.to_vec();
    for fixture in resumes {
        let fixture = 1 + fixture % (log.len() - 1);
        log.insert(
            fixture,
            Event::RunResumed(RunResumed { stored_events: fixture as u64, waiting_answers: 0, unknown_outcomes: 0 }),
        );
    }
    let at = |index: usize| START + 7 * index as u64;
    log.into_iter().enumerate().map(|(index, event)| StoredEvent::new(index as u64, at(index), event)).collect()
}

fn world(seed: u64, failure: f64, proposer_failure: f64, price: Option<u64>) -> World {
    let mut world = World { failure, proposer_failure, rollout_cost: price, ..World::default() };
    world.config.run.seed = seed;
    world.config.gepa.max_total_rollouts = 160;
    world.config.gepa.max_generations = 4;
    world
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
        resumes in proptest::collection::vec(0usize..5000, 0..3),
        cached in any::<bool>(),
    ) {
        let world = world(seed, failure, proposer_failure, price);
        let run = world.run(Pace { arrival_seed, stop_after, cancel_after, ..Pace::default() });
        let mut events = run.events;
        if cached {
            // Every other answer is marked as cached. The totals in the engine's last event then differ from this log.
            for event in events.iter_mut().step_by(2) {
                if let Event::RolloutFinished(done) = event {
                    done.cached = true;
                }
            }
        }
        let expected = ExpectedTotals::of(&events);
        let log = stored(&events, &resumes);
        let config = json!({"gepa": {"max_total_rollouts": 160, "max_perfect_skips": 3}});
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
        let (rollouts, bill, best) = match events.last().unwrap() {
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

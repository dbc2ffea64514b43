//! The read models of a run: expected values, pages that contain every item once, and rejected parameters.

use serde_json::{Value, json};
use synth_optimizer_core::model::event_fields::{SearchMode, Stage};
use synth_optimizer_core::model::run_totals::BestMark;
use synth_optimizer_core::model::usage::{Cost, RunUsage};
use synth_optimizer_platform::artifacts::Artifacts;
use synth_optimizer_platform::rollout_trace::RolloutDetail;
use synth_optimizer_platform::workspace::models::{
    BestCandidate, CandidateDetail, CandidatePage, CandidateQuery, EventPage, ReadError, RolloutPage, RolloutQuery,
    RolloutStatus, RunActivity, RunFrontier, RunModels, ScoreEntry, ScorePage, ScoreSeriesList, SeriesQuery, StopRule,
};
use synth_optimizer_platform::workspace::{Reader, Record, SnapshotKind, Workspace};
use tempfile::TempDir;

use super::agreement::{all_candidates, all_rollouts, all_scores};
use super::models_lineage::stored;
use super::script::{START, Script, create, whole_run};
use super::views::record_surroundings;

pub(super) fn finished_run() -> (TempDir, Reader) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    record_surroundings(&workspace);
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    workspace.close().unwrap();
    let reader = Reader::open(&path).unwrap();
    (directory, reader)
}

fn rollouts(reader: &Reader, query: RolloutQuery) -> Vec<u64> {
    all_rollouts(reader, query).iter().map(|rollout| rollout.call_id).collect()
}

pub(super) fn code<T: std::fmt::Debug>(refused: Result<T, ReadError>) -> &'static str {
    match refused.unwrap_err() {
        ReadError::Invalid(refusal) | ReadError::NotFound(refusal) => {
            assert!(!refusal.hint.is_empty() && refusal.message.len() < 300, "{refusal:?}");
            refusal.code
        }
        ReadError::Failed(error) => panic!("{error}"),
    }
}

#[test]
fn pages_have_every_candidate_once() {
    let (_directory, reader) = finished_run();
    for size in [1, 2, 3, 4, 200] {
        let ids: Vec<String> = all_candidates(&reader, size)
            .into_iter()
            .map(|candidate| candidate.candidate.candidate_id.to_string())
            .collect();
        assert_eq!(ids, ["c1", "c2", "c3", "c4"], "pages of {size}");
    }
    let whole: Vec<_> = all_candidates(&reader, 200).into_iter().map(|entry| entry.candidate).collect();
    assert_eq!(reader.candidate_records().unwrap(), whole);
    let only = |query: CandidateQuery| -> Vec<String> {
        let page = reader.candidate_page(&query).unwrap();
        assert_eq!(page.next_cursor, None);
        page.items.into_iter().map(|candidate| candidate.candidate.candidate_id.to_string()).collect()
    };
    let rejected = Some("rejected_minibatch".to_owned());
    assert_eq!(only(CandidateQuery { status: rejected, ..CandidateQuery::default() }), ["c3"]);
    assert_eq!(only(CandidateQuery { accepted: Some(true), ..CandidateQuery::default() }), ["c1", "c2"]);
    assert_eq!(only(CandidateQuery { accepted: Some(false), ..CandidateQuery::default() }), ["c3", "c4"]);
    assert_eq!(only(CandidateQuery { generation: Some(0), ..CandidateQuery::default() }), ["c2", "c3", "c4"]);
    assert!(only(CandidateQuery { generation: Some(1), ..CandidateQuery::default() }).is_empty());
}

#[test]
fn a_candidate_has_lineage_changes_and_decisions() {
    let (_directory, reader) = finished_run();
    let c2 = json!(reader.candidate("c2").unwrap());
    assert_eq!(c2["lineage"], json!(["c1"]));
    assert_eq!(c2["children"], json!(["c4"]));
    let (before, after) = ("Say \"why\", c1.", "Say \"why\", c2.");
    assert_eq!(c2["delta"], json!([{"field": "instruction", "before": before, "after": after}]));
    assert_eq!((&c2["is_best"], &c2["on_frontier"]), (&json!(true), &json!(true)));
    assert_eq!((&c2["train_reward"], &c2["heldout_reward"]), (&json!(0.625), &json!(0.75)));
    // Rows train:1 (1.0 against 0.5) and train:2 (0.25 against 0.25). On train:3 only the parent has a score.
    assert_eq!(c2["train_gain"]["difference"], 0.25);
    assert_eq!(
        (&c2["train_gain"]["n"], &c2["train_gain"]["wins"], &c2["train_gain"]["ties"]),
        (&json!(2), &json!(1), &json!(1))
    );
    assert!(c2["heldout_gain"].is_null(), "the parent has no held-out rows");
    let steps: Vec<(&str, &str)> = c2["acceptance_metadata"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| (step["decision"].as_str().unwrap(), step["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(steps, [("promoted", "primary_improved"), ("accepted", "primary_improved")]);
    assert_eq!(c2["acceptance_score"]["candidate_score"], 0.75);
    let c4 = reader.candidate("c4").unwrap();
    assert_eq!((c4.candidate.candidate.parent_ids.len(), c4.candidate.lineage), (2, vec!["c1".to_owned()]));
    assert_eq!(c4.candidate.candidate.acceptance_metadata[0].reason, "budget_refused");
    assert!(c4.candidate.candidate.acceptance_score.is_none() && !c4.candidate.candidate.on_frontier);
    let seed = reader.candidate("c1").unwrap();
    assert_eq!(seed.children, ["c2", "c3", "c4"]);
    assert!(seed.train_gain.is_none() && seed.candidate.delta.is_empty() && !seed.candidate.is_best);
}

#[test]
fn pages_have_every_rollout_once() {
    let (_directory, reader) = finished_run();
    let sized = |limit| RolloutQuery { limit: Some(limit), ..RolloutQuery::default() };
    for size in [1, 2, 4, 9, 200] {
        assert_eq!(rollouts(&reader, sized(size)), [0, 1, 2, 5, 6, 7, 8, 9, 10], "pages of {size}");
    }
    let word = |word: &str| Some(word.to_owned());
    assert_eq!(rollouts(&reader, RolloutQuery { candidate_id: word("c2"), ..sized(1) }), [5, 8, 9, 10]);
    assert_eq!(rollouts(&reader, RolloutQuery { split: word("heldout"), ..sized(1) }), [10]);
    assert_eq!(rollouts(&reader, RolloutQuery { status: word("retried"), ..sized(1) }), [6]);
    assert_eq!(rollouts(&reader, RolloutQuery { stage: word("seed_full_train"), ..sized(1) }), [0, 1]);
    let both = RolloutQuery { candidate_id: word("c3"), status: word("finished"), ..sized(5) };
    assert_eq!(rollouts(&reader, both), [7]);
    assert!(rollouts(&reader, RolloutQuery { candidate_id: word("missing"), ..sized(5) }).is_empty());
}

#[test]
fn a_rollout_has_its_reply_and_its_evidence() {
    let (_directory, reader) = finished_run();
    let eight = reader.rollout("8", true).unwrap();
    let rollout = &eight.rollout;
    assert_eq!((rollout.reward, rollout.attempt, rollout.status), (Some(1.0), 1, RolloutStatus::Finished));
    assert_eq!((rollout.cost_usd, rollout.cached), (Some(0.0015), Some(false)));
    assert_eq!(rollout.objectives["brevity"], 0.25);
    assert!(rollout.latency_ms.is_some() && rollout.sent_at.is_some());
    let trace = eight.trace.unwrap();
    assert_eq!(trace.reply.unwrap(), json!({"reward": 1, "row": "train:1", "request": 8}));
    assert!(trace.evidence.unwrap().record.contains("train:1"));
    let by_id = reader.rollout(rollout.rollout_id.as_deref().unwrap(), false).unwrap();
    assert_eq!((&by_id.rollout, by_id.trace), (rollout, None));
    let failed = reader.rollout("6", true).unwrap();
    let failure = failed.rollout.failure.unwrap();
    assert_eq!((failure.class.as_str(), failure.message.as_str()), ("timeout", "no answer in 5 s"));
    assert!(failed.rollout.reward.is_none() && failed.trace.is_none());
    // A proposer turn is not a rollout.
    for name in ["3", "4711", "r-missing", "", "99999999999999999999", "-1"] {
        assert_eq!(code(reader.rollout(name, true)), "rollout_not_found", "{name}");
    }
}

#[test]
fn every_evaluation_has_a_score_for_each_metric() {
    let (_directory, reader) = finished_run();
    let scores = all_scores(&reader, 3);
    let told = |score: &ScoreEntry| {
        (score.candidate_id.clone(), score.stage.as_str(), score.metric.clone(), score.value, score.n)
    };
    let expected = [
        ("c1", "seed_full_train", 0.375, 2),
        ("c2", "candidate_minibatch", 1.0, 1),
        ("c3", "candidate_minibatch", 0.0, 1),
        ("c2", "candidate_full_train", 0.625, 2),
        ("c2", "heldout", 0.75, 1),
    ];
    let expected: Vec<_> = expected
        .iter()
        .flat_map(|(id, stage, value, n)| {
            let entry = move |metric: &str, value| ((*id).to_owned(), *stage, metric.to_owned(), value, *n);
            [entry("outcome_reward", *value), entry("brevity", 0.25)]
        })
        .collect();
    assert_eq!(scores.iter().map(told).collect::<Vec<_>>(), expected);
    for score in &scores {
        let (candidate, stage) = (Some(score.candidate_id.clone()), Some(score.stage.as_str().to_owned()));
        let query =
            RolloutQuery { candidate_id: candidate, stage, status: Some("finished".into()), ..RolloutQuery::default() };
        assert_eq!(all_rollouts(&reader, query).len(), score.n as usize, "{score:?}");
        assert_eq!((score.harness_id.as_str(), score.harness_digest.len()), ("quiz", 64));
    }
    assert_eq!(scores, all_scores(&reader, 1000), "pages of another size have the same scores");
    let last = scores.last().unwrap();
    let none = reader.score_page(Some(last.sequence as i64), None).unwrap();
    assert!(none.items.is_empty() && !none.has_more && none.next_since == last.sequence as i64);

    let series = |metric: Option<&str>, split: Option<&str>| {
        let owned = |word: Option<&str>| word.map(str::to_owned);
        reader.score_series(&SeriesQuery { metric: owned(metric), split: owned(split) }).unwrap().series
    };
    let shown: Vec<_> = series(None, None)
        .iter()
        .map(|series| {
            let points = series.points.iter().map(|point| (point.value, point.best_so_far)).collect::<Vec<_>>();
            (series.metric.clone(), series.split.as_str(), points)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("outcome_reward".to_owned(), "train", vec![(0.375, 0.375), (0.625, 0.625)]),
            ("brevity".to_owned(), "train", vec![(0.25, 0.25), (0.25, 0.25)]),
            ("outcome_reward".to_owned(), "heldout", vec![(0.75, 0.75)]),
            ("brevity".to_owned(), "heldout", vec![(0.25, 0.25)]),
        ]
    );
    assert_eq!(series(Some("outcome_reward"), Some("heldout")).len(), 1);
    let unknown = SeriesQuery { metric: Some("speed".into()), split: None };
    assert_eq!(code(reader.score_series(&unknown)), "invalid_filter");
}

#[test]
fn every_change_of_the_best_candidate_changes_its_mark() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    let reader = Reader::open(&path).unwrap();
    let mut marks = Vec::new();
    let mut shown = None;
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
        let mark = reader.best_mark().unwrap().map(|mark| (mark.sequence, mark.candidate_id));
        let record = reader.best().unwrap();
        assert!(record == shown || marks.last() != Some(&mark), "the candidate has changed and its mark has not");
        shown = record;
        assert_eq!(reader.best_candidate().unwrap().map(|best| (best.sequence, best.candidate.candidate_id)), mark);
        if marks.last() != Some(&mark) {
            marks.push(mark);
        }
    }
    let wire = |sequence: u64| reader.events(sequence, 1).unwrap()[0].event.type_name();
    let told: Vec<(&str, &str)> = marks.iter().flatten().map(|(sequence, id)| (wire(*sequence), id.as_str())).collect();
    // Its membership of the frontier is part of the model too.
    let expected = [("frontier.updated", "c1"), ("frontier.updated", "c2"), ("heldout.completed", "c2")];
    assert_eq!((told.as_slice(), &marks[0]), (expected.as_slice(), &None));
    assert!(marks.iter().flatten().is_sorted());
    let best = reader.best_candidate().unwrap().unwrap();
    assert_eq!(best.candidate.train_score.unwrap().mean, 0.625);
    assert_eq!((best.seed_train_score.unwrap().mean, best.train_gain.unwrap().difference), (0.375, 0.25));
    assert_eq!((best.metric.as_str(), best.candidate.heldout_score.unwrap().mean), ("outcome_reward", 0.75));
}

#[test]
fn frontier_models_and_usage_match_the_log() {
    let (_directory, reader) = finished_run();
    let frontier = reader.frontier().unwrap();
    let held: Vec<(&str, u64)> =
        frontier.items.iter().map(|member| (member.entry.candidate_id.as_str(), member.cell_count)).collect();
    assert_eq!((held, frontier.size), (vec![("c1", 1), ("c2", 2)], 2));
    assert_eq!(frontier.items[0].cells[0].example_id.as_deref(), Some("train:2"));
    assert_eq!(
        json!(reader.run_models().unwrap()),
        json!({
            "policy": {"requested": null, "effective": null},
            "proposer": {"requested": "large", "effective": "large-2"},
        })
    );
    let usage = reader.run_usage().unwrap();
    assert_eq!((usage.rollout_calls, usage.proposer_calls, usage.total.sent_calls), (9, 3, 12));
    assert_eq!((usage.rollouts.sent_calls, usage.rollouts.cost_usd), (9, Cost::from_usd(Some(0.0135))));
    assert_eq!((usage.proposer.sent_calls, usage.proposer.unknown_outcomes), (3, 2));
    assert_eq!(
        (usage.proposer.cost_usd, usage.proposer.known_cost_usd, usage.total.cost_usd),
        (Cost::Unknown, 0.0015, Cost::Unknown)
    );
}

#[test]
fn a_run_whose_log_has_no_choice_uses_the_reference_search() {
    let (_directory, reader) = stored(Script::default());
    assert_eq!(reader.search().unwrap(), None, "nothing is chosen before the rows are known");
    let (_directory, reader) = finished_run();
    let found = reader.search().unwrap().unwrap();
    assert_eq!(found.search, SearchMode::Reference);
    assert_eq!(found.reason, "the version that started the run has no other");
}

#[test]
fn invalid_parameters_are_rejected() {
    let (_directory, reader) = finished_run();
    for cursor in
        ["", "x", "-1", "+1", " 1", "01", "1.5", "99999999999999999999", "1;DROP TABLE run", &"9".repeat(4000)]
    {
        let cursor = Some(cursor.to_owned());
        let query = CandidateQuery { cursor: cursor.clone(), ..CandidateQuery::default() };
        assert_eq!(code(reader.candidate_page(&query)), "invalid_cursor", "{cursor:?}");
        let query = RolloutQuery { cursor, ..RolloutQuery::default() };
        assert_eq!(code(reader.rollout_page(&query)), "invalid_cursor");
    }
    for limit in [0, -1, 201, i64::MAX, i64::MIN] {
        let query = CandidateQuery { limit: Some(limit), ..CandidateQuery::default() };
        assert_eq!(code(reader.candidate_page(&query)), "invalid_limit");
        let query = RolloutQuery { limit: Some(limit), ..RolloutQuery::default() };
        assert_eq!(code(reader.rollout_page(&query)), "invalid_limit");
    }
    assert_eq!(code(reader.event_page(None, Some(1001))), "invalid_limit");
    assert_eq!(code(reader.event_page(Some(-2), None)), "invalid_sequence");
    assert_eq!(code(reader.score_page(Some(i64::MIN), None)), "invalid_sequence");
    assert!(reader.event_page(Some(i64::MAX), None).unwrap().items.is_empty());
    let query = CandidateQuery { status: Some("good".into()), ..CandidateQuery::default() };
    assert_eq!(code(reader.candidate_page(&query)), "invalid_filter");
    for (stage, status, split) in [(Some("x"), None, None), (None, Some("x"), None), (None, None, Some("x"))] {
        let owned = |word: Option<&str>| word.map(str::to_owned);
        let query =
            RolloutQuery { stage: owned(stage), status: owned(status), split: owned(split), ..RolloutQuery::default() };
        assert_eq!(code(reader.rollout_page(&query)), "invalid_filter");
    }
    assert_eq!(code(reader.candidate(&"c".repeat(5000))), "candidate_not_found");
}

/// A run that was only created has empty models.
#[test]
fn a_run_without_events_has_empty_models() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace: Workspace = create(&path);
    let reader = Reader::open(&path).unwrap();
    assert!(all_candidates(&reader, 10).is_empty() && all_scores(&reader, 10).is_empty());
    assert!(all_rollouts(&reader, RolloutQuery::default()).is_empty());
    assert_eq!((reader.best_mark().unwrap(), reader.best_candidate().unwrap()), (None, None));
    assert_eq!(reader.frontier().unwrap().size, 0);
    assert!(reader.score_series(&SeriesQuery::default()).unwrap().series.is_empty());
    let page = reader.event_page(None, None).unwrap();
    assert_eq!((page.items.len(), page.next_after, page.last_sequence, page.is_terminal), (0, -1, None, false));
    assert_eq!(reader.run_usage().unwrap().total.cost_usd, Cost::from_usd(Some(0.0)));
    drop(workspace);
}

#[test]
fn reads_work_during_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    let writer = std::thread::spawn(move || {
        for batch in whole_run() {
            workspace.commit_blocking(batch).unwrap();
        }
        workspace.close().unwrap();
    });
    let reader = Reader::open(&path).unwrap();
    let (mut events, mut scores, mut after, mut since) = (Vec::new(), Vec::new(), -1, -1);
    loop {
        let page = reader.event_page(Some(after), Some(5)).unwrap();
        events.extend(page.items.iter().map(|envelope| (envelope.sequence_number, envelope.ts.clone())));
        let settled = reader.score_page(Some(since), Some(2)).unwrap();
        scores.extend(settled.items);
        (after, since) = (page.next_after, settled.next_since);
        for candidate in all_candidates(&reader, 2) {
            assert!(candidate.candidate.updated_sequence >= candidate.candidate.registered_sequence);
        }
        let open = all_rollouts(&reader, RolloutQuery { limit: Some(3), ..RolloutQuery::default() });
        assert!(open.iter().all(|rollout| rollout.settled_sequence.is_some() == rollout.cached.is_some()));
        reader.frontier().unwrap();
        reader.best_candidate().unwrap();
        if page.is_terminal && page.last_sequence == u64::try_from(after).ok() {
            break;
        }
    }
    writer.join().unwrap();
    scores.extend(reader.score_page(Some(since), None).unwrap().items);
    assert_eq!(scores, all_scores(&reader, 100));
    assert!(events.iter().enumerate().all(|(place, (sequence, _))| place as u64 == *sequence));
    assert_eq!(events[0].1, "2023-11-14T22:13:20.000Z", "{START}");
}

/// A filtered page scans a bounded number of rollouts, and its cursor continues from there.
#[test]
fn a_filtered_page_scans_a_bounded_number_of_rollouts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workspace.sqlite");
    let workspace = create(&path);
    let mut script = Script::default();
    script.register("c1", &[], None);
    let many: Vec<String> = (0..25_000).map(|row| format!("train:{row}")).collect();
    script.request_rollouts("c1", Stage::SeedFullTrain, &many, 1);
    script.request_rollouts("c1", Stage::Heldout, &["test:1".to_owned()], 1);
    for batch in script.batches {
        workspace.commit_blocking(batch).unwrap();
    }
    let query = RolloutQuery { split: Some("heldout".into()), ..RolloutQuery::default() };
    let first = workspace.rollout_page(&query).unwrap();
    assert_eq!((first.items.len(), first.next_cursor.is_some()), (0, true));
    assert_eq!(rollouts(&workspace, query), [25_000]);
    let open = all_rollouts(&workspace, RolloutQuery { limit: Some(200), ..RolloutQuery::default() });
    assert_eq!(open.len(), 25_001);
    assert!(open.iter().all(|rollout| rollout.status == RolloutStatus::Running && rollout.usage.is_none()));
}

#[test]
fn one_reader_serves_many_threads() {
    let (_directory, reader) = finished_run();
    let (candidates, scores) = (all_candidates(&reader, 2), all_scores(&reader, 2));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(all_candidates(&reader, 2), candidates);
                    assert_eq!(all_scores(&reader, 2), scores);
                    assert!(reader.event_page(None, None).unwrap().is_terminal);
                }
            });
        }
    });
}

/// Every field of the read models has a description in the schema.
#[test]
fn every_field_has_a_description() {
    let schemas = [
        schemars::schema_for!(CandidatePage),
        schemars::schema_for!(CandidateDetail),
        schemars::schema_for!(CandidateQuery),
        schemars::schema_for!(RolloutPage),
        schemars::schema_for!(RolloutDetail),
        schemars::schema_for!(RolloutQuery),
        schemars::schema_for!(RunFrontier),
        schemars::schema_for!(ScorePage),
        schemars::schema_for!(ScoreSeriesList),
        schemars::schema_for!(SeriesQuery),
        schemars::schema_for!(BestCandidate),
        schemars::schema_for!(BestMark),
        schemars::schema_for!(Artifacts),
        schemars::schema_for!(EventPage),
        schemars::schema_for!(RunModels),
        schemars::schema_for!(RunActivity),
        schemars::schema_for!(StopRule),
        schemars::schema_for!(RunUsage),
    ];
    let mut described = 0;
    for schema in &schemas {
        let mut open = vec![schema.as_value()];
        while let Some(value) = open.pop() {
            for (name, field) in value.get("properties").and_then(Value::as_object).into_iter().flatten() {
                assert!(field["description"].as_str().is_some_and(|text| text.len() > 3), "{name} of {value}");
                described += 1;
            }
            match value {
                Value::Object(entries) => open.extend(entries.values()),
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
    }
    assert!(described > 100, "{described}");
}

/// Scores of two runs can be compared if their containers returned the same documents.
#[test]
fn the_harness_digest_covers_the_container_documents() {
    let digest = |reader: &Reader| all_scores(reader, 100)[0].harness_digest.clone();
    let ((_one, first), (_other, second)) = (finished_run(), finished_run());
    assert_eq!(digest(&first), digest(&second));
    let directory = tempfile::tempdir().unwrap();
    let workspace = create(&directory.path().join("workspace.sqlite"));
    record_surroundings(&workspace);
    let rows = Record::Snapshot {
        kind: SnapshotKind::HeldoutRows,
        unix_millis: START + 1,
        document: json!([{"id": "test:2"}]),
    };
    workspace.record_all(vec![rows]).unwrap();
    for batch in whole_run() {
        workspace.commit_blocking(batch).unwrap();
    }
    assert_ne!(digest(&workspace), digest(&first), "other held-out rows");
}

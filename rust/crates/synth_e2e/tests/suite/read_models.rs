//! The read models of a whole run match its files, during the run and after.

#[path = "../../../synth_optimizer_platform/tests/suite/workspace/agreement.rs"]
mod agreement;

use crate::harness::{TestDir, stub};
use agreement::{all_rollouts, assert_agrees};
use camino::Utf8Path;
use serde_json::{Value, json};
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::WAIT_TIMEOUT;
use synth_e2e::{RowNames, run_to_end, small_config};
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{CandidateQuery, RolloutQuery, RolloutStatus, SeriesQuery};

#[test]
fn read_models_match_a_run_during_and_after_it() {
    let stub = stub(&["--latency-ms", "2"]);
    let test_dir = TestDir::configured(&small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]));
    let files = test_dir.files("read");
    let command = test_dir.command("read", &[]);
    let running = std::thread::spawn(move || run_to_end(command, WAIT_TIMEOUT).unwrap());
    let path = files.path("workspace.sqlite");
    let (mut after, mut marks, mut reads) = (-1, Vec::new(), 0_u32);
    while !running.is_finished() {
        // Nothing can be read before the run has its workspace.
        let Ok(reader) = Reader::open(path.as_std_path()) else {
            std::thread::yield_now();
            continue;
        };
        let page = reader.event_page(Some(after), Some(50)).unwrap();
        assert!(page.items.iter().zip(after + 1..).all(|(event, number)| event.sequence_number == number as u64));
        after = page.next_after;
        reader.candidate_page(&CandidateQuery::default()).unwrap();
        reader.rollout_page(&RolloutQuery::default()).unwrap();
        reader.score_series(&SeriesQuery::default()).unwrap();
        reader.frontier().unwrap();
        marks.extend(reader.best_mark().unwrap().map(|mark| mark.sequence));
        reads += 1;
    }
    let ended = running.join().unwrap();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(reads > 0 && marks.is_sorted(), "{marks:?}");
    let dir = path.parent().unwrap();
    assert_agrees(dir);
    assert_bill_agrees(dir);
}

/// Asserts that the usage equals the usage in the manifest.
fn assert_bill_agrees(dir: &Utf8Path) {
    let reader = Reader::open(dir.join("workspace.sqlite").as_std_path()).unwrap();
    let manifest: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("result_manifest.json")).unwrap()).unwrap();
    let usage = json!(reader.run_usage().unwrap());
    assert_eq!(usage["cost_usd"], manifest["cost_usd"]);
    for name in ["prompt_tokens", "completion_tokens", "total_tokens", "sent_calls", "cached_calls"] {
        assert_eq!(usage[name], manifest["usage"][name], "{name}");
        let parts = usage["rollouts"][name].as_u64().unwrap() + usage["proposer"][name].as_u64().unwrap();
        assert_eq!(usage[name], parts, "{name}");
    }
    let paid: u64 = all_rollouts(&reader, RolloutQuery { limit: Some(200), ..RolloutQuery::default() })
        .iter()
        .filter(|rollout| rollout.status == RolloutStatus::Finished && rollout.cached == Some(false))
        .map(|rollout| rollout.usage.as_ref().and_then(|usage| usage.total_tokens).unwrap_or(0))
        .sum();
    assert!(usage["rollouts"]["total_tokens"].as_u64().unwrap() >= paid);
}

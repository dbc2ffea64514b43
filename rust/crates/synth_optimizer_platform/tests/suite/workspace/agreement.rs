//! Asserts that the read models of an ended run match its result files.

use std::collections::BTreeSet;

use camino::Utf8Path;
use serde_json::{Value, json};
use synth_optimizer_platform::artifacts::artifacts;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{
    CandidateEntry, CandidateQuery, RolloutEntry, RolloutQuery, RolloutStatus, ScoreEntry, SeriesQuery,
};

/// Returns all candidates, in pages of this size.
pub(crate) fn all_candidates(reader: &Reader, size: i64) -> Vec<CandidateEntry> {
    let mut query = CandidateQuery { limit: Some(size), ..CandidateQuery::default() };
    let mut all = Vec::new();
    loop {
        let page = reader.candidate_page(&query).unwrap();
        assert!(page.items.len() <= size as usize);
        all.extend(page.items);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return all;
        }
    }
}

/// Returns all rollouts that a query selects, page by page.
pub(crate) fn all_rollouts(reader: &Reader, mut query: RolloutQuery) -> Vec<RolloutEntry> {
    let mut all = Vec::new();
    loop {
        let page = reader.rollout_page(&query).unwrap();
        all.extend(page.items);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return all;
        }
    }
}

/// Returns all scores, in pages of about this size.
pub(crate) fn all_scores(reader: &Reader, size: i64) -> Vec<ScoreEntry> {
    let (mut since, mut all) = (-1, Vec::new());
    loop {
        let page = reader.score_page(Some(since), Some(size)).unwrap();
        all.extend(page.items);
        since = page.next_since;
        if !page.has_more {
            return all;
        }
    }
}

fn document(path: &Utf8Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Compares every model with the files of the run directory.
pub(crate) fn assert_agrees(dir: &Utf8Path) {
    let reader = Reader::open(dir.join("workspace.sqlite").as_std_path()).unwrap();
    let registry = document(&dir.join("candidate_registry.json"));
    let manifest = document(&dir.join("result_manifest.json"));
    let candidates = all_candidates(&reader, 3);
    candidates_agree(&candidates, registry.as_array().unwrap(), &manifest);
    frontier_agrees(&reader, &candidates, &document(&dir.join("frontier.json")));
    rollouts_agree(&reader, &manifest);
    scores_agree(&reader, &candidates);
    best_agrees(&reader, &manifest, &document(&dir.join("best_candidate.json")));
    events_agree(&reader, &std::fs::read_to_string(dir.join("events.jsonl")).unwrap());
    let listed = artifacts(dir, Some(&reader)).unwrap();
    for known in manifest["artifact_refs"].as_array().unwrap() {
        let name = Utf8Path::new(known["path"].as_str().unwrap()).file_name().unwrap();
        let entry = listed.items.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!(
            (json!(entry.sha256), json!(entry.bytes)),
            (known["sha256"].clone(), known["bytes"].clone()),
            "{name}"
        );
    }
}

fn candidates_agree(candidates: &[CandidateEntry], registry: &[Value], manifest: &Value) {
    assert_eq!(candidates.len(), registry.len());
    for (candidate, known) in candidates.iter().zip(registry) {
        let shown = json!(candidate);
        for name in [
            "candidate_id",
            "payload",
            "parent_id",
            "parent_ids",
            "source",
            "generation",
            "changed_fields",
            "rationale",
            "status",
            "minibatch_reward",
            "train_reward",
            "heldout_reward",
            "minibatch_score",
            "train_score",
            "heldout_score",
            "acceptance_score",
        ] {
            assert_eq!(shown[name], known[name], "{name} of {}", candidate.candidate.candidate_id);
        }
        let steps: Vec<Value> = candidate
            .candidate
            .acceptance_metadata
            .iter()
            .map(|step| {
                let (decision, stage, reason) = (&step.decision, step.evaluation_stage, &step.reason);
                let comparison = &step.comparison;
                json!({"decision": decision, "evaluation_stage": stage, "reason": reason, "comparison": comparison})
            })
            .collect();
        assert_eq!(json!(steps), known["acceptance_metadata"], "{}", candidate.candidate.candidate_id);
        let best = manifest.pointer("/best_candidate/candidate_id").or(manifest.get("best_candidate_id"));
        assert_eq!(Some(candidate.is_best), best.map(|best| *best == candidate.candidate.candidate_id.as_str()));
        assert_eq!(candidate.lineage.first(), candidate.candidate.parent_id.as_ref().map(ToString::to_string).as_ref());
        assert_eq!(candidate.delta.len(), candidate.candidate.changed_fields.len());
        assert!(
            candidate.candidate.parent_id.is_none()
                || candidate.lineage.last() == Some(&candidates[0].candidate.candidate_id.to_string())
        );
    }
    assert!(candidates.is_sorted_by_key(|candidate| candidate.candidate.registered_sequence));
}

fn frontier_agrees(reader: &Reader, candidates: &[CandidateEntry], written: &Value) {
    let frontier = reader.frontier().unwrap();
    let shown = json!(frontier);
    let written = written.as_array().unwrap();
    assert_eq!(frontier.items.len(), written.len());
    for (item, known) in shown["items"].as_array().unwrap().iter().zip(written) {
        for (name, value) in known.as_object().unwrap() {
            assert_eq!(&item[name], value, "{name}");
        }
        assert!(item["cell_count"].as_u64().unwrap() > 0, "{item}");
    }
    let members: BTreeSet<&str> = frontier.items.iter().map(|member| member.entry.candidate_id.as_str()).collect();
    let marked = candidates.iter().filter(|candidate| candidate.candidate.on_frontier);
    assert_eq!(marked.map(|candidate| candidate.candidate.candidate_id.as_str()).collect::<BTreeSet<_>>(), members);
}

fn rollouts_agree(reader: &Reader, manifest: &Value) {
    let rollouts = all_rollouts(reader, RolloutQuery { limit: Some(7), ..RolloutQuery::default() });
    assert!(rollouts.is_sorted_by(|a, b| a.call_id < b.call_id));
    let finished = rollouts.iter().filter(|rollout| rollout.status == RolloutStatus::Finished).count();
    let failed = rollouts
        .iter()
        .filter(|rollout| matches!(rollout.status, RolloutStatus::Failed | RolloutStatus::Retried))
        .count();
    assert_eq!(manifest["rollouts"]["finished"], finished);
    assert_eq!(manifest["rollouts"]["failed"], failed);
    for rollout in rollouts.iter().take(20) {
        assert_eq!(reader.rollout(&rollout.call_id.to_string(), false).unwrap().rollout, *rollout);
        if let Some(id) = &rollout.rollout_id {
            assert_eq!(reader.rollout(id, false).unwrap().rollout, *rollout);
        }
    }
}

/// Asserts that the scores include those of the registry, each with the number of rows that were evaluated.
fn scores_agree(reader: &Reader, candidates: &[CandidateEntry]) {
    let scores = all_scores(reader, 4);
    assert!(scores.is_sorted_by_key(|score| score.sequence));
    let ids: BTreeSet<&str> = scores.iter().map(|score| score.score_id.as_str()).collect();
    assert_eq!(ids.len(), scores.len(), "one score for each candidate, split, stage and metric");
    let deciding = scores.first().map_or("", |score| score.metric.as_str());
    let mut known = 0;
    for candidate in candidates {
        let seen = [
            (candidate.candidate.minibatch_score, "candidate_minibatch"),
            (
                candidate.candidate.train_score,
                if candidate.candidate.parent_id.is_some() { "candidate_full_train" } else { "seed_full_train" },
            ),
            (candidate.candidate.heldout_score, "heldout"),
        ];
        for (score, stage) in seen {
            let found = scores.iter().find(|entry| {
                entry.candidate_id == candidate.candidate.candidate_id.as_str()
                    && entry.stage.as_str() == stage
                    && entry.metric == deciding
            });
            known += usize::from(found.is_some());
            let of = |entry: &ScoreEntry| (entry.value, entry.n, entry.standard_error);
            assert_eq!(found.map(of), score.map(|score| (score.mean, score.n, score.standard_error)), "{stage}");
        }
    }
    assert_eq!(known, scores.iter().filter(|score| score.metric == deciding).count());
    for list in reader.score_series(&SeriesQuery::default()).unwrap().series {
        assert!(list.points.is_sorted_by(|a, b| a.sequence < b.sequence));
        let best: Vec<f64> = list.points.iter().map(|point| point.best_so_far).collect();
        assert!(best.is_sorted(), "{best:?}");
    }
}

fn best_agrees(reader: &Reader, manifest: &Value, written: &Value) {
    let best = reader.best_candidate().unwrap().unwrap();
    let mark = reader.best_mark().unwrap().unwrap();
    assert_eq!((best.sequence, &best.candidate.candidate_id), (mark.sequence, &mark.candidate_id));
    let shown = json!(best);
    assert_eq!(shown["candidate_id"], written["candidate_id"]);
    assert_eq!(shown["payload"], written["payload"]);
    assert_eq!(shown["train_score"], written["train_score"]);
    assert_eq!(shown["heldout_score"], written["heldout_score"]);
    if !manifest["train_gain"].is_null() {
        assert_eq!(shown["train_gain"], manifest["train_gain"]);
        assert_eq!(shown["heldout_gain"], manifest["heldout_gain"]);
    }
}

fn events_agree(reader: &Reader, feed: &str) {
    let mut lines = feed.lines();
    let mut after = -1;
    loop {
        let page = reader.event_page(Some(after), Some(37)).unwrap();
        for envelope in &page.items {
            assert_eq!(lines.next(), Some(serde_json::to_string(envelope).unwrap().as_str()));
        }
        after = page.next_after;
        assert!(page.is_terminal);
        if page.last_sequence == u64::try_from(after).ok() {
            break;
        }
        assert!(!page.items.is_empty());
    }
    assert_eq!(lines.next(), None);
}

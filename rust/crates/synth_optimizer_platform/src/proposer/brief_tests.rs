#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};

use super::super::tests_support::request;
use super::{Brief, cut, question};
use crate::proposer::transcript::Redactor;
use crate::proposer::{Evidence, ProposalRequest};
use synth_optimizer_core::config::proposer::ProposerSection;
use synth_optimizer_core::model::answer::Proposal;
use synth_optimizer_core::model::command::{CarriedAttempt, FrontierMember, NamedPayload, RelatedCandidate, Relation};
use synth_optimizer_core::model::edit::{Edit, EditOperation};
use synth_optimizer_core::model::event_fields::{Operation, Problem};
use synth_optimizer_core::model::ids::{CandidateId, Payload, RowId};
use synth_optimizer_core::model::lifecycle::CandidateStatus;

fn part<'a>(brief: &'a Brief, name: &str) -> &'a str {
    &brief.parts.iter().find(|part| part.0 == name).unwrap_or_else(|| panic!("no {name}")).1
}

fn brief_within(request: &ProposalRequest, limit: usize) -> Brief {
    let section = ProposerSection { max_evidence_kb: limit as u64 / 1024, ..ProposerSection::default() };
    Brief::new(request, &section, &Redactor::default())
}

fn row(id: &str, score: f64, reply: Value) -> Evidence {
    Evidence { row_id: RowId::new(id), row: json!({"question": id}), score: Some(score), reply: Some(reply) }
}

#[test]
fn the_brief_size_is_bounded_for_any_history() {
    const LIMIT: usize = 32 * 1024;
    let huge = "word ".repeat(200_000);
    let mut request = request();
    request.task_info = Some(json!({"description": huge}));
    request.program = json!({"notes": huge});
    request.evidence =
        (0..50).map(|n| row(&format!("train:{n}"), 0.0, json!({"trace": huge, "feedback": huge}))).collect();
    let payload = Payload::from([("instructions".to_owned(), huge.clone())]);
    let id = |n: usize| CandidateId::of("c", &Payload::from([("f".to_owned(), n.to_string())]));
    request.question.carried_failures = (0..40)
        .map(|n| CarriedAttempt { candidate_id: id(n), payload: payload.clone(), reason: "not_better".into() })
        .collect();
    request.question.relatives = (0..40)
        .map(|n| RelatedCandidate {
            candidate_id: id(n),
            relation: Relation::Child,
            status: CandidateStatus::RejectedMinibatch,
            train_score: None,
            delta: Some(-0.1),
            rows: 4,
            changed: payload.clone(),
        })
        .collect();
    request.refused = vec![Proposal { fields: payload, ..Proposal::default() }];
    request.question.problems =
        vec![Problem { code: "field_too_long".into(), field: None, message: "too long".into() }];
    let brief = brief_within(&request, LIMIT);
    let size: usize = brief.parts.iter().map(|part| part.1.len()).sum();
    // Headings, guidance and schema come on top of what is cut.
    assert!(size < 2 * LIMIT, "{size}");
}

#[test]
fn secrets_in_replies_rows_and_documents_are_not_shown() {
    const SECRET: &str = "sk-live-Q7w9ZxK2mB4vN8cT1rY6";
    let mut request = request();
    request.task_info = Some(json!({"note": format!("key {SECRET}"), "api_key": "hunter2"}));
    request.program = json!({"api_key": "hunter2"});
    request.evidence = vec![Evidence {
        row_id: RowId::new("train:1"),
        row: json!({"password": "hunter2", "text": SECRET}),
        score: Some(0.0),
        reply: Some(json!({"feedback": format!("used {SECRET}"), "trace": {"authorization": "hunter2"}})),
    }];
    let whole = brief_within(&request, 64 * 1024).to_text();
    assert!(!whole.contains(SECRET) && !whole.contains("hunter2"), "{whole}");
}

#[test]
fn parent_texts_are_complete_and_exact() {
    let text = "Line one.\n~~~\nKeep {question}. ".repeat(4000);
    let mut request = request();
    request.question.parents = vec![NamedPayload {
        candidate_id: CandidateId::of("c", &Payload::new()),
        payload: Payload::from([("instructions".to_owned(), text.clone())]),
    }];
    assert!(part(&brief_within(&request, 4096), "parent.md").contains(&text));
}

#[test]
fn a_merge_names_both_parents_and_their_ancestor() {
    let mut request = request();
    let named = |name: &str| {
        let payload = Payload::from([("instructions".to_owned(), name.to_owned())]);
        NamedPayload { candidate_id: CandidateId::of("c", &payload), payload }
    };
    (request.question.operation, request.question.parents, request.question.ancestor) =
        (Operation::Merge, vec![named("left"), named("right")], Some(Box::new(named("old"))));
    let brief = brief_within(&request, 64 * 1024);
    let text = part(&brief, "parent.md");
    for name in ["left", "right", "old"] {
        assert!(text.contains(named(name).candidate_id.as_str()) && text.contains(name), "{text}");
    }
    assert!(question(&request, &ProposerSection::default(), "").contains("Two good candidates"));
    assert!(brief.schema.to_string().contains("frontier_merge"));
}

#[test]
fn optional_parts_are_shown_only_if_they_have_content() {
    let mut request = request();
    let names = |request: &_| brief_within(request, 64 * 1024).parts.iter().map(|part| part.0).collect::<Vec<_>>();
    assert_eq!(names(&request), ["task.md", "parent.md", "evidence.md", "guidance.md", "proposal_schema.md"]);
    let payload = Payload::from([("instructions".to_owned(), "Answer briefly.\nBe kind.".to_owned())]);
    let candidate_id = CandidateId::of("c", &payload);
    request.question.relatives = vec![RelatedCandidate {
        candidate_id: candidate_id.clone(),
        relation: Relation::Ancestor,
        status: CandidateStatus::Accepted,
        train_score: Some(0.25),
        delta: Some(0.125),
        rows: 8,
        changed: payload.clone(),
    }];
    request.question.frontier =
        vec![FrontierMember { candidate_id: candidate_id.clone(), train_score: 0.5, cells_won: 3 }];
    request.question.frontier_size = 7;
    request.question.carried_failures =
        vec![CarriedAttempt { candidate_id, payload: payload.clone(), reason: "not_better".into() }];
    request.question.problems =
        vec![Problem { code: "field_empty".into(), field: Some("instructions".into()), message: "empty".into() }];
    request.refused =
        vec![Proposal { fields: Payload::from([("instructions".to_owned(), String::new())]), ..Proposal::default() }];
    let brief = brief_within(&request, 64 * 1024);
    let lineage = part(&brief, "lineage.md");
    assert!(lineage.contains("ancestor") && lineage.contains("+0.1250 against its own parent on 8 rows"), "{lineage}");
    assert!(lineage.contains("+Be kind."), "{lineage}");
    assert!(part(&brief, "frontier.md").contains("7 candidates"));
    assert!(part(&brief, "rejected.md").contains("not_better"));
    assert!(part(&brief, "repair.md").contains("field_empty in `instructions`"));
    assert!(question(&request, &ProposerSection::default(), "").contains("repair.md"));
}

#[test]
fn edits_are_explained_only_if_they_are_asked_for() {
    let mut request = request();
    let plain = brief_within(&request, 64 * 1024);
    let shape = part(&plain, "proposal_schema.md");
    assert!(shape.contains("the whole new text of every field that changes") && !shape.contains("edit"), "{shape}");
    request.question.edit_fields = vec!["instructions".into()];
    let asked = brief_within(&request, 64 * 1024);
    let shape = part(&asked, "proposal_schema.md");
    for words in [
        "Change `instructions` with `edits`",
        "Write one rule per line",
        "beyond repair",
        "from parent.md",
        "insert_after",
    ] {
        assert!(shape.contains(words), "{words}: {shape}");
    }
    let others =
        |brief: &Brief| brief.parts.iter().filter(|part| part.0 != "proposal_schema.md").cloned().collect::<Vec<_>>();
    assert_eq!(others(&plain), others(&asked), "nothing else changes");
    request.question.operation = Operation::Merge;
    assert!(part(&brief_within(&request, 64 * 1024), "proposal_schema.md").contains("What the proposal is laid over"));
}

#[test]
fn a_repair_shows_the_refused_edits() {
    let mut request = request();
    let edit = Edit { operation: EditOperation::Replace, find: "Answer shortly.".into(), text: "Answer well.".into() };
    let edits = [("instructions".to_owned(), vec![edit])].into();
    request.refused = vec![Proposal { edits, ..Proposal::default() }];
    let message =
        "edit 1 (replace): \"Answer shortly.\" occurs 0 times in the text; the nearest line is \"Answer briefly.\"";
    request.question.problems =
        vec![Problem { code: "edit_not_found".into(), field: Some("instructions".into()), message: message.into() }];
    let brief = brief_within(&request, 64 * 1024);
    let repair = part(&brief, "repair.md");
    assert!(repair.contains(&format!("- edit_not_found in `instructions`: {message}\n")), "{repair}");
    assert!(repair.contains("\"find\": \"Answer shortly.\"") && repair.contains("None of these edits"), "{repair}");
}

#[test]
fn a_cut_keeps_both_ends_and_whole_characters() {
    assert_eq!(cut("short", 10), "short");
    let cut = cut(&format!("begin{}end", "é".repeat(1000)), 60);
    assert!(cut.starts_with("begin") && cut.ends_with("end") && cut.contains("bytes left out"), "{cut}");
}

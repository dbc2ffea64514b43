//! Proposer turns: what became of each proposal, and transcripts that are complete, missing, damaged or too large.

use std::path::Path;

use serde_json::{Value, json};
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{ProposalOutcome, TurnPage, TurnQuery};

use super::models::{code, finished_run};
use super::models_lineage::stored;
use super::script::Script;

fn page(reader: &Reader, limit: Option<i64>, cursor: Option<&str>) -> TurnPage {
    let query = TurnQuery { limit, cursor: cursor.map(str::to_owned) };
    query.check().unwrap();
    reader.turn_page(&query).unwrap()
}

/// Writes the transcript of the second turn, which is attempt 2 of call 4.
fn write_transcript(run_dir: &Path, content: &[u8]) {
    let place = run_dir.join("proposer_transcripts");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("turn_000004_2.jsonl.zst"), content).unwrap();
}

fn packed(lines: &[Value]) -> Vec<u8> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    zstd::bulk::compress(text.as_bytes(), 3).unwrap()
}

#[test]
fn turns_say_what_was_asked_and_what_became_of_each_proposal() {
    let (_directory, reader) = finished_run();
    let turns = page(&reader, None, None);
    assert_eq!((turns.items.len(), &turns.next_cursor), (2, &None));
    let (first, second) = (json!(turns.items[0]), json!(turns.items[1]));
    assert_eq!((&first["turn"], &first["call_id"], &first["status"]), (&json!(1), &json!(3), &json!("retried")));
    assert_eq!(first["failure"], json!({"class": "unknown_outcome", "message": "the connection ended"}));
    assert_eq!((&first["cost_usd"], &first["proposals"]), (&json!(null), &json!([])));
    assert_eq!((&second["turn"], &second["attempt"], &second["is_repair"]), (&json!(2), &json!(2), &json!(false)));
    assert_eq!((&second["requested_model"], &second["effective_model"]), (&json!("large"), &json!("large-2")));
    assert_eq!((&second["usage"]["total_tokens"], &second["cost_usd"]), (&json!(150), &json!(0.0015)));
    assert_eq!((&second["cached"], &second["ignored"]), (&json!(false), &json!(1)));
    assert_eq!((&second["parent_ids"], &second["evidence"]), (&json!(["c1"]), &json!(["train:2"])));
    assert_eq!((&second["minibatch"], &second["components"]), (&json!(["train:1"]), &json!(["instruction"])));
    assert!(second["sent_at"].is_string() && second["duration_ms"].is_number());
    // The log names the indexes 1 and 2; the registered proposals have the others.
    let fates: Vec<(u32, ProposalOutcome, Option<&str>)> = turns.items[1]
        .proposals
        .iter()
        .map(|proposal| (proposal.index, proposal.outcome, proposal.candidate_id.as_deref()))
        .collect();
    assert_eq!(
        fates,
        [
            (0, ProposalOutcome::Registered, Some("c2")),
            (1, ProposalOutcome::Refused, None),
            (2, ProposalOutcome::Duplicate, Some("c1")),
            (3, ProposalOutcome::Registered, Some("c3")),
            (4, ProposalOutcome::Registered, Some("c4")),
        ]
    );
    for (index, candidate) in [(0, "c2"), (2, "c1"), (3, "c3"), (4, "c4")] {
        let status = reader.candidate(candidate).unwrap().candidate.candidate.status;
        assert_eq!(turns.items[1].proposals[index].candidate_status, Some(status), "{candidate}");
    }
    assert_eq!(second["proposals"][1]["candidate_status"], json!(null));
    assert_eq!(second["proposals"][1]["problems"][0]["code"], "field_unknown");
}

#[test]
fn pages_have_every_turn_once() {
    let (_directory, reader) = finished_run();
    let first = page(&reader, Some(1), None);
    assert_eq!((first.items[0].turn, first.next_cursor.as_deref()), (1, Some("1")));
    let second = page(&reader, Some(1), first.next_cursor.as_deref());
    assert_eq!((second.items[0].turn, second.next_cursor), (2, None));
    assert_eq!(second.items[0], page(&reader, None, None).items[1]);
    assert!(page(&reader, None, Some("2")).items.is_empty());
    assert_eq!(code(reader.turn_page(&TurnQuery { limit: Some(0), cursor: None })), "invalid_limit");
    assert_eq!(code(reader.turn_page(&TurnQuery { limit: None, cursor: Some("x".into()) })), "invalid_cursor");
    for name in ["0", "3", "-1", "", "x", "99999999999999999999", "1 "] {
        assert_eq!(code(reader.turn(name)), "turn_not_found", "{name}");
    }
    let (_directory, empty) = stored(Script::default());
    assert_eq!(page(&empty, None, None), TurnPage::default());
    assert_eq!(code(empty.turn("1")), "turn_not_found");
}

#[test]
fn a_turn_shows_what_the_proposer_saw_and_wrote() {
    let (directory, reader) = finished_run();
    let messages = json!([{"role": "system", "content": "Improve."}, {"role": "user", "content": "The task."}]);
    let reply = json!({"choices": [{"message": {"role": "assistant", "content": "{\"proposals\": []}"}}]});
    let lines = [
        json!({"at": 1, "from": "optimizer", "message": {"model": "large", "messages": messages}}),
        json!({"at": 2, "from": "note", "message": "sent again"}),
        json!({"at": 3, "from": "endpoint", "message": {"status": 200, "body": reply}}),
    ];
    write_transcript(directory.path(), &packed(&lines));
    let turn = reader.turn("2").unwrap();
    assert_eq!(turn.turn, page(&reader, None, None).items[1]);
    let transcript = json!(turn.transcript);
    assert_eq!(transcript["artifact"], "proposer_transcripts/turn_000004_2.jsonl.zst");
    assert_eq!((&transcript["problem"], &transcript["left_out"]), (&json!(null), &json!(0)));
    let shown = json!([{"role": "system", "text": "Improve."}, {"role": "user", "text": "The task."}]);
    assert_eq!(transcript["shown"], shown);
    assert_eq!(transcript["answered"], json!([{"role": "assistant", "text": "{\"proposals\": []}"}]));
    assert_eq!(transcript["messages"], json!(lines));
    assert_eq!(turn.answer, Some(json!("the transcript of the turn")));
}

#[test]
fn transcripts_of_codex_and_of_responses_are_read() {
    let (directory, reader) = finished_run();
    let item = json!({"type": "agentMessage", "text": "Done."});
    let lines = [
        json!({"at": 1, "from": "optimizer", "message": {"input": [{"type": "text", "text": "Read README.md."}]}}),
        json!({"at": 2, "from": "codex", "message": {"method": "item/completed", "params": {"item": item}}}),
        json!({"at": 3, "from": "optimizer", "message": {"instructions": "Improve.", "input": "The task."}}),
        json!({"at": 4, "from": "endpoint", "message": {"body": {"output": [{"content": [{"text": "Yes."}]}]}}}),
    ];
    write_transcript(directory.path(), &packed(&lines));
    let transcript = reader.turn("2").unwrap().transcript;
    let texts = |texts: &[synth_optimizer_platform::turn_transcript::TranscriptText]| {
        texts.iter().map(|said| said.text.clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts(&transcript.shown), ["Read README.md.", "Improve.", "The task."]);
    assert_eq!(texts(&transcript.answered), ["Done.", "Yes."]);
}

#[test]
fn a_missing_or_damaged_transcript_is_a_problem_and_not_an_error() {
    let (directory, reader) = finished_run();
    let problem = || {
        let turn = reader.turn("2").unwrap();
        assert_eq!(turn.turn.proposals.len(), 5);
        turn.transcript.problem.unwrap()
    };
    assert_eq!(problem(), "the run directory has no transcript of this turn");
    write_transcript(directory.path(), b"no zstd");
    assert!(problem().contains("is damaged"), "{}", problem());
    let whole = packed(&[json!({"at": 1, "from": "note", "message": "x".repeat(1000)})]);
    write_transcript(directory.path(), &whole[..whole.len() / 2]);
    assert!(problem().contains("is damaged"), "{}", problem());
    let mut text = zstd::bulk::decompress(&whole, 1 << 20).unwrap();
    text.extend_from_slice(b"{\"at\": 2, \"from\"\nnull\n");
    write_transcript(directory.path(), &zstd::bulk::compress(&text, 3).unwrap());
    assert_eq!(problem(), "2 lines of the transcript are damaged and left out");
    assert_eq!(reader.turn("2").unwrap().transcript.messages.len(), 1);
    let first = reader.turn("1").unwrap();
    assert_eq!(first.answer_problem.as_deref(), Some("no answer is stored for this turn"));
}

#[test]
fn a_large_transcript_is_cut() {
    let (directory, reader) = finished_run();
    let line = |at: u32| json!({"at": at, "from": "codex", "message": "y".repeat(900_000)});
    write_transcript(directory.path(), &packed(&[line(1), line(2), line(3), line(4)]));
    let transcript = reader.turn("2").unwrap().transcript;
    assert_eq!((transcript.messages.len(), transcript.left_out), (2, 2));
}

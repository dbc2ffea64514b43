//! Transcripts contain every message and no secret.

use std::os::unix::fs::PermissionsExt;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MAX_MESSAGE_BYTES, Redactor, TRANSCRIPTS, Transcript, redacted};
use crate::proposer::TurnId;
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_core::secrets::Secret;

const KNOWN: &str = "a known canary";
const SHAPED: &str = "sk-canary0123456789abcdef";
const TURN: TurnId = TurnId { call_id: CallId(7), attempt: 2 };

fn redactor() -> Redactor {
    Redactor::new([Secret::new(KNOWN), Secret::new("short")])
}

fn dir() -> (TempDir, Utf8PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = Utf8PathBuf::try_from(dir.path().to_owned()).unwrap();
    (dir, path)
}

fn lines(run_dir: &Utf8Path) -> Vec<Value> {
    let path = run_dir.join(TRANSCRIPTS).join("turn_000007_2.jsonl.zst");
    let text = zstd::stream::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn known_and_key_like_secrets_are_hidden_everywhere() {
    let redactor = redactor();
    assert_eq!(redactor.text(&format!("x{KNOWN}y {SHAPED}")), "x[hidden]y [hidden]");
    assert_eq!(redactor.hide_known(&format!("{KNOWN} {SHAPED}")), format!("[hidden] {SHAPED}"));
    let value = json!({ KNOWN: 1, "list": [KNOWN, { "deep": format!("say {SHAPED}") }], "api_key": "plain", "n": 3 });
    let shown = redacted(&redactor.hide_known_in(&value));
    assert_eq!(
        shown,
        json!({ "[hidden]": 1, "list": ["[hidden]", { "deep": "say [hidden]" }], "api_key": "[hidden]", "n": 3 })
    );
    // Short values are not redacted, because that would hide ordinary words.
    assert_eq!(redactor.text("in short"), "in short");
    assert!(!format!("{redactor:?}").contains("canary"));
}

#[test]
fn a_private_transcript_is_written_on_drop() {
    let (_keep, run_dir) = dir();
    let mut transcript = Transcript::new(&run_dir, TURN, redactor());
    transcript.add("optimizer", &json!({ "say": KNOWN }));
    transcript.add("endpoint", &json!("fine"));
    assert!(!run_dir.join(TRANSCRIPTS).exists());
    drop(transcript);
    let lines = lines(&run_dir);
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["from"], &lines[0]["message"]), (&json!("optimizer"), &json!({ "say": "[hidden]" })));
    assert_eq!((&lines[1]["message"], lines[1]["at"].is_u64()), (&json!("fine"), true));
    let mode = |path: Utf8PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(run_dir.join(TRANSCRIPTS)), 0o700);
    assert_eq!(mode(run_dir.join(TRANSCRIPTS).join("turn_000007_2.jsonl.zst")), 0o600);
}

#[test]
fn a_message_that_is_too_long_is_replaced_by_its_size() {
    let (_keep, run_dir) = dir();
    let mut transcript = Transcript::new(&run_dir, TURN, redactor());
    transcript.add("endpoint", &json!("x ".repeat(MAX_MESSAGE_BYTES)));
    drop(transcript);
    assert!(lines(&run_dir)[0]["message"]["left_out"].as_str().unwrap().ends_with(" bytes"));
}

#[test]
fn an_unwritable_transcript_directory_is_ignored() {
    let (_keep, run_dir) = dir();
    std::fs::write(run_dir.join(TRANSCRIPTS), "in the way").unwrap();
    let mut transcript = Transcript::new(&run_dir, TURN, redactor());
    transcript.add("endpoint", &json!("fine"));
    drop(transcript);
    assert_eq!(std::fs::read_to_string(run_dir.join(TRANSCRIPTS)).unwrap(), "in the way");
}

//! A model that does its work: it reads in the brief which rule is missing, and proposes the text with that rule.

use serde_json::{Map, Value, json};

use super::{Asked, Reply, patch, run, say};

/// How every test container says what a text lacks: `missing rule: WORD in FIELD`.
const LESSON: &str = "missing rule: ";
const FENCE: &str = "~~~~~~";

/// Reads the workspace with a command, writes the manifest with a patch, and says that it is done; where it is asked for
/// JSON, it answers with the manifest.
pub fn write_rules(asked: &Asked) -> Reply {
    let is_structured = asked.body.pointer("/text/format/schema").is_some();
    let item = match (is_structured, asked.outputs.len()) {
        (true, _) => say(proposed(&asked.text()).to_string()),
        (false, 0) => run("cat README.md parent.md evidence.md"),
        (false, 1) => patch("proposal/manifest.json", &proposed(&asked.text()).to_string()),
        (false, _) => say("The manifest is written."),
    };
    Reply::Items(vec![item])
}

/// A manifest with one proposal.
pub fn manifest(fields: Value) -> Value {
    json!({
        "schema_version": "gepa_workspace_proposal_v3",
        "critique": "a rule was missing",
        "evidence": {
            "reviewed_files": ["evidence.md"], "candidate_comparison": [], "failure_patterns": [],
            "winning_patterns": [], "example_ids_used": [],
        },
        "rationale": "the evidence names it",
        "proposals": [{
            "proposal_type": "frontier_variation", "parent_candidate_ids": [], "rationale": "one rule more",
            "proposed_payload": fields,
        }],
    })
}

/// The parent's texts with every rule that the brief says they lack.
pub fn proposed(brief: &str) -> Value {
    let mut fields: Map<String, Value> = Map::new();
    for (word, field) in lessons(brief) {
        let Some(text) = text_of(brief, &field) else { continue };
        let text = fields.get(&field).and_then(Value::as_str).unwrap_or(text).to_owned();
        if !text.split_whitespace().any(|known| known == word) {
            fields.insert(field, format!("{text} {word}").into());
        }
    }
    manifest(Value::Object(fields))
}

fn lessons(brief: &str) -> Vec<(String, String)> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || "_.-".contains(*c)).collect::<String>();
    let places = brief.match_indices(LESSON).map(|(at, _)| &brief[at + LESSON.len()..]);
    let found = places.filter_map(|rest| Some((name(rest), name(rest.split_once(" in ")?.1))));
    found.map(|(word, field)| (word, field.trim_end_matches('.').to_owned())).collect()
}

/// A field's text as the brief shows it.
fn text_of<'b>(brief: &'b str, field: &str) -> Option<&'b str> {
    let rest = brief.split_once(&format!("## Field `{field}`"))?.1;
    Some(rest.split(FENCE).nth(1)?.trim_matches('\n'))
}

//! A cooperative model: it reads the missing rules in the brief and proposes texts with these rules.

use serde_json::{Map, Value, json};

use super::{ModelReply, ModelRequest, patch, run, say};

/// Prefix of the feedback of all test containers: `missing rule: WORD in FIELD`.
const MISSING_RULE_PREFIX: &str = "missing rule: ";
const FENCE: &str = "~~~~~~";

/// Reads the workspace with a command, writes the manifest with a patch, and sends a final message. If the request has
/// a schema, answers with the manifest at once.
pub fn write_rules(request: &ModelRequest) -> ModelReply {
    let is_structured = request.body.pointer("/text/format/schema").is_some();
    let item = match (is_structured, request.outputs.len()) {
        (true, _) => say(proposed(&request.text()).to_string()),
        (false, 0) => run("cat README.md parent.md evidence.md"),
        (false, 1) => patch("proposal/manifest.json", &proposed(&request.text()).to_string()),
        (false, _) => say("The manifest is written."),
    };
    ModelReply::Items(vec![item])
}

/// Returns a manifest with one proposal.
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

/// Returns a manifest with the parent's texts and all missing rules of the brief.
pub fn proposed(brief: &str) -> Value {
    let mut fields: Map<String, Value> = Map::new();
    for (word, field) in missing_rules(brief) {
        let Some(text) = text_of(brief, &field) else { continue };
        let text = fields.get(&field).and_then(Value::as_str).unwrap_or(text).to_owned();
        if !text.split_whitespace().any(|known| known == word) {
            fields.insert(field, format!("{text} {word}").into());
        }
    }
    manifest(Value::Object(fields))
}

fn missing_rules(brief: &str) -> Vec<(String, String)> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || "_.-".contains(*c)).collect::<String>();
    let places = brief.match_indices(MISSING_RULE_PREFIX).map(|(at, _)| &brief[at + MISSING_RULE_PREFIX.len()..]);
    let found = places.filter_map(|rest| Some((name(rest), name(rest.split_once(" in ")?.1))));
    found.map(|(word, field)| (word, field.trim_end_matches('.').to_owned())).collect()
}

/// Returns the text of a field in the brief.
fn text_of<'b>(brief: &'b str, field: &str) -> Option<&'b str> {
    let rest = brief.split_once(&format!("## Field `{field}`"))?.1;
    Some(rest.split(FENCE).nth(1)?.trim_matches('\n'))
}

//! The manifest of a proposal: its schema, how it is extracted from an answer, and its problems.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::ProposalRequest;
use super::transcript::Redactor;
use crate::json_text;
use synth_optimizer_core::model::answer::{Proposal, ProposalAnswer};
use synth_optimizer_core::model::command::ProposerQuestion;
use synth_optimizer_core::model::edit::{Edit, EditOperation, lay_over};
use synth_optimizer_core::model::event_fields::{Operation, Problem};
use synth_optimizer_core::model::ids::Payload;
use synth_optimizer_core::model::usage::Usage;
use synth_optimizer_core::secrets::{looks_like_key, scrub};

/// Name and version of the manifest schema.
pub const SCHEMA_VERSION: &str = "gepa_workspace_proposal_v3";

/// Maximum number of characters of an answer that a problem repeats.
const MAX_SHOWN_CHARS: usize = 160;

/// Maximum number of positions at which to look for an object, so that a hostile answer takes bounded time.
const MAX_OBJECT_STARTS: usize = 64;

/// Maximum number of entries to read, and of their problems to report.
const MAX_ENTRIES: usize = 256;
const MAX_ENTRY_PROBLEMS: usize = 16;

/// Maximum number of edits of one proposal, so that a hostile answer takes bounded time.
const MAX_EDITS: usize = 256;

/// The proposals of an answer, and the problems of the answer as a whole. The engine validates the proposals.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ParsedAnswer {
    pub(super) proposals: Vec<Proposal>,
    pub(super) problems: Vec<Problem>,
}

impl From<Problem> for ParsedAnswer {
    fn from(problem: Problem) -> Self {
        Self { proposals: Vec::new(), problems: vec![problem] }
    }
}

impl ParsedAnswer {
    pub(super) fn too_large(answer: &str, most: u64) -> Self {
        let message = format!("the answer has {} bytes; at most {most} are allowed", answer.len());
        Problem { code: "answer_too_large".into(), field: None, message }.into()
    }

    pub(super) fn into_answer(self, usage: Usage, requested: &str, effective: &str) -> ProposalAnswer {
        ProposalAnswer {
            proposals: self.proposals,
            problems: self.problems,
            usage,
            cached: false,
            requested_model: requested.to_owned(),
            effective_model: effective.to_owned(),
        }
    }
}

/// Returns the `proposal_type` of an operation.
pub(super) fn proposal_type(operation: Operation) -> &'static str {
    match operation {
        Operation::Merge => "frontier_merge",
        Operation::Seed | Operation::Mutate | Operation::Rebase => "frontier_variation",
    }
}

/// Returns the JSON Schema of a manifest in the form that strict servers accept: all properties required, no others
/// allowed.
pub(super) fn schema(request: &ProposalRequest) -> Value {
    let mut schema = shape_of(&example(request));
    let fixed = [
        ("/properties/schema_version", SCHEMA_VERSION),
        ("/properties/proposals/items/properties/proposal_type", proposal_type(request.question.operation)),
    ];
    for (place, word) in fixed {
        if let Some(property) = schema.pointer_mut(place) {
            property["enum"] = json!([word]);
        }
    }
    let edits = schema.pointer_mut("/properties/proposals/items/properties/edits/properties");
    for list in edits.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        list["items"]["properties"]["operation"]["enum"] = json!(EditOperation::NAMES);
    }
    schema
}

fn shape_of(example: &Value) -> Value {
    match example {
        Value::Object(entries) => {
            let properties: Map<_, _> = entries.iter().map(|(name, it)| (name.clone(), shape_of(it))).collect();
            let required: Vec<&String> = entries.keys().collect();
            json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
        }
        // An empty list is a list of texts.
        Value::Array(items) => json!({ "type": "array", "items": shape_of(items.first().unwrap_or(&json!(""))) }),
        Value::Null => json!({ "type": ["string", "null"] }),
        _ => json!({ "type": "string" }),
    }
}

/// Returns an example manifest. A proposal has `edits` only if edits are asked for.
pub(super) fn example(request: &ProposalRequest) -> Value {
    let question = &request.question;
    let is_edited = |field: &String| question.edit_fields.contains(field);
    let new = |field: &String| {
        let text = if is_edited(field) { Value::Null } else { "the whole new text of this field".into() };
        (field.clone(), text)
    };
    let fields: Map<String, Value> = question.components.iter().map(new).collect();
    let parents: Vec<&str> = question.parents.iter().map(|parent| parent.candidate_id.as_str()).collect();
    let rows: Vec<&str> = request.evidence.iter().take(2).map(|shown| shown.row_id.as_str()).collect();
    let mut manifest = json!({
        "schema_version": SCHEMA_VERSION,
        "critique": "what the parent gets wrong, and why",
        "evidence": {
            "reviewed_files": ["evidence.md"],
            "candidate_comparison": ["how the candidates differ and what that did to their scores"],
            "failure_patterns": ["one cause of losses"],
            "winning_patterns": ["what already works and is kept"],
            "example_ids_used": rows,
        },
        "rationale": "the idea behind the proposals",
        "proposals": [{
            "proposal_type": proposal_type(question.operation),
            "parent_candidate_ids": parents,
            "rationale": "why this text is better",
            "proposed_payload": fields,
        }],
    });
    if !question.edit_fields.is_empty() {
        let edit = |operation: EditOperation, find: &str, text: &str| json!({ "operation": operation, "find": find, "text": text });
        let edits = json!([
            edit(EditOperation::Replace, "a line of the text, exactly as it is", "the line that takes its place"),
            edit(EditOperation::InsertAfter, "another line, exactly as it is", "a new line below it"),
            edit(EditOperation::Append, "", "a new line at the end"),
            edit(EditOperation::Delete, "a line that is wrong, exactly as it is", ""),
        ]);
        let edits: Map<String, Value> =
            question.edit_fields.iter().map(|field| (field.clone(), edits.clone())).collect();
        manifest["proposals"][0]["edits"] = Value::Object(edits);
    }
    manifest
}

/// Reads an answer: a manifest, or the first manifest inside other text.
///
/// Known credentials are removed after the JSON is decoded, so that escape sequences cannot hide them.
pub(super) fn read(answer: &str, request: &ProposalRequest, redactor: &Redactor) -> ParsedAnswer {
    let Some(document) = document_in(answer) else {
        let message = if answer.trim().is_empty() {
            "the answer is empty; it must be one JSON object".to_owned()
        } else {
            format!("the answer contains no JSON object; it begins with {:?}", beginning(&redactor.hide_known(answer)))
        };
        return Problem { code: "manifest_unreadable".into(), field: None, message }.into();
    };
    read_document(&redactor.hide_known_in(&document), request)
}

fn read_document(document: &Value, request: &ProposalRequest) -> ParsedAnswer {
    let mut found = ParsedAnswer::default();
    let mut wrong = |field: &str, message: String| {
        found.problems.push(Problem { code: "manifest_invalid".into(), field: Some(field.to_owned()), message });
    };
    match document.get("schema_version") {
        // A missing version is not worth another turn.
        None => {}
        Some(version) if version == SCHEMA_VERSION => {}
        Some(version) => wrong("schema_version", format!("is {}, not {SCHEMA_VERSION:?}", shown(version))),
    }
    let entries = match document.get("proposals") {
        Some(Value::Array(entries)) => entries,
        other => {
            wrong("proposals", other.map_or("is missing".into(), |other| format!("is {}, not a list", shown(other))));
            return found;
        }
    };
    if entries.is_empty() {
        wrong("proposals", "is empty".into());
    }
    let (mut proposals, mut refused) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().take(MAX_ENTRIES).enumerate() {
        match read_proposal(entry, request) {
            Ok(proposal) => proposals.push(proposal),
            Err((field, message)) => refused.push((format!("proposals[{index}]{}", beginning(&field)), message)),
        }
    }
    // Invalid entries are ignored if there are enough valid ones.
    if proposals.len() < request.question.proposal_count as usize {
        let more = refused.len().saturating_sub(MAX_ENTRY_PROBLEMS);
        for (field, message) in refused.into_iter().take(MAX_ENTRY_PROBLEMS) {
            wrong(&field, message);
        }
        if more > 0 {
            wrong("proposals", format!("has {more} more entries with problems"));
        }
    }
    found.proposals = proposals;
    found
}

/// Reads one entry. Its texts are under `proposed_payload`, under `candidate`, or at the top level; its edits are under
/// `edits`.
fn read_proposal(entry: &Value, request: &ProposalRequest) -> Result<Proposal, (String, String)> {
    let Some(fields) = entry.as_object() else {
        return Err((String::new(), format!("is {}, not an object", shown(entry))));
    };
    let nested = ["proposed_payload", "candidate"].into_iter().find_map(|name| fields.get(name).map(|it| (name, it)));
    let edits = read_edits(fields, request)?;
    let mut payload = Payload::new();
    match nested {
        Some((name, Value::Object(texts))) => {
            for (field, text) in texts {
                match text {
                    Value::String(text) => {
                        payload.insert(field.clone(), text.clone());
                    }
                    // With a strict schema, models send null for fields that they do not change.
                    Value::Null => {}
                    other => return Err((format!(".{name}.{field}"), format!("is {}, not a text", shown(other)))),
                }
            }
        }
        Some((name, other)) => return Err((format!(".{name}"), format!("is {}, not an object", shown(other)))),
        None => {
            let inline = fields.iter().filter(|(name, _)| request.question.base.contains_key(*name));
            payload.extend(inline.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))));
            if payload.is_empty() && edits.is_empty() {
                return Err((".proposed_payload".into(), "is missing".into()));
            }
        }
    }
    if let Some(field) = payload.iter().find_map(|(field, text)| holds_new_key(text, request).then_some(field)) {
        return Err((format!(".{field}"), "contains a credential, which is not allowed".into()));
    }
    // With a strict schema, models send an empty text beside edits.
    payload.retain(|field, text| !text.trim().is_empty() || !edits.contains_key(field));
    let rationale = fields.get("rationale").and_then(Value::as_str).unwrap_or_default();
    Ok(Proposal { fields: payload, edits, rationale: scrub(rationale) })
}

/// Reads the edits of an entry: lists by field, or one list whose edits name their field. With one requested field, they need
/// not. An empty list changes nothing, so it is left out.
fn read_edits(
    entry: &Map<String, Value>,
    request: &ProposalRequest,
) -> Result<BTreeMap<String, Vec<Edit>>, (String, String)> {
    let mut found: BTreeMap<String, Vec<Edit>> = BTreeMap::new();
    match entry.get("edits") {
        None | Some(Value::Null) => {}
        // A program may have a field of this name.
        Some(Value::String(_)) if request.question.base.contains_key("edits") => {}
        Some(Value::Object(lists)) => {
            for (field, list) in lists {
                match list {
                    Value::Null => {}
                    Value::Array(list) => {
                        let read = |(index, edit)| read_edit(edit, &format!(".edits.{field}[{index}]"));
                        let list = list.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
                        if !list.is_empty() {
                            found.insert(field.clone(), list);
                        }
                    }
                    other => return Err((format!(".edits.{field}"), format!("is {}, not a list", shown(other)))),
                }
            }
        }
        Some(Value::Array(list)) => {
            for (index, edit) in list.iter().enumerate() {
                let place = format!(".edits[{index}]");
                let field = match (edit.get("field"), &request.question.components[..]) {
                    (Some(Value::String(field)), _) | (None, [field]) => field,
                    (None, _) => return Err((format!("{place}.field"), "is missing".into())),
                    (Some(other), _) => {
                        return Err((format!("{place}.field"), format!("is {}, not a text", shown(other))));
                    }
                };
                found.entry(field.clone()).or_default().push(read_edit(edit, &place)?);
            }
        }
        Some(other) => {
            return Err((".edits".into(), format!("is {}, not an object with a list of edits by field", shown(other))));
        }
    }
    let count: usize = found.values().map(Vec::len).sum();
    if count > MAX_EDITS {
        return Err((".edits".into(), format!("has {count} edits; at most {MAX_EDITS} are allowed")));
    }
    if let Some(field) =
        found.iter().find_map(|(field, edits)| edits_hold_new_key(field, edits, request).then_some(field))
    {
        return Err((format!(".edits.{field}"), "contains a credential, which is not allowed".into()));
    }
    Ok(found)
}

/// Reads an edit. The new text may be named `replace`, as in other formats; `operation` is then not needed.
fn read_edit(edit: &Value, place: &str) -> Result<Edit, (String, String)> {
    let Some(parts) = edit.as_object() else {
        return Err((place.to_owned(), format!("is {}, not an object", shown(edit))));
    };
    let text = |name: &str| match parts.get(name) {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        None | Some(Value::Null) => Ok(None),
        Some(other) => Err((format!("{place}.{name}"), format!("is {}, not a text", shown(other)))),
    };
    let replacement = text("replace")?;
    let operation = match text("operation")? {
        Some(word) => EditOperation::parse(&word).ok_or_else(|| {
            let known = EditOperation::NAMES.join(", ");
            (format!("{place}.operation"), format!("is {:?}, not one of {known}", beginning(&word)))
        })?,
        None if replacement.is_some() => EditOperation::Replace,
        None => return Err((format!("{place}.operation"), "is missing".into())),
    };
    let new = text("text")?.or(replacement).unwrap_or_default();
    Ok(Edit { operation, find: text("find")?.unwrap_or_default(), text: new })
}

/// Returns whether edits contain something that looks like a new key, or make a text that does.
fn edits_hold_new_key(field: &str, edits: &[Edit], request: &ProposalRequest) -> bool {
    let base = request.question.base.get(field).map_or("", String::as_str);
    let made = lay_over(base, edits).unwrap_or_default();
    let parts = edits.iter().flat_map(|edit| [edit.find.as_str(), edit.text.as_str()]);
    parts.chain([made.as_str()]).any(|text| holds_new_key(text, request))
}

/// Returns whether a text contains something that looks like a key and is in none of the existing texts. Such a text is
/// rejected.
fn holds_new_key(text: &str, request: &ProposalRequest) -> bool {
    let is_mark = |c: char| c.is_whitespace() || "\"'`,;()<>[]{}/:=@?&|!#$%^*".contains(c);
    let ProposerQuestion { parents, ancestor, base, .. } = &request.question;
    let is_known = |word: &str| {
        let known = parents.iter().chain(ancestor.as_deref()).map(|parent| &parent.payload).chain([base]);
        known.flat_map(Payload::values).any(|known| known.contains(word))
    };
    text.split(is_mark).any(|word| looks_like_key(word) && !is_known(word))
}

/// Returns the document in an answer. Models also write half of an emoji, which is no valid text.
fn document_in(answer: &str) -> Option<Value> {
    find_document(answer).or_else(|| {
        let (normalized, _) = json_text::normalize(answer.as_bytes())?;
        let document = find_document(std::str::from_utf8(&normalized).ok()?);
        document.filter(|document| document.get("proposals").is_some())
    })
}

/// Returns the whole text as an object, else an object in a fenced block, else the first object with proposals.
fn find_document(answer: &str) -> Option<Value> {
    let parse = |text: &str| serde_json::from_str::<Value>(text.trim()).ok().filter(Value::is_object);
    let has_proposals = |document: &Value| document.get("proposals").is_some();
    let fenced = || {
        let blocks = answer.split("```").skip(1).step_by(2);
        let blocks = blocks.map(|block| block.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
        blocks.filter_map(parse).find(has_proposals)
    };
    if let Some(document) = parse(answer).or_else(fenced) {
        return Some(document);
    }
    let mut first = None;
    let mut rest = answer;
    for _ in 0..MAX_OBJECT_STARTS {
        let Some(start) = rest.find('{') else { break };
        rest = &rest[start..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(document)) if has_proposals(&document) => return Some(document),
            Some(Ok(document)) => {
                rest = &rest[values.byte_offset().max(1)..];
                first.get_or_insert(document);
            }
            Some(Err(_)) | None => rest = &rest[1..],
        }
    }
    first
}

fn shown(value: &Value) -> String {
    beginning(&value.to_string())
}

fn beginning(text: &str) -> String {
    let line = scrub(text).split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;

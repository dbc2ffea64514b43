//! Manifests that models write, and what is said about them.

use serde_json::{Value, json};

use super::super::tests_support::request;
use super::{MAX_EDITS, MAX_OBJECT_STARTS, ParsedAnswer, SCHEMA_VERSION, example, read, schema};
use crate::proposer::transcript::Redactor;
use synth_optimizer_core::model::edit::{Edit, EditOperation};
use synth_optimizer_core::model::event_fields::Operation;
use synth_optimizer_core::secrets::Secret;

fn found(answer: &str) -> ParsedAnswer {
    read(answer, &request(), &Redactor::default())
}

fn texts(found: &ParsedAnswer) -> Vec<&str> {
    found.proposals.iter().map(|proposal| proposal.fields["instructions"].as_str()).collect()
}

/// Code and field of every problem.
fn problems(found: &ParsedAnswer) -> Vec<(&str, &str)> {
    found.problems.iter().map(|it| (it.code.as_str(), it.field.as_deref().unwrap_or_default())).collect()
}

fn manifest(entry: Value) -> String {
    json!({ "schema_version": SCHEMA_VERSION, "proposals": [entry] }).to_string()
}

#[test]
fn the_example_is_a_valid_manifest() {
    for operation in [Operation::Mutate, Operation::Merge] {
        let mut request = request();
        request.question.operation = operation;
        let example = example(&request);
        let found = read(&example.to_string(), &request, &Redactor::default());
        assert_eq!((found.proposals.len(), found.problems.len()), (1, 0), "{found:?}");
        keeps_to(&schema(&request), &example, "");
    }
}

/// Checks what strict servers check: every property is there, and no other.
fn keeps_to(schema: &Value, value: &Value, place: &str) {
    match schema["type"].as_str() {
        Some("object") => {
            let names = |it: &Value| it.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&schema["properties"]), names(value), "{place}");
            assert_eq!(schema["required"], json!(names(value)), "{place}");
            assert_eq!(schema["additionalProperties"], false, "{place}");
            for (name, value) in value.as_object().unwrap() {
                keeps_to(&schema["properties"][name], value, &format!("{place}/{name}"));
            }
        }
        Some("array") => {
            for value in value.as_array().unwrap() {
                keeps_to(&schema["items"], value, &format!("{place}[]"));
            }
        }
        Some("string") => {
            assert!(value.is_string(), "{place}");
            assert!(schema.get("enum").is_none_or(|words| words.as_array().unwrap().contains(value)), "{place}");
        }
        // A text or null.
        None => {
            assert_eq!(schema, &json!({ "type": ["string", "null"] }), "{place}");
            assert!(value.is_string() || value.is_null(), "{place}");
        }
        other => panic!("{place}: {other:?}"),
    }
}

/// A question with a long and a short field.
fn edit_request() -> crate::proposer::ProposalRequest {
    let mut request = request();
    request.question.base.insert("style/tone".into(), "Be kind.\nBe brief.".into());
    request.question.components.push("style/tone".into());
    request.question.edit_fields = vec!["style/tone".into()];
    request
}

#[test]
fn edits_are_in_the_example_and_the_schema_if_they_are_asked_for() {
    let plain = example(&request());
    assert_eq!(plain["proposals"][0].get("edits"), None);
    let request = edit_request();
    let example = example(&request);
    let payload = json!({ "instructions": "the whole new text of this field", "style/tone": null });
    assert_eq!(example["proposals"][0]["proposed_payload"], payload);
    let found = read(&example.to_string(), &request, &Redactor::default());
    assert_eq!((found.proposals.len(), found.problems.len()), (1, 0), "{found:?}");
    let operations: Vec<&str> =
        found.proposals[0].edits["style/tone"].iter().map(|edit| edit.operation.as_str()).collect();
    assert_eq!(operations, EditOperation::NAMES);
    assert_eq!(found.proposals[0].fields.len(), 1);
    let schema = schema(&request);
    keeps_to(&schema, &example, "");
    let place = "/properties/proposals/items/properties/edits/properties/style~1tone/items/properties/operation";
    assert_eq!(schema.pointer(place).unwrap(), &json!({ "type": "string", "enum": EditOperation::NAMES }));
    // A whole text has the same schema.
    let mut whole = example.clone();
    whole["proposals"][0]["proposed_payload"]["style/tone"] = "new".into();
    whole["proposals"][0]["edits"]["style/tone"] = json!([]);
    keeps_to(&schema, &whole, "");
    let found = read(&whole.to_string(), &request, &Redactor::default());
    assert_eq!((found.proposals[0].fields["style/tone"].as_str(), found.proposals[0].edits.len()), ("new", 0));
}

#[test]
fn edits_are_read_from_every_supported_form() {
    let wanted = vec![Edit { operation: EditOperation::Replace, find: "briefly".into(), text: "well".into() }];
    for entry in [
        json!({ "edits": { "instructions": [{ "operation": "replace", "find": "briefly", "text": "well" }] } }),
        json!({ "edits": { "instructions": [{ "operation": "Replace", "find": "briefly", "text": "well" }], "x": null } }),
        json!({ "edits": { "instructions": [{ "find": "briefly", "replace": "well" }] }, "proposed_payload": {} }),
        json!({ "edits": [{ "operation": "replace", "find": "briefly", "text": "well" }] }),
        json!({ "edits": [{ "field": "instructions", "operation": "replace", "find": "briefly", "text": "well" }] }),
        json!({ "edits": { "instructions": [{ "operation": "replace", "find": "briefly", "text": "well" }] },
                "proposed_payload": { "instructions": null } }),
        // An empty text beside edits is no text.
        json!({ "edits": { "instructions": [{ "operation": "replace", "find": "briefly", "text": "well" }] },
                "proposed_payload": { "instructions": "" } }),
    ] {
        let found = found(&manifest(entry.clone()));
        assert_eq!(problems(&found), [], "{entry}");
        assert_eq!(found.proposals[0].edits, [("instructions".to_owned(), wanted.clone())].into(), "{entry}");
        assert!(found.proposals[0].fields.is_empty(), "{entry}");
    }
    // Both are kept, so that the engine refuses them.
    let both = found(&manifest(json!({
        "proposed_payload": { "instructions": "new" }, "edits": { "instructions": [{ "operation": "append", "text": "x" }] },
    })));
    assert_eq!((both.proposals[0].fields.len(), both.proposals[0].edits.len()), (1, 1));
    // A field may be named like this.
    let mut named = request();
    named.question.base.insert("edits".into(), "old".into());
    let found = read(&manifest(json!({ "edits": "new" })), &named, &Redactor::default());
    assert_eq!((found.proposals[0].fields["edits"].as_str(), found.proposals[0].edits.len()), ("new", 0));
}

#[test]
fn a_wrong_edit_is_reported_with_its_path() {
    let append = json!({ "operation": "append", "text": "x" });
    for (edits, place, message) in [
        (json!("append x"), "edits", "is \"append x\", not an object with a list of edits by field"),
        (json!({ "instructions": append }), "edits.instructions", "not a list"),
        (json!({ "instructions": ["x"] }), "edits.instructions[0]", "is \"x\", not an object"),
        (json!({ "instructions": [append, { "text": "x" }] }), "edits.instructions[1].operation", "is missing"),
        (
            json!({ "instructions": [{ "operation": "move", "text": "x" }] }),
            "edits.instructions[0].operation",
            "is \"move\", not one of replace, insert_after, append, delete",
        ),
        (
            json!({ "instructions": [{ "operation": "delete", "find": 7 }] }),
            "edits.instructions[0].find",
            "is 7, not a text",
        ),
        (json!([{ "operation": "append", "text": "x", "field": 7 }]), "edits[0].field", "is 7, not a text"),
        (
            json!({ "instructions": vec![append.clone(); MAX_EDITS + 1] }),
            "edits",
            "has 257 edits; at most 256 are allowed",
        ),
    ] {
        let found = found(&manifest(json!({ "edits": edits })));
        assert_eq!(problems(&found), [("manifest_invalid", format!("proposals[0].{place}").as_str())], "{found:?}");
        assert!(found.problems[0].message.ends_with(message), "{found:?}");
    }
    let two = read(&manifest(json!({ "edits": [append] })), &edit_request(), &Redactor::default());
    assert_eq!(problems(&two), [("manifest_invalid", "proposals[0].edits[0].field")]);
    assert_eq!(
        problems(&found(&manifest(json!({ "edits": {} })))),
        [("manifest_invalid", "proposals[0].proposed_payload")]
    );
}

#[test]
fn edits_that_write_a_new_key_are_rejected_and_not_repeated() {
    const KEY: &str = "sk-canary0123456789abcdef";
    let (start, end) = KEY.split_at(9);
    let halves = json!([
        { "operation": "append", "text": format!("{start}X") },
        { "operation": "replace", "find": format!("{start}X"), "text": format!("{start}Y") },
        { "operation": "replace", "find": "Y", "text": end },
    ]);
    for edits in [
        json!([{ "operation": "append", "text": format!("Say {KEY}.") }]),
        json!([{ "operation": "delete", "find": KEY }]),
        halves,
    ] {
        let refused = found(&manifest(json!({ "edits": { "instructions": edits } })));
        assert_eq!(problems(&refused), [("manifest_invalid", "proposals[0].edits.instructions")]);
        assert!(refused.proposals.is_empty() && !format!("{refused:?}").contains("0123456789"));
    }
    // What the parent already holds is its author's own.
    let mut request = request();
    request.question.base.insert("instructions".into(), format!("Never say {KEY}."));
    let answer =
        manifest(json!({ "edits": { "instructions": [{ "operation": "delete", "find": format!(" {KEY}") }] } }));
    assert_eq!(read(&answer, &request, &Redactor::default()).proposals.len(), 1);
}

#[test]
fn texts_are_read_from_every_supported_location() {
    for entry in [
        json!({ "proposed_payload": { "instructions": "new" }, "rationale": "why" }),
        json!({ "candidate": { "instructions": "new" }, "rationale": "why" }),
        json!({ "instructions": "new", "rationale": "why" }),
    ] {
        let found = found(&manifest(entry));
        assert_eq!((texts(&found), problems(&found)), (vec!["new"], vec![]));
        assert_eq!(found.proposals[0].rationale, "why");
    }
    let kept = found(&manifest(json!({ "proposed_payload": { "instructions": "new", "style": null } })));
    assert_eq!(kept.proposals[0].fields.len(), 1);
}

#[test]
fn a_manifest_is_found_in_other_text() {
    let inner = manifest(json!({ "instructions": "new" }));
    for answer in [
        format!("\n {inner} \n"),
        format!("```json\n{inner}\n```"),
        format!("```\n{inner}\n```"),
        format!("First an example:\n```json\n{{\"x\": 1}}\n```\nNow:\n```json\n{inner}\n```"),
        format!("I thought of {{this}} and {{\"that\": 1}}, and then: {inner}. Good?"),
        format!("```json\n{inner}\n"),
    ] {
        assert_eq!(texts(&found(&answer)), ["new"], "{answer}");
    }
}

#[test]
fn an_answer_without_a_manifest_is_reported_with_its_beginning() {
    assert_eq!(problems(&found("")), [("manifest_unreadable", "")]);
    assert!(found(" \n ").problems[0].message.contains("is empty"));
    let prose = found(&format!("I am sorry, sk-canary0123456789 {}", "x".repeat(999)));
    assert_eq!(problems(&prose), [("manifest_unreadable", "")]);
    let message = &prose.problems[0].message;
    assert!(message.contains("I am sorry") && !message.contains("canary") && message.len() < 300, "{message}");
    for answer in ["[]", "null", "7", "{", "{\"proposals\": ["] {
        assert_eq!(problems(&found(answer)), [("manifest_unreadable", "")], "{answer}");
    }
}

#[test]
fn every_problem_is_reported_with_its_path() {
    let answer = json!({
        "schema_version": "v1",
        "proposals": [7, {}, { "proposed_payload": [] }, { "candidate": { "instructions": 3 } }, { "instructions": "good" }],
    });
    let mut two = request();
    two.question.proposal_count = 2;
    let found = read(&answer.to_string(), &two, &Redactor::default());
    assert_eq!(texts(&found), ["good"]);
    let places: Vec<&str> = problems(&found).into_iter().map(|(_, place)| place).collect();
    assert_eq!(
        places,
        [
            "schema_version",
            "proposals[0]",
            "proposals[1].proposed_payload",
            "proposals[2].proposed_payload",
            "proposals[3].candidate.instructions"
        ]
    );
    for (answer, message) in [
        (json!({}), "is missing"),
        (json!({ "proposals": {} }), "is {}, not a list"),
        (json!({ "proposals": [] }), "is empty"),
    ] {
        let found = read(&answer.to_string(), &request(), &Redactor::default());
        assert_eq!((problems(&found)[0].1, found.problems[0].message.as_str()), ("proposals", message));
    }
}

#[test]
fn hostile_answers_are_parsed_in_bounded_time() {
    // Reading them again from every brace would take hours.
    let braces = "{".repeat(1_000_000);
    let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    let late = format!("{}{}", "{ ".repeat(MAX_OBJECT_STARTS * 2), manifest(json!({ "instructions": "new" })));
    for answer in [braces.as_str(), &deep, &late, &"```".repeat(100_000), &"[".repeat(500_000)] {
        assert_eq!(problems(&found(answer)), [("manifest_unreadable", "")]);
    }
}

#[test]
fn a_text_with_a_new_key_is_rejected_and_not_repeated() {
    const KEY: &str = "sk-canary0123456789abcdef";
    let answer = manifest(json!({ "proposed_payload": { "instructions": format!("Say `{KEY}`.") } }));
    let refused = found(&answer);
    assert_eq!(problems(&refused), [("manifest_invalid", "proposals[0].instructions")]);
    assert!(refused.proposals.is_empty() && !format!("{refused:?}").contains("canary"));
    // What the parent already holds is its author's own.
    let mut request = request();
    request.question.base.insert("instructions".into(), format!("Never say {KEY}."));
    assert_eq!(read(&answer, &request, &Redactor::default()).proposals.len(), 1);
}

#[test]
fn a_known_key_is_hidden_however_it_is_written() {
    let redactor = Redactor::new([Secret::new("canary-key")]);
    let answer = r#"{"proposals": [{"proposed_payload": {"instructions": "say \u0063anary-key"},
                     "rationale": "c\u0061nary-key", "x": 1}], "note": "canary\u002dkey"}"#;
    let found = read(answer, &request(), &redactor);
    assert_eq!(texts(&found), ["say [hidden]"]);
    assert_eq!(found.proposals[0].rationale, "[hidden]");
}

#[test]
fn many_invalid_entries_are_summarized() {
    let answer = json!({ "proposals": vec![1; 100_000] }).to_string();
    let found = found(&answer);
    assert!(found.problems.len() <= 20, "{}", found.problems.len());
    assert!(found.problems.last().unwrap().message.contains("more entries"), "{:?}", found.problems.last());
}

#[test]
fn an_invalid_entry_is_ignored_if_enough_entries_are_valid() {
    let answer = json!({ "proposals": [7, { "proposed_payload": { "instructions": "Be brief." } }] }).to_string();
    let found = found(&answer);
    assert_eq!((texts(&found), found.problems.len()), (vec!["Be brief."], 0));
}

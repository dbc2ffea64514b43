//! Tests of edits: what each operation does to a text, and which edits are refused.

use serde_json::json;

use crate::model::answer::Proposal;
use crate::model::ids::Payload;

use super::{Edit, EditCause, EditFault, EditOperation, MAX_COUNTED, MAX_FAULTS, lay_over};

const PROMPT: &str = "# Rules\n- Be brief.\n- Be kind.\n\nAnswer {question}.\n";

fn edit(operation: &str, find: &str, text: &str) -> Edit {
    Edit { operation: EditOperation::parse(operation).unwrap(), find: find.into(), text: text.into() }
}

fn laid(base: &str, edits: &[(&str, &str, &str)]) -> Result<String, Vec<EditFault>> {
    lay_over(base, &edits.iter().map(|(operation, find, text)| edit(operation, find, text)).collect::<Vec<_>>())
}

/// Returns the cause of the only fault.
fn cause(base: &str, edits: &[(&str, &str, &str)]) -> EditCause {
    let faults = laid(base, edits).unwrap_err();
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults[0].cause.clone()
}

#[test]
fn every_operation_changes_exactly_its_place() {
    let cases = [
        (("replace", "- Be kind.", "- Be polite."), "# Rules\n- Be brief.\n- Be polite.\n\nAnswer {question}.\n"),
        // A place within a line, and one across lines.
        (("replace", "kind", "fair"), "# Rules\n- Be brief.\n- Be fair.\n\nAnswer {question}.\n"),
        (("replace", "brief.\n- Be kind.", "brief."), "# Rules\n- Be brief.\n\nAnswer {question}.\n"),
        (
            ("insert_after", "# Rules", "- Be fair."),
            "# Rules\n- Be fair.\n- Be brief.\n- Be kind.\n\nAnswer {question}.\n",
        ),
        // Lines are added below the line of the match, wherever the match ends in it.
        (("insert_after", "Be br", "- A\n- B"), "# Rules\n- Be brief.\n- A\n- B\n- Be kind.\n\nAnswer {question}.\n"),
        (("insert_after", "# Rules\n", "- A"), "# Rules\n- A\n- Be brief.\n- Be kind.\n\nAnswer {question}.\n"),
        (("insert_after", "{question}", "Now."), "# Rules\n- Be brief.\n- Be kind.\n\nAnswer {question}.\nNow.\n"),
        (("append", "", "Stop."), "# Rules\n- Be brief.\n- Be kind.\n\nAnswer {question}.\nStop.\n"),
        // A deleted line takes its line break with it; a deleted part of a line does not.
        (("delete", "- Be kind.", ""), "# Rules\n- Be brief.\n\nAnswer {question}.\n"),
        (("delete", "- Be kind.\n", ""), "# Rules\n- Be brief.\n\nAnswer {question}.\n"),
        (("delete", "- Be brief.\n- Be kind.", ""), "# Rules\n\nAnswer {question}.\n"),
        (("delete", " {question}", ""), "# Rules\n- Be brief.\n- Be kind.\n\nAnswer.\n"),
        (("delete", "kind.", ""), "# Rules\n- Be brief.\n- Be \n\nAnswer {question}.\n"),
        (("replace", "- Be kind.", ""), "# Rules\n- Be brief.\n\nAnswer {question}.\n"),
    ];
    for (one, expected) in cases {
        assert_eq!(laid(PROMPT, &[one]).unwrap(), expected, "{one:?}");
    }
}

#[test]
fn the_end_of_the_text_keeps_its_form() {
    assert_eq!(laid("a\nb", &[("append", "", "c")]).unwrap(), "a\nb\nc");
    assert_eq!(laid("a\nb\n", &[("append", "", "c")]).unwrap(), "a\nb\nc\n");
    assert_eq!(laid("", &[("append", "", "c")]).unwrap(), "c");
    assert_eq!(laid("a\nb", &[("insert_after", "b", "c")]).unwrap(), "a\nb\nc");
    assert_eq!(laid("a\nb", &[("delete", "b", "")]).unwrap(), "a");
    assert_eq!(laid("a", &[("delete", "a", "")]).unwrap(), "");
    // The last added line may have its line break or not.
    for text in ["c", "c\n"] {
        assert_eq!(laid("a\nb\n", &[("append", "", text)]).unwrap(), "a\nb\nc\n", "{text:?}");
        assert_eq!(laid("a\nb\n", &[("insert_after", "a", text)]).unwrap(), "a\nc\nb\n", "{text:?}");
    }
    assert_eq!(laid("a\n", &[]).unwrap(), "a\n");
}

#[test]
fn a_line_break_before_added_lines_is_an_empty_line() {
    // Models begin a new paragraph in this way.
    for text in ["\nc", "\nc\n"] {
        assert_eq!(laid("a\nb\n", &[("append", "", text)]).unwrap(), "a\nb\n\nc\n", "{text:?}");
        assert_eq!(laid("a\n\nb\n", &[("insert_after", "a", text)]).unwrap(), "a\n\nc\n\nb\n", "{text:?}");
        assert_eq!(laid("a\n\nb\n", &[("insert_after", "a\n", text)]).unwrap(), "a\n\nc\n\nb\n", "{text:?}");
    }
    assert_eq!(laid("a\r\nb\r\n", &[("insert_after", "a", "\nc")]).unwrap(), "a\r\n\r\nc\r\nb\r\n");
}

#[test]
fn edits_apply_in_order_to_the_result_of_those_before() {
    let edits = [
        ("replace", "- Be kind.", "- Be polite."),
        ("insert_after", "- Be polite.", "- Be fair."),
        ("delete", "- Be brief.", ""),
        ("append", "", "- Be fair to all."),
    ];
    assert_eq!(
        laid(PROMPT, &edits).unwrap(),
        "# Rules\n- Be polite.\n- Be fair.\n\nAnswer {question}.\n- Be fair to all.\n"
    );
    // In another order, the new line is not there yet.
    let swapped = [edits[1], edits[0]];
    assert!(matches!(cause(PROMPT, &swapped), EditCause::NotFound { .. }));
    // A deletion makes a place unique, and an insertion makes it ambiguous.
    assert_eq!(laid("x 1\nx 2", &[("delete", "x 1", ""), ("replace", "x", "y")]).unwrap(), "y 2");
    assert_eq!(cause("x 1", &[("append", "", "x 2"), ("replace", "x", "y")]), EditCause::Ambiguous { count: 2 });
}

#[test]
fn a_place_must_occur_once() {
    assert_eq!(cause(PROMPT, &[("replace", "- Be", "- Stay")]), EditCause::Ambiguous { count: 2 });
    // Occurrences that overlap are two places.
    assert_eq!(cause("aaa", &[("replace", "aa", "b")]), EditCause::Ambiguous { count: 2 });
    assert_eq!(cause("ééé", &[("delete", "éé", "")]), EditCause::Ambiguous { count: 2 });
    assert_eq!(cause(&"a".repeat(5000), &[("delete", "a", "")]), EditCause::Ambiguous { count: MAX_COUNTED });
    // Upper and lower case differ, and so do spaces.
    for find in ["- be kind.", "- Be  kind.", "Be kind. "] {
        assert!(laid(PROMPT, &[("replace", find, "x")]).is_err(), "{find}");
    }
}

#[test]
fn a_missing_place_is_explained() {
    let nearest = |find: &str| match cause(PROMPT, &[("replace", find, "x")]) {
        EditCause::NotFound { nearest } => nearest,
        other => panic!("{other:?}"),
    };
    assert_eq!(nearest("- be kinder.").as_deref(), Some("- Be kind."));
    assert_eq!(nearest("Answer the {question}!").as_deref(), Some("Answer {question}."));
    assert_eq!(nearest("Zürich").as_deref(), None);
    // The first line that is missing decides.
    assert_eq!(nearest("# Rules\n- Be briefer.").as_deref(), Some("- Be brief."));
    for find in ["- Be kind.\n- Be brief.", "# Rules\n\n- Be brief.", "  - Be kind."] {
        assert_eq!(cause(PROMPT, &[("replace", find, "x")]), EditCause::NotTogether, "{find:?}");
    }
    let twice = [("delete", "- Be kind.", ""), ("replace", "- Be kind.", "- Be fair.")];
    assert_eq!(cause(PROMPT, &twice), EditCause::ChangedBefore);
    // A long line is compared sentence by sentence.
    let long = format!("{} Name the colour first. {}", "Read all of it. ".repeat(10), "Then stop. ".repeat(10));
    let EditCause::NotFound { nearest } = cause(&long, &[("replace", "Name the colors first.", "x")]) else { panic!() };
    assert_eq!(nearest.as_deref(), Some("Name the colour first."));
}

#[test]
fn empty_parts_are_refused() {
    for operation in ["replace", "insert_after", "delete"] {
        assert_eq!(cause(PROMPT, &[(operation, "", "x")]), EditCause::EmptyFind, "{operation}");
    }
    for (operation, find) in [("insert_after", "# Rules"), ("append", "")] {
        for text in ["", "\n", " \n "] {
            assert_eq!(cause(PROMPT, &[(operation, find, text)]), EditCause::EmptyText, "{operation} {text:?}");
        }
    }
    // An end needs no place.
    assert!(laid(PROMPT, &[("append", "is not read", "x")]).is_ok());
}

#[test]
fn every_faulty_edit_is_reported() {
    let edits = [("replace", "nowhere", "x"), ("delete", "- Be kind.", ""), ("append", "", ""), ("delete", "Be", "")];
    let faults = laid(PROMPT, &edits).unwrap_err();
    let found: Vec<_> = faults.iter().map(|fault| (fault.number, fault.operation.as_str())).collect();
    // The second edit left one "Be", so the fourth applies.
    assert_eq!(found, [(1, "replace"), (3, "append")]);
    assert_eq!(faults[0].find, "nowhere");
    assert_eq!(laid(PROMPT, &[("delete", "x", ""); 50]).unwrap_err().len(), MAX_FAULTS);
}

#[test]
fn line_breaks_are_those_of_the_text() {
    let windows = PROMPT.replace('\n', "\r\n");
    let edits = [
        ("replace", "brief.\n- Be kind.", "brief.\n- Be fair."),
        ("insert_after", "# Rules", "- A\n- B"),
        ("delete", "- Be fair.", ""),
        ("append", "", "Stop."),
    ];
    let expected = "# Rules\n- A\n- B\n- Be brief.\n\nAnswer {question}.\nStop.\n";
    assert_eq!(laid(&windows, &edits).unwrap(), expected.replace('\n', "\r\n"));
    assert_eq!(laid(PROMPT, &edits).unwrap(), expected);
    let foreign = [("replace", "brief.\r\n- Be kind.", "fair.\r\n- Be true.")];
    assert_eq!(laid(PROMPT, &foreign).unwrap(), PROMPT.replace("brief", "fair").replace("kind", "true"));
    assert_eq!(laid("a\r\nb", &[("delete", "b", "")]).unwrap(), "a");
    // A text that mixes them is taken as it is.
    assert_eq!(laid("a\r\nb\nc", &[("replace", "b\nc", "d")]).unwrap(), "a\r\nd");
    assert_eq!(cause("a\r\nb\nc", &[("replace", "a\nb", "d")]), EditCause::NotTogether);
}

#[test]
fn characters_of_any_length_are_found_and_kept() {
    let base = "規則：\n・短く答える。\n・丁寧に。\n🙂 Émile naïve\n";
    let edits = [("replace", "丁寧", "正確"), ("insert_after", "🙂", "👍🏽 ok"), ("delete", "・短く答える。", "")];
    assert_eq!(laid(base, &edits).unwrap(), "規則：\n・正確に。\n🙂 Émile naïve\n👍🏽 ok\n");
    let EditCause::NotFound { nearest } = cause(base, &[("delete", "・短く答えてください。", "")]) else {
        panic!()
    };
    assert_eq!(nearest.as_deref(), Some("・短く答える。"));
    // A composed and a decomposed letter are different characters.
    assert!(laid(base, &[("delete", "E\u{301}mile", "")]).is_err());
}

#[test]
fn an_edit_is_stored_without_its_empty_parts() {
    for (one, stored) in [
        (edit("append", "", "x"), json!({ "operation": "append", "text": "x" })),
        (edit("delete", "x", ""), json!({ "operation": "delete", "find": "x" })),
        (edit("insert_after", "x", "y"), json!({ "operation": "insert_after", "find": "x", "text": "y" })),
    ] {
        assert_eq!(json!(one), stored);
        assert_eq!(serde_json::from_value::<Edit>(stored).unwrap(), one);
    }
}

#[test]
fn a_proposal_without_edits_is_stored_as_before_and_old_ones_are_read() {
    let old = json!({ "fields": { "prompt": "new" }, "rationale": "why" });
    let proposal: Proposal = serde_json::from_value(old.clone()).unwrap();
    assert_eq!(proposal.fields, Payload::from([("prompt".to_owned(), "new".to_owned())]));
    assert!(proposal.edits.is_empty());
    assert_eq!(serde_json::to_string(&proposal).unwrap(), old.to_string());
    let edited = Proposal { edits: [("prompt".to_owned(), vec![edit("append", "", "x")])].into(), ..proposal };
    let stored = serde_json::to_value(&edited).unwrap();
    assert_eq!(stored["edits"], json!({ "prompt": [{ "operation": "append", "text": "x" }] }));
    assert_eq!(serde_json::from_value::<Proposal>(stored).unwrap(), edited);
}

use serde_json::json;

use super::{GuardRow, candidate_tokens, estimated_tokens, text_problem};
use crate::model::ids::Payload;

#[test]
fn tokens_are_a_quarter_of_the_characters_of_all_targets_rounded_up() {
    assert_eq!([0, 1, 4, 5, 8].map(estimated_tokens), [0, 1, 1, 2, 2]);
    let texts = [("a", "12345"), ("b", "éééé"), ("fixed", "not a target")];
    let payload: Payload = texts.iter().map(|(field, text)| ((*field).to_owned(), (*text).to_owned())).collect();
    let targets = ["a", "b", "missing"].map(str::to_owned);
    assert_eq!(candidate_tokens(&payload, &targets), 3, "9 characters of two texts");
}

#[test]
fn guarded_rows_are_texts_or_whole_numbers() {
    assert_eq!(GuardRow::read(&json!("train:3")), Some(GuardRow::Id("train:3".into())));
    assert_eq!(GuardRow::read(&json!(3)), Some(GuardRow::Number(3)));
    for wrong in [json!(3.5), json!(true), json!(null), json!(["a"]), json!({})] {
        assert_eq!(GuardRow::read(&wrong), None, "{wrong}");
    }
}

#[test]
fn a_text_problem_names_line_and_length() {
    assert_eq!(text_problem("Use\tshort words.\r\n", 100), None);
    let problem = |text: &str, most| text_problem(text, most).map(|(_, problem, _)| problem);
    assert_eq!(problem(" \n", 100).as_deref(), Some("is blank"));
    assert_eq!(
        problem("one\ntwo\u{1b}[0m", 100).as_deref(),
        Some("contains the control character U+001B in line 2 of its text")
    );
    assert_eq!(problem("éé", 1).as_deref(), Some("has 2 characters"));
}

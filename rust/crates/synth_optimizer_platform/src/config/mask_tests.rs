//! Blanking on small texts, valid and broken.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Syntax, mask};
use crate::config::tree::Node;

/// The scan on its own, without what the tree knows.
fn scanned(text: &str) -> String {
    mask(text, &Node::from_toml("").0, Syntax::Valid)
}

#[test]
fn only_secrets_are_blanked_and_nothing_moves() {
    let text =
        "a = 1 # fine\napi_key = \"xyz\" # why\nb = { token = 'xyz', c = 2 }\nd = [\"--password\", \"xyz\", \"e\"]\n";
    let shown =
        "a = 1 # fine\napi_key = ***** *****\nb = { token = *****, c = 2 }\nd = [\"--password\", \"***\", \"e\"]\n";
    assert_eq!(scanned(text), shown);
}

#[test]
fn secrets_over_several_lines_are_blanked_to_their_end() {
    let text = "secret = \"\"\"\none\ntwo\"\"\"\nb = 1\npassword = [\n 'x',\n]\nc = 1\n";
    let shown = "secret = ***\n***\n******\nb = 1\npassword = [\n ***,\n]\nc = 1\n";
    assert_eq!(scanned(text), shown);
}

#[test]
fn an_unclosed_secret_has_no_end() {
    assert_eq!(scanned("api_key = \"one\ntwo\nthree = 1\n"), "api_key = ****\n***\n*********\n");
}

#[test]
fn a_section_can_be_secret() {
    assert_eq!(scanned("[a.token]\nx = 1\n[b]\ny = 2\n"), "[a.token]\nx = *\n[b]\ny = 2\n");
}

#[test]
fn a_broken_text_is_hidden_after_the_name_of_a_credential() {
    let text = "api_key = a]b\nmax_tokens = 5\n";
    assert_eq!(mask(text, &Node::from_toml("").0, Syntax::Broken), "api_key *****\nmax_tokens = 5\n");
}

//! Tests of masked excerpts of small files, valid and broken.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{mask, outline};
use crate::config::tree::Node;

fn masked(text: &str) -> String {
    let (tree, errors) = Node::from_toml(text);
    assert_eq!(errors, []);
    mask(text, &tree)
}

#[test]
fn only_secrets_and_comments_are_hidden_and_positions_stay() {
    let text =
        "a = 1 # fine\napi_key = \"xyz\" # why\nb = { token = 'xyz', c = 2 }\nd = [\"--password\", \"xyz\", \"#e\"]\n";
    let shown =
        "a = 1       \napi_key = *****      \nb = { token = *****, c = 2 }\nd = [\"--password\", *****, \"#e\"]\n";
    assert_eq!(masked(text), shown);
}

#[test]
fn comments_are_always_hidden() {
    assert_eq!(masked("a = \"bearer\" #abcdef1234 hunter2\n"), "a = \"bearer\"                    \n");
}

#[test]
fn secrets_over_several_lines_are_hidden_to_their_end() {
    let text = "secret = \"\"\"\none\ntwo\"\"\"\nb = 1\npassword = [\n 'x', # y\n]\nc = 'é'\n";
    let shown = "secret = ***\n***\n******\nb = 1\npassword = [\n ***,    \n]\nc = 'é'\n";
    assert_eq!(masked(text), shown);
}

#[test]
fn a_section_can_be_secret_and_so_can_a_name() {
    assert_eq!(masked("[a.token]\nx = 1\n[b]\ny = 2\n"), "[a.token]\nx = *\n[b]\ny = 2\n");
    assert_eq!(
        masked("\"api\\u005fkey\" = 'x'\nurl = \"http://a b@c\"\n"),
        "\"api\\u005fkey\" = ***\nurl = **************\n"
    );
    assert!(!masked("[a.\"sk-live-Q7w9ZxK2mB4vN8cT1rY6\"]\n[a.\"sk-live-Q7w9ZxK2mB4vN8cT1rY6\".b]\n").contains("Q7w9"));
}

#[test]
fn a_broken_file_shows_the_names_of_fields_and_no_value() {
    let text = "[gepa\nmax_generations = 2\n  seed \"run\"\nmode: x\napi_key = run\nrun hunter2\n";
    let shown = "[gepa\nmax_generations = *\n  seed *****\nmode* *\n******* * ***\nrun *******\n";
    assert_eq!(outline(text), shown);
}

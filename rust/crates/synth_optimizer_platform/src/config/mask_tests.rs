#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::mask;

#[test]
fn only_secrets_are_blanked_and_nothing_moves() {
    let text =
        "a = 1 # fine\napi_key = \"xyz\" # why\nb = { token = 'xyz', c = 2 }\nd = [\"--password\", \"xyz\", \"e\"]\n";
    let shown =
        "a = 1 # fine\napi_key = ***** *****\nb = { token = *****, c = 2 }\nd = [\"--password\", \"***\", \"e\"]\n";
    assert_eq!(mask(text, None), shown);
}

#[test]
fn secrets_over_several_lines_are_blanked_to_their_end() {
    let text = "secret = \"\"\"\none\ntwo\"\"\"\nb = 1\npassword = [\n 'x',\n]\nc = 1\n";
    let shown = "secret = ***\n***\n******\nb = 1\npassword = [\n ***,\n]\nc = 1\n";
    assert_eq!(mask(text, None), shown);
}

#[test]
fn an_unclosed_secret_has_no_end() {
    assert_eq!(mask("api_key = \"one\ntwo\nthree = 1\n", None), "api_key = ****\n***\n*********\n");
}

#[test]
fn a_section_can_be_secret() {
    assert_eq!(mask("[a.token]\nx = 1\n[b]\ny = 2\n", None), "[a.token]\nx = *\n[b]\ny = 2\n");
}

//! Names that count as credentials in task data and in settings.

use serde_json::json;

use super::{find_credential, find_credential_setting};

#[test]
fn the_place_of_a_credential_is_named() {
    let row = json!({"text": "a", "tools": [{}, {"env": {"OPENAI-API-KEY": "x"}}]});
    assert_eq!(find_credential("row", &row).as_deref(), Some("row.tools[1].env.OPENAI-API-KEY"));
    let pasted = json!({"token": "sk-12345678901234567890"});
    assert_eq!(find_credential("row", &pasted).as_deref(), Some("row.token"));
}

#[test]
fn columns_of_a_task_are_no_credentials() {
    let row = json!({"answer_key": "B", "token": "the", "secret_word": "tree", "api_key": "", "apikey": null});
    assert_eq!(find_credential("row", &row), None);
    assert_eq!(find_credential_setting("policy.config", &row).as_deref(), Some("policy.config.answer_key"));
    assert_eq!(find_credential_setting("policy.config", &json!({"max_tokens": 5, "api_key": ""})), None);
}

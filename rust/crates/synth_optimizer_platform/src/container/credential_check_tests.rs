//! Names that count as credentials in task data and in settings.

use serde_json::json;

use super::{find_credential, find_credential_setting};

#[test]
fn the_path_of_a_credential_is_returned() {
    let row = json!({"text": "a", "tools": [{}, {"env": {"OPENAI-API-KEY": "x"}}]});
    assert_eq!(find_credential("row", &row).as_deref(), Some("row.tools[1].env.OPENAI-API-KEY"));
    let pasted = json!({"token": "sk-12345678901234567890"});
    assert_eq!(find_credential("row", &pasted).as_deref(), Some("row.token"));
}

#[test]
fn task_columns_with_credential_like_names_are_allowed() {
    let row = json!({"answer_key": "B", "token": "the", "secret_word": "tree", "api_key": "", "apikey": null});
    assert_eq!(find_credential("row", &row), None);
    assert_eq!(find_credential_setting("policy.config", &row).as_deref(), Some("policy.config.answer_key"));
    assert_eq!(find_credential_setting("policy.config", &json!({"max_tokens": 5, "api_key": ""})), None);
}

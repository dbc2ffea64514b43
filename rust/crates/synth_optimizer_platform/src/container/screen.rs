//! Refuses to send or keep what looks like a credential: the container owns its keys, a run never holds one.

use serde_json::Value;

use synth_optimizer_core::secrets::{is_credential_name, looks_like_key};

/// The place of the first text in a value that stands under the name of a credential.
///
/// Data of a task has columns like `answer_key` and `token`, which are refused only if their value looks like a key. The
/// names that strict containers refuse in a policy are refused everywhere, whatever their value.
pub(super) fn credential_place(root: &str, value: &Value) -> Option<String> {
    find(root, value, &|name, text| is_refused_name(name) || (is_credential_name(name) && looks_like_key(text)))
}

/// The same for settings, where every name of a credential is refused.
pub(super) fn credential_setting(root: &str, value: &Value) -> Option<String> {
    find(root, value, &|name, _| is_credential_name(name))
}

/// Depth first.
fn find(place: &str, value: &Value, is_bad: &dyn Fn(&str, &str) -> bool) -> Option<String> {
    match value {
        Value::Object(entries) => entries.iter().find_map(|(name, entry)| {
            let place = format!("{place}.{name}");
            let bad = entry.as_str().is_some_and(|text| !text.trim().is_empty() && is_bad(name, text));
            if bad { Some(place) } else { find(&place, entry, is_bad) }
        }),
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| find(&format!("{place}[{index}]"), item, is_bad))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// The names that containers of the contract refuse; case and dashes do not matter.
fn is_refused_name(name: &str) -> bool {
    let folded = name.trim().to_lowercase().replace('-', "_");
    matches!(folded.as_str(), "access_token" | "api_key" | "apikey" | "authorization" | "bearer_token" | "secret_key")
        || folded.ends_with("_api_key")
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;

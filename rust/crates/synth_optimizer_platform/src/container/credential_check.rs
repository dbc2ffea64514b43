//! Finds credentials in rows, texts and settings. The container owns its keys; a run must neither send nor store one.

use serde_json::Value;

use synth_optimizer_core::secrets::{is_credential_name, looks_like_key};

/// Returns the path of the first credential in the data of a task.
///
/// Task data has columns like `answer_key` and `token`, which count only if their value looks like a key. Names that
/// strict containers reject in a policy always count.
pub(super) fn find_credential(root: &str, value: &Value) -> Option<String> {
    find(root, value, &|name, text| is_refused_name(name) || (is_credential_name(name) && looks_like_key(text)))
}

/// Returns the path of the first credential in settings, where every credential name counts.
pub(super) fn find_credential_setting(root: &str, value: &Value) -> Option<String> {
    find(root, value, &|name, _| is_credential_name(name))
}

/// Searches depth first.
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

/// Returns whether containers reject this name in a policy. Ignores case and treats dashes as underscores.
fn is_refused_name(name: &str) -> bool {
    let folded = name.trim().to_lowercase().replace('-', "_");
    matches!(folded.as_str(), "access_token" | "api_key" | "apikey" | "authorization" | "bearer_token" | "secret_key")
        || folded.ends_with("_api_key")
}

#[cfg(test)]
#[path = "credential_check_tests.rs"]
mod tests;

//! Writes a configuration as TOML that reads back as the same configuration.

use serde_json::Value;

use super::sections::Config;
use super::tree::join;

/// The whole configuration, defaults included.
pub fn to_toml(config: &Config) -> String {
    let mut text = String::new();
    // Every section is a map with text keys, so the conversion has nothing to refuse.
    if let Ok(Value::Object(root)) = serde_json::to_value(config) {
        table(&root, "", &mut text);
    }
    text
}

/// A key as TOML writes it: bare where it can be.
pub(super) fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { name.to_owned() } else { string(name) }
}

/// A value on one line, as TOML writes it.
pub(super) fn inline(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float:?}"),
            _ => number.to_string(),
        },
        Value::String(text) => string(text),
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) if entries.is_empty() => "{}".to_owned(),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(name, value)| format!("{} = {}", key(name), inline(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

fn table(entries: &serde_json::Map<String, Value>, path: &str, text: &mut String) {
    // A table's own values must come before its first sub-table.
    let (tables, values): (Vec<_>, Vec<_>) =
        entries.iter().filter(|(_, value)| !value.is_null()).partition(|(_, value)| value.is_object());
    let has_header = !values.is_empty() || tables.is_empty();
    if has_header && !path.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("[{path}]\n"));
    }
    for (name, value) in values {
        text.push_str(&format!("{} = {}\n", key(name), inline(value)));
    }
    for (name, value) in tables {
        if let Value::Object(entries) = value {
            table(entries, &join(path, name), text);
        }
    }
}

/// A basic string: the escapes of JSON are those of TOML, which also wants DEL escaped.
fn string(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

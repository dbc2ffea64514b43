//! Compares what codex says a thread is with what was asked for.

use camino::Utf8Path;
use serde_json::Value;

use super::home::PROFILE;

/// What a thread must be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) model: &'a str,
    pub(super) provider: &'a str,
    pub(super) cwd: &'a Utf8Path,
    pub(super) may_write: bool,
}

/// Everything in the answer to `thread/start` that is not as it was asked.
pub(super) fn mismatches(echo: &Value, wanted: &Wanted<'_>) -> Vec<String> {
    let sandbox = if wanted.may_write { "workspaceWrite" } else { "readOnly" };
    let expected = [
        ("model", "/model", wanted.model),
        ("provider", "/modelProvider", wanted.provider),
        ("approval policy", "/approvalPolicy", "never"),
        ("directory", "/cwd", wanted.cwd.as_str()),
        ("sandbox", "/sandbox/type", sandbox),
        ("permission profile", "/activePermissionProfile/id", PROFILE),
    ];
    let mut found: Vec<String> = Vec::new();
    for (what, place, wanted) in expected {
        let seen = echo.pointer(place).unwrap_or(&Value::Null);
        if seen.as_str() != Some(wanted) {
            found.push(format!("{what} is {seen}, not {wanted:?}"));
        }
    }
    if echo.pointer("/sandbox/networkAccess").is_some_and(|access| access != &Value::Bool(false)) {
        found.push("its sandbox has network".into());
    }
    for (what, place) in [("writable directories", "/sandbox/writableRoots"), ("instructions", "/instructionSources")] {
        let mut others = echo.pointer(place).and_then(Value::as_array).into_iter().flatten();
        if let Some(other) = others.find(|other| other.as_str() != Some(wanted.cwd.as_str())) {
            found.push(format!("it has {what} of its own: {other}"));
        }
    }
    found
}

#[cfg(test)]
#[path = "echo_tests.rs"]
mod tests;

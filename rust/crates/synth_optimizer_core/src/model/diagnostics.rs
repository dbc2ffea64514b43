//! A finding about a configuration: where it is, what is wrong and what to do.

use serde::Serialize;

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration is used, in the way that the message says.
    Warning,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub severity: Severity,
    /// A stable short code, such as `unknown_key`.
    pub code: &'static str,
    /// The dotted path of the field, such as `gepa.minibatch_size`.
    pub field: String,
    /// The file (or `environment`, `--set`) that the value came from.
    pub source: String,
    /// One-based position in the file; absent for values that are not from the file.
    pub line: Option<usize>,
    pub column: Option<usize>,
    /// What is wrong, with the value.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// The line of the file with a marker below the place; secrets are blanked.
    pub excerpt: Option<String>,
}

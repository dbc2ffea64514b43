//! Errors of the read models: an invalid parameter, a missing item, or a workspace that cannot be read.

use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Which parameter was rejected, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The stable code, such as `invalid_cursor` or `candidate_not_found`.
    pub code: &'static str,
    /// The parameter, such as `cursor`.
    pub field: &'static str,
    /// What is wrong, with the value of the parameter.
    pub message: String,
    /// What the client can do.
    pub hint: String,
}

/// The error of a read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReadError {
    /// A parameter has an invalid value.
    #[error("{}: {}", .0.code, .0.message)]
    Invalid(Refusal),
    /// The run has no such item.
    #[error("{}: {}", .0.code, .0.message)]
    NotFound(Refusal),
    /// The workspace or a file of the run cannot be read.
    #[error(transparent)]
    Failed(#[from] OptimizerError),
}

/// The most characters of a value that a message repeats.
const MAX_QUOTED_CHARS: usize = 80;

impl ReadError {
    pub(super) fn invalid(code: &'static str, field: &'static str, message: String, hint: impl Into<String>) -> Self {
        Self::Invalid(Refusal { code, field, message, hint: hint.into() })
    }

    pub(super) fn not_found(code: &'static str, field: &'static str, message: String, hint: impl Into<String>) -> Self {
        Self::NotFound(Refusal { code, field, message, hint: hint.into() })
    }

    /// Returns the error for callers without HTTP. An invalid parameter and a missing item are errors of the caller's input.
    pub fn into_error(self) -> OptimizerError {
        match self {
            Self::Invalid(refusal) | Self::NotFound(refusal) => {
                OptimizerError::new(ErrorCode::Config, refusal.message).with_hint(refusal.hint)
            }
            Self::Failed(error) => error,
        }
    }

    pub(crate) fn no_artifact(name: &str) -> Self {
        let message = format!("the run has no artifact {}", quoted(name));
        Self::not_found("artifact_not_found", "name", message, "List the artifacts of the run.")
    }
}

/// Quotes a value for a message, shortened if it is long.
pub(super) fn quoted(value: &str) -> String {
    let short: String = value.chars().take(MAX_QUOTED_CHARS).collect();
    if short.len() == value.len() { format!("{value:?}") } else { format!("{short:?}...") }
}

/// Parses a parameter that must be one of a fixed list of names.
pub(super) fn word<T>(
    field: &'static str,
    given: Option<&str>,
    read: impl Fn(&str) -> Option<T>,
    words: &[&str],
) -> Result<Option<T>, ReadError> {
    let Some(given) = given else { return Ok(None) };
    read(given).map(Some).ok_or_else(|| {
        let hint = format!("Use one of {}.", words.join(", "));
        ReadError::invalid("invalid_filter", field, format!("{} is not a {field}", quoted(given)), hint)
    })
}

/// Returns the number of items on a page, or an error if the requested number is out of range.
pub(super) fn page_size(given: Option<i64>, otherwise: u32, most: u32) -> Result<usize, ReadError> {
    let limit = given.unwrap_or(i64::from(otherwise));
    usize::try_from(limit).ok().filter(|limit| (1..=most as usize).contains(limit)).ok_or_else(|| {
        let hint = format!("A page has 1 to {most} items.");
        ReadError::invalid("invalid_limit", "limit", format!("{limit} is not a page size"), hint)
    })
}

/// Parses a cursor: the number after which the page begins. -1 without a cursor.
pub(super) fn after_cursor(given: Option<&str>) -> Result<i64, ReadError> {
    let Some(given) = given else { return Ok(-1) };
    // Only accepts the form that pages return: no sign, no space, no leading zero.
    let number = given.parse::<i64>().ok().filter(|number| *number >= 0 && number.to_string() == given);
    number.ok_or_else(|| {
        let hint = "Pass next_cursor of the previous page, or no cursor for the first page.";
        ReadError::invalid("invalid_cursor", "cursor", format!("{} is not a cursor of this list", quoted(given)), hint)
    })
}

/// Checks the sequence number after which events are requested. -1 and `None` mean all.
pub(super) fn after_sequence(field: &'static str, given: Option<i64>) -> Result<i64, ReadError> {
    let after = given.unwrap_or(-1);
    if after >= -1 {
        return Ok(after);
    }
    let hint = "Use a sequence number from 0, or -1 for everything.";
    Err(ReadError::invalid("invalid_sequence", field, format!("{after} is not a sequence number"), hint))
}

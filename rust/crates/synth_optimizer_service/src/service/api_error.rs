//! Error responses of the service: one table of codes and one body.

use std::error::Error;

use std::path::Path;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error_code::{Retry, ServiceErrorCode};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::runtime::{CheckStage, Finding};
use synth_optimizer_platform::workspace::models::ReadError;

/// Value of the header `Retry-After`, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

/// An error response.
#[derive(Debug, Clone)]
pub(super) struct ApiError {
    status: u16,
    /// Whether the body of the request was not read.
    pub(super) is_body_unread: bool,
    /// The error behind it with all of its sources, for logs only.
    pub(super) cause: Option<Box<str>>,
    body: Box<ErrorDetail>,
}

/// The body of every error response.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ErrorBody {
    pub error: ErrorDetail,
}

/// The error.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ErrorDetail {
    /// The stable code of this error.
    pub code: String,
    /// The code of the error table, which determines the exception class of Python clients.
    pub error_code: String,
    /// What happened, with the offending value.
    pub message: String,
    pub detail: Option<String>,
    /// What the user can do.
    pub hint: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Every invalid field.
    pub field_errors: Vec<Finding>,
    /// The current state of the run, if the error is about one.
    pub state: Option<String>,
    /// The same as the header `x-request-id`.
    pub request_id: String,
}

impl ApiError {
    pub(super) fn new(code: ServiceErrorCode, message: impl Into<String>) -> Self {
        let (wire, status, class, retry, hint) = code.row();
        let body = ErrorDetail {
            code: wire.to_owned(),
            error_code: class.as_str().to_owned(),
            message: message.into(),
            detail: None,
            hint: hint.to_owned(),
            retryable: retry == Retry::Later,
            field_errors: Vec::new(),
            state: None,
            request_id: String::new(),
        };
        Self { status, is_body_unread: false, cause: None, body: Box::new(body) }
    }

    /// Returns the error for an incomplete body.
    pub(super) fn cut_body(error: &dyn Error) -> Self {
        Self::new(ServiceErrorCode::BadRequest, "the body is incomplete").because(error)
    }

    /// Keeps the error behind it with all of its sources, for logs only.
    #[must_use]
    pub(super) fn because(mut self, error: &dyn Error) -> Self {
        let chain = std::iter::successors(Some(error), |error| (*error).source()).map(ToString::to_string);
        self.cause = Some(chain.collect::<Vec<_>>().join(": ").into());
        self
    }

    /// Returns the error for a missing part of a run, with its own code.
    pub(super) fn not_found(code: &str, message: String) -> Self {
        let mut refusal = Self::new(ServiceErrorCode::RunNotFound, message);
        refusal.body.code = code.to_owned();
        refusal
    }

    /// Adds the current state of the run.
    #[must_use]
    pub(super) fn in_state(mut self, state: impl Into<String>) -> Self {
        self.body.state = Some(state.into());
        self
    }

    #[must_use]
    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = hint.into();
        self
    }

    /// Takes the error class from the blockers if all have the same one. The error is retryable if all blockers are.
    #[must_use]
    pub(super) fn caused_by(mut self, blockers: &[Finding]) -> Self {
        let mut classes = blockers.iter().map(|finding| finding.code.as_str());
        if let Some(first) = classes.next()
            && ErrorCode::parse(first).is_some()
            && classes.all(|class| class == first)
        {
            self.body.error_code = first.to_owned();
        }
        self.body.retryable = blockers.iter().all(|finding| finding.retryable);
        self
    }

    #[must_use]
    pub(super) fn with_fields(mut self, fields: Vec<Finding>) -> Self {
        let lines = fields.iter().map(|finding| {
            let about = finding.field.as_deref().unwrap_or(finding.stage.as_str());
            let location = finding.location.as_deref().map(|location| format!(" ({location})")).unwrap_or_default();
            format!("{about}{location}: {}", finding.message)
        });
        self.body.detail = Some(lines.collect::<Vec<_>>().join("\n")).filter(|lines| !lines.is_empty());
        self.body.field_errors = fields;
        self
    }

    /// Attributes the error to one field of the request.
    #[must_use]
    pub(super) fn for_field(self, field: &str) -> Self {
        let finding = Finding::new(CheckStage::Config, &self.body.code, self.body.message.clone(), &self.body.hint);
        self.with_fields(vec![finding.at(field)])
    }

    /// Converts an error of a lower layer: uses this code, and keeps its message, detail and hint.
    pub(super) fn from_error(code: ServiceErrorCode, error: &OptimizerError) -> Self {
        let mut refusal = Self::new(code, error.message.clone()).because(error);
        refusal.body.detail = error.detail.clone();
        if error.hint != error.code.row().hint {
            refusal.body.hint = error.hint.clone();
        }
        refusal
    }

    /// Returns the message without the paths of this machine.
    pub(super) fn public_message(&self) -> String {
        hide_paths(&self.body.message)
    }

    #[cfg(test)]
    pub(super) fn is(&self, code: ServiceErrorCode) -> bool {
        self.body.code == code.as_str()
    }

    /// Marks that the body of the request was not read, so that the connection must be closed if there is a body.
    #[must_use]
    pub(super) fn with_unread_body(self) -> Self {
        Self { is_body_unread: true, ..self }
    }

    /// Builds the response, with the id of its request.
    pub(super) fn response(mut self, request_id: &str) -> Response {
        self.body.request_id = request_id.to_owned();
        self.body.hide_paths();
        let retryable = self.body.retryable;
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody { error: *self.body })).into_response();
        let headers = response.headers_mut();
        if retryable && matches!(self.status, 429 | 503) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        }
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Attaches the error to an empty response. The guard builds the final response, because it knows the request id.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}

impl ErrorDetail {
    /// Removes the directories of this machine from all texts, because clients may be remote.
    fn hide_paths(&mut self) {
        for text in [&mut self.message, &mut self.hint].into_iter().chain(&mut self.detail) {
            *text = hide_paths(text);
        }
        self.field_errors.iter_mut().for_each(hide_in_finding);
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        let (code, found) = match error {
            ReadError::Invalid(found) => (ServiceErrorCode::BadParameter, found),
            ReadError::NotFound(found) => (ServiceErrorCode::RunNotFound, found),
            ReadError::Failed(error) => return error.into(),
        };
        let mut refusal = Self::new(code, found.message).with_hint(found.hint);
        refusal.body.code = found.code.to_owned();
        refusal
    }
}

impl From<OptimizerError> for ApiError {
    fn from(error: OptimizerError) -> Self {
        let row = error.code.row();
        let mut refusal = Self::new(ServiceErrorCode::Internal, error.message.clone()).because(&error);
        refusal.status = row.http;
        refusal.body.code = row.name.to_owned();
        refusal.body.error_code = row.name.to_owned();
        refusal.body.detail = error.detail;
        refusal.body.hint = error.hint;
        refusal
    }
}

/// Removes the paths of this machine from a finding.
pub(super) fn hide_in_finding(finding: &mut Finding) {
    finding.message = hide_paths(&finding.message);
    finding.hint = hide_paths(&finding.hint);
    finding.location = finding.location.as_deref().map(hide_paths);
}

/// Returns the text with every path of this machine shortened to its last component.
pub(super) fn hide_paths(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let before = rest[..at].chars().next_back();
        out.push_str(&rest[..at]);
        let token = &rest[at..at + path_length(&rest[at..])];
        let begins = before.is_none_or(|letter| !letter.is_alphanumeric() && !matches!(letter, '/' | '.' | '-' | '_'));
        match if begins { last_part(token) } else { None } {
            Some(name) => {
                out.push_str("…/");
                out.push_str(name);
            }
            None => out.push_str(token),
        }
        rest = &rest[at + token.len()..];
    }
    out.push_str(rest);
    out
}

fn path_length(text: &str) -> usize {
    let ends = |letter: char| letter.is_whitespace() || "\"'`,;()<>[]{}|".contains(letter);
    text.find(ends).unwrap_or(text.len())
}

/// Returns the last component of a path on this machine. Routes start with a slash too, but no directory of that name exists.
fn last_part(token: &str) -> Option<&str> {
    let trimmed = token.trim_end_matches(['.', ':', '/']);
    let mut parts = trimmed.trim_start_matches('/').split('/');
    let first = parts.next().filter(|first| !first.is_empty())?;
    let is_path = parts.next().is_some() && Path::new("/").join(first).exists();
    if !is_path {
        return None;
    }
    // Punctuation after the path, such as a colon, belongs to the sentence.
    token.rfind('/').and_then(|_| trimmed.rfind('/').map(|slash| &token[slash + 1..]))
}

#[cfg(test)]
#[path = "api_error_tests.rs"]
mod tests;

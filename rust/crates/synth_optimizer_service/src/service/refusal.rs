//! What the service answers when it does not do what was asked: one table of codes, one body.

use std::path::Path;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::code::{Code, Retry};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::runtime::{CheckStage, Finding};
use synth_optimizer_platform::workspace::models::ReadError;

/// How long a client that is told to come back should wait, in seconds.
const COME_BACK: u32 = 1;

/// A refusal on its way to the client.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    status: u16,
    /// The body of the request was not read.
    pub(super) is_unread: bool,
    body: Box<ErrorDetail>,
}

/// The body of every answer that is no success.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ErrorBody {
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ErrorDetail {
    /// The stable code of this refusal.
    pub code: String,
    /// The code of the one error table, which names the exception class of clients.
    pub error_code: String,
    /// What happened, with the value.
    pub message: String,
    pub detail: Option<String>,
    /// What to do.
    pub hint: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Every field that is wrong.
    pub field_errors: Vec<Finding>,
    /// The state of the run that it is about.
    pub state: Option<String>,
    /// The same as the header `x-request-id`.
    pub request_id: String,
}

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        let (wire, status, class, retry, hint) = code.row();
        let body = ErrorDetail {
            code: wire.to_owned(),
            error_code: class.wire().to_owned(),
            message: message.into(),
            detail: None,
            hint: hint.to_owned(),
            retryable: retry == Retry::Later,
            field_errors: Vec::new(),
            state: None,
            request_id: String::new(),
        };
        Self { status, is_unread: false, body: Box::new(body) }
    }

    /// Something of a run that is not there.
    pub(super) fn missing(code: &str, message: String) -> Self {
        let mut refusal = Self::new(Code::RunNotFound, message);
        refusal.body.code = code.to_owned();
        refusal
    }

    /// The same refusal of something in this state.
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

    /// The class of what stands in the way, where it is one and the same, and whether all of it may pass.
    #[must_use]
    pub(super) fn caused_by(mut self, blockers: &[Finding]) -> Self {
        let mut classes = blockers.iter().map(|finding| finding.code.as_str());
        if let Some(first) = classes.next()
            && ErrorCode::from_wire(first).is_some()
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
            let about = finding.field.as_deref().unwrap_or(finding.stage.word());
            let place = finding.place.as_deref().map(|place| format!(" ({place})")).unwrap_or_default();
            format!("{about}{place}: {}", finding.message)
        });
        self.body.detail = Some(lines.collect::<Vec<_>>().join("\n")).filter(|lines| !lines.is_empty());
        self.body.field_errors = fields;
        self
    }

    /// The same about one field of what was sent.
    #[must_use]
    pub(super) fn about(self, field: &str) -> Self {
        let finding = Finding::new(CheckStage::Config, &self.body.code, self.body.message.clone(), &self.body.hint);
        self.with_fields(vec![finding.at(field)])
    }

    /// An error of a deeper layer under a code of the service, with its own words.
    pub(super) fn of(code: Code, error: &OptimizerError) -> Self {
        let mut refusal = Self::new(code, error.message.clone());
        refusal.body.detail = error.detail.clone();
        if error.hint != error.code.row().hint {
            refusal.body.hint = error.hint.clone();
        }
        refusal
    }

    /// What it says, without the paths of this machine.
    pub(super) fn shown(&self) -> String {
        hide_paths(&self.body.message)
    }

    #[cfg(test)]
    pub(super) fn is(&self, code: Code) -> bool {
        self.body.code == code.wire()
    }

    /// The same for a request whose body was not read, if it has one: nothing more can come over the connection.
    #[must_use]
    pub(super) fn unread(self) -> Self {
        Self { is_unread: true, ..self }
    }

    /// The answer, under the id of its request.
    pub(super) fn response(mut self, request_id: &str) -> Response {
        self.body.request_id = request_id.to_owned();
        self.body.hide_paths();
        let retryable = self.body.retryable;
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody { error: *self.body })).into_response();
        let headers = response.headers_mut();
        if retryable && matches!(self.status, 429 | 503) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(COME_BACK));
        }
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The guard, which every answer passes, writes it: it knows the id of the request.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}

impl ErrorDetail {
    /// Where things are on this machine is nobody's business but its owner's.
    fn hide_paths(&mut self) {
        for text in [&mut self.message, &mut self.hint].into_iter().chain(&mut self.detail) {
            *text = hide_paths(text);
        }
        self.field_errors.iter_mut().for_each(hide_in_finding);
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        let (code, found) = match error {
            ReadError::Invalid(found) => (Code::BadParameter, found),
            ReadError::NotFound(found) => (Code::RunNotFound, found),
            ReadError::Failed(error) => return error.into(),
        };
        let mut refusal = Self::new(code, found.message).with_hint(found.hint);
        refusal.body.code = found.code.to_owned();
        refusal
    }
}

impl From<OptimizerError> for Refusal {
    fn from(error: OptimizerError) -> Self {
        let row = error.code.row();
        let mut refusal = Self::new(Code::Internal, error.message);
        refusal.status = row.http;
        refusal.body.code = row.wire.to_owned();
        refusal.body.error_code = row.wire.to_owned();
        refusal.body.detail = error.detail;
        refusal.body.hint = error.hint;
        refusal
    }
}

/// Leaves paths of this machine out of a finding.
pub(super) fn hide_in_finding(finding: &mut Finding) {
    finding.message = hide_paths(&finding.message);
    finding.hint = hide_paths(&finding.hint);
    finding.place = finding.place.as_deref().map(hide_paths);
}

/// The text with every path of this machine cut down to its last part.
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

/// The last part of a path of this machine. Routes begin with a slash as well, but no directory has their name.
fn last_part(token: &str) -> Option<&str> {
    let trimmed = token.trim_end_matches(['.', ':', '/']);
    let mut parts = trimmed.trim_start_matches('/').split('/');
    let first = parts.next().filter(|first| !first.is_empty())?;
    let is_path = parts.next().is_some() && Path::new("/").join(first).exists();
    if !is_path {
        return None;
    }
    // What follows the path, such as the colon after a file, belongs to the sentence.
    token.rfind('/').and_then(|_| trimmed.rfind('/').map(|slash| &token[slash + 1..]))
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;

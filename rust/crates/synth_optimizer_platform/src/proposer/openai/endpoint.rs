//! The endpoint: its address, the key that it is given, the bodies of requests in both API families, and one exchange.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use super::OpenAiProposer;
use crate::http::{self, Lost, Raw, Reading, shown_error};
use crate::proposer::ProposalRequest;
use crate::proposer::brief::{Brief, question};
use crate::proposer::credentials::Key;
use synth_optimizer_core::config::proposer::ProposerSection;
use synth_optimizer_core::config::sections::ApiFamily;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// What may stand around an answer in the body of its reply.
const ENVELOPE: u64 = 256 * 1024;

/// An endpoint that can be called.
#[derive(Debug)]
pub(super) struct Endpoint {
    http: reqwest::Client,
    url: Url,
    /// Marked as sensitive, so that nothing prints it.
    pub(super) bearer: Option<HeaderValue>,
    reading: Reading,
}

impl Endpoint {
    pub(super) fn new(section: &ProposerSection, base: &Url, key: Option<&Key>) -> Result<Self, OptimizerError> {
        let bearer = key.map(bearer).transpose()?;
        let http = http::client(base).connect_timeout(CONNECT).build().map_err(|error| {
            let message = format!("the HTTP client cannot be made: {}", shown_error(&error));
            OptimizerError::new(ErrorCode::Proposer, message)
                .with_hint("An https:// endpoint needs the certificates of the system.")
        })?;
        let reading = Reading {
            most: section.max_answer_kb.saturating_mul(1024).saturating_add(ENVELOPE),
            idle: Some(Duration::from_secs(section.idle_timeout_seconds)),
        };
        let route = match section.api_family {
            ApiFamily::ChatCompletions => "/chat/completions",
            ApiFamily::Responses => "/responses",
        };
        Ok(Self { http, url: http::address(base, route), bearer, reading })
    }

    /// Sends once. The caller keeps the deadline.
    pub(super) async fn send(&self, body: Bytes) -> Result<Raw, Lost> {
        let mut request = self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer.clone());
        }
        http::exchange(request, self.reading).await
    }
}

fn bearer(key: &Key) -> Result<HeaderValue, OptimizerError> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", key.value.expose())).map_err(|_| {
        let name = &key.variable;
        OptimizerError::new(ErrorCode::Proposer, format!("the key in {name} holds characters that a key cannot have"))
            .with_hint(format!("Put the key alone into {name}, without line breaks."))
    })?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

const ROLE: &str = "You improve the texts of a program that is scored on a task. You are given everything that is known: \
                    the task, the parent candidate, what happened on its rows and what was tried before. Answer with one \
                    JSON object in the shape that proposal_schema.md shows, and with nothing before or after it.";

const WHERE_TO: &str = "Answer with one JSON object in the shape of proposal_schema.md. The files follow.";

/// The name of the schema at the endpoint.
const SCHEMA_NAME: &str = "gepa_proposal";

/// How a request is written so that this endpoint takes it, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// Whether the endpoint is asked to keep to the schema.
    pub(super) structured: bool,
    /// Whether the limit of a chat completion goes by its newer name. Models of OpenAI that reason know no other, and
    /// most other servers know only the older one.
    pub(super) newer_limit: bool,
}

/// What is asked, whichever way it is written.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    proposer: &'a OpenAiProposer,
    question: String,
    schema: Value,
}

impl<'a> Ask<'a> {
    pub(super) fn new(proposer: &'a OpenAiProposer, request: &ProposalRequest) -> Self {
        let brief = Brief::new(request, &proposer.section, &proposer.redactor);
        let question = format!("{}\n\n{}", question(request, WHERE_TO), brief.whole());
        Self { proposer, question, schema: brief.schema }
    }

    pub(super) fn body(&self, manner: Manner) -> Value {
        let OpenAiProposer { section, model, .. } = self.proposer;
        let (limit, effort) = (section.max_output_tokens, section.reasoning_effort.map(|effort| effort.word()));
        let mut body = json!({ "model": model });
        match section.api_family {
            ApiFamily::ChatCompletions => {
                body["messages"] =
                    json!([{ "role": "system", "content": ROLE }, { "role": "user", "content": self.question }]);
                if manner.structured {
                    let schema = json!({ "name": SCHEMA_NAME, "strict": true, "schema": self.schema });
                    body["response_format"] = json!({ "type": "json_schema", "json_schema": schema });
                }
                if let Some(most) = limit {
                    body[if manner.newer_limit { "max_completion_tokens" } else { "max_tokens" }] = most.into();
                }
                if let Some(effort) = effort {
                    body["reasoning_effort"] = effort.into();
                }
            }
            ApiFamily::Responses => {
                body["instructions"] = ROLE.into();
                body["input"] = self.question.as_str().into();
                // Nothing of a run is left behind at the provider.
                body["store"] = false.into();
                if manner.structured {
                    let schema = &self.schema;
                    body["text"]["format"] =
                        json!({ "type": "json_schema", "name": SCHEMA_NAME, "strict": true, "schema": schema });
                }
                if let Some(most) = limit {
                    body["max_output_tokens"] = most.into();
                }
                if let Some(effort) = effort {
                    body["reasoning"] = json!({ "effort": effort });
                }
            }
        }
        body
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;

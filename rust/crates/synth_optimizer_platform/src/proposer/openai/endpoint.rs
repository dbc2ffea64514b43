//! The endpoint: the request bodies of both API families, and sending a request once.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::OpenAiProposer;
use crate::http::{self, ExchangeError, LargeReplies, RawResponse, ReadLimits};
use crate::proposer::ProposalRequest;
use crate::proposer::brief::{Brief, question};
use crate::proposer::connection::Connection;
use synth_optimizer_core::config::proposer::ProposerSection;
use synth_optimizer_core::config::sections::ApiFamily;

/// Maximum size of a reply in addition to the answer in it.
const ENVELOPE_BYTES: u64 = 256 * 1024;

/// An OpenAI-compatible endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) connection: Connection,
    route: &'static str,
    reading: ReadLimits,
}

impl Endpoint {
    pub(super) fn new(section: &ProposerSection, connection: Connection) -> Self {
        let max_bytes = section.max_answer_kb.saturating_mul(1024).saturating_add(ENVELOPE_BYTES);
        let large_idle_timeout = Duration::from_secs(section.idle_timeout_seconds);
        let (idle_timeout, large_replies) = (Some(large_idle_timeout), LargeReplies::new(max_bytes));
        let reading = ReadLimits { max_bytes, idle_timeout, large_idle_timeout, large_replies };
        let route = match section.api_family {
            ApiFamily::ChatCompletions => "/chat/completions",
            ApiFamily::Responses => "/responses",
        };
        Self { connection, route, reading }
    }

    /// Sends a request once. The caller enforces the deadline.
    pub(super) async fn send(&self, body: Bytes) -> Result<RawResponse, ExchangeError> {
        let request = self.connection.request(Method::POST, self.route);
        http::exchange(request.header(CONTENT_TYPE, "application/json").body(body), self.reading.clone()).await
    }
}

const ROLE: &str = "You improve the texts of a program that is scored on a task. You are given everything that is known: \
                    the task, the parent candidate, what happened on its rows and what was tried before. Answer with one \
                    JSON object in the shape that proposal_schema.md shows, and with nothing before or after it.";

const WHERE_TO: &str = "Answer with one JSON object in the shape of proposal_schema.md. The files follow.";

/// Name of the schema in the request.
const SCHEMA_NAME: &str = "gepa_proposal";

/// The request format that the endpoint accepts, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestStyle {
    /// Whether to request structured output with a schema.
    pub(super) structured: bool,
    /// Whether to send the limit of a chat completion as `max_completion_tokens`. OpenAI's reasoning models accept no
    /// other name; most other servers accept only `max_tokens`.
    pub(super) newer_limit: bool,
}

/// The question of a turn, independent of the request format.
#[derive(Debug)]
pub(super) struct Prompt<'a> {
    proposer: &'a OpenAiProposer,
    question: String,
    schema: Value,
}

impl<'a> Prompt<'a> {
    pub(super) fn new(proposer: &'a OpenAiProposer, request: &ProposalRequest) -> Self {
        let brief = Brief::new(request, &proposer.section, &proposer.redactor);
        let question = format!("{}\n\n{}", question(request, &proposer.section, WHERE_TO), brief.to_text());
        Self { proposer, question, schema: brief.schema }
    }

    pub(super) fn body(&self, style: RequestStyle) -> Value {
        let OpenAiProposer { section, model, .. } = self.proposer;
        let (limit, effort) = (section.max_output_tokens, section.reasoning_effort.map(|effort| effort.as_str()));
        let mut body = json!({ "model": model });
        match section.api_family {
            ApiFamily::ChatCompletions => {
                body["messages"] =
                    json!([{ "role": "system", "content": ROLE }, { "role": "user", "content": self.question }]);
                if style.structured {
                    let schema = json!({ "name": SCHEMA_NAME, "strict": true, "schema": self.schema });
                    body["response_format"] = json!({ "type": "json_schema", "json_schema": schema });
                }
                if let Some(most) = limit {
                    body[if style.newer_limit { "max_completion_tokens" } else { "max_tokens" }] = most.into();
                }
                if let Some(effort) = effort {
                    body["reasoning_effort"] = effort.into();
                }
            }
            ApiFamily::Responses => {
                body["instructions"] = ROLE.into();
                body["input"] = self.question.as_str().into();
                // The provider must not store the response.
                body["store"] = false.into();
                if style.structured {
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

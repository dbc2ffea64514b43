//! The endpoint: its address, the key that it is given, the bodies of requests in both API families, and one exchange.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::{Map, Value, json};

use crate::http::{self, Lost, Raw, Reading, shown_error};
use crate::proposer::ProposalRequest;
use crate::proposer::brief::{Brief, question};
use crate::proposer::credentials::{self, OPENAI_API_KEY};
pub(super) use crate::proposer::credentials::{Env, base_url, is_openai};
use crate::proposer::transcript::Redactor;
use synth_optimizer_core::config::proposer::{ProposerSection, ReasoningEffort};
use synth_optimizer_core::config::sections::ApiFamily;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::secrets::Secret;

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
    bearer: Option<HeaderValue>,
    reading: Reading,
}

impl Endpoint {
    pub(super) fn new(section: &ProposerSection, base: &Url, key: Option<&Secret>) -> Result<Self, OptimizerError> {
        let bearer = key.map(|key| bearer(section, key)).transpose()?;
        let http = http::client(base).connect_timeout(CONNECT).build().map_err(|error| {
            let message = format!("the HTTP client cannot be made: {}", shown_error(&error));
            OptimizerError::new(ErrorCode::Proposer, message)
                .with_hint("An https:// endpoint needs the certificates of the system.")
        })?;
        let reading = Reading {
            most: section.max_answer_kb.saturating_mul(1024).saturating_add(ENVELOPE),
            idle: Some(Duration::from_secs(section.idle_timeout_seconds)),
        };
        Ok(Self { http, url: http::address(base, route(section.api_family)), bearer, reading })
    }

    pub(super) fn has_key(&self) -> bool {
        self.bearer.is_some()
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

/// The key for this endpoint.
pub(super) fn key(section: &ProposerSection, base: &Url, env: Env<'_>) -> Result<Option<Secret>, OptimizerError> {
    Ok(credentials::key(section, base, env)?.map(|key| key.value))
}

fn bearer(section: &ProposerSection, key: &Secret) -> Result<HeaderValue, OptimizerError> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", key.expose())).map_err(|_| {
        let name = section.api_key_env.as_deref().unwrap_or(OPENAI_API_KEY);
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

/// How a request is written so that this endpoint takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// Whether the endpoint is asked to keep to the schema.
    pub(super) structured: bool,
    /// Whether the limit of a chat completion goes by its newer name. Models of OpenAI that reason know no other, and
    /// most other servers know only the older one.
    pub(super) newer_limit: bool,
}

impl Manner {
    /// What both have learned: nothing that was found out is forgotten.
    pub(super) fn and(self, other: Self) -> Self {
        Self { structured: self.structured && other.structured, newer_limit: self.newer_limit || other.newer_limit }
    }
}

/// What is asked, whichever way it is written.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) family: ApiFamily,
    model: String,
    max_output_tokens: Option<u64>,
    reasoning_effort: Option<ReasoningEffort>,
    question: String,
    schema: Value,
}

impl Ask {
    pub(super) fn new(section: &ProposerSection, model: &str, request: &ProposalRequest, redactor: &Redactor) -> Self {
        let brief = Brief::new(request, section, redactor);
        Self {
            family: section.api_family,
            model: model.to_owned(),
            max_output_tokens: section.max_output_tokens,
            reasoning_effort: section.reasoning_effort,
            question: format!("{}\n\n{}", question(request, WHERE_TO), brief.whole()),
            schema: brief.schema,
        }
    }

    pub(super) fn body(&self, manner: Manner) -> Value {
        Value::Object(match self.family {
            ApiFamily::ChatCompletions => self.chat(manner),
            ApiFamily::Responses => self.responses(manner),
        })
    }

    fn chat(&self, manner: Manner) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        body.insert(
            "messages".into(),
            json!([{ "role": "system", "content": ROLE }, { "role": "user", "content": self.question }]),
        );
        if manner.structured {
            let schema = json!({ "name": SCHEMA_NAME, "strict": true, "schema": self.schema });
            body.insert("response_format".into(), json!({ "type": "json_schema", "json_schema": schema }));
        }
        if let Some(most) = self.max_output_tokens {
            let name = if manner.newer_limit { "max_completion_tokens" } else { "max_tokens" };
            body.insert(name.into(), json!(most));
        }
        if let Some(effort) = self.reasoning_effort {
            body.insert("reasoning_effort".into(), json!(effort.word()));
        }
        body
    }

    fn responses(&self, manner: Manner) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        body.insert("instructions".into(), json!(ROLE));
        body.insert("input".into(), json!(self.question));
        // Nothing of a run is left behind at the provider.
        body.insert("store".into(), json!(false));
        if manner.structured {
            let format = json!({ "type": "json_schema", "name": SCHEMA_NAME, "strict": true, "schema": self.schema });
            body.insert("text".into(), json!({ "format": format }));
        }
        if let Some(most) = self.max_output_tokens {
            body.insert("max_output_tokens".into(), json!(most));
        }
        if let Some(effort) = self.reasoning_effort {
            body.insert("reasoning".into(), json!({ "effort": effort.word() }));
        }
        body
    }
}

/// The route of a family, below the base address.
pub(super) fn route(family: ApiFamily) -> &'static str {
    match family {
        ApiFamily::ChatCompletions => "/chat/completions",
        ApiFamily::Responses => "/responses",
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;

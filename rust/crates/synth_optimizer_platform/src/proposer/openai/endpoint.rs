//! The endpoint: its address, the key that it is given, and one request to it.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};

use super::wire::route;
use crate::config::proposer::ProposerSection;
use crate::http::{self, Lost, Raw, Reading, shown_error};
use crate::model::error::{ErrorCode, OptimizerError};
use crate::proposer::credentials::{self, OPENAI_API_KEY};
pub(super) use crate::proposer::credentials::{Env, base_url, is_openai};

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
    pub(super) fn new(section: &ProposerSection, base: &Url, key: Option<&str>) -> Result<Self, OptimizerError> {
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
pub(super) fn key(section: &ProposerSection, base: &Url, env: Env<'_>) -> Result<Option<String>, OptimizerError> {
    Ok(credentials::key(section, base, env)?.map(|key| key.value))
}

fn bearer(section: &ProposerSection, key: &str) -> Result<HeaderValue, OptimizerError> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
        let name = section.api_key_env.as_deref().unwrap_or(OPENAI_API_KEY);
        OptimizerError::new(ErrorCode::Proposer, format!("the key in {name} holds characters that a key cannot have"))
            .with_hint(format!("Put the key alone into {name}, without line breaks."))
    })?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;

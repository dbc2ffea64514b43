//! The endpoint: its address, the key that it is given, and one request to it.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};

use super::wire::route;
use crate::config::proposer::{AuthMode, ProposerSection};
use crate::http::{self, Lost, Raw, Reading, shown_error};
use crate::model::error::{ErrorCode, OptimizerError};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// What may stand around an answer in the body of its reply.
const ENVELOPE: u64 = 256 * 1024;
/// The key that is used where none is named. It is OpenAI's own and goes nowhere else.
const DEFAULT_KEY: &str = "OPENAI_API_KEY";

/// Reads a variable of the environment.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

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

/// The base address of the section. Its message never repeats what may be a credential.
pub(super) fn base_url(section: &ProposerSection) -> Result<Url, OptimizerError> {
    let bad = |problem: &str| {
        OptimizerError::new(ErrorCode::Proposer, format!("proposer.base_url {problem}"))
            .with_hint("Write it like https://host/v1; a key goes into the variable that proposer.api_key_env names.")
    };
    let written = section.base_url.as_deref().ok_or_else(|| bad("is missing"))?;
    let base = Url::parse(written.trim()).map_err(|_| bad("is not an address"))?;
    if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
        return Err(bad("does not start with http:// or https:// and a host"));
    }
    if !base.username().is_empty() || base.password().is_some() {
        return Err(bad("holds a user or password"));
    }
    Ok(base)
}

/// Whether this is OpenAI's own service, which sells at list prices.
pub(super) fn is_openai(base: &Url) -> bool {
    base.scheme() == "https" && base.host_str() == Some("api.openai.com")
}

/// The key for this endpoint. One that was not named for it is never sent to it.
pub(super) fn key(section: &ProposerSection, base: &Url, env: Env<'_>) -> Result<Option<String>, OptimizerError> {
    let value = |name: &str| env(name).map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    let missing =
        |message: String, hint: String| Err(OptimizerError::new(ErrorCode::Proposer, message).with_hint(hint));
    if let Some(name) = section.api_key_env.as_deref() {
        return match value(name) {
            Some(key) => Ok(Some(key)),
            None => missing(
                format!("the variable {name}, which proposer.api_key_env names, is not set"),
                format!("Put the key of the endpoint into {name}, or remove proposer.api_key_env if it needs none."),
            ),
        };
    }
    let key = if is_openai(base) { value(DEFAULT_KEY) } else { None };
    if key.is_none() && section.auth_mode == AuthMode::ApiKey {
        return missing(
            "proposer.auth_mode is \"api_key\", but there is no key for this endpoint".to_owned(),
            format!(
                "Name its variable in proposer.api_key_env; {DEFAULT_KEY} is used for api.openai.com alone without that."
            ),
        );
    }
    Ok(key)
}

fn bearer(section: &ProposerSection, key: &str) -> Result<HeaderValue, OptimizerError> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
        let name = section.api_key_env.as_deref().unwrap_or(DEFAULT_KEY);
        OptimizerError::new(ErrorCode::Proposer, format!("the key in {name} holds characters that a key cannot have"))
            .with_hint(format!("Put the key alone into {name}, without line breaks."))
    })?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;

//! The connection to an endpoint that serves models: its HTTP client, address and key, and a check that costs nothing.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, RequestBuilder, Url};
use serde_json::Value;
use tracing::debug;

use super::credentials::ApiKey;
use super::transcript::Redactor;
use crate::access::EgressPolicy;
use crate::clock::unix_millis;
use crate::http::{self, ExchangeError, LargeReplies, ReadLimits, describe_error, shorten};
use crate::model_name::is_same_model;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ModelShutdown;

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the check, which is longer than that of a connection.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of a list of models. Those of large providers have about a megabyte.
const MAX_LIST_BYTES: u64 = 16 * 1024 * 1024;
/// The fields in which endpoints name the day on which a model ends: OpenAI, OpenRouter and Mistral. Their values begin
/// with the date; without one they are null or missing.
const SHUTDOWN_FIELDS: [&str; 3] = ["shutdown_date", "expiration_date", "deprecation"];
/// How many known models an error names.
const MAX_NAMED_MODELS: usize = 8;

/// An endpoint that serves models.
#[derive(Debug)]
pub(super) struct Connection {
    http: reqwest::Client,
    base: Url,
    egress_policy: EgressPolicy,
    /// Marked as sensitive, so that it is never printed.
    bearer: Option<HeaderValue>,
}

impl Connection {
    /// Creates a client of the endpoint. Sends nothing.
    pub(super) fn new(base: &Url, key: Option<&ApiKey>, egress_policy: &EgressPolicy) -> Result<Self, OptimizerError> {
        let bearer = key.map(bearer).transpose()?;
        let builder = egress_policy.restrict(http::client(base).connect_timeout(CONNECT_TIMEOUT), base)?;
        let http = builder.build().map_err(|error| {
            let message = format!("creating the HTTP client failed: {}", describe_error(&error));
            proposer_error(message, "Install the certificates of the system, or use an http:// endpoint.")
        })?;
        Ok(Self { http, base: base.clone(), egress_policy: egress_policy.clone(), bearer })
    }

    pub(super) fn has_key(&self) -> bool {
        self.bearer.is_some()
    }

    /// Returns a request to a route of the endpoint, with the key.
    pub(super) fn request(&self, method: Method, route: &str) -> RequestBuilder {
        let request = self.http.request(method, http::address(&self.base, route));
        match &self.bearer {
            Some(bearer) => request.header(AUTHORIZATION, bearer.clone()),
            None => request,
        }
    }

    /// Returns the error of a connection that the egress policy denied.
    pub(super) fn denial(&self, reason: &str) -> Option<OptimizerError> {
        let host = self.base.host_str().unwrap_or_default();
        self.egress_policy.is_denial(reason).then(|| self.egress_policy.denied(host))
    }

    /// Asks the endpoint for its models, which no provider bills. Fails only if the answer is a clear sign of
    /// one: many servers have no such route. Without a `model`, only the key and the connection are checked. If the key is
    /// known to be missing, a rejection is no further problem. Returns the end of the model if the list names it.
    pub(super) async fn check_model(
        &self,
        model: Option<&str>,
        is_key_missing: bool,
        redactor: &Redactor,
    ) -> Result<Option<ModelShutdown>, OptimizerError> {
        let large_replies = LargeReplies::new(MAX_LIST_BYTES);
        let limits = ReadLimits {
            max_bytes: MAX_LIST_BYTES,
            idle_timeout: None,
            large_idle_timeout: CHECK_TIMEOUT,
            large_replies,
        };
        let asking = http::exchange(self.request(Method::GET, "/models"), limits);
        let raw = match tokio::time::timeout(CHECK_TIMEOUT, asking).await {
            Ok(Ok(raw)) => raw,
            Ok(Err(ExchangeError::NeverSent(reason))) => {
                return Err(self.denial(&reason).unwrap_or_else(|| self.unreachable(&redactor.text(&reason))));
            }
            Ok(Err(ExchangeError::OutOfFiles(reason))) => return Err(http::out_of_files(&reason)),
            Ok(Err(lost @ (ExchangeError::Unknown(_) | ExchangeError::TooLarge { .. }))) => {
                debug!(cause = ?lost, "the list of models was not read");
                return Ok(None);
            }
            Err(_elapsed) => return Ok(None),
        };
        match raw.status {
            401 | 403 if is_key_missing => Ok(None),
            // A user can change the key while the run is saved.
            401 | 403 => {
                let place = self.place();
                let said = shorten(&redactor.text(&String::from_utf8_lossy(&raw.body)));
                let rejected = match &self.bearer {
                    Some(_) => proposer_error(
                        format!("{place} rejected the key of the proposer with {}: {said}", raw.status),
                        "Check the key, and that proposer.api_key_env names the variable that holds it.",
                    ),
                    None => proposer_error(
                        format!("{place} answered {} to a request without a key: {said}", raw.status),
                        "Name the variable that holds the key of the endpoint in proposer.api_key_env.",
                    ),
                };
                Err(rejected.of_outage())
            }
            200 => {
                let document = serde_json::from_slice(&raw.body).unwrap_or_default();
                let (Some(model), Some(listed)) = (model, listed_models(&document)) else { return Ok(None) };
                let is_exact = |entry: &&(&str, &Value)| entry.0 == model;
                let is_same = |entry: &&(&str, &Value)| is_same_model(model, entry.0);
                if let Some((_, entry)) = listed.iter().find(is_exact).or_else(|| listed.iter().find(is_same)) {
                    return Ok(shutdown(entry, &rfc3339(unix_millis())));
                }
                if is_azure(&self.base) {
                    return Ok(None);
                }
                let known: Vec<&str> = listed.iter().map(|(id, _)| *id).collect();
                let named = known.iter().take(MAX_NAMED_MODELS).map(|name| redactor.text(name)).collect::<Vec<_>>();
                let rest = known.len() - named.len();
                let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
                let message = format!("{} does not serve proposer.model {model:?}", self.place());
                let hint =
                    format!("Set proposer.model to a model of the endpoint: {}{rest}.", shorten(&named.join(", ")));
                Err(proposer_error(message, hint).of_outage())
            }
            _ => Ok(None),
        }
    }

    fn unreachable(&self, reason: &str) -> OptimizerError {
        let message = format!("{} cannot be reached: {reason}", self.place());
        proposer_error(message, "Start the server at proposer.base_url, or correct the address.").of_outage()
    }

    /// Returns the endpoint for messages, without its path.
    fn place(&self) -> String {
        let (host, port) = (self.base.host_str().unwrap_or_default(), self.base.port_or_known_default());
        format!("the endpoint {host}{}", port.map_or_else(String::new, |port| format!(":{port}")))
    }
}

/// Returns the entries of a complete list of models, each with its id; `None` for any other document.
fn listed_models(document: &Value) -> Option<Vec<(&str, &Value)>> {
    let is_partial = document.get("has_more").and_then(Value::as_bool).unwrap_or(false);
    let items = document.get("data")?.as_array().filter(|items| !items.is_empty() && !is_partial)?;
    let listed = items.iter().map(|item| Some((item.get("id")?.as_str()?, item))).collect::<Option<Vec<_>>>()?;
    // A gateway may list patterns.
    (!listed.iter().any(|(id, _)| id.contains('*'))).then_some(listed)
}

/// Returns the end of a model that its entry in the list names. `now` is an RFC 3339 time in UTC.
fn shutdown(entry: &Value, now: &str) -> Option<ModelShutdown> {
    let (field, date) =
        SHUTDOWN_FIELDS.iter().find_map(|field| Some((field, date_of(entry.get(field)?.as_str()?)?)))?;
    // Dates of this shape are ordered like their texts.
    Some(ModelShutdown { date: date.to_owned(), field: (*field).to_owned(), is_past: date_of(now) > Some(date) })
}

/// Returns the date `YYYY-MM-DD` at the beginning of a text.
fn date_of(text: &str) -> Option<&str> {
    let (date, rest) = text.split_at_checked(10)?;
    let is_date = date.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    (is_date && (rest.is_empty() || rest.starts_with(['T', ' ']))).then_some(date)
}

/// Returns whether this is Azure, which lists models and expects the name of a deployment.
fn is_azure(base: &Url) -> bool {
    base.host_str().is_some_and(|host| host.ends_with(".azure.com"))
}

fn proposer_error(message: String, hint: impl Into<String>) -> OptimizerError {
    OptimizerError::new(ErrorCode::Proposer, message).with_hint(hint)
}

fn bearer(key: &ApiKey) -> Result<HeaderValue, OptimizerError> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", key.value.expose())).map_err(|error| {
        let name = &key.variable;
        let hint = format!("Put the key alone into {name}, without line breaks.");
        proposer_error(format!("the key in {name} contains characters that are not allowed"), hint).caused_by(error)
    })?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

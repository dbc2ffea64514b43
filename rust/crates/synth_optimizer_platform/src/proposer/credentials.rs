//! Decides which API key is sent to which endpoint, with one rule for every backend.

use reqwest::Url;

use crate::access::provider_of;
use synth_optimizer_core::config::proposer::{AuthMode, ProposerSection};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::secrets::Secret;

/// Variable of the default key. It is sent only to OpenAI.
pub(super) const OPENAI_API_KEY: &str = "OPENAI_API_KEY";

/// Reads an environment variable.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// An API key and the variable that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiKey {
    pub(super) variable: String,
    /// Trimmed: a server echoes the key without surrounding space, so redaction must search for the trimmed value.
    pub(super) value: Secret,
}

/// Parses a base URL. The error does not repeat the URL, which may contain a credential.
pub(super) fn base_url(written: Option<&str>) -> Result<Url, OptimizerError> {
    let bad = |problem: &str| {
        OptimizerError::new(ErrorCode::Proposer, format!("proposer.base_url {problem}"))
            .with_hint("Write it like https://host/v1; a key goes into the variable that proposer.api_key_env names.")
    };
    let written = written.ok_or_else(|| bad("is missing"))?;
    let base = Url::parse(written.trim()).map_err(|error| bad("is not a URL").caused_by(error))?;
    if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
        return Err(bad("does not start with http:// or https:// and a host"));
    }
    if !base.username().is_empty() || base.password().is_some() {
        return Err(bad("holds a user or password"));
    }
    Ok(base)
}

/// Returns whether this is OpenAI's own service, for which list prices apply.
pub(super) fn is_openai(base: &Url) -> bool {
    base.scheme() == "https" && base.host_str() == Some("api.openai.com")
}

/// Returns the key for this endpoint. Other endpoints than OpenAI receive only a key that the config names; they may
/// need none.
pub(super) fn key(section: &ProposerSection, base: &Url, env: Env<'_>) -> Result<Option<ApiKey>, OptimizerError> {
    let read = |variable: &str| {
        let value = Secret::new(env(variable)?.trim());
        // A blank variable counts as unset.
        (!value.expose().is_empty()).then(|| ApiKey { variable: variable.to_owned(), value })
    };
    if let Some(name) = section.api_key_env.as_deref() {
        return read(name).map(Some).ok_or_else(|| missing(name));
    }
    let key = if is_openai(base) { read(OPENAI_API_KEY) } else { None };
    match (section.auth_mode, key) {
        (AuthMode::ApiKey, None) if is_openai(base) => Err(missing(OPENAI_API_KEY)),
        (AuthMode::ApiKey, None) => {
            let message = "proposer.auth_mode is \"api_key\", but proposer.api_key_env is not set for this endpoint";
            Err(OptimizerError::new(ErrorCode::Proposer, message).with_hint(format!(
                "Name the variable of the key in proposer.api_key_env; without it, {OPENAI_API_KEY} is used for api.openai.com only."
            )))
        }
        (AuthMode::ApiKey | AuthMode::Auto | AuthMode::Host, key) => Ok(key),
    }
}

/// Returns the key for this endpoint. A well-known provider without one is an error, because it answers nothing.
pub(super) fn required_key(
    section: &ProposerSection,
    base: &Url,
    env: Env<'_>,
) -> Result<Option<ApiKey>, OptimizerError> {
    match (key(section, base, env)?, provider_of(base)) {
        (None, Some(_)) if is_openai(base) => Err(missing(OPENAI_API_KEY)),
        (None, Some(provider)) => {
            let message = format!("proposer.api_key_env is not set, and {} requires a key", provider.host);
            let variable = provider.key_variables.first().copied().unwrap_or(OPENAI_API_KEY);
            let hint = format!("Write api_key_env = \"{variable}\" in [proposer], and put the key into that variable.");
            Err(OptimizerError::new(ErrorCode::Proposer, message).with_hint(hint))
        }
        (key, _) => Ok(key),
    }
}

/// Creates the error for a missing key.
fn missing(variable: &str) -> OptimizerError {
    let message = format!("the variable {variable}, which holds the proposer's key, is not set");
    OptimizerError::new(ErrorCode::Proposer, message).with_hint(format!(
        "Set {variable} in the environment of the run, or name another variable in proposer.api_key_env."
    ))
}

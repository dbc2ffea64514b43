//! Which key goes to which endpoint: one rule for every backend.

use reqwest::Url;

use synth_optimizer_core::config::proposer::{AuthMode, ProposerSection};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::secrets::Secret;

/// The key that is used where none is named. It is OpenAI's own and goes nowhere else.
pub(super) const OPENAI_API_KEY: &str = "OPENAI_API_KEY";

/// Reads a variable of the environment.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A key, by the variable that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) variable: String,
    /// Without the space around it, which no server gives back and which would keep it from being found.
    pub(super) value: Secret,
}

/// A base address as it is written. The message never repeats what may be a credential.
pub(super) fn base_url(written: Option<&str>) -> Result<Url, OptimizerError> {
    let bad = |problem: &str| {
        OptimizerError::new(ErrorCode::Proposer, format!("proposer.base_url {problem}"))
            .with_hint("Write it like https://host/v1; a key goes into the variable that proposer.api_key_env names.")
    };
    let written = written.ok_or_else(|| bad("is missing"))?;
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

/// The key for this endpoint. One that was not named for it is never sent to it; a server of one's own may want none.
pub(super) fn key(section: &ProposerSection, base: &Url, env: Env<'_>) -> Result<Option<Key>, OptimizerError> {
    let read = |variable: &str| {
        let value = Secret::new(env(variable)?.trim());
        // A blank variable is one that is not set.
        (!value.expose().is_empty()).then(|| Key { variable: variable.to_owned(), value })
    };
    if let Some(name) = section.api_key_env.as_deref() {
        return read(name).map(Some).ok_or_else(|| missing(name));
    }
    let key = if is_openai(base) { read(OPENAI_API_KEY) } else { None };
    match (section.auth_mode, key) {
        (AuthMode::ApiKey, None) if is_openai(base) => Err(missing(OPENAI_API_KEY)),
        (AuthMode::ApiKey, None) => {
            let message = "proposer.auth_mode is \"api_key\", but proposer.api_key_env names no key for this endpoint";
            Err(OptimizerError::new(ErrorCode::Proposer, message).with_hint(format!(
                "Name its variable in proposer.api_key_env; {OPENAI_API_KEY} is used for api.openai.com alone without that."
            )))
        }
        (AuthMode::ApiKey | AuthMode::Auto | AuthMode::Host, key) => Ok(key),
    }
}

/// A key that must be there is not.
fn missing(variable: &str) -> OptimizerError {
    let message = format!("the variable {variable}, which holds the proposer's key, is not set");
    OptimizerError::new(ErrorCode::Proposer, message).with_hint(format!(
        "Set {variable} in the environment of the run, or name another variable in proposer.api_key_env."
    ))
}

//! Decides how codex accesses its model: through an endpoint with its own key, or with the sign-in of the host.

use std::fs;

use camino::Utf8PathBuf;
use reqwest::Url;
use serde_json::Value;
use tracing::warn;

use crate::proposer::credentials::{ApiKey, Env, OPENAI_API_KEY, base_url, is_openai, key, required_key};
use synth_optimizer_core::config::proposer::{AuthMode, ProposerSection};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::secrets::Secret;

/// Base URL of the OpenAI API.
const OPENAI: &str = "https://api.openai.com/v1";

/// Name of the file in which codex keeps its sign-in.
pub(super) const AUTH_FILE: &str = "auth.json";

/// Name of the provider that we define in the codex configuration.
pub(super) const OWN_PROVIDER: &str = "proposer";

/// How codex accesses the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ModelAccess {
    Endpoint {
        base_url: String,
        key: Option<ApiKey>,
    },
    /// Uses the sign-in in this file.
    Host {
        auth: Utf8PathBuf,
    },
}

impl ModelAccess {
    pub(super) fn decide(section: &ProposerSection, env: Env<'_>) -> Result<Self, OptimizerError> {
        let has_address = section.base_url.is_some();
        let signs_in = match section.auth_mode {
            AuthMode::Host => true,
            // A configured codex home takes precedence over a key in the environment.
            AuthMode::Auto => section.codex_home.is_some() && section.api_key_env.is_none(),
            AuthMode::ApiKey => false,
        };
        if signs_in && !has_address {
            return host(section, env);
        }
        let written = section.base_url.as_deref().unwrap_or(OPENAI);
        let base = base_url(Some(written))?;
        let key = if has_address { required_key(section, &base, env)? } else { key(section, &base, env)? };
        match key {
            None if !has_address => host(section, env),
            key => Ok(Self::Endpoint { base_url: written.trim().to_owned(), key }),
        }
    }

    /// Returns the provider's name in the codex configuration.
    pub(super) fn provider(&self) -> &'static str {
        match self {
            Self::Endpoint { .. } => OWN_PROVIDER,
            Self::Host { .. } => "openai",
        }
    }

    /// Returns whether OpenAI serves the models.
    pub(super) fn is_openai(&self) -> bool {
        match self {
            Self::Endpoint { base_url, .. } => Url::parse(base_url).is_ok_and(|base| is_openai(&base)),
            Self::Host { .. } => true,
        }
    }

    /// Returns whether list prices apply. A sign-in may be a subscription.
    pub(super) fn is_list_priced(&self) -> bool {
        matches!(self, Self::Endpoint { key: Some(_), .. }) && self.is_openai()
    }

    /// Describes the access without any secret.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Endpoint { key: Some(key), .. } => format!("api_key ({})", key.variable),
            Self::Endpoint { key: None, .. } => "none".to_owned(),
            Self::Host { .. } => "host".to_owned(),
        }
    }

    /// Returns every credential in use, for redaction.
    pub(super) fn secrets(&self) -> Vec<Secret> {
        match self {
            Self::Endpoint { key, .. } => key.iter().map(|key| key.value.clone()).collect(),
            Self::Host { auth } => {
                let read = fs::read(auth).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
                let mut found = Vec::new();
                match read {
                    Ok(document) => texts(&document, &mut found),
                    // Codex fails for the same reason. Only redaction of the sign-in in its output is missing.
                    Err(error) => warn!(%error, "reading the sign-in of codex failed"),
                }
                found
            }
        }
    }
}

fn host(section: &ProposerSection, env: Env<'_>) -> Result<ModelAccess, OptimizerError> {
    let usual = || env("HOME").map(|home| Utf8PathBuf::from(home).join(".codex"));
    let given = section.codex_home.clone();
    let dir = given.or_else(|| env("CODEX_HOME").map(Utf8PathBuf::from)).or_else(usual);
    let auth = dir.as_ref().map(|dir| dir.join(AUTH_FILE)).and_then(|auth| auth.canonicalize_utf8().ok());
    auth.filter(|auth| auth.is_file()).map(|auth| ModelAccess::Host { auth }).ok_or_else(|| {
        let place = dir.map_or_else(String::new, |dir| format!(" in {dir}"));
        let key = match section.auth_mode {
            AuthMode::Auto if section.codex_home.is_none() => format!("{OPENAI_API_KEY} is not set and "),
            AuthMode::Auto | AuthMode::ApiKey | AuthMode::Host => String::new(),
        };
        let message = format!("codex has no credentials: {key}{AUTH_FILE} does not exist{place}");
        OptimizerError::new(ErrorCode::Proposer, message)
            .with_hint("Run `codex login`, or set the key variable, or set proposer.base_url to your own server.")
    })
}

/// Collects the long texts of a sign-in file: tokens and ids. Short texts are ordinary words.
fn texts(value: &Value, found: &mut Vec<Secret>) {
    const SHORTEST: usize = 16;
    match value {
        Value::String(text) if text.len() >= SHORTEST => found.push(Secret::new(text)),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(entries) => entries.values().for_each(|entry| texts(entry, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;

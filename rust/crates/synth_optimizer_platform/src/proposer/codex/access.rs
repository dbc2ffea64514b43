//! Decides once how codex reaches its model: an endpoint with a key of its own, or the sign-in that the host has.

use std::fs;

use camino::Utf8PathBuf;
use serde_json::Value;

use super::Environment;
use crate::config::proposer::{AuthMode, ProposerSection};
use crate::model::error::{ErrorCode, OptimizerError};

/// Where OpenAI answers.
const OPENAI: &str = "https://api.openai.com/v1";

const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// Name of codex's own file for its sign-in.
pub(super) const AUTH_FILE: &str = "auth.json";

/// A key, by the variable that holds it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) variable: String,
    pub(super) value: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Key({})", self.variable)
    }
}

/// How the model is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    Endpoint {
        base_url: String,
        key: Option<Key>,
    },
    /// The sign-in in this file.
    Host {
        auth: Utf8PathBuf,
    },
}

impl Access {
    pub(super) fn decide(section: &ProposerSection, env: &Environment) -> Result<Self, OptimizerError> {
        let key = |variable: &str| {
            let value = env.get(variable).filter(|value| !value.trim().is_empty())?;
            Some(Key { variable: variable.to_owned(), value })
        };
        let named = section.api_key_env.as_deref();
        if let Some(base_url) = &section.base_url {
            // A server of one's own may want no key at all.
            let key = named.map(|name| key(name).ok_or_else(|| unset(name))).transpose()?;
            return Ok(Self::Endpoint { base_url: base_url.clone(), key });
        }
        let variable = named.unwrap_or(KEY_VARIABLE);
        let openai = |key| Self::Endpoint { base_url: OPENAI.to_owned(), key: Some(key) };
        match section.auth_mode {
            AuthMode::ApiKey => key(variable).map(openai).ok_or_else(|| unset(variable)),
            AuthMode::Auto => match key(variable) {
                Some(key) => Ok(openai(key)),
                // A variable that is named and not set is a mistake, not a wish for another account.
                None if named.is_some() => Err(unset(variable)),
                None => host(section, env),
            },
            AuthMode::Host => host(section, env),
        }
    }

    /// For the record; without any value.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Endpoint { key: Some(key), .. } => format!("api_key ({})", key.variable),
            Self::Endpoint { key: None, .. } => "none".to_owned(),
            Self::Host { .. } => "host".to_owned(),
        }
    }

    /// Every credential that is in play, so that it can be hidden wherever it turns up.
    pub(super) fn secrets(&self) -> Vec<String> {
        match self {
            Self::Endpoint { key, .. } => key.iter().map(|key| key.value.clone()).collect(),
            Self::Host { auth } => {
                let document: Option<Value> = fs::read(auth).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
                let mut found = Vec::new();
                texts(&document.unwrap_or_default(), &mut found);
                found
            }
        }
    }
}

/// Whether a section's model is sold at list prices.
pub(super) fn is_openai(section: &ProposerSection) -> bool {
    section.base_url.as_deref().is_none_or(|url| url.trim_end_matches('/') == OPENAI)
}

fn host(section: &ProposerSection, env: &Environment) -> Result<Access, OptimizerError> {
    let usual = || env.get("HOME").map(|home| Utf8PathBuf::from(home).join(".codex"));
    let given = section.codex_home.clone();
    let dir = given.or_else(|| env.get("CODEX_HOME").map(Utf8PathBuf::from)).or_else(usual);
    let auth = dir.as_ref().map(|dir| dir.join(AUTH_FILE)).and_then(|auth| auth.canonicalize_utf8().ok());
    auth.filter(|auth| auth.is_file()).map(|auth| Access::Host { auth }).ok_or_else(|| {
        let place = dir.map_or_else(String::new, |dir| format!(" in {dir}"));
        let message = format!("codex has no credentials: {KEY_VARIABLE} is not set and there is no {AUTH_FILE}{place}");
        OptimizerError::new(ErrorCode::Proposer, message)
            .with_hint("Run `codex login`, or set the key variable, or name a server of your own in proposer.base_url.")
    })
}

fn unset(variable: &str) -> OptimizerError {
    let message = format!("the variable {variable}, which holds the proposer's key, is not set");
    OptimizerError::new(ErrorCode::Proposer, message)
        .with_hint(format!("Set {variable} in the environment of the run."))
}

/// Long texts of a sign-in: tokens and ids. Short ones are words.
fn texts(value: &Value, found: &mut Vec<String>) {
    const SHORTEST: usize = 16;
    match value {
        Value::String(text) if text.len() >= SHORTEST => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(entries) => entries.values().for_each(|entry| texts(entry, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;

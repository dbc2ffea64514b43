//! The token of a container: read from the environment, sent as a header, and never stored or shown.

use bytes::Bytes;
use reqwest::header::HeaderValue;

use super::container_error;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::secrets::{HIDDEN, Secret};

/// Shorter tokens are not hidden in replies, because that would change ordinary text.
const MIN_HIDDEN_BYTES: usize = 6;

/// The token of `container.token_env`.
#[derive(Debug, Clone)]
pub(super) struct ContainerToken {
    value: Secret,
    /// Marked as sensitive, so that it is never printed.
    bearer: HeaderValue,
}

impl ContainerToken {
    /// Reads the token from an environment variable. A blank variable counts as unset.
    pub(super) fn read(variable: &str) -> Result<Self, OptimizerError> {
        let value = std::env::var(variable).unwrap_or_default();
        if value.trim().is_empty() {
            let message = format!("container.token_env names {variable:?}, which is not set");
            let hint = format!("Set {variable} to the token of the container in the environment of the run.");
            return Err(container_error(message, hint));
        }
        Self::new(variable, Secret::new(value.trim()))
    }

    fn new(variable: &str, value: Secret) -> Result<Self, OptimizerError> {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", value.expose())).map_err(|error| {
            let message =
                format!("the token in {variable} (container.token_env) contains characters that are not allowed");
            container_error(message, format!("Put the token alone into {variable}, without line breaks."))
                .caused_by(error)
        })?;
        bearer.set_sensitive(true);
        Ok(Self { value, bearer })
    }

    /// Returns the value of the header `Authorization`.
    pub(super) fn bearer(&self) -> HeaderValue {
        self.bearer.clone()
    }

    /// Replaces the token in a reply that repeats it, so that it is neither stored nor shown.
    pub(super) fn hide_in(&self, body: Bytes) -> Bytes {
        let token = self.value.expose().as_bytes();
        if token.len() < MIN_HIDDEN_BYTES {
            return body;
        }
        let (mut shown, mut rest) = (Vec::new(), &body[..]);
        while let Some(at) = rest.windows(token.len()).position(|part| part == token) {
            shown.extend_from_slice(&rest[..at]);
            shown.extend_from_slice(HIDDEN.as_bytes());
            rest = &rest[at + token.len()..];
        }
        if shown.is_empty() {
            return body;
        }
        shown.extend_from_slice(rest);
        shown.into()
    }
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;

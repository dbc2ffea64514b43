//! The handlers of all routes.

pub(super) mod control;
pub(super) mod explore;
pub(super) mod page;
pub(super) mod read;
pub(super) mod submit;
pub(super) mod system;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;

use super::api_error::ApiError;
use super::context::Context;
use synth_optimizer_platform::artifacts::RunPaths;

/// The state that every handler receives.
type ServiceState = State<Arc<Context>>;
/// The response type of most handlers.
type Answer<T> = Result<Json<T>, ApiError>;

/// Path parameters that select a run.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RunPath {
    /// Id of the run.
    pub(super) run_id: RunId,
}

/// A valid run id.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, extend(
    "minLength" = 1, "maxLength" = 128, "pattern" = "^[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$",
))]
pub(super) struct RunId(pub(super) String);

impl TryFrom<String> for RunId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match RunPaths::new("".into(), &text) {
            Ok(_) if !text.is_empty() => Ok(Self(text)),
            // A client need not know which rule of paths it breaks.
            Ok(_) | Err(_) => Err("run_id is not a valid run id".into()),
        }
    }
}

/// The reason of a control request, in at most 1000 characters.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, extend("maxLength" = MAX_REASON_LENGTH))]
pub(super) struct Reason(String);

const MAX_REASON_LENGTH: usize = 1000;

impl TryFrom<String> for Reason {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.chars().count() {
            count if count > MAX_REASON_LENGTH => {
                Err(format!("reason has {count} characters; at most {MAX_REASON_LENGTH} are allowed"))
            }
            // The reason is shown on terminals: it must be one line without control characters.
            _ => Ok(Self(text.chars().map(|each| if each.is_control() { ' ' } else { each }).collect())),
        }
    }
}

/// The header `If-None-Match`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct IfNoneMatch {
    /// The ETag of the client's version. The response is 304 if it is still current.
    #[serde(default, rename = "if-none-match")]
    #[schemars(rename = "If-None-Match", with = "String")]
    known: Option<String>,
}

impl IfNoneMatch {
    /// Returns whether the header lists this ETag.
    fn has(&self, etag: &str) -> bool {
        let known = self.known.iter().flat_map(|known| known.split(','));
        known.map(|known| known.trim().trim_start_matches("W/")).any(|known| known == etag || known == "*")
    }
}

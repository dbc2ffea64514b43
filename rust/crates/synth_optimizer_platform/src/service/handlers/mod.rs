//! What each route does.

pub(super) mod control;
pub(super) mod events;
pub(super) mod read;
pub(super) mod submit;
pub(super) mod system;
pub(super) mod work;

use schemars::JsonSchema;
use serde::Deserialize;

/// The run that is meant.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RunPath {
    /// Id of the run.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9._-]+$"))]
    pub(super) run_id: String,
}

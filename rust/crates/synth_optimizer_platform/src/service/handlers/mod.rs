//! What each route does.

pub(super) mod control;
pub(super) mod events;
pub(super) mod read;
pub(super) mod submit;
pub(super) mod system;
pub(super) mod work;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::artifacts::RunPaths;

/// The run that is meant.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RunPath {
    /// Id of the run.
    pub(super) run_id: RunId,
}

/// A text that can be the id of a run.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct RunId(pub(super) String);

impl TryFrom<String> for RunId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match RunPaths::new("".into(), &text) {
            Ok(_) if !text.is_empty() => Ok(Self(text)),
            Ok(_) | Err(_) => Err("run_id is not the id of a run".into()),
        }
    }
}

impl JsonSchema for RunId {
    fn schema_name() -> Cow<'static, str> {
        "RunId".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$"})
    }
}

/// Why something is asked, in at most 1000 characters.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Reason(String);

const LONGEST_REASON: usize = 1000;

impl TryFrom<String> for Reason {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.chars().count() {
            count if count > LONGEST_REASON => {
                Err(format!("reason has {count} characters, and at most {LONGEST_REASON} are kept"))
            }
            // It is shown to people, on terminals as well: it is one line and moves no cursor.
            _ => Ok(Self(text.chars().map(|each| if each.is_control() { ' ' } else { each }).collect())),
        }
    }
}

impl JsonSchema for Reason {
    fn schema_name() -> Cow<'static, str> {
        "Reason".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": LONGEST_REASON})
    }
}

impl std::ops::Deref for Reason {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

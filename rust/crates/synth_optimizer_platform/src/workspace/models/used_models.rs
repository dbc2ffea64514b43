//! Which models a run asks for, and which ones answer.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::reader::Reader;
use super::query::{at_one_moment, first};
use super::refusal::ReadError;

/// The models of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RunModels {
    /// The model that the program runs with.
    pub policy: ModelUse,
    /// The model that writes proposals.
    pub proposer: ModelUse,
}

/// A model that was asked for, and the one that answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelUse {
    /// The model that is asked for; null where the config names none.
    pub requested: Option<String>,
    /// The model that answered last; null is unknown. Containers do not tell it of the policy.
    pub effective: Option<String>,
}

impl RunModels {
    /// The models of a run that has not begun: nobody has answered yet.
    pub fn asked(policy: Option<String>, proposer: Option<String>) -> Self {
        let of = |requested| ModelUse { requested, effective: None };
        Self { policy: of(policy), proposer: of(proposer) }
    }
}

impl Reader {
    /// The models of the run.
    pub fn run_models(&self) -> Result<RunModels, ReadError> {
        let doing = "read the models";
        at_one_moment(self, |db| {
            let sql = "SELECT config_json ->> '$.policy.model', config_json ->> '$.proposer.model' FROM run";
            let configured = first(db, doing, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let (policy, proposer): (Option<String>, Option<String>) = configured.unwrap_or_default();
            let sql = "SELECT requested_model, effective_model FROM proposer_calls
                       WHERE status = 'completed' ORDER BY request DESC LIMIT 1";
            let answered = first(db, doing, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let (asked, effective): (Option<String>, Option<String>) = answered.unwrap_or_default();
            let policy = ModelUse { requested: policy, effective: None };
            Ok(RunModels { policy, proposer: ModelUse { requested: asked.or(proposer), effective } })
        })
    }
}

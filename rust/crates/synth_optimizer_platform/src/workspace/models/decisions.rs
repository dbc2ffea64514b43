//! How a candidate was judged, step by step.

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::store::int;
use super::query::{MILESTONES, list, parsed, whole};
use crate::model::envelope::rfc3339;
use crate::model::error::OptimizerError;
use crate::model::event_fields::Stage;
use crate::model::score::Comparison;

/// One step of how a candidate was judged.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CandidateDecision {
    /// `promoted`, `accepted`, `rejected` or `deferred`.
    pub decision: String,
    /// The evaluation on which it was judged.
    pub evaluation_stage: Stage,
    /// A stable short code, such as `primary_improved`.
    pub reason: String,
    /// The values that were compared; null for the seed and for a candidate that could not be judged.
    pub comparison: Option<Comparison>,
    /// The event of the decision.
    pub sequence: u64,
    /// When it was decided.
    pub at: String,
}

#[derive(Deserialize)]
struct Decided {
    stage: Stage,
    reason: String,
    #[serde(default)]
    comparison: Option<Comparison>,
}

/// The decisions about a candidate, the first one first. All of them lie between its first and its last event.
pub(super) fn decisions(
    db: &Connection,
    candidate: &str,
    registered: u64,
    updated: u64,
) -> Result<Vec<CandidateDecision>, OptimizerError> {
    let doing = "read the decisions";
    let sql = format!(
        "SELECT sequence, unix_millis, substr(type, length('candidate.') + 1), fields FROM {MILESTONES}
           AND type IN ('candidate.promoted', 'candidate.accepted', 'candidate.rejected', 'candidate.deferred')
           AND sequence BETWEEN ?1 AND ?2 AND fields ->> 'candidate_id' = ?3
         ORDER BY sequence"
    );
    let found = list(db, doing, &sql, params![int(registered), int(updated), candidate], |row| {
        Ok((whole(row, 0)?, whole(row, 1)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?))
    })?;
    let decision = |(sequence, millis, decision, fields): (u64, u64, String, String)| {
        let Decided { stage, reason, comparison } = parsed(doing, &fields)?;
        Ok(CandidateDecision { decision, evaluation_stage: stage, reason, comparison, sequence, at: rfc3339(millis) })
    };
    found.into_iter().map(decision).collect()
}

//! Scores of a candidate by row, as the search counts them: the latest score of each row.

use std::collections::BTreeMap;

use rusqlite::{Connection, params};

use super::super::error::json;
use super::super::projector::totals;
use super::super::query::list;
use synth_optimizer_core::config::gepa::{Direction, OUTCOME_REWARD};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::Objective;
use synth_optimizer_core::model::score::Gain;

/// Which rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// The train rows of the full evaluation: those on which the initial candidate was evaluated.
    Pool,
    /// Every train row that has a score.
    Train,
    /// The rows of the minibatch evaluation.
    Minibatch,
    Heldout,
}

/// A row and its value for each objective, in the order of the objectives. `None` if the container returned no value.
type RowValues = (String, Vec<Option<f64>>);

/// Returns the scores of a candidate up to an event. Rows are in the order of the search, so that sums are equal to the
/// last digit.
pub(super) fn values(
    db: &Connection,
    candidate: &str,
    objectives: &[Objective],
    rows: Rows,
    until: u64,
) -> Result<Vec<RowValues>, OptimizerError> {
    let doing = "read the scores of a candidate";
    let (place, which) = match rows {
        Rows::Pool => (
            "(SELECT min(s.call_id) FROM rollouts s INDEXED BY rollouts_by_candidate WHERE s.candidate_id = ?3
                AND s.example_id = r.example_id AND s.evaluation_stage = 'seed_full_train')",
            "r.evaluation_stage <> 'heldout'",
        ),
        Rows::Train => ("r.call_id", "r.evaluation_stage <> 'heldout' AND ?3 IS NOT NULL"),
        Rows::Minibatch => ("r.call_id", "r.evaluation_stage = 'candidate_minibatch' AND ?3 IS NOT NULL"),
        Rows::Heldout => ("r.call_id", "r.evaluation_stage = 'heldout' AND ?3 IS NOT NULL"),
    };
    let sql = format!(
        "SELECT r.example_id, {place}, r.reward, r.objectives_json FROM rollouts r INDEXED BY rollouts_by_candidate
         WHERE r.candidate_id = ?1 AND r.status = 'finished' AND r.settled_sequence <= ?2 AND {which} ORDER BY r.settled_sequence"
    );
    let seed = totals(db)?.seed_candidate_id.map(|seed| seed.to_string()).unwrap_or_default();
    type Scored = (String, Option<i64>, f64, Option<String>);
    let found: Vec<Scored> = list(db, doing, &sql, params![candidate, until, seed], |row| row.try_into())?;
    let mut latest: BTreeMap<String, (i64, Vec<Option<f64>>)> = BTreeMap::new();
    for (row, place, reward, told) in found {
        // A row on which the initial candidate was not evaluated is not in the pool.
        let Some(place) = place else { continue };
        let told: BTreeMap<String, f64> =
            told.map(|told| serde_json::from_str(&told).map_err(json(doing))).transpose()?.unwrap_or_default();
        let value = |objective: &Objective| {
            told.get(&objective.name).copied().or_else(|| (objective.name == OUTCOME_REWARD).then_some(reward))
        };
        latest.insert(row, (place, objectives.iter().map(value).collect()));
    }
    let mut ordered: Vec<_> = latest.into_iter().collect();
    ordered.sort_by_key(|(_, (place, _))| *place);
    Ok(ordered.into_iter().map(|(row, (_, values))| (row, values)).collect())
}

/// Returns the latest scores of a candidate by row, for one objective.
pub(super) fn latest_values(
    db: &Connection,
    candidate: &str,
    objective: &Objective,
    rows: Rows,
) -> Result<Vec<(String, f64)>, OptimizerError> {
    let rows = values(db, candidate, std::slice::from_ref(objective), rows, LATEST)?;
    Ok(rows.into_iter().filter_map(|(row, values)| Some((row, (*values.first()?)?))).collect())
}

/// Returns the gain of a candidate over another one, on the rows for which both have scores.
pub(super) fn gain(
    db: &Connection,
    candidate: &str,
    other: &str,
    objective: &Objective,
    rows: Rows,
) -> Result<Option<Gain>, OptimizerError> {
    let scored = |candidate: &str| latest_values(db, candidate, objective, rows);
    Ok(paired_gain(&scored(candidate)?, &scored(other)?, objective.direction))
}

/// Returns the gain of scores over others, on the rows that have both.
pub(super) fn paired_gain(own: &[(String, f64)], others: &[(String, f64)], direction: Direction) -> Option<Gain> {
    let others: BTreeMap<&str, f64> = others.iter().map(|(row, value)| (row.as_str(), *value)).collect();
    Gain::of(own.iter().filter_map(|(row, own)| {
        let other = others.get(row.as_str())?;
        Some((direction.oriented(*own), direction.oriented(*other)))
    }))
}

/// A sequence number after every event.
pub(super) const LATEST: u64 = i64::MAX as u64;

//! The best candidate so far, and since when it is.

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::projector::{read_candidate, totals};
use super::super::reader::Reader;
use super::query::{at_one_moment, objectives, stored_at};
use super::refusal::ReadError;
use super::row_values::{Rows, gain};
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::Direction;
use synth_optimizer_core::model::run_totals::BestMark;
use synth_optimizer_core::model::score::{Gain, Score};

/// The best candidate so far; after the run, the one that it returns.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BestCandidate {
    #[serde(flatten)]
    pub candidate: Candidate,
    /// The deciding objective.
    pub metric: String,
    /// Which way is better.
    pub direction: Direction,
    /// The event that made it the best, or changed its scores since.
    pub sequence: u64,
    /// When that event was stored.
    pub at: Option<String>,
    /// The seed's score on all train rows.
    pub seed_score: Option<Score>,
    /// How much better it is than the seed on the train rows that both have scores for; null for the seed itself. The
    /// search has chosen by these rows, so it flatters.
    pub gain: Option<Gain>,
    /// How much better it is than the seed on held-out rows, which chose nothing.
    pub heldout_gain: Option<Gain>,
}

impl Reader {
    /// The best candidate so far; none before the seed is measured.
    pub fn best_candidate(&self) -> Result<Option<BestCandidate>, ReadError> {
        at_one_moment(self, |db| Ok(best(db)?))
    }

    /// Which candidate is the best and since when.
    pub fn best_mark(&self) -> Result<Option<BestMark>, ReadError> {
        at_one_moment(self, |db| Ok(totals(db)?.best))
    }
}

fn best(db: &Connection) -> Result<Option<BestCandidate>, OptimizerError> {
    let totals = totals(db)?;
    let Some(BestMark { sequence, candidate_id }) = totals.best else { return Ok(None) };
    let Some(objective) = objectives(db)?.and_then(|set| set.objectives.into_iter().next()) else { return Ok(None) };
    let Some(candidate) = read_candidate(db, candidate_id.as_str())? else { return Ok(None) };
    let seed = match &totals.seed_candidate_id {
        Some(seed) => read_candidate(db, seed.as_str())?,
        None => None,
    };
    let over_seed = |rows: Rows| match &totals.seed_candidate_id {
        Some(seed) if *seed != candidate_id => gain(db, candidate_id.as_str(), seed.as_str(), &objective, rows),
        Some(_) | None => Ok(None),
    };
    Ok(Some(BestCandidate {
        gain: over_seed(Rows::Pool)?,
        heldout_gain: over_seed(Rows::Heldout)?,
        candidate,
        direction: objective.direction,
        metric: objective.name,
        sequence,
        at: stored_at(db, sequence)?,
        seed_score: seed.and_then(|seed| seed.train_score),
    }))
}

//! How the scores went, metric by metric: what a chart of a run is drawn from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::reader::Reader;
use super::query::{at_one_moment, objectives};
use super::refusal::{ReadError, quoted, word};
use super::rollouts::RowSplit;
use super::scores::settled;
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::event_fields::{Objective, Stage};

/// The most points of one answer, over all of its series.
const MOST_POINTS: usize = 5000;

/// Which series are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SeriesQuery {
    /// Only this objective.
    pub metric: Option<String>,
    /// Only `train` or only `heldout` rows.
    pub split: Option<String>,
}

impl SeriesQuery {
    /// Whether it can be answered, if there is something to read.
    pub fn check(&self) -> Result<(), ReadError> {
        self.rows().map(drop)
    }

    fn rows(&self) -> Result<Option<RowSplit>, ReadError> {
        word("split", self.split.as_deref(), RowSplit::from_word, RowSplit::WORDS)
    }
}

/// Scores by metric and split.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ScoreSeriesList {
    /// The series, the deciding metric first.
    pub series: Vec<ScoreSeries>,
    /// Whether every score is there; a very long run shows its first 5000 evaluations.
    pub is_complete: bool,
}

/// The scores of one metric, in the order in which they were settled. On train rows these are the full evaluations; a
/// screening is on other rows and cannot be compared.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ScoreSeries {
    /// The objective.
    pub metric: String,
    /// `train` or `heldout`.
    pub split: RowSplit,
    /// Which way is better.
    pub direction: Direction,
    /// The scores.
    pub points: Vec<ScorePoint>,
}

/// A score and the best one until then.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ScorePoint {
    /// The event that settled it.
    pub sequence: u64,
    /// When it was settled.
    pub at: String,
    /// Who was measured.
    pub candidate_id: String,
    /// The mean over the rows.
    pub value: f64,
    /// Rows.
    pub n: u32,
    /// Unknown for fewer than two rows.
    pub standard_error: Option<f64>,
    /// The best value of the series until here.
    pub best_so_far: f64,
}

const COMPARABLE: &[(&str, Stage)] = &[
    ("candidate.evaluated", Stage::SeedFullTrain),
    ("candidate.full_train_evaluated", Stage::CandidateFullTrain),
    ("heldout.completed", Stage::Heldout),
];

impl Reader {
    /// The scores of the run as series.
    pub fn score_series(&self, query: &SeriesQuery) -> Result<ScoreSeriesList, ReadError> {
        let split = query.rows()?;
        at_one_moment(self, |db| {
            let declared = objectives(db)?.map(|set| set.objectives).unwrap_or_default();
            let metrics = wanted(&declared, query.metric.as_deref())?;
            let splits =
                [RowSplit::Train, RowSplit::Heldout].into_iter().filter(|known| split.is_none_or(|it| it == *known));
            let series = |objective: &&Objective, split: RowSplit| ScoreSeries {
                metric: objective.name.clone(),
                split,
                direction: objective.direction,
                points: Vec::new(),
            };
            let mut all: Vec<ScoreSeries> =
                splits.flat_map(|split| metrics.iter().map(move |objective| series(objective, split))).collect();
            let mut found = settled(db, -1, MOST_POINTS + 1, COMPARABLE)?;
            let is_complete = found.len() <= MOST_POINTS;
            found.truncate(MOST_POINTS);
            // The deciding objective alone needs no rollouts.
            let deciding_only = metrics.iter().all(|objective| Some(*objective) == declared.first());
            let read = if deciding_only { declared.get(..1).unwrap_or_default() } else { &declared };
            for done in found.iter().filter(|done| split.is_none_or(|split| split == done.split())) {
                for (objective, score) in done.metrics(db, read)? {
                    let of =
                        |series: &&mut ScoreSeries| series.metric == objective.name && series.split == done.split();
                    let Some(series) = all.iter_mut().find(of) else { continue };
                    let best = series
                        .points
                        .last()
                        .map_or(score.mean, |last| better(series.direction, last.best_so_far, score.mean));
                    series.points.push(ScorePoint {
                        sequence: done.sequence,
                        at: done.at.clone(),
                        candidate_id: done.candidate_id.clone(),
                        value: score.mean,
                        n: score.n,
                        standard_error: score.standard_error,
                        best_so_far: best,
                    });
                }
            }
            Ok(ScoreSeriesList { series: all, is_complete })
        })
    }
}

fn wanted<'a>(declared: &'a [Objective], metric: Option<&str>) -> Result<Vec<&'a Objective>, ReadError> {
    let found: Vec<&Objective> =
        declared.iter().filter(|objective| metric.is_none_or(|metric| metric == objective.name)).collect();
    match metric {
        Some(metric) if found.is_empty() && !declared.is_empty() => {
            let names: Vec<&str> = declared.iter().map(|objective| objective.name.as_str()).collect();
            let hint = format!("The run measures {}.", names.join(", "));
            let message = format!("{} is no metric of the run", quoted(metric));
            Err(ReadError::invalid("filter_invalid", "metric", message, hint))
        }
        _ => Ok(found),
    }
}

fn better(direction: Direction, one: f64, other: f64) -> f64 {
    match direction {
        Direction::Maximize => one.max(other),
        Direction::Minimize => one.min(other),
    }
}

//! The scores of a run: pages with one score for each candidate, stage and metric, and series for charts.

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::error::{invariant, json};
use super::super::query::{MILESTONES, document, first, list};
use super::super::reader::Reader;
use super::read_error::{ReadError, after_sequence, page_size, quoted, word};
use super::rollouts::RowSplit;
use super::row_values::{Rows, values};
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::canonical::canonical_digest;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::{Objective, ObjectiveSetDeclared, Stage};
use synth_optimizer_core::model::score::Score;

/// A page of scores, in the order in which their evaluations completed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ScorePage {
    /// The scores. All scores of one evaluation are on the same page.
    pub items: Vec<ScoreEntry>,
    /// Pass it as `since` to get the next page.
    pub next_since: i64,
    /// Whether there are more scores now.
    pub has_more: bool,
}

/// The score of a candidate on the rows of one stage, by one metric. The evaluation of a parent on a minibatch is part of
/// a comparison and has no score of its own.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ScoreEntry {
    /// Digest of run, candidate, split, stage and metric. The same score always has the same id.
    pub score_id: String,
    /// The run.
    pub run_id: String,
    /// The candidate.
    pub candidate_id: String,
    /// The container's id of the task.
    pub harness_id: String,
    /// Digest of the container's contract, program and rows. Scores with the same digest can be compared.
    pub harness_digest: String,
    /// `train` or `heldout`.
    pub split: RowSplit,
    /// The evaluation stage.
    pub stage: Stage,
    /// The objective.
    pub metric: String,
    /// Which way is better.
    pub direction: Direction,
    /// The mean over the rows.
    pub value: f64,
    /// Rows.
    pub n: u32,
    /// Null for fewer than two rows.
    pub standard_error: Option<f64>,
    /// The artifact with the scores by row: the event feed during the run, then the candidate registry.
    pub artifact_ref: ScoreArtifact,
    /// The event that settled it.
    pub sequence: u64,
    /// When it was settled.
    pub at: String,
}

/// A file of the run directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ScoreArtifact {
    /// Its name.
    pub path: String,
    /// SHA-256 of its content. Null while the file still grows.
    pub sha256: Option<String>,
}

/// Checks the parameters of a score page. Returns the sequence number after which it begins, and its size.
pub fn score_window(since: Option<i64>, limit: Option<i64>) -> Result<(i64, usize), ReadError> {
    Ok((after_sequence("since", since)?, page_size(limit, 100, 1000)?))
}

/// The most evaluations in one list of series.
const MAX_POINTS: usize = 5000;

/// Selects score series.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SeriesQuery {
    /// Only this objective.
    pub metric: Option<String>,
    /// Only `train` or only `heldout` rows.
    pub split: Option<String>,
}

impl SeriesQuery {
    /// Checks the parameters without reading.
    pub fn check(&self) -> Result<(), ReadError> {
        self.rows().map(drop)
    }

    fn rows(&self) -> Result<Option<RowSplit>, ReadError> {
        word("split", self.split.as_deref(), RowSplit::parse, RowSplit::NAMES)
    }
}

/// The score series of a run, by metric and split.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ScoreSeriesList {
    /// The series. The deciding metric comes first.
    pub series: Vec<ScoreSeries>,
    /// Whether every score is included. A very long run has only its first 5000 evaluations here.
    pub is_complete: bool,
}

/// The scores of one metric, in the order in which their evaluations completed. On train rows these are the full
/// evaluations; minibatch evaluations use other rows and cannot be compared.
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

/// A score, and the best one so far.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ScorePoint {
    /// The event that settled it.
    pub sequence: u64,
    /// When it was settled.
    pub at: String,
    /// The candidate.
    pub candidate_id: String,
    /// The mean over the rows.
    pub value: f64,
    /// Rows.
    pub n: u32,
    /// Null for fewer than two rows.
    pub standard_error: Option<f64>,
    /// The best value of the series until here.
    pub best_so_far: f64,
}

impl Reader {
    /// Returns the scores of evaluations that completed after an event. -1 and `None` mean all. `limit` is 1 to 1000, by
    /// default 100.
    pub fn score_page(&self, since: Option<i64>, limit: Option<i64>) -> Result<ScorePage, ReadError> {
        let (since, limit) = score_window(since, limit)?;
        self.in_snapshot(|db| {
            let mut page = ScorePage { items: Vec::new(), next_since: since, has_more: false };
            let Some(context) = ScoreContext::read(db)? else { return Ok(page) };
            for settled in settled(db, since, limit + 1, |_| true)? {
                let measured = settled.metrics(db, &context.objectives)?;
                if !page.items.is_empty() && page.items.len() + measured.len() > limit {
                    page.has_more = true;
                    break;
                }
                page.next_since = settled.sequence as i64;
                page.items.extend(measured.iter().map(|(objective, score)| context.entry(&settled, objective, score)));
            }
            Ok(page)
        })
    }

    /// Returns the scores of the run as series.
    pub fn score_series(&self, query: &SeriesQuery) -> Result<ScoreSeriesList, ReadError> {
        let split = query.rows()?;
        self.in_snapshot(|db| {
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
            let mut found = settled(db, -1, MAX_POINTS + 1, |stage| stage != Stage::CandidateMinibatch)?;
            let is_complete = found.len() <= MAX_POINTS;
            found.truncate(MAX_POINTS);
            // Scores by the deciding objective are in the log, so the rollouts need not be read for them.
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

pub(super) fn wanted<'a>(declared: &'a [Objective], metric: Option<&str>) -> Result<Vec<&'a Objective>, ReadError> {
    let found: Vec<&Objective> =
        declared.iter().filter(|objective| metric.is_none_or(|metric| metric == objective.name)).collect();
    match metric {
        Some(metric) if found.is_empty() && !declared.is_empty() => {
            let names: Vec<&str> = declared.iter().map(|objective| objective.name.as_str()).collect();
            let hint = format!("Use one of {}.", names.join(", "));
            let message = format!("{} is not a metric of the run", quoted(metric));
            Err(ReadError::invalid("invalid_filter", "metric", message, hint))
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

/// The fields that all scores of a run share.
struct ScoreContext {
    run_id: String,
    /// The container's id of the program, and the digest of contract, program and rows.
    harness: (String, String),
    objectives: Vec<Objective>,
    artifact: ScoreArtifact,
}

impl ScoreContext {
    /// Reads the context. Returns `None` before the task is loaded.
    fn read(db: &Connection) -> Result<Option<Self>, OptimizerError> {
        let doing = "read the metrics";
        let run_id: Option<String> = first(db, doing, "SELECT run_id FROM run", [], |row| row.get(0))?;
        let sql = "SELECT path, sha256 FROM artifacts WHERE kind = 'candidate_registry'";
        let artifact = first(db, doing, sql, [], |row| Ok(ScoreArtifact { path: row.get(0)?, sha256: row.get(1)? }))?;
        let artifact = artifact.unwrap_or_else(|| ScoreArtifact { path: "events.jsonl".to_owned(), sha256: None });
        Ok(match (run_id, harness(db)?, objectives(db)?) {
            (Some(run_id), Some(harness), Some(set)) => {
                Some(Self { run_id, harness, objectives: set.objectives, artifact })
            }
            _ => None,
        })
    }

    fn entry(&self, settled: &CompletedEvaluation, objective: &Objective, score: &Score) -> ScoreEntry {
        let split = settled.split();
        let identity = (&self.run_id, &settled.candidate_id, split, settled.stage, &objective.name);
        ScoreEntry {
            score_id: format!("score_{}", canonical_digest(&identity).get(..32).unwrap_or_default()),
            run_id: self.run_id.clone(),
            candidate_id: settled.candidate_id.clone(),
            harness_id: self.harness.0.clone(),
            harness_digest: self.harness.1.clone(),
            split,
            stage: settled.stage,
            metric: objective.name.clone(),
            direction: objective.direction,
            value: score.mean,
            n: score.n,
            standard_error: score.standard_error,
            artifact_ref: self.artifact.clone(),
            sequence: settled.sequence,
            at: settled.at.clone(),
        }
    }
}

/// Returns the container's id of the program, and the digest of contract, program and rows: scores with the same digest can
/// be compared. `None` before the program is loaded.
pub(super) fn harness(db: &Connection) -> Result<Option<(String, String)>, OptimizerError> {
    let doing = "read the container's snapshots";
    let sql = format!(
        "SELECT fields ->> 'program_id', fields ->> 'program_digest',
           (SELECT fields ->> 'rows_digest' FROM {MILESTONES} AND type = 'dataset.rows.loaded'
            ORDER BY sequence DESC LIMIT 1)
         FROM {MILESTONES} AND type = 'container.program.loaded' ORDER BY sequence DESC LIMIT 1"
    );
    type ProgramRow = (String, Option<String>, Option<String>);
    let program_row: Option<ProgramRow> = first(db, doing, &sql, [], |row| row.try_into())?;
    let Some((id, program, rows)) = program_row else { return Ok(None) };
    let sql = "SELECT kind, lower(hex(digest)), max(taken_at) FROM snapshots
               WHERE kind IN ('contract', 'program', 'dataset', 'train_rows', 'heldout_rows')
               GROUP BY kind ORDER BY kind";
    let documents: Vec<(String, String)> = list(db, doing, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    // Without stored documents, the digests in the events are used. They also depend on the fields that this run may
    // change.
    let digest = if documents.is_empty() { canonical_digest(&(program, rows)) } else { canonical_digest(&documents) };
    Ok(Some((id, digest)))
}

/// Returns the objectives of the run, or `None` before the task is loaded.
pub(super) fn objectives(db: &Connection) -> Result<Option<ObjectiveSetDeclared>, OptimizerError> {
    let sql =
        format!("SELECT fields FROM {MILESTONES} AND type = 'objective_set.declared' ORDER BY sequence DESC LIMIT 1");
    document(db, "read the objectives", &sql, [])
}

/// An evaluation that completed with a score.
#[derive(Debug, Clone)]
struct CompletedEvaluation {
    sequence: u64,
    at: String,
    stage: Stage,
    candidate_id: String,
    score: Score,
}

impl CompletedEvaluation {
    fn split(&self) -> RowSplit {
        match self.stage {
            Stage::Heldout => RowSplit::Heldout,
            Stage::SeedFullTrain
            | Stage::ParentMinibatchReference
            | Stage::CandidateMinibatch
            | Stage::CandidateFullTrain
            | Stage::Repeat
            | Stage::Glance
            | Stage::Check => RowSplit::Train,
        }
    }

    /// Returns its score by each objective. The score of the deciding one is in the log; the others are computed from the
    /// rollouts.
    fn metrics<'a>(
        &self,
        db: &Connection,
        objectives: &'a [Objective],
    ) -> Result<Vec<(&'a Objective, Score)>, OptimizerError> {
        let Some((deciding, others)) = objectives.split_first() else { return Ok(Vec::new()) };
        let mut metrics = vec![(deciding, self.score)];
        if others.is_empty() {
            return Ok(metrics);
        }
        let rows = match self.stage {
            Stage::Heldout => Rows::Heldout,
            Stage::SeedFullTrain | Stage::CandidateFullTrain | Stage::Check => Rows::Pool,
            Stage::CandidateMinibatch | Stage::ParentMinibatchReference | Stage::Repeat | Stage::Glance => {
                Rows::Minibatch
            }
        };
        let by_row = values(db, &self.candidate_id, others, rows, self.sequence)?;
        for (place, objective) in others.iter().enumerate() {
            let column = by_row.iter().filter_map(|(_, values)| values.get(place).copied().flatten());
            metrics.extend(Score::of(column).map(|score| (objective, score)));
        }
        Ok(metrics)
    }
}

/// The event types that complete an evaluation with a score, their stages, and the fields with candidate and score.
const STAGES: &[(&str, Stage, &str, &str)] = &[
    ("candidate.evaluated", Stage::SeedFullTrain, "candidate_id", "score"),
    ("candidate.minibatch_evaluated", Stage::CandidateMinibatch, "candidate_id", "score"),
    ("candidate.full_train_evaluated", Stage::CandidateFullTrain, "candidate_id", "score"),
    ("check.decided", Stage::Check, "head_id", "head_score"),
    ("heldout.completed", Stage::Heldout, "candidate_id", "score"),
];

/// Returns the evaluations of the wanted stages that completed after an event, in order.
fn settled(
    db: &Connection,
    since: i64,
    limit: usize,
    wanted: impl Fn(Stage) -> bool,
) -> Result<Vec<CompletedEvaluation>, OptimizerError> {
    let doing = "read the scores";
    // One ordered list per type, merged, so that only the rows of the page are read.
    let of_type = |(wire, stage, candidate, score): &(&str, Stage, &str, &str)| {
        format!(
            "SELECT sequence, unix_millis, '{}', fields ->> '{candidate}', fields -> '{score}' FROM {MILESTONES}
               AND type = '{wire}' AND sequence > ?1 AND fields -> '{score}' <> 'null'",
            stage.as_str()
        )
    };
    let types: Vec<String> = STAGES.iter().filter(|(_, stage, ..)| wanted(*stage)).map(of_type).collect();
    let sql = format!("{} ORDER BY sequence LIMIT ?2", types.join(" UNION ALL "));
    type ScoreRow = (u64, u64, String, String, String);
    let found: Vec<ScoreRow> = list(db, doing, &sql, params![since, limit], |row| row.try_into())?;
    let mut settled = Vec::with_capacity(found.len());
    for (sequence, millis, stage, candidate_id, score) in found {
        let score = serde_json::from_str(&score).map_err(json(doing))?;
        let stage = Stage::parse(&stage).ok_or_else(|| invariant(format!("{stage} is not a stage")))?;
        settled.push(CompletedEvaluation { sequence, at: rfc3339(millis), stage, candidate_id, score });
    }
    Ok(settled)
}

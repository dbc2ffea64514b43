//! The scores of a run: one for each candidate, stage and metric, in the order in which they were settled.

use rusqlite::{Connection, params};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::reader::Reader;
use super::super::store::int;
use super::harness::Harness;
use super::query::{MILESTONES, at_one_moment, first, list, objectives, parsed, whole};
use super::refusal::{ReadError, after_sequence, page_size};
use super::rollouts::RowSplit;
use super::row_values::{Rows, values};
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::model::canonical::digest_of;
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::{Objective, Stage};
use synth_optimizer_core::model::score::Score;

/// Scores in the order in which they were settled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ScorePage {
    /// The scores. Those of one evaluation are never on two pages.
    pub items: Vec<ScoreEntry>,
    /// Pass it as `since` to go on from here.
    pub next_since: i64,
    /// Whether there are more now.
    pub has_more: bool,
}

/// What a candidate scored on the rows of one stage, by one metric. The measurement of a parent on the rows of a
/// generation is part of a comparison and no score of its own.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ScoreEntry {
    /// Made from run, candidate, split, stage and metric: the same score always has the same id.
    pub score_id: String,
    /// The run.
    pub run_id: String,
    /// Who was measured.
    pub candidate_id: String,
    /// The task, as the container names it.
    pub harness_id: String,
    /// Digest of the container's contract, program and rows. Scores can be compared where it is the same.
    pub harness_digest: String,
    /// `train` or `heldout`.
    pub split: RowSplit,
    /// The evaluation that gave it.
    pub stage: Stage,
    /// The objective.
    pub metric: String,
    /// Which way is better.
    pub direction: Direction,
    /// The mean over the rows.
    pub value: f64,
    /// Rows.
    pub n: u32,
    /// Unknown for fewer than two rows.
    pub standard_error: Option<f64>,
    /// The artifact that has the scores by row: the log as long as the run goes on, then the registry.
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
    /// SHA-256 of its content; null while it still grows.
    pub sha256: Option<String>,
}

/// From where and how many; whether that can be asked.
pub fn score_window(since: Option<i64>, limit: Option<i64>) -> Result<(i64, usize), ReadError> {
    Ok((after_sequence("since", since)?, page_size(limit, 100, 1000)?))
}

impl Reader {
    /// Scores that were settled after an event; -1 and nothing mean all. `limit` is 1 to 1000, 100 if it is not set.
    pub fn score_page(&self, since: Option<i64>, limit: Option<i64>) -> Result<ScorePage, ReadError> {
        let (since, limit) = score_window(since, limit)?;
        at_one_moment(self, |db| {
            let mut page = ScorePage { items: Vec::new(), next_since: since, has_more: false };
            let Some(about) = About::read(db)? else { return Ok(page) };
            for settled in settled(db, since, limit + 1, STAGES)? {
                let measured = settled.metrics(db, &about.objectives)?;
                if !page.items.is_empty() && page.items.len() + measured.len() > limit {
                    page.has_more = true;
                    break;
                }
                page.next_since = settled.sequence as i64;
                page.items.extend(measured.iter().map(|(objective, score)| about.entry(&settled, objective, score)));
            }
            Ok(page)
        })
    }
}

/// What all scores of a run have in common.
struct About {
    run_id: String,
    harness: Harness,
    objectives: Vec<Objective>,
    artifact: ScoreArtifact,
}

impl About {
    /// None before the task is loaded.
    fn read(db: &Connection) -> Result<Option<Self>, OptimizerError> {
        let doing = "read what is measured";
        let run_id: Option<String> = first(db, doing, "SELECT run_id FROM run", [], |row| row.get(0))?;
        let sql = "SELECT path, sha256 FROM artifacts WHERE kind = 'candidate_registry'";
        let artifact = first(db, doing, sql, [], |row| Ok(ScoreArtifact { path: row.get(0)?, sha256: row.get(1)? }))?;
        let artifact = artifact.unwrap_or_else(|| ScoreArtifact { path: "events.jsonl".to_owned(), sha256: None });
        Ok(match (run_id, Harness::read(db)?, objectives(db)?) {
            (Some(run_id), Some(harness), Some(set)) => {
                Some(Self { run_id, harness, objectives: set.objectives, artifact })
            }
            _ => None,
        })
    }

    fn entry(&self, settled: &Settled, objective: &Objective, score: &Score) -> ScoreEntry {
        let split = settled.split();
        let identity = (&self.run_id, &settled.candidate_id, split, settled.stage, &objective.name);
        ScoreEntry {
            score_id: format!("score_{}", digest_of(&identity).get(..32).unwrap_or_default()),
            run_id: self.run_id.clone(),
            candidate_id: settled.candidate_id.clone(),
            harness_id: self.harness.id.clone(),
            harness_digest: self.harness.digest.clone(),
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

/// An evaluation that is over and gave a score.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    pub(super) sequence: u64,
    pub(super) at: String,
    pub(super) stage: Stage,
    pub(super) candidate_id: String,
    score: Score,
}

impl Settled {
    pub(super) fn split(&self) -> RowSplit {
        match self.stage {
            Stage::Heldout => RowSplit::Heldout,
            Stage::SeedFullTrain
            | Stage::ParentMinibatchReference
            | Stage::CandidateMinibatch
            | Stage::CandidateFullTrain => RowSplit::Train,
        }
    }

    /// Its score by each objective. The deciding one is in the log; the others are counted from the same rollouts.
    pub(super) fn metrics<'a>(
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
            Stage::SeedFullTrain | Stage::CandidateFullTrain => Rows::Pool,
            Stage::CandidateMinibatch | Stage::ParentMinibatchReference => Rows::Minibatch,
        };
        let by_row = values(db, &self.candidate_id, others, rows, self.sequence)?;
        for (place, objective) in others.iter().enumerate() {
            let column = by_row.iter().filter_map(|row| row.get(place));
            metrics.extend(Score::of(column).map(|score| (objective, score)));
        }
        Ok(metrics)
    }
}

/// Evaluations that give a score, by the event that ends each.
pub(super) const STAGES: &[(&str, Stage)] = &[
    ("candidate.evaluated", Stage::SeedFullTrain),
    ("candidate.minibatch_evaluated", Stage::CandidateMinibatch),
    ("candidate.full_train_evaluated", Stage::CandidateFullTrain),
    ("heldout.completed", Stage::Heldout),
];

#[derive(Deserialize)]
struct Ended {
    candidate_id: String,
    score: Option<Score>,
}

/// Evaluations of these stages that ended after an event, in order.
pub(super) fn settled(
    db: &Connection,
    since: i64,
    limit: usize,
    stages: &[(&str, Stage)],
) -> Result<Vec<Settled>, OptimizerError> {
    let doing = "read the scores";
    // One ordered list by type, merged: no more is read than the page needs.
    let of_type = |(wire, _): &(&str, Stage)| {
        format!(
            "SELECT sequence, unix_millis, type, fields FROM {MILESTONES} AND type = '{wire}' AND sequence > ?1
               AND fields -> 'score' <> 'null'"
        )
    };
    let types: Vec<String> = stages.iter().map(of_type).collect();
    let sql = format!("{} ORDER BY sequence LIMIT ?2", types.join(" UNION ALL "));
    let found = list(db, doing, &sql, params![since, int(limit as u64)], |row| {
        Ok((whole(row, 0)?, whole(row, 1)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?))
    })?;
    let mut settled = Vec::with_capacity(found.len());
    for (sequence, millis, wire, fields) in found {
        let Ended { candidate_id, score } = parsed(doing, &fields)?;
        let stage = stages.iter().find(|(known, _)| *known == wire).map(|(_, stage)| *stage);
        if let (Some(stage), Some(score)) = (stage, score) {
            settled.push(Settled { sequence, at: rfc3339(millis), stage, candidate_id, score });
        }
    }
    Ok(settled)
}

//! Typed reads for artifacts and pages: candidates with their scores, decisions, the frontier, the state history.

use std::collections::BTreeMap;

use rusqlite::Row;
use serde::de::DeserializeOwned;

use super::error::{invariant, json};
use super::reader::Reader;
use crate::model::canonical::hex;
use crate::model::error::OptimizerError;
use crate::model::event::Event;
use crate::model::event_fields::{Operation, Stage};
use crate::model::ids::{CandidateId, Payload, RequestId, RowId};
use crate::model::lifecycle::{CandidateStatus, RunState, RunTrigger};
use crate::model::score::{Comparison, Score};

/// A score of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowScore {
    pub request: RequestId,
    pub row_id: RowId,
    pub stage: Stage,
    pub reward: f64,
    pub objectives: BTreeMap<String, f64>,
    /// Digest of the reply, 64 hex digits.
    pub trace_digest: Option<String>,
}

/// A candidate with everything that was measured of it.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateRecord {
    pub candidate_id: CandidateId,
    pub operation: Operation,
    pub parent_ids: Vec<CandidateId>,
    pub generation: Option<u32>,
    pub status: CandidateStatus,
    pub payload: Payload,
    pub changed_fields: Vec<String>,
    pub rationale: String,
    pub minibatch: Option<Score>,
    pub train: Option<Score>,
    pub heldout: Option<Score>,
    /// The rows of its screening.
    pub minibatch_rows: Vec<RowScore>,
    /// The latest score of every train row, whatever it was measured for.
    pub train_rows: Vec<RowScore>,
    pub heldout_rows: Vec<RowScore>,
    /// The events that registered it and that last were about it.
    pub registered: u64,
    pub updated: u64,
}

/// A decision about a candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub sequence: u64,
    pub candidate_id: CandidateId,
    /// `promoted`, `accepted`, `rejected` or `deferred`.
    pub decision: &'static str,
    pub stage: Stage,
    pub reason: String,
    pub comparison: Option<Comparison>,
}

/// A holder of a cell of the frontier.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontierCell {
    pub objective: String,
    /// None where a cell is an objective over all rows.
    pub row_id: Option<RowId>,
    pub candidate_id: CandidateId,
    pub score: f64,
}

/// One step of the run along its lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateChange {
    pub sequence: u64,
    pub unix_millis: u64,
    pub from: RunState,
    pub to: RunState,
    pub trigger: RunTrigger,
}

impl Reader {
    /// Every candidate, in the order in which they were registered.
    pub fn candidates(&self) -> Result<Vec<CandidateRecord>, OptimizerError> {
        let sql =
            "SELECT candidate_id, operation, parent_ids_json, generation, status, payload_json, changed_fields_json,
                     rationale, minibatch_score, train_score, heldout_score, registered, updated
                   FROM candidates ORDER BY registered";
        let found = self.list("read the candidates", sql, [], CandidateColumns::read)?;
        let mut scores = self.row_scores()?;
        found
            .into_iter()
            .map(|columns| {
                let rows = scores.remove(&columns.id).unwrap_or_default();
                columns.record(rows)
            })
            .collect()
    }

    /// Every decision about a candidate, in order.
    pub fn decisions(&self) -> Result<Vec<Decision>, OptimizerError> {
        let stored =
            self.milestones(&["candidate.promoted", "candidate.accepted", "candidate.rejected", "candidate.deferred"])?;
        Ok(stored
            .into_iter()
            .filter_map(|stored| {
                let (decision, fields) = match stored.event {
                    Event::CandidatePromoted(fields) => ("promoted", fields),
                    Event::CandidateAccepted(fields) => ("accepted", fields),
                    Event::CandidateRejected(fields) => ("rejected", fields),
                    Event::CandidateDeferred(fields) => {
                        return Some(Decision {
                            sequence: stored.sequence,
                            candidate_id: fields.candidate_id,
                            decision: "deferred",
                            stage: fields.stage,
                            reason: fields.reason.word().to_owned(),
                            comparison: None,
                        });
                    }
                    _ => return None,
                };
                Some(Decision {
                    sequence: stored.sequence,
                    candidate_id: fields.candidate_id,
                    decision,
                    stage: fields.stage,
                    reason: fields.reason,
                    comparison: fields.comparison,
                })
            })
            .collect())
    }

    /// Who holds which cell of the frontier.
    pub fn frontier(&self) -> Result<Vec<FrontierCell>, OptimizerError> {
        let sql = "SELECT objective, example_id, candidate_id, score FROM frontier_cells
                   ORDER BY objective, example_id, candidate_id";
        self.list("read the frontier", sql, [], |row| {
            let example: String = row.get(1)?;
            Ok(FrontierCell {
                objective: row.get(0)?,
                row_id: (!example.is_empty()).then(|| RowId::new(&example)),
                candidate_id: CandidateId::new(&row.get::<_, String>(2)?),
                score: row.get(3)?,
            })
        })
    }

    /// How the run moved along its lifecycle.
    pub fn state_history(&self) -> Result<Vec<StateChange>, OptimizerError> {
        let stored = self.milestones(&["optimizer.state.transitioned"])?;
        Ok(stored
            .into_iter()
            .filter_map(|stored| match stored.event {
                Event::StateTransitioned(change) => Some(StateChange {
                    sequence: stored.sequence,
                    unix_millis: stored.unix_millis,
                    from: change.from,
                    to: change.to,
                    trigger: change.trigger,
                }),
                _ => None,
            })
            .collect())
    }

    fn row_scores(&self) -> Result<BTreeMap<String, Vec<RowScore>>, OptimizerError> {
        let sql = "SELECT candidate_id, request, example_id, evaluation_stage, reward, objectives_json, trace
                   FROM rollouts WHERE status = 'finished' ORDER BY request";
        type Columns = (String, i64, String, String, f64, Option<String>, Option<Vec<u8>>);
        let found: Vec<Columns> = self.list("read the scores", sql, [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
        })?;
        let mut scores: BTreeMap<String, Vec<RowScore>> = BTreeMap::new();
        for (candidate, request, row, stage, reward, objectives, trace) in found {
            let score = RowScore {
                request: RequestId(request.unsigned_abs()),
                row_id: RowId::new(&row),
                stage: word(Stage::from_word(&stage), &stage)?,
                reward,
                objectives: objectives.as_deref().map(parsed).transpose()?.unwrap_or_default(),
                trace_digest: trace.as_deref().map(hex),
            };
            scores.entry(candidate).or_default().push(score);
        }
        Ok(scores)
    }
}

struct CandidateColumns {
    id: String,
    operation: String,
    parents: String,
    generation: Option<u32>,
    status: String,
    payload: String,
    changed: String,
    rationale: String,
    scores: [Option<String>; 3],
    registered: i64,
    updated: i64,
}

impl CandidateColumns {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            operation: row.get(1)?,
            parents: row.get(2)?,
            generation: row.get(3)?,
            status: row.get(4)?,
            payload: row.get(5)?,
            changed: row.get(6)?,
            rationale: row.get(7)?,
            scores: [row.get(8)?, row.get(9)?, row.get(10)?],
            registered: row.get(11)?,
            updated: row.get(12)?,
        })
    }

    fn record(self, rows: Vec<RowScore>) -> Result<CandidateRecord, OptimizerError> {
        let mut minibatch_rows = Vec::new();
        let mut heldout_rows = Vec::new();
        let mut latest: BTreeMap<RowId, RowScore> = BTreeMap::new();
        for row in rows {
            match row.stage {
                Stage::Heldout => heldout_rows.push(row),
                Stage::CandidateMinibatch => {
                    minibatch_rows.push(row.clone());
                    latest.insert(row.row_id.clone(), row);
                }
                Stage::SeedFullTrain | Stage::ParentMinibatchReference | Stage::CandidateFullTrain => {
                    latest.insert(row.row_id.clone(), row);
                }
            }
        }
        let mut train_rows: Vec<RowScore> = latest.into_values().collect();
        train_rows.sort_by_key(|row| row.request);
        let [minibatch, train, heldout] = self.scores;
        let score = |text: Option<String>| text.as_deref().map(parsed::<Score>).transpose();
        Ok(CandidateRecord {
            candidate_id: CandidateId::new(&self.id),
            operation: word(Operation::from_word(&self.operation), &self.operation)?,
            parent_ids: parsed(&self.parents)?,
            generation: self.generation,
            status: word(CandidateStatus::from_word(&self.status), &self.status)?,
            payload: parsed(&self.payload)?,
            changed_fields: parsed(&self.changed)?,
            rationale: self.rationale,
            minibatch: score(minibatch)?,
            train: score(train)?,
            heldout: score(heldout)?,
            minibatch_rows,
            train_rows,
            heldout_rows,
            registered: self.registered.unsigned_abs(),
            updated: self.updated.unsigned_abs(),
        })
    }
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, OptimizerError> {
    serde_json::from_str(text).map_err(json("read a projection"))
}

fn word<T>(read: Option<T>, text: &str) -> Result<T, OptimizerError> {
    read.ok_or_else(|| invariant(format!("the workspace holds {text:?}, which is no word of this product")))
}

//! Compares two runs, or two candidates of one run: settings, scores on shared rows, texts, usage and ends.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::projector::{read_candidate, totals};
use super::super::reader::{Reader, run_row};
use super::candidates::{deciding_objective, no_candidate};
use super::read_error::ReadError;
use super::row_values::{Rows, latest_values, paired_gain};
use super::scores::harness;
use synth_optimizer_core::model::candidate_view::Candidate;
use synth_optimizer_core::model::event_fields::{Objective, StoppedBy};
use synth_optimizer_core::model::lifecycle::RunState;
use synth_optimizer_core::model::run_totals::RunTotals;
use synth_optimizer_core::model::score::{Gain, Score};
use synth_optimizer_core::model::usage::RunUsage;

/// Settings that say where a run is stored. They differ between any two runs.
const PLACES: [&str; 2] = ["run.run_id", "run.output_dir"];

/// Selects the candidates of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompareQuery {
    /// The candidate of the first run: its id, `best` or `initial`. Default: its best one; in a comparison of a run with
    /// itself, the initial one.
    pub candidate_id: Option<String>,
    /// The candidate of the second run: its id, `best` or `initial`. Default: its best one.
    pub other_candidate_id: Option<String>,
}

/// A comparison of two runs, or of two candidates of one run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunComparison {
    /// The first run.
    pub left: ComparedRun,
    /// The second run.
    pub right: ComparedRun,
    /// The objective of the scores. Null if the runs have no common one.
    pub metric: Option<String>,
    /// Settings that differ, by dotted path. Where the runs are stored is left out.
    pub settings: Vec<SettingDifference>,
    /// Gain of the second candidate over the first one, on the train rows for which both have scores.
    pub train_gain: Option<Gain>,
    /// The same gain on held-out rows.
    pub heldout_gain: Option<Gain>,
    /// The texts of both candidates, by field.
    pub texts: Vec<ComparedText>,
    /// Why a part of the comparison is missing or has to be read with care.
    pub notes: Vec<String>,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ComparedRun {
    /// The run.
    pub run_id: String,
    /// Its state.
    pub state: RunState,
    /// The compared candidate. Null if the run has none.
    pub candidate_id: Option<String>,
    /// Its score on train rows.
    pub train_score: Option<Score>,
    /// Its score on held-out rows.
    pub heldout_score: Option<Score>,
    /// Candidates of the run.
    pub candidates: u64,
    /// Generations that were started.
    pub generations: u64,
    /// Rollouts with a score.
    pub rollouts_finished: u64,
    /// Calls, tokens and cost of the run.
    pub usage: RunUsage,
    /// The rule that ended the search. Null if it has not ended.
    pub stopped_by: Option<StoppedBy>,
}

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SettingDifference {
    /// The dotted path, such as `gepa.minibatch_size`.
    pub field: String,
    /// The value in the first run. Null if it is not set.
    pub left: Value,
    /// The value in the second run. Null if it is not set.
    pub right: Value,
}

/// A field with the texts of both candidates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ComparedText {
    /// The field.
    pub field: String,
    /// Whether both texts are equal.
    pub is_equal: bool,
    /// The text of the first candidate. Null if it has none.
    pub left: Option<String>,
    /// The text of the second candidate. Null if it has none.
    pub right: Option<String>,
}

/// What a comparison reads of one run.
#[derive(Debug)]
struct Side {
    run_id: String,
    config: Value,
    totals: RunTotals,
    candidate: Option<Candidate>,
    objective: Option<Objective>,
    /// Digest of contract, program and rows.
    harness: Option<String>,
    train: Vec<(String, f64)>,
    heldout: Vec<(String, f64)>,
}

/// Compares two runs, or two candidates of the same run.
pub fn compare_runs(left: &Reader, right: &Reader, query: &CompareQuery) -> Result<RunComparison, ReadError> {
    let is_same = left.path() == right.path();
    let (first, second) = (query.candidate_id.as_deref(), query.other_candidate_id.as_deref());
    let left = left.in_snapshot(|db| Side::read(db, first, is_same))?;
    let right = right.in_snapshot(|db| Side::read(db, second, false))?;
    let mut notes = Vec::new();
    let metric = common_metric(&left, &right, &mut notes);
    let gain = |ours: &[(String, f64)], theirs: &[(String, f64)]| {
        let metric = metric.as_ref()?;
        paired_gain(theirs, ours, metric.direction)
    };
    let (train_gain, heldout_gain) = (gain(&left.train, &right.train), gain(&left.heldout, &right.heldout));
    let id = |side: &Side| side.candidate.as_ref().map(|candidate| candidate.candidate_id.clone());
    if is_same && id(&left).is_some() && id(&left) == id(&right) {
        notes.push("both sides are the same candidate".to_owned());
    }
    if metric.is_some() && heldout_gain.is_none() {
        notes.push("no held-out row has scores of both candidates".to_owned());
    }
    Ok(RunComparison {
        settings: settings(&left.config, &right.config),
        texts: texts(left.candidate.as_ref(), right.candidate.as_ref()),
        metric: metric.map(|metric| metric.name),
        left: left.shown(),
        right: right.shown(),
        train_gain,
        heldout_gain,
        notes,
    })
}

impl Side {
    /// Reads a run. `with_initial` selects the initial candidate instead of the best one, unless one is named.
    fn read(db: &Connection, named: Option<&str>, with_initial: bool) -> Result<Self, ReadError> {
        let (run, totals, objective) = (run_row(db)?, totals(db)?, deciding_objective(db)?);
        let usual = if with_initial { totals.seed_candidate_id.as_ref() } else { totals.best_candidate_id() };
        let of_word = |word: &'_ str| match word {
            "best" => totals.best_candidate_id().map(|id| id.as_str()),
            "initial" => totals.seed_candidate_id.as_ref().map(|id| id.as_str()),
            _ => None,
        };
        let named = named.map(|named| of_word(named).unwrap_or(named));
        let candidate = match named.or(usual.map(|id| id.as_str())) {
            Some(id) => read_candidate(db, id)?,
            None => None,
        };
        if let (Some(named), None) = (named, &candidate) {
            return Err(no_candidate(named));
        }
        let scores = |rows: Rows| match (&candidate, &objective) {
            (Some(candidate), Some(objective)) => latest_values(db, candidate.candidate_id.as_str(), objective, rows),
            (None, _) | (_, None) => Ok(Vec::new()),
        };
        Ok(Self {
            train: scores(Rows::Train)?,
            heldout: scores(Rows::Heldout)?,
            harness: harness(db)?.map(|(_, digest)| digest),
            run_id: run.run_id,
            config: run.config,
            totals,
            candidate,
            objective,
        })
    }

    fn shown(self) -> ComparedRun {
        let counts = &self.totals.counts;
        ComparedRun {
            run_id: self.run_id,
            state: self.totals.state,
            candidate_id: self.candidate.as_ref().map(|candidate| candidate.candidate_id.to_string()),
            train_score: self.candidate.as_ref().and_then(|candidate| candidate.train_score),
            heldout_score: self.candidate.as_ref().and_then(|candidate| candidate.heldout_score),
            candidates: counts.candidates,
            generations: counts.generations,
            rollouts_finished: counts.rollouts_finished,
            usage: counts.usage(),
            stopped_by: self.totals.stopped_by,
        }
    }
}

/// Returns the objective that decides in both runs, and notes why scores cannot be compared.
fn common_metric(left: &Side, right: &Side, notes: &mut Vec<String>) -> Option<Objective> {
    for side in [left, right].into_iter().filter(|side| side.candidate.is_none()) {
        notes.push(format!("run {} has no evaluated candidate", side.run_id));
    }
    let (ours, theirs) = (left.objective.as_ref()?, right.objective.as_ref()?);
    if ours != theirs {
        notes.push(format!("the runs decide by {} and {}, so their scores cannot be compared", ours.name, theirs.name));
        return None;
    }
    if left.harness != right.harness {
        notes.push("the tasks of the runs differ: rows with the same id may be different rows".to_owned());
    }
    Some(ours.clone())
}

/// Returns the settings that differ.
fn settings(left: &Value, right: &Value) -> Vec<SettingDifference> {
    let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
    flatten("", left, &mut ours);
    flatten("", right, &mut theirs);
    let fields: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let difference = |field: &String| {
        let value = |of: &BTreeMap<String, Value>| of.get(field).cloned().unwrap_or(Value::Null);
        let (left, right) = (value(&ours), value(&theirs));
        (left != right).then(|| SettingDifference { field: field.clone(), left, right })
    };
    fields.into_iter().filter(|field| !PLACES.contains(&field.as_str())).filter_map(difference).collect()
}

/// Collects the values of a document by their dotted paths. Lists are values.
fn flatten(path: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, found);
            }
        }
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            found.insert(path.to_owned(), value.clone());
        }
    }
}

fn texts(left: Option<&Candidate>, right: Option<&Candidate>) -> Vec<ComparedText> {
    let fields: BTreeSet<&String> =
        [left, right].into_iter().flatten().flat_map(|candidate| candidate.payload.keys()).collect();
    let text = |of: Option<&Candidate>, field: &String| of.and_then(|candidate| candidate.payload.get(field).cloned());
    let compared = |field: &String| {
        let (left, right) = (text(left, field), text(right, field));
        ComparedText { field: field.clone(), is_equal: left == right, left, right }
    };
    fields.into_iter().map(compared).collect()
}

//! The table of rows and candidates: the score of each candidate on each row, which candidates win a row, and where the best
//! candidate gained.

use rusqlite::Connection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::projector::totals;
use super::super::reader::Reader;
use super::read_error::{ReadError, page_size, word};
use super::rollouts::RowSplit;
use super::row_grid::{Candidates, Grid, MeasuredRow, sort, summary};
use super::scores::{objectives, wanted};
use synth_optimizer_core::model::event_fields::{Direction, Objective};
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::lifecycle::CandidateStatus;
use synth_optimizer_core::string_enum;

string_enum! {
    /// The order of the rows.
    RowOrder {
        /// The rows with the worst best value first. Rows without a score come before all others.
        Unsolved = "unsolved",
        /// The rows on which the best candidate lost most against the initial one first. Rows without a gain come last.
        Gain = "gain",
        /// By id; numbers in ids count as numbers.
        Id = "id",
    }
}

/// The most candidates that are columns of one table.
const MAX_COLUMNS: u32 = 200;
/// Columns unless the caller asks for another number.
const DEFAULT_COLUMNS: u32 = 50;

/// Selects rows and candidates of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RowQuery {
    /// `train` or `heldout` rows. Default: `train`.
    pub split: Option<String>,
    /// The objective. Default: the deciding one.
    pub metric: Option<String>,
    /// `unsolved`, `gain` or `id`. Default: `unsolved`.
    pub order: Option<String>,
    /// `all`, or ids separated by commas. Default: the initial, the best and the accepted candidates.
    pub candidates: Option<String>,
    /// Number of rows, 1 to 1000. Default: 100.
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<i64>,
    /// Number of rows to skip.
    #[schemars(range(min = 0))]
    pub offset: Option<i64>,
    /// Number of candidates, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    pub candidate_limit: Option<i64>,
    /// Number of candidates to skip.
    #[schemars(range(min = 0))]
    pub candidate_offset: Option<i64>,
}

/// A parsed query.
#[derive(Debug)]
struct RowFilter {
    split: RowSplit,
    order: RowOrder,
    rows: (usize, usize),
    columns: (usize, usize),
}

impl RowQuery {
    /// Checks the parameters without reading.
    pub fn check(&self) -> Result<(), ReadError> {
        self.parts().map(drop)
    }

    fn parts(&self) -> Result<RowFilter, ReadError> {
        let split = word("split", self.split.as_deref(), RowSplit::parse, RowSplit::NAMES)?;
        let order = word("order", self.order.as_deref(), RowOrder::parse, RowOrder::NAMES)?;
        Ok(RowFilter {
            split: split.unwrap_or(RowSplit::Train),
            order: order.unwrap_or(RowOrder::Unsolved),
            rows: (skipped("offset", self.offset)?, page_size(self.limit, 100, 1000)?),
            columns: (
                skipped("candidate_offset", self.candidate_offset)?,
                page_size(self.candidate_limit, DEFAULT_COLUMNS, MAX_COLUMNS)?,
            ),
        })
    }
}

fn skipped(field: &'static str, given: Option<i64>) -> Result<usize, ReadError> {
    let given = given.unwrap_or(0);
    usize::try_from(given).map_err(|_| {
        let message = format!("{given} is not a number of items to skip");
        ReadError::invalid("invalid_offset", field, message, "Use 0 for the first page, or next_offset of a page.")
    })
}

/// A window of the table of rows and candidates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct RowTable {
    /// The split of the rows. Null before the task is loaded.
    pub split: Option<RowSplit>,
    /// The objective of the values.
    pub metric: Option<String>,
    /// Whether a higher or a lower value is better.
    pub direction: Option<Direction>,
    /// The initial candidate.
    pub initial_candidate_id: Option<String>,
    /// The best candidate so far.
    pub best_candidate_id: Option<String>,
    /// The candidates of this window, in the order of registration: the columns.
    pub candidates: Vec<RowColumn>,
    /// Number of candidates that match the filter.
    pub candidate_count: u64,
    /// Pass it as `candidate_offset` to get the next columns. Null for the last ones.
    pub next_candidate_offset: Option<u64>,
    /// The rows of this window.
    pub rows: Vec<TableRow>,
    /// Number of rows on which a rollout was requested.
    pub row_count: u64,
    /// Pass it as `offset` to get the next rows. Null for the last ones.
    pub next_offset: Option<u64>,
    /// What the pictures say about all rows of the split.
    #[serde(skip)]
    pub summary: RowSummary,
}

/// What all rows and candidates of a split have in common, whatever the window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowSummary {
    /// The worst value of the scale: 0, or 1 if a lower value is better, unless a value is worse.
    pub worst: f64,
    /// The best value of the scale.
    pub best: f64,
    /// Rows with an outcome on which no candidate has the best value of the scale.
    pub unsolved: u64,
}

/// The rows on which the best candidate differs most from the initial one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowGains {
    /// Number of rows on which the best candidate is better.
    pub better: u64,
    /// Number of rows on which it is worse.
    pub worse: u64,
    /// Number of rows on which both have the same value.
    pub equal: u64,
    /// The rows on which it gained most, the largest gain first.
    pub gained: Vec<TableRow>,
    /// The rows on which it lost most, the largest loss first.
    pub lost: Vec<TableRow>,
}

/// A candidate that is a column of the table.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RowColumn {
    /// The candidate.
    pub candidate_id: String,
    /// Its state in the lifecycle.
    pub status: CandidateStatus,
    /// Whether it is the initial candidate.
    pub is_initial: bool,
    /// Whether it is the best candidate so far.
    pub is_best: bool,
}

/// A row of the table. All of its numbers count all candidates, not only the columns.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TableRow {
    /// The container's id of the row.
    pub example_id: String,
    /// One cell per column.
    pub cells: Vec<RowCell>,
    /// For each cell the call number of its rollout, if there is exactly one.
    #[serde(skip)]
    pub only_rollouts: Vec<Option<u64>>,
    /// The best value of any candidate. Null if none has a score.
    pub best_value: Option<f64>,
    /// The candidates with the best value, in the order of registration. At most 20.
    pub winners: Vec<String>,
    /// Number of candidates with the best value.
    pub winner_count: u32,
    /// Number of candidates that have a score on this row.
    pub measured: u32,
    /// Number of candidates whose rollouts on this row failed.
    pub failed: u32,
    /// How much better the best candidate is than the initial one, positive when it is better. Null if one of them has no score.
    pub gain: Option<f64>,
}

/// What is known about a candidate on a row: a number is its latest score, the word `failed` means that every rollout failed, and
/// null that it was not measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RowCell {
    /// The latest score.
    Value(f64),
    /// No rollout has a score, and at least one failed.
    Failed(FailedCell),
    /// No rollout has an outcome.
    NotMeasured(()),
}

string_enum! {
    /// The word of a cell without a score.
    FailedCell {
        /// Every rollout of the candidate on the row failed.
        Failed = "failed",
    }
}

/// The rows of a split with all outcomes.
#[derive(Debug)]
struct MeasuredSplit {
    objective: Objective,
    candidates: Candidates,
    initial: Option<usize>,
    best: Option<usize>,
    rows: Vec<MeasuredRow>,
}

impl MeasuredSplit {
    /// Reads the rollouts of a split once. Returns `None` before the task is loaded.
    fn read(db: &Connection, split: RowSplit, metric: Option<&str>) -> Result<Option<Self>, ReadError> {
        let declared = objectives(db)?.map(|set| set.objectives).unwrap_or_default();
        let Some(objective) = wanted(&declared, metric)?.first().copied().cloned() else { return Ok(None) };
        let (totals, candidates) = (totals(db)?, Candidates::read(db)?);
        let place = |id: Option<&CandidateId>| candidates.place_of.get(id?.as_str()).copied();
        let (initial, best) = (place(totals.seed_candidate_id.as_ref()), place(totals.best_candidate_id()));
        let grid = Grid::read(db, &candidates, &objective, split)?;
        let rows = grid.rows(objective.direction, initial, best);
        Ok(Some(Self { objective, candidates, initial, best, rows }))
    }

    fn id(&self, place: Option<usize>) -> Option<String> {
        place.map(|place| self.candidates.ids[place].clone())
    }

    /// Returns the window that a query selects.
    fn window(mut self, query: &RowQuery, filter: &RowFilter) -> Result<RowTable, ReadError> {
        let columns = self.candidates.selected(query.candidates.as_deref(), self.initial, self.best)?;
        let shown = window(&columns, filter.columns);
        sort(&mut self.rows, filter.order, self.objective.direction);
        let column = |place: &usize| RowColumn {
            candidate_id: self.candidates.ids[*place].clone(),
            status: self.candidates.statuses[*place],
            is_initial: self.initial == Some(*place),
            is_best: self.best == Some(*place),
        };
        let rows = window(&self.rows, filter.rows).iter();
        Ok(RowTable {
            split: Some(filter.split),
            metric: Some(self.objective.name.clone()),
            direction: Some(self.objective.direction),
            candidates: shown.iter().map(column).collect(),
            candidate_count: columns.len() as u64,
            next_candidate_offset: next(columns.len(), filter.columns),
            rows: rows.map(|row| row.shown(shown, &self.candidates)).collect(),
            row_count: self.rows.len() as u64,
            next_offset: next(self.rows.len(), filter.rows),
            initial_candidate_id: self.id(self.initial),
            best_candidate_id: self.id(self.best),
            summary: summary(&self.rows, self.objective.direction),
        })
    }

    /// Returns what the best candidate gained and lost, with at most `most` rows of each kind.
    fn gains(mut self, most: usize) -> RowGains {
        sort(&mut self.rows, RowOrder::Gain, self.objective.direction);
        let known: Vec<(f64, &MeasuredRow)> = self.rows.iter().filter_map(|row| Some((row.gain()?, row))).collect();
        let shown = |(_, row): &(f64, &MeasuredRow)| row.shown(&[], &self.candidates);
        let worse = known.iter().take_while(|(gain, _)| *gain < 0.0).count();
        let better = known.iter().rev().take_while(|(gain, _)| *gain > 0.0).count();
        RowGains {
            better: better as u64,
            worse: worse as u64,
            equal: (known.len() - better - worse) as u64,
            gained: known.iter().rev().take(better.min(most)).map(shown).collect(),
            lost: known.iter().take(worse.min(most)).map(shown).collect(),
        }
    }
}

impl Reader {
    /// Returns a window of the table of rows and candidates. Reads the rollouts once.
    pub fn row_table(&self, query: &RowQuery) -> Result<RowTable, ReadError> {
        let filter = query.parts()?;
        self.in_snapshot(|db| match MeasuredSplit::read(db, filter.split, query.metric.as_deref())? {
            Some(found) => found.window(query, &filter),
            None => Ok(RowTable::default()),
        })
    }

    /// Returns on how many rows of a split the best candidate gained and lost, and the `most` rows at both ends. Returns `None`
    /// if no row has scores of both candidates.
    pub fn row_gains(&self, split: RowSplit, most: usize) -> Result<Option<RowGains>, ReadError> {
        let found = self.in_snapshot(|db| MeasuredSplit::read(db, split, None))?;
        let has_gain = |found: &MeasuredSplit| found.rows.iter().any(|row| row.gain().is_some());
        Ok(found.filter(has_gain).map(|found| found.gains(most)))
    }
}

fn window<T>(items: &[T], (offset, limit): (usize, usize)) -> &[T] {
    let from = offset.min(items.len());
    &items[from..offset.saturating_add(limit).min(items.len())]
}

fn next(count: usize, (offset, limit): (usize, usize)) -> Option<u64> {
    let end = offset.saturating_add(limit);
    (end < count).then_some(end as u64)
}

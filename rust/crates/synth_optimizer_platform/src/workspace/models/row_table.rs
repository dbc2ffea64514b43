//! The table of rows and candidates: the score of each candidate on each row, which candidates win a row, and where the best
//! candidate gained.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::projector::totals;
use super::super::reader::Reader;
use super::read_error::{ReadError, page_size, word};
use super::rollouts::RowSplit;
use super::row_grid::{Candidates, Grid, sort};
use super::scores::{objectives, wanted};
use synth_optimizer_core::model::event_fields::Direction;
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

impl Reader {
    /// Returns a window of the table of rows and candidates. Reads the rollouts once.
    pub fn row_table(&self, query: &RowQuery) -> Result<RowTable, ReadError> {
        let filter = query.parts()?;
        self.in_snapshot(|db| {
            let declared = objectives(db)?.map(|set| set.objectives).unwrap_or_default();
            let metric = query.metric.as_deref();
            let Some(objective) = wanted(&declared, metric)?.first().copied() else { return Ok(RowTable::default()) };
            let totals = totals(db)?;
            let best = totals.best_candidate_id().map(ToString::to_string);
            let initial = totals.seed_candidate_id.as_ref().map(ToString::to_string);
            let candidates = Candidates::read(db)?;
            let grid = Grid::read(db, &candidates, objective, filter.split)?;
            let place = |id: &Option<String>| id.as_ref().and_then(|id| candidates.place_of.get(id).copied());
            let columns = candidates.selected(query.candidates.as_deref(), place(&initial), place(&best))?;
            let shown = window(&columns, filter.columns);
            let mut rows = grid.rows(objective.direction, place(&initial), place(&best));
            sort(&mut rows, filter.order, objective.direction);
            let column = |place: &usize| RowColumn {
                candidate_id: candidates.ids[*place].clone(),
                status: candidates.statuses[*place],
                is_initial: initial.as_ref() == Some(&candidates.ids[*place]),
                is_best: best.as_ref() == Some(&candidates.ids[*place]),
            };
            let found = RowTable {
                split: Some(filter.split),
                metric: Some(objective.name.clone()),
                direction: Some(objective.direction),
                candidates: shown.iter().map(column).collect(),
                candidate_count: columns.len() as u64,
                next_candidate_offset: next(columns.len(), filter.columns),
                rows: window(&rows, filter.rows).iter().map(|row| row.shown(shown, &candidates)).collect(),
                row_count: rows.len() as u64,
                next_offset: next(rows.len(), filter.rows),
                initial_candidate_id: initial,
                best_candidate_id: best,
            };
            Ok(found)
        })
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

//! The cells of the table of rows and candidates, read from the rollouts of one split.

use std::collections::HashMap;

use rusqlite::Connection;

use super::super::error::{json, sqlite};
use super::super::query::list;
use super::read_error::{ReadError, quoted};
use super::rollouts::RowSplit;
use super::row_table::{FailedCell, RowCell, RowOrder, RowSummary, TableRow};
use synth_optimizer_core::config::gepa::OUTCOME_REWARD;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::{Direction, Objective};
use synth_optimizer_core::model::lifecycle::CandidateStatus;

/// The most winners of a row that are listed.
const MAX_WINNERS: usize = 20;

/// Every candidate, in the order of registration.
#[derive(Debug)]
pub(super) struct Candidates {
    pub(super) ids: Vec<String>,
    pub(super) statuses: Vec<CandidateStatus>,
    pub(super) place_of: HashMap<String, usize>,
}

impl Candidates {
    pub(super) fn read(db: &Connection) -> Result<Self, OptimizerError> {
        let sql = "SELECT candidate_id, status FROM candidates ORDER BY registered_sequence";
        let found: Vec<(String, String)> = list(db, "read the candidates", sql, [], |row| row.try_into())?;
        let place_of = found.iter().enumerate().map(|(place, (id, _))| (id.clone(), place)).collect();
        let (ids, words): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let status = |word: &String| CandidateStatus::parse(word).unwrap_or(CandidateStatus::Registered);
        Ok(Self { statuses: words.iter().map(status).collect(), ids, place_of })
    }

    /// Returns the places of the candidates that a filter names.
    pub(super) fn selected(
        &self,
        given: Option<&str>,
        initial: Option<usize>,
        best: Option<usize>,
    ) -> Result<Vec<usize>, ReadError> {
        let is_usual = |place: &usize| {
            let place = Some(*place);
            place == initial || place == best || place.is_some_and(|place| self.is_accepted(place))
        };
        match given.map(str::trim) {
            None | Some("") => Ok((0..self.ids.len()).filter(is_usual).collect()),
            Some("all") => Ok((0..self.ids.len()).collect()),
            Some(named) => {
                let place = |id: &str| {
                    self.place_of.get(id).copied().ok_or_else(|| {
                        let message = format!("the run has no candidate {}", quoted(id));
                        let hint = "Name candidates of the run, or use all.";
                        ReadError::invalid("invalid_filter", "candidates", message, hint)
                    })
                };
                named.split(',').map(|id| place(id.trim())).collect()
            }
        }
    }

    fn is_accepted(&self, place: usize) -> bool {
        self.statuses.get(place) == Some(&CandidateStatus::Accepted)
    }
}

/// The cells of one split, by row.
#[derive(Debug, Default)]
pub(super) struct Grid {
    ids: Vec<String>,
    /// For each row the candidates with a rollout.
    cells: Vec<HashMap<usize, Cell>>,
}

/// The rollouts of a candidate on a row.
#[derive(Debug)]
struct Cell {
    /// The call number of the first one.
    call_id: u64,
    rollouts: u32,
    /// The value that counts, with the sequence number of its event. The value is `None` if every rollout failed.
    outcome: Option<(u64, Option<f64>)>,
}

impl Cell {
    fn value(&self) -> Option<f64> {
        self.outcome?.1
    }

    /// Adds an outcome. A score counts more than a failure; among scores, the latest counts.
    fn settle(&mut self, sequence: u64, value: Option<f64>) {
        let counts = |known: (u64, Option<f64>)| value.is_some() && (known.1.is_none() || known.0 <= sequence);
        if self.outcome.is_none_or(counts) {
            self.outcome = Some((sequence, value));
        }
    }
}

impl Grid {
    /// Reads the outcomes of all rollouts of a split. The latest score of a candidate on a row counts.
    pub(super) fn read(
        db: &Connection,
        candidates: &Candidates,
        objective: &Objective,
        split: RowSplit,
    ) -> Result<Self, OptimizerError> {
        let doing = "read the rollouts";
        // The whole table is read in its own order, which is faster than 100,000 lookups by an index.
        let sql = "SELECT candidate_id, example_id, reward, objectives_json, settled_sequence, status, call_id
                   FROM rollouts NOT INDEXED WHERE (evaluation_stage = 'heldout') = ?1";
        let mut statement = db.prepare_cached(sql).map_err(sqlite(doing))?;
        let mut rollouts = statement.query([split == RowSplit::Heldout]).map_err(sqlite(doing))?;
        let (mut grid, mut place_of_row) = (Self::default(), HashMap::<String, usize>::new());
        while let Some(row) = rollouts.next().map_err(sqlite(doing))? {
            let text = |column| row.get_ref(column).and_then(|value| Ok(value.as_str()?)).map_err(sqlite(doing));
            let example = text(1)?;
            let place = match place_of_row.get(example) {
                Some(place) => *place,
                None => {
                    let place = grid.ids.len();
                    place_of_row.insert(example.to_owned(), place);
                    grid.ids.push(example.to_owned());
                    grid.cells.push(HashMap::new());
                    place
                }
            };
            let Some(candidate) = candidates.place_of.get(text(0)?) else { continue };
            let call_id = row.get(6).map_err(sqlite(doing))?;
            let new = Cell { call_id, rollouts: 0, outcome: None };
            let cell = grid.cells[place].entry(*candidate).or_insert(new);
            cell.rollouts += 1;
            let Some(sequence) = row.get::<_, Option<u64>>(4).map_err(sqlite(doing))? else { continue };
            match text(5)? {
                "finished" => {
                    let reward: Option<f64> = row.get(2).map_err(sqlite(doing))?;
                    let told = row.get_ref(3).and_then(|value| Ok(value.as_str_or_null()?)).map_err(sqlite(doing))?;
                    if let Some(value) = value_of(objective, reward, told).map_err(json(doing))? {
                        cell.settle(sequence, Some(value));
                    }
                }
                "failed" => cell.settle(sequence, None),
                // A rollout that was retried has another one that tells the outcome.
                _ => {}
            }
        }
        Ok(grid)
    }

    /// Returns the rows with their best values, winners and gains.
    pub(super) fn rows(self, direction: Direction, initial: Option<usize>, best: Option<usize>) -> Vec<MeasuredRow> {
        let row = |(id, cells): (String, HashMap<usize, Cell>)| {
            let oriented = |value: f64| direction.oriented(value);
            let values = || cells.values().filter_map(Cell::value);
            let best_value = values().max_by(|one, other| oriented(*one).total_cmp(&oriented(*other)));
            let value_of = |place: Option<usize>| cells.get(&place?)?.value();
            let gain = value_of(best).zip(value_of(initial)).map(|(best, initial)| oriented(best) - oriented(initial));
            let mut winners: Vec<usize> = cells
                .iter()
                .filter(|(_, cell)| cell.value().is_some() && cell.value() == best_value)
                .map(|(at, _)| *at)
                .collect();
            winners.sort_unstable();
            MeasuredRow { key: id_key(&id), id, best_value, winners, gain, cells }
        };
        self.ids.into_iter().zip(self.cells).map(row).collect()
    }
}

/// Returns the value of an objective in the outcome of a rollout.
fn value_of(objective: &Objective, reward: Option<f64>, told: Option<&str>) -> serde_json::Result<Option<f64>> {
    let told = match told {
        None | Some("{}") => None,
        Some(told) => serde_json::from_str::<HashMap<String, f64>>(told)?.get(&objective.name).copied(),
    };
    Ok(told.or_else(|| reward.filter(|_| objective.name == OUTCOME_REWARD)))
}

/// A row with the outcomes of all candidates.
#[derive(Debug)]
pub(super) struct MeasuredRow {
    id: String,
    key: (String, u64),
    best_value: Option<f64>,
    winners: Vec<usize>,
    gain: Option<f64>,
    cells: HashMap<usize, Cell>,
}

impl MeasuredRow {
    /// Returns the row with the cells of these columns.
    pub(super) fn shown(&self, columns: &[usize], candidates: &Candidates) -> TableRow {
        let cell = |place: &usize| match self.cells.get(place).and_then(|cell| cell.outcome) {
            Some((_, Some(value))) => RowCell::Value(value),
            Some((_, None)) => RowCell::Failed(FailedCell::Failed),
            None => RowCell::NotMeasured(()),
        };
        let only_rollout =
            |place: &usize| self.cells.get(place).filter(|cell| cell.rollouts == 1).map(|cell| cell.call_id);
        let measured = self.measured();
        TableRow {
            example_id: self.id.clone(),
            cells: columns.iter().map(cell).collect(),
            only_rollouts: columns.iter().map(only_rollout).collect(),
            best_value: self.best_value,
            winners: self.winners.iter().take(MAX_WINNERS).map(|place| candidates.ids[*place].clone()).collect(),
            winner_count: self.winners.len() as u32,
            measured: measured as u32,
            failed: (self.settled() - measured) as u32,
            gain: self.gain,
        }
    }

    /// Returns the number of candidates with an outcome on the row.
    fn settled(&self) -> usize {
        self.cells.values().filter(|cell| cell.outcome.is_some()).count()
    }

    /// Returns the number of candidates with a score on the row.
    fn measured(&self) -> usize {
        self.cells.values().filter(|cell| cell.value().is_some()).count()
    }

    pub(super) fn gain(&self) -> Option<f64> {
        self.gain
    }
}

/// Summarizes all rows of a split.
pub(super) fn summary(rows: &[MeasuredRow], direction: Direction) -> RowSummary {
    let values = rows.iter().flat_map(|row| row.cells.values()).filter_map(Cell::value);
    let (low, high) = values.fold((0.0_f64, 1.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    let (worst, best) = match direction {
        Direction::Maximize => (low, high),
        Direction::Minimize => (high, low),
    };
    let is_unsolved = |row: &&MeasuredRow| {
        let reaches = |value: f64| direction.oriented(value) >= direction.oriented(best);
        row.settled() > 0 && !row.best_value.is_some_and(reaches)
    };
    RowSummary { worst, best, unsolved: rows.iter().filter(is_unsolved).count() as u64 }
}

/// Returns the id without its last number, and that number.
fn id_key(id: &str) -> (String, u64) {
    let name = id.trim_end_matches(|each: char| each.is_ascii_digit());
    let number = id.strip_prefix(name).and_then(|digits| digits.parse().ok());
    (name.to_owned(), number.unwrap_or(0))
}

/// Sorts the rows; rows that are equal in this order are sorted by id.
pub(super) fn sort(rows: &mut [MeasuredRow], order: RowOrder, direction: Direction) {
    rows.sort_by(|one, other| (&one.key, &one.id).cmp(&(&other.key, &other.id)));
    let oriented = |row: &MeasuredRow| row.best_value.map_or(f64::NEG_INFINITY, |value| direction.oriented(value));
    match order {
        RowOrder::Id => {}
        RowOrder::Unsolved => rows.sort_by(|one, other| oriented(one).total_cmp(&oriented(other))),
        RowOrder::Gain => {
            let gain = |row: &MeasuredRow| row.gain.unwrap_or(f64::INFINITY);
            rows.sort_by(|one, other| gain(one).total_cmp(&gain(other)));
        }
    }
}

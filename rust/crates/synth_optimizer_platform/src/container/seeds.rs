//! Decides by which names rows are asked for: the config's seeds or task ids, as they are or mapped onto the other.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value;

use super::contract::Dialect;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::RowsMapped;

/// The rows of one split.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    pub(super) split: String,
    pub(super) names: Names,
    /// The seeds behind task ids that were made from seeds.
    pub(super) seeds: Option<Vec<i64>>,
}

impl Wanted {
    pub(super) fn len(&self) -> usize {
        match &self.names {
            Names::Seeds(seeds) => seeds.len(),
            Names::Ids(ids) => ids.len(),
        }
    }

    /// Some of the rows, by their places.
    pub(super) fn part(&self, places: Range<usize>) -> Self {
        Self {
            split: self.split.clone(),
            seeds: self.seeds.as_ref().map(|seeds| seeds[places.clone()].to_vec()),
            names: match &self.names {
                Names::Seeds(seeds) => Names::Seeds(seeds[places].to_vec()),
                Names::Ids(ids) => Names::Ids(ids[places].to_vec()),
            },
        }
    }
}

/// How the rows are named to the container.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Names {
    Seeds(Vec<i64>),
    Ids(Vec<String>),
}

/// Everything that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) train: Wanted,
    pub(super) heldout: Wanted,
    pub(super) filters: BTreeMap<String, Value>,
    /// Set when seeds of the config became task ids.
    pub(super) mapping: Option<RowsMapped>,
}

/// `info` is the reply of the dataset or taskset route.
pub(super) fn plan(config: &Config, dialect: Dialect, info: &Value) -> Result<Plan, OptimizerError> {
    match (&config.dataset, &config.taskset) {
        (Some(rows), _) => {
            let by_seed = |mapping| Plan {
                train: seeds(&rows.train_split, &rows.train_seeds),
                heldout: seeds(&rows.heldout_split, &rows.heldout_seeds),
                filters: rows.filters.clone(),
                mapping,
            };
            let train = Split { name: &rows.train_split, seeds: &rows.train_seeds, info };
            let heldout = Split { name: &rows.heldout_split, seeds: &rows.heldout_seeds, info };
            let mapped = match dialect {
                Dialect::Dataset => return Ok(by_seed(None)),
                Dialect::Taskset => [train.ids()?, heldout.ids()?],
                // Where both are served, made-up ids would be a guess, and the seeds are none.
                Dialect::Both => match (train.listed_ids(), heldout.listed_ids()) {
                    (Some(Ok(train)), Some(Ok(heldout))) => [(train, LISTED), (heldout, LISTED)],
                    (_, _) => return Ok(by_seed(None)),
                },
            };
            let [(train_ids, train_rule), (heldout_ids, heldout_rule)] = mapped;
            // One rule is reported; the weaker one if they differ.
            let rule = if train_rule == heldout_rule { train_rule } else { MADE };
            let mapping = RowsMapped {
                rule: rule.to_owned(),
                train: rows.train_seeds.iter().copied().zip(train_ids.iter().cloned()).collect(),
                heldout: rows.heldout_seeds.iter().copied().zip(heldout_ids.iter().cloned()).collect(),
            };
            let mut plan = by_seed(Some(mapping));
            plan.train = mapped_ids(plan.train, train_ids);
            plan.heldout = mapped_ids(plan.heldout, heldout_ids);
            Ok(plan)
        }
        (None, Some(rows)) => {
            let wanted = |split: &str, ids: &[String], field| match dialect {
                Dialect::Dataset => Ok::<_, OptimizerError>(seeds(split, &seeds_of(split, ids, field)?)),
                Dialect::Taskset | Dialect::Both => {
                    Ok(Wanted { split: split.to_owned(), names: Names::Ids(ids.to_vec()), seeds: None })
                }
            };
            Ok(Plan {
                train: wanted(&rows.train_split, &rows.train_ids, "taskset.train_ids")?,
                heldout: wanted(&rows.heldout_split, &rows.heldout_ids, "taskset.heldout_ids")?,
                filters: rows.filters.clone(),
                mapping: None,
            })
        }
        (None, None) => Err(OptimizerError::new(ErrorCode::Config, "no rows are given: [dataset] is required")
            .with_hint("Write train_seeds and heldout_seeds under [dataset].")),
    }
}

const LISTED: &str = "split_list";
const MADE: &str = "split_and_seed";

/// Seeds of one split that are to become task ids.
struct Split<'a> {
    name: &'a str,
    seeds: &'a [i64],
    info: &'a Value,
}

impl Split<'_> {
    /// The ids and the rule that gave them.
    fn ids(&self) -> Result<(Vec<String>, &'static str), OptimizerError> {
        match self.listed_ids() {
            Some(ids) => ids.map(|ids| (ids, LISTED)),
            None => Ok((self.seeds.iter().map(|seed| self.made_id(*seed)).collect(), MADE)),
        }
    }

    /// The ids out of the container's own list of the split, if it has one. Ids that hold the seed in their name are
    /// taken by name; otherwise a seed is a place in the list. Seeds are never read in both ways at once, so that two
    /// seeds cannot meet in one id.
    fn listed_ids(&self) -> Option<Result<Vec<String>, OptimizerError>> {
        let list = self.info.get("splits")?.get(self.name)?.as_array()?;
        let list: Vec<&str> = list.iter().map(Value::as_str).collect::<Option<_>>()?;
        let known: BTreeSet<&str> = list.iter().copied().collect();
        let by_name: Vec<String> = self.seeds.iter().map(|seed| self.made_id(*seed)).collect();
        if by_name.iter().all(|id| known.contains(id.as_str())) {
            return Some(Ok(by_name));
        }
        let by_place = |seed: &i64| {
            let id = usize::try_from(*seed).ok().and_then(|place| list.get(place));
            id.map(|id| (*id).to_owned()).ok_or_else(|| self.unknown(*seed, list.len()))
        };
        Some(self.seeds.iter().map(by_place).collect())
    }

    fn made_id(&self, seed: i64) -> String {
        format!("{}:{seed}", self.name)
    }

    fn unknown(&self, seed: i64, length: usize) -> OptimizerError {
        let message = format!(
            "seed {seed} names no task of split {:?}: the container lists {length} ids, and none is {:?}",
            self.name,
            self.made_id(seed)
        );
        OptimizerError::new(ErrorCode::Container, message)
            .with_hint(format!("Use seeds below {length}, or name the tasks under [taskset]."))
    }
}

fn seeds(split: &str, seeds: &[i64]) -> Wanted {
    Wanted { split: split.to_owned(), names: Names::Seeds(seeds.to_vec()), seeds: None }
}

fn mapped_ids(wanted: Wanted, ids: Vec<String>) -> Wanted {
    let seeds = match wanted.names {
        Names::Seeds(seeds) => Some(seeds),
        Names::Ids(_) => wanted.seeds,
    };
    Wanted { split: wanted.split, names: Names::Ids(ids), seeds }
}

/// The seeds in ids like `train:3` or `3`, for a container that knows rows by seed alone.
fn seeds_of(split: &str, ids: &[String], field: &str) -> Result<Vec<i64>, OptimizerError> {
    let seed = |(index, id): (usize, &String)| {
        let number = id.strip_prefix(split).and_then(|rest| rest.strip_prefix(':')).unwrap_or(id);
        number.trim().parse::<i64>().map_err(|_| {
            let message = format!("`{field}[{index}]` is {id:?}, but this container knows rows by seed alone");
            OptimizerError::new(ErrorCode::Container, message)
                .with_hint(format!("Write ids like \"{split}:3\", or seeds under [dataset]."))
        })
    };
    ids.iter().enumerate().map(seed).collect()
}

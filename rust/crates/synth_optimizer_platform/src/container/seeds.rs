//! Decides by which names rows are asked for: the config's seeds or task ids, as they are or mapped onto the other.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value;

use super::contract::Dialect;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::RowsMapped;

/// The rows of one split, in the order in which they are asked for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) split: String,
    /// Either all by seed or all by id.
    pub(super) names: Vec<Name>,
}

/// How a row is named to the container.
#[derive(Debug, Clone)]
pub(super) enum Name {
    Seed(i64),
    /// A task id, and the seed from which it was made, if it was.
    Id(String, Option<i64>),
}

impl Wanted {
    fn by_seed(split: &str, seeds: &[i64]) -> Self {
        Self { split: split.to_owned(), names: seeds.iter().copied().map(Name::Seed).collect() }
    }

    pub(super) fn is_by_id(&self) -> bool {
        matches!(self.names.first(), Some(Name::Id(..)))
    }

    /// Some of the rows, by their places.
    pub(super) fn part(&self, places: Range<usize>) -> Self {
        Self { split: self.split.clone(), names: self.names[places].to_vec() }
    }
}

/// Everything that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) train: Wanted,
    pub(super) heldout: Wanted,
    pub(super) filters: BTreeMap<String, Value>,
    /// Set when seeds of the config became task ids.
    pub(super) mapping: Option<RowsMapped>,
}

/// `info` is the reply of the dataset or taskset route.
pub(super) fn plan(config: &Config, dialect: Dialect, info: &Value) -> Result<Plan, OptimizerError> {
    let Some(rows) = &config.dataset else { return plan_of_ids(config, dialect) };
    let train = Split { name: &rows.train_split, seeds: &rows.train_seeds, info };
    let heldout = Split { name: &rows.heldout_split, seeds: &rows.heldout_seeds, info };
    let ids = match dialect {
        Dialect::Dataset => None,
        Dialect::Taskset => Some([train.ids()?, heldout.ids()?]),
        // Where both are served, made-up ids would be a guess, and the seeds are none.
        Dialect::Both => match (train.listed_ids(), heldout.listed_ids()) {
            (Some(Ok(train)), Some(Ok(heldout))) => Some([(train, LISTED), (heldout, LISTED)]),
            (_, _) => None,
        },
    };
    let filters = rows.filters.clone();
    let Some([(train_ids, train_rule), (heldout_ids, heldout_rule)]) = ids else {
        let [train, heldout] = [train, heldout].map(|split| Wanted::by_seed(split.name, split.seeds));
        return Ok(Plan { train, heldout, filters, mapping: None });
    };
    // One rule is reported; the weaker one if they differ.
    let rule = if train_rule == heldout_rule { train_rule } else { MADE };
    let by_seed = |split: &Split<'_>, ids: &[String]| split.seeds.iter().copied().zip(ids.iter().cloned()).collect();
    let mapping = RowsMapped {
        rule: rule.to_owned(),
        train: by_seed(&train, &train_ids),
        heldout: by_seed(&heldout, &heldout_ids),
    };
    Ok(Plan { train: train.mapped(train_ids), heldout: heldout.mapped(heldout_ids), filters, mapping: Some(mapping) })
}

fn plan_of_ids(config: &Config, dialect: Dialect) -> Result<Plan, OptimizerError> {
    let Some(rows) = &config.taskset else {
        return Err(OptimizerError::new(ErrorCode::Config, "no rows are given: [dataset] is required")
            .with_hint("Write train_seeds and heldout_seeds under [dataset]."));
    };
    let wanted = |split: &str, ids: &[String], field| match dialect {
        Dialect::Dataset => seeds_of(split, ids, field).map(|seeds| Wanted::by_seed(split, &seeds)),
        Dialect::Taskset | Dialect::Both => {
            Ok(Wanted { split: split.to_owned(), names: ids.iter().map(|id| Name::Id(id.clone(), None)).collect() })
        }
    };
    Ok(Plan {
        train: wanted(&rows.train_split, &rows.train_ids, "taskset.train_ids")?,
        heldout: wanted(&rows.heldout_split, &rows.heldout_ids, "taskset.heldout_ids")?,
        filters: rows.filters.clone(),
        mapping: None,
    })
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

    /// The rows by the ids that the seeds became.
    fn mapped(&self, ids: Vec<String>) -> Wanted {
        let names = ids.into_iter().zip(self.seeds).map(|(id, seed)| Name::Id(id, Some(*seed)));
        Wanted { split: self.name.to_owned(), names: names.collect() }
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

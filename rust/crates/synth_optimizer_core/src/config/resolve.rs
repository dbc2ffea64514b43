//! Values that a configuration leaves to the run: rows that only the container knows, and sizes that follow from the budget.
//!
//! They are resolved once, when a run starts, and stored with it. A resumed run uses the stored values, so that neither a
//! dataset that has grown nor another release changes its decisions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::gepa::{SearchMode, TaskPools};
use super::pools::{effective_caps, pools, rows_are_known};
use super::row_selection::{MAX_ROWS, RowName, RowSelection, read};
use super::search::choose_search;
use super::sections::{Config, DatasetSection, TasksetSection};
use super::values::read_stored;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::random::random_stream;

/// The rows of a split, as the container names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitRows {
    /// Row numbers from 0.
    Count(u64),
    Ids(Vec<String>),
}

impl SplitRows {
    fn len(&self) -> u64 {
        match self {
            Self::Count(count) => *count,
            Self::Ids(ids) => ids.len() as u64,
        }
    }
}

/// Returns the configuration with every row named and every derived size set. `splits` are those that the container names, and
/// `serves_ids` says whether it returns rows by task id.
pub fn resolve(
    config: &Config,
    splits: &BTreeMap<String, SplitRows>,
    serves_ids: bool,
) -> Result<Config, OptimizerError> {
    let mut resolved = config.clone();
    let has_ids = |split: &str| matches!(splits.get(split), Some(SplitRows::Ids(_)));
    if resolved.dataset.is_none() && resolved.taskset.is_none() {
        let usual = TasksetSection::default();
        let has_heldout_ids = has_ids(&usual.heldout_split) || is_only_split(&usual.train_split, splits);
        let by_id = serves_ids && has_ids(&usual.train_split) && has_heldout_ids;
        match (resolved.gepa.task_pools.is_some() || by_id) && !has_seed_pools(&resolved) {
            true => resolved.taskset = Some(usual),
            false => resolved.dataset = Some(DatasetSection::default()),
        }
    }
    let is_all = match (&mut resolved.dataset, &mut resolved.taskset) {
        (Some(rows), _) => {
            let is_all = rows.train_seeds.listed().is_none();
            let number = |split: &SplitRows, _: &str| range("", split.len());
            let field =
                |kind: &'static str| Field { section: "dataset", kind, names: "seeds", example: "0..359".to_owned() };
            select(&mut rows.train_seeds, &rows.train_split, &field("train"), splits, number)?;
            if is_all
                && needs_heldout(&rows.heldout_seeds, [&rows.train_split, &rows.heldout_split], splits)
                && let Some((train, heldout)) = divided(rows.train_seeds.known())
            {
                (rows.train_seeds, rows.heldout_seeds) = (train, heldout);
                rows.heldout_split = rows.train_split.clone();
            }
            select(&mut rows.heldout_seeds, &rows.heldout_split, &field("heldout"), splits, number)?;
            is_all
        }
        (None, Some(rows)) => {
            let is_all = rows.train_ids.listed().is_none();
            let id = |split: &SplitRows, name: &str| match split {
                SplitRows::Ids(ids) => ids.clone().into(),
                SplitRows::Count(count) => range(&format!("{name}:"), *count),
            };
            let field = |kind: &'static str, split: &str| Field {
                section: "taskset",
                kind,
                names: "ids",
                example: format!("{split}:0..359"),
            };
            let (train, heldout) = (field("train", &rows.train_split), field("heldout", &rows.heldout_split));
            select(&mut rows.train_ids, &rows.train_split, &train, splits, id)?;
            if is_all
                && needs_heldout(&rows.heldout_ids, [&rows.train_split, &rows.heldout_split], splits)
                && let Some((train, heldout)) = divided(rows.train_ids.known())
            {
                (rows.train_ids, rows.heldout_ids) = (train, heldout);
                rows.heldout_split = rows.train_split.clone();
            }
            select(&mut rows.heldout_ids, &rows.heldout_split, &heldout, splits, id)?;
            is_all
        }
        (None, None) => false,
    };
    check_pools(&resolved)?;
    if is_all {
        limit_full_evaluation(&mut resolved);
    }
    derive_sizes(&mut resolved);
    Ok(resolved)
}

/// Returns the configuration with every derived size set, if its rows are known without the container.
pub fn resolve_sizes(config: &Config) -> Config {
    let mut resolved = config.clone();
    derive_sizes(&mut resolved);
    resolved
}

/// Takes over what a stored run resolved, where this configuration leaves it to the run. `stored` was written by
/// `redacted_config`.
pub fn adopt_stored(config: &mut Config, stored: &Value) {
    let Ok(stored) = read_stored(stored) else { return };
    let leaves_rows = match (&config.dataset, &config.taskset) {
        (Some(rows), _) => [&rows.train_seeds, &rows.heldout_seeds].iter().any(|rows| rows.listed().is_none()),
        (None, Some(rows)) => [&rows.train_ids, &rows.heldout_ids].iter().any(|rows| rows.listed().is_none()),
        (None, None) => true,
    };
    if leaves_rows && rows_are_known(&stored) {
        adopt_rows(config, &stored);
    }
    match (&mut config.policy, stored.policy) {
        (Some(policy), Some(stored)) => policy.model = policy.model.take().or(stored.model),
        (policy @ None, stored) => *policy = stored,
        (Some(_), None) => {}
    }
    let (gepa, earlier) = (&mut config.gepa, &stored.gepa);
    if gepa.search == SearchMode::Auto {
        gepa.search = earlier.search;
    }
    gepa.max_generations = gepa.max_generations.or(earlier.max_generations);
    gepa.minibatch_size = gepa.minibatch_size.or(earlier.minibatch_size);
    let (workers, known) = (&mut gepa.pipeline.workers, &earlier.pipeline.workers);
    workers.propose = workers.propose.or(known.propose);
}

/// Takes over the stored rows of every selection that names none, and the pools that were derived with them.
fn adopt_rows(config: &mut Config, stored: &Config) {
    fn adopt<T: RowName>(rows: &mut RowSelection<T>, stored: &RowSelection<T>) -> bool {
        let is_all = rows.listed().is_none();
        if is_all {
            *rows = stored.clone();
        }
        is_all
    }
    let is_all = match (&mut config.dataset, &mut config.taskset) {
        (None, None) => {
            (config.dataset, config.taskset) = (stored.dataset.clone(), stored.taskset.clone());
            true
        }
        (Some(rows), _) => stored.dataset.as_ref().is_some_and(|stored| {
            if adopt(&mut rows.heldout_seeds, &stored.heldout_seeds) {
                rows.heldout_split = stored.heldout_split.clone();
            }
            adopt(&mut rows.train_seeds, &stored.train_seeds)
        }),
        (None, Some(rows)) => stored.taskset.as_ref().is_some_and(|stored| {
            if adopt(&mut rows.heldout_ids, &stored.heldout_ids) {
                rows.heldout_split = stored.heldout_split.clone();
            }
            adopt(&mut rows.train_ids, &stored.train_ids)
        }),
    };
    if is_all && !has_pools(config) {
        config.gepa.seed_pools = stored.gepa.seed_pools.clone();
        config.gepa.task_pools = stored.gepa.task_pools.clone();
    }
}

fn has_seed_pools(config: &Config) -> bool {
    let pools = &config.gepa.seed_pools;
    [&pools.pareto_eval, &pools.minibatch, &pools.reflection, &pools.validation].iter().any(|pool| !pool.is_empty())
}

fn has_pools(config: &Config) -> bool {
    has_seed_pools(config) || config.gepa.task_pools.is_some()
}

/// The field that selects the rows of a split.
struct Field {
    section: &'static str,
    kind: &'static str,
    names: &'static str,
    /// A range that fits this field.
    example: String,
}

/// Replaces `"all"` by the rows of a split.
fn select<T: RowName>(
    rows: &mut RowSelection<T>,
    split: &str,
    field: &Field,
    splits: &BTreeMap<String, SplitRows>,
    names: impl Fn(&SplitRows, &str) -> RowSelection<T>,
) -> Result<(), OptimizerError> {
    if rows.listed().is_some() {
        return Ok(());
    }
    let Field { section, kind, names: kind_of_name, example } = field;
    let path = format!("{section}.{kind}_{kind_of_name}");
    let error = |message: String, hint: String| Err(OptimizerError::new(ErrorCode::Container, message).with_hint(hint));
    let range_hint = format!("Write a range, such as {path} = \"{example}\".");
    match splits.get(split) {
        None if splits.is_empty() => {
            error(format!("`{path}` selects all rows, but the container does not name its splits"), range_hint)
        }
        None => {
            let known: Vec<String> = splits.keys().map(|name| format!("{name:?}")).collect();
            let message =
                format!("`{path}` selects all rows of split {split:?}, but the container has {}", known.join(", "));
            error(message, format!("Set {section}.{kind}_split to one of them, or write a range of rows."))
        }
        Some(found) if found.len() == 0 => {
            let hint = format!("Add rows to it, or name another split in {section}.{kind}_split.");
            error(format!("`{path}` selects all rows of split {split:?}, which has none"), hint)
        }
        Some(found) if found.len() > MAX_ROWS as u64 => {
            let message =
                format!("`{path}` selects all {} rows of split {split:?}; a run has at most {MAX_ROWS}", found.len());
            error(message, range_hint)
        }
        Some(found) => {
            *rows = names(found, split);
            Ok(())
        }
    }
}

/// Minimum number and share of the rows that are set aside as held-out rows, if none are given.
const MIN_SET_ASIDE: usize = 20;
const SET_ASIDE_SHARE: usize = 5;

/// Returns whether held-out rows are neither given nor in a split of their own: the train split is all that the container has.
fn needs_heldout<T: RowName>(
    heldout: &RowSelection<T>,
    [train_split, heldout_split]: [&str; 2],
    splits: &BTreeMap<String, SplitRows>,
) -> bool {
    let is_default = heldout_split == TasksetSection::default().heldout_split;
    heldout.listed().is_none() && is_default && is_only_split(train_split, splits)
}

/// Returns whether the container has rows in this split only.
fn is_only_split(split: &str, splits: &BTreeMap<String, SplitRows>) -> bool {
    let mut filled = splits.iter().filter(|(_, rows)| rows.len() > 0).map(|(name, _)| name);
    filled.next().is_some_and(|name| name == split) && filled.next().is_none()
}

/// Divides rows into train and held-out rows: a random fifth, at least 20 and at most half, is held out. Returns `None` for a
/// single row. The division does not depend on the random seed of the run, so that runs can be compared.
fn divided<T: RowName>(rows: &[T]) -> Option<(RowSelection<T>, RowSelection<T>)> {
    let count = (rows.len() / SET_ASIDE_SHARE).max(MIN_SET_ASIDE).min(rows.len() / 2);
    let mut places: Vec<usize> = (0..rows.len()).collect();
    random_stream(0, "held-out rows", 0).shuffle(&mut places);
    let aside: BTreeSet<usize> = places.into_iter().take(count).collect();
    let part = |is_aside: bool| -> RowSelection<T> {
        let chosen = |place: &usize| aside.contains(place) == is_aside;
        (0..rows.len()).filter(chosen).map(|place| rows[place].clone()).collect()
    };
    (count > 0).then(|| (part(false), part(true)))
}

/// Returns the first rows of a split as a range, which is short wherever it is stored and shown.
fn range<T: RowName>(prefix: &str, count: u64) -> RowSelection<T> {
    let text = format!("{prefix}0..{}", count.saturating_sub(1));
    // A prefix with ".." does not parse as a range.
    read(&json!(text))
        .unwrap_or_else(|_| (0..count as i64).filter_map(|number| T::from_number(prefix, number, 0)).collect())
}

/// Fails if a pool names a row that the container does not have. The loader has checked pools of listed rows.
fn check_pools(config: &Config) -> Result<(), OptimizerError> {
    let (seeds, tasks) = (&config.gepa.seed_pools, config.gepa.task_pools.clone().unwrap_or_default());
    fn missing<T: RowName>(pools: &[(&str, &Vec<T>)], rows: &[T]) -> Option<String> {
        let known: BTreeSet<&T> = rows.iter().collect();
        pools.iter().find_map(|(field, pool)| {
            let row = pool.iter().find(|row| !known.contains(row))?;
            Some(format!("`gepa.{field}` has row {row:?}, which the container does not have"))
        })
    }
    let found = match (&config.dataset, &config.taskset) {
        (Some(rows), _) => missing(
            &[
                ("seed_pools.pareto_eval", &seeds.pareto_eval),
                ("seed_pools.minibatch", &seeds.minibatch),
                ("seed_pools.reflection", &seeds.reflection),
            ],
            rows.train_seeds.known(),
        )
        .or_else(|| missing(&[("seed_pools.validation", &seeds.validation)], rows.heldout_seeds.known())),
        (None, Some(rows)) => missing(
            &[
                ("task_pools.pareto", &tasks.pareto),
                ("task_pools.minibatch", &tasks.minibatch),
                ("task_pools.reflection", &tasks.reflection),
            ],
            rows.train_ids.known(),
        )
        .or_else(|| missing(&[("task_pools.heldout", &tasks.heldout)], rows.heldout_ids.known())),
        (None, None) => None,
    };
    let error =
        |message| OptimizerError::new(ErrorCode::Config, message).with_hint("Use rows of the container's splits.");
    found.map_or(Ok(()), |message| Err(error(message)))
}

/// The share of the search budget that one full evaluation may use, and its minimum number of rows.
const FULL_EVALUATION_SHARE: u64 = 6;
const MIN_FULL_EVALUATION_ROWS: u64 = 10;

/// Returns the train rollouts that are left after the held-out evaluation of two candidates.
pub(super) fn search_rollouts(config: &Config) -> u64 {
    let caps = effective_caps(config);
    let heldout = 2 * pools(config).heldout.len() as u64;
    caps.total.map_or(u64::from(caps.train), |total| u64::from(total).saturating_sub(heldout))
}

/// Limits the full evaluation to evenly spaced train rows, if all of them would use too much of the budget. Minibatches are
/// still drawn from all train rows.
fn limit_full_evaluation(config: &mut Config) {
    fn spaced<T: Clone>(rows: &[T], count: usize) -> Vec<T> {
        (0..count).map(|place| rows[place * rows.len() / count].clone()).collect()
    }
    // A search in sprints never evaluates a candidate on all rows.
    let is_sprint = choose_search(config, pools(config).pareto.len()).search == SearchMode::Sprint;
    if has_pools(config) || is_sprint {
        return;
    }
    let count = (search_rollouts(config) / FULL_EVALUATION_SHARE).max(MIN_FULL_EVALUATION_ROWS);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    match (&config.dataset, &config.taskset) {
        (Some(rows), _) if count < rows.train_seeds.known().len() => {
            config.gepa.seed_pools.pareto_eval = spaced(rows.train_seeds.known(), count);
            config.gepa.seed_pools.minibatch = rows.train_seeds.known().to_vec();
        }
        (None, Some(rows)) if count < rows.train_ids.known().len() => {
            let train = rows.train_ids.known().to_vec();
            config.gepa.task_pools = Some(TaskPools {
                pareto: spaced(&train, count),
                minibatch: train.clone(),
                reflection: train,
                heldout: rows.heldout_ids.known().to_vec(),
            });
        }
        _ => {}
    }
}

/// The number of proposals that the search budget should screen, and the bounds of a derived minibatch.
const SCREENED_PROPOSALS: u64 = 24;
const MINIBATCH_ROWS: std::ops::RangeInclusive<u64> = 3..=8;

/// Sets the minibatch size from the budget and the rows, if it is not set.
fn derive_sizes(config: &mut Config) {
    if config.gepa.minibatch_size.is_some() || !rows_are_known(config) {
        return;
    }
    let pools = pools(config);
    // A search in sprints evaluates the initial candidate on a few rows only.
    let first = match choose_search(config, pools.pareto.len()).search {
        SearchMode::Sprint => 0,
        SearchMode::Auto | SearchMode::Reference => pools.pareto.len() as u64,
    };
    let search = search_rollouts(config).saturating_sub(first);
    let size = (search / SCREENED_PROPOSALS).clamp(*MINIBATCH_ROWS.start(), *MINIBATCH_ROWS.end());
    // A minibatch has room for the new rows of an epoch.
    let size = size.max(config.gepa.batch_sampler.epoch_width.unwrap_or_default().into());
    let size = size.min(pools.minibatch.len().max(1) as u64);
    config.gepa.minibatch_size = u32::try_from(size).ok();
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;

//! Rules about `[dataset]`, `[taskset]` and the row pools: train and held-out rows are disjoint, and pools are subsets.

use std::collections::{BTreeMap, BTreeSet};

use super::super::report::Code;
use super::super::row_selection::{RowName, RowSelection};
use super::Validator;

/// A field, and the rows that it names; `None` if only the container knows them.
#[derive(Debug)]
struct Rows<'r, T> {
    field: &'r str,
    selection: Option<&'r RowSelection<T>>,
    rows: Option<&'r [T]>,
}

// Copies the references, whatever the rows are.
impl<T> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Rows<'_, T> {}

impl<'r, T> Rows<'r, T> {
    fn of(field: &'r str, selection: &'r RowSelection<T>) -> Self {
        Self { field, selection: Some(selection), rows: selection.listed() }
    }

    fn pool(field: &'r str, rows: &'r [T]) -> Self {
        Self { field, selection: None, rows: Some(rows) }
    }

    /// Returns the path of the entry that names a row.
    fn path(&self, row: usize) -> String {
        match self.selection {
            Some(RowSelection::Listed(list)) if list.is_list() => format!("{}[{}]", self.field, list.entry(row)),
            Some(_) => self.field.to_owned(),
            None => format!("{}[{row}]", self.field),
        }
    }
}

pub(super) fn check(rules: &mut Validator<'_, '_>) {
    refuse_both_sections(rules);
    dataset(rules);
    taskset(rules);
    misplaced_pools(rules);
}

fn refuse_both_sections(rules: &mut Validator<'_, '_>) {
    let has_both = rules.config.dataset.is_some() && rules.config.taskset.is_some();
    rules.add_if(
        has_both && rules.can_read(&["dataset", "taskset"]),
        Code::ConflictingFields,
        "taskset",
        "the configuration has both [dataset] and [taskset]",
        "Keep [dataset] for rows by row number, or [taskset] for rows by task id.",
    );
}

fn dataset(rules: &mut Validator<'_, '_>) {
    let Some(dataset) = &rules.config.dataset else { return };
    let pools = &rules.config.gepa.seed_pools;
    let train = Rows::of("dataset.train_seeds", &dataset.train_seeds);
    let heldout = Rows::of("dataset.heldout_seeds", &dataset.heldout_seeds);
    require_rows(rules, train);
    require_rows(rules, heldout);
    // Row numbers count within a split, so the same number in another split is another row.
    if dataset.train_split == dataset.heldout_split && rules.can_read(&["dataset.train_split", "dataset.heldout_split"])
    {
        require_disjoint(rules, train, heldout, &format!("both splits are {:?}", dataset.train_split));
        refuse_one_split(rules, ("dataset", &dataset.train_split), [train.rows, heldout.rows]);
    }
    let minibatch = Rows::pool("gepa.seed_pools.minibatch", &pools.minibatch);
    let reflection = Rows::pool("gepa.seed_pools.reflection", &pools.reflection);
    for pool in [Rows::pool("gepa.seed_pools.pareto_eval", &pools.pareto_eval), minibatch, reflection] {
        require_subset(rules, pool, train);
    }
    require_subset(rules, Rows::pool("gepa.seed_pools.validation", &pools.validation), heldout);
    let is_unseen = pools.minibatch.iter().any(|seed| !pools.reflection.contains(seed)) && !pools.reflection.is_empty();
    rules.add_if(
        is_unseen && rules.can_read(&[minibatch.field, reflection.field]),
        Code::MinibatchWithoutReflection,
        minibatch.field,
        "rows of `gepa.seed_pools.minibatch` are not in `gepa.seed_pools.reflection`, so the proposer sees no traces of them",
        "Add them to the reflection pool if the proposer may learn from them.",
    );
}

fn taskset(rules: &mut Validator<'_, '_>) {
    let Some(taskset) = &rules.config.taskset else { return };
    let train = Rows::of("taskset.train_ids", &taskset.train_ids);
    let all_heldout = Rows::of("taskset.heldout_ids", &taskset.heldout_ids);
    require_rows(rules, train);
    require_rows(rules, all_heldout);
    require_disjoint(rules, train, all_heldout, "a task id is unique across splits");
    if taskset.train_split == taskset.heldout_split && rules.can_read(&["taskset.train_split", "taskset.heldout_split"])
    {
        refuse_one_split(rules, ("taskset", &taskset.train_split), [train.rows, all_heldout.rows]);
    }
    let Some(pools) = &rules.config.gepa.task_pools else { return };
    let heldout = Rows::pool("gepa.task_pools.heldout", &pools.heldout);
    let minibatch = Rows::pool("gepa.task_pools.minibatch", &pools.minibatch);
    let reflection = Rows::pool("gepa.task_pools.reflection", &pools.reflection);
    let search = [Rows::pool("gepa.task_pools.pareto", &pools.pareto), minibatch, reflection];
    for Rows { field, rows, .. } in search.into_iter().chain([heldout]) {
        rules.add_if(
            rows.is_some_and(<[_]>::is_empty),
            Code::Required,
            field,
            format!("`{field}` is empty"),
            "[gepa.task_pools] needs pareto, minibatch, reflection and heldout; leave the section out to use all tasks.",
        );
    }
    for pool in search {
        require_subset(rules, pool, train);
        require_disjoint(rules, pool, heldout, "a task id is unique across pools");
    }
    require_subset(rules, heldout, all_heldout);
    if !pools.reflection.is_empty() {
        require_subset(rules, minibatch, reflection);
    }
}

fn misplaced_pools(rules: &mut Validator<'_, '_>) {
    let config = rules.config;
    let (has_seeds, has_tasks) = (config.dataset.is_some(), config.taskset.is_some());
    let pools = &config.gepa.seed_pools;
    let pools = [&pools.pareto_eval, &pools.minibatch, &pools.reflection, &pools.validation];
    rules.add_if(
        pools.iter().any(|pool| !pool.is_empty()) && has_tasks && !has_seeds,
        Code::ConflictingFields,
        "gepa.seed_pools",
        "[gepa.seed_pools] lists row numbers, but the rows are tasks of [taskset]",
        "Use [gepa.task_pools] with task ids.",
    );
    rules.add_if(
        config.gepa.task_pools.is_some() && has_seeds && !has_tasks,
        Code::ConflictingFields,
        "gepa.task_pools",
        "[gepa.task_pools] lists task ids, but the rows are row numbers of [dataset]",
        "Use [gepa.seed_pools] with row numbers.",
    );
}

fn require_rows<T: RowName>(rules: &mut Validator<'_, '_>, named: Rows<'_, T>) {
    let Some(rows) = named.rows else { return };
    let message = format!("`{}` is empty", named.field);
    rules.add_if(rows.is_empty(), Code::Required, named.field, message, "List at least one row.");
    // One finding per entry: a range may repeat many rows.
    let (mut seen, mut repeated) = (BTreeSet::new(), BTreeMap::new());
    for (place, row) in rows.iter().enumerate().filter(|(_, row)| !seen.insert(*row)) {
        repeated.entry(named.path(place)).or_insert(row);
    }
    for (path, row) in repeated {
        let row: serde_json::Value = row.clone().into();
        let message = format!("`{}` lists {row} twice", named.field);
        rules.add(Code::Duplicate, &path, message, "List every row once.");
    }
}

/// Refuses a split whose rows are all both train and held-out rows.
fn refuse_one_split<T>(rules: &mut Validator<'_, '_>, (section, split): (&str, &str), rows: [Option<&[T]>; 2]) {
    rules.add_if(
        rows.iter().any(Option::is_none),
        Code::TrainHeldoutOverlap,
        &format!("{section}.heldout_split"),
        format!("both splits are {split:?}, and one of them selects all rows"),
        "Name two splits, or write two ranges that share no row.",
    );
}

fn require_disjoint<T: RowName>(rules: &mut Validator<'_, '_>, train: Rows<'_, T>, heldout: Rows<'_, T>, reason: &str) {
    let Some(known) = train.rows else { return };
    let known: BTreeSet<&T> = known.iter().collect();
    let Some((first, names)) = describe_wrong_rows(rules, heldout, train, |row| known.contains(row)) else { return };
    let message = format!("{names} in both `{}` and `{}`, and {reason}", train.field, heldout.field);
    let hint = "Remove them from one list: the search must not see held-out rows.";
    rules.add(Code::TrainHeldoutOverlap, &first, message, hint);
}

fn require_subset<T: RowName>(rules: &mut Validator<'_, '_>, pool: Rows<'_, T>, whole: Rows<'_, T>) {
    let Some(known) = whole.rows else { return };
    let known: BTreeSet<&T> = known.iter().collect();
    let Some((first, names)) = describe_wrong_rows(rules, pool, whole, |row| !known.contains(row)) else { return };
    let message = format!("{names} in `{}` but not in `{}`", pool.field, whole.field);
    rules.add(Code::PoolRowUnknown, &first, message, format!("Use rows of `{}`.", whole.field));
}

/// Returns the path of the first wrong row, and a text that names up to five of them. Returns `None` if there is none or if
/// one of the lists is unreadable.
fn describe_wrong_rows<T: RowName>(
    rules: &Validator<'_, '_>,
    named: Rows<'_, T>,
    other: Rows<'_, T>,
    is_wrong: impl Fn(&T) -> bool,
) -> Option<(String, String)> {
    const MAX_SHOWN_ROWS: usize = 5;
    let wrong: Vec<(usize, &T)> = named.rows?.iter().enumerate().filter(|(_, row)| is_wrong(row)).collect();
    let (first, _) = wrong.first().filter(|_| rules.can_read(&[named.field, other.field]))?;
    let names = wrong.iter().take(MAX_SHOWN_ROWS).map(|(_, row)| format!("{row:?}")).collect::<Vec<_>>().join(", ");
    let names = match wrong.len() {
        1 => format!("{names} is"),
        count if count > MAX_SHOWN_ROWS => format!("{names} and {} more are", count - MAX_SHOWN_ROWS),
        _ => format!("{names} are"),
    };
    Some((named.path(*first), names))
}

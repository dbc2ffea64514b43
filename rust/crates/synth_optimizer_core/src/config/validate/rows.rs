//! Rules about `[dataset]`, `[taskset]` and the row pools: train and held-out rows are disjoint, and pools are subsets.

use std::fmt::Debug;

use super::super::report::Code;
use super::Validator;

/// A field, and the rows that it names.
type Rows<'r, T> = (&'r str, &'r [T]);

pub(super) fn check(rules: &mut Validator<'_, '_>) {
    require_one_section(rules);
    dataset(rules);
    taskset(rules);
    misplaced_pools(rules);
}

fn require_one_section(rules: &mut Validator<'_, '_>) {
    let given = (rules.config.dataset.is_some(), rules.config.taskset.is_some());
    let can_read = rules.can_read(&["dataset", "taskset"]);
    rules.add_if(
        given == (false, false) && can_read,
        Code::Required,
        "dataset",
        "the configuration has no rows: [dataset] is required",
        "Write train_seeds and heldout_seeds under [dataset], or train_ids and heldout_ids under [taskset].",
    );
    rules.add_if(
        given == (true, true) && can_read,
        Code::ConflictingFields,
        "taskset",
        "the configuration has both [dataset] and [taskset]",
        "Keep [dataset] for rows by row number, or [taskset] for rows by task id.",
    );
}

fn dataset(rules: &mut Validator<'_, '_>) {
    let Some(dataset) = &rules.config.dataset else { return };
    let pools = &rules.config.gepa.seed_pools;
    let train: Rows<'_, i64> = ("dataset.train_seeds", &dataset.train_seeds);
    let heldout: Rows<'_, i64> = ("dataset.heldout_seeds", &dataset.heldout_seeds);
    require_rows(rules, train);
    require_rows(rules, heldout);
    // Row numbers count within a split, so the same number in another split is another row.
    if dataset.train_split == dataset.heldout_split && rules.can_read(&["dataset.train_split", "dataset.heldout_split"])
    {
        require_disjoint(rules, train, heldout, &format!("both splits are {:?}", dataset.train_split));
    }
    let minibatch: Rows<'_, i64> = ("gepa.seed_pools.minibatch", &pools.minibatch);
    let reflection: Rows<'_, i64> = ("gepa.seed_pools.reflection", &pools.reflection);
    for pool in [("gepa.seed_pools.pareto_eval", pools.pareto_eval.as_slice()), minibatch, reflection] {
        require_subset(rules, pool, train);
    }
    require_subset(rules, ("gepa.seed_pools.validation", &pools.validation), heldout);
    let is_unseen = minibatch.1.iter().any(|seed| !reflection.1.contains(seed)) && !reflection.1.is_empty();
    rules.add_if(
        is_unseen && rules.can_read(&[minibatch.0, reflection.0]),
        Code::MinibatchWithoutReflection,
        minibatch.0,
        "rows of `gepa.seed_pools.minibatch` are not in `gepa.seed_pools.reflection`, so the proposer sees no traces of them",
        "Add them to the reflection pool if the proposer may learn from them.",
    );
}

fn taskset(rules: &mut Validator<'_, '_>) {
    let Some(taskset) = &rules.config.taskset else { return };
    let train: Rows<'_, String> = ("taskset.train_ids", &taskset.train_ids);
    let all_heldout: Rows<'_, String> = ("taskset.heldout_ids", &taskset.heldout_ids);
    require_rows(rules, train);
    require_rows(rules, all_heldout);
    require_disjoint(rules, train, all_heldout, "a task id is unique across splits");
    let Some(pools) = &rules.config.gepa.task_pools else { return };
    let heldout: Rows<'_, String> = ("gepa.task_pools.heldout", &pools.heldout);
    let minibatch: Rows<'_, String> = ("gepa.task_pools.minibatch", &pools.minibatch);
    let reflection: Rows<'_, String> = ("gepa.task_pools.reflection", &pools.reflection);
    let search = [("gepa.task_pools.pareto", pools.pareto.as_slice()), minibatch, reflection];
    for (field, pool) in search.into_iter().chain([heldout]) {
        rules.add_if(
            pool.is_empty(),
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
    if !reflection.1.is_empty() {
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

fn require_rows<T>(rules: &mut Validator<'_, '_>, (field, rows): Rows<'_, T>) {
    let message = format!("`{field}` is empty");
    rules.add_if(rows.is_empty(), Code::Required, field, message, "List at least one row.");
}

fn require_disjoint<T: PartialEq + Debug>(
    rules: &mut Validator<'_, '_>,
    train: Rows<'_, T>,
    heldout: Rows<'_, T>,
    reason: &str,
) {
    let Some((first, names)) = describe_wrong_rows(rules, heldout, train, |row| train.1.contains(row)) else { return };
    let message = format!("{names} in both `{}` and `{}`, and {reason}", train.0, heldout.0);
    let hint = "Remove them from one list: the search must not see held-out rows.";
    rules.add(Code::TrainHeldoutOverlap, &first, message, hint);
}

fn require_subset<T: PartialEq + Debug>(rules: &mut Validator<'_, '_>, pool: Rows<'_, T>, whole: Rows<'_, T>) {
    let Some((first, names)) = describe_wrong_rows(rules, pool, whole, |row| !whole.1.contains(row)) else { return };
    let message = format!("{names} in `{}` but not in `{}`", pool.0, whole.0);
    rules.add(Code::PoolRowUnknown, &first, message, format!("Use rows of `{}`.", whole.0));
}

/// Returns the path of the first wrong row, and a text that names up to five of them. Returns `None` if there is none or if
/// one of the lists is unreadable.
fn describe_wrong_rows<T: Debug>(
    rules: &Validator<'_, '_>,
    (field, rows): Rows<'_, T>,
    other: Rows<'_, T>,
    is_wrong: impl Fn(&T) -> bool,
) -> Option<(String, String)> {
    const MAX_SHOWN_ROWS: usize = 5;
    let wrong: Vec<(usize, &T)> = rows.iter().enumerate().filter(|(_, row)| is_wrong(row)).collect();
    let (first, _) = wrong.first().filter(|_| rules.can_read(&[field, other.0]))?;
    let names = wrong.iter().take(MAX_SHOWN_ROWS).map(|(_, row)| format!("{row:?}")).collect::<Vec<_>>().join(", ");
    let names = match wrong.len() {
        1 => format!("{names} is"),
        count if count > MAX_SHOWN_ROWS => format!("{names} and {} more are", count - MAX_SHOWN_ROWS),
        _ => format!("{names} are"),
    };
    Some((format!("{field}[{first}]"), names))
}

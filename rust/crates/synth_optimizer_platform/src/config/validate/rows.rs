//! Rules of `[dataset]`, `[taskset]` and the row pools: every row is named once and train never meets held-out.

use std::fmt::Debug;

use super::{Rules, is_blank, repeated};

pub(super) fn check(rules: &mut Rules<'_, '_>) {
    which_section(rules);
    let config = rules.config;
    if let Some(dataset) = &config.dataset {
        splits(rules, "dataset", &dataset.train_split, &dataset.heldout_split);
        row_list(rules, "dataset.train_seeds", &dataset.train_seeds);
        row_list(rules, "dataset.heldout_seeds", &dataset.heldout_seeds);
        // A seed numbers the rows of its split, so the same seed of another split is another row.
        if dataset.train_split == dataset.heldout_split
            && rules.can_read(&["dataset.train_split", "dataset.heldout_split"])
        {
            let reason = format!("both splits are {:?}", dataset.train_split);
            disjoint(
                rules,
                ("dataset.train_seeds", &dataset.train_seeds),
                ("dataset.heldout_seeds", &dataset.heldout_seeds),
                &reason,
            );
        }
        seed_pools(rules);
    }
    if let Some(taskset) = &config.taskset {
        splits(rules, "taskset", &taskset.train_split, &taskset.heldout_split);
        row_list(rules, "taskset.train_ids", &taskset.train_ids);
        row_list(rules, "taskset.heldout_ids", &taskset.heldout_ids);
        for (field, ids) in [("taskset.train_ids", &taskset.train_ids), ("taskset.heldout_ids", &taskset.heldout_ids)] {
            for (index, id) in ids.iter().enumerate() {
                if is_blank(id) {
                    let field = format!("{field}[{index}]");
                    rules.error("blank", &field, format!("`{field}` is blank"), "Give the id of the task.");
                }
            }
        }
        let reason = "an id names one task whatever its split";
        disjoint(
            rules,
            ("taskset.train_ids", &taskset.train_ids),
            ("taskset.heldout_ids", &taskset.heldout_ids),
            reason,
        );
        task_pools(rules);
    }
    misplaced_pools(rules);
}

fn which_section(rules: &mut Rules<'_, '_>) {
    if !rules.can_read(&["dataset", "taskset"]) {
        return;
    }
    match (&rules.config.dataset, &rules.config.taskset) {
        (None, None) => rules.error(
            "required",
            "dataset",
            "no rows are given: [dataset] is required",
            "Write train_seeds and heldout_seeds under [dataset], or train_ids and heldout_ids under [taskset].",
        ),
        (Some(_), Some(_)) => rules.error(
            "contradiction",
            "taskset",
            "both [dataset] and [taskset] are given",
            "Keep [dataset] for rows by seed, or [taskset] for rows by task id.",
        ),
        (Some(_), None) | (None, Some(_)) => {}
    }
}

fn splits(rules: &mut Rules<'_, '_>, section: &str, train: &str, heldout: &str) {
    for (name, split) in [("train_split", train), ("heldout_split", heldout)] {
        if is_blank(split) {
            let field = format!("{section}.{name}");
            rules.error(
                "blank",
                &field,
                format!("`{field}` is blank"),
                "Name a split of the container's data, or leave it out.",
            );
        }
    }
}

fn row_list<T: PartialEq + Debug>(rules: &mut Rules<'_, '_>, field: &str, rows: &[T]) {
    if rows.is_empty() {
        rules.error("required", field, format!("`{field}` names no row"), "Name at least one row.");
    }
    for index in repeated(rows) {
        let place = format!("{field}[{index}]");
        rules.error(
            "duplicate",
            &place,
            format!("{:?} is named twice in `{field}`", rows[index]),
            "Name every row once.",
        );
    }
}

type Rows<'r, T> = (&'r str, &'r [T]);

fn disjoint<T: PartialEq + Debug>(rules: &mut Rules<'_, '_>, train: Rows<'_, T>, heldout: Rows<'_, T>, reason: &str) {
    let shared: Vec<usize> = (0..heldout.1.len()).filter(|index| train.1.contains(&heldout.1[*index])).collect();
    let (Some(first), true) = (shared.first(), rules.can_read(&[train.0, heldout.0])) else { return };
    let names = listed(&shared.iter().map(|index| &heldout.1[*index]).collect::<Vec<_>>());
    rules.error(
        "train_heldout_overlap",
        &format!("{}[{first}]", heldout.0),
        format!("{names} in both `{}` and `{}`, and {reason}", train.0, heldout.0),
        "Held-out rows measure what the search has not seen: remove them from one list.",
    );
}

/// Up to five of the values, and how many more there are.
fn listed<T: Debug>(values: &[&T]) -> String {
    const SHOWN: usize = 5;
    let names = values.iter().take(SHOWN).map(|value| format!("{value:?}")).collect::<Vec<_>>().join(", ");
    match values.len() {
        1 => format!("{names} is"),
        count if count > SHOWN => format!("{names} and {} more are", count - SHOWN),
        _ => format!("{names} are"),
    }
}

fn subset<T: PartialEq + Debug>(rules: &mut Rules<'_, '_>, pool: Rows<'_, T>, whole: Rows<'_, T>) {
    let strange: Vec<usize> = (0..pool.1.len()).filter(|index| !whole.1.contains(&pool.1[*index])).collect();
    let (Some(first), true) = (strange.first(), rules.can_read(&[pool.0, whole.0])) else { return };
    let names = listed(&strange.iter().map(|index| &pool.1[*index]).collect::<Vec<_>>());
    rules.error(
        "pool_outside",
        &format!("{}[{first}]", pool.0),
        format!("{names} in `{}` but not in `{}`", pool.0, whole.0),
        format!("A pool is a part of `{}`.", whole.0),
    );
}

fn no_repeats<T: PartialEq + Debug>(rules: &mut Rules<'_, '_>, pool: Rows<'_, T>) {
    for index in repeated(pool.1) {
        let field = format!("{}[{index}]", pool.0);
        rules.error(
            "duplicate",
            &field,
            format!("{:?} is named twice in `{}`", pool.1[index], pool.0),
            "Name every row once.",
        );
    }
}

fn seed_pools(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let Some(dataset) = &config.dataset else { return };
    let pools = &config.gepa.seed_pools;
    let train: Rows<'_, i64> = ("dataset.train_seeds", &dataset.train_seeds);
    let minibatch: Rows<'_, i64> = ("gepa.seed_pools.minibatch", &pools.minibatch);
    let reflection: Rows<'_, i64> = ("gepa.seed_pools.reflection", &pools.reflection);
    for pool in [("gepa.seed_pools.pareto_eval", pools.pareto_eval.as_slice()), minibatch, reflection] {
        no_repeats(rules, pool);
        subset(rules, pool, train);
    }
    let validation: Rows<'_, i64> = ("gepa.seed_pools.validation", &pools.validation);
    no_repeats(rules, validation);
    subset(rules, validation, ("dataset.heldout_seeds", &dataset.heldout_seeds));
    let unseen = minibatch.1.iter().any(|seed| !reflection.1.contains(seed));
    if unseen && !reflection.1.is_empty() && rules.can_read(&[minibatch.0, reflection.0]) {
        rules.warn(
            "minibatch_without_reflection",
            minibatch.0,
            "rows of `gepa.seed_pools.minibatch` are not in `gepa.seed_pools.reflection`, so the proposer sees no traces of them",
            "Add them to the reflection pool if the proposer may learn from them.",
        );
    }
}

fn task_pools(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let (Some(taskset), Some(pools)) = (&config.taskset, &config.gepa.task_pools) else { return };
    let train: Rows<'_, String> = ("taskset.train_ids", &taskset.train_ids);
    let heldout: Rows<'_, String> = ("gepa.task_pools.heldout", &pools.heldout);
    let minibatch: Rows<'_, String> = ("gepa.task_pools.minibatch", &pools.minibatch);
    let reflection: Rows<'_, String> = ("gepa.task_pools.reflection", &pools.reflection);
    let search = [("gepa.task_pools.pareto", pools.pareto.as_slice()), minibatch, reflection];
    for pool in search.into_iter().chain([heldout]) {
        if pool.1.is_empty() {
            rules.error(
                "required",
                pool.0,
                format!("`{}` names no task", pool.0),
                "[gepa.task_pools] needs pareto, minibatch, reflection and heldout; leave the section out to use all tasks.",
            );
        }
        no_repeats(rules, pool);
    }
    for pool in search {
        subset(rules, pool, train);
        disjoint(rules, pool, heldout, "an id names one task whatever its pool");
    }
    subset(rules, heldout, ("taskset.heldout_ids", &taskset.heldout_ids));
    if !reflection.1.is_empty() {
        subset(rules, minibatch, reflection);
    }
}

fn misplaced_pools(rules: &mut Rules<'_, '_>) {
    let config = rules.config;
    let pools = &config.gepa.seed_pools;
    let seeds_given = [&pools.pareto_eval, &pools.minibatch, &pools.reflection, &pools.validation]
        .iter()
        .any(|pool| !pool.is_empty());
    if seeds_given && config.dataset.is_none() && config.taskset.is_some() {
        rules.error(
            "contradiction",
            "gepa.seed_pools",
            "[gepa.seed_pools] names seeds but the rows are tasks of [taskset]",
            "Write [gepa.task_pools] with task ids.",
        );
    }
    if config.gepa.task_pools.is_some() && config.taskset.is_none() && config.dataset.is_some() {
        rules.error(
            "contradiction",
            "gepa.task_pools",
            "[gepa.task_pools] names task ids but the rows are seeds of [dataset]",
            "Write [gepa.seed_pools] with seeds.",
        );
    }
}

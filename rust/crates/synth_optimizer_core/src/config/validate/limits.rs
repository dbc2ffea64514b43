//! Rules of the limits in `[gepa]`: estimates that a limit needs, and budgets that could not finish the first step.

use super::super::findings::Code;
use super::super::pools::{effective_caps, pools};
use super::Rules;

pub(super) fn check(rules: &mut Rules<'_, '_>) {
    needed_estimates(rules);
    time(rules);
    rollouts(rules);
}

/// A turn is only begun if it can end in time.
fn time(rules: &mut Rules<'_, '_>) {
    let (timeout, limit) = (rules.config.proposer.timeout_seconds, rules.config.gepa.max_time_seconds);
    if let Some(limit) = limit.filter(|limit| *limit <= timeout)
        && rules.can_read(&["proposer.timeout_seconds"])
    {
        let message = format!("`gepa.max_time_seconds` is {limit}; one proposer turn alone may take {timeout} seconds");
        let hint = "Raise the limit, or lower `proposer.timeout_seconds`.";
        rules.add(Code::TimeTooShort, "gepa.max_time_seconds", message, hint);
    }
}

/// Work is refused before it is sent, which takes an estimate of what it will use.
fn needed_estimates(rules: &mut Rules<'_, '_>) {
    let gepa = &rules.config.gepa;
    let has_cost = [gepa.proposer_estimated_cost_usd.is_some(), gepa.rollout_estimated_cost_usd.is_some()];
    let has_prompt = [gepa.proposer_estimated_prompt_tokens.is_some(), gepa.rollout_estimated_prompt_tokens.is_some()];
    let has_completion =
        [gepa.proposer_estimated_completion_tokens.is_some(), gepa.rollout_estimated_completion_tokens.is_some()];
    let given = [gepa.proposer_estimated_total_tokens.is_some(), gepa.rollout_estimated_total_tokens.is_some()];
    let has_total = [0, 1].map(|kind| given[kind] || (has_prompt[kind] && has_completion[kind]));
    // The time of a proposer turn is limited by its timeout.
    let has_time = [true, gepa.rollout_estimated_wall_seconds.is_some()];
    let limits = [
        ("max_cost_usd", gepa.max_cost_usd > 0.0, "cost_usd", has_cost),
        ("max_time_seconds", gepa.max_time_seconds.is_some(), "wall_seconds", has_time),
        ("max_prompt_tokens", gepa.max_prompt_tokens.is_some(), "prompt_tokens", has_prompt),
        ("max_completion_tokens", gepa.max_completion_tokens.is_some(), "completion_tokens", has_completion),
        ("max_total_tokens", gepa.max_total_tokens.is_some(), "total_tokens", has_total),
    ];
    for (limit, _, unit, has_estimate) in limits.into_iter().filter(|(_, is_set, ..)| *is_set) {
        for (kind, has_estimate) in ["proposer", "rollout"].into_iter().zip(has_estimate) {
            let estimate = |unit: &str| format!("gepa.{kind}_estimated_{unit}");
            // An unreadable part might have been the other half of a total.
            let parts: &[&str] = if unit == "total_tokens" { &["prompt_tokens", "completion_tokens"] } else { &[] };
            if has_estimate || ![unit].iter().chain(parts).all(|unit| rules.can_read(&[&estimate(unit)])) {
                continue;
            }
            let one = if kind == "proposer" { "proposer turn" } else { "rollout" };
            let hint = match unit {
                "total_tokens" => "Give the total estimate, or both the prompt and the completion estimate.".to_owned(),
                _ => format!("Give `{}`: the most that one {one} takes.", estimate(unit)),
            };
            let limit = format!("gepa.{limit}");
            let message = format!("`{limit}` is set but `{}` is not", estimate(unit));
            rules.add(Code::EstimateRequired, &limit, message, hint);
        }
    }
}

/// The seed candidate must be measurable: on the train rows, and once on the held-out rows.
fn rollouts(rules: &mut Rules<'_, '_>) {
    let readable = rules.can_read(&[
        "dataset",
        "dataset.train_seeds",
        "dataset.heldout_seeds",
        "taskset",
        "taskset.train_ids",
        "taskset.heldout_ids",
        "gepa.seed_pools.pareto_eval",
        "gepa.seed_pools.validation",
        "gepa.task_pools.pareto",
        "gepa.task_pools.heldout",
        "gepa.max_total_rollouts",
        "gepa.max_train_rollouts",
        "gepa.max_heldout_rollouts",
    ]);
    if !readable {
        return;
    }
    let caps = effective_caps(rules.config);
    let pools = pools(rules.config);
    let (train, heldout) = (pools.pareto.len(), pools.heldout.len());
    let fits = |rows: usize, cap: u32| u32::try_from(rows).is_ok_and(|rows| rows <= cap);
    if let Some(total) = caps.total {
        let all = train + heldout;
        rules.add_if(
            !fits(all, total),
            Code::BudgetTooSmall,
            "gepa.max_total_rollouts",
            format!("`gepa.max_total_rollouts` is {total}, but measuring the seed candidate alone takes {all} rollouts: {train} train and {heldout} held-out"),
            format!("Give at least {all}, or name fewer rows."),
        );
        return;
    }
    let halves = [
        ("gepa.max_train_rollouts", "train", caps.train, train),
        ("gepa.max_heldout_rollouts", "held-out", caps.heldout, heldout),
    ];
    for (half, kind, cap, rows) in halves {
        let field = if rules.is_given(half) { half } else { "gepa.max_total_rollouts" };
        rules.add_if(
            !fits(rows, cap),
            Code::BudgetTooSmall,
            field,
            format!("`{field}` allows {cap} {kind} rollouts, but measuring one candidate takes {rows}"),
            format!("Give at least {rows}, or name fewer rows."),
        );
    }
}

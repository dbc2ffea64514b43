//! Rules of the limits in `[gepa]`: estimates that a limit needs, and budgets that could not finish the first step.

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
        rules.error(
            "time_too_short",
            "gepa.max_time_seconds",
            format!("`gepa.max_time_seconds` is {limit}; one proposer turn alone may take {timeout} seconds"),
            "Raise the limit, or lower `proposer.timeout_seconds`.",
        );
    }
}

/// Work is refused before it is sent, which takes an estimate of what it will use.
fn needed_estimates(rules: &mut Rules<'_, '_>) {
    let gepa = &rules.config.gepa;
    let proposer = Tokens {
        prompt: gepa.proposer_estimated_prompt_tokens,
        completion: gepa.proposer_estimated_completion_tokens,
        total: gepa.proposer_estimated_total_tokens,
    };
    let rollout = Tokens {
        prompt: gepa.rollout_estimated_prompt_tokens,
        completion: gepa.rollout_estimated_completion_tokens,
        total: gepa.rollout_estimated_total_tokens,
    };
    let mut needs: Vec<(&str, &str, bool)> = Vec::new();
    if gepa.max_cost_usd > 0.0 {
        needs.push(("max_cost_usd", "proposer_estimated_cost_usd", gepa.proposer_estimated_cost_usd.is_some()));
        needs.push(("max_cost_usd", "rollout_estimated_cost_usd", gepa.rollout_estimated_cost_usd.is_some()));
    }
    if gepa.max_time_seconds.is_some() {
        needs.push((
            "max_time_seconds",
            "rollout_estimated_wall_seconds",
            gepa.rollout_estimated_wall_seconds.is_some(),
        ));
    }
    if gepa.max_prompt_tokens.is_some() {
        needs.push(("max_prompt_tokens", "proposer_estimated_prompt_tokens", proposer.prompt.is_some()));
        needs.push(("max_prompt_tokens", "rollout_estimated_prompt_tokens", rollout.prompt.is_some()));
    }
    if gepa.max_completion_tokens.is_some() {
        needs.push(("max_completion_tokens", "proposer_estimated_completion_tokens", proposer.completion.is_some()));
        needs.push(("max_completion_tokens", "rollout_estimated_completion_tokens", rollout.completion.is_some()));
    }
    if gepa.max_total_tokens.is_some() {
        needs.push(("max_total_tokens", "proposer_estimated_total_tokens", proposer.has_total()));
        needs.push(("max_total_tokens", "rollout_estimated_total_tokens", rollout.has_total()));
    }
    for (limit, estimate, is_given) in needs {
        let (limit, estimate) = (format!("gepa.{limit}"), format!("gepa.{estimate}"));
        if is_given || !rules.can_read(&[&estimate]) || !can_read_parts(rules, &estimate) {
            continue;
        }
        let hint = if limit.ends_with("total_tokens") {
            "Give the total estimate, or both the prompt and the completion estimate.".to_owned()
        } else {
            let one = if estimate.contains("proposer") { "proposer turn" } else { "rollout" };
            format!("Give `{estimate}`: the most that one {one} takes.")
        };
        rules.error("estimate_required", &limit, format!("`{limit}` is set but `{estimate}` is not"), hint);
    }
}

struct Tokens {
    prompt: Option<u64>,
    completion: Option<u64>,
    total: Option<u64>,
}

impl Tokens {
    fn has_total(&self) -> bool {
        self.total.is_some() || (self.prompt.is_some() && self.completion.is_some())
    }
}

/// An unreadable part might have been the other half of a total.
fn can_read_parts(rules: &Rules<'_, '_>, estimate: &str) -> bool {
    match estimate.strip_suffix("total_tokens") {
        Some(stem) => rules.can_read(&[&format!("{stem}prompt_tokens"), &format!("{stem}completion_tokens")]),
        None => true,
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
        if !fits(train + heldout, total) {
            rules.error(
                "budget_too_small",
                "gepa.max_total_rollouts",
                format!(
                    "`gepa.max_total_rollouts` is {total}, but measuring the seed candidate alone takes {} rollouts: {train} train and {heldout} held-out",
                    train + heldout
                ),
                format!("Give at least {}, or name fewer rows.", train + heldout),
            );
        }
        return;
    }
    let halves = [
        ("gepa.max_train_rollouts", "train", caps.train, train),
        ("gepa.max_heldout_rollouts", "held-out", caps.heldout, heldout),
    ];
    for (half, kind, cap, rows) in halves {
        if !fits(rows, cap) {
            let field = if rules.is_given(half) { half } else { "gepa.max_total_rollouts" };
            rules.error(
                "budget_too_small",
                field,
                format!("`{field}` allows {cap} {kind} rollouts, but measuring one candidate takes {rows}"),
                format!("Give at least {rows}, or name fewer rows."),
            );
        }
    }
}

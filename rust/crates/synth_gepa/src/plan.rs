//! What a run will take, told before anything is paid: rollouts, proposals and money, as bounds.

use serde::Serialize;
use synth_optimizer_core::config::gepa::DeploymentRule;
use synth_optimizer_core::config::sections::{DatasetSection, TasksetSection};
use synth_optimizer_core::config::{Config, RolloutCaps, effective_caps};
use synth_optimizer_core::model::budget::{Amount, Budget, Dimension};
use synth_optimizer_core::model::usage::{Cost, NanoUsd};

use crate::plan_sizes::Sizes;
use crate::settings::Settings;

/// The arithmetic of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub train_rows: u64,
    pub heldout_rows: u64,
    pub pools: PoolSizes,
    pub limits: Limits,
    /// Rollouts that measure the seed candidate on the train rows.
    pub seed_evaluation: u64,
    pub per_generation: PerGeneration,
    /// Rollouts of the held-out evaluation, as far as the limits reach.
    pub heldout_evaluation: u64,
    /// No run makes more rollouts: every proposal promoted, every rollout tried as often as allowed, within the limits.
    pub worst_case_rollouts: u64,
    /// Candidates that the limits buy before they end the search, if every rollout and turn is answered at the first try
    /// and no estimate is passed. At least: each is promoted. At most: each is rejected on a whole minibatch.
    pub proposals: Bounds,
    /// Generations that bring them, if each brings all the proposals that it asks for.
    pub generations: Bounds,
    pub cost: PlannedCost,
    /// What the numbers do not say, as sentences.
    pub notes: Vec<String>,
}

/// Rows of each pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PoolSizes {
    pub pareto: u64,
    pub minibatch: u64,
    pub reflection: u64,
    pub heldout: u64,
}

/// Most rollouts of each kind; `total` is null when both kinds have limits of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    pub train: u64,
    pub heldout: u64,
    pub total: Option<u64>,
}

/// Rollouts of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PerGeneration {
    /// Measuring the parent where it has no score, at most.
    pub reference: u64,
    /// Screening every proposal; all that a generation takes when none is promoted and its parent is measured.
    pub minibatch: u64,
    /// What the full evaluation adds when every proposal is promoted.
    pub full_train: u64,
    /// All of it, with the further tries of failing rollouts and the further candidates of repaired answers.
    pub worst_case: u64,
}

/// At least and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bounds {
    pub at_least: u64,
    pub at_most: u64,
}

/// What the worst case costs, or why nobody knows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedCost {
    pub known: bool,
    pub worst_case_usd: Option<f64>,
    pub why_unknown: Option<String>,
}

/// Plans a run from its configuration; no container is asked.
pub fn plan(config: &Config) -> Plan {
    let sizes = Sizes::new(config);
    let settings = Settings::new(config, sizes.pools.heldout.len());
    let caps = effective_caps(config);
    let opening = settings.opening_budget(sizes.pools.pareto.len(), sizes.pools.heldout.len());
    let proposals = proposals(&settings, &sizes, &opening);
    let worst_case_rollouts = worst_rollouts(&sizes, caps);
    let most = sizes.generations;
    let whole = |count: u64| count.div_ceil(sizes.proposals.max(1)).min(most);
    Plan {
        train_rows: rows(config, |dataset| dataset.train_seeds.len(), |taskset| taskset.train_ids.len()),
        heldout_rows: rows(config, |dataset| dataset.heldout_seeds.len(), |taskset| taskset.heldout_ids.len()),
        pools: PoolSizes {
            pareto: sizes.pareto,
            minibatch: sizes.pools.minibatch.len() as u64,
            reflection: sizes.pools.reflection.len() as u64,
            heldout: sizes.heldout,
        },
        limits: Limits { train: caps.train.into(), heldout: caps.heldout.into(), total: caps.total.map(u64::from) },
        seed_evaluation: sizes.pareto,
        per_generation: PerGeneration {
            reference: sizes.reference,
            minibatch: sizes.proposals.saturating_mul(sizes.gate),
            full_train: sizes.proposals.saturating_mul(sizes.full()),
            worst_case: sizes.worst_generation(),
        },
        heldout_evaluation: heldout(&sizes, caps),
        worst_case_rollouts,
        proposals,
        generations: Bounds { at_least: whole(proposals.at_least), at_most: whole(proposals.at_most) },
        cost: cost(config, &sizes, worst_case_rollouts),
        notes: notes(config, &sizes, &opening, worst_case_rollouts),
    }
}

fn rows(config: &Config, seeds: impl Fn(&DatasetSection) -> usize, ids: impl Fn(&TasksetSection) -> usize) -> u64 {
    config.dataset.as_ref().map(seeds).or(config.taskset.as_ref().map(ids)).unwrap_or(0) as u64
}

/// Everyone who is to be measured, or as many of them as the limits leave room for beside the seed's train rows.
fn heldout(sizes: &Sizes, caps: RolloutCaps) -> u64 {
    let beside = caps.total.map_or(u64::MAX, |total| u64::from(total).saturating_sub(sizes.pareto));
    let most = u64::from(caps.heldout).min(beside);
    let whole = most.checked_div(sizes.heldout).unwrap_or(0).min(sizes.measured);
    whole.saturating_mul(sizes.heldout)
}

fn worst_rollouts(sizes: &Sizes, caps: RolloutCaps) -> u64 {
    let train = sizes.worst_train().min(caps.train.into());
    let heldout = sizes.worst_heldout().min(caps.heldout.into());
    train.saturating_add(heldout).min(caps.total.map_or(u64::MAX, u64::from))
}

fn proposals(settings: &Settings, sizes: &Sizes, opening: &Budget) -> Bounds {
    let each = |dimension: Dimension| fewest(settings, sizes, opening, dimension);
    let asked = sizes.generations.saturating_mul(sizes.proposals);
    let fewest = Dimension::ALL.into_iter().filter_map(each).min().unwrap_or(u64::MAX).min(asked);
    let left = |dimension: Dimension| opening.available(dimension).map(|left| left.saturating_sub(sizes.pareto));
    let search = [Dimension::TrainRollouts, Dimension::TotalRollouts].into_iter().filter_map(left).min().unwrap_or(0);
    // A merge may be screened on fewer rows than a proposal.
    let merges = search.checked_div(sizes.merge_gate).unwrap_or(0).min(sizes.merges);
    let merges = if sizes.merge_gate < sizes.gate { merges } else { 0 };
    let rest = search.saturating_sub(merges.saturating_mul(sizes.merge_gate));
    let bought = rest.checked_div(sizes.gate).unwrap_or(0).saturating_add(merges);
    let all = asked.saturating_add(sizes.merges);
    let most = bought.min(all);
    Bounds { at_least: fewest.min(most), at_most: most }
}

/// How many proposals are begun before a limit refuses the next generation, if each uses as much as it can. A generation
/// begins when its screening fits, and the last full evaluation may be cut short.
fn fewest(settings: &Settings, sizes: &Sizes, opening: &Budget, dimension: Dimension) -> Option<u64> {
    match dimension {
        // Time passes side by side, and generations are counted apart.
        Dimension::WallMillis | Dimension::Generations => return None,
        Dimension::TrainRollouts
        | Dimension::HeldoutRollouts
        | Dimension::TotalRollouts
        | Dimension::Cost
        | Dimension::PromptTokens
        | Dimension::CompletionTokens
        | Dimension::TotalTokens => {}
    }
    let of = |rollouts: u64, turns: &Amount| settings.train_rollout.times(rollouts).plus(turns).get(dimension);
    let whole = of(sizes.promoted().saturating_add(sizes.reference), &settings.proposal);
    let first = of(sizes.gate.saturating_add(sizes.reference), &settings.proposal);
    if whole == 0 {
        return None;
    }
    let left = opening.available(dimension)?.saturating_sub(of(sizes.pareto, &Amount::ZERO));
    Some(left.checked_sub(first).map_or(0, |rest| rest / whole + 1))
}

fn cost(config: &Config, sizes: &Sizes, rollouts: u64) -> PlannedCost {
    let unknown = |why: &str| PlannedCost {
        known: false,
        worst_case_usd: None,
        why_unknown: Some(format!("{why} is not known")),
    };
    let Cost::Known(rollout) = Cost::from_usd(config.gepa.rollout_estimated_cost_usd) else {
        return unknown("What a rollout costs (`gepa.rollout_estimated_cost_usd`)");
    };
    let Cost::Known(turn) = turn_cost(config) else {
        return unknown("What a proposer turn costs (`gepa.proposer_estimated_cost_usd`)");
    };
    let nano = rollout.0.saturating_mul(rollouts).saturating_add(turn.0.saturating_mul(sizes.worst_turns()));
    let worst = NanoUsd(nano).usd();
    let limit = Some(config.gepa.max_cost_usd).filter(|limit| *limit > 0.0).unwrap_or(f64::INFINITY);
    PlannedCost { known: true, worst_case_usd: Some(worst.min(limit)), why_unknown: None }
}

/// The estimate of a turn, or what its estimated tokens cost at the prices of the config.
fn turn_cost(config: &Config) -> Cost {
    let gepa = &config.gepa;
    let priced = || {
        let price = config.proposer.prices.get(config.proposer.model.as_ref()?)?;
        let prompt = price.prompt_usd? * gepa.proposer_estimated_prompt_tokens? as f64;
        let completion = price.completion_usd? * gepa.proposer_estimated_completion_tokens? as f64;
        Some((prompt + completion) / 1e6)
    };
    Cost::from_usd(gepa.proposer_estimated_cost_usd.or_else(priced))
}

fn notes(config: &Config, sizes: &Sizes, opening: &Budget, worst_case_rollouts: u64) -> Vec<String> {
    let gepa = &config.gepa;
    let mut notes = Vec::new();
    let unlimited = sizes.worst_train().saturating_add(sizes.worst_heldout());
    notes.push(if unlimited > worst_case_rollouts {
        format!("Without the rollout limits, {} generations would take up to {unlimited} rollouts.", sizes.generations)
    } else {
        format!("The rollout limits are never reached: {} generations end the search first.", sizes.generations)
    });
    if sizes.attempts > 1 {
        notes.push(format!("A rollout that fails is tried up to {} times, and every try counts.", sizes.attempts));
    }
    let held = opening.reserved(Dimension::HeldoutRollouts);
    notes.push(format!("{held} rollouts are kept back for the held-out evaluation."));
    if gepa.deployment_rule == DeploymentRule::HeldoutBest {
        notes.push("Every candidate of the pool is measured on the held-out rows, as far as the limits reach.".into());
    }
    if sizes.merges > 0 {
        notes.push(format!("Up to {} merges come on top of the generations.", sizes.merges));
    }
    let limits: Vec<&str> = [
        ("max_cost_usd", gepa.max_cost_usd > 0.0),
        ("max_time_seconds", gepa.max_time_seconds.is_some()),
        ("max_prompt_tokens", gepa.max_prompt_tokens.is_some()),
        ("max_completion_tokens", gepa.max_completion_tokens.is_some()),
        ("max_total_tokens", gepa.max_total_tokens.is_some()),
        ("no_improvement_generations", gepa.no_improvement_generations.is_some()),
        ("score_threshold_value", gepa.score_threshold_value.is_some()),
        ("skip_perfect_score", gepa.skip_perfect_score),
    ]
    .into_iter()
    .filter_map(|(name, is_set)| is_set.then_some(name))
    .collect();
    if !limits.is_empty() {
        notes.push(format!("The search may end earlier by {}.", limits.join(", ")));
    }
    notes
}

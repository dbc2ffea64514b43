//! What a run will take, told before anything is paid: rollouts, proposals and money, as bounds, and the limits that are too
//! small for it.

use std::collections::BTreeSet;
use std::num::Saturating;

use serde::Serialize;
use synth_optimizer_core::config::gepa::{DeploymentRule, MergeConflict};
use synth_optimizer_core::config::{Config, ConfigFinding, Pools, RolloutCaps, Severity, effective_caps, pools};
use synth_optimizer_core::model::budget::{Budget, Dimension, Resources};
use synth_optimizer_core::model::usage::{Cost, NanoUsd};

use crate::decide_end::in_display_units;
use crate::settings::Settings;

/// The arithmetic of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub train_rows: u64,
    pub heldout_rows: u64,
    pub pools: PoolSizes,
    /// Most rollouts of each kind; `total` is null when both kinds have limits of their own.
    pub limits: RolloutCaps,
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
    let opening = settings.initial_budget(sizes.pools.pareto.len(), sizes.pools.heldout.len());
    let proposals = proposals(&settings, &sizes, &opening);
    let worst_case_rollouts = worst_rollouts(&sizes, caps);
    let whole = |count: u64| count.div_ceil(sizes.proposals.0.max(1)).min(sizes.generations.0);
    let (train_rows, heldout_rows) = match (&config.dataset, &config.taskset) {
        (Some(dataset), _) => (dataset.train_seeds.len(), dataset.heldout_seeds.len()),
        (None, Some(taskset)) => (taskset.train_ids.len(), taskset.heldout_ids.len()),
        (None, None) => (0, 0),
    };
    Plan {
        train_rows: train_rows as u64,
        heldout_rows: heldout_rows as u64,
        pools: PoolSizes {
            pareto: sizes.pareto.0,
            minibatch: sizes.pools.minibatch.len() as u64,
            reflection: sizes.pools.reflection.len() as u64,
            heldout: sizes.heldout.0,
        },
        limits: caps,
        seed_evaluation: sizes.pareto.0,
        per_generation: PerGeneration {
            reference: sizes.reference.0,
            minibatch: (sizes.proposals * sizes.minibatch).0,
            // What the screening has covered is not asked for again.
            full_train: (sizes.proposals * (sizes.promoted() - sizes.minibatch)).0,
            worst_case: sizes.worst_generation().0,
        },
        heldout_evaluation: heldout(&sizes, caps),
        worst_case_rollouts,
        proposals,
        generations: Bounds { at_least: whole(proposals.at_least), at_most: whole(proposals.at_most) },
        cost: cost(config, &sizes, worst_case_rollouts),
        notes: notes(config, &sizes, &opening, worst_case_rollouts),
    }
}

/// Everyone who is to be measured, or as many of them as the limits leave room for beside the seed's train rows.
fn heldout(sizes: &Sizes, caps: RolloutCaps) -> u64 {
    let beside = caps.total.map_or(u64::MAX, |total| u64::from(total).saturating_sub(sizes.pareto.0));
    let most = u64::from(caps.heldout).min(beside);
    let whole = most.checked_div(sizes.heldout.0).unwrap_or(0).min(sizes.measured.0);
    whole.saturating_mul(sizes.heldout.0)
}

fn worst_rollouts(sizes: &Sizes, caps: RolloutCaps) -> u64 {
    let train = sizes.worst_train().0.min(caps.train.into());
    let heldout = sizes.worst_heldout().0.min(caps.heldout.into());
    train.saturating_add(heldout).min(caps.total.map_or(u64::MAX, u64::from))
}

fn proposals(settings: &Settings, sizes: &Sizes, opening: &Budget) -> Bounds {
    let each = |dimension: Dimension| min_proposals(settings, sizes, opening, dimension);
    let asked = (sizes.generations * sizes.proposals).0;
    let min_proposals = Dimension::ALL.into_iter().filter_map(each).min().unwrap_or(u64::MAX).min(asked);
    let left = |dimension: Dimension| opening.available(dimension).map(|left| left.saturating_sub(sizes.pareto.0));
    let search = [Dimension::TrainRollouts, Dimension::TotalRollouts].into_iter().filter_map(left).min().unwrap_or(0);
    // A merge may be screened on fewer rows than a proposal.
    let merges = search.checked_div(sizes.merge_minibatch.0).unwrap_or(0).min(sizes.merges.0);
    let merges = if sizes.merge_minibatch.0 < sizes.minibatch.0 { merges } else { 0 };
    let rest = search.saturating_sub(merges.saturating_mul(sizes.merge_minibatch.0));
    let bought = rest.checked_div(sizes.minibatch.0).unwrap_or(0).saturating_add(merges);
    let all = asked.saturating_add(sizes.merges.0);
    let most = bought.min(all);
    Bounds { at_least: min_proposals.min(most), at_most: most }
}

/// How many proposals are begun before a limit refuses the next generation, if each uses as much as it can. A generation
/// begins when its screening fits, and the last full evaluation may be cut short.
fn min_proposals(settings: &Settings, sizes: &Sizes, opening: &Budget, dimension: Dimension) -> Option<u64> {
    // Time passes side by side, and generations are counted apart.
    if matches!(dimension, Dimension::WallMillis | Dimension::Generations) {
        return None;
    }
    let of = |rollouts: Count, turns: &Resources| settings.train_rollout.times(rollouts.0).plus(turns).get(dimension);
    let whole = of(sizes.promoted() + sizes.reference, &settings.proposal);
    let first = of(sizes.minibatch + sizes.reference, &settings.proposal);
    if whole == 0 {
        return None;
    }
    let left = opening.available(dimension)?.saturating_sub(of(sizes.pareto, &Resources::ZERO));
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
    let nano = rollout.0.saturating_mul(rollouts).saturating_add(turn.0.saturating_mul((sizes.asking * sizes.turns).0));
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
    let unlimited = (sizes.worst_train() + sizes.worst_heldout()).0;
    notes.push(if unlimited > worst_case_rollouts {
        format!("Without the rollout limits, {} generations would take up to {unlimited} rollouts.", sizes.generations)
    } else {
        format!("The rollout limits are never reached: {} generations end the search first.", sizes.generations)
    });
    if sizes.attempts.0 > 1 {
        notes.push(format!("A rollout that fails is tried up to {} times, and every try counts.", sizes.attempts));
    }
    let held = opening.reserved(Dimension::HeldoutRollouts);
    notes.push(format!("{held} rollouts are kept back for the held-out evaluation."));
    if gepa.deployment_rule == DeploymentRule::HeldoutBest {
        notes.push("Every candidate of the pool is measured on the held-out rows, as far as the limits reach.".into());
    }
    if sizes.merges.0 > 0 {
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

/// Every limit that does not reach. An error means that the seed candidate cannot be measured on the train rows and once
/// on the held-out rows; a warning, that the run would do less than it is asked for.
pub fn shortfalls(config: &Config) -> Vec<ConfigFinding> {
    let sizes = Sizes::new(config);
    let settings = Settings::new(config, sizes.pools.heldout.len());
    let rules = LimitCheck { caps: Budget::new(settings.caps), settings: &settings, config };
    let seed = settings.train_rollout.times(sizes.pareto.0);
    let measured = |times: u64| settings.heldout_rollout.times(sizes.heldout.0.saturating_mul(times));
    let mut found = rules.too_small(
        &seed.plus(&measured(1)),
        (Severity::Error, "budget_too_small"),
        "measuring the seed candidate on the train rows and once on the held-out rows",
    );
    if found.is_empty() {
        let screened =
            |rows: u64| settings.train_rollout.times(sizes.pareto.0.saturating_add(rows)).plus(&settings.proposal);
        found.extend(rules.too_small(
            &screened((sizes.minibatch + sizes.reference).0),
            (Severity::Warning, "no_proposal"),
            "measuring the seed candidate and screening one proposal",
        ));
        found.extend(rules.too_small(
            &screened(settings.gepa.minibatch_size.into()).plus(&measured(2)),
            (Severity::Warning, "heldout_partial"),
            "screening one proposal and measuring both the seed and the best candidate on the held-out rows",
        ));
    }
    found.extend(rules.too_slow(&sizes));
    found
}

struct LimitCheck<'c> {
    caps: Budget,
    settings: &'c Settings,
    config: &'c Config,
}

impl LimitCheck<'_> {
    fn too_small(
        &self,
        wanted: &Resources,
        (severity, code): (Severity, &'static str),
        what: &str,
    ) -> Vec<ConfigFinding> {
        let short = |dimension: Dimension| {
            let (wanted, cap) = (wanted.get(dimension), self.caps.available(dimension)?);
            let is_told = match dimension {
                // Under one limit for both kinds, their sum says it all.
                Dimension::TrainRollouts | Dimension::HeldoutRollouts => {
                    self.settings.caps.get(Dimension::TotalRollouts).is_none()
                }
                // Time does not add up; what it is enough for is looked at apart.
                Dimension::WallMillis => false,
                _ => true,
            };
            if !is_told || wanted <= cap {
                return None;
            }
            let field = self.field(dimension);
            let (wanted, cap) = (in_display_units(dimension, wanted), in_display_units(dimension, cap));
            let message = format!("`{field}` is {cap}, but {what} takes up to {wanted}");
            Some(finding(severity, code, field, message, format!("Give at least {wanted}, or name fewer rows.")))
        };
        Dimension::ALL.into_iter().filter_map(short).collect()
    }

    /// Whether the seed is measured before the search has to end, if every rollout takes as long as it may.
    fn too_slow(&self, sizes: &Sizes) -> Option<ConfigFinding> {
        let deadline = self.settings.search_deadline_millis?;
        let workers = u64::from(self.config.gepa.pipeline.workers.rollout.max(1));
        let each = self.settings.train_rollout.get(Dimension::WallMillis);
        let needed = sizes.pareto.0.div_ceil(workers).saturating_mul(each);
        (needed > deadline).then(|| {
            let (needed, deadline) = (needed as f64 / 1e3, deadline as f64 / 1e3);
            finding(
                Severity::Warning,
                "time_may_not_reach",
                "gepa.max_time_seconds",
                format!("measuring the seed candidate may take {needed} seconds, and the search has {deadline}"),
                "Raise the limit or `gepa.pipeline.workers.rollout`, or name fewer rows.".to_owned(),
            )
        })
    }

    /// The field that sets a limit.
    fn field(&self, dimension: Dimension) -> &'static str {
        let gepa = &self.config.gepa;
        match dimension {
            Dimension::TrainRollouts if gepa.max_train_rollouts.is_some() => "gepa.max_train_rollouts",
            Dimension::HeldoutRollouts if gepa.max_heldout_rollouts.is_some() => "gepa.max_heldout_rollouts",
            Dimension::TrainRollouts | Dimension::HeldoutRollouts | Dimension::TotalRollouts => {
                "gepa.max_total_rollouts"
            }
            Dimension::Cost => "gepa.max_cost_usd",
            Dimension::PromptTokens => "gepa.max_prompt_tokens",
            Dimension::CompletionTokens => "gepa.max_completion_tokens",
            Dimension::TotalTokens => "gepa.max_total_tokens",
            Dimension::WallMillis => "gepa.max_time_seconds",
            Dimension::Generations => "gepa.max_generations",
        }
    }
}

fn finding(severity: Severity, code: &'static str, field: &str, message: String, hint: String) -> ConfigFinding {
    ConfigFinding {
        severity,
        code,
        field: field.to_owned(),
        source: "config".to_owned(),
        line: None,
        column: None,
        message,
        hint,
        excerpt: None,
    }
}

/// Counts that may grow beyond any number stay at the largest.
type Count = Saturating<u64>;

/// Rows and counts that the arithmetic of a plan is made of.
///
/// A candidate is measured on a row once: what its screening has covered, its full evaluation does not ask for again, and
/// a parent is measured only where it has no score. A rollout that fails may be tried again, and every try counts.
#[derive(Debug, Clone)]
struct Sizes {
    pools: Pools,
    /// Rows of the full evaluation and of the held-out evaluation.
    pareto: Count,
    heldout: Count,
    /// Rows on which one proposal is screened.
    minibatch: Count,
    /// Most rows of a screening that the full evaluation does not have.
    minibatch_outside: Count,
    /// Most rows on which the parent of a generation has to be measured first.
    reference: Count,
    /// Proposals asked for in one generation, and most candidates that can come of it: an answer that has all of them and a
    /// problem besides is repaired too, which may bring one more.
    proposals: Count,
    candidates: Count,
    generations: Count,
    merges: Count,
    merge_minibatch: Count,
    merge_candidates: Count,
    /// Tries of one rollout, and most turns of the proposer in one generation.
    attempts: Count,
    turns: Count,
    /// Generations and merges that may ask the proposer.
    asking: Count,
    /// Most candidates that are measured on the held-out rows.
    measured: Count,
}

impl Sizes {
    fn new(config: &Config) -> Self {
        let (gepa, proposer) = (&config.gepa, &config.proposer);
        let pools = pools(config);
        let pareto: BTreeSet<usize> = pools.pareto.iter().copied().collect();
        let count = |number: u32| Saturating(u64::from(number));
        let rows = |number: usize| Saturating(number as u64);
        let size = count(gepa.minibatch_size);
        let outside = |pool: &mut dyn Iterator<Item = &usize>| rows(pool.filter(|row| !pareto.contains(row)).count());
        let minibatch = size.min(rows(pools.minibatch.len()));
        let minibatch_outside = minibatch.min(outside(&mut pools.minibatch.iter()));
        let reference = if pools.reflection == pools.minibatch {
            minibatch_outside
        } else {
            let either: BTreeSet<usize> = pools.minibatch.iter().chain(&pools.reflection).copied().collect();
            let reflection = size.min(outside(&mut pools.reflection.iter()));
            (minibatch_outside + reflection).min(outside(&mut either.iter()))
        };
        let repairs = count(proposer.max_repairs);
        let merge = &gepa.merge;
        let asks = merge.conflict == MergeConflict::Proposer;
        // One field can only be merged by the proposer.
        let can_merge = merge.enabled && (asks || config.candidate.target_modules.len() > 1);
        let merges = count(if can_merge { merge.max_merges } else { 0 });
        let merge_candidates = if asks { repairs + count(1) } else { count(1) };
        let proposals = count(gepa.proposals_per_generation);
        let candidates = proposals + repairs;
        let generations = count(gepa.max_generations);
        let all = generations * candidates + merges * merge_candidates + count(1);
        Self {
            pareto: rows(pareto.len()),
            heldout: rows(pools.heldout.len()),
            minibatch,
            minibatch_outside,
            reference,
            proposals,
            candidates,
            generations,
            merges,
            merge_minibatch: count(merge.gate_rows).min(rows(pareto.len())),
            merge_candidates,
            attempts: count(gepa.rollout_max_attempts),
            turns: count(proposer.max_attempts) + repairs,
            asking: if asks { generations + merges } else { generations },
            measured: match gepa.deployment_rule {
                DeploymentRule::OptimizationSelected => all.min(count(2)),
                DeploymentRule::HeldoutBest => all,
            },
            pools,
        }
    }

    /// One proposal that is promoted and fully evaluated.
    fn promoted(&self) -> Count {
        self.pareto + self.minibatch_outside
    }

    /// A generation in which everything is promoted, everything fails until its last try, and repairs bring more.
    fn worst_generation(&self) -> Count {
        (self.candidates * self.promoted() + self.reference) * self.attempts
    }

    /// Train rollouts of a run that nothing but its generations bounds.
    fn worst_train(&self) -> Count {
        let merges = self.merges * self.merge_candidates * self.pareto;
        self.generations * self.worst_generation() + (self.pareto + merges) * self.attempts
    }

    /// Held-out rollouts of a run that nothing but its generations bounds.
    fn worst_heldout(&self) -> Count {
        self.measured * self.heldout * self.attempts
    }
}

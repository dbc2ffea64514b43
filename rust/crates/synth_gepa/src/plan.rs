//! The plan of a run before it starts: bounds of its rollouts, proposals and cost, and limits that are too small.

use std::collections::BTreeSet;
use std::num::Saturating;

use serde::Serialize;
use synth_optimizer_core::config::gepa::{DeploymentRule, MergeConflict, SearchMode};
use synth_optimizer_core::config::{
    Config, ConfigFinding, Pools, RolloutCaps, SearchChoice, Severity, choose_search, effective_caps, pools,
    resolve_sizes, rows_are_known,
};
use synth_optimizer_core::model::budget::{Budget, Dimension, Resources};
use synth_optimizer_core::model::claim::{smallest_gain, smallest_gain_sentence};
use synth_optimizer_core::model::usage::{Cost, NanoUsd};

use crate::decide_end::in_display_units;
use crate::settings::Settings;

/// The bounds of a run, computed from its configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Null, like `heldout_rows`, if only the container knows the rows. All numbers below except the limits are then 0.
    pub train_rows: Option<u64>,
    pub heldout_rows: Option<u64>,
    pub pools: PoolSizes,
    /// Rollout limits; `total` is null if train and held-out rollouts have separate limits.
    pub limits: RolloutCaps,
    /// `sprint` or `reference`, and why.
    pub search: SearchMode,
    pub search_reason: String,
    /// Rollouts that measure the initial candidate on the train rows, with those that a search in sprints repeats.
    pub seed_evaluation: u64,
    pub per_generation: PerGeneration,
    pub at_once: AtOnce,
    /// Rollouts of the held-out evaluation, within the limits.
    pub heldout_evaluation: u64,
    /// The smallest gain that the held-out rows show in four of five runs, for scores from 0 to 1 that repeat exactly. Null if
    /// they show none.
    pub smallest_gain: Option<f64>,
    /// Maximum number of rollouts within the limits: every proposal is promoted, and every rollout uses all attempts.
    pub worst_case_rollouts: u64,
    /// Candidates that the limits allow, if every call succeeds at the first attempt and no estimate is exceeded. The lower
    /// bound promotes every candidate; the upper bound rejects every candidate after a whole minibatch.
    pub proposals: Bounds,
    /// Generations that these candidates take, if each generation returns all requested proposals.
    pub generations: Bounds,
    pub cost: PlannedCost,
    /// Additional remarks, as sentences.
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
    /// Maximum for measuring the parent on rows without a score.
    pub reference: u64,
    /// Screening of every proposal.
    pub minibatch: u64,
    /// Additional rollouts of the full evaluations, if every proposal is promoted.
    pub full_train: u64,
    /// Maximum, including retries of failed rollouts and additional candidates of repaired answers.
    pub worst_case: u64,
}

/// Maximum numbers of what is in progress at the same time. They follow from `workers.rollout`, unless they are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AtOnce {
    pub rollouts: u64,
    pub generations: u64,
    pub proposer_turns: u64,
}

/// A lower and an upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bounds {
    pub at_least: u64,
    pub at_most: u64,
}

/// The cost of the worst case, or why it is unknown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedCost {
    pub known: bool,
    pub worst_case_usd: Option<f64>,
    pub unknown_reason: Option<String>,
}

/// Plans a run from its configuration, without calling the container.
pub fn plan(config: &Config) -> Plan {
    let config = &resolve_sizes(config);
    let sizes = PlanSizes::new(config);
    let settings = Settings::new(config, sizes.pools.pareto.len(), sizes.pools.heldout.len());
    let caps = effective_caps(config);
    let opening = settings.initial_budget(sizes.pools.pareto.len(), sizes.pools.heldout.len());
    let proposals = proposals(&settings, &sizes, &opening);
    let worst_case_rollouts = worst_rollouts(&sizes, caps);
    let whole = |count: u64| count.div_ceil(sizes.proposals.0.max(1)).min(sizes.generations.0);
    if !rows_are_known(config) {
        return plan_without_rows(config, caps);
    }
    Plan {
        train_rows: Some(sizes.rows.0),
        heldout_rows: Some(sizes.rows.1),
        pools: PoolSizes {
            pareto: sizes.pareto.0,
            minibatch: sizes.pools.minibatch.len() as u64,
            reflection: sizes.pools.reflection.len() as u64,
            heldout: sizes.heldout.0,
        },
        limits: caps,
        search: sizes.search.search,
        search_reason: sizes.search.reason.clone(),
        seed_evaluation: sizes.first.0,
        per_generation: PerGeneration {
            reference: sizes.reference.0,
            minibatch: (sizes.proposals * sizes.minibatch).0,
            // The full evaluation does not repeat rows of the screening.
            full_train: (sizes.proposals * (sizes.promoted() - sizes.minibatch)).0,
            worst_case: sizes.worst_generation().0,
        },
        at_once: at_once(config, settings.max_open_generations(sizes.pools.minibatch.len())),
        heldout_evaluation: heldout(&sizes, caps),
        smallest_gain: smallest_gain(sizes.heldout.0, 0.0),
        worst_case_rollouts,
        proposals,
        generations: Bounds { at_least: whole(proposals.at_least), at_most: whole(proposals.at_most) },
        cost: cost(config, &sizes, worst_case_rollouts),
        notes: notes(config, &sizes, &opening, worst_case_rollouts),
    }
}

/// Returns the plan of a run whose rows only the container knows: its limits.
fn plan_without_rows(config: &Config, limits: RolloutCaps) -> Plan {
    let none = Bounds { at_least: 0, at_most: 0 };
    let mut notes =
        vec!["The rows are known only to the container: `gepa check` asks it and shows the whole plan.".to_owned()];
    notes.extend(learned_usage(config));
    notes.extend(early_stops(config));
    Plan {
        train_rows: None,
        heldout_rows: None,
        pools: PoolSizes { pareto: 0, minibatch: 0, reflection: 0, heldout: 0 },
        limits,
        search: config.gepa.search,
        search_reason: "the rows are not known yet".to_owned(),
        seed_evaluation: 0,
        per_generation: PerGeneration { reference: 0, minibatch: 0, full_train: 0, worst_case: 0 },
        at_once: at_once(config, config.gepa.open_generations() as usize),
        heldout_evaluation: 0,
        smallest_gain: None,
        worst_case_rollouts: limits.total.map_or(u64::from(limits.train) + u64::from(limits.heldout), u64::from),
        proposals: none,
        generations: none,
        cost: PlannedCost {
            known: false,
            worst_case_usd: None,
            unknown_reason: Some("The number of rows is unknown".into()),
        },
        notes,
    }
}

fn at_once(config: &Config, generations: usize) -> AtOnce {
    let (gepa, generations) = (&config.gepa, generations as u64);
    let proposer_turns = generations.min(gepa.proposer_turns().into());
    AtOnce { rollouts: gepa.pipeline.concurrent_rollouts().into(), generations, proposer_turns }
}

/// Returns the rollouts of the held-out evaluation: all chosen candidates, or as many as fit beside the train rows of the
/// initial candidate.
fn heldout(sizes: &PlanSizes, caps: RolloutCaps) -> u64 {
    let beside = caps.total.map_or(u64::MAX, |total| u64::from(total).saturating_sub(sizes.first.0));
    let most = u64::from(caps.heldout).min(beside);
    let whole = most.checked_div(sizes.heldout.0).unwrap_or(0).min(sizes.measured.0);
    whole.saturating_mul(sizes.heldout.0)
}

fn worst_rollouts(sizes: &PlanSizes, caps: RolloutCaps) -> u64 {
    let train = sizes.worst_train().0.min(caps.train.into());
    let heldout = sizes.worst_heldout().0.min(caps.heldout.into());
    train.saturating_add(heldout).min(caps.total.map_or(u64::MAX, u64::from))
}

fn proposals(settings: &Settings, sizes: &PlanSizes, opening: &Budget) -> Bounds {
    let each = |dimension: Dimension| min_proposals(settings, sizes, opening, dimension);
    let asked = (sizes.generations * sizes.proposals).0;
    let min_proposals = Dimension::ALL.into_iter().filter_map(each).min().unwrap_or(u64::MAX).min(asked);
    let left = |dimension: Dimension| opening.available(dimension).map(|left| left.saturating_sub(sizes.first.0));
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

/// Returns how many proposals start before a limit refuses the next generation, if each uses its maximum. A generation
/// starts if its screening fits, and the last full evaluation may be partial.
fn min_proposals(settings: &Settings, sizes: &PlanSizes, opening: &Budget, dimension: Dimension) -> Option<u64> {
    // Calls run in parallel, so time does not add up. Generations are counted separately.
    if matches!(dimension, Dimension::WallMillis | Dimension::Generations) {
        return None;
    }
    let of = |rollouts: Count, turns: &Resources| settings.train_rollout.times(rollouts.0).plus(turns).get(dimension);
    let whole = of(sizes.longest + sizes.reference, &settings.proposal);
    let first = of(sizes.minibatch + sizes.reference, &settings.proposal);
    if whole == 0 {
        return None;
    }
    let left = opening.available(dimension)?.saturating_sub(of(sizes.first, &Resources::ZERO));
    Some(left.checked_sub(first).map_or(0, |rest| rest / whole + 1))
}

fn cost(config: &Config, sizes: &PlanSizes, rollouts: u64) -> PlannedCost {
    let unknown = |why: &str| PlannedCost {
        known: false,
        worst_case_usd: None,
        unknown_reason: Some(format!("{why} is unknown")),
    };
    let Cost::Known(rollout) = Cost::from_usd(config.gepa.rollout_estimated_cost_usd) else {
        return unknown("The cost of a rollout (`gepa.rollout_estimated_cost_usd`)");
    };
    let Cost::Known(turn) = turn_cost(config) else {
        return unknown("The cost of a proposer turn (`gepa.proposer_estimated_cost_usd`)");
    };
    let nano = rollout.0.saturating_mul(rollouts).saturating_add(turn.0.saturating_mul((sizes.asking * sizes.turns).0));
    let worst = NanoUsd(nano).usd();
    let limit = Some(config.gepa.max_cost_usd).filter(|limit| *limit > 0.0).unwrap_or(f64::INFINITY);
    PlannedCost { known: true, worst_case_usd: Some(worst.min(limit)), unknown_reason: None }
}

/// Returns the estimated cost of a turn: the configured estimate, or the estimated tokens at the configured prices.
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

fn notes(config: &Config, sizes: &PlanSizes, opening: &Budget, worst_case_rollouts: u64) -> Vec<String> {
    let gepa = &config.gepa;
    let mut notes = Vec::new();
    let unlimited = (sizes.worst_train() + sizes.worst_heldout()).0;
    notes.push(if gepa.max_generations.is_none() {
        "The number of generations has no limit: the rollout limits or another rule end the search.".to_owned()
    } else if unlimited > worst_case_rollouts {
        format!("Without the rollout limits, {} generations would use up to {unlimited} rollouts.", sizes.generations)
    } else {
        format!("The rollout limits are never reached: {} generations end the search first.", sizes.generations)
    });
    if sizes.attempts.0 > 1 {
        notes.push(format!("A rollout has up to {} attempts, and every attempt counts.", sizes.attempts));
    }
    notes.extend(shared_split(config));
    let held = opening.reserved(Dimension::HeldoutRollouts);
    notes.push(format!("{held} rollouts are reserved for the held-out evaluation."));
    let sentence = smallest_gain_sentence(sizes.heldout.0, 0.0);
    notes.push(format!("The held-out rows judge the result: {sentence}."));
    let (all, full, minibatch) = (sizes.rows.0, sizes.pareto, sizes.minibatch);
    if sizes.search.search == SearchMode::Sprint {
        let sprint = Settings::new(config, sizes.pools.pareto.len(), sizes.pools.heldout.len()).sprint_rollouts();
        notes.push(format!("A proposal is screened on {minibatch} rows and then built on."));
        notes.push(format!(
            "After at most {sprint} rollouts, a check compares the sum of the changes with the best candidate on the same rows."
        ));
    } else {
        if full.0 < all {
            notes.push(format!("A full evaluation uses {full} of {all} train rows."));
        }
        notes.push(format!("A proposal is screened on {minibatch} rows before its full evaluation."));
    }
    if gepa.deployment_rule == DeploymentRule::HeldoutBest {
        notes.push("Every candidate of the pool is evaluated on the held-out rows, within the limits.".into());
    }
    if sizes.merges.0 > 0 {
        notes.push(format!("Up to {} merges are added to the generations.", sizes.merges));
    }
    notes.extend(learned_usage(config));
    notes.extend(early_stops(config));
    notes
}

/// Returns the note about held-out rows that are part of the train split.
fn shared_split(config: &Config) -> Option<String> {
    let note = |splits: [&str; 2], train: usize, heldout: usize| {
        let [split, other] = splits;
        let all = train + heldout;
        (split == other).then(|| format!("{heldout} of {all} rows of split {split:?} are set aside as held-out rows."))
    };
    match (&config.dataset, &config.taskset) {
        (Some(rows), _) => {
            let splits = [rows.train_split.as_str(), &rows.heldout_split];
            note(splits, rows.train_seeds.known().len(), rows.heldout_seeds.known().len())
        }
        (None, Some(rows)) => {
            let splits = [rows.train_split.as_str(), &rows.heldout_split];
            note(splits, rows.train_ids.known().len(), rows.heldout_ids.known().len())
        }
        (None, None) => None,
    }
}

/// Returns the note about limits without an estimate.
fn learned_usage(config: &Config) -> Option<String> {
    let settings = Settings::new(config, 0, 0);
    let is_learned = !settings.learned_rollout.is_empty() || !settings.learned_proposal.is_empty();
    is_learned
        .then(|| "What a call uses is learned: the first rollout and the first proposer turn are sent alone.".into())
}

/// Returns the note about rules that may end the search before its limits.
fn early_stops(config: &Config) -> Option<String> {
    let gepa = &config.gepa;
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
    (!limits.is_empty()).then(|| format!("These rules may end the search earlier: {}.", limits.join(", ")))
}

/// Returns a finding for every limit that is too small. An error means that the initial candidate cannot be measured on the
/// train rows and once on the held-out rows. A warning means that the run would do less than configured.
pub fn shortfalls(config: &Config) -> Vec<ConfigFinding> {
    let config = &resolve_sizes(config);
    if !rows_are_known(config) {
        return Vec::new();
    }
    let sizes = PlanSizes::new(config);
    let settings = Settings::new(config, sizes.pools.pareto.len(), sizes.pools.heldout.len());
    let rules = LimitCheck { caps: Budget::new(settings.caps), settings: &settings, config };
    let seed = settings.train_rollout.times(sizes.first.0);
    let measured = |times: u64| settings.heldout_rollout.times(sizes.heldout.0.saturating_mul(times));
    let mut found = rules.too_small(
        &seed.plus(&measured(1)),
        (Severity::Error, "budget_too_small"),
        "evaluating the initial candidate on the train rows and once on the held-out rows",
    );
    if found.is_empty() {
        let screened =
            |rows: u64| settings.train_rollout.times(sizes.first.0.saturating_add(rows)).plus(&settings.proposal);
        found.extend(rules.too_small(
            &screened((sizes.minibatch + sizes.reference).0),
            (Severity::Warning, "no_proposal"),
            "evaluating the initial candidate and screening one proposal",
        ));
        let generation = sizes.proposals * sizes.promoted() + sizes.reference;
        found.extend(rules.too_small(
            &screened(generation.0).plus(&measured(2)),
            (Severity::Warning, "heldout_partial"),
            "one whole generation and evaluating the initial and the best candidate on the held-out rows",
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
                // With one limit for both kinds, only the total is reported.
                Dimension::TrainRollouts | Dimension::HeldoutRollouts => {
                    self.settings.caps.get(Dimension::TotalRollouts).is_none()
                }
                // Time does not add up; `too_slow` checks it.
                Dimension::WallMillis => false,
                _ => true,
            };
            if !is_told || wanted <= cap {
                return None;
            }
            let field = self.field(dimension);
            let (wanted, cap) = (in_display_units(dimension, wanted), in_display_units(dimension, cap));
            let message = format!("`{field}` is {cap}, but {what} requires up to {wanted}");
            Some(finding(severity, code, field, message, format!("Set it to at least {wanted}, or use fewer rows.")))
        };
        Dimension::ALL.into_iter().filter_map(short).collect()
    }

    /// Returns a warning if measuring the initial candidate may take longer than the search has time.
    fn too_slow(&self, sizes: &PlanSizes) -> Option<ConfigFinding> {
        let deadline = self.settings.search_deadline_millis?;
        let workers = u64::from(self.config.gepa.pipeline.workers.rollout.max(1));
        let each = self.settings.train_rollout.get(Dimension::WallMillis);
        let needed = sizes.first.0.div_ceil(workers).saturating_mul(each);
        (needed > deadline).then(|| {
            let (needed, deadline) = (needed as f64 / 1e3, deadline as f64 / 1e3);
            finding(
                Severity::Warning,
                "time_may_not_reach",
                "gepa.max_time_seconds",
                format!("evaluating the initial candidate may take {needed} seconds, and the search has {deadline}"),
                "Raise the limit or `gepa.pipeline.workers.rollout`, or use fewer rows.".to_owned(),
            )
        })
    }

    /// Returns the configuration field that sets a limit.
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

/// Returns the number of train rows and of held-out rows.
fn row_counts(config: &Config) -> (u64, u64) {
    let (train, heldout) = match (&config.dataset, &config.taskset) {
        (Some(rows), _) => (rows.train_seeds.known().len(), rows.heldout_seeds.known().len()),
        (None, Some(rows)) => (rows.train_ids.known().len(), rows.heldout_ids.known().len()),
        (None, None) => (0, 0),
    };
    (train as u64, heldout as u64)
}

/// A count that saturates instead of overflowing.
type Count = Saturating<u64>;

/// The row numbers and counts from which a plan is computed.
///
/// A candidate is measured once per row: its full evaluation skips the rows of its screening, and a parent is measured only
/// where it has no score. A failed rollout may be retried, and every attempt counts.
#[derive(Debug, Clone)]
struct PlanSizes {
    pools: Pools,
    /// Number of train rows and of held-out rows.
    rows: (u64, u64),
    /// Rows of the full evaluation and of the held-out evaluation.
    pareto: Count,
    heldout: Count,
    search: SearchChoice,
    /// Rollouts of the initial evaluation.
    first: Count,
    /// Rollouts of a promoted proposal, with its screening. In sprints, with its share of a check.
    promoted: Count,
    /// The most rollouts that one proposal and the check after it may use.
    longest: Count,
    /// Rows on which one proposal is screened.
    minibatch: Count,
    /// Maximum number of rows on which the parent of a generation must be measured first.
    reference: Count,
    /// Requested proposals of one generation, and its maximum number of candidates. A complete answer that also has a problem
    /// is repaired too, which may add one more candidate.
    proposals: Count,
    candidates: Count,
    generations: Count,
    merges: Count,
    merge_minibatch: Count,
    merge_candidates: Count,
    /// Attempts of one rollout, and the maximum number of proposer turns in one generation.
    attempts: Count,
    turns: Count,
    /// Generations and merges that may use the proposer.
    asking: Count,
    /// Maximum number of candidates that are measured on the held-out rows.
    measured: Count,
}

impl PlanSizes {
    fn new(config: &Config) -> Self {
        let (gepa, proposer) = (&config.gepa, &config.proposer);
        let pools = pools(config);
        let pareto: BTreeSet<usize> = pools.pareto.iter().copied().collect();
        let count = |number: u32| Saturating(u64::from(number));
        let rows = |number: usize| Saturating(number as u64);
        let size = count(gepa.minibatch_size.unwrap_or_default());
        let outside = |pool: &mut dyn Iterator<Item = &usize>| rows(pool.filter(|row| !pareto.contains(row)).count());
        let minibatch = size.min(rows(pools.minibatch.len()));
        let minibatch_outside = minibatch.min(outside(&mut pools.minibatch.iter()));
        let search = choose_search(config, pareto.len());
        let is_sprint = search.search == SearchMode::Sprint;
        let reference = if is_sprint {
            // A new head has no scores of its own.
            if pools.reflection == pools.minibatch {
                minibatch
            } else {
                minibatch + size.min(rows(pools.reflection.len()))
            }
        } else if pools.reflection == pools.minibatch {
            minibatch_outside
        } else {
            let either: BTreeSet<usize> = pools.minibatch.iter().chain(&pools.reflection).copied().collect();
            let reflection = size.min(outside(&mut pools.reflection.iter()));
            (minibatch_outside + reflection).min(outside(&mut either.iter()))
        };
        let repairs = count(proposer.max_repairs);
        let merge = &gepa.merge;
        let asks = merge.conflict == MergeConflict::Proposer;
        // A single field can only be merged by the proposer.
        let can_merge = merge.enabled && (asks || config.candidate.target_modules.len() > 1);
        let merges = count(if can_merge && !is_sprint { merge.max_merges } else { 0 });
        let merge_candidates = if asks { repairs + count(1) } else { count(1) };
        let proposals = count(gepa.proposals_per_generation);
        let candidates = proposals + repairs;
        let settings = Settings::new(config, pareto.len(), pools.heldout.len());
        let (first, promoted) = if is_sprint {
            let initial = settings.initial_rows(pareto.len());
            let screened = minibatch + count(gepa.sprint.glance_rows);
            let checked = ((screened + reference).0 as f64 * gepa.sprint.check_share).ceil() as u64;
            (Saturating(initial + initial.min(gepa.sprint.repeats.into())), screened + Saturating(checked))
        } else if settings.rebases() {
            // A change that is carried over is evaluated as another candidate, so its screening does not count.
            (rows(pareto.len()), rows(pareto.len()) + minibatch)
        } else {
            (rows(pareto.len()), rows(pareto.len()) + minibatch_outside)
        };
        // A sprint may be as short as one generation.
        let longest =
            if is_sprint { Saturating(settings.min_check_rollouts(pareto.len())) + minibatch } else { promoted };
        // Without a limit, each generation screens at least one proposal.
        let left = Saturating(u64::from(effective_caps(config).train)) - first;
        let screened = left.0.checked_div(minibatch.0).unwrap_or(0).max(1);
        let generations = gepa.max_generations.map_or(Saturating(screened), count);
        let all = generations * candidates + merges * merge_candidates + count(1);
        Self {
            search,
            first,
            promoted,
            longest: longest.max(promoted),
            pareto: rows(pareto.len()),
            heldout: rows(pools.heldout.len()),
            minibatch,
            reference,
            proposals,
            candidates,
            generations,
            merges,
            merge_minibatch: count(merge.gate_rows).min(rows(pareto.len())),
            merge_candidates,
            attempts: count(gepa.rollout_max_attempts),
            turns: count(proposer.max_attempts) + repairs,
            // Generations without a valid proposal use the proposer and no rollouts.
            asking: {
                let tries =
                    if gepa.max_generations.is_some() { count(1) } else { count(proposer.max_consecutive_invalid) };
                generations * tries + if asks { merges } else { count(0) }
            },
            measured: match gepa.deployment_rule {
                DeploymentRule::OptimizationSelected => all.min(count(2)),
                DeploymentRule::HeldoutBest => all,
            },
            rows: row_counts(config),
            pools,
        }
    }

    /// Returns the rollouts of one proposal that is promoted and fully evaluated.
    fn promoted(&self) -> Count {
        self.promoted
    }

    /// Returns the rollouts of a generation in which every candidate is promoted, every rollout needs all attempts, and repairs
    /// add candidates.
    fn worst_generation(&self) -> Count {
        (self.candidates * self.promoted() + self.reference) * self.attempts
    }

    /// Returns the maximum number of train rollouts without rollout limits.
    fn worst_train(&self) -> Count {
        let merges = self.merges * self.merge_candidates * self.pareto;
        self.generations * self.worst_generation() + (self.first + merges) * self.attempts
    }

    /// Returns the maximum number of held-out rollouts without rollout limits.
    fn worst_heldout(&self) -> Count {
        self.measured * self.heldout * self.attempts
    }
}

//! The settings of the engine, derived from the configuration: objectives, caps, reservations and deadlines.

use synth_optimizer_core::config::gepa::{GepaSection, SearchMode, objective_direction, objective_names};
use synth_optimizer_core::config::proposer::ProposerSection;
use synth_optimizer_core::config::{Config, SearchChoice, choose_search, effective_caps, initial_rows};
use synth_optimizer_core::model::budget::{Budget, Caps, Dimension, Resources, reported};
use synth_optimizer_core::model::event_fields::Objective;
use synth_optimizer_core::model::usage::{NanoUsd, Usage};

/// Rows of a minibatch, if the configuration was not resolved.
const DEFAULT_MINIBATCH_SIZE: u32 = 8;

/// A sprint uses one of this many train rollouts, within these bounds.
const SPRINT_SHARE: u64 = 8;
const MIN_SPRINT_ROLLOUTS: u64 = 32;
const MAX_SPRINT_ROLLOUTS: u64 = 128;
/// Epochs of minibatches that a search in sprints has open at the same time.
const MAX_OPEN_EPOCHS: usize = 2;
/// Bounds of the rows that a check adds at a time.
const MIN_CHECK_BLOCK: usize = 4;
const MAX_CHECK_BLOCK: usize = 8;
/// If scores repeat exactly, a check may use at least this many rollouts, or one for each row.
const MIN_EXACT_CHECK_ROLLOUTS: u64 = 50;

/// The part of the configuration that the engine uses.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub seed: u64,
    pub candidate_id_prefix: String,
    pub gepa: GepaSection,
    pub proposer: ProposerSection,
    /// All objectives, the deciding one first.
    pub objectives: Vec<Objective>,
    pub caps: Caps,
    /// The choice of the search that the log records; `None` if the configuration asks for the reference search.
    pub search_choice: Option<SearchChoice>,
    /// Train rollouts that are left for the search after the held-out evaluation of two candidates.
    pub search_rollouts: u64,
    /// Number of rows of a minibatch.
    pub minibatch_size: u32,
    /// Maximum number of generations that are open at the same time, as the configuration allows.
    open_generations: usize,
    /// Amounts that are reserved for a rollout and for a proposer turn.
    pub train_rollout: Resources,
    pub heldout_rollout: Resources,
    pub proposal: Resources,
    /// Whether the run has a limit on cost or tokens.
    pub has_usage_caps: bool,
    /// Limited resources without an estimate for rollouts and for proposer turns. The first calls show what they use.
    pub learned_rollout: Vec<Dimension>,
    pub learned_proposal: Vec<Dimension>,
    /// Elapsed time at which the search stops, so that the held-out evaluation still fits into the time limit.
    pub search_deadline_millis: Option<u64>,
}

impl Settings {
    /// Derives the settings from the number of rows of the full and of the held-out evaluation.
    pub fn new(config: &Config, pareto_rows: usize, heldout_rows: usize) -> Self {
        let gepa = &config.gepa;
        let rollout = estimate(
            gepa.rollout_estimated_cost_usd,
            [gepa.rollout_estimated_prompt_tokens, gepa.rollout_estimated_completion_tokens],
            gepa.rollout_estimated_total_tokens,
            gepa.rollout_estimated_wall_seconds.map_or(0, |seconds| (seconds * 1000.0).ceil() as u64),
        );
        let proposal = estimate(
            gepa.proposer_estimated_cost_usd,
            [gepa.proposer_estimated_prompt_tokens, gepa.proposer_estimated_completion_tokens],
            gepa.proposer_estimated_total_tokens,
            config.proposer.timeout_seconds.saturating_mul(1000),
        );
        let caps = caps(config);
        let learned = |estimate: &Resources| -> Vec<Dimension> {
            let limited = reported(&Usage::default()).map(|(dimension, _)| dimension).into_iter();
            limited.filter(|dimension| caps.get(*dimension).is_some() && estimate.get(*dimension) == 0).collect()
        };
        Self {
            learned_rollout: learned(&rollout),
            learned_proposal: learned(&proposal),
            has_usage_caps: reported(&Usage::default()).iter().any(|(dimension, _)| caps.get(*dimension).is_some()),
            seed: config.run.seed,
            candidate_id_prefix: config.candidate.candidate_id_prefix.clone(),
            proposer: config.proposer.clone(),
            objectives: objectives(gepa),
            caps,
            search_choice: (gepa.search != SearchMode::Reference).then(|| choose_search(config, pareto_rows)),
            search_rollouts: search_rollouts(&caps, heldout_rows),
            minibatch_size: gepa.minibatch_size.unwrap_or(DEFAULT_MINIBATCH_SIZE),
            open_generations: gepa.open_generations() as usize,
            train_rollout: rollout.rollout(Dimension::TrainRollouts),
            heldout_rollout: rollout.rollout(Dimension::HeldoutRollouts),
            proposal,
            search_deadline_millis: gepa.max_time_seconds.map(|seconds| {
                let cap = seconds.saturating_mul(1000);
                let waves = (2 * heldout_rows as u64).div_ceil(u64::from(gepa.pipeline.workers.rollout.max(1)));
                let heldout = waves.saturating_mul(rollout.get(Dimension::WallMillis));
                cap.saturating_sub(heldout).max(cap / 2)
            }),
            gepa: gepa.clone(),
        }
    }

    /// Returns whether the search is one in sprints.
    pub fn is_sprint(&self) -> bool {
        self.search_choice.as_ref().is_some_and(|choice| choice.search == SearchMode::Sprint)
    }

    /// Returns whether the reference search carries late changes over to the best candidate.
    pub fn rebases(&self) -> bool {
        self.gepa.rebase && self.open_generations > 1 && !self.is_sprint()
    }

    /// Returns the maximum number of generations that are open at the same time. More than two epochs of minibatches at once
    /// would ask about the same rows from the same head of a sprint again.
    pub fn max_open_generations(&self, minibatch_rows: usize) -> usize {
        let epoch = minibatch_rows.div_ceil(self.minibatch_size.max(1) as usize);
        let most = if self.is_sprint() { (MAX_OPEN_EPOCHS * epoch).max(1) } else { usize::MAX };
        self.open_generations.min(most)
    }

    /// Returns the number of rows on which a search in sprints evaluates the initial candidate.
    pub fn initial_rows(&self, pareto_rows: usize) -> u64 {
        initial_rows(&self.gepa.sprint, self.search_rollouts, pareto_rows)
    }

    /// Returns the number of rows that a check adds at a time. With many open generations a larger block costs nothing, because
    /// they go on while the check waits.
    pub fn check_block(&self) -> usize {
        let usual = self.open_generations.clamp(MIN_CHECK_BLOCK, MAX_CHECK_BLOCK);
        self.gepa.sprint.check_block.map_or(usual, |rows| rows as usize)
    }

    /// Returns the number of rollouts that a check of exact scores may use at least.
    pub fn min_check_rollouts(&self, pareto_rows: usize) -> u64 {
        MIN_EXACT_CHECK_ROLLOUTS.min(pareto_rows as u64).max(2 * self.check_block() as u64)
    }

    /// Returns the number of rollouts of a sprint before its check.
    pub fn sprint_rollouts(&self) -> u64 {
        let usual = || (self.search_rollouts / SPRINT_SHARE).clamp(MIN_SPRINT_ROLLOUTS, MAX_SPRINT_ROLLOUTS);
        self.gepa.sprint.rollouts.map_or_else(usual, u64::from)
    }

    /// Returns the budget at the start of a run. It sets aside the held-out evaluation of two candidates, of one, or of none:
    /// the most that leaves room to evaluate the initial candidate and to screen one proposal.
    pub fn initial_budget(&self, pareto_rows: usize, heldout_rows: usize) -> Budget {
        let budget = Budget::new(self.caps);
        let first = if self.is_sprint() { self.initial_rows(pareto_rows) } else { pareto_rows as u64 };
        let search = self
            .train_rollout
            .times(first + u64::from(self.minibatch_size))
            .plus(&self.proposal)
            .with(Dimension::WallMillis, 0);
        for candidates in [2, 1] {
            let rollouts = candidates * heldout_rows as u64;
            let mut held = budget.clone();
            if held.set_aside(self.heldout_rollout.times(rollouts)).is_ok() && held.fits(&search).is_ok() {
                return held;
            }
        }
        budget
    }

    /// Returns a value of an objective, negated if lower is better.
    pub fn oriented(&self, objective: usize, value: f64) -> f64 {
        self.objectives[objective].direction.oriented(value)
    }
}

fn search_rollouts(caps: &Caps, heldout_rows: usize) -> u64 {
    let total = caps.get(Dimension::TotalRollouts).map(|cap| cap.saturating_sub(2 * heldout_rows as u64));
    [caps.get(Dimension::TrainRollouts), total].into_iter().flatten().min().unwrap_or(u64::MAX)
}

fn objectives(gepa: &GepaSection) -> Vec<Objective> {
    let names = objective_names(gepa).into_iter();
    names.map(|name| Objective { direction: objective_direction(gepa, &name), name }).collect()
}

fn estimate(cost: Option<f64>, [prompt, completion]: [Option<u64>; 2], total: Option<u64>, wall: u64) -> Resources {
    let both = prompt.zip(completion).map(|(prompt, completion)| prompt + completion);
    Resources::ZERO
        .with(Dimension::Cost, cost.map_or(0, |usd| NanoUsd::from_usd(usd).map_or(u64::MAX, |amount| amount.0)))
        .with(Dimension::PromptTokens, prompt.unwrap_or(0))
        .with(Dimension::CompletionTokens, completion.unwrap_or(0))
        .with(Dimension::TotalTokens, total.or(both).unwrap_or(0))
        .with(Dimension::WallMillis, wall)
}

/// Returns the maximum number of generations. Without a limit of the configuration, it is one that no run reaches: a
/// generation uses a rollout, except for a limited number of generations in a row without a candidate.
fn max_generations(config: &Config) -> u64 {
    let rollouts = u64::from(effective_caps(config).train);
    let reached = rollouts.saturating_add(1).saturating_mul(u64::from(config.proposer.max_consecutive_invalid));
    config.gepa.max_generations.map_or(reached, u64::from)
}

/// Returns the caps of the run.
fn caps(config: &Config) -> Caps {
    let gepa = &config.gepa;
    let rollouts = effective_caps(config);
    let cost = (gepa.max_cost_usd > 0.0).then(|| (gepa.max_cost_usd * 1e9).floor() as u64);
    Caps::default()
        .with(Dimension::TrainRollouts, Some(rollouts.train.into()))
        .with(Dimension::HeldoutRollouts, Some(rollouts.heldout.into()))
        .with(Dimension::TotalRollouts, rollouts.total.map(u64::from))
        .with(Dimension::Cost, cost)
        .with(Dimension::PromptTokens, gepa.max_prompt_tokens)
        .with(Dimension::CompletionTokens, gepa.max_completion_tokens)
        .with(Dimension::TotalTokens, gepa.max_total_tokens)
        .with(Dimension::WallMillis, gepa.max_time_seconds.map(|seconds| seconds.saturating_mul(1000)))
        .with(Dimension::Generations, Some(max_generations(config)))
}

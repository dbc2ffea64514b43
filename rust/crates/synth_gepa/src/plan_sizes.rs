//! How many rollouts each part of a run takes, from the configuration alone.
//!
//! A candidate is measured on a row once: what its screening has covered, its full evaluation does not ask for again, and
//! a parent is measured only where it has no score. A rollout that fails may be tried again, and every try counts.

use std::collections::BTreeSet;

use synth_optimizer_core::config::gepa::{DeploymentRule, MergeConflict};
use synth_optimizer_core::config::{Config, Pools, pools};

/// Rows and counts that the arithmetic of a plan is made of.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    pub(crate) pools: Pools,
    /// Rows of the full evaluation and of the held-out evaluation.
    pub(crate) pareto: u64,
    pub(crate) heldout: u64,
    /// Rows on which one proposal is screened.
    pub(crate) gate: u64,
    /// Most rows of a screening that the full evaluation does not have.
    pub(crate) gate_outside: u64,
    /// Most rows on which the parent of a generation has to be measured first.
    pub(crate) reference: u64,
    /// Proposals asked for in one generation, and most candidates that can come of it: an answer that has all of them and a
    /// problem besides is repaired too, which may bring one more.
    pub(crate) proposals: u64,
    pub(crate) candidates: u64,
    pub(crate) generations: u64,
    pub(crate) merges: u64,
    pub(crate) merge_gate: u64,
    pub(crate) merge_candidates: u64,
    /// Tries of one rollout, and most turns of the proposer in one generation.
    pub(crate) attempts: u64,
    pub(crate) turns: u64,
    /// Generations and merges that may ask the proposer.
    pub(crate) asking: u64,
    /// Most candidates that are measured on the held-out rows.
    pub(crate) measured: u64,
}

impl Sizes {
    pub(crate) fn new(config: &Config) -> Self {
        let (gepa, proposer) = (&config.gepa, &config.proposer);
        let pools = pools(config);
        let pareto: BTreeSet<usize> = pools.pareto.iter().copied().collect();
        let size = u64::from(gepa.minibatch_size);
        let outside = |pool: &[usize]| pool.iter().filter(|row| !pareto.contains(row)).count() as u64;
        let gate = size.min(pools.minibatch.len() as u64);
        let gate_outside = gate.min(outside(&pools.minibatch));
        let reference = if pools.reflection == pools.minibatch {
            gate_outside
        } else {
            let either: BTreeSet<usize> = pools.minibatch.iter().chain(&pools.reflection).copied().collect();
            let either: Vec<usize> = either.into_iter().collect();
            gate_outside.saturating_add(size.min(outside(&pools.reflection))).min(outside(&either))
        };
        let repairs = u64::from(proposer.max_repairs);
        let merge = &gepa.merge;
        let asks = merge.conflict == MergeConflict::Proposer;
        // One field can only be merged by the proposer.
        let can_merge = merge.enabled && (asks || config.candidate.target_modules.len() > 1);
        let merges = if can_merge { u64::from(merge.max_merges) } else { 0 };
        let merge_candidates = if asks { repairs.saturating_add(1) } else { 1 };
        let proposals = u64::from(gepa.proposals_per_generation);
        let candidates = proposals.saturating_add(repairs);
        let generations = u64::from(gepa.max_generations);
        let all = generations
            .saturating_mul(candidates)
            .saturating_add(merges.saturating_mul(merge_candidates))
            .saturating_add(1);
        Self {
            pareto: pareto.len() as u64,
            heldout: pools.heldout.len() as u64,
            gate,
            gate_outside,
            reference,
            proposals,
            candidates,
            generations,
            merges,
            merge_gate: u64::from(merge.gate_rows).min(pareto.len() as u64),
            merge_candidates,
            attempts: u64::from(gepa.rollout_max_attempts),
            turns: u64::from(proposer.max_attempts).saturating_add(repairs),
            asking: generations.saturating_add(if asks { merges } else { 0 }),
            measured: match gepa.deployment_rule {
                DeploymentRule::OptimizationSelected => all.min(2),
                DeploymentRule::HeldoutBest => all,
            },
            pools,
        }
    }

    /// One proposal that is promoted and fully evaluated.
    pub(crate) fn promoted(&self) -> u64 {
        self.pareto.saturating_add(self.gate_outside)
    }

    /// What the full evaluation of a promoted proposal adds to its screening.
    pub(crate) fn full(&self) -> u64 {
        self.promoted().saturating_sub(self.gate)
    }

    /// A generation in which everything is promoted, everything fails until its last try, and repairs bring more.
    pub(crate) fn worst_generation(&self) -> u64 {
        self.candidates.saturating_mul(self.promoted()).saturating_add(self.reference).saturating_mul(self.attempts)
    }

    /// Train rollouts of a run that nothing but its generations bounds.
    pub(crate) fn worst_train(&self) -> u64 {
        let merges = self.merges.saturating_mul(self.merge_candidates).saturating_mul(self.pareto);
        let seed_and_merges = self.pareto.saturating_add(merges).saturating_mul(self.attempts);
        self.generations.saturating_mul(self.worst_generation()).saturating_add(seed_and_merges)
    }

    /// Held-out rollouts of a run that nothing but its generations bounds.
    pub(crate) fn worst_heldout(&self) -> u64 {
        self.measured.saturating_mul(self.heldout).saturating_mul(self.attempts)
    }

    pub(crate) fn worst_turns(&self) -> u64 {
        self.asking.saturating_mul(self.turns)
    }
}

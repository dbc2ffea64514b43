//! Snapshots of whole runs. A changed decision changes a line of a snapshot.

use crate::sim::{Pace, Scoring, World};
use synth_optimizer_core::config::gepa::{
    AcceptanceCriterion, Direction, FrontierType, PipelineMode, SearchMode, Selector,
};
use synth_optimizer_core::model::canonical::canonical_digest;

/// Returns the events of a run as text, and a digest of all fields.
fn golden(name: &str, world: &World, pace: Pace) {
    let run = world.run(pace);
    let text = format!("{}digest {}\n", run.lines(), canonical_digest(&run.events));
    insta::assert_snapshot!(name, text);
}

#[test]
fn binary() {
    golden("binary", &World::default(), Pace::default());
}

#[test]
fn graded() {
    let mut world = World { scoring: Scoring::Graded, ..World::default() };
    world.config.gepa.max_generations = Some(4);
    world.config.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    golden("graded", &world, Pace::default());
}

#[test]
fn multi_objective() {
    let mut world = World { scoring: Scoring::TwoObjectives, learns: 0.25, ..World::default() };
    world.config.gepa.max_generations = Some(5);
    world.config.gepa.objective_acceptance.objective_regression_tolerance = 0.2;
    world.config.gepa.objective_keys = vec!["quality".into(), "length".into()];
    world.config.gepa.objective_directions.insert("length".into(), Direction::Minimize);
    world.config.gepa.acceptance_criterion = AcceptanceCriterion::ProtectedObjectiveGuard;
    world.config.gepa.frontier_type = FrontierType::PerExampleObjective;
    golden("multi_objective", &world, Pace::default());
}

#[test]
fn two_modules_with_merge() {
    let mut world = World { modules: vec!["odd", "even"], learns: 0.3, forgets: 0.4, ..World::default() };
    world.config.gepa.max_generations = Some(8);
    world.config.gepa.minibatch_size = Some(6);
    world.config.gepa.max_total_rollouts = 600;
    world.config.gepa.candidate_selector.name = Selector::Random;
    world.config.gepa.merge.enabled = true;
    world.config.gepa.merge.max_merges = 2;
    golden("two_modules_with_merge", &world, Pace::default());
}

#[test]
fn saturated_seed() {
    golden("saturated_seed", &World { scoring: Scoring::Saturated, ..World::default() }, Pace::default());
}

#[test]
fn failures() {
    let world = World { failure: 0.12, invalid: 0.4, proposer_failure: 0.2, ..World::default() };
    golden("failures", &world, Pace::default());
}

#[test]
fn container_breaks() {
    golden("container_breaks", &World { breaks_at: Some(30), ..World::default() }, Pace::default());
}

#[test]
fn budget_exhaustion() {
    let mut world = World::default();
    world.config.gepa.max_generations = Some(100);
    world.config.gepa.max_total_rollouts = 150;
    golden("budget_exhaustion", &world, Pace::default());
}

#[test]
fn cost_exhaustion() {
    let mut world = World::default();
    world.config.gepa.max_generations = Some(100);
    world.config.gepa.max_cost_usd = 0.5;
    world.config.gepa.rollout_estimated_cost_usd = Some(0.003);
    world.config.gepa.proposer_estimated_cost_usd = Some(0.04);
    golden("cost_exhaustion", &world, Pace::default());
}

#[test]
fn sprints() {
    let mut world = World { rules: 16, train: 40, ..World::default() };
    world.config.gepa.search = SearchMode::Sprint;
    world.config.gepa.max_generations = None;
    world.config.gepa.minibatch_size = Some(3);
    world.config.gepa.proposals_per_generation = 1;
    golden("sprints", &world, Pace::default());
}

#[test]
fn noisy_sprints_in_a_window() {
    let mut world = World { rules: 16, train: 40, noise: 0.1, ..World::default() };
    world.config.gepa.search = SearchMode::Sprint;
    world.config.gepa.max_generations = None;
    world.config.gepa.minibatch_size = Some(3);
    world.config.gepa.max_total_rollouts = 400;
    world.config.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    golden("noisy_sprints_in_a_window", &world, Pace::default());
}

#[test]
fn cancelled() {
    golden("cancelled", &World::default(), Pace { cancel_after: Some(40), ..Pace::default() });
}

#[test]
fn stopped_early() {
    golden("stopped_early", &World::default(), Pace { stop_after: Some(30), ..Pace::default() });
}

//! Compares plans with the actual usage of simulated runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::sim::{Pace, Run, Scoring, World};
use proptest::prelude::*;
use serde_json::{Value, json};
use synth_gepa::{AtOnce, Plan, plan, shortfalls};
use synth_optimizer_core::config::gepa::{
    AcceptanceCriterion, DeploymentRule, MergeConflict, PipelineMode, Sampler, SearchMode,
};
use synth_optimizer_core::config::sections::DatasetSection;
use synth_optimizer_core::config::{
    Config, ConfigContent, ConfigFinding, ConfigSource, Severity, SplitRows, pools, resolve, try_load_with,
};
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{Stage, StopKind};
use synth_optimizer_core::model::ids::{HeldoutRow, TrainRow};
use synth_optimizer_core::model::program::Inputs;

/// Returns a config that lists the rows of a world, as real configs do.
fn with_rows(mut world: World) -> World {
    world.config.candidate.target_modules = world.modules.iter().map(|field| (*field).to_owned()).collect();
    world.config.dataset = Some(DatasetSection {
        train_seeds: (0..i64::from(world.train)).collect(),
        heldout_seeds: (0..i64::from(world.heldout)).collect(),
        ..DatasetSection::default()
    });
    world
}

fn run(world: &World, pace: Pace) -> Run {
    let chosen = pools(&world.config);
    let train = |rows: Vec<usize>| rows.into_iter().map(|row| TrainRow(row as u32)).collect();
    let inputs = Inputs {
        pareto_pool: train(chosen.pareto),
        minibatch_pool: train(chosen.minibatch),
        reflection_pool: train(chosen.reflection),
        heldout_pool: chosen.heldout.into_iter().map(|row| HeldoutRow(row as u32)).collect(),
        ..world.inputs()
    };
    world.run_with(inputs, pace)
}

/// Returns the number of candidates that were at least screened.
fn screened(run: &Run) -> u64 {
    run.events
        .iter()
        .filter(|event| {
            matches!(event, Event::RolloutsRequested(batch)
                if batch.stage == Stage::CandidateMinibatch && batch.attempt == 1)
        })
        .count() as u64
}

fn stop(run: &Run) -> Option<StopKind> {
    run.events.iter().find_map(|event| match event {
        Event::StopDecided(stop) => Some(stop.stopped_by.kind),
        _ => None,
    })
}

fn spent(run: &Run) -> u64 {
    run.spent(Dimension::TotalRollouts)
}

/// 24 train and 10 held-out rows, two proposals per generation, three rows per minibatch.
fn small() -> World {
    let mut world = with_rows(World { inventive: true, rules: 400, ..World::default() });
    let gepa = &mut world.config.gepa;
    gepa.minibatch_size = Some(3);
    gepa.max_total_rollouts = 200;
    gepa.max_generations = Some(100);
    gepa.skip_perfect_score = false;
    gepa.leakage.min_span_chars = 4000;
    world
}

#[test]
fn the_plan_of_a_small_run() {
    let plan = plan(&small().config);
    assert_eq!((plan.train_rows, plan.heldout_rows), (Some(24), Some(10)));
    assert_eq!((plan.limits.train, plan.limits.heldout, plan.limits.total), (200, 200, Some(200)));
    assert_eq!((plan.seed_evaluation, plan.heldout_evaluation), (24, 20));
    let each = plan.per_generation;
    // Two screenings; two full evaluations without the screened rows; three candidates after a repair, two attempts per row.
    assert_eq!((each.reference, each.minibatch, each.full_train, each.worst_case), (0, 6, 42, 144));
    assert_eq!(plan.worst_case_rollouts, 200);
    // 156 rollouts remain for the search: six whole evaluations and a partial one, or 52 screenings.
    assert_eq!((plan.proposals.at_least, plan.proposals.at_most), (7, 52));
    assert_eq!((plan.generations.at_least, plan.generations.at_most), (4, 26));
    assert_eq!(plan.notes[0], "Without the rollout limits, 100 generations would use up to 14488 rollouts.");
}

#[test]
fn what_runs_at_once_follows_from_the_workers() {
    let planned = |change: &dyn Fn(&mut Config)| {
        let mut world = small();
        change(&mut world.config);
        plan(&world.config).at_once
    };
    let at_once = |rollouts, generations, proposer_turns| AtOnce { rollouts, generations, proposer_turns };
    assert_eq!(planned(&|_| {}), at_once(8, 1, 1));
    // Two proposals per generation; two epochs have 16 minibatches of 3 of the 24 rows.
    let sprint = |workers: u32| {
        move |config: &mut Config| {
            config.gepa.search = SearchMode::Sprint;
            config.gepa.pipeline.workers.rollout = workers;
        }
    };
    assert_eq!(planned(&sprint(24)), at_once(24, 12, 12));
    assert_eq!(planned(&sprint(64)), at_once(64, 16, 16));
    let reference = |config: &mut Config| {
        config.gepa.search = SearchMode::Reference;
        config.gepa.pipeline.workers.rollout = 64;
    };
    assert_eq!(planned(&reference), at_once(64, 32, 32));
    let limited = |config: &mut Config| {
        reference(config);
        config.gepa.pipeline.workers.propose = Some(4);
        config.gepa.pipeline.adaptive_rollout_concurrency.max = Some(20);
    };
    assert_eq!(planned(&limited), at_once(20, 32, 4));
    let serial = |config: &mut Config| {
        reference(config);
        config.gepa.pipeline.mode = PipelineMode::SyncSerial;
    };
    assert_eq!(planned(&serial), at_once(64, 1, 1));
}

#[test]
fn generations_bound_a_run_before_its_limits_do() {
    let mut world = small();
    world.config.gepa.max_total_rollouts = 100_000;
    world.config.gepa.max_generations = Some(3);
    let plan = plan(&world.config);
    assert_eq!(plan.proposals.at_least, 6);
    assert_eq!(plan.proposals.at_most, 6);
    assert_eq!(plan.worst_case_rollouts, 2 * 24 + 3 * 144 + 2 * 20);
    assert!(plan.notes[0].starts_with("The rollout limits are never reached"), "{:?}", plan.notes);
    let run = run(&world, Pace::default());
    assert_eq!(screened(&run), 6);
    assert!(spent(&run) <= plan.worst_case_rollouts);
}

#[test]
fn rows_outside_the_full_evaluation_are_counted_separately() {
    let mut world = small();
    let pools = &mut world.config.gepa.seed_pools;
    pools.pareto_eval = (0..10).collect();
    pools.minibatch = (8..24).collect();
    pools.reflection = (0..24).collect();
    let plan = plan(&world.config);
    assert_eq!((plan.pools.pareto, plan.pools.minibatch, plan.pools.reflection), (10, 16, 24));
    let each = plan.per_generation;
    // None of the three screening rows may be in the full evaluation; the proposer sees three other rows.
    assert_eq!((each.reference, each.minibatch, each.full_train), (6, 6, 20));
    let run = run(&world, Pace::default());
    assert_eq!(stop(&run), Some(StopKind::MaxRollouts));
    let screened = screened(&run);
    assert!((plan.proposals.at_least..=plan.proposals.at_most).contains(&screened), "{screened} {plan:?}");
}

#[test]
fn cost_is_known_only_with_every_estimate() {
    let mut config = small().config;
    config.gepa.max_generations = Some(3);
    let none = plan(&config).cost;
    assert_eq!((none.known, none.worst_case_usd), (false, None));
    assert!(none.unknown_reason.is_some_and(|why| why.contains("gepa.rollout_estimated_cost_usd")));
    config.gepa.rollout_estimated_cost_usd = Some(0.01);
    let half = plan(&config).cost;
    assert_eq!((half.known, half.worst_case_usd), (false, None));
    assert!(half.unknown_reason.is_some_and(|why| why.contains("gepa.proposer_estimated_cost_usd")));
    config.gepa.proposer_estimated_cost_usd = Some(0.1);
    // 200 rollouts, and three turns (two attempts and a repair) in each of three generations.
    assert_eq!(plan(&config).cost.worst_case_usd, Some(2.9));
    config.gepa.max_cost_usd = 1.5;
    assert_eq!(plan(&config).cost.worst_case_usd, Some(1.5));
    config.gepa.proposer_estimated_cost_usd = None;
    config.gepa.max_cost_usd = 0.0;
    config.gepa.proposer_estimated_prompt_tokens = Some(100_000);
    config.gepa.proposer_estimated_completion_tokens = Some(10_000);
    config.proposer.model = Some("mine".into());
    let price = synth_optimizer_core::config::proposer::ModelPrice {
        prompt_usd: Some(1.0),
        completion_usd: Some(10.0),
        ..Default::default()
    };
    config.proposer.prices.insert("mine".into(), price);
    assert_eq!(plan(&config).cost.worst_case_usd, Some(3.8));
}

fn codes(config: &Config) -> Vec<(Severity, &'static str, String)> {
    shortfalls(config).into_iter().map(|found| (found.severity, found.code, found.field)).collect()
}

#[test]
fn limits_that_are_too_small_are_reported() {
    let mut config = small().config;
    assert_eq!(codes(&config), []);
    config.gepa.max_total_rollouts = 33;
    assert_eq!(codes(&config), [(Severity::Error, "budget_too_small", "gepa.max_total_rollouts".to_owned())]);
    // The initial candidate, two held-out evaluations, and a generation whose two proposals are evaluated fully.
    let whole = 24 + 2 * 10 + 2 * 24;
    let partial = (Severity::Warning, "heldout_partial", "gepa.max_total_rollouts".to_owned());
    for limit in [36, whole - 1] {
        config.gepa.max_total_rollouts = limit;
        assert_eq!(codes(&config), std::slice::from_ref(&partial), "{limit}");
    }
    config.gepa.max_total_rollouts = whole;
    assert_eq!(codes(&config), []);
    config.gepa.max_train_rollouts = Some(26);
    config.gepa.max_total_rollouts = 200;
    let train = |code| (Severity::Warning, code, "gepa.max_train_rollouts".to_owned());
    assert_eq!(codes(&config), [train("no_proposal"), train("heldout_partial")]);
    let mut config = small().config;
    config.gepa.max_cost_usd = 0.3;
    config.gepa.rollout_estimated_cost_usd = Some(0.01);
    config.gepa.proposer_estimated_cost_usd = Some(0.1);
    assert_eq!(codes(&config), [(Severity::Error, "budget_too_small", "gepa.max_cost_usd".to_owned())]);
    let mut config = small().config;
    config.gepa.max_time_seconds = Some(600);
    config.gepa.rollout_estimated_wall_seconds = Some(200.0);
    assert_eq!(codes(&config), [(Severity::Warning, "time_may_not_reach", "gepa.max_time_seconds".to_owned())]);
}

/// Returns severity, code and field of all findings about the limits of a configuration, and what a limit must be at least.
fn limits(found: &[ConfigFinding]) -> BTreeSet<(Severity, &str, &str, &str)> {
    found
        .iter()
        .map(|found| {
            let least = found.hint.split_once(',').map_or(found.hint.as_str(), |(least, _)| least);
            (found.severity, found.code, found.field.as_str(), least)
        })
        .collect()
}

/// The loader counts the rollouts of rows that the configuration names; the plan those of rows that the container names.
#[test]
fn limits_are_judged_alike_whether_rows_are_named_or_all_rows_are_used() {
    let findings = |rows: [String; 2], counts: [u64; 2], gepa: &Value| {
        let [train, heldout] = rows;
        let value = json!({
            "container": {"url": "http://127.0.0.1:9100"},
            "dataset": {"train_seeds": train, "heldout_seeds": heldout},
            "candidate": {"target_modules": ["prompt"]},
            "gepa": gepa,
        });
        let source = ConfigSource { name: "test", content: ConfigContent::Mapping(value), base_dir: "/base".into() };
        let loaded = try_load_with(source, &BTreeMap::new(), &[], &|_| unreachable!("no file is named")).unwrap();
        let splits = ["train", "test"].map(str::to_owned).into_iter().zip(counts.map(SplitRows::Count));
        let resolved = resolve(&loaded.config, &splits.collect(), true).unwrap();
        let is_sound = loaded.warnings.iter().all(|found| found.severity == Severity::Warning);
        // The plan of an invalid configuration would be meaningless.
        let budget = if is_sound { shortfalls(&resolved) } else { Vec::new() };
        [loaded.warnings, budget].concat()
    };
    let mut codes = BTreeSet::new();
    // The reference search evaluates a candidate on at most ten of all rows with such a limit, so it has no more here.
    for (search, rows) in [("sprint", [[1, 1], [3, 4], [30, 10]]), ("reference", [[1, 1], [3, 4], [10, 10]])] {
        for ([train, heldout], limit) in rows.into_iter().flat_map(|rows| (1..50).map(move |limit| (rows, limit))) {
            for gepa in [
                json!({"search": search, "max_total_rollouts": limit}),
                json!({"search": search, "max_train_rollouts": limit, "max_heldout_rollouts": limit}),
                json!({"search": search, "max_total_rollouts": limit, "sprint": {"repeats": 2, "min_pairs": 2}}),
            ] {
                let named = [train, heldout].map(|rows| format!("0..{}", rows - 1));
                let named = findings(named, [train, heldout], &gepa);
                let all = findings(["all", "all"].map(str::to_owned), [train, heldout], &gepa);
                assert_eq!(limits(&named), limits(&all), "{train} train and {heldout} held-out rows, {gepa}");
                codes.extend(all.iter().map(|found| found.code));
            }
        }
    }
    assert_eq!(codes, BTreeSet::from(["budget_too_small", "heldout_partial", "no_proposal"]));
}

const CRITERIA: [AcceptanceCriterion; 2] =
    [AcceptanceCriterion::PrimaryImprovement, AcceptanceCriterion::ImprovementOrEqual];
const SAMPLERS: [Sampler; 4] =
    [Sampler::SeededShuffle, Sampler::EpochShuffled, Sampler::OrderedEpoch, Sampler::Stratified];

prop_compose! {
    /// Worlds in which the rollout limit ends the search.
    fn world()(
        (seed, budget, heldout_budget) in (0u64..1000, 60u32..700, prop::option::of(10u32..60)),
        (minibatch, proposals, generations) in (1u32..10, 1u32..4, 1u32..200),
        (criterion, sampler, graded) in (0usize..2, 0usize..4, any::<bool>()),
        (merge, ask, modules, gate_rows) in (any::<bool>(), any::<bool>(), 1usize..3, 1u32..8),
        (heldout_best, pipelined, window, in_lines) in (any::<bool>(), any::<bool>(), 1u32..12, any::<bool>()),
        (pareto, first) in (4i64..25, 0i64..24),
    ) -> World {
        let scoring = if graded { Scoring::Graded } else { Scoring::Binary };
        let modules = ["odd", "even"][..modules].to_vec();
        let mut world = with_rows(World { scoring, modules, inventive: true, in_lines, rules: 40, ..World::default() });
        world.config.run.seed = seed;
        let gepa = &mut world.config.gepa;
        gepa.max_total_rollouts = budget;
        if heldout_budget.is_some() {
            gepa.max_heldout_rollouts = heldout_budget;
        }
        gepa.minibatch_size = Some(minibatch);
        gepa.proposals_per_generation = proposals;
        gepa.max_generations = Some(generations);
        gepa.acceptance_criterion = CRITERIA[criterion];
        gepa.minibatch_acceptance_criterion = CRITERIA[criterion];
        gepa.batch_sampler.name = SAMPLERS[sampler];
        gepa.merge.enabled = merge;
        gepa.merge.gate_rows = gate_rows;
        gepa.merge.conflict = if ask { MergeConflict::Proposer } else { MergeConflict::HigherScore };
        gepa.deployment_rule =
            if heldout_best { DeploymentRule::HeldoutBest } else { DeploymentRule::OptimizationSelected };
        gepa.pipeline.mode = if pipelined { PipelineMode::AsyncPipelined } else { PipelineMode::SyncSerial };
        gepa.pipeline.max_in_flight_candidates = Some(window);
        gepa.seed_pools.pareto_eval = (0..pareto).collect();
        gepa.seed_pools.minibatch = (first.min(23)..24).collect();
        // Every minibatch is complete.
        gepa.skip_perfect_score = false;
        gepa.leakage.min_span_chars = 4000;
        world
    }
}

fn holds(plan: &Plan, run: &Run) -> bool {
    u64::from(plan.limits.train) >= run.spent(Dimension::TrainRollouts)
        && u64::from(plan.limits.heldout) >= run.spent(Dimension::HeldoutRollouts)
        && plan.worst_case_rollouts >= spent(run)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// If the rollout limit ends the search, the number of screened proposals is within the plan's bounds.
    #[test]
    fn a_run_stays_within_the_planned_bounds(world in world(), arrival_seed in any::<u64>()) {
        let plan = plan(&world.config);
        let run = run(&world, Pace { arrival_seed, ..Pace::default() });
        prop_assert!(holds(&plan, &run), "{} of {plan:?}", spent(&run));
        let proposals = plan.proposals;
        let screened = screened(&run);
        prop_assert!(screened <= proposals.at_most, "{screened} of {plan:?}");
        // With several open generations, one may find that the others have used the remaining budget.
        if world.config.gepa.pipeline.mode == PipelineMode::SyncSerial {
            prop_assert!(run.spent(Dimension::Generations) <= plan.generations.at_most, "{plan:?}");
        }
        if stop(&run) == Some(StopKind::MaxRollouts) {
            prop_assert!(screened >= proposals.at_least, "{screened} of {plan:?}");
        }
    }

    /// With any failures and any proposer behaviour, no run makes more rollouts than the worst case.
    #[test]
    fn no_run_exceeds_the_worst_case(
        world in world(),
        failure in prop_oneof![Just(0.05), Just(0.3), Just(0.9)],
        invalid in prop_oneof![Just(0.0), Just(0.4)],
        attempts in 1u32..4,
        repairs in 0u32..3,
        limit in prop::option::of(60u32..100_000),
        arrival_seed in any::<u64>(),
    ) {
        let mut world = World { failure, invalid, proposer_failure: invalid / 2.0, ..world };
        world.config.gepa.max_total_rollouts = limit.unwrap_or(1_000_000);
        world.config.gepa.max_generations = world.config.gepa.max_generations.map(|most| most.min(12));
        world.config.gepa.rollout_max_attempts = attempts;
        world.config.gepa.rollout_failure_rate_tolerance = 1.0;
        world.config.gepa.circuit_breaker.enabled = false;
        world.config.gepa.skip_perfect_score = true;
        world.config.proposer.max_repairs = repairs;
        let plan = plan(&world.config);
        let run = run(&world, Pace { arrival_seed, ..Pace::default() });
        prop_assert!(holds(&plan, &run), "{} of {plan:?}", spent(&run));
        prop_assert!(run.count("proposer.started") as u64 <= turns(&world.config));
    }
}

/// Returns the maximum number of turns that the plan assumes for its cost.
fn turns(config: &Config) -> u64 {
    let mut config = config.clone();
    config.gepa.rollout_estimated_cost_usd = Some(0.0);
    config.gepa.proposer_estimated_cost_usd = Some(1.0);
    plan(&config).cost.worst_case_usd.unwrap_or(0.0) as u64
}

#[test]
fn a_search_in_sprints_is_planned_and_keeps_its_plan() {
    for (rows, budget) in [(24, 300), (200, 500), (1000, 400)] {
        let mut world = with_rows(World { train: rows, inventive: true, rules: 400, ..World::default() });
        world.config.gepa.search = SearchMode::Sprint;
        world.config.gepa.max_generations = None;
        world.config.gepa.minibatch_size = Some(3);
        world.config.gepa.proposals_per_generation = 1;
        world.config.gepa.rollout_max_attempts = 1;
        world.config.gepa.max_total_rollouts = budget;
        let found = plan(&world.config);
        let run = run(&world, Pace::default());
        let first = run.events.iter().filter_map(|event| match event {
            Event::RolloutsRequested(batch) if matches!(batch.stage, Stage::SeedFullTrain) => Some(batch.row_ids.len()),
            _ => None,
        });
        let repeats = run.events.iter().find_map(|event| match event {
            Event::RolloutsRequested(batch) if batch.stage == Stage::Repeat => Some(batch.row_ids.len()),
            _ => None,
        });
        assert_eq!(found.seed_evaluation, (first.sum::<usize>() + repeats.unwrap()) as u64);
        assert_eq!(found.search, SearchMode::Sprint);
        assert!(spent(&run) <= found.worst_case_rollouts);
        assert!(screened(&run) <= found.proposals.at_most, "{} of {:?}", screened(&run), found.proposals);
        assert!(screened(&run) >= found.proposals.at_least, "{} of {:?}", screened(&run), found.proposals);
        assert!(shortfalls(&world.config).is_empty());
    }
}

#[test]
fn the_search_is_chosen_by_settings_and_rows() {
    let search = |change: fn(&mut World)| {
        let mut world = with_rows(World { train: 100, ..World::default() });
        world.config.gepa.search = SearchMode::Auto;
        world.config.gepa.max_total_rollouts = 2000;
        change(&mut world);
        let found = plan(&with_rows(world).config);
        (found.search, found.search_reason)
    };
    assert_eq!(search(|_| {}).0, SearchMode::Sprint);
    let (chosen, reason) = search(|world| world.config.gepa.merge.enabled = true);
    assert_eq!(chosen, SearchMode::Reference);
    assert!(reason.contains("gepa.merge.enabled"), "{reason}");
    let (chosen, reason) = search(|world| world.train = 20);
    assert_eq!(chosen, SearchMode::Reference);
    assert!(reason.contains("20 rows"), "{reason}");
    assert_eq!(search(|world| world.train = 60).0, SearchMode::Sprint);
    assert_eq!(search(|world| world.config.gepa.search = SearchMode::Reference).0, SearchMode::Reference);
}

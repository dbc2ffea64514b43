//! Properties that hold in every simulated world, with every timing and in every state.

use std::collections::BTreeMap;

use crate::sim::{Pace, Run, Scoring, TURN_NANO_USD, World};
use proptest::prelude::*;
use synth_optimizer_core::config::gepa::{
    AcceptanceCriterion, ComponentSelector, DeploymentRule, FrontierType, MergeConflict, PipelineMode, Sampler,
    SearchMode, Selector,
};
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::canonical::{canonical_digest, canonical_json};
use synth_optimizer_core::model::command::{Command, ProposeCommand, RolloutCommand};
use synth_optimizer_core::model::envelope::{Envelope, normalize};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::StopKind;
use synth_optimizer_core::model::score::MAX_REWARD;

/// Returns the normalized form of a feed.
fn normalize_feed(feed: &str) -> String {
    let lines = feed.lines().filter(|line| !line.trim().is_empty());
    let kept = lines.filter_map(|line| normalize(serde_json::from_str(line).unwrap()).unwrap());
    kept.map(|value| canonical_json(&value) + "\n").collect()
}

fn pick<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    (0..all.len()).prop_map(|index| all[index])
}

const SELECTORS: &[Selector] = &[
    Selector::ParetoWeighted,
    Selector::UniformPareto,
    Selector::Random,
    Selector::CurrentBest,
    Selector::TopKPareto,
    Selector::EpsilonGreedy,
];
const SAMPLERS: &[Sampler] =
    &[Sampler::SeededShuffle, Sampler::EpochShuffled, Sampler::OrderedEpoch, Sampler::Stratified];
const CRITERIA: &[AcceptanceCriterion] = &[
    AcceptanceCriterion::PrimaryImprovement,
    AcceptanceCriterion::ImprovementOrEqual,
    AcceptanceCriterion::PrimaryOrObjective,
    AcceptanceCriterion::AnyObjectiveImproved,
    AcceptanceCriterion::ProtectedObjectiveGuard,
];
const FRONTIERS: &[FrontierType] =
    &[FrontierType::PerExample, FrontierType::PerObjective, FrontierType::PerExampleObjective];
const SCORINGS: &[Scoring] = &[Scoring::Binary, Scoring::Graded, Scoring::TwoObjectives, Scoring::Saturated];

prop_compose! {
    fn search()(
        selector in pick(SELECTORS),
        sampler in pick(SAMPLERS),
        criterion in pick(CRITERIA),
        frontier in pick(FRONTIERS),
        scoring in pick(SCORINGS),
        all_components in any::<bool>(),
        merge in any::<bool>(),
        ask_proposer in any::<bool>(),
        heldout_best in any::<bool>(),
        modules in 1usize..3,
    ) -> World {
        let mut world = World { scoring, modules: ["odd", "even"][..modules].to_vec(), ..World::default() };
        let gepa = &mut world.config.gepa;
        gepa.candidate_selector.name = selector;
        gepa.batch_sampler.name = sampler;
        gepa.acceptance_criterion = criterion;
        gepa.minibatch_acceptance_criterion = criterion;
        gepa.frontier_type = frontier;
        gepa.component_selector = if all_components { ComponentSelector::All } else { ComponentSelector::RoundRobin };
        gepa.merge.enabled = merge;
        gepa.merge.conflict = if ask_proposer { MergeConflict::Proposer } else { MergeConflict::HigherScore };
        gepa.deployment_rule =
            if heldout_best { DeploymentRule::HeldoutBest } else { DeploymentRule::OptimizationSelected };
        if scoring == Scoring::TwoObjectives {
            gepa.objective_keys = vec!["quality".into(), "length".into()];
        }
        world
    }
}

prop_compose! {
    /// Settings for failures and stop rules that differ much from the defaults.
    fn unusual()(
        mut world in search(),
        tolerance in pick(&[0.0, 0.25, 0.25, 1.0]),
        breaker in any::<bool>(),
        threshold in pick(&[None, None, Some(0.3)]),
        patience in pick(&[None, None, Some(2)]),
        tokens in pick(&[None, None, Some(9_000u64)]),
        attempts in 1u32..4,
        carried in 0u32..4,
        repairs in 0u32..3,
    ) -> World {
        let gepa = &mut world.config.gepa;
        gepa.rollout_failure_rate_tolerance = tolerance;
        gepa.circuit_breaker.enabled = breaker;
        gepa.score_threshold_value = threshold;
        gepa.no_improvement_generations = patience;
        gepa.rollout_max_attempts = attempts;
        gepa.carry_failures = carried;
        if tokens.is_some() {
            gepa.max_total_tokens = tokens;
            gepa.rollout_estimated_total_tokens = Some(90);
            gepa.proposer_estimated_total_tokens = Some(500);
        }
        world.config.proposer.max_repairs = repairs;
        world
    }
}

prop_compose! {
    fn world()(
        mut world in unusual(),
        seed in 0u64..1000,
        async_mode in any::<bool>(),
        window in 1u32..12,
        proposals in 1u32..4,
        minibatch in 1u32..10,
        budget in 60u32..500,
        generations in 1u32..30,
        failure in pick(&[0.0, 0.05, 0.3, 1.0]),
        invalid in pick(&[0.0, 0.3, 1.0]),
        proposer_failure in pick(&[0.0, 0.3]),
        noise in pick(&[0.0, 0.2]),
        cost in pick(&[None, Some(0.3), Some(1.0)]),
        time in pick(&[None, Some(20u64), Some(90)]),
        known_cost in any::<bool>(),
        sprint in any::<bool>(),
        in_lines in any::<bool>(),
    ) -> World {
        world.in_lines = in_lines;
        world.failure = failure;
        world.invalid = invalid;
        world.proposer_failure = proposer_failure;
        world.noise = noise;
        world.rollout_cost = known_cost.then_some(2_500_000);
        world.config.run.seed = seed;
        world.config.proposer.timeout_seconds = 2;
        let gepa = &mut world.config.gepa;
        gepa.search = if sprint { SearchMode::Sprint } else { SearchMode::Reference };
        gepa.pipeline.mode = if async_mode { PipelineMode::AsyncPipelined } else { PipelineMode::SyncSerial };
        gepa.pipeline.max_in_flight_candidates = Some(window);
        gepa.proposals_per_generation = proposals;
        gepa.minibatch_size = Some(minibatch);
        gepa.max_total_rollouts = budget;
        gepa.max_generations = Some(generations);
        if let Some(cost) = cost {
            gepa.max_cost_usd = cost;
            gepa.rollout_estimated_cost_usd = Some(0.002);
            gepa.proposer_estimated_cost_usd = Some(0.02);
        }
        if let Some(time) = time {
            gepa.max_time_seconds = Some(time);
            gepa.rollout_estimated_wall_seconds = Some(0.5);
        }
        world
    }
}

prop_compose! {
    fn pace()(arrival_seed in any::<u64>(), rollout_workers in 1usize..70, propose_workers in 1usize..9) -> Pace {
        Pace { arrival_seed, rollout_workers, propose_workers, stop_after: None, cancel_after: None }
    }
}

/// Returns the questions of all proposer turns, in the order of the calls.
fn questions(run: &Run) -> Vec<ProposeCommand> {
    let mut asked: Vec<ProposeCommand> = run
        .commands
        .iter()
        .filter_map(|command| match command {
            Command::Propose(turn) => Some(turn.clone()),
            Command::Rollout(_) => None,
        })
        .collect();
    asked.sort_by_key(|turn| turn.call_id);
    asked
}

fn untimed(mut world: World) -> World {
    world.config.gepa.max_time_seconds = None;
    world
}

/// Scores at the ends of the accepted range and around zero.
fn extreme_score(command: &RolloutCommand) -> Result<f64, bool> {
    const SCORES: [f64; 6] = [MAX_REWARD, -MAX_REWARD, 0.0, 1.0, f64::MIN_POSITIVE, -1e-300];
    let digest = canonical_digest(&(&command.payload, &command.row_id, command.replicate));
    Ok(SCORES[digest.bytes().map(usize::from).sum::<usize>() % SCORES.len()])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Means, errors, intervals and comparisons of extreme scores are finite: a number that is not becomes null in JSON.
    #[test]
    fn extreme_scores_leave_no_null_in_the_log(world in world(), pace in pace()) {
        let world = World { score: Some(extreme_score), ..world };
        for event in world.run(pace).events {
            let text = serde_json::to_string(&event).unwrap();
            prop_assert_eq!(serde_json::from_str::<Event>(&text).ok(), Some(event), "{}", text);
        }
    }

    /// The log does not depend on the order in which answers arrive or on the number of workers.
    #[test]
    fn arrival_order_does_not_matter(world in world(), one in pace(), other in pace()) {
        let mut world = untimed(world);
        let first = world.run(one);
        world.config.gepa.pipeline.workers.rollout = 64;
        world.config.gepa.pipeline.workers.propose = Some(5);
        world.config.run.run_id = Some("another".into());
        let second = world.run(other);
        prop_assert_eq!(questions(&first), questions(&second), "what the proposer is asked");
        prop_assert_eq!(first.events, second.events);
        prop_assert_eq!(first.state, second.state);
    }

    /// Limits hold in every reachable state, and the simulated task runs no more rollouts than allowed.
    #[test]
    fn budgets_hold_at_every_moment(world in world(), pace in pace()) {
        let run = world.run(pace);
        let mut state = run.engine.initial_state();
        for event in &run.events {
            run.engine.evolve(&mut state, event);
            for dimension in Dimension::ALL {
                let used = state.budget.spent(dimension) + state.budget.reserved(dimension);
                prop_assert!(state.budget.caps().get(dimension).is_none_or(|cap| used <= cap), "after {event:?}");
            }
        }
        let cap = u64::from(world.config.gepa.max_total_rollouts);
        prop_assert!(run.billed_rollouts <= cap);
        prop_assert!(run.spent(Dimension::TotalRollouts) <= cap);
        prop_assert_eq!(run.state.budget.overrun(Dimension::TotalRollouts), 0);
        for dimension in Dimension::ALL {
            prop_assert_eq!(run.state.budget.reserved(dimension), 0, "{:?}", dimension);
        }
        // The cost exceeds the limit at most by the amount by which single calls exceed their estimates.
        let cap = run.state.budget.caps().get(Dimension::Cost).unwrap_or(u64::MAX);
        let excess = 500_000 * run.billed_rollouts + 10_000_000 * run.count("proposer.started") as u64;
        prop_assert!(run.state.counts.spend().known_cost.0 <= cap.saturating_add(excess));
        prop_assert!(run.state.counts.rollouts.sent_calls <= u64::from(world.config.gepa.max_total_rollouts));
    }

    /// If no call exceeds its estimate, the cost never exceeds the limit.
    #[test]
    fn money_is_never_overspent_when_estimates_hold(world in world(), pace in pace(), cap in 0.2f64..2.0) {
        let mut world = World { rollout_cost: Some(1_900_000), ..world };
        world.config.gepa.max_cost_usd = cap;
        world.config.gepa.rollout_estimated_cost_usd = Some(0.002);
        world.config.gepa.proposer_estimated_cost_usd = Some(0.03);
        let run = world.run(pace);
        prop_assert!(run.state.counts.spend().known_cost.0 as f64 <= cap * 1e9);
        prop_assert_eq!(run.state.budget.overrun(Dimension::Cost), 0);
    }

    /// A cost limit needs no estimates: what a call costs is learned from the first ones, the limit holds in every state, and
    /// the log does not depend on the order of arrival.
    #[test]
    fn a_cost_limit_without_estimates_is_kept(
        world in world(), one in pace(), other in pace(), cap in 0.04f64..2.0, cost in 1u64..4_000_000
    ) {
        let mut world = untimed(World { rollout_cost: Some(cost), ..world });
        world.config.gepa.max_cost_usd = cap;
        world.config.gepa.rollout_estimated_cost_usd = None;
        world.config.gepa.proposer_estimated_cost_usd = None;
        let run = world.run(one);
        let mut state = run.engine.initial_state();
        let cap = (cap * 1e9).floor() as u64;
        for event in &run.events {
            run.engine.evolve(&mut state, event);
            let used = state.budget.spent(Dimension::Cost) + state.budget.reserved(Dimension::Cost);
            prop_assert!(used <= cap, "after {event:?}");
        }
        prop_assert_eq!(state.budget.reserved(Dimension::Cost), 0);
        // The first turn shows what a turn costs, so only it can exceed what is left.
        let over = run.state.counts.spend().known_cost.0.saturating_sub(cap);
        let is_first_turn = run.count("proposer.started") == 1 && over < TURN_NANO_USD;
        prop_assert!(over == 0 || is_first_turn, "{over} nano-dollars above the limit");
        world.config.gepa.pipeline.workers.rollout = 64;
        prop_assert_eq!(run.events, world.run(other).events);
    }

    /// If rollouts cost more than their estimate, failed ones included, every call still has a reservation, the overrun is
    /// reported, and the search ends before it uses up what the held-out rows need.
    #[test]
    fn estimates_that_are_too_low_are_raised_and_the_overrun_is_reported(
        world in world(), pace in pace(), cap in 0.2f64..2.0, factor in 2u64..6
    ) {
        let mut world = World { rollout_cost: Some(factor * 2_000_000), ..world };
        world.config.gepa.max_cost_usd = cap;
        world.config.gepa.rollout_estimated_cost_usd = Some(0.002);
        world.config.gepa.proposer_estimated_cost_usd = Some(0.03);
        let run = world.run(pace);
        let bill = run.events.iter().rev().find_map(|event| match event {
            Event::RunFinished(run) => Some(&run.bill),
            Event::RunFailed(run) => Some(&run.bill),
            Event::RunCancelled(run) => Some(&run.bill),
            _ => None,
        });
        let spent = run.state.counts.spend().known_cost.0 as f64 / 1e9;
        match bill.unwrap().shortfalls.iter().find(|over| over.kind == StopKind::MaxCost) {
            // Calls of unknown cost are charged with what they reserved.
            Some(over) => prop_assert!(over.spent > over.limit && over.spent >= spent - 1e-6, "{over:?} {spent}"),
            None => prop_assert!(spent <= cap + 1e-6, "{spent} of {cap}"),
        }
    }

    /// A run that is resumed from any stored prefix of its log has the same end.
    #[test]
    fn a_run_resumed_from_any_prefix_ends_the_same(world in world(), pace in pace(), at in 0.0f64..1.0) {
        let world = untimed(world);
        let run = world.run(pace);
        let place = (at * (run.boundaries.len() - 1) as f64) as usize;
        let stored = run.boundaries[place];
        let mut events = run.events[..stored].to_vec();
        events.extend(world.resume(&events, pace));
        prop_assert_eq!(&events, &run.events);
    }

    /// A command does not change until it is answered, so that a resumed run sends the same call again.
    #[test]
    fn commands_do_not_change_while_they_wait(world in world(), pace in pace()) {
        let run = world.run(pace);
        let mut state = run.engine.initial_state();
        let mut asked = BTreeMap::new();
        let mut done = 0;
        for boundary in &run.boundaries {
            for event in &run.events[done..*boundary] {
                run.engine.evolve(&mut state, event);
            }
            done = *boundary;
            for command in run.engine.outstanding(&state) {
                let first = asked.entry(command.call_id()).or_insert_with(|| command.clone());
                prop_assert_eq!(&*first, &command);
            }
        }
    }

    /// Replaying any prefix of the log rebuilds the state after that prefix, and the rest of the log leads to the final
    /// state.
    #[test]
    fn replaying_the_log_rebuilds_the_state(world in world(), pace in pace(), every in 1usize..40) {
        let run = world.run(pace);
        let mut state = run.engine.initial_state();
        for (index, event) in run.events.iter().enumerate() {
            if index % every == 0 {
                let mut rebuilt = run.engine.initial_state();
                run.events[..index].iter().for_each(|event| run.engine.evolve(&mut rebuilt, event));
                prop_assert_eq!(&rebuilt, &state);
            }
            run.engine.evolve(&mut state, event);
        }
        prop_assert_eq!(&state, &run.state);
    }

    /// A stop or cancel at any time ends the run, and no reservation remains.
    #[test]
    fn stops_and_cancels_end_the_run(world in world(), pace in pace(), after in 0usize..200, cancel in any::<bool>()) {
        let (stop_after, cancel_after) = if cancel { (None, Some(after)) } else { (Some(after), None) };
        let run = world.run(Pace { stop_after, cancel_after, ..pace });
        prop_assert!(run.engine.is_terminal(&run.state));
        prop_assert!(run.engine.outstanding(&run.state).is_empty());
        if after == 0 {
            prop_assert_eq!(run.billed_rollouts, 0);
        }
        let requested = run.events.iter().any(|event| matches!(event, Event::CancelRequested(_)));
        prop_assert_eq!(requested, matches!(run.last(), Event::RunCancelled(_)));
        for dimension in Dimension::ALL {
            prop_assert_eq!(run.state.budget.reserved(dimension), 0, "{:?}", dimension);
        }
    }

    /// Every event survives a round trip through its line, and normalizing is idempotent, with any run id and time.
    #[test]
    fn feeds_round_trip_and_normalize(world in world(), pace in pace()) {
        let run = world.run(pace);
        let feed = |run_id: &str, at: u64| {
            let lines = run.events.iter().enumerate().map(|(index, event)| {
                let line = Envelope::new(index as u64, run_id, at + index as u64, event.clone()).to_line().unwrap();
                assert_eq!(&Envelope::from_line(&line, index + 1).unwrap().event, event);
                line
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        let normalized = normalize_feed(&feed("one", 1_700_000_000_000));
        prop_assert_eq!(&normalized, &normalize_feed(&feed("two", 0)));
        prop_assert_eq!(&normalized, &normalize_feed(&normalized));
        for line in normalized.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            prop_assert_eq!(normalize(value.clone()).unwrap(), Some(value));
        }
    }

    /// If the rollout limit ends the search, fewer rollouts remain than one screening needs.
    #[test]
    fn the_rollout_budget_is_used(
        world in search(),
        seed in 0u64..1000,
        pace in pace(),
        window in 1u32..12,
        async_mode in any::<bool>(),
        budget in 400u32..1500,
    ) {
        let mut world = World { rules: 400, train: 40, learns: 0.5, forgets: 0.9, inventive: true, ..world };
        world.config.run.seed = seed;
        world.config.gepa.minibatch_size = Some(3);
        world.config.gepa.max_generations = Some(u32::MAX);
        world.config.gepa.max_train_rollouts = Some(budget);
        world.config.gepa.max_heldout_rollouts = Some(20);
        world.config.gepa.pipeline.mode =
            if async_mode { PipelineMode::AsyncPipelined } else { PipelineMode::SyncSerial };
        world.config.gepa.pipeline.max_in_flight_candidates = Some(window);
        world.config.gepa.skip_perfect_score = false;
        world.config.gepa.leakage.min_span_chars = 4000;
        let run = world.run(pace);
        let used = run.spent(Dimension::TrainRollouts);
        let rollouts_ran_out = run.events.iter().any(|event| matches!(event, Event::StopDecided(stop)
            if stop.stopped_by.kind == synth_optimizer_core::model::event_fields::StopKind::MaxRollouts));
        prop_assert!(rollouts_ran_out, "{:?}", run.last());
        prop_assert!(used <= u64::from(budget));
        prop_assert!(used * 100 >= u64::from(budget) * 99, "{used} of {budget}");
    }
}

//! `/metrics` shows the totals of the logs that it counts.

#[path = "../../../synth_gepa/tests/suite/sim/mod.rs"]
mod sim;

use std::collections::BTreeMap;

use proptest::prelude::*;
use sim::{Pace, World};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::run_view::RunView;
use synth_optimizer_platform::workspace::StoredEvent;

use super::Metrics;

/// Returns the value of a metric in OpenMetrics text.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing in {text}")).parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn metrics_show_the_totals_of_all_runs(
        seeds in proptest::collection::vec(0u64..1000, 1..4),
        failure in prop_oneof![Just(0.0), Just(0.5)],
        proposer_failure in prop_oneof![Just(0.0), Just(0.4)],
        rollout_cost in prop_oneof![Just(None), Just(Some(2_000_000u64))],
        stop_after in prop_oneof![3 => Just(None), 1 => (1usize..120).prop_map(Some)],
        cancel_after in prop_oneof![3 => Just(None), 1 => (1usize..120).prop_map(Some)],
    ) {
        let metrics = Metrics::new();
        let (mut finished, mut failed, mut tokens, mut cost, mut unpriced) = (0, 0, 0, 0.0, 0);
        for seed in seeds {
            let mut world = World { failure, proposer_failure, rollout_cost, ..World::default() };
            world.config.run.seed = seed;
            world.config.gepa.max_total_rollouts = 160;
            let mut view = RunView::default();
            for (sequence, event) in world.run(Pace { stop_after, cancel_after, ..Pace::default() }).events.into_iter().enumerate() {
                finished += u64::from(matches!(event, Event::RolloutFinished(_)));
                failed += u64::from(matches!(&event, Event::RolloutFailed(rollout) if rollout.class.was_sent()));
                view.apply(sequence as u64, sequence as u64, &event);
                metrics.count_event(&StoredEvent::new(sequence as u64, sequence as u64, event));
            }
            let usage = view.totals.counts.usage();
            tokens += usage.rollouts.total_tokens;
            cost += usage.total.known_cost_usd;
            unpriced += usage.total.unpriced_calls;
        }
        let text = metrics.encode_text(&BTreeMap::new(), 0.0, 0.0, 0).unwrap();
        let named = |name: &str| value(&text, &format!("synth_optimizers_{name}"));
        prop_assert_eq!(named("rollouts_total{kind=\"finished\"}"), finished as f64);
        prop_assert_eq!(named("rollouts_total{kind=\"failed\"}"), failed as f64);
        prop_assert_eq!(named("tokens_total{kind=\"rollout\"}"), tokens as f64);
        prop_assert!((named("cost_usd_total") - cost).abs() < 1e-9);
        prop_assert_eq!(named("unpriced_calls_total"), unpriced as f64);
    }
}

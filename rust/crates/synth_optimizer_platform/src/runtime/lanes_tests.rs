//! The concurrency limit grows by steps, halves once per wave of overloads, and stays within its bounds.
#![allow(clippy::unwrap_used)]

use super::Concurrency;
use synth_optimizer_core::config::gepa::Pipeline;

fn pipeline(workers: u32, initial: u32) -> Pipeline {
    let mut pipeline = Pipeline::default();
    pipeline.workers.rollout = workers;
    let rules = &mut pipeline.adaptive_rollout_concurrency;
    (rules.initial, rules.min, rules.max) = (initial, 2, Some(120));
    (rules.increase_step, rules.decrease_step, rules.increase_after_successes) = (10, 3, 5);
    pipeline
}

fn climb(limit: &mut Concurrency, successes: u32) -> usize {
    for _ in 0..successes {
        limit.succeeded();
    }
    limit.limit()
}

#[test]
fn the_limit_grows_by_steps_up_to_the_number_of_workers() {
    let mut limit = Concurrency::new(&pipeline(64, 50));
    assert_eq!(limit.limit(), 50);
    assert_eq!(climb(&mut limit, 4), 50);
    let change = limit.succeeded().unwrap();
    assert_eq!((change.old_limit, change.new_limit, change.status), (50, 60, None));
    assert_eq!(climb(&mut limit, 50), 64);
    assert_eq!(Concurrency::new(&pipeline(8, 50)).limit(), 8);
    assert_eq!(Concurrency::new(&pipeline(1000, 500)).limit(), 120);
}

#[test]
fn an_overload_halves_the_limit_once_per_wave_and_not_below_the_minimum() {
    let mut limit = Concurrency::new(&pipeline(64, 50));
    let change = limit.overloaded(429, 10, 60).unwrap();
    assert_eq!((change.old_limit, change.new_limit, change.status), (50, 25, Some(429)));
    // This call was sent before the decrease, so it causes no further one.
    assert!(limit.overloaded(429, 59, 61).is_none());
    assert_eq!(limit.limit(), 25);
    for wave in 0..6 {
        limit.overloaded(503, 100 * (wave + 1), 100 * (wave + 1) + 50);
    }
    assert_eq!(limit.limit(), 2);
    assert!(limit.overloaded(503, 9000, 9001).is_none());
}

#[test]
fn the_success_count_restarts_after_every_change() {
    let mut limit = Concurrency::new(&pipeline(64, 20));
    climb(&mut limit, 4);
    limit.overloaded(429, 0, 1);
    assert_eq!(climb(&mut limit, 4), 10);
    assert_eq!(climb(&mut limit, 1), 20);
}

#[test]
fn adaptive_concurrency_can_be_disabled() {
    let mut fixed = pipeline(16, 4);
    fixed.adaptive_rollout_concurrency.enabled = false;
    let mut limit = Concurrency::new(&fixed);
    assert_eq!(limit.limit(), 16);
    assert!(limit.overloaded(429, 0, 1).is_none());
    assert_eq!(climb(&mut limit, 100), 16);
}

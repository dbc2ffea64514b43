//! The posterior of a check against an implementation of its own, and its limits.

use super::{Differences, PooledVariance, Prior, probability_of_gain};
use synth_optimizer_core::random::random_stream;

/// Returns the normal distribution function by its power series, which converges for every value.
fn reference_cdf(value: f64) -> f64 {
    if value.abs() > 8.0 {
        return if value > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut odd) = (value, value, 1.0);
    while term.abs() > 1e-18 * sum.abs().max(1e-300) {
        odd += 2.0;
        term *= value * value / odd;
        sum += term;
    }
    0.5 + sum * (-value * value / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// Returns the probability as the design states it, without any shortcut.
fn reference(differences: &[f64], pooled: f64, steps: f64, scale: f64, rows: Option<f64>) -> f64 {
    let n = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / n;
    let squares: f64 = differences.iter().map(|value| (value - mean) * (value - mean)).sum();
    let spread = (squares + 4.0 * pooled) / (n - 1.0 + 4.0);
    let error = spread / n * rows.map_or(1.0, |rows| 1.0 - n / rows);
    let prior = steps * scale * scale;
    let weight = prior / (prior + error);
    reference_cdf(weight * mean / (weight * error).sqrt())
}

#[test]
fn the_probability_agrees_with_a_reference_implementation() {
    for case in 0..1000 {
        let mut random = random_stream(11, "check", case);
        let count = 2 + random.index(60);
        let level = random.unit() - 0.5;
        let differences: Vec<f64> = (0..count)
            .map(|_| if case % 2 == 0 { random.below(3) as f64 - 1.0 } else { level + random.unit() - 0.5 })
            .collect();
        let steps = 1 + random.below(20) as u32;
        let rows = (case % 3 == 0).then(|| count as u32 + 1 + random.below(200) as u32);
        let mut pooled = PooledVariance::default();
        let mut expected = (0.15 * 4.0, 4.0);
        for _ in 0..random.below(4) {
            let (variance, n) = (random.unit(), 2 + random.below(30) as u32);
            pooled.add(variance, n);
            expected = (0.9 * expected.0 + variance * f64::from(n - 1), 0.9 * expected.1 + f64::from(n - 1));
        }
        let found = Differences::of(&differences).unwrap();
        let prior = Prior { pooled, steps, step_scale: 0.05, all_rows: rows };
        let wanted = reference(&differences, expected.0 / expected.1, steps.into(), 0.05, rows.map(f64::from));
        let probability = probability_of_gain(&found, &prior);
        assert!((probability - wanted).abs() < 1e-12, "case {case}: {probability} {wanted}");
    }
}

#[test]
fn nothing_is_unknown_after_all_rows() {
    let prior = |rows| Prior { pooled: PooledVariance::default(), steps: 1, step_scale: 0.05, all_rows: Some(rows) };
    let probability = |differences: &[f64]| {
        probability_of_gain(&Differences::of(differences).unwrap(), &prior(differences.len() as u32))
    };
    assert_eq!(probability(&[0.0, 0.0, 1.0]), 1.0);
    assert_eq!(probability(&[0.0, -1.0, 0.0]), 0.0);
    assert_eq!(probability(&[1.0, -1.0]), 0.5);
    assert_eq!(Differences::of(&[]), None);
}

#[test]
fn more_changes_need_fewer_rows() {
    let found = Differences::of(&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]).unwrap();
    let after = |steps| {
        probability_of_gain(
            &found,
            &Prior { pooled: PooledVariance::default(), steps, step_scale: 0.05, all_rows: None },
        )
    };
    assert!(after(1) < after(4) && after(4) < after(16), "{} {} {}", after(1), after(4), after(16));
    assert!(after(1) > 0.5 && after(1) < 0.9);
}

//! The standing of a race in cases that are worked out by hand, and what holds for every race.

use super::{Standing, standing};
use synth_gepa::{PooledVariance, Prior};
use synth_optimizer_core::random::random_stream;

const NOISY: Prior = Prior { pooled: PooledVariance::INITIAL, steps: 2, step_scale: 0.05, all_rows: None };

fn scores(rows: &[&str]) -> Vec<Vec<Option<f64>>> {
    let score = |sign: char| sign.to_digit(10).map(f64::from);
    rows.iter().map(|row| row.chars().map(score).collect()).collect()
}

#[test]
fn the_leader_has_the_highest_mean_on_shared_rows_and_the_first_of_equals_leads() {
    let leader = |rows: &[&str], prior: &Prior| standing(&scores(rows), prior).map(|found| found.leader);
    assert_eq!(leader(&["001", "011", "011"], &NOISY), Some(1));
    // The first has more right answers, but on rows that the second has no score for.
    assert_eq!(leader(&["0111", "1---"], &NOISY), Some(1));
    assert_eq!(leader(&["1-", "-1"], &NOISY), None);
    assert_eq!(leader(&[], &NOISY), None);
}

#[test]
fn a_gap_has_the_probability_that_was_worked_out_by_hand() {
    // Differences -1, -1, 0, 0: mean -0.5, squares 1, spread (1 + 4 * 0.15) / 7, error of the mean spread / 4. The prior has the
    // variance 2 * 0.05^2. So the weight is 0.005 / (0.005 + 0.057143) and P = Phi(0.080460 * -0.5 / 0.067806).
    let Standing { leader, gaps } = standing(&scores(&["1100", "0000"]), &NOISY).unwrap();
    assert_eq!((leader, gaps[0]), (0, None));
    let gap = gaps[1].unwrap();
    assert_eq!((gap.n, gap.mean), (4, -0.5));
    assert!((gap.probability - 0.276_483).abs() < 1e-5, "{}", gap.probability);
}

#[test]
fn only_candidates_far_behind_leave_the_race() {
    let found = standing(&scores(&["111111111111", "110111111111", "000000000000"]), &NOISY).unwrap();
    assert_eq!(found.remaining(0.2), [0, 1]);
    assert_eq!(found.remaining(0.0), [0, 1, 2]);
    // Once all rows are measured and scores repeat exactly, only equals stay.
    let exact = Prior { all_rows: Some(4), ..NOISY };
    assert_eq!(standing(&scores(&["0111", "1110", "0110"]), &exact).unwrap().remaining(0.2), [0, 1]);
}

#[test]
fn a_race_never_loses_its_leader_and_does_not_depend_on_the_order_of_rows() {
    for case in 0..500 {
        let mut random = random_stream(17, "race", case);
        let (candidates, rows) = (2 + random.index(6), 1 + random.index(20));
        let entered: Vec<Vec<Option<f64>>> = (0..candidates)
            .map(|_| (0..rows).map(|_| (random.unit() < 0.9).then(|| random.below(5) as f64 / 4.0)).collect())
            .collect();
        let Some(found) = standing(&entered, &NOISY) else { continue };
        let drop = random.unit() / 2.0;
        let remaining = found.remaining(drop);
        assert!(remaining.contains(&found.leader), "case {case}");
        assert!(found.remaining(drop / 2.0).len() >= remaining.len(), "case {case}");
        let complete = entered.iter().flatten().all(Option::is_some);
        assert!(!complete || found.gaps.iter().flatten().all(|gap| gap.probability <= 0.5), "case {case}");

        let mut order: Vec<usize> = (0..rows).collect();
        random.shuffle(&mut order);
        let shuffled: Vec<Vec<Option<f64>>> =
            entered.iter().map(|own| order.iter().map(|row| own[*row]).collect()).collect();
        let again = standing(&shuffled, &NOISY).unwrap();
        assert_eq!(again.leader, found.leader, "case {case}");
        for (one, other) in found.gaps.iter().zip(&again.gaps) {
            let distance = one.zip(*other).map_or(0.0, |(one, other)| (one.probability - other.probability).abs());
            assert!(one.is_some() == other.is_some() && distance < 1e-12, "case {case}");
        }
    }
}

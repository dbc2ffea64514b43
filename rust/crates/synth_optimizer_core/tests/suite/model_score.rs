//! Tests of scores and gains with hand-computed values, and of the t quantile with printed tables.
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};
use synth_optimizer_core::model::score::{Gain, MAX_REWARD, Score};

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
}

#[test]
fn without_rows_there_is_no_score() {
    assert_eq!(Score::of([]), None);
    assert_eq!(Gain::of([]), None);
}

#[test]
fn one_row_has_a_mean_and_no_error() {
    let score = Score::of([0.25]).unwrap();
    assert_eq!(score, Score { mean: 0.25, n: 1, standard_error: None, low: None, high: None });
    // One success: Wilson gives (1 + z2/2)/(1 + z2) -+ (z2/2)/(1 + z2), that is 1/(1 + z2) to 1.
    let binary = Score::of([1.0]).unwrap();
    assert_eq!((binary.n, binary.standard_error), (1, None));
    close(binary.low.unwrap(), 0.206_549_314_37);
    close(binary.high.unwrap(), 1.0);
    let gain = Gain::of([(0.5, 0.25)]).unwrap();
    assert_eq!(gain, Gain { difference: 0.25, n: 1, low: None, high: None, wins: 1, losses: 0, ties: 0 });
}

#[test]
fn two_rows() {
    // Mean 0.5, deviation sqrt(0.02), error sqrt(0.02 / 2) = 0.1, and t(1) = 12.7062047.
    let score = Score::of([0.4, 0.6]).unwrap();
    close(score.mean, 0.5);
    close(score.standard_error.unwrap(), 0.1);
    close(score.low.unwrap(), 0.5 - 1.270_620_473_6);
    close(score.high.unwrap(), 0.5 + 1.270_620_473_6);
}

#[test]
fn three_rows() {
    // Mean 0.5, squares 0.09 + 0 + 0.09, error sqrt(0.18 / 2 / 3) = 0.1732051, and t(2) = 4.3026527.
    let score = Score::of([0.2, 0.5, 0.8]).unwrap();
    close(score.mean, 0.5);
    close(score.standard_error.unwrap(), 0.173_205_081);
    close(score.low.unwrap(), 0.5 - 0.745_241_313);
    close(score.high.unwrap(), 0.5 + 0.745_241_313);
}

#[test]
fn ten_rows() {
    // 0.1 to 1.0: mean 0.55, squares 0.825, error sqrt(0.825 / 9 / 10) = 0.0957427, and t(9) = 2.2621572.
    let score = Score::of((1..=10).map(|tenths| f64::from(tenths) / 10.0)).unwrap();
    assert_eq!(score.n, 10);
    close(score.mean, 0.55);
    close(score.standard_error.unwrap(), 0.095_742_711);
    assert!((score.low.unwrap() - 0.333_415).abs() < 1e-4);
    assert!((score.high.unwrap() - 0.766_585).abs() < 1e-4);
}

#[test]
fn binary_rows_have_the_interval_of_wilson() {
    // Successes, rows, and the printed interval.
    let cases = [
        (0, 10, 0.0, 0.277_533),
        (1, 10, 0.017_876, 0.404_150),
        (5, 10, 0.236_593, 0.763_407),
        (8, 10, 0.490_162, 0.943_318),
        (10, 10, 0.722_467, 1.0),
        (1, 2, 0.094_531, 0.905_469),
        (50, 100, 0.403_832, 0.596_168),
    ];
    for (successes, rows, low, high) in cases {
        let score = Score::of((0..rows).map(|row| if row < successes { 1.0 } else { 0.0 })).unwrap();
        assert_eq!(score.mean, f64::from(successes) / f64::from(rows));
        close(score.low.unwrap(), low);
        close(score.high.unwrap(), high);
    }
    // The standard error is that of the mean, as for other scores: sqrt(2.5 / 9 / 10).
    let half = Score::of([0.0, 1.0].repeat(5)).unwrap();
    close(half.standard_error.unwrap(), 0.166_666_667);
    // One value between 0 and 1 makes the scores graded instead of binary.
    let graded = Score::of([0.0, 1.0, 0.5]).unwrap();
    close(graded.high.unwrap() - 0.5, 4.302_652_73 * graded.standard_error.unwrap());
}

/// The 97.5 % points of printed tables, for 1 to 30 degrees of freedom.
const T_TABLE: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

#[test]
fn half_widths_equal_tabulated_t_times_the_standard_error() {
    let table = (1u32..).zip(T_TABLE).chain([(60, 2.000), (120, 1.980), (100_000, 1.960)]);
    for (degrees, expected) in table {
        let score = Score::of((0..=degrees).map(|row| 0.25 + f64::from(row % 3) / 4.0)).unwrap();
        assert_eq!(score.n, degrees + 1);
        let t = (score.high.unwrap() - score.mean) / score.standard_error.unwrap();
        assert_eq!(format!("{t:.3}"), format!("{expected:.3}"), "for {degrees} degrees of freedom");
        let mirrored = (score.mean - score.low.unwrap()) / score.standard_error.unwrap();
        assert!((mirrored - t).abs() < 1e-9);
    }
}

#[test]
fn gain_counts_rows_and_pairs_them() {
    // Differences 0.5, -0.25, 0, 0.25: mean 0.125, squares 0.3125, error sqrt(0.3125 / 3 / 4), and t(3) = 3.1824463.
    let gain = Gain::of([(1.0, 0.5), (0.25, 0.5), (0.75, 0.75), (0.5, 0.25)]).unwrap();
    assert_eq!((gain.n, gain.wins, gain.losses, gain.ties), (4, 2, 1, 1));
    close(gain.difference, 0.125);
    close(gain.low.unwrap(), 0.125 - 0.513_565_064);
    close(gain.high.unwrap(), 0.125 + 0.513_565_064);
    // A constant difference has no variance, even if the rows' scores differ much.
    let constant = Gain::of([(1.0, 0.75), (0.5, 0.25), (0.25, 0.0)]).unwrap();
    assert_eq!((constant.low, constant.high), (Some(0.25), Some(0.25)));
    assert_eq!((constant.wins, constant.losses, constant.ties), (3, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn intervals_contain_the_mean_and_are_symmetric(pairs in vec((-4..4i32, -4..4i32), 2..12)) {
        let values = |side: fn(&(i32, i32)) -> i32| pairs.iter().map(move |pair| f64::from(side(pair)) / 4.0);
        let score = Score::of(values(|pair| pair.0)).unwrap();
        prop_assert!(score.low.unwrap() <= score.mean && score.mean <= score.high.unwrap());
        let forth = Gain::of(values(|pair| pair.0).zip(values(|pair| pair.1))).unwrap();
        let back = Gain::of(values(|pair| pair.1).zip(values(|pair| pair.0))).unwrap();
        prop_assert_eq!(forth.difference, -back.difference);
        prop_assert_eq!((forth.wins, forth.losses, forth.ties), (back.losses, back.wins, back.ties));
        prop_assert_eq!(forth.wins + forth.losses + forth.ties, forth.n);
        prop_assert_eq!(forth.low.unwrap(), -back.high.unwrap());
    }
}

#[test]
fn the_largest_scores_have_finite_intervals() {
    let values = (0..1_000_000).map(|row| if row % 2 == 0 { MAX_REWARD } else { -MAX_REWARD });
    let score = Score::of(values.clone()).unwrap();
    let Score { mean, standard_error, low, high, .. } = score;
    assert!([Some(mean), standard_error, low, high].into_iter().all(|value| value.is_some_and(f64::is_finite)));
    let gain = Gain::of(values.map(|value| (value, -value))).unwrap();
    let Gain { difference, low, high, .. } = gain;
    assert!([Some(difference), low, high].into_iter().all(|value| value.is_some_and(f64::is_finite)));
    let pair = Score::of([MAX_REWARD, -MAX_REWARD]).unwrap();
    assert!(pair.high.is_some_and(f64::is_finite), "the t value of two rows is large");
}

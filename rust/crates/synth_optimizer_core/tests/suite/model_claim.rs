//! Tests of the claim about a result: reference values of scipy 1.17, the decision, its sentence, and a simulation of coverage
//! and false claims.

use synth_optimizer_core::model::claim::{
    Claim, ClaimRules, ClaimVerdict, HeldoutEvidence, MeasuredRows, smallest_gain, smallest_gain_sentence,
};
use synth_optimizer_core::model::event_fields::Direction;
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::random::{RandomStream, random_stream};

const RULES: ClaimRules = ClaimRules { seed: 7, failure_tolerance: 0.25, returns_unproven: false };

fn evidence(pairs: Vec<(f64, f64)>) -> HeldoutEvidence {
    let measured = MeasuredRows { scored: pairs.len(), failed: 0 };
    HeldoutEvidence {
        initial: CandidateId::new("cand_seed"),
        preferred: CandidateId::new("cand_new"),
        pairs,
        direction: Direction::Maximize,
        sides: (measured, measured),
        tried: 9,
        candidates: 2,
        variance: 0.0,
    }
}

/// Returns rows with these differences. One row without a difference keeps the scores from being 0 and 1 only.
fn graded(differences: &[f64]) -> HeldoutEvidence {
    evidence(differences.iter().map(|difference| (*difference, 0.0)).chain([(0.5, 0.5)]).collect())
}

fn binary(wins: usize, losses: usize, ties: usize) -> HeldoutEvidence {
    let rows = |pair, count| std::iter::repeat_n(pair, count);
    evidence(rows((1.0, 0.0), wins).chain(rows((0.0, 1.0), losses)).chain(rows((1.0, 1.0), ties)).collect())
}

#[track_caller]
fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
}

#[test]
fn the_test_of_binary_scores_equals_binomtest() {
    let cases = [
        (12, 0, 0.000_488_281_25),
        (6, 0, 0.031_25),
        (5, 0, 0.062_5),
        (8, 2, 0.109_375),
        (2, 8, 0.109_375),
        (40, 21, 0.020_414_713_799_634_9),
        (700, 610, 0.013_902_723_449_447_724),
        (1, 1, 1.0),
        (0, 0, 1.0),
    ];
    for (wins, losses, expected) in cases {
        close(binary(wins, losses, 3).p_value(0), expected);
    }
    // 0.5 to the power of 1999 is less than any number of this type.
    assert_eq!(binary(2_000, 0, 0).p_value(0), 0.0);
    close(binary(3_000, 3_000, 0).p_value(0), 1.0);
}

#[test]
fn the_test_of_graded_scores_equals_permutation_test() {
    let cases: [(&[f64], f64); 4] = [
        (&[0.5, 0.25, -0.1, 0.3, 0.4], 0.125),
        (&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 0.015_625),
        (&[1.5, -2.25, 3.0, 0.5, -0.75, 4.0, 2.0, 1.0, -1.25, 0.3], 0.222_656_25),
        (&[0.9, -0.8, 0.7, 0.6, -0.5, 0.4, 0.3, 0.2, 0.1, 0.05, -0.15, 0.25, 0.35, 0.45], 0.124_267_578_125),
    ];
    for (differences, expected) in cases {
        close(graded(differences).p_value(0), expected);
    }
}

#[test]
fn many_graded_differences_are_flipped_at_random_from_the_seed() {
    let differences =
        [0.11, 0.18, 0.11, -0.14, 0.2, 0.13, -0.02, 0.15, 0.11, 0.1, 0.06, 0.14, -0.05, 0.04, -0.01, 0.15, 0.07, 0.02];
    // The probability over all combinations is 0.00356; 9,999 of them find it within three standard errors.
    let found = graded(&differences).p_value(3);
    assert!((found - 0.003_562_927).abs() < 0.001_8, "{found}");
    let mut reversed = differences;
    reversed.reverse();
    assert_eq!(found, graded(&reversed).p_value(3), "the order of the rows does not matter");
    let other_seeds = (0..20).any(|seed| graded(&differences).p_value(seed) != found);
    assert!(other_seeds, "the flips depend on the seed");
}

#[test]
fn the_interval_adds_two_rows() {
    let gain = binary(12, 0, 12).gain().unwrap();
    close(gain.estimate, 0.461_538_461_538_461_56);
    close(gain.low, 0.255_619_227_379_012_94);
    close(gain.high, 0.667_457_695_697_910_1);
    assert_eq!(gain.rows, 24);
    let gain = evidence([0.5, 0.25, -0.1, 0.3, 0.4].map(|gain| (0.5 + gain, 0.5)).to_vec()).gain().unwrap();
    close(gain.estimate, 0.192_857_142_857_142_87);
    close(gain.low, -0.127_879_509_242_363_83);
    close(gain.high, 0.513_593_794_956_649_6);
    // Scores from 0 to 14 have the range 14.
    let wide = vec![(14.0, 4.0), (0.0, 4.0), (8.0, 2.0), (3.0, 3.0)];
    let gain = evidence(wide.clone()).gain().unwrap();
    close(gain.estimate, 2.0);
    close(gain.low, -3.88);
    close(gain.high, 7.88);
    let lower_is_better = HeldoutEvidence { direction: Direction::Minimize, ..evidence(wide) }.gain().unwrap();
    close(lower_is_better.estimate, -2.0);
}

#[test]
fn a_claim_needs_a_gain_that_the_test_confirms() {
    let claim = Claim::of(&binary(12, 0, 12), &RULES);
    assert!(claim.is_better());
    assert_eq!(claim.sentence, "better than the initial candidate by 0.4615 [0.2556, 0.6675], p = 0.0005");
    let certain = Claim::of(&binary(60, 0, 12), &RULES);
    assert!(certain.sentence.ends_with("p < 0.0001"), "{}", certain.sentence);

    let unclear = Claim::of(&binary(5, 0, 12), &RULES);
    assert_eq!((unclear.verdict, unclear.p_value), (ClaimVerdict::NoEvidence, Some(0.0625)));
    assert_eq!(
        unclear.sentence,
        "no evidence of improvement on the held-out rows: +0.2632 [0.0399, 0.4864]; the candidate that the search preferred \
         is cand_new"
    );
    let worse = Claim::of(&binary(0, 12, 12), &RULES);
    assert_eq!(worse.verdict, ClaimVerdict::NoEvidence, "a candidate that is worse is no improvement");
    let returned = Claim::of(&binary(5, 0, 12), &ClaimRules { returns_unproven: true, ..RULES });
    assert!(!returned.sentence.contains("cand_new"), "{}", returned.sentence);
}

#[test]
fn a_lower_score_is_better_if_the_objective_is_minimized() {
    let found = HeldoutEvidence { direction: Direction::Minimize, ..binary(0, 12, 12) };
    assert!(Claim::of(&found, &RULES).is_better());
    let found = HeldoutEvidence { direction: Direction::Minimize, ..binary(12, 0, 12) };
    assert!(!Claim::of(&found, &RULES).is_better());
}

#[test]
fn nothing_is_claimed_if_one_side_failed_more_often() {
    let sides = (MeasuredRows { scored: 24, failed: 16 }, MeasuredRows { scored: 36, failed: 4 });
    let found = HeldoutEvidence { sides, ..binary(12, 0, 12) };
    let claim = Claim::of(&found, &RULES);
    assert_eq!(claim.verdict, ClaimVerdict::NoEvidence);
    let why = "[0.2556, 0.6675]; 16 of 40 of its rows failed, and 4 of 40 of the initial candidate;";
    assert!(claim.sentence.contains(why), "{}", claim.sentence);
    assert!(Claim::of(&found, &ClaimRules { failure_tolerance: 0.31, ..RULES }).is_better(), "within the tolerance");
}

#[test]
fn nothing_is_claimed_if_the_held_out_rows_chose_the_candidate() {
    let claim = Claim::of(&HeldoutEvidence { candidates: 5, ..binary(12, 0, 12) }, &RULES);
    assert_eq!(claim.verdict, ClaimVerdict::NoEvidence);
    assert!(claim.sentence.contains("the held-out rows chose among 5 candidates"), "{}", claim.sentence);
}

#[test]
fn without_a_candidate_or_rows_there_is_no_gain() {
    let same = HeldoutEvidence { preferred: CandidateId::new("cand_seed"), ..binary(0, 0, 12) };
    let claim = Claim::of(&same, &RULES);
    assert_eq!((claim.verdict, claim.gain, claim.p_value), (ClaimVerdict::Unchanged, None, None));
    assert_eq!(claim.sentence, "no candidate was better than the initial one");
    assert_eq!(Claim::of(&HeldoutEvidence { tried: 1, ..same }, &RULES).sentence, "no other candidate was tried");
    let claim = Claim::of(&evidence(Vec::new()), &RULES);
    assert_eq!((claim.verdict, claim.gain), (ClaimVerdict::NoEvidence, None));
    assert_eq!(
        claim.sentence,
        "no evidence of improvement: no held-out row has scores of both; the candidate that the search preferred is cand_new"
    );
}

#[test]
fn constant_scores_and_one_row_claim_nothing() {
    for pairs in [vec![(5.0, 5.0); 30], vec![(1.0, 0.0)], vec![(3.0, -2.0)], vec![(0.0, 0.0); 2]] {
        let claim = Claim::of(&evidence(pairs), &RULES);
        assert_eq!(claim.verdict, ClaimVerdict::NoEvidence);
        let gain = claim.gain.unwrap();
        assert!(gain.low <= gain.estimate && gain.estimate <= gain.high && claim.p_value == Some(1.0), "{claim:?}");
    }
}

#[test]
fn the_smallest_gain_falls_with_the_rows_and_rises_with_the_noise() {
    for (rows, variance, expected) in [
        (19, 0.0, 0.458_238_948_625_448_34),
        (50, 0.0, 0.196_873_350_041_299_4),
        (50, 0.05, 0.250_872_416_586_877_4),
        (100, 0.0, 0.113_179_442_713_982_36),
        (200, 0.0, 0.068_077_457_368_022_1),
        (500, 0.05, 0.057_009_154_793_385_13),
    ] {
        close(smallest_gain(rows, variance).unwrap(), expected);
    }
    assert_eq!([0, 1, 8].map(|rows| smallest_gain(rows, 0.0)), [None; 3]);
    assert_eq!(smallest_gain_sentence(100, 0.0), "with 100 held-out rows a gain above 0.11 can be told from luck");
    assert_eq!(smallest_gain_sentence(1, 0.0), "with 1 held-out row no gain can be told from luck");
    // In units of the range of scores.
    let wide = Claim::of(&evidence([vec![(10.0, 0.0); 25], vec![(0.0, 0.0); 25]].concat()), &RULES);
    close(wide.smallest_gain.unwrap(), 10.0 * smallest_gain(50, 0.0).unwrap());
}

/// The draws of one cell of the simulation.
const DRAWS: u32 = 2_000;
const ROWS: [usize; 4] = [20, 50, 100, 200];

/// Returns a row on which the candidate wins and loses with these probabilities.
fn binary_row(random: &mut RandomStream, wins: f64, losses: f64) -> (f64, f64) {
    match random.unit() {
        draw if draw < wins => (1.0, 0.0),
        draw if draw < wins + losses => (0.0, 1.0),
        draw if draw < (1.0 + wins + losses) / 2.0 => (1.0, 1.0),
        _ => (0.0, 0.0),
    }
}

/// Returns a row with graded scores, on which the candidate is better by 1/6 on average.
fn graded_row(random: &mut RandomStream) -> (f64, f64) {
    (random.unit().max(random.unit()), random.unit())
}

fn drawn(rows: usize, draw: impl FnMut() -> (f64, f64)) -> HeldoutEvidence {
    evidence(std::iter::repeat_with(draw).take(rows).collect())
}

/// Returns the share of intervals that contain the true gain.
fn coverage(label: &str, rows: usize, gain: f64, mut row: impl FnMut(&mut RandomStream) -> (f64, f64)) -> f64 {
    let mut random = random_stream(17, label, rows as u64);
    let covers = |_: &u32| {
        let found = drawn(rows, || row(&mut random)).gain().unwrap();
        found.low <= gain && gain <= found.high
    };
    (0..DRAWS).filter(covers).count() as f64 / f64::from(DRAWS)
}

#[test]
fn the_interval_covers_the_true_gain() {
    for rows in ROWS {
        for (wins, losses) in [(0.15, 0.15), (0.3, 0.1), (0.2, 0.05), (0.5, 0.1)] {
            let label = format!("binary {wins} {losses}");
            let share = coverage(&label, rows, wins - losses, |random| binary_row(random, wins, losses));
            assert!((0.93..=0.99).contains(&share), "{label} with {rows} rows: {share}");
        }
        let share = coverage("graded", rows, 1.0 / 6.0, graded_row);
        assert!((0.93..=0.99).contains(&share), "graded with {rows} rows: {share}");
    }
}

/// Returns the share of draws in which a candidate that is not better is claimed to be.
fn false_claims(label: &str, draws: u32, rows: usize, mut row: impl FnMut(&mut RandomStream) -> (f64, f64)) -> f64 {
    let mut random = random_stream(23, label, rows as u64);
    let claims = |_: &u32| Claim::of(&drawn(rows, || row(&mut random)), &RULES).is_better();
    (0..draws).filter(claims).count() as f64 / f64::from(draws)
}

#[test]
fn equal_candidates_are_rarely_claimed_to_be_better() {
    for rows in ROWS {
        for discordance in [0.05, 0.15, 0.3] {
            let label = format!("binary {discordance}");
            let share = false_claims(&label, DRAWS, rows, |random| binary_row(random, discordance, discordance));
            assert!(share <= 0.03, "{label} with {rows} rows: {share}");
        }
    }
    let graded = |random: &mut RandomStream| (random.unit(), random.unit());
    for (draws, rows) in [(DRAWS, 10), (200, 50)] {
        let share = false_claims("graded", draws, rows, graded);
        assert!(share <= 0.03, "graded with {rows} rows: {share}");
    }
}

#[test]
fn a_clear_gain_is_claimed_in_most_runs() {
    for rows in [50, 100, 200] {
        let gain = smallest_gain(rows, 0.0).unwrap();
        let mut random = random_stream(29, "power", rows);
        let draw = |_: &u32| {
            let found = drawn(rows as usize, || binary_row(&mut random, gain + 0.025, 0.025));
            Claim::of(&found, &RULES).is_better()
        };
        let share = (0..DRAWS).filter(draw).count() as f64 / f64::from(DRAWS);
        assert!((0.7..=0.95).contains(&share), "a gain of {gain} is found in {share} of the runs with {rows} rows");
    }
}

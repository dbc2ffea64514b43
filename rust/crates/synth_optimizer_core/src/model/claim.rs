//! What the held-out rows show about the result of a run: the gain with its interval, an exact test, and one sentence.
//!
//! The search chooses by train rows, so that gains on them are too high. The claim uses held-out rows only: the initial
//! candidate and the one that the search preferred, on the same rows, tested once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::event::counted;
use super::event_fields::Direction;
use super::ids::CandidateId;
use crate::random::random_stream;
use crate::string_enum;

/// The largest p-value with which a gain is claimed.
const MAX_P_VALUE: f64 = 0.05;
/// The sign-flip test tries every combination of signs up to this many differences, and otherwise this many random ones.
const MAX_EXACT_DIFFERENCES: usize = 14;
const RANDOM_FLIPS: u32 = 9_999;
/// Flipped sums that differ from the measured one by less than this share of its terms are equal to it.
const SAME_SUM: f64 = 1e-12;
/// The square of the sum of the 97.5 % and the 80 % point of the normal distribution: a test at 5 % finds a gain of this
/// many squared standard errors in four of five runs.
const POWER: f64 = 7.85;
/// The share of rows on which one candidate is better and the other one is better elsewhere, beyond the gain itself.
const DISCORDANCE: f64 = 0.05;

string_enum! {
    /// What the held-out rows show.
    ClaimVerdict {
        /// The candidate is better than the initial one.
        Better = "better",
        /// The rows do not show that the candidate is better than the initial one.
        NoEvidence = "no_evidence",
        /// The search found no candidate that it preferred to the initial one.
        Unchanged = "unchanged",
    }
}

/// A paired gain on held-out rows, with a 95 % interval that keeps its coverage with few rows.
///
/// Two added rows pull the gain a little towards 0 and keep the interval from having no width: half a row is won and half a
/// row is lost by the whole range of scores, and one row is a tie.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedGain {
    /// The estimated gain, positive if the candidate is better.
    pub estimate: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Held-out rows that both candidates have scores for.
    pub rows: u32,
}

/// What a run may say about its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Claim {
    /// What the held-out rows show.
    pub verdict: ClaimVerdict,
    /// The candidate that the search preferred.
    pub candidate_id: CandidateId,
    /// Its gain over the initial candidate. Absent if it is the initial candidate, or if no row has scores of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<ClaimedGain>,
    /// The probability of a difference at least this large if both candidates were equal, by an exact two-sided test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    /// The smallest gain that this many rows show in four of five runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smallest_gain: Option<f64>,
    /// The result in words.
    pub sentence: String,
}

/// The scores that a claim rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldoutEvidence {
    pub initial: CandidateId,
    /// The candidate that the search preferred.
    pub preferred: CandidateId,
    /// Scores of the preferred and the initial candidate on each row that has both.
    pub pairs: Vec<(f64, f64)>,
    pub direction: Direction,
    /// Rows of the preferred and of the initial candidate.
    pub sides: (MeasuredRows, MeasuredRows),
    /// Number of candidates of the run, with the initial one.
    pub tried: usize,
    /// Number of candidates that were evaluated on held-out rows.
    pub candidates: usize,
    /// Variance of a score between rollouts of the same candidate on the same row, as far as it is known.
    pub variance: f64,
}

/// The held-out rows of one candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeasuredRows {
    pub scored: usize,
    pub failed: usize,
}

/// The settings that a claim depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClaimRules {
    /// `run.seed`
    pub seed: u64,
    /// `gepa.rollout_failure_rate_tolerance`: no claim if the shares of failed rows of both candidates differ by more.
    pub failure_tolerance: f64,
    /// Whether the preferred candidate is returned without a claim. Otherwise, the sentence names it.
    pub returns_unproven: bool,
}

impl Claim {
    /// Decides what may be claimed.
    pub fn of(evidence: &HeldoutEvidence, rules: &ClaimRules) -> Self {
        let claim = |verdict, sentence| Self {
            verdict,
            candidate_id: evidence.preferred.clone(),
            gain: None,
            p_value: None,
            smallest_gain: None,
            sentence,
        };
        if evidence.preferred == evidence.initial {
            let sentence = match evidence.tried {
                0 | 1 => "no other candidate was tried",
                _ => "no candidate was better than the initial one",
            };
            return claim(ClaimVerdict::Unchanged, sentence.to_owned());
        }
        let preferred = if rules.returns_unproven {
            String::new()
        } else {
            format!("; the candidate that the search preferred is {}", evidence.preferred)
        };
        let Some(gain) = evidence.gain() else {
            let sentence = format!("no evidence of improvement: no held-out row has scores of both{preferred}");
            return claim(ClaimVerdict::NoEvidence, sentence);
        };
        let p_value = evidence.p_value(rules.seed);
        let range = evidence.range();
        let smallest = smallest_gain(u64::from(gain.rows), evidence.variance / (range * range).max(f64::MIN_POSITIVE));
        let ClaimedGain { estimate, low, high, .. } = gain;
        let obstacle = evidence.obstacle(rules.failure_tolerance);
        let (verdict, sentence) = if obstacle.is_none() && p_value <= MAX_P_VALUE && estimate > 0.0 {
            let p_value = if p_value < 1e-4 { "p < 0.0001".to_owned() } else { format!("p = {p_value:.4}") };
            let sentence =
                format!("better than the initial candidate by {estimate:.4} [{low:.4}, {high:.4}], {p_value}");
            (ClaimVerdict::Better, sentence)
        } else {
            let why = obstacle.map_or(String::new(), |obstacle| format!("; {obstacle}"));
            let found = format!("{estimate:+.4} [{low:.4}, {high:.4}]{why}{preferred}");
            (ClaimVerdict::NoEvidence, format!("no evidence of improvement on the held-out rows: {found}"))
        };
        Self {
            gain: Some(gain),
            p_value: Some(p_value),
            smallest_gain: smallest.map(|share| share * range),
            ..claim(verdict, sentence)
        }
    }

    /// Returns whether the candidate is better than the initial one.
    pub fn is_better(&self) -> bool {
        self.verdict == ClaimVerdict::Better
    }
}

impl HeldoutEvidence {
    /// Returns the differences by row, positive if the preferred candidate is better.
    fn differences(&self) -> impl Iterator<Item = f64> + '_ {
        let sign = if self.direction == Direction::Maximize { 1.0 } else { -1.0 };
        self.pairs.iter().map(move |(preferred, initial)| sign * (preferred - initial))
    }

    /// Returns the range of scores: 1 if all of them are from 0 to 1.
    fn range(&self) -> f64 {
        let scores = || self.pairs.iter().flat_map(|(preferred, initial)| [*preferred, *initial]);
        if scores().all(|score| (0.0..=1.0).contains(&score)) {
            return 1.0;
        }
        scores().fold(f64::NEG_INFINITY, f64::max) - scores().fold(f64::INFINITY, f64::min)
    }

    /// Returns the gain with its interval; `None` without pairs.
    pub fn gain(&self) -> Option<ClaimedGain> {
        if self.pairs.is_empty() {
            return None;
        }
        let (sum, squares) = self.differences().fold((0.0, 0.0), |(sum, squares), d| (sum + d, squares + d * d));
        let rows = self.pairs.len() as f64 + 2.0;
        let (estimate, range) = (sum / rows, self.range());
        let variance = ((squares + range * range) / rows - estimate * estimate).max(0.0);
        let half = 1.96 * (variance / rows).sqrt();
        let rows = self.pairs.len() as u32;
        Some(ClaimedGain { estimate, low: estimate - half, high: estimate + half, rows })
    }

    /// Returns the probability of a difference at least this large, in either direction, if both candidates were equal.
    pub fn p_value(&self, seed: u64) -> f64 {
        let is_binary = |score: &f64| *score == 0.0 || *score == 1.0;
        if self.pairs.iter().all(|(preferred, initial)| is_binary(preferred) && is_binary(initial)) {
            let count = |keep: fn(f64) -> bool| self.differences().filter(|d| keep(*d)).count() as u64;
            return exact_sign_test(count(|d| d > 0.0), count(|d| d < 0.0));
        }
        let mut differences: Vec<f64> = self.differences().filter(|difference| *difference != 0.0).collect();
        // The order of the rows does not matter.
        differences.sort_by(f64::total_cmp);
        sign_flip_test(&differences, seed)
    }

    /// Returns why nothing can be claimed, however large the gain is.
    fn obstacle(&self, failure_tolerance: f64) -> Option<String> {
        if self.candidates > 2 {
            return Some(format!("the held-out rows chose among {} candidates", self.candidates));
        }
        let share = |rows: MeasuredRows| rows.failed as f64 / (rows.scored + rows.failed).max(1) as f64;
        let (preferred, initial) = self.sides;
        ((share(preferred) - share(initial)).abs() > failure_tolerance).then(|| {
            let failed = |rows: MeasuredRows| format!("{} of {}", rows.failed, rows.scored + rows.failed);
            format!("{} of its rows failed, and {} of the initial candidate", failed(preferred), failed(initial))
        })
    }
}

/// Returns the two-sided probability of McNemar's exact test: wins and losses are equally likely.
fn exact_sign_test(wins: u64, losses: u64) -> f64 {
    const STEP: u64 = 64;
    let scale = (1u128 << STEP) as f64;
    let (all, fewer) = (wins + losses, wins.min(losses));
    let (mut term, mut sum, mut halvings) = (1.0, 1.0, all);
    for count in 1..=fewer {
        term *= (all - count + 1) as f64 / count as f64;
        sum += term;
        // Halving on the way keeps large numbers of rows finite.
        if sum > scale && halvings >= STEP {
            (term, sum, halvings) = (term / scale, sum / scale, halvings - STEP);
        }
    }
    for _ in 0..halvings / STEP {
        sum /= scale;
    }
    let rest = (1u64 << (halvings % STEP)) as f64;
    (2.0 * (sum / rest)).min(1.0)
}

/// Returns the two-sided probability of the sign-flip test on differences other than 0: every sign is equally likely.
fn sign_flip_test(differences: &[f64], seed: u64) -> f64 {
    let total: f64 = differences.iter().sum();
    let all: f64 = differences.iter().map(|difference| difference.abs()).sum();
    let is_as_large = |flipped: f64| (total - 2.0 * flipped).abs() >= total.abs() - SAME_SUM * all;
    let sum_of = |signs: u64, part: &[f64]| -> f64 {
        let is_flipped = |place: usize| signs >> place & 1 == 1;
        part.iter().enumerate().filter(|(place, _)| is_flipped(*place)).map(|(_, difference)| difference).sum()
    };
    if differences.len() <= MAX_EXACT_DIFFERENCES {
        let combinations = 1u64 << differences.len();
        let as_large = (0..combinations).filter(|signs| is_as_large(sum_of(*signs, differences))).count();
        return as_large as f64 / combinations as f64;
    }
    let mut random = random_stream(seed, "claim", 0);
    let mut flipped = || differences.chunks(64).map(|part| sum_of(random.bits(), part)).sum::<f64>();
    let as_large = (0..RANDOM_FLIPS).filter(|_| is_as_large(flipped())).count();
    // The measured signs are one of the combinations.
    (as_large + 1) as f64 / f64::from(RANDOM_FLIPS + 1)
}

/// Returns the smallest gain in scores from 0 to 1 that this many held-out rows show in four of five runs; `None` if they
/// show none. `variance` is that of a score between rollouts of the same candidate on the same row.
pub fn smallest_gain(heldout_rows: u64, variance: f64) -> Option<f64> {
    if heldout_rows == 0 {
        return None;
    }
    let unit = POWER / heldout_rows as f64;
    let gain = (unit + (unit * unit + 4.0 * unit * (2.0 * variance + DISCORDANCE)).sqrt()) / 2.0;
    Some(gain).filter(|gain| *gain <= 1.0)
}

/// Says how large a gain these held-out rows can show.
pub fn smallest_gain_sentence(heldout_rows: u64, variance: f64) -> String {
    let rows = counted(heldout_rows as usize, "held-out row");
    match smallest_gain(heldout_rows, variance) {
        Some(gain) => format!("with {rows} a gain above {gain:.2} can be told from luck"),
        None => format!("with {rows} no gain can be told from luck"),
    }
}

//! The statistics of a race: several candidates on the same rows, and which of them may still be the best.

use synth_gepa::{Differences, Prior, probability_of_gain};

/// A candidate of a race compared with the leader, on the rows that both have scores for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gap {
    /// Number of rows.
    pub n: u32,
    /// Mean score of the candidate minus that of the leader. It may be above 0 on rows that another candidate has no score for.
    pub mean: f64,
    /// Probability that the candidate is better than the leader.
    pub probability: f64,
}

/// What a race says after some of its rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Standing {
    /// The place of the candidate with the highest mean on the rows that all candidates have scores for; of equals, the first.
    pub leader: usize,
    /// One entry for each candidate; `None` for the leader, and for a candidate that shares no row with it.
    pub gaps: Vec<Option<Gap>>,
}

impl Standing {
    /// Returns the places of the candidates that stay in the race: the leader, and all that are better than the leader with a
    /// probability of at least `drop`.
    pub(crate) fn remaining(&self, drop: f64) -> Vec<usize> {
        let stays = |place: &usize| self.gaps[*place].is_none_or(|gap| gap.probability >= drop);
        (0..self.gaps.len()).filter(stays).collect()
    }
}

/// Compares the candidates of a race. Each has one entry per row, in the same order: its score as a share of the range of
/// scores, or `None` if it has none. Returns `None` if no row has scores of all candidates.
pub(crate) fn standing(scores: &[Vec<Option<f64>>], prior: &Prior) -> Option<Standing> {
    let rows = scores.iter().map(Vec::len).min()?;
    let is_shared = |row: &usize| scores.iter().all(|own| own[*row].is_some());
    let shared: Vec<usize> = (0..rows).filter(is_shared).collect();
    let sum = |own: &Vec<Option<f64>>| shared.iter().filter_map(|row| own[*row]).sum::<f64>();
    let sums: Vec<f64> = scores.iter().map(sum).collect();
    let leader = (0..sums.len()).rev().max_by(|one, other| sums[*one].total_cmp(&sums[*other]))?;
    let gap = |(place, own): (usize, &Vec<Option<f64>>)| {
        let pairs = own.iter().zip(&scores[leader]);
        let differences: Vec<f64> = pairs.filter_map(|(own, best)| Some((*own)? - (*best)?)).collect();
        let found = Differences::of(&differences).filter(|_| place != leader)?;
        Some(Gap { n: found.n, mean: found.mean, probability: probability_of_gain(&found, prior) })
    };
    let gaps = scores.iter().enumerate().map(gap).collect();
    (!shared.is_empty()).then_some(Standing { leader, gaps })
}

#[cfg(test)]
#[path = "race_tests.rs"]
mod tests;

//! The data of a score chart, and the choice of the candidates that it shows.

use synth_optimizer_core::model::event_fields::{CheckVerdict, Direction};
use synth_optimizer_core::model::score::Score;

/// The data of a score chart.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartData {
    pub title: String,
    /// The name of the objective.
    pub objective: String,
    pub direction: Direction,
    pub axis: ChartAxis,
    /// In order of registration; the first one is the initial candidate.
    pub candidates: Vec<ChartPoint>,
    /// The checks of a search in sprints.
    pub checks: Vec<ChartCheck>,
    /// The initial and the best candidate on held-out rows.
    pub heldout: Vec<HeldoutMark>,
    /// What the search has spent so far; without held-out rows.
    pub spent: ChartEffort,
    /// Whether the run has not ended yet.
    pub is_live: bool,
}

/// The horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChartAxis {
    Rollouts,
    Cost,
}

/// What a run has spent at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ChartEffort {
    pub rollouts: u64,
    /// `None` if a cost is unknown.
    pub cost_usd: Option<f64>,
}

/// A candidate with its score on train rows, if it has one.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartPoint {
    pub id: String,
    pub score: Option<Score>,
    /// Whether the score comes from a few rows only, which screened it.
    pub is_screening: bool,
    /// Whether it was accepted. Only accepted candidates move the line of the best score.
    pub accepted: bool,
    /// When the score was known.
    pub at: ChartEffort,
}

/// A decided check of a search in sprints.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartCheck {
    pub verdict: CheckVerdict,
    /// The reason in words.
    pub reason: String,
    pub at: ChartEffort,
}

/// A score on held-out rows.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldoutMark {
    pub id: String,
    /// Whether it is the initial candidate; otherwise it is the best one.
    pub is_initial: bool,
    pub score: Score,
}

/// A candidate of the chart with its position on the horizontal axis.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShownPoint<'a> {
    pub(super) x: f64,
    pub(super) score: Score,
    pub(super) point: &'a ChartPoint,
    pub(super) is_initial: bool,
}

impl ChartData {
    /// Returns the candidates with a score and a position, in order of their positions.
    pub(super) fn measured(&self) -> Vec<ShownPoint<'_>> {
        let shown = |(place, point): (usize, &'_ ChartPoint)| {
            let score = point.score.filter(|score| score.mean.is_finite())?;
            Some((self.position(point.at)?, score, place))
        };
        let mut found: Vec<ShownPoint<'_>> = self
            .candidates
            .iter()
            .enumerate()
            .filter_map(|(place, point)| {
                let (x, score, place) = shown((place, point))?;
                Some(ShownPoint { x, score, point, is_initial: place == 0 })
            })
            .collect();
        found.sort_by(|a, b| a.x.total_cmp(&b.x));
        found
    }

    /// Returns the position of a moment on the horizontal axis, if it is known.
    pub(super) fn position(&self, at: ChartEffort) -> Option<f64> {
        match self.axis {
            ChartAxis::Rollouts => Some(at.rollouts as f64),
            ChartAxis::Cost => at.cost_usd.filter(|cost| cost.is_finite()),
        }
    }

    /// Returns whether one mean is better than another one.
    pub(super) fn is_better(&self, mean: f64, than: f64) -> bool {
        match self.direction {
            Direction::Maximize => mean > than,
            Direction::Minimize => mean < than,
        }
    }
}

/// Reduces the candidates to about `most`: keeps the initial one, and of each stretch an accepted one if there is one, else
/// the best one that was not only screened.
pub(super) fn thin<'a>(data: &ChartData, measured: &[ShownPoint<'a>], most: usize) -> Vec<ShownPoint<'a>> {
    if measured.len() <= most {
        return measured.to_vec();
    }
    let rank = |shown: &ShownPoint<'_>| (shown.point.accepted, !shown.point.is_screening);
    let better = |a: &ShownPoint<'a>, b: &ShownPoint<'a>| {
        let by_mean = match data.direction {
            Direction::Maximize => a.score.mean.total_cmp(&b.score.mean),
            Direction::Minimize => b.score.mean.total_cmp(&a.score.mean),
        };
        rank(a).cmp(&rank(b)).then(by_mean).then(b.x.total_cmp(&a.x))
    };
    let (initial, others): (Vec<ShownPoint<'a>>, Vec<ShownPoint<'a>>) =
        measured.iter().partition(|shown| shown.is_initial);
    let stretches = others.chunks(others.len().div_ceil(most).max(1));
    initial.into_iter().chain(stretches.filter_map(|part| part.iter().copied().max_by(better))).collect()
}

/// Returns the corners of the line of the best accepted score so far: each position with the score from there on.
pub(super) fn best_so_far(data: &ChartData, measured: &[ShownPoint<'_>]) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for shown in measured.iter().filter(|shown| shown.point.accepted) {
        if corners.last().is_none_or(|(_, best)| data.is_better(shown.score.mean, *best)) {
            corners.push((shown.x, shown.score.mean));
        }
    }
    corners
}

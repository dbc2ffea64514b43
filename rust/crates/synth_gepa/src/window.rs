//! The number of generations in progress at the same time, which follows from how proposals change their texts.
//!
//! Changes that were made side by side are combined line by line. A proposer that rewrites whole texts makes changes that cannot
//! be combined, so that all but one of them are lost. So the window is small until the first proposals show that they keep most
//! lines of their parents, and stays small if they do not.

use std::collections::VecDeque;

use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::WindowChanged;

use crate::engine::GepaEngine;
use crate::state::{Phase, State};

/// Maximum number of generations in progress unless proposals are known to keep lines of their parents.
const SMALL_WINDOW: usize = 4;
/// Number of recent proposals that count, and the minimum for a decision.
const RECENT_PROPOSALS: usize = 8;
const MIN_PROPOSALS: usize = 4;
/// Proposals that keep less than this share of their parent's lines rewrite them.
const MIN_KEPT_SHARE: f64 = 0.5;

/// What decides about the number of generations in progress.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Window {
    /// The share of its parent's lines that each recent proposal kept.
    kept_shares: VecDeque<f64>,
    /// Whether all generations that the configuration allows may be in progress. `None` until enough proposals are known.
    pub is_wide: Option<bool>,
}

impl Window {
    /// Records the share of the parent's lines that a proposal keeps.
    pub(crate) fn add_proposal(&mut self, kept_share: f64) {
        if self.kept_shares.len() == RECENT_PROPOSALS {
            self.kept_shares.pop_front();
        }
        self.kept_shares.push_back(kept_share);
    }

    /// Returns the mean share of lines that recent proposals kept, once there are enough of them.
    fn mean_kept_share(&self) -> Option<f64> {
        let count = self.kept_shares.len();
        (count >= MIN_PROPOSALS).then(|| self.kept_shares.iter().sum::<f64>() / count as f64)
    }
}

impl GepaEngine {
    /// Returns the maximum number of generations in progress.
    pub(crate) fn max_open_generations(&self, state: &State) -> usize {
        let widest = self.widest_window();
        let is_wide = state.window.is_wide == Some(true) || !self.combines_changes();
        if is_wide { widest } else { widest.min(SMALL_WINDOW) }
    }

    /// Returns the maximum number of generations in progress if changes that were made side by side can be combined.
    pub(crate) fn widest_window(&self) -> usize {
        self.settings.max_open_generations(self.inputs.minibatch_pool.len())
    }

    /// Widens the window if recent proposals keep most lines of their parents, and narrows it if they do not.
    pub(crate) fn change_window(&self, state: &State) -> Vec<Event> {
        let widest = self.widest_window();
        let is_open = state.phase == Phase::Search && state.stop.is_none() && state.cancel.is_none();
        let is_asked = is_open && widest > SMALL_WINDOW && self.combines_changes();
        let Some(kept) = state.window.mean_kept_share().filter(|_| is_asked) else { return Vec::new() };
        let is_wide = kept >= MIN_KEPT_SHARE;
        if state.window.is_wide == Some(is_wide) {
            return Vec::new();
        }
        let (generations, found) = match is_wide {
            true => (widest, "so changes that were made side by side can be combined"),
            false => (SMALL_WINDOW, "so changes that were made side by side cannot be combined"),
        };
        let reason = format!("recent proposals keep {:.0} % of the lines of their parents, {found}", kept * 100.0);
        vec![Event::WindowChanged(WindowChanged { generations: generations as u32, reason })]
    }

    /// Returns whether the search combines changes that were made side by side.
    fn combines_changes(&self) -> bool {
        self.settings.is_sprint() || self.settings.rebases()
    }
}

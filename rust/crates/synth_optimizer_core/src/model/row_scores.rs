//! The scores of a candidate by row: a long run has one for every rollout, so that they are kept small.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::event_fields::RolloutFinished;
use super::ids::RowId;

/// Scores by row, in the order in which they came.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RowScores {
    rows: Vec<RowScore>,
    places: BTreeMap<RowId, usize>,
}

/// The score of a row; the mean where it was measured more than once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowScore {
    pub example_id: RowId,
    pub reward: f64,
    pub rollouts: u32,
    #[serde(skip_serializing_if = "Objectives::is_empty")]
    pub objectives: Objectives,
}

/// Scores by objective, in the order of their names, which rows share.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Objectives(Vec<(Arc<str>, f64)>);

impl RowScores {
    pub fn rows(&self) -> &[RowScore] {
        &self.rows
    }

    pub(super) fn add(&mut self, rollout: &RolloutFinished) {
        let Some(known) = self.places.get(&rollout.row_id).and_then(|place| self.rows.get_mut(*place)) else {
            let objectives = Objectives::of(&rollout.objectives, self.rows.last().map(|row| &row.objectives));
            self.places.insert(rollout.row_id.clone(), self.rows.len());
            self.rows.push(RowScore {
                example_id: rollout.row_id.clone(),
                reward: rollout.reward,
                rollouts: 1,
                objectives,
            });
            return;
        };
        let before = f64::from(known.rollouts);
        let mean = |mean: f64, value: f64| (mean * before + value) / (before + 1.0);
        known.reward = mean(known.reward, rollout.reward);
        for (name, value) in &rollout.objectives {
            let entry = known.objectives.entry(name, *value);
            *entry = mean(*entry, *value);
        }
        known.rollouts += 1;
    }
}

impl Objectives {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `alike` probably has the same names.
    fn of(scores: &BTreeMap<String, f64>, alike: Option<&Self>) -> Self {
        let shared = |place: usize, name: &str| {
            let known = alike.and_then(|alike| alike.0.get(place)).filter(|(known, _)| **known == *name);
            known.map_or_else(|| Arc::from(name), |(known, _)| Arc::clone(known))
        };
        Self(scores.iter().enumerate().map(|(place, (name, value))| (shared(place, name), *value)).collect())
    }

    /// The score of a name; `value` where it has none yet.
    fn entry(&mut self, name: &str, value: f64) -> &mut f64 {
        let place = match self.0.binary_search_by(|(known, _)| (**known).cmp(name)) {
            Ok(place) => place,
            Err(place) => {
                self.0.insert(place, (Arc::from(name), value));
                place
            }
        };
        &mut self.0[place].1
    }
}

impl Serialize for Objectives {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (&**name, value)))
    }
}

impl Serialize for RowScores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows.serialize(serializer)
    }
}

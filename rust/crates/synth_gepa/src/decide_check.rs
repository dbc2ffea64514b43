//! Decisions of a check: head and anchor of a sprint on the same rows, until it is clear enough which one is better.

use std::collections::BTreeSet;

use synth_optimizer_core::config::gepa::AcceptanceCriterion;
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CandidateDecided, CheckDecided, CheckStarted, CheckVerdict, Stage};
use synth_optimizer_core::model::ids::{CallId, TrainRow};

use crate::acceptance::{compare, protected};
use crate::check::{Differences, Prior, probability_of_gain};
use crate::decide::{decision_without_comparison, first_attempt};
use crate::decide_sprint::superseded;
use crate::engine::GepaEngine;
use crate::sprint::{Check, Sprint};
use crate::state::{Candidate, Phase, State, share};
use synth_optimizer_core::random::random_stream;

/// The last check starts when this share of a limit is used.
const LAST_CHECK_SHARE: f64 = 0.88;

/// A verdict with its reason in words.
struct Verdict {
    verdict: CheckVerdict,
    reason: String,
}

impl GepaEngine {
    /// Starts a check when the sprint has used its rollouts, or when a limit is almost used up.
    pub(crate) fn start_check(&self, state: &State) -> Vec<Event> {
        let Some(sprint) = state.sprint.as_ref().filter(|_| state.phase == Phase::Search) else { return Vec::new() };
        let is_open = state.stop.is_none() && state.cancel.is_none() && sprint.noise.is_known;
        if !is_open || sprint.check.is_some() || state.best == Some(sprint.head) {
            return Vec::new();
        }
        let is_known = sprint.last_checked == Some((sprint.head, state.best.unwrap_or(0)));
        if sprint.fully_checked.is_none() && !is_known && self.used_share(state) >= LAST_CHECK_SHARE {
            return self.check_started(state, sprint, true);
        }
        if sprint.spent < sprint.rollouts(&self.settings, self.inputs.pareto_pool.len()) {
            return Vec::new();
        }
        self.check_started(state, sprint, false)
    }

    /// Returns the start of a check, unless the budget covers none of its rollouts.
    pub(crate) fn check_started(&self, state: &State, sprint: &Sprint, is_last: bool) -> Vec<Event> {
        let anchor = state.candidate(state.best.unwrap_or(0));
        let head = state.candidate(sprint.head);
        let rules = &self.settings.gepa.sprint;
        let (share, at_least) = match sprint.noise.is_noisy {
            true => (rules.noisy_check_share, 2 * self.settings.check_block() as u64),
            false => (rules.check_share, self.settings.min_check_rollouts(self.inputs.pareto_pool.len())),
        };
        let usual = ((sprint.spent as f64 * share).ceil() as u64).max(at_least);
        let (affordable, _) = state.budget.max_affordable(&self.train_rollout(state), u64::from(u32::MAX));
        let max_rollouts = (!is_last).then_some(usual);
        if affordable == 0 {
            return Vec::new();
        }
        vec![Event::CheckStarted(CheckStarted {
            check: sprint.checks,
            head_id: head.id.clone(),
            anchor_id: anchor.id.clone(),
            steps: head.sprint.depth.saturating_sub(anchor.sprint.depth),
            max_rollouts,
        })]
    }

    /// Returns the share of the most used limit that the search has used, without what is set aside for held-out rows.
    fn used_share(&self, state: &State) -> f64 {
        let held = state.budget.set_aside_amount();
        let used = |dimension: Dimension| {
            let cap = state.budget.caps().get(dimension)?.saturating_sub(held.get(dimension));
            Some(state.budget.spent(dimension) as f64 / cap.max(1) as f64)
        };
        let counted = |dimension: &Dimension| !matches!(dimension, Dimension::HeldoutRollouts | Dimension::Generations);
        Dimension::ALL.into_iter().filter(counted).filter_map(used).fold(0.0, f64::max)
    }

    /// Returns the verdict of the check under way, or the rollouts that it needs next.
    pub(crate) fn advance_check(&self, state: &State) -> Vec<Event> {
        let Some((sprint, check)) = state.sprint.as_ref().and_then(|sprint| Some((sprint, sprint.check.as_ref()?)))
        else {
            return Vec::new();
        };
        let is_waiting = state.evaluations.values().any(|evaluation| evaluation.stage == Stage::Check);
        if is_waiting || state.cancel.is_some() {
            return Vec::new();
        }
        let found = self.differences(state, sprint, check);
        let probability = found.map(|found| self.probability(sprint, check, &found));
        if let Some(verdict) = self.early_verdict(state, sprint, check, found.zip(probability)) {
            return self.conclude(state, sprint, check, found, probability, verdict);
        }
        match self.next_block(state, sprint, check) {
            Block::Rows(requests) => requests,
            Block::Pending => Vec::new(),
            Block::Exhausted { is_complete } => {
                let verdict = self.last_verdict(sprint, found.zip(probability), is_complete);
                self.conclude(state, sprint, check, found, probability, verdict)
            }
        }
    }

    /// Returns the differences between head and anchor on the rows that both have scores for, in units of the range.
    fn differences(&self, state: &State, sprint: &Sprint, check: &Check) -> Option<Differences> {
        let (head, anchor) = (state.candidate(check.head), state.candidate(check.anchor));
        let width = sprint.range.width();
        let difference = |row: &TrainRow| {
            let own = self.settings.oriented(0, head.score(*row)?);
            Some((own - self.settings.oriented(0, anchor.score(*row)?)) / width)
        };
        let found: Vec<f64> = self.inputs.pareto_pool.iter().filter_map(difference).collect();
        Differences::of(&found)
    }

    fn probability(&self, sprint: &Sprint, check: &Check, found: &Differences) -> f64 {
        let prior = Prior {
            pooled: sprint.variance,
            steps: check.steps,
            step_scale: self.settings.gepa.sprint.step_scale,
            all_rows: (!sprint.noise.is_noisy).then_some(self.inputs.pareto_pool.len() as u32),
        };
        probability_of_gain(found, &prior)
    }

    /// Returns the verdict if the rows so far are enough for one.
    fn early_verdict(
        &self,
        state: &State,
        sprint: &Sprint,
        check: &Check,
        found: Option<(Differences, f64)>,
    ) -> Option<Verdict> {
        if !state.is_searching() {
            return Some(Verdict { verdict: CheckVerdict::Undecided, reason: "the search ended".to_owned() });
        }
        let (found, probability) = found?;
        let rules = &self.settings.gepa.sprint;
        let all = self.inputs.pareto_pool.len() as u32;
        let is_measured = |row: &TrainRow| {
            [check.head, check.anchor].iter().all(|index| {
                let candidate = state.candidate(*index);
                candidate.score(*row).is_some() || candidate.failed_rows.contains(row)
            })
        };
        if found.n < rules.min_pairs.min(all) || !self.guarded.iter().all(is_measured) {
            return None;
        }
        let said = in_words(&found, probability, sprint);
        if probability <= rules.drop {
            return Some(Verdict { verdict: CheckVerdict::RolledBack, reason: format!("worse: {said}") });
        }
        if probability < rules.adopt {
            return None;
        }
        Some(Verdict { verdict: CheckVerdict::Adopted, reason: format!("better: {said}") })
    }

    /// Returns the verdict after the last rollout. `is_complete` says that all rows are compared.
    fn last_verdict(&self, sprint: &Sprint, found: Option<(Differences, f64)>, is_complete: bool) -> Verdict {
        let undecided = |reason: String| Verdict { verdict: CheckVerdict::Undecided, reason };
        let Some((found, probability)) = found else {
            return undecided("no row has scores of both".to_owned());
        };
        let said = in_words(&found, probability, sprint);
        if is_complete && !sprint.noise.is_noisy && found.mean > 0.0 {
            return Verdict { verdict: CheckVerdict::Adopted, reason: format!("better on all rows: {said}") };
        }
        if probability >= self.settings.gepa.sprint.keep {
            undecided(format!("it cannot tell yet: {said}"))
        } else {
            Verdict { verdict: CheckVerdict::RolledBack, reason: format!("not promising: {said}") }
        }
    }

    /// Returns the adoption of the head, or its rollback if it violates a rule of the user.
    fn adoption(&self, state: &State, check: &Check, reason: &str) -> Verdict {
        let (head, anchor) = (state.candidate(check.head), state.candidate(check.anchor));
        let rolled_back = |reason: String| Verdict { verdict: CheckVerdict::RolledBack, reason };
        if let Some((_, violation)) = self.guard_violation(state, head, |_| true) {
            return rolled_back(violation);
        }
        let failed = share(head.failed_rows.len(), head.failed_rows.len() + head.train.rows().len());
        if failed > self.settings.gepa.rollout_failure_rate_tolerance {
            return rolled_back(format!("{:.0} % of its rows failed", failed * 100.0));
        }
        let gepa = &self.settings.gepa;
        let is_guarded = gepa.acceptance_criterion == AcceptanceCriterion::ProtectedObjectiveGuard
            || !gepa.objective_acceptance.protected_objectives.is_empty();
        let found = compare(&self.settings, head, anchor, &self.inputs.pareto_pool).filter(|_| is_guarded);
        if found.is_some_and(|found| !protected(&self.settings, &found)) {
            return rolled_back("a protected objective lost too much".to_owned());
        }
        Verdict { verdict: CheckVerdict::Adopted, reason: reason.to_owned() }
    }

    /// Returns the events of a verdict.
    fn conclude(
        &self,
        state: &State,
        sprint: &Sprint,
        check: &Check,
        found: Option<Differences>,
        probability: Option<f64>,
        verdict: Verdict,
    ) -> Vec<Event> {
        let (head, anchor) = (state.candidate(check.head), state.candidate(check.anchor));
        let Verdict { verdict, reason } = match verdict.verdict {
            CheckVerdict::Adopted => self.adoption(state, check, &verdict.reason),
            CheckVerdict::RolledBack | CheckVerdict::Undecided => verdict,
        };
        let width = sprint.range.width();
        let decided = CheckDecided {
            check: check.number,
            head_id: head.id.clone(),
            anchor_id: anchor.id.clone(),
            verdict,
            reason,
            n: found.map_or(0, |found| found.n),
            mean: found.map(|found| found.mean * width),
            variance: found.and_then(|found| found.variance()).map(|variance| variance * width * width),
            probability,
            rollouts: check.rollouts,
            head_score: self.train_score(head),
        };
        let comparison = compare(&self.settings, head, anchor, &self.inputs.pareto_pool);
        let decision = |reason: &str, detail: Option<String>| CandidateDecided {
            comparison: comparison.clone(),
            detail,
            ..decision_without_comparison(&head.id, Stage::Check, reason)
        };
        let others = sprint.undecided.iter().copied().filter(|index| *index != check.head);
        let mut events = vec![Event::CheckDecided(decided.clone())];
        match verdict {
            CheckVerdict::Undecided => {}
            CheckVerdict::Adopted => {
                events.push(Event::FrontierUpdated(self.frontier_update(state, check.head)));
                events.push(Event::CandidateAccepted(decision("check_adopted", None)));
                let before = others.filter(|index| is_ancestor(state, *index, check.head));
                let by = Some(&head.id);
                events
                    .extend(before.map(|index| {
                        superseded(state.candidate(index), by, "a candidate with its change was adopted")
                    }));
            }
            CheckVerdict::RolledBack => {
                events.push(Event::CandidateRejected(decision("check_rolled_back", Some(decided.reason))));
                events
                    .extend(others.map(|index| superseded(state.candidate(index), None, "its sprint was rolled back")));
            }
        }
        events
    }

    /// Returns the rollouts of the next rows of a check.
    fn next_block(&self, state: &State, sprint: &Sprint, check: &Check) -> Block {
        let sides = [state.candidate(check.head), state.candidate(check.anchor)];
        let left = check.max_rollouts.unwrap_or(u64::from(u32::MAX)).saturating_sub(check.rollouts);
        let (affordable, _) = state.budget.max_affordable(&self.train_rollout(state), left);
        let is_usable = |row: &TrainRow| sides.iter().all(|side| !side.failed_rows.contains(row));
        let is_missing = |side: &Candidate, row: &TrainRow| side.score(*row).is_none();
        let is_pending = |row: &TrainRow| sides.iter().any(|side| side.sprint.pending.contains(row));
        let needs = |row: &TrainRow| sides.iter().filter(|side| is_missing(side, row)).count() as u64;
        let mut open: Vec<TrainRow> =
            self.inputs.pareto_pool.iter().copied().filter(|row| is_usable(row) && needs(row) > 0).collect();
        let is_repeating = open.is_empty() && sprint.noise.is_noisy;
        if is_repeating {
            // Every row is compared: roll both out once more.
            open = self.inputs.pareto_pool.iter().copied().filter(is_usable).collect();
            open.retain(|row| !check.repeated.contains(row));
        }
        if open.is_empty() {
            return Block::Exhausted { is_complete: true };
        }
        random_stream(self.settings.seed, "check", check.number.into()).shuffle(&mut open);
        let price = |row: &TrainRow| if is_repeating { 2 } else { needs(row) };
        // Guarded rows first, then rows on which one side has a score.
        open.sort_by_key(|row| (!self.guarded.contains(row), price(row)));
        let (pending, open): (Vec<TrainRow>, Vec<TrainRow>) = open.into_iter().partition(is_pending);
        let mut cost = 0;
        let block: Vec<TrainRow> = open
            .into_iter()
            .take(self.settings.check_block())
            .take_while(|row| {
                cost += price(row);
                cost <= affordable
            })
            .collect();
        match (block.is_empty(), pending.is_empty()) {
            (true, false) if affordable > 0 => return Block::Pending,
            (true, _) => return Block::Exhausted { is_complete: false },
            (false, _) => {}
        }
        let mut first = state.next_call_id;
        let mut requests = Vec::new();
        for side in sides {
            let rows: Vec<TrainRow> =
                block.iter().copied().filter(|row| is_repeating || is_missing(side, row)).collect();
            if rows.is_empty() {
                continue;
            }
            let replicate = side.sprint.replicate + u32::from(is_repeating && check.repeated.is_empty());
            let request = first_attempt(CallId(first), side, Stage::Check, self.train_ids(&rows), replicate);
            first += request.row_ids.len() as u64;
            requests.push(Event::RolloutsRequested(request));
        }
        Block::Rows(requests)
    }
}

/// The next step of a check.
enum Block {
    Rows(Vec<Event>),
    /// The remaining rows are being measured for another purpose.
    Pending,
    /// No row is left, or no rollout.
    Exhausted {
        is_complete: bool,
    },
}

fn in_words(found: &Differences, probability: f64, sprint: &Sprint) -> String {
    let mean = found.mean * sprint.range.width();
    format!("{mean:+.4} on {} rows, better with probability {probability:.3}", found.n)
}

/// Returns whether a candidate descends from another one.
pub(crate) fn is_ancestor(state: &State, ancestor: u32, of: u32) -> bool {
    let (mut open, mut seen) = (vec![of], BTreeSet::new());
    while let Some(index) = open.pop() {
        for parent in &state.candidate(index).parents {
            if *parent == ancestor {
                return true;
            }
            if *parent > ancestor && seen.insert(*parent) {
                open.push(*parent);
            }
        }
    }
    false
}

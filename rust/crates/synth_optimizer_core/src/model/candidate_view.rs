//! The record of a candidate, folded from the log: its texts, parents, scores and decisions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::envelope::rfc3339;
use super::event::Event;
use super::event_fields::{CandidateRegistered, EvaluationCompleted, Operation, Stage};
use super::ids::{CandidateId, Payload};
use super::lifecycle::{CandidateStatus, Lifecycle};
use super::score::{Comparison, Score};

/// The one record of a candidate. Tables, files, HTTP and Python all show it under these names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// The id, derived from the texts: equal texts have equal ids in every run.
    #[schemars(with = "String")]
    pub candidate_id: CandidateId,
    /// The first of `parent_ids`.
    #[schemars(with = "Option<String>")]
    pub parent_id: Option<CandidateId>,
    /// Its parents: none for the initial candidate, two for a merge. A rebase has the candidate that it builds on, and the
    /// carried ones.
    #[schemars(with = "Vec<String>")]
    pub parent_ids: Vec<CandidateId>,
    /// How it was made.
    pub source: Operation,
    /// The generation that made it; null for the initial candidate.
    pub generation: Option<u32>,
    /// Its state in the lifecycle.
    pub status: CandidateStatus,
    /// Its texts by field.
    pub payload: Payload,
    /// Fields whose text differs from the first parent's.
    pub changed_fields: Vec<String>,
    /// The reason for the change, written by the proposer.
    pub rationale: String,
    /// Mean of `minibatch_score`.
    pub minibatch_reward: Option<f64>,
    /// Mean of `train_score`.
    pub train_reward: Option<f64>,
    /// Mean of `heldout_score`.
    pub heldout_reward: Option<f64>,
    /// Score of its screening on the minibatch; null before the screening.
    pub minibatch_score: Option<Score>,
    /// Score on all train rows; null before the full evaluation.
    pub train_score: Option<Score>,
    /// Score on held-out rows; null if it was not measured on them.
    pub heldout_score: Option<Score>,
    /// The comparison behind the last decision about it.
    pub acceptance_score: Option<Comparison>,
    /// Every decision about it, oldest first.
    pub acceptance_metadata: Vec<CandidateDecision>,
    /// Whether it holds a cell of the frontier.
    pub on_frontier: bool,
    /// Sequence number of the event that registered it.
    pub registered_sequence: u64,
    /// When it was registered.
    pub registered_at: String,
    /// Sequence number of the last event about it.
    pub updated_sequence: u64,
    /// When that event was stored.
    pub updated_at: String,
}

/// One decision about a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateDecision {
    /// `promoted`, `accepted`, `rejected`, `deferred` or `superseded`.
    pub decision: String,
    /// The evaluation that the decision is based on.
    pub evaluation_stage: Stage,
    /// A stable short code, such as `primary_improved`.
    pub reason: String,
    /// The compared values; null for the initial candidate and for a deferred candidate.
    pub comparison: Option<Comparison>,
    /// Sequence number of the decision's event.
    pub sequence: u64,
    /// When it was decided.
    pub at: String,
}

/// Returns the candidates whose record this event changes.
pub fn affected_candidates(event: &Event) -> Vec<&CandidateId> {
    match event {
        Event::CandidatePromoted(decision) => vec![&decision.candidate_id],
        Event::HeldoutCompleted(done) => vec![&done.candidate_id],
        Event::FrontierUpdated(update) => {
            let joined = update.joined.then_some(&update.candidate_id);
            joined.into_iter().chain(&update.removed).collect()
        }
        _ => event.candidate_trigger().map(|(id, _)| id).into_iter().collect(),
    }
}

/// Returns the train scores with which a run ends. A search in sprints may have measured more rows since the last decision about
/// a candidate.
pub fn final_train_scores(event: &Event) -> impl Iterator<Item = (&CandidateId, Score)> {
    let scores = match event {
        Event::RunFinished(run) => run.scores.as_slice(),
        _ => &[],
    };
    scores.iter().filter(|score| score.split == "train").map(|score| (&score.candidate_id, score.score))
}

impl Candidate {
    /// Records the train score with which the run ends.
    pub fn record_final_score(&mut self, score: Score) {
        (self.train_score, self.train_reward) = (Some(score), Some(score.mean));
    }

    /// Returns the record of a newly registered candidate.
    pub fn new(sequence: u64, unix_millis: u64, registered: &CandidateRegistered) -> Self {
        let at = rfc3339(unix_millis);
        Self {
            candidate_id: registered.candidate_id.clone(),
            parent_id: registered.parent_ids.first().cloned(),
            parent_ids: registered.parent_ids.clone(),
            source: registered.operation,
            generation: registered.generation,
            status: CandidateStatus::INITIAL,
            payload: registered.payload.clone(),
            changed_fields: registered.changed_fields.clone(),
            rationale: registered.rationale.clone(),
            minibatch_reward: None,
            train_reward: None,
            heldout_reward: None,
            minibatch_score: None,
            train_score: None,
            heldout_score: None,
            acceptance_score: None,
            acceptance_metadata: Vec::new(),
            on_frontier: false,
            registered_sequence: sequence,
            registered_at: at.clone(),
            updated_sequence: sequence,
            updated_at: at,
        }
    }

    /// Applies an event that affects this candidate according to `affected_candidates`.
    pub fn apply(&mut self, sequence: u64, unix_millis: u64, event: &Event) {
        if let Some((_, trigger)) = event.candidate_trigger()
            && let Ok(next) = self.status.next(trigger)
        {
            self.status = next;
        }
        let mean = |done: &EvaluationCompleted| done.score.map(|score| score.mean);
        match event {
            Event::SeedEvaluated(done) | Event::FullTrainEvaluated(done) => {
                (self.train_score, self.train_reward) = (done.score, mean(done));
            }
            Event::CheckDecided(check) => {
                (self.train_score, self.train_reward) = (check.head_score, check.head_score.map(|score| score.mean));
            }
            Event::MinibatchEvaluated(done) => (self.minibatch_score, self.minibatch_reward) = (done.score, mean(done)),
            Event::HeldoutCompleted(done) => (self.heldout_score, self.heldout_reward) = (done.score, mean(done)),
            Event::CandidatePromoted(decision)
            | Event::CandidateAccepted(decision)
            | Event::CandidateRejected(decision) => self.acceptance_score.clone_from(&decision.comparison),
            Event::FrontierUpdated(update) => {
                self.on_frontier = update.joined && update.candidate_id == self.candidate_id;
            }
            _ => {}
        }
        self.updated_sequence = sequence;
        self.updated_at = rfc3339(unix_millis);
        let (decision, evaluation_stage, reason, comparison) = match event {
            Event::CandidatePromoted(made) => ("promoted", made.stage, made.reason.as_str(), &made.comparison),
            Event::CandidateAccepted(made) => ("accepted", made.stage, made.reason.as_str(), &made.comparison),
            Event::CandidateRejected(made) => ("rejected", made.stage, made.reason.as_str(), &made.comparison),
            Event::CandidateDeferred(made) => ("deferred", made.stage, made.reason.as_str(), &None),
            Event::CandidateSuperseded(made) => ("superseded", Stage::Check, made.reason.as_str(), &None),
            _ => return,
        };
        self.acceptance_metadata.push(CandidateDecision {
            decision: decision.to_owned(),
            evaluation_stage,
            reason: reason.to_owned(),
            comparison: comparison.clone(),
            sequence,
            at: self.updated_at.clone(),
        });
    }
}

//! A candidate as the log tells of it: its texts, where it comes from, its scores and how it was judged.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::envelope::rfc3339;
use super::event::Event;
use super::event_fields::{CandidateRegistered, EvaluationCompleted, Operation, Stage};
use super::ids::{CandidateId, Payload};
use super::lifecycle::{CandidateStatus, Lifecycle};
use super::score::{Comparison, Score};

/// THE shape of a candidate: tables, files, HTTP and Python show it under these names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// The id, made from the texts: equal texts have equal ids in every run.
    #[schemars(with = "String")]
    pub candidate_id: CandidateId,
    /// The first of `parent_ids`.
    #[schemars(with = "Option<String>")]
    pub parent_id: Option<CandidateId>,
    /// Its parents; none for the seed, two for a merge.
    #[schemars(with = "Vec<String>")]
    pub parent_ids: Vec<CandidateId>,
    /// How it came to be.
    pub source: Operation,
    /// The generation that made it; null for the seed.
    pub generation: Option<u32>,
    /// Where it is.
    pub status: CandidateStatus,
    /// Its texts by field.
    pub payload: Payload,
    /// Fields whose text differs from the first parent's.
    pub changed_fields: Vec<String>,
    /// Why, in the words of the proposer.
    pub rationale: String,
    /// Mean of `minibatch_score`.
    pub minibatch_reward: Option<f64>,
    /// Mean of `train_score`.
    pub train_reward: Option<f64>,
    /// Mean of `heldout_score`.
    pub heldout_reward: Option<f64>,
    /// Score of its screening; null before it.
    pub minibatch_score: Option<Score>,
    /// Score on all train rows; null before they are measured.
    pub train_score: Option<Score>,
    /// Score on held-out rows; null where they are not measured.
    pub heldout_score: Option<Score>,
    /// The last comparison that it was judged by.
    pub acceptance_score: Option<Comparison>,
    /// Every step of how it was judged.
    pub acceptance_metadata: Vec<CandidateDecision>,
    /// Whether it holds a cell of the frontier.
    pub on_frontier: bool,
    /// The event that registered it.
    pub registered_sequence: u64,
    /// When it was registered.
    pub registered_at: String,
    /// The last event about it.
    pub updated_sequence: u64,
    /// When that event was stored.
    pub updated_at: String,
}

/// One step of how a candidate was judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateDecision {
    /// `promoted`, `accepted`, `rejected` or `deferred`.
    pub decision: String,
    /// The evaluation on which it was judged.
    pub evaluation_stage: Stage,
    /// A stable short code, such as `primary_improved`.
    pub reason: String,
    /// The values that were compared; null for the seed and for a candidate that could not be judged.
    pub comparison: Option<Comparison>,
    /// The event of the decision.
    pub sequence: u64,
    /// When it was decided.
    pub at: String,
}

/// The candidates that an event is about: those whose record changes.
pub fn affected_candidates(event: &Event) -> Vec<&CandidateId> {
    match event {
        Event::CandidatePromoted(decision) => vec![&decision.candidate_id],
        Event::HeldoutCompleted(done) => vec![&done.candidate_id],
        Event::FrontierUpdated(update) => {
            let joined = update.joined.then_some(&update.candidate_id);
            joined.into_iter().chain(&update.left).collect()
        }
        _ => event.candidate_trigger().map(|(id, _)| id).into_iter().collect(),
    }
}

impl Candidate {
    /// The candidate when it is registered.
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

    /// Takes in an event that `candidates_of` names this candidate for.
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

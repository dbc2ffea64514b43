//! The fields of events of the search: rollouts, candidates, proposals and generations.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::answer::FailureClass;
use super::super::ids::{CandidateId, Payload, RequestId, RowId};
use super::super::lifecycle::CandidateTrigger;
use super::super::score::{Comparison, Score};
use super::super::search::{Direction, FrontierType, Selector};
use super::super::usage::Usage;
use crate::words;

words! {
    /// Why a rollout is run.
    Stage {
        /// The seed on all train rows.
        SeedFullTrain = "seed_full_train",
        /// The parent on the rows of a generation on which it has no score.
        ParentMinibatchReference = "parent_minibatch_reference",
        /// A proposal on the minibatch, against its parent.
        CandidateMinibatch = "candidate_minibatch",
        /// A promoted candidate on all train rows.
        CandidateFullTrain = "candidate_full_train",
        /// Seed and best on held-out rows, after the search.
        Heldout = "heldout",
    }
}

words! {
    /// How a candidate came to be.
    Operation {
        /// It is the text to start from.
        Seed = "seed",
        /// The proposer changed its parent.
        Mutate = "mutate",
        /// It takes fields from two parents.
        Merge = "merge",
    }
}

/// One objective.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Objective {
    /// Its name.
    pub name: String,
    /// Which way is better.
    pub direction: Direction,
}

/// `objective_set.declared`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectiveSetDeclared {
    /// The objective that decides.
    pub selection_objective: String,
    /// What one cell of the frontier is.
    pub frontier_type: FrontierType,
    /// Every objective, the deciding one first.
    pub objectives: Vec<Objective>,
}

/// `candidate.registered`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateRegistered {
    /// The id, made from the texts.
    pub candidate_id: CandidateId,
    /// How it came to be.
    pub operation: Operation,
    /// Its parents; none for the seed, two for a merge.
    pub parent_ids: Vec<CandidateId>,
    /// The generation that made it; none for the seed.
    pub generation: Option<u32>,
    /// Its texts.
    #[schemars(extend("x-keys" = "field"))]
    pub payload: Payload,
    /// Fields whose text differs from the parent's.
    pub changed_fields: Vec<String>,
    /// Why, in the words of the proposer.
    pub rationale: String,
}

/// `rollout.requested`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutsRequested {
    /// Number of the first request; the rows follow it in order.
    pub first_request: RequestId,
    /// The evaluation that the rollouts belong to: the first request of it.
    pub evaluation: RequestId,
    /// Whose texts are run.
    pub candidate_id: CandidateId,
    /// What the rollouts are for.
    pub stage: Stage,
    /// The generation that they belong to, if any.
    pub generation: Option<u32>,
    /// The rows, one request each.
    pub row_ids: Vec<RowId>,
    /// 1 for the first try of these rows.
    pub attempt: u32,
    /// Which repetition of the same measurement.
    pub replicate: u32,
}

/// `rollout.finished`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutFinished {
    /// The request that is answered.
    pub request: RequestId,
    /// Whose texts were run.
    pub candidate_id: CandidateId,
    /// The row.
    pub row_id: RowId,
    /// What the rollout was for.
    pub stage: Stage,
    /// The reward of the container.
    pub reward: f64,
    /// Scores by objective, where the container gives any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objectives: BTreeMap<String, f64>,
    /// What it used.
    pub usage: Usage,
    /// Whether the answer came from the cache.
    pub cached: bool,
    /// Digest of the stored reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_digest: Option<String>,
}

/// `rollout.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutFailed {
    /// The request that is answered.
    pub request: RequestId,
    /// Whose texts were to be run.
    pub candidate_id: CandidateId,
    /// The row.
    pub row_id: RowId,
    /// What the rollout was for.
    pub stage: Stage,
    /// 1 for the first try.
    pub attempt: u32,
    /// What kind of failure it was.
    pub class: FailureClass,
    /// What happened, in words.
    pub message: String,
    /// What it used all the same.
    pub usage: Usage,
    /// Whether the failure was replayed from the cache.
    pub cached: bool,
    /// Whether the next event asks for the same rollout again.
    pub retried: bool,
}

/// The end of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvaluationCompleted {
    /// The evaluation: the first request of it.
    pub evaluation: RequestId,
    /// Who was evaluated.
    pub candidate_id: CandidateId,
    /// The generation that it belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Rows that were asked for.
    pub rows: u32,
    /// Those of them that gave no score.
    pub failed: u32,
    /// Score on the deciding objective; null without one row that has a score.
    pub score: Option<Score>,
}

/// `candidate.promoted`, `candidate.accepted`, `candidate.rejected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateDecided {
    /// Who was judged.
    pub candidate_id: CandidateId,
    /// The evaluation on which it was judged.
    pub stage: Stage,
    /// A stable short code, such as `primary_improved`.
    pub reason: String,
    /// The comparison behind it; none for the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// `candidate.deferred`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidateDeferred {
    /// Who could not be judged.
    pub candidate_id: CandidateId,
    /// Where it stopped.
    pub stage: Stage,
    /// Why.
    pub reason: CandidateTrigger,
}

/// How a parent was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParentSelection {
    /// The rule.
    pub selector: Selector,
    /// Cells of the frontier that the parent holds.
    pub cells_won: u64,
    /// Sum of the weights that were drawn from; 1 where nothing was drawn.
    pub total_weight: u64,
    /// Candidates on the frontier.
    pub frontier_size: u32,
}

/// `generation.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GenerationStarted {
    /// Its number, from 0.
    pub generation: u32,
    /// Whether its candidates are mutations or a merge.
    pub operation: Operation,
    /// Its parents.
    pub parent_ids: Vec<CandidateId>,
    /// The common ancestor of a merge's parents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ancestor_id: Option<CandidateId>,
    /// How the parent was chosen; none for a merge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<ParentSelection>,
    /// The draw of parent and minibatch that this is.
    pub draw: u64,
    /// Rows on which the proposals are screened.
    pub minibatch: Vec<RowId>,
    /// Rows whose traces the proposer sees.
    pub evidence: Vec<RowId>,
    /// Fields that the proposals may change.
    pub components: Vec<String>,
    /// What a proposal is laid over: the parent's texts, or the part of a merge on which both parents agree.
    #[schemars(extend("x-keys" = "field"))]
    pub base: Payload,
}

/// `minibatch.skipped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MinibatchSkipped {
    /// The parent.
    pub parent_id: CandidateId,
    /// The draw of parent and minibatch that this is.
    pub draw: u64,
    /// Rows of the minibatch.
    pub rows: u32,
}

/// A rejected candidate that the proposer should not repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CarriedFailure {
    /// Who was rejected.
    pub candidate_id: CandidateId,
    /// Why.
    pub reason: String,
}

/// What is wrong with a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// A stable short code, such as `field_unknown`.
    pub code: String,
    /// The field that it is about, if it is about one.
    pub field: Option<String>,
    /// What is wrong, in words.
    pub message: String,
}

/// `proposer.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposerStarted {
    /// The request.
    pub request: RequestId,
    /// The generation that wants proposals.
    pub generation: u32,
    /// 1 for the first try.
    pub attempt: u32,
    /// Proposals that are asked for.
    pub proposal_count: u32,
    /// Rejected candidates that are shown, with the reason.
    pub carried_failures: Vec<CarriedFailure>,
    /// Problems of the answer before, to be repaired; empty for a first answer.
    pub problems: Vec<Problem>,
}

/// `proposer.completed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposerCompleted {
    /// The request that is answered.
    pub request: RequestId,
    /// The generation that asked.
    pub generation: u32,
    /// Proposals that came.
    pub proposal_count: u32,
    /// Proposals beyond those that were asked for; they are not looked at.
    pub ignored: u32,
    /// The model that was asked for.
    pub requested_model: String,
    /// The model that answered.
    pub effective_model: String,
    /// What the turn used.
    pub usage: Usage,
    /// Whether the answer came from the cache.
    pub cached: bool,
}

/// Which model a turn asked for, and which one answered as far as is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnModels {
    /// The model that was asked for.
    pub requested: String,
    /// The model that answered, if it is known.
    pub effective: Option<String>,
}

/// `proposer.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposerFailed {
    /// The request that is answered.
    pub request: RequestId,
    /// The generation that asked.
    pub generation: u32,
    /// 1 for the first try.
    pub attempt: u32,
    /// What kind of failure it was.
    pub class: FailureClass,
    /// What happened, in words.
    pub message: String,
    /// What it used all the same.
    pub usage: Usage,
    /// Whether the failure was replayed from the cache.
    pub cached: bool,
    /// Which models it was about, if the turn reached one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Box<TurnModels>>,
    /// Whether the next event asks again.
    pub retried: bool,
}

/// `proposal.rejected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposalRejected {
    /// The generation that asked.
    pub generation: u32,
    /// Place of the proposal in its answer.
    pub index: u32,
    /// Every problem that was found.
    pub problems: Vec<Problem>,
}

/// `candidate.duplicate_skipped`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DuplicateSkipped {
    /// The known candidate.
    pub candidate_id: CandidateId,
    /// The generation that asked.
    pub generation: u32,
    /// Place of the proposal in its answer.
    pub index: u32,
}

/// `candidate.leakage_detected`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeakageDetected {
    /// Whose text it is.
    pub candidate_id: CandidateId,
    /// The field of the text.
    pub field: String,
    /// The train row whose text is repeated.
    pub row_id: RowId,
    /// Length of the repetition, in characters.
    pub chars: u32,
}

/// A cell of the frontier that a candidate holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellWon {
    /// The row of the cell; none where a cell is an objective over all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_id: Option<RowId>,
    /// The objective of the cell.
    pub objective: String,
    /// The value with which it is held.
    pub value: f64,
    /// Whether the holders before it lose the cell.
    pub alone: bool,
}

/// `frontier.updated`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FrontierUpdated {
    /// Who was evaluated.
    pub candidate_id: CandidateId,
    /// Its mean on the deciding objective, such that larger is better; where it has no score, that of the best counts.
    pub merit: f64,
    /// Cells that the candidate holds, alone or tied.
    pub cells_won: u32,
    /// Whether it holds any cell.
    pub joined: bool,
    /// These cells.
    pub cells: Vec<CellWon>,
    /// Candidates that hold no cell any more.
    pub left: Vec<CandidateId>,
    /// Candidates on the frontier now.
    pub size: u32,
}

/// `generation.completed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GenerationCompleted {
    /// Its number.
    pub generation: u32,
    /// Whether its candidates were mutations or a merge.
    pub operation: Operation,
    /// Candidates that were registered.
    pub registered: u32,
    /// Those of them that were accepted.
    pub accepted: u32,
    /// The best candidate so far.
    pub best_candidate_id: CandidateId,
    /// Its score on train rows.
    pub best_train_score: Option<Score>,
    /// Candidates on the frontier.
    pub frontier_size: u32,
    /// Candidates of the run so far.
    pub candidates: u32,
}

/// `heldout.started`, `heldout.partial`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldoutChosen {
    /// The candidates.
    pub candidate_ids: Vec<CandidateId>,
    /// Held-out rows of each.
    pub rows: u32,
}

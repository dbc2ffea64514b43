//! The fields of events of the search: rollouts, candidates, proposals and generations.

use std::collections::BTreeMap;

use super::super::answer::FailureClass;
use super::super::ids::{CandidateId, Payload, RequestId, RowId};
use super::super::lifecycle::CandidateTrigger;
use super::super::score::{Comparison, Score};
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
    /// How a candidate came to be.
    Operation {
        /// It is the text to start from.
        Seed = "seed",
        /// The proposer changed its parent.
        Mutate = "mutate",
        /// It takes fields from two parents.
        Merge = "merge",
    }
    /// What one cell of the frontier is.
    FrontierType {
        /// A train row.
        PerExample = "per_example",
        /// An objective, by its mean over the train rows.
        PerObjective = "per_objective",
        /// An objective on a train row.
        PerExampleObjective = "per_example_objective",
    }
    /// Whether more or less of an objective is better.
    Direction {
        Maximize = "maximize" | "max" | "higher" | "higher_is_better" | "up",
        Minimize = "minimize" | "min" | "lower" | "lower_is_better" | "down",
    }
    /// How parents are chosen.
    Selector {
        /// From the frontier, the more often the more cells a candidate holds.
        ParetoWeighted = "pareto_weighted" | "pareto",
        /// From the frontier, all alike.
        UniformPareto = "uniform_pareto",
        /// From all evaluated candidates, all alike.
        Random = "random",
        /// The best one.
        CurrentBest = "current_best",
        /// From the best `k`, the more often the more cells a candidate holds.
        TopKPareto = "top_k_pareto",
        /// The best one, and a random one in a share of `epsilon`.
        EpsilonGreedy = "epsilon_greedy",
    }
}

fields! {
    /// One objective.
    Objective {
        /// Its name.
        name: String,
        /// Which way is better.
        direction: Direction,
    }
    /// `objective_set.declared`
    ObjectiveSetDeclared {
        /// The objective that decides.
        selection_objective: String,
        /// What one cell of the frontier is.
        frontier_type: FrontierType,
        /// Every objective, the deciding one first.
        objectives: Vec<Objective>,
    }
    /// `candidate.registered`
    CandidateRegistered {
        /// The id, made from the texts.
        candidate_id: CandidateId,
        /// How it came to be.
        operation: Operation,
        /// Its parents; none for the seed, two for a merge.
        parent_ids: Vec<CandidateId>,
        /// The generation that made it; none for the seed.
        generation: Option<u32>,
        /// Its texts.
        #[schemars(extend("x-keys" = "field"))]
        payload: Payload,
        /// Fields whose text differs from the parent's.
        changed_fields: Vec<String>,
        /// Why, in the words of the proposer.
        rationale: String,
    }
    /// `rollout.requested`
    RolloutsRequested {
        /// Number of the first request; the rows follow it in order.
        first_request: RequestId,
        /// The evaluation that the rollouts belong to: the first request of it.
        evaluation: RequestId,
        /// Whose texts are run.
        candidate_id: CandidateId,
        /// What the rollouts are for.
        stage: Stage,
        /// The generation that they belong to, if any.
        generation: Option<u32>,
        /// The rows, one request each.
        row_ids: Vec<RowId>,
        /// 1 for the first try of these rows.
        attempt: u32,
        /// Which repetition of the same measurement.
        replicate: u32,
    }
    /// `rollout.finished`
    RolloutFinished {
        /// The request that is answered.
        request: RequestId,
        /// Whose texts were run.
        candidate_id: CandidateId,
        /// The row.
        row_id: RowId,
        /// What the rollout was for.
        stage: Stage,
        /// The reward of the container.
        reward: f64,
        /// Scores by objective, where the container gives any.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        objectives: BTreeMap<String, f64>,
        /// What it used.
        usage: Usage,
        /// Whether the answer came from the cache.
        cached: bool,
        /// Digest of the stored reply.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace_digest: Option<String>,
    }
    /// `rollout.failed`
    RolloutFailed {
        /// The request that is answered.
        request: RequestId,
        /// Whose texts were to be run.
        candidate_id: CandidateId,
        /// The row.
        row_id: RowId,
        /// What the rollout was for.
        stage: Stage,
        /// 1 for the first try.
        attempt: u32,
        /// What kind of failure it was.
        class: FailureClass,
        /// What happened, in words.
        message: String,
        /// What it used all the same.
        usage: Usage,
        /// Whether the failure was replayed from the cache.
        cached: bool,
        /// Whether the next event asks for the same rollout again.
        retried: bool,
    }
    /// The end of an evaluation.
    EvaluationCompleted {
        /// The evaluation: the first request of it.
        evaluation: RequestId,
        /// Who was evaluated.
        candidate_id: CandidateId,
        /// The generation that it belongs to, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        generation: Option<u32>,
        /// Rows that were asked for.
        rows: u32,
        /// Those of them that gave no score.
        failed: u32,
        /// Score on the deciding objective; null without one row that has a score.
        score: Option<Score>,
    }
    /// `candidate.promoted`, `candidate.accepted`, `candidate.rejected`
    CandidateDecided {
        /// Who was judged.
        candidate_id: CandidateId,
        /// The evaluation on which it was judged.
        stage: Stage,
        /// A stable short code, such as `primary_improved`.
        reason: String,
        /// The comparison behind it; none for the seed.
        #[serde(skip_serializing_if = "Option::is_none")]
        comparison: Option<Comparison>,
    }
    /// `candidate.deferred`
    CandidateDeferred {
        /// Who could not be judged.
        candidate_id: CandidateId,
        /// Where it stopped.
        stage: Stage,
        /// Why.
        reason: CandidateTrigger,
    }
    /// How a parent was chosen.
    ParentSelection {
        /// The rule.
        selector: Selector,
        /// Cells of the frontier that the parent holds.
        cells_won: u64,
        /// Sum of the weights that were drawn from; 1 where nothing was drawn.
        total_weight: u64,
        /// Candidates on the frontier.
        frontier_size: u32,
    }
    /// `generation.started`
    GenerationStarted {
        /// Its number, from 0.
        generation: u32,
        /// Whether its candidates are mutations or a merge.
        operation: Operation,
        /// Its parents.
        parent_ids: Vec<CandidateId>,
        /// The common ancestor of a merge's parents.
        #[serde(skip_serializing_if = "Option::is_none")]
        ancestor_id: Option<CandidateId>,
        /// How the parent was chosen; none for a merge.
        #[serde(skip_serializing_if = "Option::is_none")]
        selection: Option<ParentSelection>,
        /// The draw of parent and minibatch that this is.
        draw: u64,
        /// Rows on which the proposals are screened.
        minibatch: Vec<RowId>,
        /// Rows whose traces the proposer sees.
        evidence: Vec<RowId>,
        /// Fields that the proposals may change.
        components: Vec<String>,
        /// What a proposal is laid over: the parent's texts, or the part of a merge on which both parents agree.
        #[schemars(extend("x-keys" = "field"))]
        base: Payload,
    }
    /// `minibatch.skipped`
    MinibatchSkipped {
        /// The parent.
        parent_id: CandidateId,
        /// The draw of parent and minibatch that this is.
        draw: u64,
        /// Rows of the minibatch.
        rows: u32,
    }
    /// A rejected candidate that the proposer should not repeat.
    #[derive(Eq)]
    CarriedFailure {
        /// Who was rejected.
        candidate_id: CandidateId,
        /// Why.
        reason: String,
    }
    /// What is wrong with a proposal.
    #[derive(Eq)]
    Problem {
        /// A stable short code, such as `field_unknown`.
        code: String,
        /// The field that it is about, if it is about one.
        field: Option<String>,
        /// What is wrong, in words.
        message: String,
    }
    /// `proposer.started`
    ProposerStarted {
        /// The request.
        request: RequestId,
        /// The generation that wants proposals.
        generation: u32,
        /// 1 for the first try.
        attempt: u32,
        /// Proposals that are asked for.
        proposal_count: u32,
        /// Rejected candidates that are shown, with the reason.
        carried_failures: Vec<CarriedFailure>,
        /// Problems of the answer before, to be repaired; empty for a first answer.
        problems: Vec<Problem>,
    }
    /// `proposer.completed`
    ProposerCompleted {
        /// The request that is answered.
        request: RequestId,
        /// The generation that asked.
        generation: u32,
        /// Proposals that came.
        proposal_count: u32,
        /// Proposals beyond those that were asked for; they are not looked at.
        ignored: u32,
        /// The model that was asked for.
        requested_model: String,
        /// The model that answered.
        effective_model: String,
        /// What the turn used.
        usage: Usage,
        /// Whether the answer came from the cache.
        cached: bool,
    }
    /// Which model a turn asked for, and which one answered as far as is known.
    #[derive(Eq)]
    TurnModels {
        /// The model that was asked for.
        requested: String,
        /// The model that answered, if it is known.
        effective: Option<String>,
    }
    /// `proposer.failed`
    ProposerFailed {
        /// The request that is answered.
        request: RequestId,
        /// The generation that asked.
        generation: u32,
        /// 1 for the first try.
        attempt: u32,
        /// What kind of failure it was.
        class: FailureClass,
        /// What happened, in words.
        message: String,
        /// What it used all the same.
        usage: Usage,
        /// Whether the failure was replayed from the cache.
        cached: bool,
        /// Which models it was about, if the turn reached one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        models: Option<Box<TurnModels>>,
        /// Whether the next event asks again.
        retried: bool,
    }
    /// `proposal.rejected`
    ProposalRejected {
        /// The generation that asked.
        generation: u32,
        /// Place of the proposal in its answer.
        index: u32,
        /// Every problem that was found.
        problems: Vec<Problem>,
    }
    /// `candidate.duplicate_skipped`
    DuplicateSkipped {
        /// The known candidate.
        candidate_id: CandidateId,
        /// The generation that asked.
        generation: u32,
        /// Place of the proposal in its answer.
        index: u32,
    }
    /// `candidate.leakage_detected`
    LeakageDetected {
        /// Whose text it is.
        candidate_id: CandidateId,
        /// The field of the text.
        field: String,
        /// The train row whose text is repeated.
        row_id: RowId,
        /// Length of the repetition, in characters.
        chars: u32,
    }
    /// A cell of the frontier that a candidate holds.
    CellWon {
        /// The row of the cell; none where a cell is an objective over all rows.
        #[serde(skip_serializing_if = "Option::is_none")]
        row_id: Option<RowId>,
        /// The objective of the cell.
        objective: String,
        /// The value with which it is held.
        value: f64,
        /// Whether the holders before it lose the cell.
        alone: bool,
    }
    /// `frontier.updated`
    FrontierUpdated {
        /// Who was evaluated.
        candidate_id: CandidateId,
        /// Its mean on the deciding objective, such that larger is better; where it has no score, that of the best counts.
        merit: f64,
        /// Cells that the candidate holds, alone or tied.
        cells_won: u32,
        /// Whether it holds any cell.
        joined: bool,
        /// These cells.
        cells: Vec<CellWon>,
        /// Candidates that hold no cell any more.
        left: Vec<CandidateId>,
        /// Candidates on the frontier now.
        size: u32,
    }
    /// `generation.completed`
    GenerationCompleted {
        /// Its number.
        generation: u32,
        /// Whether its candidates were mutations or a merge.
        operation: Operation,
        /// Candidates that were registered.
        registered: u32,
        /// Those of them that were accepted.
        accepted: u32,
        /// The best candidate so far.
        best_candidate_id: CandidateId,
        /// Its score on train rows.
        best_train_score: Option<Score>,
        /// Candidates on the frontier.
        frontier_size: u32,
        /// Candidates of the run so far.
        candidates: u32,
    }
    /// `heldout.started`, `heldout.partial`
    HeldoutChosen {
        /// The candidates.
        candidate_ids: Vec<CandidateId>,
        /// Held-out rows of each.
        rows: u32,
    }
}

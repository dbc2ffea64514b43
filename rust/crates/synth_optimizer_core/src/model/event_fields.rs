//! The fields of each event, as they stand on the wire.

use std::collections::BTreeMap;

use super::answer::FailureClass;
use super::budget::Dimension;
use super::error::ErrorCode;
use super::ids::{CallId, CandidateId, Payload, RowId};
use super::lifecycle::{CandidateTrigger, RunState, RunTrigger};
use super::score::{Comparison, Gain, Score};
use super::usage::{Cost, Usage};
use crate::string_enum;

/// Defines plain data that is stored, shown and documented as it stands here.
macro_rules! fields {
    ($($(#[$meta:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty,)+ })+) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub struct $name { $($(#[$about])* pub $field: $type,)+ }
    )+ };
}

string_enum! {
    /// Which rule ended the search.
    StopKind {
        /// The best score reached `gepa.score_threshold_value`.
        ScoreThreshold = "score_threshold",
        /// `gepa.no_improvement_generations` passed without a better best.
        NoImprovement = "no_improvement",
        /// The candidates have nothing to gain any more.
        PerfectScore = "perfect_score",
        /// No row is left on which anything could be measured.
        NothingMeasurable = "nothing_measurable",
        /// The money is used up.
        MaxCost = "max_cost_usd",
        /// The tokens are used up.
        MaxTokens = "max_tokens",
        /// The time is used up.
        MaxTime = "max_time_seconds",
        /// The rollouts are used up.
        MaxRollouts = "max_rollouts",
        /// The generations are used up.
        MaxGenerations = "max_generations",
        /// Somebody asked for an early finish.
        External = "external",
        /// Too many of the last rollouts failed.
        CircuitBreaker = "circuit_breaker",
        /// The seed could not be measured.
        SeedFailed = "seed_failed",
        /// The proposer brought nothing valid and new.
        ProposerExhausted = "proposer_exhausted",
        /// Something broke that the run cannot go on without.
        Error = "error",
    }
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

// The run as a whole: its setup, how it is carried out, and its end.
fields! {
    /// `gepa.run.started`
    RunStarted {
        /// The optimizer, `gepa`.
        algorithm: String,
        /// Digest of the settings that can change a decision.
        config_digest: String,
        /// `run.seed`.
        seed: u64,
        /// `container.url`, without credentials.
        container_url: String,
    }
    /// `optimizer.state.transitioned`
    StateTransitioned {
        /// The state before.
        from: RunState,
        /// The state after.
        to: RunState,
        /// What moved it.
        trigger: RunTrigger,
    }
    /// `container.contract.verified`
    ContractVerified {
        /// The advertised version of the contract.
        version: String,
        /// `dataset`, `taskset`, or both.
        dialects: Vec<String>,
        /// `capabilities.rollout_modes`; empty when the container does not say.
        rollout_modes: Vec<String>,
        /// Advertised routes by their key.
        routes: BTreeMap<String, String>,
    }
    /// `container.task_info.loaded`
    TaskInfoLoaded {
        /// Digest of the description.
        digest: String,
    }
    /// `dataset.seeds.mapped`
    RowsMapped {
        /// `split_list` when the container lists the ids of the split, `split_and_seed` when they are put together.
        rule: String,
        /// Train seeds with their ids, in the order of the config.
        train: Vec<(i64, String)>,
        /// The same for held-out seeds.
        heldout: Vec<(i64, String)>,
    }
    /// `run.resumed`
    RunResumed {
        /// Events that were stored before.
        events: u64,
        /// Answers that had come and wait for their turn.
        waiting: u32,
        /// Calls that had been sent and whose outcome is not known. They are sent again under the same id.
        unknown_outcomes: u32,
    }
    /// `rollout.transport.fallback`
    TransportFallback {
        /// The submission mode of the config.
        requested: String,
        /// The mode in which rollouts are sent from here on.
        effective: String,
        /// What the container said or advertises.
        reason: String,
    }
    /// `rollout.concurrency.adjusted`
    ConcurrencyAdjusted {
        /// Rollouts at once before.
        old_limit: u32,
        /// Rollouts at once from here on.
        new_limit: u32,
        /// The HTTP status that showed the overload; none for an increase.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
    }
    /// `cache.damaged`
    CacheDamaged {
        /// Which kind of call the entry belongs to.
        boundary: String,
        /// The key of the entry.
        key: String,
    }
    /// `container.program.loaded`
    ProgramLoaded {
        /// The container's name of the program.
        program_id: String,
        /// Digest of its modules, fixed ones included.
        program_digest: String,
        /// Every field that the program lets change.
        mutable_fields: Vec<String>,
        /// Those that this run may change.
        target_fields: Vec<String>,
    }
    /// `dataset.rows.loaded`
    RowsLoaded {
        /// Train rows.
        train_rows: u32,
        /// Held-out rows.
        heldout_rows: u32,
        /// Train rows of the full evaluation.
        pareto_pool: u32,
        /// Train rows that minibatches are drawn from.
        minibatch_pool: u32,
        /// Train rows whose traces the proposer may see.
        reflection_pool: u32,
        /// Held-out rows that are measured.
        heldout_pool: u32,
        /// Digest of all rows.
        rows_digest: String,
    }
    /// `proposer.ready`
    ProposerReady {
        /// `proposer.backend`.
        backend: String,
        /// The model that is asked for.
        model: String,
        /// Who serves it.
        provider: String,
        /// Path of the program; the endpoint of a proposer that is only called.
        program: String,
        /// Where the program was found, or the setting that names the endpoint.
        source: String,
        /// Version of the program; empty for an endpoint.
        version: String,
        /// How it authenticates.
        auth: String,
        /// What it may touch.
        sandbox: String,
    }
    /// `budget.refused`
    BudgetRefused {
        /// What is limited.
        dimension: Dimension,
        /// How much was wanted, in the unit of the dimension.
        wanted: u64,
        /// How much was left.
        available: u64,
        /// What the amount was wanted for.
        purpose: String,
    }
    /// `rollout.circuit_breaker.tripped`
    CircuitBreakerTripped {
        /// Failures among them.
        failures: u32,
        /// How many of the last rollouts were looked at.
        window: u32,
        /// The share of failures that is tolerated.
        tolerance: f64,
    }
    /// Which rule ended the search, and why.
    StoppedBy {
        /// The rule.
        kind: StopKind,
        /// The limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<f64>,
        /// The value that met it.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<f64>,
        /// Why, in words, where the rule has more to say.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// An error that ends a run; `gepa.failure.raised`
    Failure {
        /// The stable code.
        code: ErrorCode,
        /// What happened, in words.
        message: String,
    }
    /// `gepa.stop`
    StopDecided {
        /// The rule.
        stopped_by: StoppedBy,
        /// Set when the run cannot end well.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    /// A reason in words.
    Reason {
        /// Why, in words.
        reason: String,
    }
    /// `clock.observed`
    ClockObserved {
        /// Measured time of the run, without the time in which it did not run.
        elapsed_millis: u64,
    }
    /// What was used, by the limits, and what was paid.
    Bill {
        /// In dollars; null is unknown.
        #[schemars(with = "Option<f64>")]
        cost_usd: Cost,
        /// Calls that were made.
        paid_calls: u64,
        /// Calls that the cache answered.
        cached_calls: u64,
        /// Prompt tokens of paid calls.
        prompt_tokens: u64,
        /// Completion tokens of paid calls.
        completion_tokens: u64,
        /// Tokens of paid calls.
        total_tokens: u64,
        /// Measured time, where a time limit asks for it.
        elapsed_millis: Option<u64>,
    }
    /// Rollouts that count against the limits.
    RolloutCount {
        /// Train rollouts.
        train: u64,
        /// Held-out rollouts.
        heldout: u64,
        /// Those of which nobody knows whether they ran.
        unknown_outcomes: u64,
    }
    /// Seed or returned candidate, on train or held-out rows.
    NamedScore {
        /// `seed` or `best`.
        role: String,
        /// `train` or `heldout`.
        split: String,
        /// The candidate.
        candidate_id: CandidateId,
        /// Its score on the deciding objective.
        score: Score,
    }
    /// `gepa.run.finished`
    RunFinished {
        /// The candidate that is returned.
        best_candidate_id: CandidateId,
        /// Why the search ended.
        stopped_by: StoppedBy,
        /// Scores of the seed and of the returned candidate.
        scores: Vec<NamedScore>,
        /// Returned candidate minus seed on the train rows that both have.
        #[serde(skip_serializing_if = "Option::is_none")]
        train_gain: Option<Gain>,
        /// The same on held-out rows.
        #[serde(skip_serializing_if = "Option::is_none")]
        heldout_gain: Option<Gain>,
        /// Generations of the run.
        generations: u32,
        /// Candidates of the run.
        candidates: u32,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// What was used and paid.
        bill: Bill,
    }
    /// `gepa.run.failed`
    RunFailed {
        /// The stable code.
        error_code: ErrorCode,
        /// What happened, in words.
        message: String,
        /// The best candidate until then, if there was one.
        best_candidate_id: Option<CandidateId>,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// What was used and paid.
        bill: Bill,
    }
    /// `gepa.run.cancelled`
    RunEnded {
        /// Why, in words.
        reason: String,
        /// The best candidate until then, if there was one.
        best_candidate_id: Option<CandidateId>,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// What was used and paid.
        bill: Bill,
    }
}

// The search: rollouts, candidates, proposals and generations.
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
        #[serde(rename = "first_request")]
        first_call_id: CallId,
        /// The evaluation that the rollouts belong to: the first request of it.
        evaluation: CallId,
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
        #[serde(rename = "request")]
        call_id: CallId,
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
        #[serde(rename = "request")]
        call_id: CallId,
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
        evaluation: CallId,
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
        #[serde(rename = "request")]
        call_id: CallId,
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
        #[serde(rename = "request")]
        call_id: CallId,
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
        #[serde(rename = "request")]
        call_id: CallId,
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
        #[serde(rename = "merit")]
        ranking_score: f64,
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

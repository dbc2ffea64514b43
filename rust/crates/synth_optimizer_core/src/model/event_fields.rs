//! The fields of each event, as they are stored and shown.

use std::collections::BTreeMap;

use super::answer::FailureClass;
use super::budget::Dimension;
use super::claim::Claim;
use super::error::ErrorCode;
use super::event_effects::CallKind;
use super::ids::{CallId, CandidateId, Payload, RowId};
use super::lifecycle::{CandidateTrigger, RunState, RunTrigger};
use super::score::{Comparison, Gain, Score};
use super::usage::{Cost, Usage};
use crate::string_enum;

/// Defines plain data types that are stored, shown and documented with these fields.
macro_rules! fields {
    ($($(#[$meta:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty,)+ })+) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub struct $name { $($(#[$about])* pub $field: $type,)+ }
    )+ };
}

string_enum! {
    /// The rule that ended the search.
    StopKind {
        /// The best score reached `gepa.score_threshold_value`.
        ScoreThreshold = "score_threshold",
        /// `gepa.no_improvement_generations` generations passed without a better best score.
        NoImprovement = "no_improvement",
        /// The best candidate has nothing left to gain.
        PerfectScore = "perfect_score",
        /// No row is left on which a candidate can be measured.
        NothingMeasurable = "nothing_measurable",
        /// The cost limit is reached.
        MaxCost = "max_cost_usd",
        /// The token limit is reached.
        MaxTokens = "max_tokens",
        /// The time limit is reached.
        MaxTime = "max_time_seconds",
        /// The rollout limit is reached.
        MaxRollouts = "max_rollouts",
        /// The generation limit is reached.
        MaxGenerations = "max_generations",
        /// A control request asked the run to finish early.
        External = "external",
        /// Too many of the last rollouts failed.
        CircuitBreaker = "circuit_breaker",
        /// The initial candidate could not be measured.
        SeedFailed = "seed_failed",
        /// The proposer returned no valid and new proposal.
        ProposerExhausted = "proposer_exhausted",
        /// Something that the run needs is broken.
        Error = "error",
    }
    /// The purpose of a rollout.
    Stage {
        /// The initial candidate on all train rows.
        SeedFullTrain = "seed_full_train",
        /// The parent on the rows of a generation on which it has no score.
        ParentMinibatchReference = "parent_minibatch_reference",
        /// A proposal on the minibatch, against its parent.
        CandidateMinibatch = "candidate_minibatch",
        /// A promoted candidate on all train rows.
        CandidateFullTrain = "candidate_full_train",
        /// A candidate again on a row on which it has a score, to learn whether rollouts repeat exactly.
        Repeat = "repeat",
        /// A screened candidate on a few other rows of its parent, after a sprint that was clearly worse.
        Glance = "glance",
        /// The head of a sprint and the last confirmed candidate on the same rows.
        Check = "check",
        /// The initial and the best candidate on held-out rows, after the search.
        Heldout = "heldout",
    }
    /// How a candidate is made.
    Operation {
        /// It is the initial candidate.
        Seed = "seed",
        /// The proposer changed its parent.
        Mutate = "mutate",
        /// It combines fields of two parents.
        Merge = "merge",
        /// It carries changes of late candidates over to the head of the sprint, or to the best candidate in the reference search.
        Rebase = "rebase",
    }
    /// How the search decides on candidates.
    SearchMode {
        /// Sprints, unless a setting belongs to the reference search only, or the budget is large for very few rows.
        Auto = "auto",
        /// Screened changes are built on at once, and the sum of several changes is checked against the last confirmed
        /// candidate.
        Sprint = "sprint",
        /// Plain GEPA: every screened candidate is evaluated on all train rows, and parents come from the frontier.
        Reference = "reference" | "gepa",
    }
    /// The verdict of a check.
    CheckVerdict {
        /// The head is better: it is the best candidate now.
        Adopted = "adopted",
        /// The head is not good enough: the next proposals start from the best candidate again.
        RolledBack = "rolled_back",
        /// The rollouts of the check do not tell; the sprint continues.
        Undecided = "undecided",
    }
    /// Something outside of this process that a run needs.
    Dependency {
        Container = "container",
        Proposer = "proposer",
        /// Room on the disk of the run directory.
        Disk = "disk",
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
    /// Whether a higher or a lower value of an objective is better.
    Direction {
        Maximize = "maximize" | "max" | "higher" | "higher_is_better" | "up",
        Minimize = "minimize" | "min" | "lower" | "lower_is_better" | "down",
    }
    /// How parents are chosen.
    Selector {
        /// A candidate of the frontier, with a probability proportional to the cells it holds.
        ParetoWeighted = "pareto_weighted" | "pareto",
        /// A candidate of the frontier, all with the same probability.
        UniformPareto = "uniform_pareto",
        /// An evaluated candidate, all with the same probability.
        Random = "random",
        /// The best candidate.
        CurrentBest = "current_best",
        /// One of the best `k` candidates, with a probability proportional to the cells it holds.
        TopKPareto = "top_k_pareto",
        /// The best candidate, or a random one with probability `epsilon`.
        EpsilonGreedy = "epsilon_greedy",
    }
}

impl Direction {
    /// Returns a value that is higher when it is better.
    pub fn oriented(self, value: f64) -> f64 {
        match self {
            Self::Maximize => value,
            Self::Minimize => -value,
        }
    }
}

impl StopKind {
    /// Returns whether calls that wait for a worker are withdrawn. After the other rules, their answers still count.
    pub const fn withdraws_waiting_calls(self) -> bool {
        matches!(self, Self::External | Self::MaxTime)
    }
}

// The run as a whole: its setup, its execution and its end.
fields! {
    /// `gepa.run.started`
    RunStarted {
        /// The algorithm, `gepa`.
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
        /// The trigger of the transition.
        trigger: RunTrigger,
    }
    /// `container.contract.verified`
    ContractVerified {
        /// The advertised version of the contract.
        version: String,
        /// `dataset`, `taskset`, or both.
        dialects: Vec<String>,
        /// `capabilities.rollout_modes`; empty if the container advertises none.
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
        /// `split_list` if the container lists the ids of the split, `split_and_seed` if ids are made of split and row number.
        rule: String,
        /// Train row numbers with their ids, in the order of the config.
        train: Vec<(i64, String)>,
        /// Held-out row numbers with their ids.
        heldout: Vec<(i64, String)>,
    }
    /// `run.resumed`
    RunResumed {
        /// Events stored before the resume.
        stored_events: u64,
        /// Answers in the inbox that wait to retire.
        waiting_answers: u32,
        /// Sent calls whose outcome is unknown. They are sent again with the same id.
        unknown_outcomes: u32,
    }
    /// `call.outcome_unknown`
    OutcomeUnknown {
        /// The call.
        call_id: CallId,
        /// Whether it is a rollout or a proposer turn.
        kind: CallKind,
        /// The stage of a rollout.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stage: Option<Stage>,
        /// Why its answer is missing.
        cause: String,
    }
    /// `run.waiting`
    RunWaiting {
        /// What is unavailable.
        waiting_for: Dependency,
        /// Why it is unavailable.
        cause: String,
        /// Since when the run waits, in milliseconds since 1970.
        since: u64,
        /// Number of failed tries so far.
        tries: u32,
        /// When the run tries again, in milliseconds since 1970.
        next_try_at: u64,
        /// When the run stops waiting and is interrupted, in milliseconds since 1970.
        deadline_at: u64,
    }
    /// `run.waiting.ended`
    WaitingEnded {
        /// What is available again.
        waiting_for: Dependency,
        /// Duration of the outage, in milliseconds.
        waited_millis: u64,
    }
    /// `rollout.transport.fallback`
    TransportFallback {
        /// The submission mode of the config.
        requested: String,
        /// The mode in which rollouts are sent from now on.
        effective: String,
        /// The container's answer or advertised capabilities.
        reason: String,
    }
    /// `rollout.concurrency.adjusted`
    ConcurrencyAdjusted {
        /// The limit before.
        old_limit: u32,
        /// The limit from now on.
        new_limit: u32,
        /// The most rollouts that may run at once.
        workers: u32,
        /// The HTTP status that signalled the overload; absent for an increase.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
    }
    /// `container.reply.altered`
    ReplyAltered {
        /// The call.
        call_id: CallId,
        /// What was changed.
        changes: String,
    }
    /// `cache.damaged`
    CacheDamaged {
        /// The kind of the call.
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
        /// Every mutable field of the program.
        mutable_fields: Vec<String>,
        /// The fields that this run may change.
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
        /// Train rows from which minibatches are drawn.
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
        /// The requested model. Without one, the model that the proposer chose.
        model: String,
        /// The provider of the model.
        provider: String,
        /// Path of the program, or the URL of the endpoint.
        program: String,
        /// Where the program was found, or the setting that names the endpoint.
        source: String,
        /// Version of the program; empty for an endpoint.
        version: String,
        /// How it authenticates.
        auth: String,
        /// What the sandbox allows.
        sandbox: String,
        /// The announced end of the model, if the endpoint names one in its list of models.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model_shutdown: Option<ModelShutdown>,
    }
    /// The announced end of a model, as an endpoint names it in its list of models.
    #[derive(Eq)]
    ModelShutdown {
        /// The day, such as `2026-01-31`.
        date: String,
        /// The field of the list that names it, such as `shutdown_date`.
        field: String,
        /// Whether the day was over at the check.
        is_past: bool,
    }
    /// `budget.refused`
    BudgetRefused {
        /// The limited resource.
        dimension: Dimension,
        /// The needed amount, in the unit of the dimension.
        required: u64,
        /// The available amount.
        available: u64,
        /// What the amount is needed for.
        purpose: String,
    }
    /// `rollout.circuit_breaker.tripped`
    CircuitBreakerTripped {
        /// Number of failed rows in the window.
        failures: u32,
        /// Number of recent rows in the window.
        window: u32,
        /// The tolerated share of failures.
        tolerance: f64,
    }
    /// The rule that ended the search, with its values.
    StoppedBy {
        /// The rule.
        kind: StopKind,
        /// The limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<f64>,
        /// The value that reached the limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<f64>,
        /// Additional explanation, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// An error that ends a run; `gepa.failure.raised`
    Failure {
        /// The stable code.
        code: ErrorCode,
        /// What happened.
        message: String,
        /// What to do, if the code alone does not tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    }
    /// `gepa.stop`
    StopDecided {
        /// The rule.
        stopped_by: StoppedBy,
        /// Set if the run fails.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    /// A reason.
    Reason {
        /// The reason.
        reason: String,
    }
    /// `clock.observed`
    ClockObserved {
        /// Measured running time. Time in which no process worked on the run does not count.
        elapsed_millis: u64,
    }
    /// Usage of the run, and its cost.
    Bill {
        /// Cost in dollars; null is unknown.
        #[schemars(with = "Option<f64>")]
        cost_usd: Cost,
        /// Sent calls.
        sent_calls: u64,
        /// Calls that the cache answered.
        cached_calls: u64,
        /// Prompt tokens of sent calls.
        prompt_tokens: u64,
        /// Completion tokens of sent calls.
        completion_tokens: u64,
        /// Total tokens of sent calls.
        total_tokens: u64,
        /// Measured running time, if there is a time limit.
        elapsed_millis: Option<u64>,
        /// Limits that were exceeded, because calls used more than their estimates.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        shortfalls: Vec<EstimateShortfall>,
    }
    /// A limit that was exceeded, because calls used more than their estimates.
    EstimateShortfall {
        /// The limit.
        kind: StopKind,
        /// Its value, in dollars, tokens or seconds.
        limit: f64,
        /// The amount that was spent.
        spent: f64,
    }
    /// Rollouts that count against the limits.
    RolloutCount {
        /// Train rollouts.
        train: u64,
        /// Held-out rollouts.
        heldout: u64,
        /// Rollouts that may or may not have run.
        unknown_outcomes: u64,
    }
    /// The score of the initial or the returned candidate, on train or held-out rows.
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
        /// Scores of the initial and of the returned candidate.
        scores: Vec<NamedScore>,
        /// Gain of the returned over the initial candidate, on the train rows that both have scores for.
        #[serde(skip_serializing_if = "Option::is_none")]
        train_gain: Option<Gain>,
        /// The same gain on held-out rows.
        #[serde(skip_serializing_if = "Option::is_none")]
        heldout_gain: Option<Gain>,
        /// What the held-out rows show. Only a search in sprints records it, because it decides which candidate is returned; for
        /// the reference search, the outputs derive it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        claim: Option<Box<Claim>>,
        /// Number of completed generations.
        generations: u32,
        /// Number of candidates.
        candidates: u32,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// Usage and cost.
        bill: Bill,
    }
    /// `gepa.run.failed`
    RunFailed {
        /// The stable code.
        error_code: ErrorCode,
        /// What happened.
        message: String,
        /// What to do, if the code alone does not tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
        /// The best candidate so far, if any.
        best_candidate_id: Option<CandidateId>,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// Usage and cost.
        bill: Bill,
    }
    /// `gepa.run.cancelled`
    RunCancelled {
        /// The reason.
        reason: String,
        /// The best candidate so far, if any.
        best_candidate_id: Option<CandidateId>,
        /// Rollouts that count against the limits.
        rollouts: RolloutCount,
        /// Usage and cost.
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
        /// What a cell of the frontier is.
        frontier_type: FrontierType,
        /// Every objective, the deciding one first.
        objectives: Vec<Objective>,
    }
    /// `candidate.registered`
    CandidateRegistered {
        /// The id, derived from the texts.
        candidate_id: CandidateId,
        /// How it was made.
        operation: Operation,
        /// Its parents: none for the initial candidate, two for a merge. A rebase has the candidate that it builds on,
        /// and the carried ones.
        parent_ids: Vec<CandidateId>,
        /// The generation that made it; null for the initial candidate.
        generation: Option<u32>,
        /// Its texts.
        #[schemars(extend("x-keys" = "field"))]
        payload: Payload,
        /// Fields whose text differs from the parent's.
        changed_fields: Vec<String>,
        /// The reason for the change, written by the proposer.
        rationale: String,
        /// Fields that the proposal changed without being asked; their changes were left out.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        dropped_fields: Vec<String>,
        /// Share of the parent's lines that the new texts of a proposal keep, in the changed fields. Missing if the parent has no
        /// lines there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept_share: Option<f64>,
    }
    /// `rollout.requested`
    RolloutsRequested {
        /// Number of the first call. The rows' calls are numbered consecutively.
        first_call_id: CallId,
        /// The evaluation that the rollouts belong to, named by its first call.
        evaluation: CallId,
        /// The candidate to run.
        candidate_id: CandidateId,
        /// The purpose of the rollouts.
        stage: Stage,
        /// The generation that the rollouts belong to, if any.
        generation: Option<u32>,
        /// The rows, one call each.
        row_ids: Vec<RowId>,
        /// The attempt, from 1.
        attempt: u32,
        /// The repetition of the same measurement, from 0.
        replicate: u32,
    }
    /// `rollout.finished`
    RolloutFinished {
        /// The call that is settled.
        call_id: CallId,
        /// The candidate that was run.
        candidate_id: CandidateId,
        /// The row.
        row_id: RowId,
        /// The purpose of the rollout.
        stage: Stage,
        /// The reward that the container returned.
        reward: f64,
        /// Scores by objective, if the container returns any.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        objectives: BTreeMap<String, f64>,
        /// Usage of the rollout.
        usage: Usage,
        /// Whether the answer came from the cache.
        cached: bool,
        /// Digest of the stored reply.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace_digest: Option<String>,
    }
    /// `rollout.failed`
    RolloutFailed {
        /// The call that is settled.
        call_id: CallId,
        /// The candidate to run.
        candidate_id: CandidateId,
        /// The row.
        row_id: RowId,
        /// The purpose of the rollout.
        stage: Stage,
        /// The attempt, from 1.
        attempt: u32,
        /// The kind of the failure.
        class: FailureClass,
        /// What happened.
        message: String,
        /// Reported usage of the failed call.
        usage: Usage,
        /// Whether the failure was replayed from the cache.
        cached: bool,
        /// Whether one of the next events requests the same rollout again.
        retried: bool,
    }
    /// The end of an evaluation.
    EvaluationCompleted {
        /// The evaluation, named by its first call.
        evaluation: CallId,
        /// The evaluated candidate.
        candidate_id: CandidateId,
        /// The generation that the evaluation belongs to, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        generation: Option<u32>,
        /// Requested rows.
        rows: u32,
        /// Requested rows without a score.
        failed: u32,
        /// Score on the deciding objective; null if no row has a score.
        score: Option<Score>,
    }
    /// `candidate.promoted`, `candidate.accepted`, `candidate.rejected`
    CandidateDecided {
        /// The candidate.
        candidate_id: CandidateId,
        /// The evaluation that the decision is based on.
        stage: Stage,
        /// A stable short code, such as `primary_improved`.
        reason: String,
        /// The reason in words, if the code does not say everything, such as the guarded row that got worse.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// The comparison behind the decision; absent for the initial candidate.
        #[serde(skip_serializing_if = "Option::is_none")]
        comparison: Option<Comparison>,
    }
    /// `candidate.deferred`
    CandidateDeferred {
        /// The candidate.
        candidate_id: CandidateId,
        /// The evaluation that was not decided.
        stage: Stage,
        /// The reason.
        reason: CandidateTrigger,
    }
    /// How a parent was chosen.
    ParentSelection {
        /// The rule.
        selector: Selector,
        /// Cells of the frontier that the parent holds.
        cells_won: u64,
        /// Sum of the weights of the random draw; 1 without a draw.
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
        /// How the parent was chosen; absent for a merge.
        #[serde(skip_serializing_if = "Option::is_none")]
        selection: Option<ParentSelection>,
        /// The number of this draw of parent and minibatch.
        draw: u64,
        /// Rows on which the proposals are screened.
        minibatch: Vec<RowId>,
        /// Rows whose traces the proposer sees.
        evidence: Vec<RowId>,
        /// Fields that the proposals may change.
        components: Vec<String>,
        /// The texts that a proposal starts from: the parent's texts, or the merged texts of both parents.
        #[schemars(extend("x-keys" = "field"))]
        base: Payload,
    }
    /// `minibatch.skipped`
    MinibatchSkipped {
        /// The parent.
        parent_id: CandidateId,
        /// The number of this draw of parent and minibatch.
        draw: u64,
        /// Rows of the minibatch.
        rows: u32,
    }
    /// A rejected candidate that the proposer should not repeat.
    #[derive(Eq)]
    CarriedFailure {
        /// The rejected candidate.
        candidate_id: CandidateId,
        /// The reason for the rejection.
        reason: String,
    }
    /// One problem of a proposal.
    #[derive(Eq)]
    Problem {
        /// A stable short code, such as `field_unknown`.
        code: String,
        /// The field with the problem, if it concerns one field.
        field: Option<String>,
        /// What is wrong.
        message: String,
    }
    /// `proposer.started`
    ProposerStarted {
        /// The call.
        call_id: CallId,
        /// The generation that requests proposals.
        generation: u32,
        /// The attempt, from 1.
        attempt: u32,
        /// Number of requested proposals.
        proposal_count: u32,
        /// Rejected candidates that the proposer sees, with the reason.
        carried_failures: Vec<CarriedFailure>,
        /// Problems of the previous answer, to be repaired; empty for the first turn.
        problems: Vec<Problem>,
    }
    /// `proposer.completed`
    ProposerCompleted {
        /// The call that is settled.
        call_id: CallId,
        /// The generation that requested proposals.
        generation: u32,
        /// Number of returned proposals.
        proposal_count: u32,
        /// Number of ignored proposals, beyond the requested ones.
        ignored: u32,
        /// The requested model.
        requested_model: String,
        /// The model that answered.
        effective_model: String,
        /// Usage of the turn.
        usage: Usage,
        /// Whether the answer came from the cache.
        cached: bool,
    }
    /// The requested model of a turn, and the model that answered.
    #[derive(Eq)]
    TurnModels {
        /// The requested model.
        requested: String,
        /// The model that answered, if known.
        effective: Option<String>,
    }
    /// `proposer.failed`
    ProposerFailed {
        /// The call that is settled.
        call_id: CallId,
        /// The generation that requested proposals.
        generation: u32,
        /// The attempt, from 1.
        attempt: u32,
        /// The kind of the failure.
        class: FailureClass,
        /// What happened.
        message: String,
        /// Reported usage of the failed call.
        usage: Usage,
        /// Whether the failure was replayed from the cache.
        cached: bool,
        /// The models of the turn, if it reached one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        models: Option<Box<TurnModels>>,
        /// Whether the turn is tried again.
        retried: bool,
    }
    /// `proposal.rejected`
    ProposalRejected {
        /// The generation that requested proposals.
        generation: u32,
        /// Index of the proposal in the answer.
        index: u32,
        /// All problems of the proposal.
        problems: Vec<Problem>,
    }
    /// `candidate.duplicate_skipped`
    DuplicateSkipped {
        /// The known candidate.
        candidate_id: CandidateId,
        /// The generation that requested proposals.
        generation: u32,
        /// Index of the proposal in the answer.
        index: u32,
    }
    /// `candidate.leakage_detected`
    LeakageDetected {
        /// The candidate.
        candidate_id: CandidateId,
        /// The field that contains the repeated text.
        field: String,
        /// The train row that the text comes from.
        row_id: RowId,
        /// Length of the repeated text, in characters.
        chars: u32,
    }
    /// A cell of the frontier that a candidate holds.
    CellWon {
        /// The row of the cell; absent if the cell is an objective over all rows.
        #[serde(skip_serializing_if = "Option::is_none")]
        row_id: Option<RowId>,
        /// The objective of the cell.
        objective: String,
        /// The candidate's value.
        value: f64,
        /// Whether the previous holders lose the cell.
        alone: bool,
    }
    /// `frontier.updated`
    FrontierUpdated {
        /// The evaluated candidate.
        candidate_id: CandidateId,
        /// Its mean on the deciding objective, negated if lower is better. On rows without a score, the best candidate's score
        /// counts.
        ranking_score: f64,
        /// Number of cells that the candidate holds, alone or tied.
        cells_won: u32,
        /// Whether it holds any cell.
        joined: bool,
        /// The cells that it holds.
        cells: Vec<CellWon>,
        /// Candidates that no longer hold any cell.
        removed: Vec<CandidateId>,
        /// Number of candidates on the frontier.
        size: u32,
    }
    /// `generation.completed`
    GenerationCompleted {
        /// Its number.
        generation: u32,
        /// Whether its candidates were mutations or a merge.
        operation: Operation,
        /// Number of registered candidates.
        registered: u32,
        /// Number of accepted candidates among them.
        accepted: u32,
        /// The best candidate so far.
        best_candidate_id: CandidateId,
        /// Its score on train rows.
        best_train_score: Option<Score>,
        /// Candidates on the frontier.
        frontier_size: u32,
        /// Number of candidates of the run so far.
        candidates: u32,
    }
    /// `search.chosen`
    SearchChosen {
        /// `sprint` or `reference`.
        search: SearchMode,
        /// Why, in words.
        reason: String,
    }
    /// `noise.measured`
    NoiseMeasured {
        /// Rows on which a candidate was rolled out twice.
        pairs: u32,
        /// Rows on which the two scores differ.
        differing: u32,
        /// Variance of a score between rollouts of the same candidate on the same row.
        variance: f64,
        /// Whether scores are treated as noisy. Without any pair they are.
        is_noisy: bool,
    }
    /// `window.changed`
    WindowChanged {
        /// Maximum number of generations in progress at the same time.
        generations: u32,
        /// Why, in words.
        reason: String,
    }
    /// `head.moved`
    HeadMoved {
        /// The new head: the next proposals start from it.
        candidate_id: CandidateId,
        /// The number of the sprint, from 0. A sprint that is rolled back ends it.
        sprint: u32,
        /// Number of changes since the best candidate.
        steps: u32,
    }
    /// `measurement.completed`
    MeasurementCompleted {
        /// The evaluation, named by its first call.
        evaluation: CallId,
        /// The measured candidate.
        candidate_id: CandidateId,
        /// The generation that the measurement belongs to, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        generation: Option<u32>,
        /// The purpose of the measurement.
        stage: Stage,
        /// Requested rows.
        rows: u32,
        /// Requested rows without a score.
        failed: u32,
    }
    /// `check.started`
    CheckStarted {
        /// Its number, from 0.
        check: u32,
        /// The head of the sprint.
        head_id: CandidateId,
        /// The best candidate, which the head is compared with.
        anchor_id: CandidateId,
        /// Number of changes between them.
        steps: u32,
        /// Maximum number of rollouts of this check; null if it may use all that are left, because the search ends soon.
        max_rollouts: Option<u64>,
    }
    /// `check.decided`
    CheckDecided {
        /// Its number, from 0.
        check: u32,
        /// The head of the sprint.
        head_id: CandidateId,
        /// The best candidate, which the head was compared with.
        anchor_id: CandidateId,
        /// The verdict.
        verdict: CheckVerdict,
        /// The reason in words.
        reason: String,
        /// Rows on which both have scores.
        n: u32,
        /// Mean difference on these rows, positive when the head is better; null without rows.
        mean: Option<f64>,
        /// Variance of the differences; null for fewer than two rows.
        variance: Option<f64>,
        /// Probability that the head is better, given the differences and a sceptical prior; null without rows.
        probability: Option<f64>,
        /// Rollouts that this check requested.
        rollouts: u64,
        /// Score of the head on the train rows on which it was measured.
        head_score: Option<Score>,
    }
    /// `candidate.superseded`
    CandidateSuperseded {
        /// The candidate.
        candidate_id: CandidateId,
        /// The candidate that was decided in its place, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<CandidateId>,
        /// The reason in words.
        reason: String,
    }
    /// `heldout.started`, `heldout.partial`
    HeldoutChosen {
        /// The candidates.
        candidate_ids: Vec<CandidateId>,
        /// Number of held-out rows for each candidate.
        rows: u32,
    }
}

impl ProposerReady {
    /// Returns the warning about a model whose end the endpoint has announced.
    pub fn shutdown_warning(&self) -> Option<String> {
        let ModelShutdown { date, field, is_past } = self.model_shutdown.as_ref()?;
        let when = if *is_past { format!("ended on {date}, which is past") } else { format!("ends on {date}") };
        Some(format!("the model {:?} {when}, as `{field}` in the model list of its endpoint says", self.model))
    }
}

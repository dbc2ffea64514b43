//! A small run as its driver would store it, with every event type.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use synth_optimizer_core::config::gepa::{Direction, FrontierType, Selector};
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, ProposalAnswer, RolloutAnswer};
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{
    Bill, BudgetRefused, CacheDamaged, CandidateDecided, CandidateDeferred, CandidateRegistered, CandidateSuperseded,
    CellWon, CheckDecided, CheckStarted, CheckVerdict, CircuitBreakerTripped, ClockObserved, ConcurrencyAdjusted,
    ContractVerified, Dependency, DuplicateSkipped, EvaluationCompleted, Failure, FrontierUpdated, GenerationCompleted,
    GenerationStarted, HeadMoved, HeldoutChosen, LeakageDetected, MeasurementCompleted, MinibatchSkipped, NamedScore,
    NoiseMeasured, Objective, ObjectiveSetDeclared, Operation, OutcomeUnknown, ParentSelection, Problem, ProgramLoaded,
    ProposalRejected, ProposerCompleted, ProposerFailed, ProposerReady, ProposerStarted, Reason, ReplyAltered,
    RolloutCount, RolloutFailed, RolloutFinished, RolloutsRequested, RowsLoaded, RowsMapped, RunFinished, RunResumed,
    RunStarted, RunWaiting, SearchChosen, SearchMode, Stage, StateTransitioned, StopDecided, StopKind, StoppedBy,
    TaskInfoLoaded, TransportFallback, WaitingEnded, WindowChanged,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, Payload, RowId};
use synth_optimizer_core::model::lifecycle::{CandidateTrigger, Lifecycle, RunState, RunTrigger};
use synth_optimizer_core::model::score::{Comparison, Score};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};
use synth_optimizer_platform::Reply;
use synth_optimizer_platform::workspace::{
    AnsweredCall, Batch, CacheAction, CacheUse, RunRow, SentCall, StoredEvent, Workspace,
};

pub(crate) const START: u64 = 1_700_000_000_000;

pub(crate) fn run_row() -> RunRow {
    RunRow {
        run_id: "run-1".into(),
        algorithm: "gepa".into(),
        config: json!({"run": {"seed": 7}, "gepa": {"max_total_rollouts": 50, "max_cost_usd": 1.5, "max_train_rollouts": 40}}),
        config_digest: "ab".repeat(32),
        container_url: "http://127.0.0.1:9000".into(),
        cache_mode: "readwrite".into(),
        cache_namespace: "gepa:run-1".into(),
        cache_path: Some("request_cache.sqlite".into()),
        output_dir: "/runs".into(),
        run_dir: "/runs/run-1".into(),
        created_at: START,
    }
}

pub(crate) fn create(path: &Path) -> Workspace {
    Workspace::create(path, &run_row(), Durability::Process).unwrap()
}

pub(crate) fn id(name: &str) -> CandidateId {
    CandidateId::new(name)
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn usage() -> Usage {
    Usage {
        prompt_tokens: Some(120),
        completion_tokens: Some(30),
        total_tokens: Some(150),
        cost: Cost::Known(NanoUsd(1_500_000)),
    }
}

/// The batches that the driver would commit.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) batches: Vec<Batch>,
    next: Batch,
    sequence: u64,
    next_call_id: u64,
    state: Option<RunState>,
}

impl Script {
    pub(crate) fn event(&mut self, event: Event) {
        self.next.events.push(StoredEvent::new(self.sequence, START + self.sequence, event));
        self.sequence += 1;
    }

    fn trigger(&mut self, trigger: RunTrigger) {
        let from = self.state.unwrap_or(RunState::INITIAL);
        let to = from.next(trigger).unwrap();
        self.state = Some(to);
        self.event(Event::StateTransitioned(StateTransitioned { from, to, trigger }));
    }

    pub(crate) fn end_batch(&mut self) {
        self.batches.push(std::mem::take(&mut self.next));
    }

    pub(crate) fn register(&mut self, name: &str, parents: &[&str], generation: Option<u32>) {
        self.event(Event::CandidateRegistered(CandidateRegistered {
            candidate_id: id(name),
            operation: match parents.len() {
                0 => Operation::Seed,
                1 => Operation::Mutate,
                _ => Operation::Merge,
            },
            parent_ids: parents.iter().map(|parent| id(parent)).collect(),
            generation,
            payload: Payload::from([("instruction".into(), format!("Say \"why\", {name}."))]),
            changed_fields: if parents.is_empty() { Vec::new() } else { vec!["instruction".into()] },
            rationale: "Reasons help.".into(),
            dropped_fields: Vec::new(),
            kept_share: None,
        }));
    }

    /// Requests and sends rollouts, in their own batch. Returns the first call number.
    pub(crate) fn request_rollouts(&mut self, name: &str, stage: Stage, rows: &[String], attempt: u32) -> u64 {
        let first = self.next_call_id;
        let row_ids: Vec<RowId> = rows.iter().map(|row| RowId::new(row)).collect();
        self.next_call_id += row_ids.len() as u64;
        self.next.sent.extend((first..self.next_call_id).map(|call_id| SentCall {
            call_id: CallId(call_id),
            kind: CallKind::Rollout,
            rollout_id: Some(format!("r-{}", &sha256(&call_id.to_be_bytes())[..32])),
            unix_millis: START + self.sequence,
        }));
        self.event(Event::RolloutsRequested(RolloutsRequested {
            first_call_id: CallId(first),
            evaluation: CallId(first),
            candidate_id: id(name),
            stage,
            generation: None,
            row_ids,
            attempt,
            replicate: 0,
        }));
        self.end_batch();
        first
    }

    /// Adds an answer that retires immediately.
    pub(crate) fn finish(&mut self, call_id: u64, name: &str, row: &str, stage: Stage, reward: f64) {
        let (answered, event) = finished(call_id, name, row, stage, reward, START + self.sequence);
        self.next.answered.push(answered);
        self.event(event);
    }

    fn evaluate(&mut self, name: &str, stage: Stage, rows: &[String], rewards: &[f64]) -> EvaluationCompleted {
        let first = self.request_rollouts(name, stage, rows, 1);
        for (offset, (row, reward)) in rows.iter().zip(rewards).enumerate() {
            self.finish(first + offset as u64, name, row, stage, *reward);
        }
        self.end_batch();
        completed(first, name, rewards)
    }

    fn proposer(&mut self, generation: u32, attempt: u32) -> CallId {
        let call_id = CallId(self.next_call_id);
        self.next_call_id += 1;
        self.event(Event::ProposerStarted(ProposerStarted {
            call_id,
            generation,
            attempt,
            proposal_count: 2,
            carried_failures: Vec::new(),
            problems: Vec::new(),
        }));
        self.next.sent.push(SentCall { call_id, kind: CallKind::Proposer, rollout_id: None, unix_millis: START });
        self.end_batch();
        call_id
    }
}

pub(crate) fn finished(
    call_id: u64,
    name: &str,
    row: &str,
    stage: Stage,
    reward: f64,
    at: u64,
) -> (AnsweredCall, Event) {
    let reply = Reply::from(format!("{{\"reward\":{reward},\"row\":\"{row}\",\"request\":{call_id}}}").into_bytes());
    let trace_digest = Some(sha256(&reply));
    let objectives = BTreeMap::from([("brevity".to_owned(), 0.25)]);
    let answer = Answer::Rollout(RolloutAnswer {
        reward,
        objectives: objectives.clone(),
        usage: usage(),
        cached: false,
        trace_digest: trace_digest.clone(),
    });
    let answered = AnsweredCall {
        call_id: CallId(call_id),
        kind: CallKind::Rollout,
        unix_millis: at,
        answer,
        retired: true,
        cache: Some(CacheUse { key: sha256(row.as_bytes()), action: CacheAction::Write }),
        reply: Some(reply),
    };
    let event = Event::RolloutFinished(RolloutFinished {
        call_id: CallId(call_id),
        candidate_id: id(name),
        row_id: RowId::new(row),
        stage,
        reward,
        objectives,
        usage: usage(),
        cached: false,
        trace_digest,
    });
    (answered, event)
}

pub(super) fn completed(first: u64, name: &str, rewards: &[f64]) -> EvaluationCompleted {
    EvaluationCompleted {
        evaluation: CallId(first),
        candidate_id: id(name),
        generation: None,
        rows: rewards.len() as u32,
        failed: 0,
        score: Score::of(rewards.iter().copied()),
    }
}

fn decided(name: &str, stage: Stage, reason: &str, delta: f64) -> CandidateDecided {
    let comparison = Comparison {
        rows: 2,
        primary_delta: delta,
        candidate_score: 0.5 + delta,
        incumbent_score: 0.5,
        objective_deltas: BTreeMap::new(),
    };
    CandidateDecided {
        candidate_id: id(name),
        stage,
        reason: reason.into(),
        detail: None,
        comparison: Some(comparison),
    }
}

fn frontier(name: &str, cells: &[(&str, f64, bool)], size: u32) -> Event {
    let won = |(row, value, alone): &(&str, f64, bool)| CellWon {
        row_id: Some(RowId::new(row)),
        objective: "outcome_reward".into(),
        value: *value,
        alone: *alone,
    };
    Event::FrontierUpdated(FrontierUpdated {
        candidate_id: id(name),
        ranking_score: 0.5,
        cells_won: cells.len() as u32,
        joined: !cells.is_empty(),
        cells: cells.iter().map(won).collect(),
        removed: Vec::new(),
        size,
    })
}

fn reason(text: &str) -> Reason {
    Reason { reason: text.into() }
}

fn rows(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns a completed run. `unusual_events` has the events that cannot occur in a completed run.
pub(crate) fn whole_run() -> Vec<Batch> {
    let mut script = Script::default();
    start_run(&mut script);
    seed(&mut script);
    generation(&mut script);
    end_run(&mut script);
    script.batches
}

pub(super) fn start_run(script: &mut Script) {
    script.event(Event::RunStarted(RunStarted {
        algorithm: "gepa".into(),
        config_digest: "ab".repeat(32),
        seed: u64::MAX,
        container_url: "http://127.0.0.1:9000".into(),
    }));
    script.trigger(RunTrigger::RunStarted);
    script.end_batch();
    script.event(Event::ContractVerified(ContractVerified {
        version: "v1".into(),
        dialects: vec!["dataset".into()],
        rollout_modes: vec!["sync".into()],
        routes: BTreeMap::from([("program_route".into(), "/program".into())]),
    }));
    script.event(Event::TaskInfoLoaded(TaskInfoLoaded { digest: "cd".repeat(32) }));
    script.event(Event::TaskInfoMissing(reason("404")));
    script.event(Event::RowsMapped(RowsMapped {
        rule: "split_list".into(),
        train: vec![(1, "train:1".into())],
        heldout: Vec::new(),
    }));
    script.event(Event::ProgramLoaded(ProgramLoaded {
        program_id: "quiz".into(),
        program_digest: "cd34".into(),
        mutable_fields: vec!["instruction".into()],
        target_fields: vec!["instruction".into()],
    }));
    script.event(Event::RowsLoaded(RowsLoaded {
        train_rows: 2,
        heldout_rows: 1,
        pareto_pool: 2,
        minibatch_pool: 2,
        reflection_pool: 2,
        heldout_pool: 1,
        rows_digest: "ef56".into(),
    }));
    script.event(Event::ObjectiveSetDeclared(ObjectiveSetDeclared {
        selection_objective: "outcome_reward".into(),
        frontier_type: FrontierType::PerExampleObjective,
        objectives: vec![
            Objective { name: "outcome_reward".into(), direction: Direction::Maximize },
            Objective { name: "brevity".into(), direction: Direction::Maximize },
        ],
    }));
    script.trigger(RunTrigger::ContainerReady);
}

pub(super) fn seed(script: &mut Script) {
    script.register("c1", &[], None);
    script.trigger(RunTrigger::RolloutsQueued);
    script.trigger(RunTrigger::RolloutsStarted);
    let done = script.evaluate("c1", Stage::SeedFullTrain, &rows(&["train:1", "train:2"]), &[0.5, 0.25]);
    script.trigger(RunTrigger::RolloutsFinished);
    script.event(Event::SeedEvaluated(done));
    script.event(Event::CandidateAccepted(CandidateDecided {
        comparison: None,
        ..decided("c1", Stage::SeedFullTrain, "seed", 0.0)
    }));
    script.event(frontier("c1", &[("train:1", 0.5, true), ("train:2", 0.25, true)], 1));
    script.trigger(RunTrigger::EvaluationFinished);
}

fn generation(script: &mut Script) {
    script.event(Event::MinibatchSkipped(MinibatchSkipped { parent_id: id("c1"), draw: 0, rows: 2 }));
    script.event(Event::GenerationStarted(GenerationStarted {
        generation: 0,
        operation: Operation::Mutate,
        parent_ids: vec![id("c1")],
        ancestor_id: None,
        selection: Some(ParentSelection {
            selector: Selector::TopKPareto,
            cells_won: 2,
            total_weight: 2,
            frontier_size: 1,
        }),
        draw: 1,
        minibatch: vec![RowId::new("train:1")],
        evidence: vec![RowId::new("train:2")],
        components: vec!["instruction".into()],
        base: Payload::new(),
    }));
    let done = script.evaluate("c1", Stage::ParentMinibatchReference, &rows(&["train:3"]), &[0.5]);
    script.event(Event::ReferenceCompleted(done));
    script.trigger(RunTrigger::ProposerStarted);
    let call_id = script.proposer(0, 1);
    script.event(Event::ProposerFailed(ProposerFailed {
        call_id,
        generation: 0,
        attempt: 1,
        class: FailureClass::UnknownOutcome,
        message: "the connection ended".into(),
        usage: Usage::default(),
        cached: false,
        models: None,
        retried: true,
    }));
    let call_id = script.proposer(0, 2);
    let answer = ProposalAnswer {
        proposals: Vec::new(),
        problems: Vec::new(),
        usage: usage(),
        cached: false,
        requested_model: "large".into(),
        effective_model: "large-2".into(),
    };
    script.next.answered.push(AnsweredCall {
        call_id,
        kind: CallKind::Proposer,
        unix_millis: START,
        answer: Answer::Proposal(answer),
        retired: true,
        cache: Some(CacheUse { key: sha256(b"turn"), action: CacheAction::Miss }),
        reply: Some(Reply::from(b"the transcript of the turn".to_vec())),
    });
    script.event(Event::ProposerCompleted(ProposerCompleted {
        call_id,
        generation: 0,
        proposal_count: 3,
        ignored: 1,
        requested_model: "large".into(),
        effective_model: "large-2".into(),
        usage: usage(),
        cached: false,
    }));
    let problem = Problem { code: "field_unknown".into(), field: Some("tone".into()), message: "no field tone".into() };
    script.event(Event::ProposalRejected(ProposalRejected { generation: 0, index: 1, problems: vec![problem] }));
    script.event(Event::DuplicateSkipped(DuplicateSkipped { candidate_id: id("c1"), generation: 0, index: 2 }));
    script.register("c2", &["c1"], Some(0));
    script.register("c3", &["c1"], Some(0));
    script.register("c4", &["c1", "c2"], Some(0));
    script.event(Event::LeakageDetected(LeakageDetected {
        candidate_id: id("c2"),
        field: "instruction".into(),
        row_id: RowId::new("train:1"),
        chars: 64,
    }));
    script.trigger(RunTrigger::RolloutsQueued);
    script.trigger(RunTrigger::RolloutsStarted);
    let done = script.evaluate("c2", Stage::CandidateMinibatch, &rows(&["train:1"]), &[1.0]);
    script.event(Event::MinibatchEvaluated(done));
    script.event(Event::CandidatePromoted(decided("c2", Stage::CandidateMinibatch, "primary_improved", 0.5)));
    failing_screening(script);
    let done = script.evaluate("c2", Stage::CandidateFullTrain, &rows(&["train:1", "train:2"]), &[1.0, 0.25]);
    script.event(Event::FullTrainEvaluated(done));
    script.event(Event::CandidateAccepted(decided("c2", Stage::CandidateFullTrain, "primary_improved", 0.25)));
    script.event(frontier("c2", &[("train:1", 1.0, true), ("train:2", 0.25, false)], 2));
    script.event(Event::BudgetRefused(BudgetRefused {
        dimension: Dimension::TrainRollouts,
        required: 2,
        available: 1,
        purpose: "full evaluation".into(),
    }));
    script.event(Event::CandidateDeferred(CandidateDeferred {
        candidate_id: id("c4"),
        stage: Stage::CandidateMinibatch,
        reason: CandidateTrigger::BudgetRefused,
    }));
    script.trigger(RunTrigger::RolloutsFinished);
    script.trigger(RunTrigger::EvaluationFinished);
    script.event(Event::GenerationCompleted(GenerationCompleted {
        generation: 0,
        operation: Operation::Mutate,
        registered: 3,
        accepted: 1,
        best_candidate_id: id("c2"),
        best_train_score: Score::of([1.0, 0.25]),
        frontier_size: 2,
        candidates: 4,
    }));
    script.end_batch();
}

/// Adds a rollout that fails, is retried and answered out of turn. The candidate is rejected.
fn failing_screening(script: &mut Script) {
    let first = script.request_rollouts("c3", Stage::CandidateMinibatch, &rows(&["train:1"]), 1);
    let failure = CallFailure {
        class: FailureClass::Timeout,
        message: "no answer in 5 s".into(),
        retryable: true,
        usage: usage(),
        cached: false,
        models: None,
    };
    script.next.answered.push(AnsweredCall {
        call_id: CallId(first),
        kind: CallKind::Rollout,
        unix_millis: START,
        answer: Answer::Failed(failure),
        retired: false,
        cache: None,
        reply: None,
    });
    script.end_batch();
    script.next.retired.push(CallId(first));
    script.event(Event::RolloutFailed(RolloutFailed {
        call_id: CallId(first),
        candidate_id: id("c3"),
        row_id: RowId::new("train:1"),
        stage: Stage::CandidateMinibatch,
        attempt: 1,
        class: FailureClass::Timeout,
        message: "no answer in 5 s".into(),
        usage: usage(),
        cached: false,
        retried: true,
    }));
    let second = script.request_rollouts("c3", Stage::CandidateMinibatch, &rows(&["train:1"]), 2);
    script.finish(second, "c3", "train:1", Stage::CandidateMinibatch, 0.0);
    script.event(Event::MinibatchEvaluated(completed(first, "c3", &[0.0])));
    script.event(Event::CandidateRejected(decided("c3", Stage::CandidateMinibatch, "not_better", -0.5)));
    script.end_batch();
}

pub(super) fn end_run(script: &mut Script) {
    let stopped_by = StoppedBy { kind: StopKind::MaxRollouts, limit: Some(50.0), value: Some(50.0), reason: None };
    let chosen = HeldoutChosen { candidate_ids: vec![id("c2")], rows: 1 };
    for event in [
        Event::ClockObserved(ClockObserved { elapsed_millis: 12_345 }),
        Event::StopRequested(reason("asked by the owner")),
        Event::RunInterrupted(reason("signal 2")),
        Event::ProposerReady(ProposerReady {
            backend: "openai_compatible".into(),
            model: "large".into(),
            provider: "openai".into(),
            program: "http://127.0.0.1:9/v1".into(),
            source: "proposer.base_url".into(),
            version: String::new(),
            auth: "none".into(),
            sandbox: "none".into(),
            model_shutdown: None,
        }),
        Event::RunResumed(RunResumed { stored_events: 60, waiting_answers: 0, unknown_outcomes: 0 }),
        Event::TransportFallback(TransportFallback {
            requested: "async".into(),
            effective: "sync".into(),
            reason: "no route".into(),
        }),
        Event::OutcomeUnknown(OutcomeUnknown {
            call_id: CallId(9_000),
            kind: CallKind::Proposer,
            stage: None,
            cause: "the process stopped".into(),
        }),
        Event::RunWaiting(RunWaiting {
            waiting_for: Dependency::Container,
            cause: "connection refused".into(),
            since: 1_700_000_000_000,
            tries: 1,
            next_try_at: 1_700_000_001_000,
            deadline_at: 1_700_000_600_000,
        }),
        Event::WaitingEnded(WaitingEnded { waiting_for: Dependency::Container, waited_millis: 1500 }),
        Event::ConcurrencyAdjusted(ConcurrencyAdjusted { old_limit: 8, new_limit: 4, workers: 8, status: Some(429) }),
        Event::EchoMissing(reason("no row in the reply")),
        Event::UsageRefused(reason("prompt_tokens = -1")),
        Event::ReplyAltered(ReplyAltered { call_id: CallId(3), changes: "1 lone surrogates became U+FFFD".into() }),
        Event::CacheDamaged(CacheDamaged { boundary: "rollout".into(), key: "ab".repeat(32) }),
        Event::StopDecided(StopDecided { stopped_by: stopped_by.clone(), failure: None }),
        Event::HeldoutPartial(chosen.clone()),
        Event::HeldoutStarted(chosen),
    ] {
        script.event(event);
    }
    script.trigger(RunTrigger::RolloutsQueued);
    script.trigger(RunTrigger::RolloutsStarted);
    let done = script.evaluate("c2", Stage::Heldout, &rows(&["test:1"]), &[0.75]);
    script.event(Event::HeldoutCompleted(done));
    script.trigger(RunTrigger::RolloutsFinished);
    script.trigger(RunTrigger::EvaluationFinished);
    script.event(Event::RunFinished(RunFinished {
        best_candidate_id: id("c2"),
        stopped_by,
        scores: vec![NamedScore {
            role: "best".into(),
            split: "heldout".into(),
            candidate_id: id("c2"),
            score: Score::of([0.75]).unwrap(),
        }],
        train_gain: None,
        heldout_gain: None,
        claim: None,
        generations: 1,
        candidates: 4,
        rollouts: RolloutCount { train: 8, heldout: 1, unknown_outcomes: 0 },
        bill: Bill {
            cost_usd: Cost::Unknown,
            sent_calls: 11,
            cached_calls: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            total_tokens: 0,
            elapsed_millis: None,
            shortfalls: Vec::new(),
        },
    }));
    script.trigger(RunTrigger::RunCompleted);
    script.end_batch();
}

/// Returns the events of failed and cancelled runs, from a sequence number on. None of them changes a projection.
pub(crate) fn unusual_events(first: u64) -> Batch {
    let bill = Bill {
        cost_usd: Cost::Unknown,
        sent_calls: 0,
        cached_calls: 0,
        prompt_tokens: 0,
        completion_tokens: 0,
        total_tokens: 0,
        elapsed_millis: None,
        shortfalls: Vec::new(),
    };
    let rollouts = RolloutCount { train: 0, heldout: 0, unknown_outcomes: 0 };
    let failure = Failure { code: ErrorCode::Container, message: "port closed".into(), hint: None };
    let events = [
        Event::CircuitBreakerTripped(CircuitBreakerTripped { failures: 6, window: 10, tolerance: 0.5 }),
        Event::SearchChosen(SearchChosen { search: SearchMode::Sprint, reason: "as configured".into() }),
        Event::NoiseMeasured(NoiseMeasured { pairs: 4, differing: 1, variance: 0.125, is_noisy: true }),
        Event::WindowChanged(WindowChanged { generations: 4, reason: "proposals rewrite their texts".into() }),
        Event::HeadMoved(HeadMoved { candidate_id: CandidateId::new("c1"), sprint: 0, steps: 1 }),
        Event::MeasurementCompleted(MeasurementCompleted {
            evaluation: CallId(90),
            candidate_id: CandidateId::new("c1"),
            generation: None,
            stage: Stage::Check,
            rows: 2,
            failed: 0,
        }),
        Event::CheckStarted(CheckStarted {
            check: 0,
            head_id: CandidateId::new("c1"),
            anchor_id: CandidateId::new("c0"),
            steps: 1,
            max_rollouts: Some(8),
        }),
        Event::CheckDecided(CheckDecided {
            check: 0,
            head_id: CandidateId::new("c1"),
            anchor_id: CandidateId::new("c0"),
            verdict: CheckVerdict::Undecided,
            reason: "it cannot tell yet".into(),
            n: 2,
            mean: Some(0.0),
            variance: Some(0.5),
            probability: Some(0.5),
            rollouts: 4,
            head_score: None,
        }),
        Event::CandidateRegistered(CandidateRegistered {
            candidate_id: CandidateId::new("c9"),
            operation: Operation::Rebase,
            parent_ids: vec![CandidateId::new("c1"), CandidateId::new("c2")],
            generation: None,
            payload: Payload::from([("prompt".to_owned(), "nine".to_owned())]),
            changed_fields: vec!["prompt".to_owned()],
            rationale: String::new(),
            dropped_fields: Vec::new(),
            kept_share: None,
        }),
        Event::CandidateSuperseded(CandidateSuperseded {
            candidate_id: CandidateId::new("c9"),
            by: None,
            reason: "its sprint was rolled back".into(),
        }),
        Event::CancelRequested(reason("enough")),
        Event::FailureRaised(failure.clone()),
        Event::HeldoutSkipped(reason("no budget")),
        Event::RunFailed(synth_optimizer_core::model::event_fields::RunFailed {
            error_code: failure.code,
            message: failure.message,
            hint: None,
            best_candidate_id: None,
            rollouts: rollouts.clone(),
            bill: bill.clone(),
        }),
        Event::RunCancelled(synth_optimizer_core::model::event_fields::RunCancelled {
            reason: "enough".into(),
            best_candidate_id: None,
            rollouts,
            bill,
        }),
    ];
    let stored = |(offset, event)| StoredEvent::new(first + offset as u64, START, event);
    Batch { events: events.into_iter().enumerate().map(stored).collect(), ..Batch::default() }
}

//! Tests of the event list, its envelope and its normalized form, with one sample of every event type.
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use serde_json::{Value, json};
use synth_optimizer_core::config::gepa::{Direction, FrontierType, Selector};
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::budget::Dimension;
use synth_optimizer_core::model::canonical::canonical_json;
use synth_optimizer_core::model::claim::{Claim, ClaimVerdict, ClaimedGain};
use synth_optimizer_core::model::envelope::{ENVELOPE_VERSION, Envelope, normalize, rfc3339, write_normalized_line};
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::{EVENT_TYPES, Event, EventType, message};
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{
    Bill, BudgetRefused, CacheDamaged, CandidateDecided, CandidateDeferred, CandidateRegistered, CandidateSuperseded,
    CarriedFailure, CellWon, CheckDecided, CheckStarted, CheckVerdict, CircuitBreakerTripped, ClockObserved,
    ConcurrencyAdjusted, ContractVerified, Dependency, DuplicateSkipped, EvaluationCompleted, Failure, FrontierUpdated,
    GenerationCompleted, GenerationStarted, HeadMoved, HeldoutChosen, LeakageDetected, MeasurementCompleted,
    MinibatchSkipped, ModelShutdown, NamedScore, NoiseMeasured, Objective, ObjectiveSetDeclared, Operation,
    OutcomeUnknown, ParentSelection, Problem, ProgramLoaded, ProposalRejected, ProposerCompleted, ProposerFailed,
    ProposerReady, ProposerStarted, Reason, ReplyAltered, RolloutCount, RolloutFailed, RolloutFinished,
    RolloutsRequested, RowsLoaded, RowsMapped, RunCancelled, RunFailed, RunFinished, RunResumed, RunStarted,
    RunWaiting, SearchChosen, SearchMode, Stage, StateTransitioned, StopDecided, StopKind, StoppedBy, TaskInfoLoaded,
    TransportFallback, TurnModels, WaitingEnded, WindowChanged,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, Payload, RowId};
use synth_optimizer_core::model::lifecycle::{CandidateTrigger, RunState, RunTrigger};
use synth_optimizer_core::model::score::{Comparison, Gain, Score};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};

/// Returns the normalized form of a feed.
fn normalize_feed(feed: &str) -> String {
    let lines = feed.lines().filter(|line| !line.trim().is_empty());
    let kept = lines.filter_map(|line| normalize(serde_json::from_str(line).unwrap()).unwrap());
    kept.map(|value| canonical_json(&value) + "\n").collect()
}

fn candidate(name: &str) -> CandidateId {
    CandidateId::new(name)
}

fn row(name: &str) -> RowId {
    RowId::new(name)
}

fn usage() -> Usage {
    Usage {
        prompt_tokens: Some(120),
        completion_tokens: Some(30),
        total_tokens: None,
        cost: Cost::Known(NanoUsd(1_500_000)),
    }
}

fn bill() -> Bill {
    Bill {
        cost_usd: Cost::Unknown,
        sent_calls: 3,
        cached_calls: 4,
        prompt_tokens: 360,
        completion_tokens: 90,
        total_tokens: 450,
        elapsed_millis: Some(98_765),
        shortfalls: Vec::new(),
    }
}

fn counts() -> RolloutCount {
    RolloutCount { train: 40, heldout: 10, unknown_outcomes: 1 }
}

fn evaluation() -> EvaluationCompleted {
    EvaluationCompleted {
        evaluation: CallId(8),
        candidate_id: candidate("c2"),
        generation: Some(1),
        rows: 4,
        failed: 1,
        score: Score::of([0.25, 0.5, 1.0]),
    }
}

fn decision(reason: &str) -> CandidateDecided {
    CandidateDecided {
        candidate_id: candidate("c2"),
        stage: Stage::CandidateMinibatch,
        reason: reason.into(),
        detail: None,
        comparison: Some(Comparison {
            rows: 3,
            primary_delta: 0.125,
            candidate_score: 0.5,
            incumbent_score: 0.375,
            objective_deltas: BTreeMap::from([("brevity".into(), -0.5)]),
        }),
    }
}

fn problem() -> Problem {
    Problem { code: "field_unknown".into(), field: Some("tone".into()), message: "there is no field tone".into() }
}

fn stopped_by() -> StoppedBy {
    StoppedBy { kind: StopKind::MaxRollouts, limit: Some(50.0), value: Some(50.0), reason: Some("spent".into()) }
}

fn reason() -> Reason {
    Reason { reason: "asked by the owner".into() }
}

fn chosen() -> HeldoutChosen {
    HeldoutChosen { candidate_ids: vec![candidate("c1"), candidate("c2")], rows: 5 }
}

/// Returns one event of every type, with every optional field set.
fn samples() -> Vec<Event> {
    vec![
        Event::RunStarted(RunStarted {
            algorithm: "gepa".into(),
            config_digest: "ab12".into(),
            seed: u64::MAX,
            container_url: "http://127.0.0.1:9000".into(),
        }),
        Event::StateTransitioned(StateTransitioned {
            from: RunState::Ready,
            to: RunState::Proposing,
            trigger: RunTrigger::ProposerStarted,
        }),
        Event::ContractVerified(ContractVerified {
            version: "synth_optimizers.gepa.v2".into(),
            dialects: vec!["taskset".into()],
            rollout_modes: vec!["blocking".into()],
            routes: BTreeMap::from([("program_route".into(), "/program".into())]),
        }),
        Event::TaskInfoLoaded(TaskInfoLoaded { digest: "ab".into() }),
        Event::TaskInfoMissing(Reason { reason: "404".into() }),
        Event::RowsMapped(RowsMapped {
            rule: "split_and_seed".into(),
            train: vec![(7, "train:7".into())],
            heldout: vec![(1, "test:1".into())],
        }),
        Event::ProgramLoaded(ProgramLoaded {
            program_id: "quiz".into(),
            program_digest: "cd34".into(),
            mutable_fields: vec!["instruction".into(), "style".into()],
            target_fields: vec!["instruction".into()],
        }),
        Event::RowsLoaded(RowsLoaded {
            train_rows: 20,
            heldout_rows: 10,
            pareto_pool: 20,
            minibatch_pool: 15,
            reflection_pool: 12,
            heldout_pool: 9,
            rows_digest: "ef56".into(),
        }),
        Event::ObjectiveSetDeclared(ObjectiveSetDeclared {
            selection_objective: "reward".into(),
            frontier_type: FrontierType::PerExampleObjective,
            objectives: vec![Objective { name: "reward".into(), direction: Direction::Maximize }],
        }),
        Event::CandidateRegistered(CandidateRegistered {
            candidate_id: candidate("c2"),
            operation: Operation::Mutate,
            parent_ids: vec![candidate("c1")],
            generation: Some(1),
            payload: Payload::from([("instruction".into(), "Say \"why\".\nThen é.".into())]),
            changed_fields: vec!["instruction".into()],
            rationale: "Reasons help.".into(),
            dropped_fields: Vec::new(),
            kept_share: None,
        }),
        Event::RolloutsRequested(RolloutsRequested {
            first_call_id: CallId(8),
            evaluation: CallId(8),
            candidate_id: candidate("c2"),
            stage: Stage::CandidateMinibatch,
            generation: Some(1),
            row_ids: vec![row("train:1"), row("train:4")],
            attempt: 1,
            replicate: 2,
        }),
        Event::RolloutFinished(RolloutFinished {
            call_id: CallId(8),
            candidate_id: candidate("c2"),
            row_id: row("train:1"),
            stage: Stage::CandidateMinibatch,
            reward: 0.1 + 0.2,
            objectives: BTreeMap::from([("brevity".into(), 1.0)]),
            usage: usage(),
            cached: true,
            trace_digest: Some("9abc".into()),
        }),
        Event::RolloutFailed(RolloutFailed {
            call_id: CallId(9),
            candidate_id: candidate("c2"),
            row_id: row("train:4"),
            stage: Stage::CandidateMinibatch,
            attempt: 1,
            class: FailureClass::Timeout,
            message: "no answer from port 9000".into(),
            usage: Usage::default(),
            cached: false,
            retried: true,
        }),
        Event::SeedEvaluated(evaluation()),
        Event::ReferenceCompleted(evaluation()),
        Event::MinibatchEvaluated(evaluation()),
        Event::FullTrainEvaluated(evaluation()),
        Event::CandidatePromoted(decision("primary_improved")),
        Event::CandidateAccepted(decision("primary_improved")),
        Event::CandidateRejected(decision("not_better")),
        Event::CandidateDeferred(CandidateDeferred {
            candidate_id: candidate("c2"),
            stage: Stage::CandidateFullTrain,
            reason: CandidateTrigger::BudgetRefused,
        }),
        Event::CandidateSuperseded(CandidateSuperseded {
            candidate_id: candidate("c2"),
            by: Some(candidate("c3")),
            reason: "its change was carried over".into(),
        }),
        Event::SearchChosen(SearchChosen { search: SearchMode::Sprint, reason: "`gepa.search` is set".into() }),
        Event::NoiseMeasured(NoiseMeasured { pairs: 16, differing: 3, variance: 0.09375, is_noisy: true }),
        Event::WindowChanged(WindowChanged { generations: 4, reason: "proposals rewrite their texts".into() }),
        Event::HeadMoved(HeadMoved { candidate_id: candidate("c2"), sprint: 1, steps: 4 }),
        Event::MeasurementCompleted(MeasurementCompleted {
            evaluation: CallId(9),
            candidate_id: candidate("c2"),
            generation: Some(1),
            stage: Stage::Glance,
            rows: 3,
            failed: 1,
        }),
        Event::CheckStarted(CheckStarted {
            check: 2,
            head_id: candidate("c2"),
            anchor_id: candidate("c0"),
            steps: 4,
            max_rollouts: Some(64),
        }),
        Event::CheckDecided(CheckDecided {
            check: 2,
            head_id: candidate("c2"),
            anchor_id: candidate("c0"),
            verdict: CheckVerdict::Adopted,
            reason: "better: +0.2500 on 12 rows, better with probability 0.981".into(),
            n: 12,
            mean: Some(0.25),
            variance: Some(0.125),
            probability: Some(0.981),
            rollouts: 20,
            head_score: evaluation().score,
        }),
        Event::GenerationStarted(GenerationStarted {
            generation: 1,
            operation: Operation::Merge,
            parent_ids: vec![candidate("c1"), candidate("c3")],
            ancestor_id: Some(candidate("c0")),
            selection: Some(ParentSelection {
                selector: Selector::TopKPareto,
                cells_won: 7,
                total_weight: 20,
                frontier_size: 3,
            }),
            draw: 5,
            minibatch: vec![row("train:1")],
            evidence: vec![row("train:2")],
            components: vec!["instruction".into()],
            base: Payload::from([("instruction".into(), "Say why.".into())]),
        }),
        Event::MinibatchSkipped(MinibatchSkipped { parent_id: candidate("c1"), draw: 6, rows: 3 }),
        Event::ProposerStarted(ProposerStarted {
            call_id: CallId(12),
            generation: 1,
            attempt: 2,
            proposal_count: 2,
            carried_failures: vec![CarriedFailure { candidate_id: candidate("c9"), reason: "not_better".into() }],
            problems: vec![problem()],
        }),
        Event::ProposerCompleted(ProposerCompleted {
            call_id: CallId(12),
            generation: 1,
            proposal_count: 2,
            ignored: 1,
            requested_model: "large".into(),
            effective_model: "large-2".into(),
            usage: usage(),
            cached: true,
        }),
        Event::ProposerFailed(ProposerFailed {
            call_id: CallId(13),
            generation: 1,
            attempt: 2,
            class: FailureClass::Contract,
            message: "the answer is no JSON".into(),
            usage: usage(),
            cached: false,
            models: Some(Box::new(TurnModels { requested: "large".into(), effective: None })),
            retried: true,
        }),
        Event::ProposalRejected(ProposalRejected { generation: 1, index: 1, problems: vec![problem()] }),
        Event::DuplicateSkipped(DuplicateSkipped { candidate_id: candidate("c1"), generation: 1, index: 0 }),
        Event::LeakageDetected(LeakageDetected {
            candidate_id: candidate("c2"),
            field: "instruction".into(),
            row_id: row("train:4"),
            chars: 64,
        }),
        Event::FrontierUpdated(FrontierUpdated {
            candidate_id: candidate("c2"),
            ranking_score: 0.625,
            cells_won: 4,
            joined: true,
            cells: vec![CellWon {
                row_id: Some(row("train:4")),
                objective: "outcome_reward".into(),
                value: 1.0,
                alone: true,
            }],
            removed: vec![candidate("c1")],
            size: 2,
        }),
        Event::GenerationCompleted(GenerationCompleted {
            generation: 1,
            operation: Operation::Mutate,
            registered: 2,
            accepted: 1,
            best_candidate_id: candidate("c2"),
            best_train_score: Score::of([1.0, 0.0]),
            frontier_size: 2,
            candidates: 3,
        }),
        Event::BudgetRefused(BudgetRefused {
            dimension: Dimension::TrainRollouts,
            required: 20,
            available: 7,
            purpose: "full evaluation".into(),
        }),
        Event::CircuitBreakerTripped(CircuitBreakerTripped { failures: 6, window: 10, tolerance: 0.5 }),
        Event::StopDecided(StopDecided {
            stopped_by: stopped_by(),
            failure: Some(Failure { code: ErrorCode::Container, message: "6 of 10 failed".into(), hint: None }),
        }),
        Event::StopRequested(reason()),
        Event::CancelRequested(reason()),
        Event::FailureRaised(Failure {
            code: ErrorCode::CacheMiss,
            message: "no answer is cached".into(),
            hint: Some("Record it.".into()),
        }),
        Event::ProposerReady(ProposerReady {
            backend: "codex_app_server".into(),
            model: "large".into(),
            provider: "openai".into(),
            program: "codex".into(),
            source: "proposer.command".into(),
            version: "0.163.0".into(),
            auth: "api_key".into(),
            sandbox: "workspace".into(),
            model_shutdown: Some(ModelShutdown {
                date: "2026-01-31".into(),
                field: "shutdown_date".into(),
                is_past: false,
            }),
        }),
        Event::RunResumed(RunResumed { stored_events: 40, waiting_answers: 3, unknown_outcomes: 2 }),
        Event::RunInterrupted(Reason { reason: "signal".into() }),
        Event::TransportFallback(TransportFallback {
            requested: "async".into(),
            effective: "sync".into(),
            reason: "rollout_modes".into(),
        }),
        Event::ConcurrencyAdjusted(ConcurrencyAdjusted { old_limit: 8, new_limit: 4, workers: 8, status: Some(429) }),
        Event::OutcomeUnknown(OutcomeUnknown {
            call_id: CallId(7),
            kind: CallKind::Rollout,
            stage: Some(Stage::CandidateMinibatch),
            cause: "the container does not remember it".into(),
        }),
        Event::RunWaiting(RunWaiting {
            waiting_for: Dependency::Container,
            cause: "connection refused".into(),
            since: 1_700_000_000_000,
            tries: 2,
            next_try_at: 1_700_000_002_000,
            deadline_at: 1_700_000_600_000,
        }),
        Event::WaitingEnded(WaitingEnded { waiting_for: Dependency::Proposer, waited_millis: 2500 }),
        Event::EchoMissing(Reason { reason: "no seed".into() }),
        Event::UsageRefused(Reason { reason: "prompt_tokens = -1".into() }),
        Event::ReplyAltered(ReplyAltered { call_id: CallId(7), changes: "1 lone surrogates became U+FFFD".into() }),
        Event::CacheDamaged(CacheDamaged { boundary: "container.rollout".into(), key: "ef".into() }),
        Event::ClockObserved(ClockObserved { elapsed_millis: 12_345 }),
        Event::HeldoutStarted(chosen()),
        Event::HeldoutPartial(chosen()),
        Event::HeldoutSkipped(reason()),
        Event::HeldoutCompleted(evaluation()),
        Event::RunFinished(RunFinished {
            best_candidate_id: candidate("c2"),
            stopped_by: stopped_by(),
            scores: vec![NamedScore {
                role: "best".into(),
                split: "heldout".into(),
                candidate_id: candidate("c2"),
                score: Score::of([0.5]).unwrap(),
            }],
            train_gain: Gain::of([(1.0, 0.0), (0.5, 0.5)]),
            heldout_gain: Gain::of([(1.0, 0.5), (0.5, 0.5)]),
            claim: Some(Box::new(Claim {
                verdict: ClaimVerdict::NoEvidence,
                candidate_id: candidate("c3"),
                gain: Some(ClaimedGain { estimate: 0.125, low: -0.5, high: 0.75, rows: 2 }),
                p_value: Some(0.5),
                smallest_gain: None,
                sentence: "no evidence of improvement".into(),
            })),
            generations: 2,
            candidates: 3,
            rollouts: counts(),
            bill: bill(),
        }),
        Event::RunFailed(RunFailed {
            error_code: ErrorCode::Container,
            message: "port 9000 closed".into(),
            hint: Some("Start it.".into()),
            best_candidate_id: Some(candidate("c2")),
            rollouts: counts(),
            bill: bill(),
        }),
        Event::RunCancelled(RunCancelled {
            reason: "asked by the owner".into(),
            best_candidate_id: None,
            rollouts: counts(),
            bill: bill(),
        }),
    ]
}

fn type_of(event: &Event) -> &'static EventType {
    EVENT_TYPES.iter().find(|known| known.name == event.type_name()).unwrap()
}

fn line(event: &Event) -> String {
    Envelope::new(3, "run-1", 1_700_000_000_123, event.clone()).to_line().unwrap()
}

/// Returns a value of the same shape in which every part differs.
fn changed(value: &Value) -> Value {
    match value {
        Value::Null => json!(0.75),
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) => number.as_u64().map_or_else(|| json!(-1.5), |whole| json!(whole / 2 + 1_000)),
        Value::String(text) => json!(format!("{text} but otherwise")),
        Value::Array(items) => items.iter().map(changed).chain([json!("one more")]).collect(),
        Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), changed(item))).collect(),
    }
}

// The list.

#[test]
fn there_is_exactly_one_sample_of_every_type() {
    let sampled: BTreeSet<&str> = samples().iter().map(Event::type_name).collect();
    let listed: BTreeSet<&str> = EVENT_TYPES.iter().map(|known| known.name).collect();
    assert_eq!(sampled, listed, "samples() needs one value of every event type");
    assert_eq!(listed.len(), EVENT_TYPES.len(), "two event types have one name");
    assert_eq!(samples().len(), EVENT_TYPES.len());
}

#[test]
fn wire_names_are_dotted_lower_case_words() {
    for known in EVENT_TYPES {
        assert!(known.name.contains('.'), "{}", known.name);
        assert!(known.name.bytes().all(|byte| byte.is_ascii_lowercase() || b"._".contains(&byte)), "{}", known.name);
        assert!(known.about.trim().ends_with('.') && known.about.trim().len() > 10, "{}", known.name);
    }
}

#[test]
fn published_names_are_used_where_the_meaning_agrees() {
    let published = [
        "optimizer.state.transitioned",
        "gepa.run.started",
        "container.program.loaded",
        "dataset.rows.loaded",
        "objective_set.declared",
        "candidate.registered",
        "candidate.evaluated",
        "proposer.started",
        "proposer.completed",
        "parent_minibatch_reference.completed",
        "candidate.minibatch_evaluated",
        "candidate.full_train_evaluated",
        "candidate.accepted",
        "candidate.rejected",
        "candidate.deferred",
        "candidate.duplicate_skipped",
        "candidate.leakage_detected",
        "frontier.updated",
        "rollout.circuit_breaker.tripped",
        "heldout.partial",
        "heldout.skipped",
        "heldout.completed",
        "gepa.stop",
        "gepa.run.finished",
        "gepa.run.failed",
        "gepa.run.cancelled",
    ];
    for name in published {
        assert!(EVENT_TYPES.iter().any(|known| known.name == name), "{name} is gone");
    }
    // The variants behind the less obvious published names.
    for event in samples() {
        let expected = match &event {
            Event::SeedEvaluated(_) => "candidate.evaluated",
            Event::ReferenceCompleted(_) => "parent_minibatch_reference.completed",
            Event::MinibatchEvaluated(_) => "candidate.minibatch_evaluated",
            Event::FullTrainEvaluated(_) => "candidate.full_train_evaluated",
            Event::HeldoutCompleted(_) => "heldout.completed",
            Event::RunCancelled(_) => "gepa.run.cancelled",
            Event::StopDecided(_) => "gepa.stop",
            _ => continue,
        };
        assert_eq!(event.type_name(), expected);
    }
}

#[test]
fn every_event_is_type_and_fields_and_comes_back() {
    for event in samples() {
        let value = serde_json::to_value(&event).unwrap();
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["type", "fields"], "{}", event.type_name());
        assert_eq!(value["type"], event.type_name());
        assert!(!value["fields"].as_object().unwrap().is_empty());
        assert_eq!(serde_json::from_value::<Event>(value).unwrap(), event);
    }
    assert!(serde_json::from_value::<Event>(json!({ "type": "weather.changed", "fields": {} })).is_err());
}

#[test]
fn missing_fields_are_read_as_unknown() {
    let sparse = json!({ "type": "candidate.evaluated", "fields": {
        "evaluation": 0, "candidate_id": "c1", "rows": 2, "failed": 2, "score": null } });
    let event: Event = serde_json::from_value(sparse).unwrap();
    let Event::SeedEvaluated(fields) = &event else { panic!("{event:?}") };
    assert_eq!((fields.generation, fields.score), (None, None));
    assert_eq!(message(&event), "c1 seed evaluated: no score on 2 rows, 2 failed");
}

#[test]
fn operational_events_describe_only_the_execution_of_a_run() {
    let operational: Vec<&str> =
        EVENT_TYPES.iter().filter(|known| known.is_operational).map(|known| known.name).collect();
    let expected = [
        "proposer.ready",
        "run.resumed",
        "run.interrupted",
        "call.outcome_unknown",
        "run.waiting",
        "run.waiting.ended",
        "rollout.transport.fallback",
        "rollout.concurrency.adjusted",
        "container.echo.missing",
        "container.reply.altered",
        "container.usage.refused",
        "cache.damaged",
        "clock.observed",
    ];
    assert_eq!(operational, expected);
}

#[test]
fn every_volatile_field_exists() {
    for event in samples() {
        let value = serde_json::to_value(&event).unwrap();
        for field in type_of(&event).volatile {
            assert!(value["fields"].get(field).is_some(), "{} has no field {field}", event.type_name());
        }
    }
}

#[test]
fn fields_that_depend_on_cache_or_cost_are_volatile_in_every_type() {
    for event in samples() {
        let value = serde_json::to_value(&event).unwrap();
        for field in ["cached", "bill", "container_url"] {
            let there = value["fields"].get(field).is_some();
            assert_eq!(there, type_of(&event).volatile.contains(&field), "{} and {field}", event.type_name());
        }
    }
}

// Messages.

#[test]
fn volatile_fields_change_neither_the_message_nor_the_normalized_line() {
    for event in samples() {
        let mut value = serde_json::to_value(&event).unwrap();
        for field in type_of(&event).volatile {
            value["fields"][*field] = changed(&value["fields"][*field]);
        }
        let other: Event = serde_json::from_value(value).unwrap();
        assert_eq!(other == event, type_of(&event).volatile.is_empty(), "{}", event.type_name());
        assert_eq!(message(&other), message(&event), "{}", event.type_name());
        let elsewhere = Envelope::new(77, "run-2", 1_800_000_000_456, other).to_line().unwrap();
        assert_ne!(elsewhere, line(&event));
        assert_eq!(normalize_feed(&elsewhere), normalize_feed(&line(&event)), "{}", event.type_name());
    }
}

#[test]
fn the_written_line_equals_the_normalized_feed() {
    for event in samples() {
        let mut written = Vec::new();
        write_normalized_line(&event, &message(&event), &mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), normalize_feed(&line(&event)), "{}", event.type_name());
    }
}

#[test]
fn every_stable_field_is_in_the_normalized_line() {
    for event in samples().iter().filter(|event| !type_of(event).is_operational) {
        let value = serde_json::to_value(event).unwrap();
        for (field, item) in value["fields"].as_object().unwrap() {
            let mut other = value.clone();
            other["fields"][field] = changed(item);
            let differs = normalize(other).unwrap() != normalize(value.clone()).unwrap();
            assert_eq!(differs, !type_of(event).volatile.contains(&field.as_str()), "{} {field}", event.type_name());
        }
    }
}

#[test]
fn messages_are_one_short_line() {
    for event in samples() {
        let text = message(&event);
        assert!(!text.trim().is_empty() && !text.contains('\n') && text.len() < 160, "{}: {text:?}", event.type_name());
        assert!(!text.contains("Some(") && !text.contains("None"), "{text}");
    }
}

#[test]
fn messages_say_what_happened() {
    let messages: BTreeMap<&str, String> = samples().iter().map(|event| (event.type_name(), message(event))).collect();
    let expected = [
        ("gepa.run.started", "run started with random seed 18446744073709551615"),
        ("optimizer.state.transitioned", "ready -> proposing"),
        ("rollout.finished", "c2 on train:1: 0.3000"),
        ("rollout.failed", "c2 on train:4: timeout; trying again"),
        ("candidate.evaluated", "c2 seed evaluated: 0.5833 on 3 rows, 1 failed"),
        ("candidate.accepted", "c2 accepted: primary_improved (+0.1250 on 3 rows)"),
        ("candidate.deferred", "c2 deferred: budget_refused"),
        ("generation.started", "generation 1 (merge) from c1 and c3"),
        ("proposer.started", "requested the repair of 1 problem for generation 1"),
        ("proposer.failed", "proposer contract for generation 1; trying again"),
        ("budget.refused", "7 of train_rollouts left, 20 required for full evaluation"),
        ("gepa.run.failed", "run failed: synth_optimizer_container_error"),
    ];
    for (wire, text) in expected {
        assert_eq!(messages[wire], text);
    }
}

// The envelope.

#[test]
fn a_line_holds_the_whole_envelope_and_comes_back() {
    for (place, event) in samples().into_iter().enumerate() {
        let envelope = Envelope::new(place as u64, "run-1", 1_700_000_000_123, event);
        let line = envelope.to_line().unwrap();
        assert!(!line.contains('\n'));
        let value: Value = serde_json::from_str(&line).unwrap();
        let keys: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            BTreeSet::from(["version", "sequence_number", "run_id", "ts", "type", "fields", "message"]),
            "{line}"
        );
        assert_eq!(value["version"], ENVELOPE_VERSION);
        assert_eq!(value["sequence_number"], place);
        assert_eq!(value["ts"], "2023-11-14T22:13:20.123Z");
        assert_eq!(value["message"], message(&envelope.event));
        assert_eq!(Envelope::from_line(&line, 1).unwrap(), envelope);
    }
}

#[test]
fn a_newer_feed_is_refused_with_advice() {
    let newer = line(&samples()[0]).replacen("\"version\":1", "\"version\":2", 1);
    // A newer release may have unknown event types and fields.
    let unknown = r#"{"version":2,"sequence":9,"type":"weather.changed","fields":{}}"#;
    for line in [newer.as_str(), unknown] {
        let error = Envelope::from_line(line, 17).unwrap_err();
        assert_eq!(error.code, ErrorCode::Json);
        assert!(error.message.contains("line 17") && error.message.contains("version 2"), "{}", error.message);
        assert!(error.hint.contains("newer release"), "{}", error.hint);
    }
}

#[test]
fn a_broken_line_is_named_by_its_number() {
    let whole = line(&samples()[11]);
    let cut = &whole[..whole.len() / 2];
    let unknown = whole.replacen("rollout.finished", "rollout.dreamt", 1);
    let incomplete = whole.replacen("\"sequence_number\":3,", "", 1);
    for broken in ["", "{}", "[]", "null", "no json", cut, &unknown, &incomplete] {
        let error = Envelope::from_line(broken, 42).unwrap_err();
        assert_eq!(error.code, ErrorCode::Json);
        assert!(error.message.starts_with("line 42 "), "{}", error.message);
        assert!(error.hint.ends_with('.') && !error.hint.contains("newer"), "{}", error.hint);
    }
}

#[test]
fn known_times_are_formatted_and_parsed() {
    let cases = [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (951_868_799_999, "2000-02-29T23:59:59.999Z"),
        (951_868_800_000, "2000-03-01T00:00:00.000Z"),
        (1_735_689_599_999, "2024-12-31T23:59:59.999Z"),
        (1_735_689_600_000, "2025-01-01T00:00:00.000Z"),
        // 2100 has no 29 February.
        (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        (1_234_567_890_007, "2009-02-13T23:31:30.007Z"),
    ];
    for (millis, text) in cases {
        assert_eq!(rfc3339(millis), text);
    }
}

/// Returns the date, counted by years and months.
fn counted(millis: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut days = millis / 86_400_000;
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let second = millis / 1000 % 86_400;
    format!(
        "{year:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        month + 1,
        days + 1,
        second / 3600,
        second % 3600 / 60,
        second % 60,
        millis % 1000
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn dates_match_the_calendar(millis in 0..20_000_000_000_000u64, days in 0..400_000u64) {
        prop_assert_eq!(rfc3339(millis), counted(millis));
        for edge in [days * 86_400_000, days * 86_400_000 + 86_399_999] {
            prop_assert_eq!(rfc3339(edge), counted(edge));
        }
    }

    #[test]
    fn user_text_survives_a_round_trip(text in any::<String>(), reward in -1e9..1e9f64, number in any::<u64>()) {
        for event in samples() {
            let event = match event {
                Event::CandidateRegistered(mut fields) => {
                    fields.payload.insert(text.clone(), text.clone());
                    fields.rationale = text.clone();
                    Event::CandidateRegistered(fields)
                }
                Event::RolloutFinished(mut fields) => {
                    (fields.reward, fields.call_id, fields.row_id) = (reward, CallId(number), RowId::new(&text));
                    Event::RolloutFinished(fields)
                }
                _ => continue,
            };
            let envelope = Envelope::new(number, &text, 0, event);
            let line = envelope.to_line().unwrap();
            prop_assert_eq!(line.lines().count(), 1);
            prop_assert_eq!(&Envelope::from_line(&line, 1).unwrap(), &envelope);
            let once = normalize_feed(&line);
            prop_assert_eq!(normalize_feed(&once), once);
        }
    }
}

// The normalized form.

fn feed() -> String {
    samples().iter().map(|event| line(event) + "\n").collect()
}

#[test]
fn normalizing_twice_changes_nothing() {
    let once = normalize_feed(&feed());
    assert_eq!(normalize_feed(&once), once);
    for event in samples() {
        let value: Value = serde_json::from_str(&line(&event)).unwrap();
        if let Some(first) = normalize(value).unwrap() {
            assert_eq!(normalize(first.clone()).unwrap(), Some(first));
        }
    }
}

#[test]
fn a_normalized_feed_has_a_canonical_line_for_every_event_except_operational_ones() {
    let once = normalize_feed(&feed());
    assert!(once.ends_with('\n'));
    let kept: Vec<Event> = samples().into_iter().filter(|event| !type_of(event).is_operational).collect();
    assert_eq!(once.lines().count(), kept.len());
    for (line, event) in once.lines().zip(kept) {
        let value: Value = serde_json::from_str(line).unwrap();
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["fields", "message", "type"]);
        assert_eq!(value["type"], event.type_name());
    }
    assert!(!once.contains("run-1") && !once.contains("2023-11-14") && !once.contains("9000"));
    assert_eq!(normalize_feed(""), "");
}

#[test]
fn an_unknown_type_is_an_error_that_names_it() {
    for (event, part) in [
        (json!({"type": "weather.changed", "fields": {}}), "weather.changed"),
        (json!({"fields": {}}), "unknown event type"),
        (json!({"type": 7}), "unknown event type"),
        (json!(7), "unknown event type"),
    ] {
        let error = normalize(event).unwrap_err();
        assert_eq!(error.code, ErrorCode::Json);
        assert!(error.message.contains(part), "{}", error.message);
        assert!(!error.hint.is_empty());
    }
}

#[test]
fn texts_of_users_that_look_volatile_are_left_alone() {
    let looks = ["cached", "message", "bill", "container_url", "ts", "run_id", "elapsed_millis", "api_key"];
    let mut registered = None;
    let mut finished = None;
    for event in samples() {
        match event {
            Event::CandidateRegistered(mut fields) => {
                fields.payload = looks.iter().map(|name| ((*name).into(), format!("text of {name}"))).collect();
                registered = Some(Event::CandidateRegistered(fields));
            }
            Event::RolloutFinished(mut fields) => {
                fields.objectives = looks.iter().map(|name| ((*name).into(), 0.5)).collect();
                finished = Some(Event::RolloutFinished(fields));
            }
            _ => {}
        }
    }
    for (event, inner) in [(registered.unwrap(), "payload"), (finished.unwrap(), "objectives")] {
        let before: Value = serde_json::from_str(&line(&event)).unwrap();
        let after: Value = serde_json::from_str(&normalize_feed(&line(&event))).unwrap();
        assert_eq!(after["fields"][inner].as_object().unwrap().len(), looks.len());
        assert_eq!(after["fields"][inner], before["fields"][inner]);
    }
}

//! A small run as a list of stored events: an initial candidate, two generations, a failure, a cached turn and held-out
//! rows.

use std::collections::BTreeMap;

use synth_optimizer_core::config::gepa::{Direction, FrontierType, Selector};
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    Bill, CandidateDecided, CandidateRegistered, CellWon, EvaluationCompleted, Failure, FrontierUpdated,
    GenerationCompleted, GenerationStarted, HeldoutChosen, NamedScore, Objective, ObjectiveSetDeclared, Operation,
    ParentSelection, ProgramLoaded, ProposerCompleted, ProposerStarted, Reason, RolloutCount, RolloutFailed,
    RolloutFinished, RolloutsRequested, RowsLoaded, RunCancelled, RunFailed, RunFinished, RunResumed, RunStarted,
    Stage, StateTransitioned, StopDecided, StopKind, StoppedBy,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, Payload, RowId};
use synth_optimizer_core::model::lifecycle::{RunState, RunTrigger};
use synth_optimizer_core::model::score::{Comparison, Gain, Score};
use synth_optimizer_core::model::usage::{Cost, Usage};
use synth_optimizer_platform::workspace::StoredEvent;

pub(crate) const SEED: &str = "gepa_aaaaaaaaaaaa";
pub(crate) const CHILD: &str = "gepa_bbbbbbbbbbbb";
pub(crate) const WORSE: &str = "gepa_cccccccccccc";

pub(crate) fn id(name: &str) -> CandidateId {
    CandidateId::new(name)
}

/// Collects events with times and call numbers.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) events: Vec<StoredEvent>,
    next_call_id: u64,
}

impl Log {
    pub(crate) fn push(&mut self, event: Event) {
        let sequence = self.events.len() as u64;
        // Thursday, 3 June 2027, and 0.7 s for each event.
        self.events.push(StoredEvent::new(sequence, 1_811_980_800_000 + 700 * sequence, event));
    }

    fn moved(&mut self, from: RunState, to: RunState, trigger: RunTrigger) {
        self.push(Event::StateTransitioned(StateTransitioned { from, to, trigger }));
    }

    /// Adds the events of an evaluation. A reward of `None` is a failure.
    fn evaluate(
        &mut self,
        candidate: &str,
        stage: Stage,
        generation: Option<u32>,
        rewards: &[(&str, Option<f64>)],
        cached: bool,
    ) -> EvaluationCompleted {
        let first = CallId(self.next_call_id);
        self.next_call_id += rewards.len() as u64;
        self.push(Event::RolloutsRequested(RolloutsRequested {
            first_call_id: first,
            evaluation: first,
            candidate_id: id(candidate),
            stage,
            generation,
            row_ids: rewards.iter().map(|(row, _)| RowId::new(row)).collect(),
            attempt: 1,
            replicate: 0,
        }));
        for (place, (row, reward)) in rewards.iter().enumerate() {
            let call_id = CallId(first.0 + place as u64);
            let usage = Usage {
                prompt_tokens: Some(100),
                completion_tokens: Some(20),
                total_tokens: None,
                cost: Cost::from_usd(Some(0.001)),
            };
            self.push(match reward {
                Some(reward) => Event::RolloutFinished(RolloutFinished {
                    call_id,
                    candidate_id: id(candidate),
                    row_id: RowId::new(row),
                    stage,
                    reward: *reward,
                    objectives: BTreeMap::new(),
                    usage,
                    cached,
                    trace_digest: Some("ab".repeat(32)),
                }),
                None => Event::RolloutFailed(RolloutFailed {
                    call_id,
                    candidate_id: id(candidate),
                    row_id: RowId::new(row),
                    stage,
                    attempt: 1,
                    class: FailureClass::Timeout,
                    message: "no answer within 600 s".into(),
                    usage: Usage::default(),
                    cached: false,
                    retried: false,
                }),
            });
        }
        EvaluationCompleted {
            evaluation: first,
            candidate_id: id(candidate),
            generation,
            rows: rewards.len() as u32,
            failed: rewards.iter().filter(|(_, reward)| reward.is_none()).count() as u32,
            score: Score::of(rewards.iter().filter_map(|(_, reward)| *reward)),
        }
    }

    fn generation(&mut self, generation: u32, parent: &str, child: &str, text: &str, cached: bool) {
        self.push(Event::GenerationStarted(GenerationStarted {
            generation,
            operation: Operation::Mutate,
            parent_ids: vec![id(parent)],
            ancestor_id: None,
            selection: Some(ParentSelection {
                selector: Selector::ParetoWeighted,
                cells_won: 4,
                total_weight: 4,
                frontier_size: 1,
            }),
            draw: u64::from(generation),
            minibatch: vec![RowId::new("train:0"), RowId::new("train:1")],
            evidence: vec![RowId::new("train:0")],
            components: vec!["prompt".into()],
            base: payload("Answer."),
        }));
        let call_id = CallId(self.next_call_id);
        self.next_call_id += 1;
        self.push(Event::ProposerStarted(ProposerStarted {
            call_id,
            generation,
            attempt: 1,
            proposal_count: 1,
            carried_failures: Vec::new(),
            problems: Vec::new(),
        }));
        self.push(Event::ProposerCompleted(ProposerCompleted {
            call_id,
            generation,
            proposal_count: 1,
            ignored: 0,
            requested_model: "gpt-5.4-mini".into(),
            effective_model: "gpt-5.4-mini".into(),
            usage: Usage { cost: Cost::Unknown, ..Usage::default() },
            cached,
        }));
        self.push(Event::CandidateRegistered(CandidateRegistered {
            candidate_id: id(child),
            operation: Operation::Mutate,
            parent_ids: vec![id(parent)],
            generation: Some(generation),
            payload: payload(text),
            changed_fields: vec!["prompt".into()],
            rationale: "Rows fail for want of reasons.\nSo ask for them.".into(),
            dropped_fields: Vec::new(),
            kept_share: None,
        }));
    }
}

fn payload(text: &str) -> Payload {
    Payload::from([("prompt".to_owned(), text.to_owned())])
}

fn decided(candidate: &str, stage: Stage, reason: &str, scores: Option<(f64, f64, u32)>) -> CandidateDecided {
    CandidateDecided {
        candidate_id: id(candidate),
        stage,
        reason: reason.into(),
        detail: None,
        comparison: scores.map(|(candidate_score, incumbent_score, rows)| Comparison {
            rows,
            primary_delta: candidate_score - incumbent_score,
            candidate_score,
            incumbent_score,
            objective_deltas: BTreeMap::new(),
        }),
    }
}

fn frontier(candidate: &str, ranking_score: f64, cells: u32, left: &[&str], size: u32) -> Event {
    Event::FrontierUpdated(FrontierUpdated {
        candidate_id: id(candidate),
        ranking_score,
        cells_won: cells,
        joined: true,
        cells: (0..cells)
            .map(|cell| CellWon {
                row_id: Some(RowId::new(&format!("train:{cell}"))),
                objective: "outcome_reward".into(),
                value: 1.0,
                alone: cell > 0,
            })
            .collect(),
        removed: left.iter().map(|name| id(name)).collect(),
        size,
    })
}

fn bill() -> Bill {
    Bill {
        cost_usd: Cost::Unknown,
        sent_calls: 17,
        cached_calls: 3,
        prompt_tokens: 1600,
        completion_tokens: 320,
        total_tokens: 1920,
        elapsed_millis: None,
        shortfalls: Vec::new(),
    }
}

fn count() -> RolloutCount {
    RolloutCount { train: 13, heldout: 4, unknown_outcomes: 1 }
}

/// Returns the log up to the end of the search.
pub(crate) fn search() -> Log {
    let mut log = Log::default();
    log.push(Event::RunStarted(RunStarted {
        algorithm: "gepa".into(),
        config_digest: "0123456789abcdef".repeat(4),
        seed: 7,
        container_url: "http://127.0.0.1:9000".into(),
    }));
    log.moved(RunState::Created, RunState::Initializing, RunTrigger::RunStarted);
    log.push(Event::ProgramLoaded(ProgramLoaded {
        program_id: "quiz".into(),
        program_digest: "cd34".into(),
        mutable_fields: vec!["prompt".into()],
        target_fields: vec!["prompt".into()],
    }));
    log.push(Event::RowsLoaded(RowsLoaded {
        train_rows: 4,
        heldout_rows: 2,
        pareto_pool: 4,
        minibatch_pool: 4,
        reflection_pool: 4,
        heldout_pool: 2,
        rows_digest: "ef56".into(),
    }));
    log.push(Event::ObjectiveSetDeclared(ObjectiveSetDeclared {
        selection_objective: "outcome_reward".into(),
        frontier_type: FrontierType::PerExample,
        objectives: vec![Objective { name: "outcome_reward".into(), direction: Direction::Maximize }],
    }));
    log.moved(RunState::Initializing, RunState::Ready, RunTrigger::ContainerReady);
    log.push(Event::CandidateRegistered(CandidateRegistered {
        candidate_id: id(SEED),
        operation: Operation::Seed,
        parent_ids: Vec::new(),
        generation: None,
        payload: payload("Answer \"é\" <now> & here."),
        changed_fields: Vec::new(),
        rationale: String::new(),
        dropped_fields: Vec::new(),
        kept_share: None,
    }));
    let rows = |rewards: [Option<f64>; 4]| {
        ["train:0", "train:1", "train:2", "train:3"].into_iter().zip(rewards).collect::<Vec<_>>()
    };
    let done = log.evaluate(SEED, Stage::SeedFullTrain, None, &rows([Some(0.0), Some(0.0), Some(1.0), None]), false);
    log.push(Event::SeedEvaluated(done));
    log.push(frontier(SEED, 1.0 / 3.0, 4, &[], 1));
    log.push(Event::CandidateAccepted(decided(SEED, Stage::SeedFullTrain, "seed", None)));

    log.generation(0, SEED, CHILD, "Answer, and say why.", false);
    let batch = |a: f64, b: f64| vec![("train:0", Some(a)), ("train:1", Some(b))];
    let done = log.evaluate(CHILD, Stage::CandidateMinibatch, Some(0), &batch(1.0, 0.0), false);
    log.push(Event::MinibatchEvaluated(done));
    log.push(Event::CandidatePromoted(decided(
        CHILD,
        Stage::CandidateMinibatch,
        "primary_improved",
        Some((0.5, 0.0, 2)),
    )));
    let rest = [("train:2", Some(1.0)), ("train:3", Some(1.0))];
    let mut done = log.evaluate(CHILD, Stage::CandidateFullTrain, Some(0), &rest, true);
    done.rows = 4;
    done.score = Score::of([1.0, 0.0, 1.0, 1.0]);
    log.push(Event::FullTrainEvaluated(done));
    log.push(frontier(CHILD, 0.75, 4, &[SEED], 1));
    log.push(Event::CandidateAccepted(decided(
        CHILD,
        Stage::CandidateFullTrain,
        "primary_improved",
        Some((2.0 / 3.0, 1.0 / 3.0, 3)),
    )));
    log.push(Event::GenerationCompleted(GenerationCompleted {
        generation: 0,
        operation: Operation::Mutate,
        registered: 1,
        accepted: 1,
        best_candidate_id: id(CHILD),
        best_train_score: Score::of([1.0, 0.0, 1.0, 1.0]),
        frontier_size: 1,
        candidates: 2,
    }));
    log.push(Event::RunInterrupted(Reason { reason: "interrupt".into() }));
    log.push(Event::RunResumed(RunResumed { stored_events: 34, waiting_answers: 1, unknown_outcomes: 1 }));

    log.generation(1, CHILD, WORSE, "Answer quickly.", true);
    let done = log.evaluate(WORSE, Stage::CandidateMinibatch, Some(1), &batch(0.0, 0.0), false);
    log.push(Event::MinibatchEvaluated(done));
    log.push(Event::CandidateRejected(decided(WORSE, Stage::CandidateMinibatch, "not_better", Some((0.0, 0.5, 2)))));
    log.push(Event::GenerationCompleted(GenerationCompleted {
        generation: 1,
        operation: Operation::Mutate,
        registered: 1,
        accepted: 0,
        best_candidate_id: id(CHILD),
        best_train_score: Score::of([1.0, 0.0, 1.0, 1.0]),
        frontier_size: 1,
        candidates: 3,
    }));
    log
}

/// Returns the log of a completed run.
pub(crate) fn finished() -> Vec<StoredEvent> {
    let mut log = search();
    let stopped_by = StoppedBy { kind: StopKind::MaxGenerations, limit: Some(2.0), value: Some(2.0), reason: None };
    log.push(Event::StopDecided(StopDecided { stopped_by: stopped_by.clone(), failure: None }));
    log.push(Event::HeldoutStarted(HeldoutChosen { candidate_ids: vec![id(SEED), id(CHILD)], rows: 2 }));
    for (candidate, rewards) in [(SEED, [0.0, 0.0]), (CHILD, [1.0, 0.0])] {
        let rows = [("test:0", Some(rewards[0])), ("test:1", Some(rewards[1]))];
        let done = log.evaluate(candidate, Stage::Heldout, None, &rows, false);
        log.push(Event::HeldoutCompleted(done));
    }
    let named = |role: &str, split: &str, candidate: &str, values: &[f64]| NamedScore {
        role: role.into(),
        split: split.into(),
        candidate_id: id(candidate),
        score: Score::of(values.iter().copied()).unwrap(),
    };
    log.moved(RunState::Ready, RunState::Completed, RunTrigger::RunCompleted);
    log.push(Event::RunFinished(RunFinished {
        best_candidate_id: id(CHILD),
        stopped_by,
        scores: vec![
            named("seed", "train", SEED, &[0.0, 0.0, 1.0]),
            named("best", "train", CHILD, &[1.0, 0.0, 1.0, 1.0]),
            named("seed", "heldout", SEED, &[0.0, 0.0]),
            named("best", "heldout", CHILD, &[1.0, 0.0]),
        ],
        train_gain: Gain::of([(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)]),
        heldout_gain: Gain::of([(1.0, 0.0), (0.0, 0.0)]),
        claim: None,
        generations: 2,
        candidates: 3,
        rollouts: count(),
        bill: bill(),
    }));
    log.events
}

/// Returns the log of a run that was cancelled during an evaluation.
pub(crate) fn cancelled() -> Vec<StoredEvent> {
    let mut log = search();
    log.evaluate(WORSE, Stage::CandidateFullTrain, Some(1), &[("train:2", Some(1.0))], false);
    log.push(Event::CancelRequested(Reason { reason: "enough seen".into() }));
    log.moved(RunState::RolloutRunning, RunState::Cancelled, RunTrigger::CancelRequested);
    log.push(Event::RunCancelled(RunCancelled {
        reason: "enough seen".into(),
        best_candidate_id: Some(id(CHILD)),
        rollouts: count(),
        bill: bill(),
    }));
    log.events
}

/// Returns the log of a run that failed because of its container.
pub(crate) fn failed() -> Vec<StoredEvent> {
    let mut log = search();
    log.push(Event::FailureRaised(Failure {
        code: ErrorCode::Container,
        message: "connection refused".into(),
        hint: None,
    }));
    log.moved(RunState::Ready, RunState::Failed, RunTrigger::FailureRaised);
    log.push(Event::RunFailed(RunFailed {
        error_code: ErrorCode::Container,
        message: "connection refused".into(),
        hint: None,
        best_candidate_id: Some(id(CHILD)),
        rollouts: count(),
        bill: bill(),
    }));
    log.events
}

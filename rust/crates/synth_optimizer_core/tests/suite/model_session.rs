//! Tests of the session: answers arrive in any order, retire in the engine's order and count once.
use std::collections::BTreeMap;

use synth_optimizer_core::config::Config;
use synth_optimizer_core::engine::{Engine, Session};
use synth_optimizer_core::model::answer::{Answer, FailureClass, Observation, RolloutAnswer};
use synth_optimizer_core::model::command::{Command, RolloutCommand};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{
    Bill, Reason, RolloutCount, RolloutFailed, RolloutFinished, RolloutsRequested, RunCancelled, RunStarted, Stage,
};
use synth_optimizer_core::model::ids::{CallId, CandidateId, Payload, RowId};
use synth_optimizer_core::model::lifecycle::{RunState, RunTrigger};
use synth_optimizer_core::model::program::Inputs;
use synth_optimizer_core::model::usage::{Cost, Usage};

/// A test engine that requests a fixed list of rollouts and ends after the last answer.
struct SumEngine {
    /// The calls, in the order in which they retire.
    turns: Vec<u64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct SumState {
    started: bool,
    asked: bool,
    retired: usize,
    /// The rewards as digits, which show their order.
    digits: u64,
    cancelling: bool,
    over: bool,
}

impl SumEngine {
    fn rollout(&self, call_id: CallId) -> Command {
        Command::Rollout(RolloutCommand {
            call_id,
            evaluation: call_id,
            candidate_id: CandidateId::new("seed"),
            payload: Payload::new(),
            row_id: RowId::new("row"),
            heldout: false,
            stage: Stage::SeedFullTrain,
            replicate: 0,
            attempt: 1,
        })
    }

    fn answered(call_id: CallId, answer: &Answer) -> Event {
        let failed = |class| {
            Event::RolloutFailed(RolloutFailed {
                call_id,
                candidate_id: CandidateId::new("seed"),
                row_id: RowId::new("row"),
                stage: Stage::SeedFullTrain,
                attempt: 1,
                class,
                message: String::new(),
                usage: Usage::default(),
                cached: false,
                retried: false,
            })
        };
        match answer {
            Answer::Rollout(rollout) => Event::RolloutFinished(RolloutFinished {
                call_id,
                candidate_id: CandidateId::new("seed"),
                row_id: RowId::new("row"),
                stage: Stage::SeedFullTrain,
                reward: rollout.reward,
                objectives: BTreeMap::new(),
                usage: rollout.usage,
                cached: rollout.cached,
                trace_digest: None,
            }),
            Answer::Failed(failure) => failed(failure.class),
            Answer::Abandoned { sent: true } => failed(FailureClass::UnknownOutcome),
            Answer::Abandoned { sent: false } => failed(FailureClass::NotSent),
            Answer::Proposal(_) => panic!("nothing was proposed"),
        }
    }

    fn ended(state: &SumState) -> RunCancelled {
        RunCancelled {
            reason: state.digits.to_string(),
            best_candidate_id: None,
            rollouts: RolloutCount { train: state.retired as u64, heldout: 0, unknown_outcomes: 0 },
            bill: Bill {
                cost_usd: Cost::Unknown,
                sent_calls: 0,
                cached_calls: 0,
                prompt_tokens: 0,
                completion_tokens: 0,
                total_tokens: 0,
                elapsed_millis: None,
                shortfalls: Vec::new(),
            },
        }
    }
}

impl Engine for SumEngine {
    const NAME: &'static str = "summing";

    type State = SumState;

    fn new(_: &Config, inputs: Inputs) -> Result<Self, OptimizerError> {
        Ok(Self { turns: inputs.pareto_pool.iter().map(|row| u64::from(row.0)).collect() })
    }

    fn initial_state(&self) -> SumState {
        SumState::default()
    }

    fn decide(&self, state: &SumState, observation: &Observation) -> Result<Vec<Event>, OptimizerError> {
        let one = |event| Ok(vec![event]);
        match observation {
            Observation::Begin => one(Event::RolloutsRequested(RolloutsRequested {
                first_call_id: CallId(0),
                evaluation: CallId(0),
                candidate_id: CandidateId::new("seed"),
                stage: Stage::SeedFullTrain,
                generation: None,
                row_ids: self.turns.iter().map(|turn| RowId::new(&turn.to_string())).collect(),
                attempt: 1,
                replicate: 0,
            })),
            Observation::Answer { call_id, answer } => {
                assert_eq!(Some(*call_id), self.next_to_retire(state), "an answer came out of turn");
                match answer {
                    Answer::Rollout(rollout) if !rollout.reward.is_finite() => {
                        Err(OptimizerError::new(ErrorCode::Invariant, "a reward is no number"))
                    }
                    answer => one(Self::answered(*call_id, answer)),
                }
            }
            Observation::Advance if !state.over && state.asked && self.next_to_retire(state).is_none() => {
                one(Event::RunCancelled(Self::ended(state)))
            }
            Observation::CancelRequested { reason } if !state.over => {
                one(Event::CancelRequested(Reason { reason: reason.clone() }))
            }
            _ => Ok(Vec::new()),
        }
    }

    fn evolve(&self, state: &mut SumState, event: &Event) {
        match event {
            Event::RunStarted(_) => state.started = true,
            Event::RolloutsRequested(_) => state.asked = true,
            Event::RolloutFinished(rollout) => {
                state.retired += 1;
                state.digits = state.digits * 10 + rollout.reward as u64;
            }
            Event::RolloutFailed(_) => {
                state.retired += 1;
                state.digits *= 10;
            }
            Event::CancelRequested(_) => state.cancelling = true,
            Event::RunCancelled(_) => (state.cancelling, state.over) = (false, true),
            _ => {}
        }
    }

    fn next_to_retire(&self, state: &SumState) -> Option<CallId> {
        self.turns.get(state.retired).filter(|_| state.asked).map(|turn| CallId(*turn))
    }

    fn is_outstanding(&self, state: &SumState, call_id: CallId) -> bool {
        state.asked && self.turns.iter().skip(state.retired).any(|turn| *turn == call_id.0)
    }

    fn outstanding(&self, state: &SumState) -> Vec<Command> {
        let mut open: Vec<u64> = self.turns.iter().skip(state.retired).filter(|_| state.asked).copied().collect();
        open.sort_unstable();
        open.into_iter().map(|call_id| self.rollout(CallId(call_id))).collect()
    }

    fn command(&self, state: &SumState, call_id: CallId) -> Option<Command> {
        self.outstanding(state).into_iter().find(|command| command.call_id() == call_id)
    }

    fn next_wakeup(&self, _: &SumState) -> Option<u64> {
        None
    }

    fn is_terminal(&self, state: &SumState) -> bool {
        state.over
    }

    fn is_cancelling(&self, state: &SumState) -> bool {
        state.cancelling
    }
}

fn score(reward: f64) -> Answer {
    Answer::Rollout(RolloutAnswer {
        reward,
        objectives: BTreeMap::new(),
        usage: Usage::default(),
        cached: false,
        trace_digest: None,
    })
}

fn started_session(engine: &SumEngine) -> Session<'_, SumEngine> {
    let mut session = Session::new(engine);
    let events = session.observe(&Observation::Begin).unwrap();
    assert_eq!(type_names(&events), ["rollout.requested"]);
    session
}

fn type_names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::type_name).collect()
}

/// Returns the call and the reward or failure class of every event that settles a call.
fn answers(events: &[Event]) -> Vec<(u64, String)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::RolloutFinished(done) => Some((done.call_id.0, done.reward.to_string())),
            Event::RolloutFailed(failed) => Some((failed.call_id.0, failed.class.as_str().to_owned())),
            _ => None,
        })
        .collect()
}

fn in_order() -> SumEngine {
    SumEngine { turns: vec![0, 1, 2] }
}

#[test]
fn a_run_opens_with_its_start_and_its_first_transition() {
    let engine = in_order();
    let mut session = Session::new(&engine);
    let run =
        RunStarted { algorithm: "sum".into(), config_digest: String::new(), seed: 4, container_url: String::new() };
    let events = session.start(run.clone());
    assert_eq!(events[0], Event::RunStarted(run));
    let [_, Event::StateTransitioned(change)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((change.from, change.to), (RunState::Created, RunState::Initializing));
    assert_eq!(change.trigger, RunTrigger::RunStarted);
    assert!(session.state().started);
}

#[test]
fn answers_in_order_retire_at_once() {
    let engine = in_order();
    let mut session = started_session(&engine);
    assert_eq!(answers(&session.accept_answer(CallId(0), score(4.0)).unwrap()), [(0, "4".into())]);
    assert_eq!(answers(&session.accept_answer(CallId(1), score(5.0)).unwrap()), [(1, "5".into())]);
    let last = session.accept_answer(CallId(2), score(6.0)).unwrap();
    assert_eq!(type_names(&last), ["rollout.finished", "gepa.run.cancelled"]);
    assert_eq!(session.state().digits, 456);
    assert!(engine.is_terminal(session.state()));
}

#[test]
fn answers_out_of_order_wait_for_their_turn() {
    let engine = in_order();
    let mut session = started_session(&engine);
    let before = session.state().clone();
    assert_eq!(session.accept_answer(CallId(2), score(6.0)).unwrap(), []);
    assert_eq!(session.accept_answer(CallId(1), score(5.0)).unwrap(), []);
    assert_eq!(session.state(), &before);
    assert_eq!(engine.outstanding(session.state()).len(), 3);
    let all = session.accept_answer(CallId(0), score(4.0)).unwrap();
    assert_eq!(answers(&all), [(0, "4".into()), (1, "5".into()), (2, "6".into())]);
    assert_eq!(all.last().unwrap().type_name(), "gepa.run.cancelled");
}

#[test]
fn every_order_of_arrival_gives_the_same_log() {
    for turns in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let engine = SumEngine { turns: turns.to_vec() };
        let mut logs = Vec::new();
        for arrival in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut session = started_session(&engine);
            let log: Vec<Event> = arrival
                .into_iter()
                .flat_map(|call_id| session.accept_answer(CallId(call_id), score(4.0 + call_id as f64)).unwrap())
                .collect();
            logs.push(log);
        }
        let retired: Vec<u64> = answers(&logs[0]).into_iter().map(|(call_id, _)| call_id).collect();
        assert_eq!(retired, turns, "the engine says whose turn it is");
        assert!(logs.iter().all(|log| log == &logs[0]));
    }
}

#[test]
fn a_second_answer_to_a_call_is_ignored() {
    let engine = in_order();
    let mut session = started_session(&engine);
    // While the first answer waits.
    assert_eq!(session.accept_answer(CallId(1), score(5.0)).unwrap(), []);
    assert_eq!(session.accept_answer(CallId(1), score(9.0)).unwrap(), []);
    let both = session.accept_answer(CallId(0), score(4.0)).unwrap();
    assert_eq!(answers(&both), [(0, "4".into()), (1, "5".into())]);
    // After the first answer has retired.
    let state = session.state().clone();
    assert_eq!(session.accept_answer(CallId(0), score(9.0)).unwrap(), []);
    assert_eq!(session.accept_answer(CallId(1), score(9.0)).unwrap(), []);
    assert_eq!(session.state(), &state);
    session.accept_answer(CallId(2), score(6.0)).unwrap();
    assert_eq!(session.state().digits, 456);
    // After the end of the run, and for an unknown call.
    assert_eq!(session.accept_answer(CallId(2), score(9.0)).unwrap(), []);
    assert_eq!(session.accept_answer(CallId(70), score(9.0)).unwrap(), []);
}

#[test]
fn an_answer_to_an_unknown_call_is_ignored() {
    let engine = in_order();
    let mut session = Session::new(&engine);
    assert_eq!(session.accept_answer(CallId(0), score(9.0)).unwrap(), []);
    assert_eq!(type_names(&session.observe(&Observation::Begin).unwrap()), ["rollout.requested"]);
    assert_eq!(answers(&session.accept_answer(CallId(0), score(4.0)).unwrap()), [(0, "4".into())]);
}

#[test]
fn a_cancel_retires_arrived_answers_and_abandons_the_rest() {
    let engine = SumEngine { turns: vec![3, 1, 0, 2] };
    let mut session = started_session(&engine);
    session.accept_answer(CallId(3), score(7.0)).unwrap();
    assert_eq!(session.accept_answer(CallId(0), score(4.0)).unwrap(), []);
    // Call 1 is sent, call 2 is not.
    let events = session.cancel("enough", |call_id| call_id == CallId(1)).unwrap();
    assert_eq!(events[0], Event::CancelRequested(Reason { reason: "enough".into() }));
    let settled = [(1, "unknown_outcome".into()), (0, "4".into()), (2, "not_sent".into())];
    assert_eq!(answers(&events), settled);
    assert_eq!(events.last().unwrap().type_name(), "gepa.run.cancelled");
    assert!(engine.is_terminal(session.state()) && !engine.is_cancelling(session.state()));
    assert!(engine.outstanding(session.state()).is_empty());
    // Late answers and a second cancel have no effect.
    assert_eq!(session.accept_answer(CallId(1), score(5.0)).unwrap(), []);
    assert_eq!(session.cancel("again", |_| true).unwrap(), []);
}

#[test]
fn a_cancel_queries_only_calls_without_an_answer() {
    let engine = in_order();
    let mut session = started_session(&engine);
    session.accept_answer(CallId(2), score(6.0)).unwrap();
    session.accept_answer(CallId(1), score(5.0)).unwrap();
    let asked = std::cell::RefCell::new(Vec::new());
    let events = session
        .cancel("enough", |call_id| {
            asked.borrow_mut().push(call_id.0);
            true
        })
        .unwrap();
    assert_eq!(asked.into_inner(), [0]);
    assert_eq!(answers(&events), [(0, "unknown_outcome".into()), (1, "5".into()), (2, "6".into())]);
}

#[test]
fn a_rebuilt_state_continues_where_it_stopped() {
    let engine = in_order();
    let mut session = Session::new(&engine);
    let mut log = session.observe(&Observation::Begin).unwrap();
    log.extend(session.accept_answer(CallId(0), score(4.0)).unwrap());
    let mut rebuilt = engine.initial_state();
    log.iter().for_each(|event| engine.evolve(&mut rebuilt, event));
    let (mut resumed, events) = Session::resume(&engine, rebuilt).unwrap();
    assert_eq!(events, []);
    assert_eq!(resumed.state(), session.state());
    for (call_id, reward) in [(2, 6.0), (1, 5.0)] {
        assert_eq!(
            resumed.accept_answer(CallId(call_id), score(reward)).unwrap(),
            session.accept_answer(CallId(call_id), score(reward)).unwrap()
        );
    }
    assert_eq!(resumed.state(), session.state());
    assert_eq!(resumed.state().digits, 456);
}

#[test]
fn decisions_that_a_crash_interrupted_follow_on_resume() {
    let engine = in_order();
    // The log has every answer, but not the end of the run.
    let state = SumState { asked: true, retired: 3, digits: 456, ..SumState::default() };
    let (resumed, events) = Session::resume(&engine, state).unwrap();
    assert_eq!(type_names(&events), ["gepa.run.cancelled"]);
    assert!(engine.is_terminal(resumed.state()));
}

#[test]
fn an_error_of_the_engine_reaches_the_caller_and_changes_nothing() {
    let engine = in_order();
    let mut session = started_session(&engine);
    let before = session.state().clone();
    let error = session.accept_answer(CallId(0), score(f64::NAN)).unwrap_err();
    assert_eq!(error.code, ErrorCode::Invariant);
    assert_eq!(session.state(), &before);
}

#[test]
fn answers_are_stored_and_read_back() {
    for answer in [score(0.5), Answer::Abandoned { sent: true }, Answer::Abandoned { sent: false }] {
        let line = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&line).unwrap(), answer, "{line}");
    }
    assert_eq!(
        serde_json::to_value(Answer::Abandoned { sent: true }).unwrap(),
        serde_json::json!({ "kind": "abandoned", "sent": true })
    );
}

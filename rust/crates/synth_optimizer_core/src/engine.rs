//! The contract of an optimizer: a pure function from observations to events, whose state is rebuilt from events alone.
//!
//! To add an algorithm, implement `Engine`: the platform drives any `Engine`. Observations, commands and events are those of
//! reflective evolution (candidates, rollouts, proposals). An algorithm of another family needs its own types for them.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::model::answer::{Answer, Observation};
use crate::model::command::Command;
use crate::model::error::OptimizerError;
use crate::model::event::Event;
use crate::model::event_fields::{Failure, RunStarted, StateTransitioned};
use crate::model::ids::CallId;
use crate::model::lifecycle::{Lifecycle, RunState, RunTrigger};
use crate::model::program::Inputs;

/// A pure optimizer. The log is its only storage: applying `evolve` to all stored events rebuilds the state.
///
/// * `decide` reads the state and one observation, and returns events.
/// * `evolve` applies one event to the state and makes no decision.
/// * After every observation, the session calls `decide` with `Advance` until it returns no more events.
pub trait Engine: Sized + Sync {
    /// The name of the algorithm. A run is resumed with the algorithm that started it.
    const NAME: &'static str;

    type State: Clone + PartialEq + std::fmt::Debug + Send;

    /// Builds the engine for a loaded task. Fails if the task does not fit the configuration.
    fn new(config: &Config, inputs: Inputs) -> Result<Self, OptimizerError>;

    /// Returns the state before the first event.
    fn initial_state(&self) -> Self::State;

    fn decide(&self, state: &Self::State, observation: &Observation) -> Result<Vec<Event>, OptimizerError>;

    fn evolve(&self, state: &mut Self::State, event: &Event);

    /// Returns the call whose answer retires next. Answers to other calls wait.
    fn next_to_retire(&self, state: &Self::State) -> Option<CallId>;

    /// Returns whether a call has no answer yet.
    fn is_outstanding(&self, state: &Self::State, call_id: CallId) -> bool;

    /// Returns the commands of all calls without an answer, in the order in which they retire.
    fn outstanding(&self, state: &Self::State) -> Vec<Command>;

    /// Returns the command of one outstanding call.
    fn command(&self, state: &Self::State, call_id: CallId) -> Option<Command>;

    /// Returns the elapsed time at which the engine needs the next `Clock` observation.
    fn next_wakeup(&self, state: &Self::State) -> Option<u64>;

    /// Returns whether the run has ended.
    fn is_terminal(&self, state: &Self::State) -> bool;

    /// Returns whether a cancel or a failure is ending the run and outstanding calls still have to be settled.
    fn is_cancelling(&self, state: &Self::State) -> bool;
}

/// An engine with its state and its inbox. Answers arrive in any order and retire in the engine's order.
///
/// The events that one method returns belong together, because a decision may consist of several. The caller stores all
/// of them in one transaction.
#[derive(Debug)]
pub struct Session<'e, E: Engine> {
    engine: &'e E,
    state: E::State,
    inbox: BTreeMap<CallId, Answer>,
}

impl<'e, E: Engine> Session<'e, E> {
    pub fn new(engine: &'e E) -> Self {
        Self { engine, state: engine.initial_state(), inbox: BTreeMap::new() }
    }

    /// Continues from a state that was rebuilt from the log. Also returns the events that follow from that state.
    pub fn resume(engine: &'e E, state: E::State) -> Result<(Self, Vec<Event>), OptimizerError> {
        let mut session = Self { engine, state, inbox: BTreeMap::new() };
        let events = session.observe(&Observation::Advance)?;
        Ok((session, events))
    }

    pub fn state(&self) -> &E::State {
        &self.state
    }

    /// Returns the commands of all calls without an answer.
    pub fn outstanding(&self) -> Vec<Command> {
        self.engine.outstanding(&self.state)
    }

    /// Returns whether the call is outstanding and no answer is in the inbox.
    pub fn awaits_answer(&self, call_id: CallId) -> bool {
        self.engine.is_outstanding(&self.state, call_id) && !self.inbox.contains_key(&call_id)
    }

    /// Starts a new run and returns its first events. No call is sent before.
    pub fn start(&mut self, run: RunStarted) -> Vec<Event> {
        let (from, trigger) = (RunState::INITIAL, RunTrigger::RunStarted);
        let mut events = vec![Event::RunStarted(run)];
        if let Ok(to) = from.next(trigger) {
            events.push(Event::StateTransitioned(StateTransitioned { from, to, trigger }));
        }
        for event in &events {
            self.engine.evolve(&mut self.state, event);
        }
        events
    }

    /// Applies one observation that is not an answer, and returns all resulting events.
    pub fn observe(&mut self, observation: &Observation) -> Result<Vec<Event>, OptimizerError> {
        let mut log = Vec::new();
        self.step(observation, &mut log)?;
        self.retire(&mut log)?;
        Ok(log)
    }

    /// Puts an answer into the inbox and retires all answers whose turn it is. Ignores an answer to a settled call.
    pub fn accept_answer(&mut self, call_id: CallId, answer: Answer) -> Result<Vec<Event>, OptimizerError> {
        let mut log = Vec::new();
        if self.engine.is_outstanding(&self.state, call_id) {
            self.inbox.entry(call_id).or_insert(answer);
        }
        self.retire(&mut log)?;
        Ok(log)
    }

    /// Charges a sent call whose outcome is unknown, and returns the resulting events. Returns no events if the budget does not
    /// cover sending the call again: then the call has failed, and its failure charges it.
    pub fn charge_unknown_outcome(&mut self, call_id: CallId, cause: &str) -> Result<Vec<Event>, OptimizerError> {
        self.observe(&Observation::OutcomeUnknown { call_id, cause: cause.to_owned() })
    }

    /// Cancels the run. Retires answers that have arrived and abandons all other calls. `sent` tells whether a call left the
    /// process.
    pub fn cancel(&mut self, reason: &str, sent: impl Fn(CallId) -> bool) -> Result<Vec<Event>, OptimizerError> {
        self.abandon_outstanding(&Observation::CancelRequested { reason: reason.to_owned() }, sent)
    }

    /// Fails the run. Retires answers that have arrived and abandons all other calls. `sent` tells whether a call left the
    /// process.
    pub fn fail(&mut self, failure: Failure, sent: impl Fn(CallId) -> bool) -> Result<Vec<Event>, OptimizerError> {
        self.abandon_outstanding(&Observation::FailureRaised { failure }, sent)
    }

    fn abandon_outstanding(
        &mut self,
        observation: &Observation,
        sent: impl Fn(CallId) -> bool,
    ) -> Result<Vec<Event>, OptimizerError> {
        let mut log = self.observe(observation)?;
        while self.engine.is_cancelling(&self.state) {
            let Some(call_id) = self.engine.next_to_retire(&self.state) else { break };
            let answer = self.inbox.remove(&call_id).unwrap_or_else(|| Answer::Abandoned { sent: sent(call_id) });
            self.step(&Observation::Answer { call_id, answer }, &mut log)?;
        }
        Ok(log)
    }

    /// Withdraws every call that is not sent yet, because of a stop request or the time limit. Sent calls stay
    /// outstanding.
    pub fn withdraw_unsent(&mut self, sent: impl Fn(CallId) -> bool) -> Result<Vec<Event>, OptimizerError> {
        for command in self.engine.outstanding(&self.state) {
            let call_id = command.call_id();
            if !sent(call_id) {
                self.inbox.entry(call_id).or_insert(Answer::Abandoned { sent: false });
            }
        }
        let mut log = Vec::new();
        self.retire(&mut log)?;
        Ok(log)
    }

    fn retire(&mut self, log: &mut Vec<Event>) -> Result<(), OptimizerError> {
        while let Some(call_id) = self.engine.next_to_retire(&self.state) {
            let Some(answer) = self.inbox.remove(&call_id) else { break };
            self.step(&Observation::Answer { call_id, answer }, log)?;
        }
        Ok(())
    }

    fn step(&mut self, observation: &Observation, log: &mut Vec<Event>) -> Result<(), OptimizerError> {
        let mut events = self.engine.decide(&self.state, observation)?;
        while !events.is_empty() {
            for event in events {
                self.engine.evolve(&mut self.state, &event);
                log.push(event);
            }
            events = self.engine.decide(&self.state, &Observation::Advance)?;
        }
        Ok(())
    }
}

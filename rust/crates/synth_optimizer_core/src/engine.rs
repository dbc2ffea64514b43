//! What every optimizer is: a pure function from observations to events, with state rebuilt from events alone.
//!
//! `Engine` is the one seam for another algorithm: the platform drives any `Engine`. Its observations, commands and events are
//! those of reflective evolution (candidates, rollouts, proposals), so an engine of another family needs words of its own.

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

/// A pure optimizer. Its state is its log: `evolve` over the stored events rebuilds it, and nothing else is kept.
///
/// * `decide` looks at the state and one observation and returns events; it changes nothing.
/// * `evolve` applies one event; it decides nothing.
/// * After every observation, `decide` is asked to `Advance` until it has nothing more to say.
pub trait Engine: Sized + Sync {
    /// The name of the algorithm. A run is resumed by the one that began it.
    const NAME: &'static str;

    type State: Clone + PartialEq + std::fmt::Debug + Send;

    /// Builds the engine for a loaded task, or says why the task does not fit the configuration.
    fn new(config: &Config, inputs: Inputs) -> Result<Self, OptimizerError>;

    fn initial_state(&self) -> Self::State;

    fn decide(&self, state: &Self::State, observation: &Observation) -> Result<Vec<Event>, OptimizerError>;

    fn evolve(&self, state: &mut Self::State, event: &Event);

    /// The request whose answer retires next. Answers to other requests wait.
    fn next_to_retire(&self, state: &Self::State) -> Option<CallId>;

    /// Whether a request waits for its answer.
    fn is_outstanding(&self, state: &Self::State, call_id: CallId) -> bool;

    /// Every request without an answer, in the order in which they were made.
    fn outstanding(&self, state: &Self::State) -> Vec<Command>;

    /// The command of one outstanding request.
    fn command(&self, state: &Self::State, call_id: CallId) -> Option<Command>;

    /// The elapsed time at which the engine wants to be shown the clock.
    fn next_wakeup(&self, state: &Self::State) -> Option<u64>;

    /// Whether the run is over.
    fn is_over(&self, state: &Self::State) -> bool;

    /// Whether the end was asked for, by a cancel or a failure, and waits for outstanding requests.
    fn is_cancelling(&self, state: &Self::State) -> bool;
}

/// An engine with its state and its inbox: answers come in any order and retire in the engine's order.
///
/// The events of one call belong together: they are to be stored all or none, because a decision may take several.
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

    /// Continues from a state that was rebuilt from the log, with whatever follows from it.
    pub fn resume(engine: &'e E, state: E::State) -> Result<(Self, Vec<Event>), OptimizerError> {
        let mut session = Self { engine, state, inbox: BTreeMap::new() };
        let events = session.observe(&Observation::Advance)?;
        Ok((session, events))
    }

    pub fn state(&self) -> &E::State {
        &self.state
    }

    /// Every request without an answer.
    pub fn outstanding(&self) -> Vec<Command> {
        self.engine.outstanding(&self.state)
    }

    /// Whether the request still waits for an answer: none has come, and it was not withdrawn.
    pub fn awaits_answer(&self, call_id: CallId) -> bool {
        self.engine.is_outstanding(&self.state, call_id) && !self.inbox.contains_key(&call_id)
    }

    /// The first events of a run, before anything outside has been asked.
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

    /// One observation that is not an answer, and everything that follows from it.
    pub fn observe(&mut self, observation: &Observation) -> Result<Vec<Event>, OptimizerError> {
        let mut log = Vec::new();
        self.step(observation, &mut log)?;
        self.retire(&mut log)?;
        Ok(log)
    }

    /// Takes an answer into the inbox and retires whatever is due.
    pub fn accept_answer(&mut self, call_id: CallId, answer: Answer) -> Result<Vec<Event>, OptimizerError> {
        let mut log = Vec::new();
        // An answer to a settled request is not kept.
        if self.engine.is_outstanding(&self.state, call_id) {
            self.inbox.entry(call_id).or_insert(answer);
        }
        self.retire(&mut log)?;
        Ok(log)
    }

    /// Cancels: answers that have arrived are kept, the rest is given up.
    pub fn cancel(&mut self, reason: &str, sent: impl Fn(CallId) -> bool) -> Result<Vec<Event>, OptimizerError> {
        self.abandon_outstanding(&Observation::CancelRequested { reason: reason.to_owned() }, sent)
    }

    /// Fails: answers that have arrived are kept, the rest is given up.
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

    /// Takes back what was never sent, because time is up or a stop came from outside. What has been sent is waited for.
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

//! Begins what waits and may begin: from the cache at once, and everything else once it is stored as sent.

use super::calls::Remembered;
use super::driver::{Driver, Ground, ROUND};
use super::launch::Launch;
use super::proposals::proposal_request;
use crate::clock::unix_millis;
use crate::workspace::Sent;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::answer::Answer;
use synth_optimizer_core::model::canonical::digest_of;
use synth_optimizer_core::model::command::{Command, RolloutCommand};
use synth_optimizer_core::model::engine::Engine;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::RequestId;

impl<E: Engine> Driver<'_, E> {
    /// Begins what waits and may begin. What the cache knows is settled at once.
    pub(super) fn admit(&mut self) -> Result<(), OptimizerError> {
        let mut remembered = 0;
        while remembered < ROUND && self.failure.is_none() {
            let Some(id) = self.lanes.next_rollout(self.launches.len()) else { break };
            remembered += usize::from(self.begin_rollout(id)?);
        }
        // Evidence is read from what is stored, so a proposal begins when nothing waits to be stored.
        while self.batch_is_empty() && self.failure.is_none() {
            let Some(id) = self.lanes.next_proposal() else { break };
            self.begin_proposal(id)?;
        }
        Ok(())
    }

    /// The command of a request that nobody has answered or taken back.
    fn wanted(&self, id: RequestId) -> Option<Command> {
        let Ground { engine, session, .. } = &self.ground;
        session.is_wanted(id).then(|| engine.command(session.state(), id)).flatten()
    }

    /// Begins a rollout; tells whether the cache knew it.
    fn begin_rollout(&mut self, id: RequestId) -> Result<bool, OptimizerError> {
        let Some(Command::Rollout(command)) = self.wanted(id) else { return Ok(false) };
        let sent_before = self.lanes.was_sent_before(id);
        let key = match self.ground.calls.cache.mode() {
            CacheMode::Off => None,
            CacheMode::Readwrite | CacheMode::Readonly => Some(self.rollout_key(&command)?),
        };
        if let Some(key) = &key {
            if self.lanes.park(key, id) {
                return Ok(false);
            }
            match self.ground.calls.remembered_rollout(&command, key)? {
                Remembered::Answer(mut finished) => {
                    // It reached the cache and not the log: an earlier process of this run has paid for it.
                    if let (Answer::Rollout(answer), true) = (&mut finished.answer, sent_before) {
                        answer.cached = false;
                    }
                    self.settle(*finished)?;
                    return Ok(true);
                }
                Remembered::Nothing => {}
                Remembered::Damaged(event) => self.log(vec![*event]),
            }
        }
        let rollout_id = self.ground.calls.rollout_id(&command);
        self.mark_sent(id, CallKind::Rollout, Some(rollout_id.clone()), key.clone());
        self.launches.push(Launch::Rollout { command, rollout_id, key, sent_before });
        Ok(false)
    }

    fn begin_proposal(&mut self, id: RequestId) -> Result<(), OptimizerError> {
        let Some(Command::Propose(command)) = self.wanted(id) else { return Ok(()) };
        let ground = &self.ground;
        let request = proposal_request(&command, ground.calls.direction, &ground.calls.task, &ground.workspace)?;
        let key = match ground.calls.cache.mode() {
            CacheMode::Off => None,
            CacheMode::Readwrite | CacheMode::Readonly => Some(ground.calls.proposal_key(&request)),
        };
        if let Some(key) = &key {
            if self.lanes.park(key, id) {
                return Ok(());
            }
            match self.ground.calls.remembered_proposal(id, command.attempt, key)? {
                Remembered::Answer(mut finished) => {
                    if let (Answer::Proposal(answer), true) = (&mut finished.answer, self.lanes.was_sent_before(id)) {
                        answer.cached = false;
                    }
                    return self.settle(*finished);
                }
                Remembered::Nothing => {}
                Remembered::Damaged(event) => self.log(vec![*event]),
            }
        }
        self.mark_sent(id, CallKind::Proposer, None, key.clone());
        self.launches.push(Launch::Proposal { id, attempt: command.attempt, request: Box::new(request), key });
        Ok(())
    }

    fn mark_sent(&mut self, request: RequestId, kind: CallKind, rollout_id: Option<String>, key: Option<String>) {
        self.lanes.begin(kind, request, key);
        self.batch.sent.push(Sent { request, kind, rollout_id, unix_millis: unix_millis() });
    }

    fn rollout_key(&mut self, command: &RolloutCommand) -> Result<String, OptimizerError> {
        let digest = self.candidates.entry(command.candidate_id.clone()).or_insert_with(|| digest_of(&command.payload));
        self.ground.calls.rollout_key(command, digest)
    }
}

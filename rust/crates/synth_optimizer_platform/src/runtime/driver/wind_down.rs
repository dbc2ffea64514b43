//! How a run lets go: stop, cancel, interrupt, and failures, each keeping what was paid for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Driver;
use crate::runtime::calls::Finished;
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, Observation};
use synth_optimizer_core::model::command::Command;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{Failure, Reason};
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::RequestId;

/// What a pause leaves to calls under way: what comes within it need not be asked for again.
const PAUSE_GRACE: Duration = Duration::from_millis(500);
/// How long a turn that is not wanted any more may take to end and to tell what it has used.
const TURN_GRACE: Duration = Duration::from_secs(1);

impl<E: Engine> Driver<'_, E> {
    fn cancel_grace(&self) -> Duration {
        Duration::from_secs(self.run.request.config.run.cancel_grace_seconds)
    }

    /// Does what was asked; the end of the run's loop, if that follows.
    pub(super) async fn obey(&mut self, request: ControlRequest) -> Result<Option<RunEnd>, OptimizerError> {
        let (reason, grace) = (request.reason(), request.grace);
        match request.action {
            ControlAction::Stop => self.stop(reason)?,
            ControlAction::Step if self.lanes.is_held => {
                self.steps_asked += 1;
                self.lanes.step();
            }
            // A run that is not held has nothing to step, and a run under way is not paused.
            ControlAction::Step | ControlAction::Resume => {}
            ControlAction::Cancel => self.cancel(&request).await?,
            ControlAction::Pause => return self.let_go(reason, grace.unwrap_or(PAUSE_GRACE)).await.map(Some),
            ControlAction::Interrupt | ControlAction::Shutdown => {
                let own = Duration::from_secs(self.run.request.config.run.interrupt_grace_seconds);
                return self.let_go(reason, grace.unwrap_or(own)).await.map(Some);
            }
        }
        Ok(None)
    }

    /// Ends the search. Proposals of turns under way are not wanted any more: they are asked to end and to tell what they
    /// have used.
    fn stop(&mut self, reason: String) -> Result<(), OptimizerError> {
        let events = self.session.observe(&Observation::StopRequested { reason })?;
        let is_stopped = events.iter().any(|event| matches!(event, Event::StopDecided(_)));
        if is_stopped && !self.lanes.in_flight(CallKind::Proposer).is_empty() {
            self.calls.proposer.interrupt();
            self.turns_end_at = Some(tokio::time::Instant::now() + TURN_GRACE);
        }
        self.log(events);
        self.withdraw()
    }

    /// Ends the run for good, with what comes within the grace.
    async fn cancel(&mut self, request: &ControlRequest) -> Result<(), OptimizerError> {
        self.end_calls(request.grace.unwrap_or_else(|| self.cancel_grace())).await?;
        let lanes = &self.lanes;
        let events = self.session.cancel(&request.reason(), |request| lanes.is_sent(request))?;
        self.log(events);
        Ok(())
    }

    /// Breaks off turns that were asked to end and have not. What they have used nobody knows.
    pub(super) fn break_off_turns(&mut self) -> Result<(), OptimizerError> {
        self.turns_end_at = None;
        self.take_finished()?;
        for request in self.lanes.in_flight(CallKind::Proposer) {
            self.lanes.drop_call(request);
            let message = "the turn was broken off: the run was told to stop";
            let failure = CallFailure::new(FailureClass::Abandoned, message);
            self.settle(Finished::new(request, CallKind::Proposer, Answer::Failed(failure)))?;
        }
        Ok(())
    }

    /// What the run cannot go on without is gone: keep what comes within the grace, then end or let go.
    pub(super) async fn face_failure(&mut self) -> Result<Option<RunEnd>, OptimizerError> {
        let Some(error) = self.failure.clone() else { return Ok(None) };
        if is_mendable(error.code) {
            return self.stuck(error).await.map(Some);
        }
        self.end_calls(self.cancel_grace()).await?;
        let failure = Failure { code: error.code, message: error.message.clone() };
        let lanes = &self.lanes;
        let events = self.session.fail(failure, |request| lanes.is_sent(request))?;
        self.log(events);
        if self.engine.is_over(self.session.state()) { Ok(None) } else { Ok(Some(RunEnd::Failed(error))) }
    }

    /// The container of this run has died; the run can go on when it is started again.
    pub(super) async fn container_gone(&mut self, error: OptimizerError) -> Result<RunEnd, OptimizerError> {
        self.is_container_gone = true;
        self.stuck(error).await
    }

    /// Lets go of a run that cannot go on now, and can when the cause is mended.
    pub(super) async fn stuck(&mut self, error: OptimizerError) -> Result<RunEnd, OptimizerError> {
        Ok(match self.let_go(error.message.clone(), self.cancel_grace()).await? {
            RunEnd::Interrupted => RunEnd::Failed(error),
            over => over,
        })
    }

    /// Saves the run. A stop or a cancel that comes meanwhile is obeyed as well.
    async fn let_go(&mut self, reason: String, grace: Duration) -> Result<RunEnd, OptimizerError> {
        // Turns are not asked to end: the run goes on later, and asks for them again.
        match self.wait_for_calls(grace).await? {
            Some(next) if next.action == ControlAction::Cancel => self.cancel(&next).await?,
            Some(next) if next.action == ControlAction::Stop => self.stop(next.reason())?,
            Some(_) | None => {}
        }
        self.drop_calls(None).await?;
        if self.engine.is_over(self.session.state()) {
            return self.end_of_log();
        }
        self.log(vec![Event::RunInterrupted(Reason { reason })]);
        self.store().await?;
        Ok(RunEnd::Interrupted)
    }

    /// Ends the calls under way: keeps what comes within the grace, and tells the container that nobody waits for the rest.
    async fn end_calls(&mut self, grace: Duration) -> Result<(), OptimizerError> {
        // A turn that ends now tells what it has used.
        self.calls.proposer.interrupt();
        self.wait_for_calls(grace).await?;
        self.drop_calls(Some(grace / 2)).await
    }

    /// Waits for the calls under way, but not longer than the grace or the next control request, and stores what came.
    /// Returns that request.
    async fn wait_for_calls(&mut self, grace: Duration) -> Result<Option<ControlRequest>, OptimizerError> {
        // Calls that were to be sent with the next commit are not sent.
        let unsent: BTreeSet<RequestId> = self.launches.drain(..).map(|call| call.request).collect();
        self.batch.sent.retain(|sent| !unsent.contains(&sent.request));
        for request in unsent {
            self.lanes.leave(request);
        }
        let (deadline, mut next) = (tokio::time::Instant::now() + grace, None);
        while next.is_none() && !self.lanes.is_idle() {
            tokio::select! {
                biased;
                Some(request) = self.requests.recv() => {
                    next = Some(request).filter(|request| request.action != ControlAction::Step);
                }
                Some(finished) = self.finished.recv() => self.settle(finished)?,
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        self.store().await?;
        Ok(next)
    }

    /// Drops the calls that are still under way. With time for it, the container is told of its rollouts; a run that will
    /// be resumed asks for them again.
    async fn drop_calls(&mut self, time: Option<Duration>) -> Result<(), OptimizerError> {
        let dropped = self.lanes.abort();
        if let Some(time) = time {
            self.tell(dropped, time).await;
        }
        // What came while this was going on has been paid for as well.
        while self.take_finished()? > 0 {}
        self.store().await
    }

    /// Tells the container about rollouts that nobody waits for. One that does not listen is not waited for.
    async fn tell(&self, dropped: Vec<RequestId>, time: Duration) {
        let mut telling = tokio::task::JoinSet::new();
        for request in dropped {
            if let Some(Command::Rollout(command)) = self.engine.command(self.session.state(), request) {
                let (calls, id) = (Arc::clone(&self.calls), self.calls.rollout_id(&command));
                telling.spawn(async move {
                    if let Some(transport) = &calls.transport {
                        transport.terminate(&id).await;
                    }
                });
            }
        }
        // Lost: the container ends rollouts that it was not told of at their own deadline.
        let _ = tokio::time::timeout(time, async { while telling.join_next().await.is_some() {} }).await;
    }
}

/// Whether the run can go on after the cause is mended: it lies in this machine or its settings, not in the task.
fn is_mendable(code: ErrorCode) -> bool {
    let cache = [ErrorCode::CacheMiss, ErrorCode::CacheFull, ErrorCode::CacheCorrupt];
    cache.contains(&code) || matches!(code, ErrorCode::DiskBudget | ErrorCode::Io | ErrorCode::Sqlite)
}

//! Ends the loop of a run: stop, cancel, pause, interrupt and failure. Each keeps the answers of calls that were sent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use super::Driver;
use crate::runtime::calls::CompletedCall;
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, Observation};
use synth_optimizer_core::model::command::Command;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{Failure, Reason};
use synth_optimizer_core::model::ids::CallId;

/// How long a pause waits for calls in flight. Answers that arrive in this time do not have to be requested again.
const PAUSE_GRACE: Duration = Duration::from_millis(500);
/// How long an interrupted proposer turn may take to end and to report its usage.
const TURN_GRACE: Duration = Duration::from_secs(1);

impl<E: Engine> Driver<'_, E> {
    fn cancel_grace(&self) -> Duration {
        Duration::from_secs(self.run.request.config.run.cancel_grace_seconds)
    }

    /// Carries out a control request. Returns how the loop ends, if the request ends it.
    pub(super) async fn handle_control(&mut self, request: ControlRequest) -> Result<Option<RunEnd>, OptimizerError> {
        let (reason, grace) = (request.reason(), request.grace);
        match request.action {
            ControlAction::Stop => self.stop(reason)?,
            ControlAction::Step if self.lanes.is_stepped => {
                self.steps_requested += 1;
                self.lanes.release_step();
            }
            // A continuous run takes no steps, and an executing run is not paused.
            ControlAction::Step | ControlAction::Resume => {}
            ControlAction::Cancel => self.cancel(&request).await?,
            ControlAction::Pause => {
                return self.interrupt(reason, grace.unwrap_or(PAUSE_GRACE), RunEnd::Paused).await.map(Some);
            }
            ControlAction::Interrupt | ControlAction::Shutdown => {
                let own = Duration::from_secs(self.run.request.config.run.interrupt_grace_seconds);
                return self.interrupt(reason, grace.unwrap_or(own), RunEnd::Interrupted).await.map(Some);
            }
        }
        Ok(None)
    }

    /// Ends the search. Interrupts the proposer turns in flight, which then end and report their usage.
    fn stop(&mut self, reason: String) -> Result<(), OptimizerError> {
        let events = self.session.observe(&Observation::StopRequested { reason })?;
        let is_stopped = events.iter().any(|event| matches!(event, Event::StopDecided(_)));
        if is_stopped && !self.lanes.in_flight(CallKind::Proposer).is_empty() {
            self.calls.proposer.interrupt();
            self.turn_deadline = Some(tokio::time::Instant::now() + TURN_GRACE);
        }
        self.append_events(events);
        self.withdraw_unsent()
    }

    /// Cancels the run. Keeps the answers that arrive within the grace period.
    async fn cancel(&mut self, request: &ControlRequest) -> Result<(), OptimizerError> {
        self.finish_calls(request.grace.unwrap_or_else(|| self.cancel_grace())).await?;
        let lanes = &self.lanes;
        let events = self.session.cancel(&request.reason(), |request| lanes.may_have_been_sent(request))?;
        self.append_events(events);
        Ok(())
    }

    /// Aborts the proposer turns that did not end after an interrupt. Their usage is unknown.
    pub(super) fn abort_turns(&mut self) -> Result<(), OptimizerError> {
        self.turn_deadline = None;
        self.settle_completed()?;
        for request in self.lanes.in_flight(CallKind::Proposer) {
            self.lanes.abort_call(request);
            let message = "the turn was interrupted by a control request";
            let failure = CallFailure::new(FailureClass::Abandoned, message);
            self.settle_call(CompletedCall::new(request, CallKind::Proposer, Answer::Failed(failure)))?;
        }
        Ok(())
    }

    /// Handles a fatal error, if there is one: keeps the answers that arrive within the grace period, then fails the run, or
    /// interrupts it if it can be resumed once the cause is fixed.
    pub(super) async fn handle_failure(&mut self) -> Result<Option<RunEnd>, OptimizerError> {
        let Some(error) = self.failure.clone() else { return Ok(None) };
        if is_resumable(error.code) {
            return self.interrupt_with_error(error).await.map(Some);
        }
        self.finish_calls(self.cancel_grace()).await?;
        let failure = Failure { code: error.code, message: error.message.clone(), hint: Some(error.hint.clone()) };
        let lanes = &self.lanes;
        let events = self.session.fail(failure, |request| lanes.may_have_been_sent(request))?;
        self.append_events(events);
        if self.engine.is_terminal(self.session.state()) { Ok(None) } else { Ok(Some(RunEnd::Failed(error))) }
    }

    /// Interrupts the run after its container process has exited. It can be resumed, which starts the container again.
    pub(super) async fn handle_container_exit(&mut self, error: OptimizerError) -> Result<RunEnd, OptimizerError> {
        self.has_container_exited = true;
        self.interrupt_with_error(error).await
    }

    /// Interrupts a run that can be resumed once the cause of the error is fixed.
    pub(super) async fn interrupt_with_error(&mut self, error: OptimizerError) -> Result<RunEnd, OptimizerError> {
        self.interrupt(error.message.clone(), self.cancel_grace(), RunEnd::Failed(error)).await
    }

    /// Saves the run so that it can be resumed, and returns `end`. Also carries out a stop or a cancel that arrives
    /// meanwhile, which may end the run for good.
    async fn interrupt(&mut self, reason: String, grace: Duration, end: RunEnd) -> Result<RunEnd, OptimizerError> {
        // Proposer turns are not interrupted: the resumed run requests them again.
        match self.drain_calls(grace).await? {
            Some(next) if next.action == ControlAction::Cancel => self.cancel(&next).await?,
            Some(next) if next.action == ControlAction::Stop => self.stop(next.reason())?,
            Some(_) | None => {}
        }
        self.abort_calls(None).await?;
        if self.engine.is_terminal(self.session.state()) {
            return self.take_end();
        }
        self.append_events(vec![Event::RunInterrupted(Reason { reason })]);
        self.commit_batch().await?;
        Ok(end)
    }

    /// Ends the calls in flight: keeps the answers that arrive within the grace period, and asks the container to terminate
    /// the other rollouts.
    async fn finish_calls(&mut self, grace: Duration) -> Result<(), OptimizerError> {
        // A turn that is interrupted reports its usage.
        self.calls.proposer.interrupt();
        self.drain_calls(grace).await?;
        self.abort_calls(Some(grace / 2)).await
    }

    /// Waits for the calls in flight until the grace period ends or the next control request arrives, and stores their
    /// answers. Returns that control request.
    async fn drain_calls(&mut self, grace: Duration) -> Result<Option<ControlRequest>, OptimizerError> {
        // Calls that were to be sent with the next commit are not sent.
        let unsent: BTreeSet<CallId> = self.calls_to_send.drain(..).map(|call| call.call_id).collect();
        self.batch.sent.retain(|sent| !unsent.contains(&sent.call_id));
        for request in unsent {
            self.lanes.remove(request);
        }
        let is_other = |request: &ControlRequest| request.action != ControlAction::Step;
        let mut next = self.requests.try_recv().ok().filter(is_other);
        let deadline = tokio::time::Instant::now() + grace;
        while next.is_none() && !self.lanes.is_idle() {
            tokio::select! {
                biased;
                Some(request) = self.requests.recv() => next = Some(request).filter(is_other),
                Some(completed) = self.completed.recv() => self.settle_call(completed)?,
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        self.commit_batch().await?;
        Ok(next)
    }

    /// Aborts the calls that are still in flight. If `time` is set, asks the container to terminate their rollouts; a run
    /// that will be resumed requests them again instead.
    async fn abort_calls(&mut self, time: Option<Duration>) -> Result<(), OptimizerError> {
        let dropped = self.lanes.abort_all();
        if let Some(time) = time {
            self.terminate_rollouts(dropped, time).await;
        }
        // Answers that arrived meanwhile are kept.
        while self.settle_completed()? > 0 {}
        self.commit_batch().await
    }

    /// Asks the container to terminate rollouts whose calls were aborted. Waits for its replies no longer than `time`.
    async fn terminate_rollouts(&self, dropped: Vec<CallId>, time: Duration) {
        let mut telling = tokio::task::JoinSet::new();
        for request in dropped {
            if let Some(Command::Rollout(command)) = self.engine.command(self.session.state(), request)
                && let Ok(id) = self.calls.rollout_id(&command)
            {
                let calls = Arc::clone(&self.calls);
                let terminate = async move {
                    if let Some(transport) = &calls.transport {
                        transport.terminate(&id).await;
                    }
                };
                telling.spawn(terminate.in_current_span());
            }
        }
        // On a timeout, the container ends the remaining rollouts at their own deadlines.
        let _ = tokio::time::timeout(time, async { while telling.join_next().await.is_some() {} }).await;
    }
}

/// Returns whether a run that met this error can be resumed once the cause is fixed: the cause is in this machine or its
/// settings, not in the task.
fn is_resumable(code: ErrorCode) -> bool {
    let cache = [ErrorCode::CacheMiss, ErrorCode::CacheFull, ErrorCode::CacheCorrupt];
    cache.contains(&code)
        || matches!(code, ErrorCode::DiskBudget | ErrorCode::StorageFull | ErrorCode::Io | ErrorCode::Sqlite)
}

//! How a run lets go: stop, cancel, interrupt, and failures, each keeping what was paid for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::calls::Finished;
use super::driver::Driver;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, Observation};
use synth_optimizer_core::model::command::Command;
use synth_optimizer_core::model::control::{ControlAction, ControlRequest, RunEnd};
use synth_optimizer_core::model::engine::Engine;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{Failure, Reason};
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::RequestId;
use synth_optimizer_core::model::usage::Usage;

/// What a pause leaves to calls under way: what comes within it need not be asked for again.
const PAUSE_GRACE: Duration = Duration::from_millis(500);
/// How long a turn that is not wanted any more may take to end and to tell what it has used.
const TURN_GRACE: Duration = Duration::from_secs(1);

/// Whether the container is told that nobody waits for its rollouts any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tell {
    Container,
    /// The run will be resumed, and will ask for them.
    Nobody,
}

impl<E: Engine> Driver<'_, E> {
    /// Does what was asked; the end of the run's loop, if that follows.
    pub(super) async fn obey(&mut self, request: ControlRequest) -> Result<Option<RunEnd>, OptimizerError> {
        let (reason, grace) = (request.reason(), request.grace);
        match request.action {
            ControlAction::Stop => {
                let events = self.ground.session.observe(&Observation::StopRequested { reason })?;
                if events.iter().any(|event| matches!(event, Event::StopDecided(_))) {
                    self.hurry_turns();
                }
                self.log(events);
                self.withdraw()?;
                Ok(None)
            }
            ControlAction::Step => {
                self.step();
                Ok(None)
            }
            // A run under way is not paused.
            ControlAction::Resume => Ok(None),
            ControlAction::Cancel => {
                self.wind_down(grace.unwrap_or(self.cancel_grace), Tell::Container).await?;
                let lanes = &self.lanes;
                let events = self.ground.session.cancel(&reason, |request| lanes.is_sent(request))?;
                self.log(events);
                Ok(None)
            }
            ControlAction::Pause => self.let_go(reason, grace.unwrap_or(PAUSE_GRACE)).await.map(Some),
            ControlAction::Interrupt | ControlAction::Shutdown => {
                self.let_go(reason, grace.unwrap_or(self.interrupt_grace)).await.map(Some)
            }
        }
    }

    /// Nobody wants the proposals of turns under way any more: they are asked to end and to tell what they have used.
    fn hurry_turns(&mut self) {
        if !self.lanes.turns().is_empty() {
            self.ground.calls.proposer().interrupt();
            self.turns_end_at = Some(tokio::time::Instant::now() + TURN_GRACE);
        }
    }

    /// Breaks off turns that were asked to end and have not. What they have used nobody knows.
    pub(super) fn break_off_turns(&mut self) -> Result<(), OptimizerError> {
        self.turns_end_at = None;
        self.take_finished()?;
        for request in self.lanes.turns() {
            self.lanes.drop_call(request);
            let failure = CallFailure {
                class: FailureClass::Abandoned,
                message: "the turn was broken off: the run was told to stop".to_owned(),
                retryable: false,
                usage: Usage::default(),
                cached: false,
                models: None,
            };
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
        self.wind_down(self.cancel_grace, Tell::Container).await?;
        let failure = Failure { code: error.code, message: error.message.clone() };
        let lanes = &self.lanes;
        let events = self.ground.session.fail(failure, |request| lanes.is_sent(request))?;
        self.log(events);
        if self.ground.engine.is_over(self.ground.session.state()) { Ok(None) } else { Ok(Some(RunEnd::Failed(error))) }
    }

    /// The container of this run has died; the run can go on when it is started again.
    pub(super) async fn container_gone(&mut self, error: OptimizerError) -> Result<RunEnd, OptimizerError> {
        self.is_container_gone = true;
        self.stuck(error).await
    }

    /// Lets go of a run that cannot go on now, and can when the cause is mended.
    pub(super) async fn stuck(&mut self, error: OptimizerError) -> Result<RunEnd, OptimizerError> {
        Ok(match self.let_go(error.message.clone(), self.cancel_grace).await? {
            RunEnd::Interrupted => RunEnd::Failed(error),
            over => over,
        })
    }

    async fn let_go(&mut self, reason: String, grace: Duration) -> Result<RunEnd, OptimizerError> {
        self.wind_down(grace, Tell::Nobody).await?;
        if self.ground.engine.is_over(self.ground.session.state()) {
            self.store().await?;
            return self.end_of_log();
        }
        self.log(vec![Event::RunInterrupted(Reason { reason })]);
        self.store().await?;
        Ok(RunEnd::Interrupted)
    }

    /// Waits for the calls under way, but not longer than the grace or the next control request, and stores what came; then
    /// drops the rest.
    async fn wind_down(&mut self, grace: Duration, tell: Tell) -> Result<(), OptimizerError> {
        self.withhold();
        // A turn that ends now tells what it has used. Where the run goes on later, it is asked for again instead.
        if tell == Tell::Container {
            self.ground.calls.proposer().interrupt();
        }
        let deadline = tokio::time::Instant::now() + grace;
        while !self.lanes.is_idle() {
            tokio::select! {
                biased;
                Some(request) = self.requests.recv() => {
                    if request.action != ControlAction::Step {
                        break;
                    }
                }
                Some(finished) = self.finished.recv() => self.settle(finished)?,
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        self.store().await?;
        let dropped = self.lanes.abort();
        if tell == Tell::Container {
            self.tell(dropped, grace / 2).await;
        }
        // What came while this was going on has been paid for as well.
        while self.take_finished()? > 0 {}
        self.store().await
    }

    /// Tells the container about rollouts that nobody waits for. One that does not listen is not waited for.
    async fn tell(&self, dropped: Vec<RequestId>, grace: Duration) {
        let (ground, mut telling) = (&self.ground, tokio::task::JoinSet::new());
        for request in dropped {
            if let Some(Command::Rollout(command)) = ground.engine.command(ground.session.state(), request) {
                let (calls, id) = (Arc::clone(&ground.calls), ground.calls.rollout_id(&command));
                telling.spawn(async move {
                    if let Some(transport) = calls.transport() {
                        transport.terminate(&id).await;
                    }
                });
            }
        }
        // Lost: the container ends rollouts that it was not told of at their own deadline.
        let _ = tokio::time::timeout(grace, async { while telling.join_next().await.is_some() {} }).await;
    }

    /// Calls that were to be sent with the next commit are not sent.
    fn withhold(&mut self) {
        let unsent: BTreeSet<RequestId> = self.launches.drain(..).map(|launch| launch.request()).collect();
        self.batch.sent.retain(|sent| !unsent.contains(&sent.request));
        for request in unsent {
            self.lanes.take_back(request);
        }
    }
}

/// Whether the run can go on after the cause is mended: it lies in this machine or its settings, not in the task.
fn is_mendable(code: ErrorCode) -> bool {
    match code {
        ErrorCode::CacheMiss
        | ErrorCode::CacheFull
        | ErrorCode::CacheCorrupt
        | ErrorCode::DiskBudget
        | ErrorCode::Io
        | ErrorCode::Sqlite => true,
        ErrorCode::Optimizer
        | ErrorCode::Config
        | ErrorCode::Container
        | ErrorCode::Proposer
        | ErrorCode::BudgetExceeded
        | ErrorCode::Cancelled
        | ErrorCode::EventCompare
        | ErrorCode::RunFailed
        | ErrorCode::Invariant
        | ErrorCode::StateTransition
        | ErrorCode::Json
        | ErrorCode::TomlDecode
        | ErrorCode::Http => false,
    }
}

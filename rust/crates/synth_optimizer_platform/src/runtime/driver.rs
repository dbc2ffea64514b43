//! The loop of a run: take what has come, let the engine decide, store it, and only then send what it wants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, mpsc, oneshot};

use super::calls::{Calls, Finished};
use super::control::Controlled;
use super::fence::Fence;
use super::finalize::no_end;
use super::hooks::{Boundary, Hooks};
use super::lanes::Lanes;
use super::launch::Launch;
use super::stepping::Stepping;
use crate::artifacts::{Chronicle, DiskWatch};
use crate::clock::unix_millis;
use crate::workspace::{Answered, Batch, Stored, Workspace};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::model::answer::{Answer, Observation};
use synth_optimizer_core::model::command::Command;
use synth_optimizer_core::model::control::{ControlRequest, RunEnd};
use synth_optimizer_core::model::engine::{Engine, Session};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::StopKind;
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::{CandidateId, RequestId};
use synth_optimizer_core::model::lifecycle::RunState;

/// Answers that are taken in one round at most, so that a commit stays small.
pub(super) const ROUND: usize = 256;

/// How often a run that only waits checks its lease and its lock.
const FENCE_INTERVAL: Duration = Duration::from_secs(1);

/// What the driver stands on.
pub(super) struct Ground<'e, E: Engine> {
    pub(super) engine: &'e E,
    pub(super) session: Session<'e, E>,
    pub(super) calls: Arc<Calls>,
    pub(super) workspace: Workspace,
    pub(super) chronicle: Chronicle,
    pub(super) hooks: Hooks,
    pub(super) disk: DiskWatch,
    pub(super) next_sequence: u64,
    /// Time of earlier processes of this run.
    pub(super) elapsed_before: u64,
    /// Requests that an earlier process sent and that have no answer.
    pub(super) unanswered: BTreeSet<RequestId>,
    /// Requests whose answers wait in the stored inbox.
    pub(super) waiting: BTreeSet<RequestId>,
    /// Whether the container is a process of this run.
    pub(super) is_managed: bool,
    /// Says that it is gone.
    pub(super) broken: oneshot::Receiver<OptimizerError>,
    /// Whether the run sends only what steps let it send.
    pub(super) is_held: bool,
    /// Where the run was when this process took it up.
    pub(super) state: Option<RunState>,
    /// Says that the run is not this process's any more.
    pub(super) fence: Fence,
}

/// A run under way.
pub(super) struct Driver<'e, E: Engine> {
    pub(super) ground: Ground<'e, E>,
    pub(super) lanes: Lanes,
    pub(super) requests: mpsc::UnboundedReceiver<ControlRequest>,
    pub(super) finished: mpsc::UnboundedReceiver<Finished>,
    pub(super) batch: Batch,
    pub(super) launches: Vec<Launch>,
    pub(super) interrupt_grace: Duration,
    pub(super) cancel_grace: Duration,
    pub(super) failure: Option<OptimizerError>,
    /// When turns that are not wanted any more are broken off.
    pub(super) turns_end_at: Option<tokio::time::Instant>,
    pub(super) stepping: Stepping,
    /// Whether the container has died: calls that found nobody are no failures of the task then.
    pub(super) is_container_gone: bool,
    /// How long the end of a managed container may take to be noticed.
    patience: Duration,
    live: broadcast::Sender<Arc<Stored>>,
    /// What was asked before the run could hear it.
    early: Vec<ControlRequest>,
    /// How the run ended, once its last event is in the log.
    end: Option<RunEnd>,
    back: mpsc::UnboundedSender<Finished>,
    pub(super) candidates: BTreeMap<CandidateId, String>,
    began: Instant,
    time_limit: Option<u64>,
    /// What waits for a lane is to be taken back.
    withdraw_due: bool,
    echo_was_missing: bool,
}

impl<'e, E: Engine> Driver<'e, E> {
    pub(super) fn new(config: &Config, ground: Ground<'e, E>, controlled: Controlled) -> Self {
        let (back, finished) = mpsc::unbounded_channel();
        let mut lanes = Lanes::new(&config.gepa, ground.unanswered.clone());
        if !ground.calls.is_live() {
            lanes.open();
        }
        let Controlled { requests, live, steps: reports, early } = controlled;
        if ground.is_held {
            lanes.hold();
        }
        let stepping = Stepping { reports, is_held: ground.is_held, asked: 0, state: ground.state };
        Self {
            lanes,
            live,
            requests,
            stepping,
            early,
            end: None,
            turns_end_at: None,
            back,
            finished,
            batch: Batch::default(),
            launches: Vec::new(),
            candidates: BTreeMap::new(),
            began: Instant::now(),
            time_limit: config.gepa.max_time_seconds.map(|seconds| seconds.saturating_mul(1000)),
            interrupt_grace: Duration::from_secs(config.run.interrupt_grace_seconds),
            cancel_grace: Duration::from_secs(config.run.cancel_grace_seconds),
            withdraw_due: false,
            echo_was_missing: false,
            failure: None,
            is_container_gone: false,
            patience: Duration::from_millis(config.container.health_interval_ms.saturating_mul(4)),
            ground,
        }
    }

    /// Runs to the end. `opening` are events that nobody has stored yet. A run that failed and is not over can be resumed
    /// when the cause is mended.
    pub(super) async fn run(mut self, opening: Vec<Event>) -> (Ground<'e, E>, Result<RunEnd, OptimizerError>) {
        for command in self.ground.session.outstanding() {
            let kind = match &command {
                Command::Rollout(_) => CallKind::Rollout,
                Command::Propose(_) => CallKind::Proposer,
            };
            self.lanes.enqueue(kind, command.request());
        }
        self.log(opening);
        let end = self.rounds().await;
        self.lanes.abort();
        self.report_end();
        (self.ground, end)
    }

    async fn rounds(&mut self) -> Result<RunEnd, OptimizerError> {
        for request in std::mem::take(&mut self.early) {
            if let Some(end) = self.obey(request).await? {
                return Ok(end);
            }
        }
        loop {
            let begun = self.admit();
            self.note(begun);
            if let Some(end) = self.face_failure().await? {
                return Ok(end);
            }
            self.store().await?;
            if self.ground.engine.is_over(self.ground.session.state()) {
                return self.end_of_log();
            }
            self.report_step();
            let end = if self.failure.is_none() && self.lanes.could_begin() {
                self.look_up().await?
            } else {
                self.wait().await?
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    /// How a run that is over ended. What this process met says more than the log.
    pub(super) fn end_of_log(&mut self) -> Result<RunEnd, OptimizerError> {
        match (self.end.take(), self.failure.take()) {
            (Some(RunEnd::Failed(_)), Some(error)) => Ok(RunEnd::Failed(error)),
            (end, _) => end.ok_or_else(no_end),
        }
    }

    /// Takes what has come without waiting, control requests too.
    async fn look_up(&mut self) -> Result<Option<RunEnd>, OptimizerError> {
        if let Ok(request) = self.requests.try_recv() {
            return self.obey(request).await;
        }
        self.take_ready()?;
        Ok(None)
    }

    /// Waits until something comes, and takes all that has come.
    async fn wait(&mut self) -> Result<Option<RunEnd>, OptimizerError> {
        if self.failure.is_some() {
            return Ok(None);
        }
        if self.lanes.is_idle() && !self.lanes.is_held_back() {
            let message = "nothing is under way and the run is not over".to_owned();
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        let wakeup = self.ground.engine.next_wakeup(self.ground.session.state());
        let until = wakeup.map_or(Duration::from_secs(3600), |at| {
            Duration::from_millis(at.saturating_sub(self.elapsed_millis()).max(1))
        });
        let fence = self.ground.fence.clone();
        tokio::select! {
            biased;
            Some(request) = self.requests.recv() => return self.obey(request).await,
            Ok(error) = &mut self.ground.broken => return self.container_gone(error).await.map(Some),
            Some(finished) = self.finished.recv() => {
                // A container that has just died answers nobody. That is no failure of the rollouts.
                if self.ground.is_managed
                    && finished.found_nobody()
                    && let Ok(Ok(error)) = tokio::time::timeout(self.patience, &mut self.ground.broken).await
                {
                    self.lanes.lose(finished.request);
                    return self.container_gone(error).await.map(Some);
                }
                self.settle(finished)?;
                self.gather().await?;
            }
            () = at(self.turns_end_at) => self.break_off_turns()?,
            error = lost(&fence) => return Err(error),
            () = tokio::time::sleep(until) => {}
        }
        self.take_ready()?;
        Ok(None)
    }

    /// Lets calls that are about to come back do so, so that their answers share a commit.
    async fn gather(&mut self) -> Result<(), OptimizerError> {
        let mut taken = 0;
        while taken < ROUND {
            tokio::task::yield_now().await;
            let more = self.take_finished()?;
            if more == 0 {
                break;
            }
            taken += more;
        }
        Ok(())
    }

    /// Takes the answers that have come.
    pub(super) fn take_finished(&mut self) -> Result<usize, OptimizerError> {
        for taken in 0..ROUND {
            let Ok(finished) = self.finished.try_recv() else { return Ok(taken) };
            self.settle(finished)?;
        }
        Ok(ROUND)
    }

    /// Takes what has come without waiting, and shows the engine the clock.
    fn take_ready(&mut self) -> Result<(), OptimizerError> {
        self.take_finished()?;
        if let Some(limit) = self.time_limit {
            let elapsed_millis = self.elapsed_millis();
            let events = self.ground.session.observe(&Observation::Clock { elapsed_millis })?;
            self.log(events);
            self.withdraw_due |= elapsed_millis >= limit;
        }
        self.withdraw()
    }

    fn elapsed_millis(&self) -> u64 {
        self.ground.elapsed_before + self.began.elapsed().as_millis() as u64
    }

    /// Takes back what was not sent, if the clock or somebody outside has ended the search.
    pub(super) fn withdraw(&mut self) -> Result<(), OptimizerError> {
        while std::mem::take(&mut self.withdraw_due) {
            let lanes = &self.lanes;
            let events = self.ground.session.withdraw(|request| lanes.is_sent(request))?;
            self.log(events);
        }
        Ok(())
    }

    /// Takes an answer: into the log when it is its turn, into the inbox until then. What was paid for is kept, also
    /// when something else broke on the way.
    pub(super) fn settle(&mut self, finished: Finished) -> Result<(), OptimizerError> {
        if self.is_container_gone && finished.found_nobody() {
            self.lanes.lose(finished.request);
            return Ok(());
        }
        let Finished { request, kind, answer, cache, reply, overload, mut asides, fatal } = finished;
        if let Some(fatal) = fatal {
            self.note(Err(fatal));
        }
        if matches!(answer, Answer::Abandoned { .. }) {
            self.lanes.lose(request);
            self.log(asides);
            return Ok(());
        }
        let adjusted = self.lanes.end(request, overload, matches!(answer, Answer::Rollout(_)));
        asides.retain(|aside| !matches!(aside, Event::EchoMissing(_)) || !self.echo_was_missing);
        self.echo_was_missing |= asides.iter().any(|aside| matches!(aside, Event::EchoMissing(_)));
        asides.extend(adjusted.map(Event::ConcurrencyAdjusted));
        self.log(asides);
        let events = self.ground.session.offer(request, answer.clone())?;
        let at = unix_millis();
        self.batch.answered.push(Answered { request, kind, unix_millis: at, answer, retired: true, cache, reply });
        self.log(events);
        Ok(())
    }

    /// Puts events at the end of the log; what they ask for waits for a lane.
    pub(super) fn log(&mut self, events: Vec<Event>) {
        for event in events {
            match &event {
                Event::RolloutsRequested(batch) => {
                    for place in 0..batch.row_ids.len() as u64 {
                        self.lanes.enqueue(CallKind::Rollout, RequestId(batch.first_request.0 + place));
                    }
                }
                Event::ProposerStarted(turn) => self.lanes.enqueue(CallKind::Proposer, turn.request),
                Event::StateTransitioned(moved) => self.stepping.state = Some(moved.to),
                Event::StopDecided(stop) => {
                    self.withdraw_due |= matches!(stop.stopped_by.kind, StopKind::External | StopKind::MaxTime);
                }
                _ => {}
            }
            self.end = RunEnd::of_event(&event).or(self.end.take());
            let sequence = self.ground.next_sequence;
            self.ground.next_sequence += 1;
            self.batch.events.push(Stored::new(sequence, unix_millis(), event));
        }
    }

    pub(super) fn batch_is_empty(&self) -> bool {
        self.batch.events.is_empty() && self.batch.answered.is_empty() && self.batch.sent.is_empty()
    }

    /// Stores what has happened, tells everyone, and sends what waited for it.
    pub(super) async fn store(&mut self) -> Result<(), OptimizerError> {
        if self.batch_is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        let ground = &mut self.ground;
        let (engine, state) = (ground.engine, ground.session.state());
        let retired = |request: &RequestId| !engine.is_outstanding(state, *request);
        // Answers retire in the order of their requests, so those that have are the first of those that waited.
        while let Some(first) = ground.waiting.first().copied().filter(&retired) {
            ground.waiting.remove(&first);
            batch.retired.push(first);
        }
        for answered in &mut batch.answered {
            answered.retired = retired(&answered.request);
            if !answered.retired {
                ground.waiting.insert(answered.request);
            }
        }
        let batch = Arc::new(batch);
        ground.fence.check()?;
        ground.hooks.at(Boundary::BeforeCommit);
        ground.workspace.commit(Arc::clone(&batch)).await?;
        ground.hooks.at(Boundary::AfterCommit);
        ground.fence.check()?;
        ground.chronicle.append(&batch.events)?;
        ground.hooks.at(Boundary::AfterFeed);
        if self.live.receiver_count() > 0 {
            for stored in &batch.events {
                // Nobody listening any more is no error.
                let _ = self.live.send(Arc::new(stored.clone()));
            }
        }
        self.send()?;
        let within = self.ground.disk.check_running();
        self.note(within);
        Ok(())
    }

    /// Sends what is stored as sent, if the run is still this process's.
    fn send(&mut self) -> Result<(), OptimizerError> {
        if !self.launches.is_empty() {
            self.ground.fence.check()?;
        }
        for launch in std::mem::take(&mut self.launches) {
            let request = launch.request();
            let task = launch.spawn(Arc::clone(&self.ground.calls), self.back.clone());
            self.lanes.started(request, task);
        }
        Ok(())
    }

    /// Remembers the first error that the run cannot go on with.
    pub(super) fn note(&mut self, result: Result<(), OptimizerError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }
}

/// Waits until the run is not this process's any more.
async fn lost(fence: &Fence) -> OptimizerError {
    loop {
        tokio::time::sleep(FENCE_INTERVAL).await;
        if let Err(error) = fence.check() {
            return error;
        }
    }
}

/// Waits until then, or for ever.
async fn at(then: Option<tokio::time::Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

//! The loop of a run: take what has come, let the engine decide, store it, and only then send what it wants.

mod wind_down;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tracing::info;

use super::calls::{Asks, Call, Calls, Finished, Remembered};
use super::control::{Controlled, StepReport};
use super::execute::{Run, no_end, open_chronicle};
use super::fence::Fence;
use super::lanes::Lanes;
use super::prepare::Prepared;
use super::request::Boundary;
use super::start::{Begun, begin, record_start, resume};
use crate::artifacts::{Chronicle, DiskWatch, RegistryStatus, register, starting_entry};
use crate::clock::unix_millis;
use crate::container::Transport;
use crate::workspace::{Answered, Batch, Sent, Stored, Workspace};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::engine::{Engine, Session};
use synth_optimizer_core::model::answer::{Answer, Observation};
use synth_optimizer_core::model::canonical::digest_of;
use synth_optimizer_core::model::command::Command;
use synth_optimizer_core::model::control::{ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::StopKind;
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::{CandidateId, RequestId};
use synth_optimizer_core::model::lifecycle::RunState;

/// Answers that are taken in one round at most, so that a commit stays small.
const ROUND: usize = 256;

/// How often a run that only waits checks its lease and its lock.
const FENCE_INTERVAL: Duration = Duration::from_secs(1);

/// A run under way.
pub(super) struct Driver<'e, E: Engine> {
    run: &'e Run<'e>,
    engine: &'e E,
    session: Session<'e, E>,
    pub(super) calls: Arc<Calls>,
    pub(super) workspace: Workspace,
    pub(super) chronicle: Chronicle,
    disk: DiskWatch,
    next_sequence: u64,
    /// Time of earlier processes of this run.
    elapsed_before: u64,
    began: Instant,
    /// Requests whose answers wait in the stored inbox.
    waiting: BTreeSet<RequestId>,
    lanes: Lanes,
    /// Digests of the texts of candidates, which are part of the keys of their rollouts.
    candidates: BTreeMap<CandidateId, String>,
    requests: mpsc::UnboundedReceiver<ControlRequest>,
    /// What was asked before the run could hear it.
    early: Vec<ControlRequest>,
    finished: mpsc::UnboundedReceiver<Finished>,
    back: mpsc::UnboundedSender<Finished>,
    live: broadcast::Sender<Arc<Stored>>,
    steps: watch::Sender<StepReport>,
    steps_asked: u64,
    /// Where the run is. None before its first event.
    state: Option<RunState>,
    batch: Batch,
    launches: Vec<Call>,
    failure: Option<OptimizerError>,
    /// How the run ended, once its last event is in the log.
    end: Option<RunEnd>,
    /// When turns that are not wanted any more are broken off.
    turns_end_at: Option<tokio::time::Instant>,
    /// Says that the container is gone, where it is a process of this run.
    container_end: Option<oneshot::Receiver<OptimizerError>>,
    /// Whether the container has died: calls that found nobody are no failures of the task then.
    is_container_gone: bool,
    /// What waits for a lane is to be taken back.
    withdraw_due: bool,
    echo_was_missing: bool,
}

impl<'e, E: Engine> Driver<'e, E> {
    /// Takes a run up where its log ends, and writes down that it does. The events are those that follow from that, and
    /// that nobody has stored yet.
    pub(super) fn open(
        engine: &'e E,
        run: &'e Run<'e>,
        workspace: Workspace,
        prepared: Prepared,
        controlled: Controlled,
        container_end: Option<oneshot::Receiver<OptimizerError>>,
    ) -> Result<(Self, Vec<Event>), OptimizerError> {
        let config = &run.request.config;
        let Prepared { task, cache, client, disk, setup_calls, proposer, ready } = prepared;
        let is_resumed = workspace.last_sequence()?.is_some();
        let state = if is_resumed { Some(workspace.totals()?.state) } else { None };
        let begun = match is_resumed {
            false => begin(engine, config, &task)?,
            true => resume(engine, &workspace, &task.inputs)?,
        };
        let Begun { session, mut events, next_sequence, elapsed_before, unanswered, waiting } = begun;
        let (said, unknown) = (if is_resumed { "run resumed" } else { "run started" }, unanswered.len());
        info!(events = next_sequence, unknown, "{said}");
        record_start(&workspace, &task, setup_calls, if is_resumed { "resume" } else { "start" })?;
        register(run.dir, RegistryStatus::Started, &starting_entry(&workspace.run_row()?))?;
        run.dir.mark_latest();
        let chronicle = open_chronicle(run.dir, &workspace)?;
        let transport = client.map(|client| Transport::new(client, &task.contract, config));
        events.extend(transport.as_ref().and_then(Transport::fallback_at_start).map(Event::TransportFallback));
        events.extend(ready.map(Event::ProposerReady));
        let lanes = Lanes::new(&config.gepa, unanswered, transport.is_some(), run.request.stepping);
        let calls = Calls::new(config, run.dir.run_id(), task, cache, transport, proposer, run.fence.clone());
        let (back, finished) = mpsc::unbounded_channel();
        let Controlled { requests, live, steps, early } = controlled;
        let driver = Self {
            run,
            engine,
            session,
            calls: Arc::new(calls),
            workspace,
            chronicle,
            disk,
            next_sequence,
            elapsed_before,
            began: Instant::now(),
            waiting,
            lanes,
            candidates: BTreeMap::new(),
            requests,
            early,
            finished,
            back,
            live,
            steps,
            steps_asked: 0,
            state,
            batch: Batch::default(),
            launches: Vec::new(),
            failure: None,
            end: None,
            turns_end_at: None,
            container_end,
            is_container_gone: false,
            withdraw_due: false,
            echo_was_missing: false,
        };
        Ok((driver, events))
    }

    /// Runs to the end. `opening` are events that nobody has stored yet. A run that failed and is not over can be resumed
    /// when the cause is mended.
    pub(super) async fn run(mut self, opening: Vec<Event>) -> (Self, Result<RunEnd, OptimizerError>) {
        for command in self.session.outstanding() {
            let kind = match &command {
                Command::Rollout(_) => CallKind::Rollout,
                Command::Propose(_) => CallKind::Proposer,
            };
            self.lanes.enqueue(kind, command.request());
        }
        self.log(opening);
        let end = self.rounds().await;
        self.lanes.abort();
        self.report(StepReport { has_ended: true, ..StepReport::default() });
        (self, end)
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
            if self.engine.is_over(self.session.state()) {
                return self.end_of_log();
            }
            if self.lanes.is_held && self.lanes.is_settled() {
                self.report(StepReport { is_waiting: true, ..StepReport::default() });
            }
            if self.failure.is_some() {
                continue;
            }
            let end = if !self.lanes.could_begin() {
                self.wait().await?
            } else if let Ok(request) = self.requests.try_recv() {
                self.obey(request).await?
            } else {
                self.take_ready()?;
                None
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    /// Begins what waits and may begin: what the cache knows is settled at once, everything else is sent once it is stored as
    /// sent.
    fn admit(&mut self) -> Result<(), OptimizerError> {
        let mut remembered = 0;
        while remembered < ROUND && self.failure.is_none() {
            let Some(id) = self.lanes.next_rollout(self.launches.len()) else { break };
            remembered += usize::from(self.begin(id)?);
        }
        // Evidence is read from what is stored, so a proposal begins when nothing waits to be stored.
        while self.batch_is_empty() && self.failure.is_none() {
            let Some(id) = self.lanes.next_proposal() else { break };
            self.begin(id)?;
        }
        Ok(())
    }

    /// Begins a call that nobody has answered or taken back; tells whether the cache knew it.
    fn begin(&mut self, request: RequestId) -> Result<bool, OptimizerError> {
        let is_wanted = self.session.is_wanted(request);
        let command = is_wanted.then(|| self.engine.command(self.session.state(), request)).flatten();
        let (attempt, asks) = match command {
            Some(Command::Rollout(command)) => (command.attempt, Asks::Rollout(command)),
            Some(Command::Propose(command)) => {
                (command.attempt, Asks::Proposal(Box::new(self.calls.proposal(command, &self.workspace)?)))
            }
            None => return Ok(false),
        };
        let key = match (self.calls.cache.mode(), &asks) {
            (CacheMode::Off, _) => None,
            (CacheMode::Readwrite | CacheMode::Readonly, Asks::Proposal(request)) => {
                Some(self.calls.proposal_key(request))
            }
            (CacheMode::Readwrite | CacheMode::Readonly, Asks::Rollout(command)) => {
                let digests = self.candidates.entry(command.candidate_id.clone());
                let digest = digests.or_insert_with(|| digest_of(&command.payload));
                Some(self.calls.rollout_key(command, digest)?)
            }
        };
        let sent_before = self.lanes.was_sent_before(request);
        let mut call = Call { request, attempt, asks, key, sent_before, rollout_id: None };
        if let Some(key) = &call.key {
            if self.lanes.park(key, request) {
                return Ok(false);
            }
            match self.calls.remembered(&call, key)? {
                Remembered::Answer(finished) => return self.settle(*finished).map(|()| true),
                Remembered::Nothing => {}
                Remembered::Damaged(row) => self.log(vec![Event::CacheDamaged(row)]),
            }
        }
        if let Asks::Rollout(command) = &call.asks {
            call.rollout_id = Some(self.calls.rollout_id(command));
        }
        let (kind, rollout_id) = (call.kind(), call.rollout_id.clone());
        self.lanes.begin(kind, request, call.key.clone());
        self.batch.sent.push(Sent { request, kind, rollout_id, unix_millis: unix_millis() });
        self.launches.push(call);
        Ok(false)
    }

    /// Reports how far a held run is.
    fn report(&self, report: StepReport) {
        let last_sequence = self.next_sequence.checked_sub(1);
        let report = StepReport { steps_done: self.steps_asked, last_sequence, state: self.state, ..report };
        self.steps.send_if_modified(|known| std::mem::replace(known, report) != report);
    }

    /// How a run that is over ended. What this process met says more than the log.
    fn end_of_log(&mut self) -> Result<RunEnd, OptimizerError> {
        match (self.end.take(), self.failure.take()) {
            (Some(RunEnd::Failed(_)), Some(error)) => Ok(RunEnd::Failed(error)),
            (end, _) => end.ok_or_else(no_end),
        }
    }

    /// Waits until something comes, and takes all that has come.
    async fn wait(&mut self) -> Result<Option<RunEnd>, OptimizerError> {
        if self.lanes.is_idle() && !self.lanes.is_held_back() {
            let message = "nothing is under way and the run is not over".to_owned();
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        let wakeup = self.engine.next_wakeup(self.session.state());
        let until = wakeup.map_or(Duration::from_secs(3600), |at| {
            Duration::from_millis(at.saturating_sub(self.elapsed_millis()).max(1))
        });
        let run = self.run;
        tokio::select! {
            biased;
            Some(request) = self.requests.recv() => return self.obey(request).await,
            Some(error) = gone(&mut self.container_end) => return self.container_gone(error).await.map(Some),
            Some(finished) = self.finished.recv() => {
                // A container that has just died answers nobody, and its end takes a while to be noticed. That is no
                // failure of the rollouts.
                let patience = run.request.config.container.health_interval_ms.saturating_mul(4);
                let patience = Duration::from_millis(patience);
                if self.container_end.is_some()
                    && finished.found_nobody()
                    && let Ok(Some(error)) = tokio::time::timeout(patience, gone(&mut self.container_end)).await
                {
                    self.lanes.lose(finished.request);
                    return self.container_gone(error).await.map(Some);
                }
                self.settle(finished)?;
                self.gather().await?;
            }
            () = at(self.turns_end_at) => self.break_off_turns()?,
            error = lost(run.fence) => return Err(error),
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
    fn take_finished(&mut self) -> Result<usize, OptimizerError> {
        for taken in 0..ROUND {
            let Ok(finished) = self.finished.try_recv() else { return Ok(taken) };
            self.settle(finished)?;
        }
        Ok(ROUND)
    }

    /// Takes what has come without waiting, and shows the engine the clock.
    fn take_ready(&mut self) -> Result<(), OptimizerError> {
        self.take_finished()?;
        if let Some(limit) = self.run.request.config.gepa.max_time_seconds {
            let elapsed_millis = self.elapsed_millis();
            let events = self.session.observe(&Observation::Clock { elapsed_millis })?;
            self.log(events);
            self.withdraw_due |= elapsed_millis >= limit.saturating_mul(1000);
        }
        self.withdraw()
    }

    fn elapsed_millis(&self) -> u64 {
        self.elapsed_before + self.began.elapsed().as_millis() as u64
    }

    /// Takes back what was not sent, if the clock or somebody outside has ended the search.
    fn withdraw(&mut self) -> Result<(), OptimizerError> {
        while std::mem::take(&mut self.withdraw_due) {
            let lanes = &self.lanes;
            let events = self.session.withdraw(|request| lanes.is_sent(request))?;
            self.log(events);
        }
        Ok(())
    }

    /// Takes an answer: into the log when it is its turn, into the inbox until then. What was paid for is kept, also
    /// when something else broke on the way.
    fn settle(&mut self, finished: Finished) -> Result<(), OptimizerError> {
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
        let events = self.session.offer(request, answer.clone())?;
        let at = unix_millis();
        self.batch.answered.push(Answered { request, kind, unix_millis: at, answer, retired: true, cache, reply });
        self.log(events);
        Ok(())
    }

    /// Puts events at the end of the log; what they ask for waits for a lane.
    fn log(&mut self, events: Vec<Event>) {
        for event in events {
            match &event {
                Event::RolloutsRequested(batch) => {
                    for place in 0..batch.row_ids.len() as u64 {
                        self.lanes.enqueue(CallKind::Rollout, RequestId(batch.first_request.0 + place));
                    }
                }
                Event::ProposerStarted(turn) => self.lanes.enqueue(CallKind::Proposer, turn.request),
                Event::StateTransitioned(moved) => self.state = Some(moved.to),
                Event::StopDecided(stop) => {
                    self.withdraw_due |= matches!(stop.stopped_by.kind, StopKind::External | StopKind::MaxTime);
                }
                _ => {}
            }
            self.end = RunEnd::of_event(&event).or(self.end.take());
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            self.batch.events.push(Stored::new(sequence, unix_millis(), event));
        }
    }

    fn batch_is_empty(&self) -> bool {
        self.batch.events.is_empty() && self.batch.answered.is_empty() && self.batch.sent.is_empty()
    }

    /// Stores what has happened, tells everyone, and sends what waited for it.
    async fn store(&mut self) -> Result<(), OptimizerError> {
        if self.batch_is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        let (engine, state) = (self.engine, self.session.state());
        let retired = |request: &RequestId| !engine.is_outstanding(state, *request);
        // Answers retire in the order of their requests, so those that have are the first of those that waited.
        while let Some(first) = self.waiting.first().copied().filter(&retired) {
            self.waiting.remove(&first);
            batch.retired.push(first);
        }
        for answered in &mut batch.answered {
            answered.retired = retired(&answered.request);
            if !answered.retired {
                self.waiting.insert(answered.request);
            }
        }
        let batch = Arc::new(batch);
        self.run.fence.check()?;
        self.run.request.hooks.at(Boundary::BeforeCommit);
        self.workspace.commit(Arc::clone(&batch)).await?;
        self.run.request.hooks.at(Boundary::AfterCommit);
        self.run.fence.check()?;
        self.chronicle.append(&batch.events)?;
        self.run.request.hooks.at(Boundary::AfterFeed);
        if self.live.receiver_count() > 0 {
            for stored in &batch.events {
                // Nobody listening any more is no error.
                let _ = self.live.send(Arc::new(stored.clone()));
            }
        }
        self.send()?;
        let within = self.disk.check_running();
        self.note(within);
        Ok(())
    }

    /// Sends what is stored as sent, if the run is still this process's.
    fn send(&mut self) -> Result<(), OptimizerError> {
        if !self.launches.is_empty() {
            self.run.fence.check()?;
        }
        for launch in std::mem::take(&mut self.launches) {
            let request = launch.request;
            let task = Arc::clone(&self.calls).spawn(launch, self.back.clone());
            self.lanes.started(request, task);
        }
        Ok(())
    }

    /// Remembers the first error that the run cannot go on with.
    fn note(&mut self, result: Result<(), OptimizerError>) {
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

/// Waits until the container has ended, or for ever.
async fn gone(container_end: &mut Option<oneshot::Receiver<OptimizerError>>) -> Option<OptimizerError> {
    match container_end {
        Some(end) => end.await.ok(),
        None => std::future::pending().await,
    }
}

/// Waits until then, or for ever.
async fn at(then: Option<tokio::time::Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

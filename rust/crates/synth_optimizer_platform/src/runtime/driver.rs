//! The loop of a run: collect answers and control requests, let the engine decide, store the result, and only then send
//! the calls that the engine wants.

mod full_disk;
mod outage;
mod shutdown;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tracing::info;

use super::calls::{CacheAnswer, Call, CallPayload, Calls, CompletedCall};
use super::control::{ControlReceiver, StepReport};
use super::execute::{RunContext, missing_end_error, open_feed_writer};
use super::lanes::Lanes;
use super::ownership::Ownership;
use super::prepare::Prepared;
use super::run_spec::HookPoint;
use super::start::{OpenedSession, open_new, record_start, reopen};
use crate::artifacts::{DiskWatch, FeedWriter, RegistryStatus, register};
use crate::clock::unix_millis;
use crate::container::{EarlierRollouts, Sending, Transport};
use crate::results::starting_entry;
use crate::workspace::{AnsweredCall, Batch, SentCall, StoredEvent, Workspace};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::engine::{Engine, Session};
use synth_optimizer_core::model::answer::{Answer, Observation};
use synth_optimizer_core::model::command::Command;
use synth_optimizer_core::model::control::{ControlRequest, RunEnd};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::ids::CallId;
use synth_optimizer_core::model::lifecycle::RunState;

/// The most answers that one round of the loop takes, so that each commit stays small.
const MAX_ANSWERS_PER_ROUND: usize = 256;

/// How often a waiting run checks its lease and its lock.
const OWNERSHIP_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A run that this process executes.
pub(super) struct Driver<'e, E: Engine> {
    run: &'e RunContext<'e>,
    engine: &'e E,
    session: Session<'e, E>,
    pub(super) calls: Arc<Calls>,
    pub(super) workspace: Workspace,
    pub(super) feed_writer: FeedWriter,
    disk: DiskWatch,
    next_sequence: u64,
    /// Milliseconds that earlier processes spent on this run.
    elapsed_before: u64,
    began: Instant,
    /// Calls whose answers wait in the stored inbox.
    waiting: BTreeSet<CallId>,
    lanes: Lanes,
    requests: mpsc::UnboundedReceiver<ControlRequest>,
    /// Control requests that arrived before the loop started.
    early_requests: Vec<ControlRequest>,
    completed: mpsc::UnboundedReceiver<CompletedCall>,
    completed_sender: mpsc::UnboundedSender<CompletedCall>,
    live: broadcast::Sender<Arc<StoredEvent>>,
    steps: watch::Sender<StepReport>,
    steps_requested: u64,
    /// The state of the run. `None` before its first event.
    state: Option<RunState>,
    batch: Batch,
    calls_to_send: Vec<Call>,
    failure: Option<OptimizerError>,
    /// How the run ended. Set once its last event is in the log.
    end: Option<RunEnd>,
    /// When proposer turns that were interrupted by a stop are aborted.
    turn_deadline: Option<tokio::time::Instant>,
    /// Receives the error of the container's exit, if the container is a process of this run.
    container_exit_receiver: Option<oneshot::Receiver<OptimizerError>>,
    /// Whether the container process has exited. Calls that fail to reach it are then not failures of the task.
    has_container_exited: bool,
    /// Whether calls that wait for a lane have to be withdrawn.
    needs_withdrawal: bool,
    /// Types of events that are recorded at most once, and were.
    reported_once: BTreeSet<&'static str>,
}

impl<'e, E: Engine> Driver<'e, E> {
    /// Opens a run where its log ends and records that it was started or resumed. Returns the first events, which still
    /// have to be stored.
    pub(super) fn open(
        engine: &'e E,
        run: &'e RunContext<'e>,
        workspace: Workspace,
        prepared: Prepared,
        receiver: ControlReceiver,
        container_exit_receiver: Option<oneshot::Receiver<OptimizerError>>,
    ) -> Result<(Self, Vec<Event>), OptimizerError> {
        let config = &run.request.config;
        let Prepared { task, cache, client, disk, setup_calls, proposer, ready } = prepared;
        let is_resumed = workspace.last_sequence()?.is_some();
        let state = if is_resumed { Some(workspace.totals()?.state) } else { None };
        let opened = match is_resumed {
            false => open_new(engine, config, &task)?,
            true => reopen(engine, &workspace, &task.inputs)?,
        };
        let OpenedSession { session, mut events, next_sequence, elapsed_before, unanswered, waiting } = opened;
        let (said, unknown) = (if is_resumed { "run resumed" } else { "run started" }, unanswered.len());
        info!(events = next_sequence, unknown, "{said}");
        record_start(&workspace, &task, setup_calls, if is_resumed { "resume" } else { "start" })?;
        register(run.dir, RegistryStatus::Started, &starting_entry(&workspace.run_row()?))?;
        run.dir.mark_latest();
        let feed_writer = open_feed_writer(run.dir, &workspace)?;
        let transport = match client {
            Some(client) => {
                let (ended_id, longest) = if is_resumed { workspace.earlier_rollouts()? } else { (None, 0) };
                let earlier = EarlierRollouts { ended_id, longest: Duration::from_millis(longest) };
                Some(Transport::new(client, &task.contract, config, earlier))
            }
            None => None,
        };
        events.extend(transport.as_ref().and_then(Transport::fallback_at_start).map(Event::TransportFallback));
        events.extend(ready.map(Event::ProposerReady));
        let lanes = Lanes::new(config, unanswered, transport.is_some(), run.request.stepping);
        let mut calls = Calls::new(config, run.dir.paths(), task, cache, transport, proposer, run.ownership.clone());
        calls.sent_ids = workspace.unanswered_rollout_ids()?;
        let (completed_sender, completed) = mpsc::unbounded_channel();
        let ControlReceiver { requests, live, steps, early_requests } = receiver;
        let driver = Self {
            run,
            engine,
            session,
            calls: Arc::new(calls),
            workspace,
            feed_writer,
            disk,
            next_sequence,
            elapsed_before,
            began: Instant::now(),
            waiting,
            lanes,
            requests,
            early_requests,
            completed,
            completed_sender,
            live,
            steps,
            steps_requested: 0,
            state,
            batch: Batch::default(),
            calls_to_send: Vec::new(),
            failure: None,
            end: None,
            turn_deadline: None,
            container_exit_receiver,
            has_container_exited: false,
            needs_withdrawal: false,
            reported_once: BTreeSet::new(),
        };
        Ok((driver, events))
    }

    /// Runs the loop to its end. `opening` holds events that are not stored yet. After an error, the run can be resumed
    /// once the cause is fixed, unless its log has a last event.
    pub(super) async fn run(mut self, opening: Vec<Event>) -> (Self, Result<RunEnd, OptimizerError>) {
        for command in self.session.outstanding() {
            let kind = match &command {
                Command::Rollout(_) => CallKind::Rollout,
                Command::Propose(_) => CallKind::Proposer,
            };
            self.lanes.enqueue(kind, command.call_id());
        }
        self.append_events(opening);
        let end = self.run_loop().await;
        self.lanes.abort_all();
        self.report_step(StepReport { has_ended: true, ..StepReport::default() });
        (self, end)
    }

    async fn run_loop(&mut self) -> Result<RunEnd, OptimizerError> {
        for request in std::mem::take(&mut self.early_requests) {
            if let Some(end) = self.handle_control(request).await? {
                return Ok(end);
            }
        }
        loop {
            // Checked before the next try.
            if let Some(error) = self.exhausted_outage() {
                return self.interrupt_with_error(error).await;
            }
            let opened = self.start_ready_calls();
            self.record_failure(opened);
            if let Some(end) = self.handle_failure().await? {
                return Ok(end);
            }
            self.commit_batch().await?;
            if self.engine.is_terminal(self.session.state()) {
                return self.take_end();
            }
            if self.lanes.is_stepped && self.lanes.is_settled() {
                self.report_step(StepReport { is_waiting: true, ..StepReport::default() });
            }
            if self.failure.is_some() {
                continue;
            }
            let end = if !self.lanes.has_ready_call() {
                self.wait_for_input().await?
            } else if let Ok(request) = self.requests.try_recv() {
                self.handle_control(request).await?
            } else {
                self.process_ready()?;
                None
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    /// Starts the waiting calls that the lanes admit. A cached call is settled immediately; any other call is stored as sent,
    /// and sent after that.
    fn start_ready_calls(&mut self) -> Result<(), OptimizerError> {
        let mut cached = 0;
        while cached < MAX_ANSWERS_PER_ROUND && self.failure.is_none() {
            let Some(id) = self.lanes.next_rollout(self.calls_to_send.len()) else { break };
            cached += usize::from(self.start_call(id)?);
        }
        // A proposal reads its evidence from the workspace, so it starts only when everything is stored.
        while self.batch_is_empty() && self.failure.is_none() {
            let Some(id) = self.lanes.next_proposal() else { break };
            self.start_call(id)?;
        }
        Ok(())
    }

    /// Starts a call, unless it was answered or withdrawn meanwhile. Returns whether the cache answered it.
    fn start_call(&mut self, call_id: CallId) -> Result<bool, OptimizerError> {
        let is_wanted = self.session.awaits_answer(call_id);
        let command = is_wanted.then(|| self.engine.command(self.session.state(), call_id)).flatten();
        let (attempt, payload) = match command {
            Some(Command::Rollout(command)) => (command.attempt, CallPayload::Rollout(command)),
            Some(Command::Propose(command)) => {
                (command.attempt, CallPayload::Proposal(Box::new(self.calls.proposal(command, &self.workspace)?)))
            }
            None => return Ok(false),
        };
        let key = match (self.calls.cache.mode(), &payload) {
            (CacheMode::Off, _) => None,
            (CacheMode::Readwrite | CacheMode::Readonly, CallPayload::Proposal(request)) => {
                Some(self.calls.proposal_key(request))
            }
            (CacheMode::Readwrite | CacheMode::Readonly, CallPayload::Rollout(command)) => {
                Some(self.calls.rollout_key(command)?)
            }
        };
        let sending = self.lanes.sending(call_id);
        let mut call = Call { call_id, attempt, payload, key, sending, rollout_id: None };
        if let Some(key) = &call.key {
            if self.lanes.park(key, call_id) {
                return Ok(false);
            }
            match self.calls.cached_answer(&call, key)? {
                CacheAnswer::Hit(completed) => return self.settle_call(*completed).map(|()| true),
                CacheAnswer::Miss => {}
                CacheAnswer::Damaged(row) => self.append_events(vec![Event::CacheDamaged(row)]),
            }
        }
        if let CallPayload::Rollout(command) = &call.payload {
            call.rollout_id = Some(self.calls.rollout_id(command)?);
        }
        let (kind, rollout_id) = (call.kind(), call.rollout_id.clone());
        if kind == CallKind::Proposer && matches!(sending, Sending::AskFirst { .. }) {
            // A proposer does not know its turns by an id.
            return self.charge_lost_call(call_id, kind, "the process that sent the turn stopped").map(|()| false);
        }
        self.lanes.begin(kind, call_id, call.key.clone());
        // A call that is only asked for is stored as sent already.
        if !matches!(sending, Sending::AskFirst { .. }) {
            self.batch.sent.push(SentCall { call_id, kind, rollout_id, unix_millis: unix_millis() });
        }
        self.calls_to_send.push(call);
        Ok(false)
    }

    /// Reports the progress of a manually stepped run.
    fn report_step(&self, report: StepReport) {
        let last_sequence = self.next_sequence.checked_sub(1);
        let report = StepReport { steps_done: self.steps_requested, last_sequence, state: self.state, ..report };
        self.steps.send_if_modified(|known| std::mem::replace(known, report) != report);
    }

    /// Takes the end of a run whose log is complete. The error that this process met has more detail than the log.
    fn take_end(&mut self) -> Result<RunEnd, OptimizerError> {
        match (self.end.take(), self.failure.take()) {
            (Some(RunEnd::Failed(_)), Some(error)) => Ok(RunEnd::Failed(error)),
            (end, _) => end.ok_or_else(missing_end_error),
        }
    }

    /// Waits for an answer, a control request or a deadline, then processes everything that is ready.
    async fn wait_for_input(&mut self) -> Result<Option<RunEnd>, OptimizerError> {
        let next_try = self.lanes.next_try();
        if self.lanes.is_idle() && !self.lanes.has_calls_awaiting_step() && next_try.is_none() {
            let message = "the run has not ended, and nothing is in flight".to_owned();
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        let wakeup = self.engine.next_wakeup(self.session.state());
        let until = wakeup.map_or(Duration::from_secs(3600), |at| {
            Duration::from_millis(at.saturating_sub(self.elapsed_millis()).max(1))
        });
        let run = self.run;
        tokio::select! {
            biased;
            Some(request) = self.requests.recv() => return self.handle_control(request).await,
            Some(error) = container_exit(&mut self.container_exit_receiver) => return self.handle_container_exit(error).await.map(Some),
            Some(completed) = self.completed.recv() => {
                // When the container process dies, its calls fail before its exit is noticed. Wait for the exit, so
                // that these calls do not count as failures of the rollouts.
                let patience = run.request.config.container.health_interval_ms.saturating_mul(4);
                let patience = Duration::from_millis(patience);
                if self.container_exit_receiver.is_some()
                    && completed.container_was_unreachable()
                    && let Ok(Some(error)) = tokio::time::timeout(patience, container_exit(&mut self.container_exit_receiver)).await
                {
                    self.lose_call(&completed);
                    return self.handle_container_exit(error).await.map(Some);
                }
                self.settle_call(completed)?;
                self.collect_more_answers().await?;
            }
            () = sleep_until(self.turn_deadline) => self.abort_turns()?,
            () = sleep_until(next_try) => {}
            error = ownership_loss(run.ownership) => return Err(error),
            () = tokio::time::sleep(until) => {}
        }
        self.process_ready()?;
        Ok(None)
    }

    /// Yields to calls that are about to complete, so that their answers share one commit.
    async fn collect_more_answers(&mut self) -> Result<(), OptimizerError> {
        let mut taken = 0;
        while taken < MAX_ANSWERS_PER_ROUND {
            tokio::task::yield_now().await;
            let more = self.settle_completed()?;
            if more == 0 {
                break;
            }
            taken += more;
        }
        Ok(())
    }

    /// Settles the calls that have completed, up to the limit of a round. Returns their number.
    fn settle_completed(&mut self) -> Result<usize, OptimizerError> {
        for taken in 0..MAX_ANSWERS_PER_ROUND {
            let Ok(completed) = self.completed.try_recv() else { return Ok(taken) };
            self.settle_call(completed)?;
        }
        Ok(MAX_ANSWERS_PER_ROUND)
    }

    /// Settles completed calls without waiting, and passes the clock to the engine if the run has a time limit.
    fn process_ready(&mut self) -> Result<(), OptimizerError> {
        self.settle_completed()?;
        if let Some(limit) = self.run.request.config.gepa.max_time_seconds {
            let elapsed_millis = self.elapsed_millis();
            let events = self.session.observe(&Observation::Clock { elapsed_millis })?;
            self.append_events(events);
            self.needs_withdrawal |= elapsed_millis >= limit.saturating_mul(1000);
        }
        self.withdraw_unsent()
    }

    fn elapsed_millis(&self) -> u64 {
        self.elapsed_before + self.began.elapsed().as_millis() as u64
    }

    /// Withdraws the calls that were not sent, if the time limit or a stop request has ended the search.
    fn withdraw_unsent(&mut self) -> Result<(), OptimizerError> {
        while std::mem::take(&mut self.needs_withdrawal) {
            let lanes = &self.lanes;
            let events = self.session.withdraw_unsent(|call_id| lanes.may_have_been_sent(call_id))?;
            self.append_events(events);
        }
        Ok(())
    }

    /// Offers the answer of a call to the session. Its events go into the log if it is the answer's turn; otherwise the
    /// answer waits in the inbox. An answer is kept even if the call also met a fatal error.
    fn settle_call(&mut self, completed: CompletedCall) -> Result<(), OptimizerError> {
        if self.has_container_exited && completed.container_was_unreachable() {
            self.lose_call(&completed);
            return Ok(());
        }
        let is_answer = completed.is_answer();
        let CompletedCall { call_id, kind, answer, cache, reply, overload, mut asides, outage, is_lost, fatal } =
            completed;
        if let Some(fatal) = fatal {
            self.record_failure(Err(fatal));
        } else if let Some(outage) = outage {
            let adjusted = overload.and_then(|status| self.lanes.note_overload(call_id, status));
            asides.extend(adjusted.map(Event::ConcurrencyAdjusted));
            self.append_events(asides);
            return self.defer_call(call_id, kind, &answer, outage);
        } else if is_lost {
            self.append_events(asides);
            return self.charge_lost_call(call_id, kind, "the container does not remember it");
        }
        if is_answer && let Some(waited_millis) = self.lanes.end_outage(kind) {
            asides.push(outage::waiting_ended(kind, waited_millis));
        }
        if matches!(answer, Answer::Abandoned { .. }) {
            self.lanes.mark_lost(call_id);
            self.append_events(asides);
            return Ok(());
        }
        let adjusted = self.lanes.complete(call_id, overload, matches!(answer, Answer::Rollout(_)));
        asides.retain(|aside| {
            let is_reported_once = matches!(aside, Event::EchoMissing(_) | Event::UsageRefused(_));
            !is_reported_once || self.reported_once.insert(aside.type_name())
        });
        asides.extend(adjusted.map(Event::ConcurrencyAdjusted));
        self.append_events(asides);
        let events = self.session.accept_answer(call_id, answer.clone())?;
        let at = unix_millis();
        self.batch.answered.push(AnsweredCall { call_id, kind, unix_millis: at, answer, retired: true, cache, reply });
        self.append_events(events);
        Ok(())
    }

    /// Appends events to the log, and enqueues the calls that they request.
    fn append_events(&mut self, events: Vec<Event>) {
        for event in events {
            match &event {
                Event::RolloutsRequested(batch) => {
                    for place in 0..batch.row_ids.len() as u64 {
                        self.lanes.enqueue(CallKind::Rollout, CallId(batch.first_call_id.0 + place));
                    }
                }
                Event::ProposerStarted(turn) => self.lanes.enqueue(CallKind::Proposer, turn.call_id),
                Event::StateTransitioned(moved) => self.state = Some(moved.to),
                Event::StopDecided(stop) => self.needs_withdrawal |= stop.stopped_by.kind.withdraws_waiting_calls(),
                // The calls of the held-out evaluation are not those that the stop withdraws.
                Event::HeldoutStarted(_) => self.needs_withdrawal = false,
                _ => {}
            }
            self.end = RunEnd::from_event(&event).or(self.end.take());
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            self.batch.events.push(StoredEvent::new(sequence, unix_millis(), event));
        }
    }

    fn batch_is_empty(&self) -> bool {
        let Batch { events, sent, answered, unsent, retired: _ } = &self.batch;
        events.is_empty() && answered.is_empty() && sent.is_empty() && unsent.is_empty()
    }

    /// Commits the batch, appends it to the feed, publishes its events, and sends the calls that it marked as sent.
    async fn commit_batch(&mut self) -> Result<(), OptimizerError> {
        if self.batch_is_empty() {
            // Calls that are only asked for are stored as sent already.
            return self.send_calls();
        }
        let mut batch = std::mem::take(&mut self.batch);
        let (engine, state) = (self.engine, self.session.state());
        let retired = |call_id: &CallId| !engine.is_outstanding(state, *call_id);
        batch.retired.extend(self.waiting.extract_if(.., |call_id| retired(call_id)));
        for answered in &mut batch.answered {
            answered.retired = retired(&answered.call_id);
            if !answered.retired {
                self.waiting.insert(answered.call_id);
            }
        }
        let batch = Arc::new(batch);
        self.run.ownership.check()?;
        self.run.request.hooks.call(HookPoint::BeforeCommit);
        self.commit_with_room(&batch).await?;
        self.run.request.hooks.call(HookPoint::AfterCommit);
        self.run.ownership.check()?;
        self.append_to_feed(&batch.events).await?;
        self.run.request.hooks.call(HookPoint::AfterFeed);
        if self.live.receiver_count() > 0 {
            for stored in &batch.events {
                // An error means that every subscriber has gone.
                let _ = self.live.send(Arc::new(stored.clone()));
            }
        }
        self.send_calls()?;
        let within = self.disk.check_running();
        self.record_failure(within);
        Ok(())
    }

    /// Sends the calls that are stored as sent. Fails if this process no longer owns the run.
    fn send_calls(&mut self) -> Result<(), OptimizerError> {
        if !self.calls_to_send.is_empty() {
            self.run.ownership.check()?;
        }
        for launch in std::mem::take(&mut self.calls_to_send) {
            let call_id = launch.call_id;
            let task = Arc::clone(&self.calls).spawn(launch, self.completed_sender.clone());
            self.lanes.set_task(call_id, task);
        }
        Ok(())
    }

    /// Keeps the first error that prevents the run from continuing.
    fn record_failure(&mut self, result: Result<(), OptimizerError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }
}

/// Waits until this process no longer owns the run, and returns the error that says why.
async fn ownership_loss(ownership: &Ownership) -> OptimizerError {
    loop {
        tokio::time::sleep(OWNERSHIP_CHECK_INTERVAL).await;
        if let Err(error) = ownership.check() {
            return error;
        }
    }
}

/// Waits for the container process to exit. Never returns if the run started no container.
async fn container_exit(
    container_exit_receiver: &mut Option<oneshot::Receiver<OptimizerError>>,
) -> Option<OptimizerError> {
    match container_exit_receiver {
        Some(end) => end.await.ok(),
        None => std::future::pending().await,
    }
}

/// Sleeps until this moment. Never returns for `None`.
async fn sleep_until(then: Option<tokio::time::Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

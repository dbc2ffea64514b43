//! The loop of a run: take what has come, let the engine decide, store it, and only then send what it wants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{broadcast, mpsc};

use super::calls::{Calls, Finished, Remembered};
use super::control::{Controlled, Signal};
use super::hooks::{Boundary, Hooks};
use super::lanes::Lanes;
use super::proposals::proposal_request;
use crate::artifacts::Feed;
use crate::config::Config;
use crate::config::sections::CacheMode;
use crate::model::answer::{Answer, Observation};
use crate::model::canonical::digest_of;
use crate::model::command::{Command, RolloutCommand};
use crate::model::engine::{Engine, Session};
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::event::Event;
use crate::model::event_fields::{Failure, Reason};
use crate::model::ids::{CandidateId, RequestId};
use crate::proposer::ProposalRequest;
use crate::workspace::{Answered, Batch, CallKind, Sent, Stored, Workspace};

/// Answers that are taken in one round at most, so that a commit stays small.
const ROUND: usize = 256;

/// How the loop ended.
#[derive(Debug)]
pub(super) enum End {
    /// The log has its last event. The error is what the run failed of, as it was met in this process.
    Over(Option<OptimizerError>),
    /// The run can be resumed.
    Interrupted,
}

/// A call that is stored as sent and not sent yet.
enum Launch {
    Rollout { command: RolloutCommand, key: Option<String>, resent: bool },
    Proposal { id: RequestId, attempt: u32, request: Box<ProposalRequest>, key: Option<String> },
}

/// What the driver stands on.
pub(super) struct Ground<'e, E: Engine> {
    pub(super) engine: &'e E,
    pub(super) session: Session<'e, E>,
    pub(super) calls: Arc<Calls>,
    pub(super) workspace: Workspace,
    pub(super) feed: Feed,
    pub(super) hooks: Hooks,
    pub(super) next_sequence: u64,
    /// Time of earlier processes of this run.
    pub(super) elapsed_before: u64,
    /// Requests that an earlier process sent and that have no answer.
    pub(super) resent: BTreeSet<RequestId>,
    /// Requests whose answers wait in the stored inbox.
    pub(super) waiting: BTreeSet<RequestId>,
    /// Asked every now and then; an error ends the run.
    pub(super) watch_disk: Box<dyn FnMut() -> Result<(), OptimizerError> + Send>,
}

/// A run under way.
pub(super) struct Driver<'e, E: Engine> {
    ground: Ground<'e, E>,
    lanes: Lanes,
    live: broadcast::Sender<Arc<Stored>>,
    signals: mpsc::UnboundedReceiver<Signal>,
    back: mpsc::UnboundedSender<Finished>,
    finished: mpsc::UnboundedReceiver<Finished>,
    batch: Batch,
    launches: Vec<Launch>,
    candidates: BTreeMap<CandidateId, String>,
    began: Instant,
    time_limit: Option<u64>,
    interrupt_grace: Duration,
    cancel_grace: Duration,
    echo_was_missing: bool,
    failure: Option<OptimizerError>,
    commits: u64,
}

impl<'e, E: Engine> Driver<'e, E> {
    pub(super) fn new(config: &Config, ground: Ground<'e, E>, controlled: Controlled) -> Self {
        let (back, finished) = mpsc::unbounded_channel();
        let mut lanes = Lanes::new(&config.gepa, ground.resent.clone());
        if !ground.calls.is_live() {
            lanes.open();
        }
        Self {
            lanes,
            live: controlled.live,
            signals: controlled.signals,
            back,
            finished,
            batch: Batch::default(),
            launches: Vec::new(),
            candidates: BTreeMap::new(),
            began: Instant::now(),
            time_limit: config.gepa.max_time_seconds.map(|seconds| seconds.saturating_mul(1000)),
            interrupt_grace: Duration::from_secs(config.run.interrupt_grace_seconds),
            cancel_grace: Duration::from_secs(config.run.cancel_grace_seconds),
            echo_was_missing: false,
            failure: None,
            commits: 0,
            ground,
        }
    }

    /// Runs to the end. `opening` are events that nobody has stored yet.
    pub(super) async fn run(mut self, opening: Vec<Event>) -> (Ground<'e, E>, Result<End, OptimizerError>) {
        for command in self.ground.session.outstanding() {
            let kind = match &command {
                Command::Rollout(_) => CallKind::Rollout,
                Command::Propose(_) => CallKind::Proposer,
            };
            if !self.ground.waiting.contains(&command.request()) {
                self.lanes.enqueue(kind, command.request());
            }
        }
        self.log(opening);
        let end = self.rounds().await;
        self.lanes.abort();
        (self.ground, end)
    }

    async fn rounds(&mut self) -> Result<End, OptimizerError> {
        loop {
            let begun = self.admit();
            self.note(begun);
            if self.failure.is_some() {
                self.fail().await?;
            }
            self.store().await?;
            if self.ground.engine.is_over(self.ground.session.state()) {
                return Ok(End::Over(self.failure.take()));
            }
            if self.lanes.could_begin() {
                self.take_ready()?;
                continue;
            }
            if let Some(end) = self.wait().await? {
                return Ok(end);
            }
        }
    }

    /// Waits until something comes, and takes all that has come.
    async fn wait(&mut self) -> Result<Option<End>, OptimizerError> {
        if self.lanes.is_idle() {
            let message = "nothing is under way and the run is not over".to_owned();
            return Err(OptimizerError::new(ErrorCode::Invariant, message));
        }
        let wakeup = self.ground.engine.next_wakeup(self.ground.session.state());
        let until = wakeup.map_or(Duration::from_secs(3600), |at| {
            Duration::from_millis(at.saturating_sub(self.elapsed_millis()).max(1))
        });
        tokio::select! {
            biased;
            Some(signal) = self.signals.recv() => return self.obey(signal).await,
            Some(finished) = self.finished.recv() => {
                self.settle(finished)?;
                self.gather().await?;
            }
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
        let Some(limit) = self.time_limit else { return Ok(()) };
        let elapsed_millis = self.elapsed_millis();
        let events = self.ground.session.observe(&Observation::Clock { elapsed_millis })?;
        self.log(events);
        if elapsed_millis >= limit {
            self.withdraw()?;
        }
        Ok(())
    }

    fn elapsed_millis(&self) -> u64 {
        self.ground.elapsed_before + self.began.elapsed().as_millis() as u64
    }

    fn withdraw(&mut self) -> Result<(), OptimizerError> {
        let lanes = &self.lanes;
        let events = self.ground.session.withdraw(|request| lanes.is_sent(request))?;
        self.log(events);
        Ok(())
    }

    /// Begins what waits and may begin. What the cache knows is settled at once.
    fn admit(&mut self) -> Result<(), OptimizerError> {
        if self.failure.is_some() {
            return Ok(());
        }
        let mut remembered = 0;
        while remembered < ROUND {
            let Some(id) = self.lanes.next_rollout(self.launches.len()) else { break };
            remembered += usize::from(self.begin_rollout(id)?);
        }
        // Evidence is read from what is stored, so a proposal begins when nothing waits to be stored.
        while self.batch_is_empty() {
            let Some(id) = self.lanes.next_proposal() else { break };
            self.begin_proposal(id)?;
        }
        Ok(())
    }

    /// Begins a rollout; tells whether the cache knew it.
    fn begin_rollout(&mut self, id: RequestId) -> Result<bool, OptimizerError> {
        let ground = &self.ground;
        let Some(Command::Rollout(command)) = ground.engine.command(ground.session.state(), id) else {
            return Ok(false);
        };
        let key = match self.ground.calls.cache.mode() {
            CacheMode::Off => None,
            CacheMode::Readwrite | CacheMode::Readonly => Some(self.rollout_key(&command)?),
        };
        if let Some(key) = &key {
            if self.lanes.park(key, id) {
                return Ok(false);
            }
            match self.ground.calls.remembered_rollout(&command, key)? {
                Remembered::Answer(finished) => {
                    self.settle(*finished)?;
                    return Ok(true);
                }
                Remembered::Nothing => {}
                Remembered::Damaged(event) => self.log(vec![event]),
            }
        }
        let rollout_id = Some(self.ground.calls.rollout_id(&command));
        self.mark_sent(id, CallKind::Rollout, rollout_id, key.clone());
        let resent = self.lanes.was_resent(id);
        self.launches.push(Launch::Rollout { command, key, resent });
        Ok(false)
    }

    fn begin_proposal(&mut self, id: RequestId) -> Result<(), OptimizerError> {
        let ground = &self.ground;
        let Some(Command::Propose(command)) = ground.engine.command(ground.session.state(), id) else {
            return Ok(());
        };
        let request = proposal_request(&command, &ground.calls.task, &ground.workspace)?;
        let key = match ground.calls.cache.mode() {
            CacheMode::Off => None,
            CacheMode::Readwrite | CacheMode::Readonly => Some(ground.calls.proposal_key(&request)),
        };
        if let Some(key) = &key {
            if self.lanes.park(key, id) {
                return Ok(());
            }
            match self.ground.calls.remembered_proposal(id, command.attempt, key)? {
                Remembered::Answer(finished) => return self.settle(*finished),
                Remembered::Nothing => {}
                Remembered::Damaged(event) => self.log(vec![event]),
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

    /// Takes an answer: into the log when it is its turn, into the inbox until then.
    fn settle(&mut self, finished: Finished) -> Result<(), OptimizerError> {
        let well = matches!(finished.answer, Answer::Rollout(_)) && finished.fatal.is_none();
        let adjusted = self.lanes.end(finished.request, finished.overload, well);
        let mut asides = finished.asides;
        asides.retain(|aside| !matches!(aside, Event::EchoMissing(_)) || !self.echo_was_missing);
        self.echo_was_missing |= asides.iter().any(|aside| matches!(aside, Event::EchoMissing(_)));
        asides.extend(adjusted.map(Event::ConcurrencyAdjusted));
        self.log(asides);
        if let Some(fatal) = finished.fatal {
            self.failure.get_or_insert(fatal);
            return Ok(());
        }
        let events = self.ground.session.offer(finished.request, finished.answer.clone())?;
        self.batch.answered.push(Answered {
            request: finished.request,
            kind: finished.kind,
            unix_millis: unix_millis(),
            answer: finished.answer,
            retired: true,
            cache: finished.cache,
            reply: finished.reply,
        });
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
                _ => {}
            }
            let sequence = self.ground.next_sequence;
            self.ground.next_sequence += 1;
            self.batch.events.push(Stored { sequence, unix_millis: unix_millis(), event });
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
        let ground = &mut self.ground;
        let state = ground.session.state();
        let engine = ground.engine;
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
        let events = batch.events.clone();
        self.commits += 1;
        ground.hooks.at(Boundary::BeforeCommit);
        ground.workspace.commit(batch).await?;
        ground.hooks.at(Boundary::AfterCommit);
        ground.feed.append(&events)?;
        ground.hooks.at(Boundary::AfterFeed);
        if self.live.receiver_count() > 0 {
            for stored in events {
                // Nobody listening any more is no error.
                let _ = self.live.send(Arc::new(stored));
            }
        }
        self.launch();
        const DISK_CHECKS: u64 = 64;
        if self.commits.is_multiple_of(DISK_CHECKS) {
            let within = (self.ground.watch_disk)();
            self.note(within);
        }
        Ok(())
    }

    fn launch(&mut self) {
        for launch in std::mem::take(&mut self.launches) {
            let (calls, back) = (Arc::clone(&self.ground.calls), self.back.clone());
            let (request, task) = match launch {
                Launch::Rollout { command, key, resent } => {
                    let request = command.request;
                    let call = calls.rollout(command, key, resent);
                    (request, tokio::spawn(async move { drop(back.send(call.await)) }))
                }
                Launch::Proposal { id, attempt, request, key } => {
                    let call = calls.propose(id, attempt, *request, key);
                    (id, tokio::spawn(async move { drop(back.send(call.await)) }))
                }
            };
            self.lanes.started(request, task.abort_handle());
        }
    }

    /// Remembers the first error that the run cannot go on with.
    fn note(&mut self, result: Result<(), OptimizerError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    /// What the run cannot go on without is gone: keep what comes within the grace, then end.
    async fn fail(&mut self) -> Result<(), OptimizerError> {
        let Some(error) = self.failure.clone() else { return Ok(()) };
        self.withhold();
        self.wind_down(self.cancel_grace).await?;
        let failure = Failure { code: error.code, message: error.message.clone() };
        let lanes = &self.lanes;
        let events = self.ground.session.fail(failure, |request| lanes.is_sent(request))?;
        self.log(events);
        Ok(())
    }

    /// Calls that were to be sent with the next commit are not sent.
    fn withhold(&mut self) {
        let unsent: BTreeSet<RequestId> = self.launches.drain(..).map(|launch| launch.request()).collect();
        self.batch.sent.retain(|sent| !unsent.contains(&sent.request));
        for request in unsent {
            self.lanes.end(request, None, false);
        }
    }

    async fn obey(&mut self, signal: Signal) -> Result<Option<End>, OptimizerError> {
        match signal {
            Signal::Stop { reason } => {
                let events = self.ground.session.observe(&Observation::StopRequested { reason })?;
                self.log(events);
                self.withdraw()?;
                Ok(None)
            }
            Signal::Cancel { reason } => {
                self.wind_down(self.cancel_grace).await?;
                let lanes = &self.lanes;
                let events = self.ground.session.cancel(&reason, |request| lanes.is_sent(request))?;
                self.log(events);
                Ok(None)
            }
            Signal::Interrupt { reason } => {
                self.wind_down(self.interrupt_grace).await?;
                self.log(vec![Event::RunInterrupted(Reason { reason })]);
                self.store().await?;
                let over = self.ground.engine.is_over(self.ground.session.state());
                Ok(Some(if over { End::Over(None) } else { End::Interrupted }))
            }
        }
    }

    /// Waits for the calls under way, but not longer than the grace or the next signal; then drops them.
    async fn wind_down(&mut self, grace: Duration) -> Result<(), OptimizerError> {
        let deadline = tokio::time::Instant::now() + grace;
        while !self.lanes.is_idle() {
            tokio::select! {
                biased;
                Some(_) = self.signals.recv() => break,
                Some(finished) = self.finished.recv() => self.settle(finished)?,
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        self.store_answers().await?;
        let dropped = self.lanes.abort();
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
        // A container that does not listen is not waited for.
        const TELLING: Duration = Duration::from_millis(500);
        let _ = tokio::time::timeout(TELLING, async { while telling.join_next().await.is_some() {} }).await;
        Ok(())
    }

    /// Stores what has come without sending anything more.
    async fn store_answers(&mut self) -> Result<(), OptimizerError> {
        self.withhold();
        self.store().await
    }
}

impl Launch {
    fn request(&self) -> RequestId {
        match self {
            Self::Rollout { command, .. } => command.request,
            Self::Proposal { id, .. } => *id,
        }
    }
}

pub(super) fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

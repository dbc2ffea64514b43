//! One call from request to answer: the cache first, then the container or the proposer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tracing::{Instrument, Span, debug, error_span, info, warn};

use super::fence::Fence;
use crate::cache::{Cache, Lookup};
use crate::container::{
    Asked, Echo, Received, Record, Reply, RolloutCall, Task, TaskRow, Transport, policy_value, read_reply, rollout_body,
};
use crate::proposer::{Evidence, ProposalRequest, Proposer, TurnFailure, TurnId};
use crate::workspace::{CacheAction, CacheUse, Reader};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{Direction, objective_names};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, Proposal, ProposalAnswer, RolloutAnswer};
use synth_optimizer_core::model::cache_key::{Boundary, RolloutRequest, cache_key};
use synth_optimizer_core::model::canonical::{digest, digest_bytes, digest_of};
use synth_optimizer_core::model::command::{EvidenceRow, ProposeCommand, RolloutCommand};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CacheDamaged, Reason};
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::{RequestId, RolloutIdentity};

/// A proposer keeps its own deadline, ends what it has to, and then has this long to say what it has used.
const AFTER_DEADLINE: Duration = Duration::from_secs(10);

/// Parts of a reply that tell when and under which name it ran, and nothing about the task.
const VOLATILE: &[&str] = &["rollout_id", "trace_correlation_id", "created_at", "updated_at"];

/// A call that may begin.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) request: RequestId,
    pub(super) attempt: u32,
    pub(super) asks: Asks,
    /// Its key in the cache, where one is used.
    pub(super) key: Option<String>,
    /// Whether it may have been sent before, by an earlier process.
    pub(super) sent_before: bool,
    /// What the container knows a rollout by.
    pub(super) rollout_id: Option<String>,
}

/// What a call asks for.
#[derive(Debug)]
pub(super) enum Asks {
    Rollout(RolloutCommand),
    Proposal(Box<ProposalRequest>),
}

impl Call {
    pub(super) fn kind(&self) -> CallKind {
        match &self.asks {
            Asks::Rollout(_) => CallKind::Rollout,
            Asks::Proposal(_) => CallKind::Proposer,
        }
    }

    fn boundary(&self) -> Boundary {
        match &self.asks {
            Asks::Rollout(_) => Boundary::Rollout,
            Asks::Proposal(_) => Boundary::Proposer,
        }
    }

    fn shown(&self) -> String {
        match &self.asks {
            Asks::Rollout(command) => format!("the rollout of {} on row {}", command.candidate_id, command.row_id),
            Asks::Proposal(_) => "the proposer turn".to_owned(),
        }
    }

    /// The span of everything that is logged of the call.
    fn span(&self) -> Span {
        let (call, attempt) = (self.request.0, self.attempt);
        match &self.asks {
            Asks::Rollout(command) => {
                let (candidate, stage) = (command.candidate_id.as_str(), command.stage.word());
                let evaluation = error_span!("evaluation", evaluation = command.evaluation.0, candidate, stage);
                let (rollout_id, row) = (self.rollout_id.as_deref(), command.row_id.as_str());
                evaluation.in_scope(|| error_span!("call", call, rollout_id, row, attempt))
            }
            Asks::Proposal(request) => {
                let parent = request.question.parents.first().map_or("", |parent| parent.candidate_id.as_str());
                error_span!("turn", call, attempt, generation = request.question.generation, parent)
            }
        }
    }
}

/// What came of a call.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) request: RequestId,
    pub(super) kind: CallKind,
    pub(super) answer: Answer,
    pub(super) cache: Option<CacheUse>,
    pub(super) reply: Option<Bytes>,
    /// HTTP status of an overload that was met on the way.
    pub(super) overload: Option<u16>,
    pub(super) asides: Vec<Event>,
    /// Something that the run cannot go on without.
    pub(super) fatal: Option<OptimizerError>,
}

impl Finished {
    pub(super) fn new(request: RequestId, kind: CallKind, answer: Answer) -> Self {
        Self { request, kind, answer, cache: None, reply: None, overload: None, asides: Vec::new(), fatal: None }
    }

    /// Whether a rollout met a container that did not listen or went away.
    pub(super) fn found_nobody(&self) -> bool {
        let classes = [FailureClass::NotSent, FailureClass::UnknownOutcome];
        self.kind == CallKind::Rollout
            && matches!(&self.answer, Answer::Failed(failure) if classes.contains(&failure.class) && !failure.cached)
    }

    fn log(&self, began: Instant) {
        let duration_ms = began.elapsed().as_millis() as u64;
        let bytes = self.reply.as_ref().map_or(0, |reply| reply.len());
        match &self.answer {
            Answer::Rollout(answer) => debug!(duration_ms, bytes, reward = answer.reward, "rollout answered"),
            Answer::Proposal(answer) => {
                debug!(duration_ms, bytes, proposals = answer.proposals.len(), "proposer answered");
            }
            Answer::Failed(failure) => {
                let (class, retryable) = (failure.class.word(), failure.retryable);
                // The views of a run tell how many fail, so that a broken container does not flood them.
                info!(duration_ms, class, retryable, cause = failure.message, "call failed");
            }
            Answer::Abandoned { sent } => debug!(duration_ms, sent, "call abandoned"),
        }
        if let Some(error) = &self.fatal {
            warn!(duration_ms, %error, "call ends the run");
        }
    }
}

/// What the cache had to say.
pub(super) enum Remembered {
    Answer(Box<Finished>),
    Nothing,
    /// A damaged row; the call is made again.
    Damaged(CacheDamaged),
}

/// Everything that calls need. Shared by all of them.
#[derive(Debug)]
pub(super) struct Calls {
    run_id: String,
    task: Task,
    policy: Value,
    policy_digest: String,
    deciding: String,
    /// Whether more or less of the deciding objective is better.
    direction: Direction,
    pub(super) cache: Cache,
    /// None when nothing may be called.
    pub(super) transport: Option<Transport>,
    pub(super) proposer: Arc<dyn Proposer>,
    fence: Fence,
    proposer_timeout: Duration,
    /// How long a turn may take to end after its deadline.
    proposer_patience: Duration,
}

impl Calls {
    pub(super) fn new(
        config: &Config,
        run_id: &str,
        task: Task,
        cache: Cache,
        transport: Option<Transport>,
        proposer: Arc<dyn Proposer>,
        fence: Fence,
    ) -> Self {
        let policy = policy_value(&config.policy);
        let deciding = objective_names(&config.gepa).into_iter().next().unwrap_or_default();
        Self {
            run_id: run_id.to_owned(),
            task,
            policy_digest: digest(&policy),
            policy,
            direction: config.gepa.objective_directions.get(&deciding).copied().unwrap_or(Direction::Maximize),
            deciding,
            cache,
            transport,
            proposer,
            fence,
            proposer_timeout: Duration::from_secs(config.proposer.timeout_seconds),
            proposer_patience: Duration::from_secs(config.proposer.interrupt_timeout_seconds) + AFTER_DEADLINE,
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.transport.is_some()
    }

    pub(super) fn rollout_id(&self, command: &RolloutCommand) -> String {
        RolloutIdentity {
            run_id: &self.run_id,
            candidate: &command.candidate_id,
            row: &command.row_id,
            stage: command.stage.word(),
            replicate: command.replicate,
            attempt: command.attempt,
        }
        .rollout_id()
    }

    fn row(&self, command: &RolloutCommand) -> Result<&Arc<TaskRow>, OptimizerError> {
        self.task.rows.get(&command.row_id).ok_or_else(|| {
            OptimizerError::new(ErrorCode::Invariant, format!("row {} was asked for and never loaded", command.row_id))
        })
    }

    /// The cache key of a rollout. `candidate` is the digest of its texts.
    pub(super) fn rollout_key(&self, command: &RolloutCommand, candidate: &str) -> Result<String, OptimizerError> {
        let request = RolloutRequest {
            task_id: &self.task.family,
            program: &self.task.program_digest,
            candidate,
            row: &self.row(command)?.digest,
            policy: &self.policy_digest,
            replicate: command.replicate,
        };
        Ok(cache_key(self.cache.namespace(), Boundary::Rollout, &request.request()))
    }

    pub(super) fn proposal_key(&self, request: &ProposalRequest) -> String {
        let request = json!({ "proposer": self.proposer.identity(), "request": digest_of(request) });
        cache_key(self.cache.namespace(), Boundary::Proposer, &request)
    }

    /// Everything that a proposer is told: the command of the engine with the rows and replies that it points to. The
    /// rollouts of its evidence must be committed.
    pub(super) fn proposal(&self, command: ProposeCommand, stored: &Reader) -> Result<ProposalRequest, OptimizerError> {
        let parent = command.question.parents.first();
        let evidence = |shown: EvidenceRow, stored: &Reader| {
            let rollout = match parent {
                Some(parent) => stored.evidence(&parent.candidate_id, &shown.row_id, command.request)?,
                None => None,
            };
            let reply = match rollout {
                Some(rollout) => stored.reply(rollout)?.map(|bytes| stored_reply(&bytes)).transpose()?,
                None => None,
            };
            let row = self.task.rows.get(&shown.row_id).map_or(Value::Null, |row| row.value.clone());
            Ok(Evidence { row_id: shown.row_id, row, score: shown.score, reply })
        };
        Ok(ProposalRequest {
            program: self.task.program.clone(),
            task_info: self.task.task_info.as_ref().ok().cloned(),
            direction: self.direction,
            evidence: stored
                .at_once(|stored| command.evidence.into_iter().map(|shown| evidence(shown, stored)).collect())?,
            refused: match command.repairs {
                Some(answered) => refused(stored, answered)?,
                None => Vec::new(),
            },
            question: command.question,
        })
    }

    /// The answer of a call from the cache.
    pub(super) fn remembered(&self, call: &Call, key: &str) -> Result<Remembered, OptimizerError> {
        let (boundary, is_readonly) = (call.boundary(), self.cache.mode() == CacheMode::Readonly);
        let hit = |answer: Answer, reply: Option<Bytes>| {
            let cache = Some(CacheUse { key: key.to_owned(), action: CacheAction::Hit });
            Remembered::Answer(Box::new(Finished { cache, reply, ..Finished::new(call.request, call.kind(), answer) }))
        };
        let found = self.cache.get(boundary, key)?;
        // A replay meets the failures of the run that it replays. Where no later attempt was answered, a run that may
        // call asks again instead.
        if (is_readonly || matches!(found, Lookup::Hit(_)))
            && let Lookup::Hit(bytes) = self.cache.get_failure(boundary, key, call.attempt)?
        {
            let failure = serde_json::from_slice::<CallFailure>(&bytes)
                .map_err(|error| OptimizerError::from_cause(ErrorCode::CacheCorrupt, call.shown(), error))?;
            return Ok(hit(Answer::Failed(CallFailure { cached: true, ..failure }), None));
        }
        let bytes = match found {
            Lookup::Hit(bytes) => bytes,
            Lookup::Miss if is_readonly => return Err(self.cache.miss_error(boundary, key, &call.shown())),
            Lookup::Miss => return Ok(Remembered::Nothing),
            Lookup::Damaged => {
                let (boundary, key) = (boundary.word().to_owned(), key.to_owned());
                return Ok(Remembered::Damaged(CacheDamaged { boundary, key }));
            }
        };
        // What reached the cache and not the log was paid for by an earlier process of this run.
        let cached = !call.sent_before;
        let (answer, bytes) = match &call.asks {
            Asks::Rollout(command) => {
                let Received { body, record } = Received::read(bytes);
                let trace_digest = || Some(digest_bytes(&body));
                let read = self.read(command, None, record)?.map(|reply| reply.answer);
                let read = read
                    .map(|answer| Answer::Rollout(RolloutAnswer { cached, trace_digest: trace_digest(), ..answer }));
                (read.map_err(|failure| failure.message), body)
            }
            Asks::Proposal(_) => {
                let read = serde_json::from_slice::<ProposalAnswer>(&bytes);
                let read = read.map(|answer| Answer::Proposal(ProposalAnswer { cached, ..answer }));
                (read.map_err(|error| error.to_string()), bytes)
            }
        };
        match answer {
            Ok(answer) => Ok(hit(answer, Some(bytes))),
            // It was readable when it was stored, by another release.
            Err(cause) if self.is_live() => {
                warn!(boundary = boundary.word(), key, cause, "a cached answer cannot be read: it is asked for again");
                Ok(Remembered::Nothing)
            }
            Err(cause) => {
                let message = format!("the cached answer {key} of {} cannot be read: {cause}", boundary.word());
                Err(OptimizerError::new(ErrorCode::CacheCorrupt, message))
            }
        }
    }

    fn read(
        &self,
        command: &RolloutCommand,
        rollout_id: Option<&str>,
        record: Result<Box<Record>, CallFailure>,
    ) -> Result<Result<Reply, CallFailure>, OptimizerError> {
        let row = self.row(command)?;
        let asked =
            Asked { rollout_id, row, row_id: &command.row_id, payload: &command.payload, deciding: &self.deciding };
        Ok(record.and_then(|record| read_reply(record, &asked)))
    }

    /// Sends a call that is stored as sent; what comes of it goes `back`.
    pub(super) fn spawn(self: Arc<Self>, call: Call, back: UnboundedSender<Finished>) -> AbortHandle {
        let (span, began) = (call.span(), Instant::now());
        let guard = Guard { request: call.request, kind: call.kind(), back };
        let made = async move {
            match &call.asks {
                Asks::Rollout(_) => debug!(sent_before = call.sent_before, "rollout sent"),
                Asks::Proposal(request) => {
                    let (proposals, evidence) = (request.question.proposal_count, request.evidence.len());
                    debug!(proposals, evidence, "proposer asked");
                }
            }
            let finished = self.make(call).await;
            finished.log(began);
            guard.report(finished);
        };
        tokio::spawn(made.instrument(span)).abort_handle()
    }

    async fn make(&self, call: Call) -> Finished {
        let mut finished = Finished::new(call.request, call.kind(), Answer::Abandoned { sent: true });
        finished.cache = call.key.as_ref().map(|key| CacheUse { key: key.clone(), action: CacheAction::Miss });
        let (boundary, attempt) = (call.boundary(), call.attempt);
        let made = match call.asks {
            Asks::Rollout(command) => {
                let rollout_id = call.rollout_id.unwrap_or_default();
                self.call_container(&command, &rollout_id, call.sent_before, &mut finished).await
            }
            Asks::Proposal(request) => {
                self.ask_proposer(TurnId { request: call.request, attempt }, *request, &mut finished).await
            }
        };
        finished.fatal = made.err();
        if let Some(key) = &call.key
            && let Err(error) = self.remember(boundary, key, attempt, &mut finished)
        {
            finished.fatal.get_or_insert(error);
        }
        finished
    }

    /// Runs a rollout in the container. `sent_before` tells that it may have been sent before a crash.
    async fn call_container(
        &self,
        command: &RolloutCommand,
        rollout_id: &str,
        sent_before: bool,
        finished: &mut Finished,
    ) -> Result<(), OptimizerError> {
        let Some(transport) = &self.transport else { return Ok(()) };
        let row = self.row(command)?;
        let body = |mode| rollout_body(&self.task, &self.policy, command, row, rollout_id, mode);
        let call = RolloutCall { rollout_id, body: &body, may_have_been_sent: sent_before };
        let end = transport.rollout(call).await;
        finished.overload = end.overload;
        finished.asides.extend(end.fallback.map(Event::TransportFallback));
        if let Some(fatal) = end.fatal {
            return Err(fatal);
        }
        let Received { body, record } = match end.outcome {
            Ok(received) => received,
            Err(failure) => {
                finished.answer = Answer::Failed(failure);
                return Ok(());
            }
        };
        match self.read(command, Some(rollout_id), record)? {
            Ok(Reply { mut answer, echo }) => {
                match echo {
                    Echo::Confirmed => {}
                    Echo::Absent => finished
                        .asides
                        .push(Event::EchoMissing(Reason { reason: "the reply names neither seed nor example".into() })),
                    Echo::Contradicted(how) => return Err(wrong_row(command, &how)),
                }
                answer.trace_digest = Some(digest_bytes(&body));
                finished.answer = Answer::Rollout(answer);
            }
            Err(failure) => finished.answer = Answer::Failed(failure),
        }
        finished.reply = Some(body);
        Ok(())
    }

    async fn ask_proposer(
        &self,
        turn: TurnId,
        request: ProposalRequest,
        finished: &mut Finished,
    ) -> Result<(), OptimizerError> {
        let patience = self.proposer_timeout.saturating_add(self.proposer_patience);
        match tokio::time::timeout(patience, self.proposer.propose(turn, request)).await {
            Ok(Ok(answer)) => {
                match serde_json::to_vec(&answer) {
                    Ok(bytes) => finished.reply = Some(bytes.into()),
                    Err(error) => warn!(%error, "the answer of a turn cannot be stored: it is not cached"),
                }
                finished.answer = Answer::Proposal(answer);
                Ok(())
            }
            Ok(Err(TurnFailure { failure, fatal })) => {
                finished.answer = Answer::Failed(failure);
                fatal.map_or(Ok(()), Err)
            }
            Err(_elapsed) => {
                let message = format!("the proposer did not answer within {} s", self.proposer_timeout.as_secs());
                let failure = CallFailure::new(FailureClass::Timeout, message);
                finished.answer = Answer::Failed(CallFailure { retryable: true, ..failure });
                Ok(())
            }
        }
    }

    /// Puts an answer into the cache: a result for everyone, a failure for replays. Nothing of a run that is not this
    /// process's any more.
    fn remember(
        &self,
        boundary: Boundary,
        key: &str,
        attempt: u32,
        finished: &mut Finished,
    ) -> Result<(), OptimizerError> {
        self.fence.check()?;
        match &finished.answer {
            Answer::Rollout(_) | Answer::Proposal(_) => {
                let Some(reply) = &finished.reply else { return Ok(()) };
                self.cache.put(boundary, key, reply.clone())?;
                self.cache.forget_failure(boundary, key, attempt)?;
                finished.cache = Some(CacheUse { key: key.to_owned(), action: CacheAction::Write });
                Ok(())
            }
            Answer::Failed(failure)
                if finished.fatal.is_none()
                    && !matches!(failure.class, FailureClass::Abandoned | FailureClass::Withdrawn) =>
            {
                let bytes = serde_json::to_vec(failure)
                    .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "failure", error))?;
                self.cache.put_failure(boundary, key, attempt, bytes.into())
            }
            // What only tells that this run ended, or had to, is nothing that another run would meet.
            Answer::Failed(_) | Answer::Abandoned { .. } => Ok(()),
        }
    }
}

/// What the answer before proposed.
fn refused(stored: &Reader, answered: RequestId) -> Result<Vec<Proposal>, OptimizerError> {
    let Some(bytes) = stored.reply(answered)? else { return Ok(Vec::new()) };
    let answer: ProposalAnswer = serde_json::from_slice(&bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "a stored answer is not JSON", error))?;
    Ok(answer.proposals)
}

fn stored_reply(bytes: &[u8]) -> Result<Value, OptimizerError> {
    let mut reply: Value = serde_json::from_slice(bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "a stored reply is not JSON", error))?;
    if let Some(fields) = reply.as_object_mut() {
        fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
    }
    Ok(reply)
}

fn wrong_row(command: &RolloutCommand, how: &str) -> OptimizerError {
    OptimizerError::new(
        ErrorCode::Container,
        format!("the container did not run what it was asked: row {}, {how}", command.row_id),
    )
    .with_hint("The container must take its row from the keys that its advertised routes stand for: `task`, `dataset_row`, or both.")
}

/// Sees to it that a call that panics is noticed instead of waited for.
struct Guard {
    request: RequestId,
    kind: CallKind,
    back: UnboundedSender<Finished>,
}

impl Guard {
    fn report(&self, finished: Finished) {
        // Nobody waits any more when the run is over.
        let _ = self.back.send(finished);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = format!("the call of request {} broke off", self.request.0);
            let mut finished = Finished::new(self.request, self.kind, Answer::Abandoned { sent: true });
            finished.fatal = Some(OptimizerError::new(ErrorCode::Invariant, message));
            self.report(finished);
        }
    }
}

//! One call from request to answer: the cache first, then the container or the proposer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tracing::warn;

use super::fence::Fence;
use crate::cache::{Cache, Lookup};
use crate::container::{
    Asked, Echo, Received, Record, Reply, Task, TaskRow, Transport, policy_value, read_reply, rollout_body,
};
use crate::proposer::{ProposalRequest, Proposer, TurnFailure, TurnId};
use crate::workspace::{CacheAction, CacheUse};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{Direction, objective_names};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, ProposalAnswer};
use synth_optimizer_core::model::cache_key::{Boundary, RolloutRequest, cache_key};
use synth_optimizer_core::model::canonical::{digest_bytes, digest_of};
use synth_optimizer_core::model::command::RolloutCommand;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{CacheDamaged, Reason};
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::{RequestId, RolloutIdentity};
use synth_optimizer_core::model::usage::Usage;

/// A proposer keeps its own deadline, ends what it has to, and then has this long to say what it has used.
const AFTER_DEADLINE: Duration = Duration::from_secs(10);

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
}

impl Finished {
    /// Whether a rollout met a container that did not listen or went away.
    pub(super) fn found_nobody(&self) -> bool {
        let classes = [FailureClass::NotSent, FailureClass::UnknownOutcome];
        self.kind == CallKind::Rollout
            && matches!(&self.answer, Answer::Failed(failure) if classes.contains(&failure.class) && !failure.cached)
    }
}

/// What the cache had to say.
pub(super) enum Remembered {
    Answer(Box<Finished>),
    Nothing,
    /// A damaged row; the call is made again.
    Damaged(Box<Event>),
}

/// Everything that calls need. Shared by all of them.
#[derive(Debug)]
pub(super) struct Calls {
    run_id: String,
    pub(super) task: Task,
    policy: Value,
    policy_digest: String,
    deciding: String,
    /// Whether more or less of the deciding objective is better.
    pub(super) direction: Direction,
    pub(super) cache: Cache,
    /// None when nothing may be called.
    transport: Option<Transport>,
    proposer: Arc<dyn Proposer>,
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
            policy_digest: digest_of(&policy),
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

    pub(super) fn proposer(&self) -> &dyn Proposer {
        &*self.proposer
    }

    pub(super) fn is_live(&self) -> bool {
        self.transport.is_some()
    }

    pub(super) fn transport(&self) -> Option<&Transport> {
        self.transport.as_ref()
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
        Ok(cache_key(self.cache.namespace(), Boundary::Rollout, &request))
    }

    pub(super) fn proposal_key(&self, request: &ProposalRequest) -> String {
        let request = json!({ "proposer": self.proposer.identity(), "request": digest_of(request) });
        cache_key(self.cache.namespace(), Boundary::Proposer, &request)
    }

    /// A rollout's answer from the cache.
    pub(super) fn remembered_rollout(&self, command: &RolloutCommand, key: &str) -> Result<Remembered, OptimizerError> {
        let what = || format!("the rollout of {} on row {}", command.candidate_id, command.row_id);
        match self.remembered(Boundary::Rollout, key, command.attempt, &what)? {
            Memory::Failure(failure) => Ok(hit(command.request, CallKind::Rollout, key, Answer::Failed(failure), None)),
            Memory::Nothing => Ok(Remembered::Nothing),
            Memory::Damaged(event) => Ok(Remembered::Damaged(event)),
            Memory::Reply(bytes) => {
                let Received { body: bytes, record } = Received::read(bytes);
                let read = self.read(command, None, record)?;
                let Reply { mut answer, .. } = match read {
                    Ok(reply) => reply,
                    Err(failure) => return self.unreadable(Boundary::Rollout, key, &failure.message),
                };
                answer.cached = true;
                answer.trace_digest = Some(digest_bytes(&bytes));
                Ok(hit(command.request, CallKind::Rollout, key, Answer::Rollout(answer), Some(bytes)))
            }
        }
    }

    /// A proposer turn's answer from the cache.
    pub(super) fn remembered_proposal(
        &self,
        request: RequestId,
        attempt: u32,
        key: &str,
    ) -> Result<Remembered, OptimizerError> {
        let what = || "the proposer turn".to_owned();
        match self.remembered(Boundary::Proposer, key, attempt, &what)? {
            Memory::Failure(failure) => Ok(hit(request, CallKind::Proposer, key, Answer::Failed(failure), None)),
            Memory::Nothing => Ok(Remembered::Nothing),
            Memory::Damaged(event) => Ok(Remembered::Damaged(event)),
            Memory::Reply(bytes) => match serde_json::from_slice::<ProposalAnswer>(&bytes) {
                Ok(answer) => {
                    let answer = Answer::Proposal(ProposalAnswer { cached: true, ..answer });
                    Ok(hit(request, CallKind::Proposer, key, answer, Some(bytes)))
                }
                Err(error) => self.unreadable(Boundary::Proposer, key, &error.to_string()),
            },
        }
    }

    /// An answer that was readable when it was stored, by another release.
    fn unreadable(&self, boundary: Boundary, key: &str, cause: &str) -> Result<Remembered, OptimizerError> {
        if self.is_live() {
            warn!(boundary = boundary.word(), key, cause, "a cached answer cannot be read: it is asked for again");
            return Ok(Remembered::Nothing);
        }
        let message = format!("the cached answer {key} of {} cannot be read: {cause}", boundary.word());
        Err(OptimizerError::new(ErrorCode::CacheCorrupt, message))
    }

    fn remembered(
        &self,
        boundary: Boundary,
        key: &str,
        attempt: u32,
        what: &dyn Fn() -> String,
    ) -> Result<Memory, OptimizerError> {
        let readonly = match self.cache.mode() {
            CacheMode::Off => return Ok(Memory::Nothing),
            CacheMode::Readwrite => false,
            CacheMode::Readonly => true,
        };
        let found = self.cache.get(boundary, key)?;
        // A replay meets the failures of the run that it replays. Where no later attempt was answered, a run that may
        // call asks again instead.
        if (readonly || matches!(found, Lookup::Hit(_)))
            && let Lookup::Hit(bytes) = self.cache.get_failure(boundary, key, attempt)?
        {
            let failure = serde_json::from_slice::<CallFailure>(&bytes)
                .map_err(|error| OptimizerError::from_cause(ErrorCode::CacheCorrupt, what(), error))?;
            return Ok(Memory::Failure(CallFailure { cached: true, ..failure }));
        }
        match found {
            Lookup::Hit(bytes) => Ok(Memory::Reply(bytes)),
            Lookup::Miss if readonly => Err(self.cache.miss_error(boundary, key, &what())),
            Lookup::Miss => Ok(Memory::Nothing),
            Lookup::Damaged => Ok(Memory::Damaged(Box::new(Event::CacheDamaged(CacheDamaged {
                boundary: boundary.word().to_owned(),
                key: key.to_owned(),
            })))),
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

    /// Runs a rollout in the container. `sent_before` tells that it may have been sent before a crash.
    pub(super) async fn rollout(
        self: Arc<Self>,
        command: RolloutCommand,
        rollout_id: &str,
        key: Option<String>,
        sent_before: bool,
    ) -> Finished {
        let mut finished = Finished::new(command.request, CallKind::Rollout, Answer::Abandoned { sent: true });
        finished.cache = key.as_ref().map(|key| CacheUse { key: key.clone(), action: CacheAction::Miss });
        if let Err(error) = self.call_container(&command, rollout_id, sent_before, &mut finished).await {
            finished.fatal = Some(error);
        }
        if let Some(key) = &key
            && let Err(error) = self.remember(Boundary::Rollout, key, command.attempt, &mut finished)
        {
            finished.fatal.get_or_insert(error);
        }
        finished
    }

    async fn call_container(
        self: &Arc<Self>,
        command: &RolloutCommand,
        rollout_id: &str,
        sent_before: bool,
        finished: &mut Finished,
    ) -> Result<(), OptimizerError> {
        let Some(transport) = &self.transport else { return Ok(()) };
        let row = self.row(command)?;
        let body = |mode| rollout_body(&self.task, &self.policy, command, row, rollout_id, mode);
        let end = transport.rollout(rollout_id, &body, sent_before).await;
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

    /// Asks the proposer.
    pub(super) async fn propose(
        self: Arc<Self>,
        id: RequestId,
        attempt: u32,
        request: ProposalRequest,
        key: Option<String>,
    ) -> Finished {
        let turn = self.proposer.propose(TurnId { request: id, attempt }, request);
        let mut fatal = None;
        let answer =
            match tokio::time::timeout(self.proposer_timeout.saturating_add(self.proposer_patience), turn).await {
                Ok(Ok(answer)) => Answer::Proposal(answer),
                Ok(Err(TurnFailure { failure, fatal: cause })) => {
                    fatal = cause;
                    Answer::Failed(failure)
                }
                Err(_elapsed) => Answer::Failed(CallFailure {
                    class: FailureClass::Timeout,
                    message: format!("the proposer did not answer within {} s", self.proposer_timeout.as_secs()),
                    retryable: true,
                    usage: Usage::default(),
                    cached: false,
                    models: None,
                }),
            };
        let reply = match &answer {
            Answer::Proposal(answer) => match serde_json::to_vec(answer) {
                Ok(bytes) => Some(Bytes::from(bytes)),
                Err(error) => {
                    warn!(%error, "the answer of a turn cannot be stored: it is not cached");
                    None
                }
            },
            Answer::Rollout(_) | Answer::Failed(_) | Answer::Abandoned { .. } => None,
        };
        let mut finished = Finished { reply, fatal, ..Finished::new(id, CallKind::Proposer, answer) };
        finished.cache = key.as_ref().map(|key| CacheUse { key: key.clone(), action: CacheAction::Miss });
        if let Some(key) = &key
            && let Err(error) = self.remember(Boundary::Proposer, key, attempt, &mut finished)
        {
            finished.fatal.get_or_insert(error);
        }
        finished
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
            // What only tells that this run ended, or had to, is nothing that another run would meet.
            Answer::Failed(failure)
                if finished.fatal.is_some()
                    || matches!(failure.class, FailureClass::Abandoned | FailureClass::Withdrawn) =>
            {
                Ok(())
            }
            Answer::Failed(failure) => match serde_json::to_vec(failure) {
                Ok(bytes) => self.cache.put_failure(boundary, key, attempt, bytes.into()),
                Err(error) => Err(OptimizerError::from_cause(ErrorCode::Json, "failure", error)),
            },
            Answer::Abandoned { .. } => Ok(()),
        }
    }
}

enum Memory {
    Reply(Bytes),
    Failure(CallFailure),
    Nothing,
    Damaged(Box<Event>),
}

fn hit(request: RequestId, kind: CallKind, key: &str, answer: Answer, reply: Option<Bytes>) -> Remembered {
    let cache = Some(CacheUse { key: key.to_owned(), action: CacheAction::Hit });
    Remembered::Answer(Box::new(Finished { cache, reply, ..Finished::new(request, kind, answer) }))
}

fn wrong_row(command: &RolloutCommand, how: &str) -> OptimizerError {
    OptimizerError::new(
        ErrorCode::Container,
        format!("the container did not run what it was asked: row {}, {how}", command.row_id),
    )
    .with_hint("The container must take its row from the keys that its advertised routes stand for: `task`, `dataset_row`, or both.")
}

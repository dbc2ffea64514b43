//! One outbound call from command to answer: the cache first, then the container or the proposer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tracing::{Instrument, Span, debug, error_span, info, warn};

use super::ownership::Ownership;
use crate::artifacts::RunPaths;
use crate::cache::{Cache, Lookup};
use crate::container::{
    ExpectedRollout, IdentityCheck, ReceivedRecord, RolloutRecord, RolloutReply, Sending, Task, TaskRow, Transport,
    policy_value, read_reply, rollout_body,
};
use crate::container_log::{CONTAINER_LOG_FILE, last_exception};
use crate::digest::sha256;
use crate::json_text;
use crate::outage::Outage;
use crate::proposer::{Evidence, ProposalRequest, Proposer, TurnFailure, TurnId};
use crate::reply::Reply;
use crate::rollout_trace::shown_fields;
use crate::workspace::{CacheAction, CacheUse, Reader};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{Direction, objective_direction, objective_names};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass, Proposal, ProposalAnswer, RolloutAnswer};
use synth_optimizer_core::model::cache_key::{CacheBoundary, RolloutRequest, cache_key};
use synth_optimizer_core::model::canonical::{canonical_digest, hex};
use synth_optimizer_core::model::command::{EvidenceRow, ProposeCommand, RolloutCommand};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{CacheDamaged, Reason, ReplyAltered};
use synth_optimizer_core::model::ids::{CallId, CandidateId, RolloutIdentity, RolloutScope};

/// How long a proposer may take to report its usage, after its own deadline and the interrupt timeout.
const USAGE_REPORT_GRACE: Duration = Duration::from_secs(10);

/// A call that may start.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) call_id: CallId,
    pub(super) attempt: u32,
    pub(super) payload: CallPayload,
    /// Its cache key, if the cache is on.
    pub(super) key: Option<String>,
    /// Whether the call was sent before.
    pub(super) sending: Sending,
    /// The id under which the container knows the rollout.
    pub(super) rollout_id: Option<String>,
}

/// What a call requests.
#[derive(Debug)]
pub(super) enum CallPayload {
    Rollout(RolloutCommand),
    Proposal(Box<ProposalRequest>),
}

impl Call {
    pub(super) fn kind(&self) -> CallKind {
        match &self.payload {
            CallPayload::Rollout(_) => CallKind::Rollout,
            CallPayload::Proposal(_) => CallKind::Proposer,
        }
    }

    fn boundary(&self) -> CacheBoundary {
        match &self.payload {
            CallPayload::Rollout(_) => CacheBoundary::Rollout,
            CallPayload::Proposal(_) => CacheBoundary::Proposer,
        }
    }

    fn shown(&self) -> String {
        match &self.payload {
            CallPayload::Rollout(command) => {
                format!("the rollout of {} on row {}", command.candidate_id, command.row_id)
            }
            CallPayload::Proposal(_) => "the proposer turn".to_owned(),
        }
    }

    /// Returns the tracing span of the call.
    fn span(&self) -> Span {
        let (call, attempt) = (self.call_id.0, self.attempt);
        match &self.payload {
            CallPayload::Rollout(command) => {
                let (candidate, stage) = (command.candidate_id.as_str(), command.stage.as_str());
                let evaluation = error_span!("evaluation", evaluation = command.evaluation.0, candidate, stage);
                let (rollout_id, row) = (self.rollout_id.as_deref(), command.row_id.as_str());
                evaluation.in_scope(|| error_span!("call", call, rollout_id, row, attempt))
            }
            CallPayload::Proposal(request) => {
                let parent = request.question.parents.first().map_or("", |parent| parent.candidate_id.as_str());
                error_span!("turn", call, attempt, generation = request.question.generation, parent)
            }
        }
    }
}

/// A call that has completed, with its answer.
#[derive(Debug)]
pub(super) struct CompletedCall {
    pub(super) call_id: CallId,
    pub(super) kind: CallKind,
    pub(super) answer: Answer,
    pub(super) cache: Option<CacheUse>,
    pub(super) reply: Option<Reply>,
    /// HTTP status of an overload that the call met, even if it succeeded later.
    pub(super) overload: Option<u16>,
    pub(super) asides: Vec<Event>,
    /// Set if the container or the proposer is unavailable: the call is sent again later.
    pub(super) outage: Option<Outage>,
    /// Whether the call was sent before and its outcome cannot be determined. It was not sent again.
    pub(super) is_lost: bool,
    /// An error that prevents the run from continuing.
    pub(super) fatal: Option<OptimizerError>,
}

impl CompletedCall {
    pub(super) fn new(call_id: CallId, kind: CallKind, answer: Answer) -> Self {
        Self {
            call_id,
            kind,
            answer,
            cache: None,
            reply: None,
            overload: None,
            asides: Vec::new(),
            outage: None,
            is_lost: false,
            fatal: None,
        }
    }

    /// Returns whether a rollout failed because the container was not listening or closed the connection.
    pub(super) fn container_was_unreachable(&self) -> bool {
        let classes = [FailureClass::NotSent, FailureClass::UnknownOutcome];
        self.kind == CallKind::Rollout
            && matches!(&self.answer, Answer::Failed(failure) if classes.contains(&failure.class) && !failure.cached)
    }

    /// Returns whether the container or the proposer answered, so that it is available.
    pub(super) fn is_answer(&self) -> bool {
        match &self.answer {
            Answer::Rollout(answer) => !answer.cached,
            Answer::Proposal(answer) => !answer.cached,
            Answer::Failed(failure) => !failure.cached && failure.class.was_answered(),
            Answer::Abandoned { .. } => false,
        }
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
                let (class, retryable) = (failure.class.as_str(), failure.retryable);
                // The level is `info` because the views of a run count failures: a broken container does not flood them.
                info!(duration_ms, class, retryable, cause = failure.message, "call failed");
            }
            Answer::Abandoned { sent } => debug!(duration_ms, sent, "call abandoned"),
        }
        if let Some(error) = &self.fatal {
            warn!(duration_ms, %error, "call ends the run");
        }
    }
}

/// The answer of the cache to a call.
pub(super) enum CacheAnswer {
    Hit(Box<CompletedCall>),
    Miss,
    /// The cached row is damaged. The call is sent.
    Damaged(CacheDamaged),
}

/// Everything that calls need. All calls of a run share it.
#[derive(Debug)]
pub(super) struct Calls {
    /// Digest of what all rollout ids of the run have in common.
    scope: String,
    task: Task,
    policy: Value,
    policy_digest: String,
    /// Digests of the candidates' texts, which many rollouts share.
    candidates: Mutex<BTreeMap<CandidateId, Arc<str>>>,
    /// The ids under which an earlier process of this run sent rollouts. A rollout keeps its id, also if the run is resumed
    /// with another submission mode.
    pub(super) sent_ids: BTreeMap<CallId, String>,
    deciding: String,
    /// Whether a higher or a lower value of the deciding objective is better.
    direction: Direction,
    pub(super) cache: Cache,
    /// `None` in a readonly run, which calls nothing.
    pub(super) transport: Option<Transport>,
    pub(super) proposer: Arc<dyn Proposer>,
    ownership: Ownership,
    /// The directory with the log of the container, if the run starts it.
    container_log_dir: Option<Utf8PathBuf>,
    /// The length of that log when the run began.
    container_log_start: u64,
    proposer_timeout: Duration,
    /// How long a turn may take to end after its timeout.
    proposer_patience: Duration,
}

impl Calls {
    pub(super) fn new(
        config: &Config,
        paths: &RunPaths,
        task: Task,
        cache: Cache,
        transport: Option<Transport>,
        proposer: Arc<dyn Proposer>,
        ownership: Ownership,
    ) -> Self {
        let policy = policy_value(config.policy.as_ref());
        let deciding = objective_names(&config.gepa).into_iter().next().unwrap_or_default();
        let mode = transport.as_ref().map_or(config.gepa.rollout_submission_mode, Transport::mode);
        let scope = RolloutScope {
            run_id: paths.run_id(),
            contract_version: &task.contract.version,
            routes: task.contract.routes.named(),
            submission_mode: mode.as_str(),
        };
        Self {
            container_log_dir: (!config.container.command.is_empty()).then(|| paths.dir().to_owned()),
            // Without a log, there is nothing to skip.
            container_log_start: std::fs::metadata(paths.dir().join(CONTAINER_LOG_FILE)).map_or(0, |log| log.len()),
            scope: scope.digest(),
            task,
            candidates: Mutex::default(),
            sent_ids: BTreeMap::new(),
            policy_digest: canonical_digest(&policy),
            policy,
            direction: objective_direction(&config.gepa, &deciding),
            deciding,
            cache,
            transport,
            proposer,
            ownership,
            proposer_timeout: Duration::from_secs(config.proposer.timeout_seconds),
            proposer_patience: Duration::from_secs(config.proposer.interrupt_timeout_seconds) + USAGE_REPORT_GRACE,
        }
    }

    /// Returns the id under which the container knows a rollout.
    pub(super) fn rollout_id(&self, command: &RolloutCommand) -> Result<String, OptimizerError> {
        if let Some(sent) = self.sent_ids.get(&command.call_id) {
            return Ok(sent.clone());
        }
        let candidate = self.candidate_digest(command);
        let identity = RolloutIdentity {
            scope: &self.scope,
            request: self.request(command, &candidate)?,
            candidate: &command.candidate_id,
            row: &command.row_id,
            stage: command.stage.as_str(),
            attempt: command.attempt,
        };
        Ok(identity.rollout_id())
    }

    fn candidate_digest(&self, command: &RolloutCommand) -> Arc<str> {
        let mut digests = self.candidates.lock();
        let digest = digests.entry(command.candidate_id.clone());
        Arc::clone(digest.or_insert_with(|| canonical_digest(&command.payload).into()))
    }

    /// Returns everything that determines the answer of a rollout. `candidate` is the digest of its texts.
    fn request<'a>(
        &'a self,
        command: &RolloutCommand,
        candidate: &'a str,
    ) -> Result<RolloutRequest<'a>, OptimizerError> {
        Ok(RolloutRequest {
            task_id: &self.task.family,
            program: &self.task.program_digest,
            candidate,
            row: &self.row(command)?.digest,
            policy: &self.policy_digest,
            replicate: command.replicate,
        })
    }

    fn row(&self, command: &RolloutCommand) -> Result<&Arc<TaskRow>, OptimizerError> {
        self.task.rows.get(&command.row_id).ok_or_else(|| {
            OptimizerError::new(ErrorCode::Invariant, format!("row {} was requested and never loaded", command.row_id))
        })
    }

    /// Returns the cache key of a rollout.
    pub(super) fn rollout_key(&self, command: &RolloutCommand) -> Result<String, OptimizerError> {
        let candidate = self.candidate_digest(command);
        let request = self.request(command, &candidate)?;
        Ok(cache_key(self.cache.namespace(), CacheBoundary::Rollout, &request))
    }

    pub(super) fn proposal_key(&self, request: &ProposalRequest) -> String {
        let request = json!({ "proposer": self.proposer.identity(), "request": canonical_digest(request) });
        cache_key(self.cache.namespace(), CacheBoundary::Proposer, &request)
    }

    /// Builds the request to a proposer: the engine's command with the rows and replies that it refers to. The rollouts
    /// of its evidence must be committed.
    pub(super) fn proposal(&self, command: ProposeCommand, stored: &Reader) -> Result<ProposalRequest, OptimizerError> {
        let parent = command.question.parents.first();
        let evidence = |shown: EvidenceRow, stored: &Reader| {
            let rollout = match parent {
                Some(parent) => stored.evidence(&parent.candidate_id, &shown.row_id, command.call_id)?,
                None => None,
            };
            let reply = match rollout {
                Some(rollout) => stored.reply(rollout)?.map(|bytes| shown_fields(json_text::stored_value(&bytes))),
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
                .in_snapshot(|_| command.evidence.into_iter().map(|shown| evidence(shown, stored)).collect())?,
            refused: match command.repairs {
                Some(answered) => refused(stored, answered)?,
                None => Vec::new(),
            },
            question: command.question,
        })
    }

    /// Looks a call up in the cache. A miss is an error in a readonly run.
    pub(super) fn cached_answer(&self, call: &Call, key: &str) -> Result<CacheAnswer, OptimizerError> {
        let (boundary, is_readonly) = (call.boundary(), self.cache.mode() == CacheMode::Readonly);
        let hit = |answer: Answer, reply: Option<Reply>| {
            let cache = Some(CacheUse { key: key.to_owned(), action: CacheAction::Hit });
            CacheAnswer::Hit(Box::new(CompletedCall {
                cache,
                reply,
                ..CompletedCall::new(call.call_id, call.kind(), answer)
            }))
        };
        // An entry that another release stored, or that a container got wrong, cannot be used. Its key gets a new answer.
        let damaged = |cause: String| {
            let (boundary, shown) = (boundary.as_str(), call.shown());
            if is_readonly {
                let message = format!("the cached answer of {shown} cannot be used: {cause}");
                return Err(OptimizerError::new(ErrorCode::CacheCorrupt, message)
                    .with_detail(format!("boundary {boundary}, key {key}")));
            }
            warn!(boundary, key, cause, "a cached answer cannot be used; the call is sent again");
            self.cache.replace_later(call.boundary(), key);
            Ok(CacheAnswer::Damaged(CacheDamaged { boundary: boundary.to_owned(), key: key.to_owned() }))
        };
        let found = self.cache.get(boundary, key)?;
        // A cached failure is replayed in a readonly run, and also if a later attempt succeeded. Otherwise the call is
        // sent again.
        if (is_readonly || matches!(found, Lookup::Hit(_)))
            && let Lookup::Hit(stored) = self.cache.get_failure(boundary, key, call.attempt)?
        {
            return match serde_json::from_slice::<CallFailure>(&stored) {
                Ok(failure) => Ok(hit(Answer::Failed(CallFailure { cached: true, ..failure }), None)),
                Err(error) => damaged(error.to_string()),
            };
        }
        let stored = match found {
            Lookup::Hit(stored) => stored,
            Lookup::Miss if is_readonly => return Err(self.cache.miss_error(boundary, key, &call.shown())),
            Lookup::Miss => return Ok(CacheAnswer::Miss),
            Lookup::Damaged => {
                let (boundary, key) = (boundary.as_str().to_owned(), key.to_owned());
                return Ok(CacheAnswer::Damaged(CacheDamaged { boundary, key }));
            }
        };
        // An answer in the cache to a call that was sent before was received by an earlier process of this run, which
        // stopped before it could log the answer. It is billed as a sent call.
        let cached = call.sending == Sending::First;
        let (answer, reply) = match &call.payload {
            CallPayload::Rollout(command) => {
                let ReceivedRecord { body, altered, record } = ReceivedRecord::read(stored.bytes().clone());
                let reply = if altered.is_some() { body.into() } else { stored };
                let trace_digest = || Some(hex(&sha256(&reply)));
                let read = match self.read(command, None, record)? {
                    Ok(RolloutReply { identity: IdentityCheck::Contradicted(how), .. }) => Err(how),
                    Ok(RolloutReply { answer, .. }) => {
                        Ok(Answer::Rollout(RolloutAnswer { cached, trace_digest: trace_digest(), ..answer }))
                    }
                    Err(failure) => Err(failure.message),
                };
                (read, reply)
            }
            CallPayload::Proposal(_) => {
                let read = match serde_json::from_slice::<ProposalAnswer>(&stored) {
                    Ok(answer) if self.proposer.adopt_model(&answer.effective_model) => {
                        Ok(Answer::Proposal(ProposalAnswer { cached, ..answer }))
                    }
                    Ok(answer) => Err(format!("its model {:?} is not the model of the run", answer.effective_model)),
                    Err(error) => Err(error.to_string()),
                };
                (read, stored)
            }
        };
        match answer {
            Ok(answer) => Ok(hit(answer, Some(reply))),
            Err(cause) => damaged(cause),
        }
    }

    fn read(
        &self,
        command: &RolloutCommand,
        rollout_id: Option<&str>,
        record: Result<Box<RolloutRecord>, CallFailure>,
    ) -> Result<Result<RolloutReply, CallFailure>, OptimizerError> {
        let row = self.row(command)?;
        let asked = ExpectedRollout {
            rollout_id,
            row,
            row_id: &command.row_id,
            candidate_id: &command.candidate_id,
            payload: &command.payload,
            policy: &self.policy,
            deciding: &self.deciding,
        };
        Ok(record.and_then(|record| read_reply(record, &asked)))
    }

    /// Sends a call that is stored as sent. The completed call goes to `completed`.
    pub(super) fn spawn(self: Arc<Self>, call: Call, completed: UnboundedSender<CompletedCall>) -> AbortHandle {
        let (span, began) = (call.span(), Instant::now());
        let guard = PanicGuard { call_id: call.call_id, kind: call.kind(), completed };
        let made = async move {
            match &call.payload {
                CallPayload::Rollout(_) => debug!(sending = ?call.sending, "rollout sent"),
                CallPayload::Proposal(request) => {
                    let (proposals, evidence) = (request.question.proposal_count, request.evidence.len());
                    debug!(proposals, evidence, "proposer called");
                }
            }
            let finished = self.make(call).await;
            finished.log(began);
            guard.report(finished);
        };
        tokio::spawn(made.instrument(span)).abort_handle()
    }

    async fn make(&self, call: Call) -> CompletedCall {
        let mut finished = CompletedCall::new(call.call_id, call.kind(), Answer::Abandoned { sent: true });
        finished.cache = call.key.as_ref().map(|key| CacheUse { key: key.clone(), action: CacheAction::Miss });
        let (boundary, attempt) = (call.boundary(), call.attempt);
        let made = match call.payload {
            CallPayload::Rollout(command) => {
                let rollout_id = call.rollout_id.unwrap_or_default();
                self.call_container(&command, &rollout_id, call.sending, &mut finished).await
            }
            CallPayload::Proposal(request) => {
                self.ask_proposer(TurnId { call_id: call.call_id, attempt }, *request, &mut finished).await
            }
        };
        finished.fatal = made.err();
        if let Some(key) = &call.key
            && finished.outage.is_none()
            && !finished.is_lost
            && let Err(error) = self.store_in_cache(boundary, key, attempt, &mut finished)
        {
            finished.fatal.get_or_insert(error);
        }
        finished
    }

    /// Runs a rollout in the container.
    async fn call_container(
        &self,
        command: &RolloutCommand,
        rollout_id: &str,
        sending: Sending,
        finished: &mut CompletedCall,
    ) -> Result<(), OptimizerError> {
        let Some(transport) = &self.transport else { return Ok(()) };
        let row = self.row(command)?;
        let body = |mode| rollout_body(&self.task, &self.policy, command, row, rollout_id, mode);
        let end = transport.rollout(rollout_id, &body, sending).await;
        (finished.overload, finished.outage, finished.is_lost) = (end.overload, end.outage, end.is_lost);
        finished.asides.extend(end.fallback.map(Event::TransportFallback));
        if let Some(fatal) = end.fatal {
            return Err(fatal);
        }
        let ReceivedRecord { body, altered, record } = match end.outcome {
            Ok(received) => received,
            Err(failure) => {
                finished.answer = Answer::Failed(self.with_exception(failure));
                return Ok(());
            }
        };
        if let Some(changes) = altered {
            let (call_id, changes) = (command.call_id, changes.to_string());
            finished.asides.push(Event::ReplyAltered(ReplyAltered { call_id, changes }));
        }
        let refused = record.as_ref().map(|record| record.reported_usage().1).unwrap_or_default();
        if !refused.is_empty() {
            finished.asides.push(Event::UsageRefused(Reason { reason: refused.join(", ") }));
        }
        let reply = Reply::from(body);
        match self.read(command, Some(rollout_id), record)? {
            Ok(RolloutReply { mut answer, identity }) => {
                match identity {
                    IdentityCheck::Confirmed => {}
                    IdentityCheck::Absent => finished.asides.push(Event::EchoMissing(Reason {
                        reason: "the reply reports neither a seed nor an example".into(),
                    })),
                    IdentityCheck::Contradicted(how) => return Err(wrong_rollout(command, &how)),
                }
                answer.trace_digest = Some(hex(&sha256(&reply)));
                finished.answer = Answer::Rollout(answer);
            }
            Err(failure) => finished.answer = Answer::Failed(failure),
        }
        finished.reply = Some(reply);
        Ok(())
    }

    /// Puts the exception in the log of a managed container before the message of a failure that it reported. An HTTP reply
    /// often says only that there was an error.
    fn with_exception(&self, failure: CallFailure) -> CallFailure {
        let is_reported = failure.class == FailureClass::Failed;
        let Some(run_dir) = self.container_log_dir.as_ref().filter(|_| is_reported) else { return failure };
        match last_exception(run_dir, self.container_log_start) {
            Some(exception) if !failure.message.contains(&exception) => {
                CallFailure { message: format!("{exception} ({})", failure.message), ..failure }
            }
            _ => failure,
        }
    }

    async fn ask_proposer(
        &self,
        turn: TurnId,
        request: ProposalRequest,
        finished: &mut CompletedCall,
    ) -> Result<(), OptimizerError> {
        let patience = self.proposer_timeout.saturating_add(self.proposer_patience);
        match tokio::time::timeout(patience, self.proposer.propose(turn, request)).await {
            Ok(Ok(answer)) => {
                match serde_json::to_vec(&answer) {
                    Ok(bytes) => finished.reply = Some(bytes.into()),
                    Err(error) => warn!(%error, "encoding the answer of a turn failed; it is not cached"),
                }
                finished.answer = Answer::Proposal(answer);
                Ok(())
            }
            // A fault of this machine is no failure of the turn: the resumed run asks again.
            Ok(Err(TurnFailure { fatal: Some(error), .. })) if is_machine_fault(error.code) => Err(error),
            Ok(Err(TurnFailure { failure, fatal, outage })) => {
                finished.answer = Answer::Failed(failure);
                finished.outage = outage;
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

    /// Stores an answer in the cache: a result for every run, a failure for replays. Stores nothing and fails if this
    /// process no longer owns the run.
    fn store_in_cache(
        &self,
        boundary: CacheBoundary,
        key: &str,
        attempt: u32,
        finished: &mut CompletedCall,
    ) -> Result<(), OptimizerError> {
        self.ownership.check()?;
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
            // A failure that was caused by the end of this run would not occur in another run.
            Answer::Failed(_) | Answer::Abandoned { .. } => Ok(()),
        }
    }
}

/// Returns the proposals of an earlier answer, which the proposer is asked to repair.
fn refused(stored: &Reader, answered: CallId) -> Result<Vec<Proposal>, OptimizerError> {
    let Some(bytes) = stored.reply(answered)? else { return Ok(Vec::new()) };
    let answer: ProposalAnswer = serde_json::from_slice(&bytes)
        .map_err(|error| OptimizerError::from_cause(ErrorCode::Json, "a stored answer is not JSON", error))?;
    Ok(answer.proposals)
}

fn is_machine_fault(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Io | ErrorCode::StorageFull)
}

fn wrong_rollout(command: &RolloutCommand, how: &str) -> OptimizerError {
    OptimizerError::new(
        ErrorCode::Container,
        format!("the container did not run the requested rollout: row {}, {how}", command.row_id),
    )
    .with_hint(
        "Read the row from the keys of the advertised routes (`task`, `dataset_row`, or both), the texts from \
         `candidate` and the model from `policy`.",
    )
}

/// Reports a call that panics, so that the run does not wait for it.
struct PanicGuard {
    call_id: CallId,
    kind: CallKind,
    completed: UnboundedSender<CompletedCall>,
}

impl PanicGuard {
    fn report(&self, finished: CompletedCall) {
        // An error means that the run has ended.
        let _ = self.completed.send(finished);
    }
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = format!("the task of call {} ended without a result", self.call_id.0);
            let mut finished = CompletedCall::new(self.call_id, self.kind, Answer::Abandoned { sent: true });
            finished.fatal = Some(OptimizerError::new(ErrorCode::Invariant, message));
            self.report(finished);
        }
    }
}

//! Sends rollouts to the container and returns their records. A rollout whose outcome is unknown is never sent again
//! blindly.
//!
//! An accepted rollout is polled until it ends, its record is fetched once, and it is terminated at its deadline. `recovery`
//! asks the container for rollouts whose answers were lost.

mod recovery;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Url};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::debug;

pub use recovery::EarlierRollouts;
use recovery::RolloutMemories;

use super::client::{Client, LongPause};
use super::container_error;
use super::contract::Contract;
use super::record::{ReceivedRecord, RolloutStatus, failure};
use crate::http::{self, ExchangeError, RawResponse, excerpt, summary};
use crate::logs::in_current_span;
use crate::outage::Outage;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{ASYNC_TIMEOUT_REASON, GepaSection, SubmissionMode};
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::TransportFallback;

/// Replies from this size on are parsed on a blocking thread.
const LARGE_REPLY_BYTES: usize = 256 * 1024;

/// Builds the body of a rollout for a submission mode.
type BodyBuilder<'a> = dyn Fn(SubmissionMode) -> Result<Bytes, OptimizerError> + Send + Sync + 'a;

/// The record of an ended rollout, succeeded or failed: `read_reply` tells which.
type RecordResult = Result<ReceivedRecord, CallFailure>;

/// Outcome of a rollout.
#[derive(Debug)]
pub struct RolloutOutcome {
    pub outcome: RecordResult,
    /// An overload status that the container returned on the way.
    pub overload: Option<u16>,
    /// Set by the one rollout after which all others are sent in sync mode.
    pub fallback: Option<TransportFallback>,
    /// Set if the run cannot continue.
    pub fatal: Option<OptimizerError>,
    /// Set if the container is unavailable. The rollout is sent again later; if its class is `unknown_outcome`, the
    /// container is asked for it first.
    pub outage: Option<Outage>,
    /// Set if the rollout was sent before, and the container cannot tell whether it ran. The rollout was not sent again.
    pub is_lost: bool,
}

/// How a rollout is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// It was not sent before.
    First,
    /// It was sent at this time, in milliseconds since 1970, and its answer is missing: the container is asked for it by id
    /// before it is sent again.
    AskFirst { sent_at: u64 },
    /// It was sent before, and that is charged as a rollout of unknown outcome.
    Again,
}

/// Runs rollouts on one container. Shared by all workers.
#[derive(Debug)]
pub struct Transport {
    client: Client,
    gepa: GepaSection,
    contract: Contract,
    /// URL of the rollout route.
    address: Url,
    /// True if the container advertises no async rollouts or has rejected one.
    sync_only: AtomicBool,
    /// Limits how many replies are parsed at once (`workers.evaluate`).
    decoding: Semaphore,
    /// Whether the container is a process of this run, which ended with the process that started it.
    is_managed: bool,
    /// Whether rollouts contain a policy.
    has_policy: bool,
    memories: RolloutMemories,
}

impl Transport {
    pub fn new(client: Client, contract: &Contract, config: &Config, earlier: EarlierRollouts) -> Self {
        Self {
            is_managed: !config.container.command.is_empty(),
            has_policy: config.policy.is_some(),
            memories: RolloutMemories::new(earlier),
            address: client.address(&contract.routes.rollout),
            client,
            gepa: config.gepa.clone(),
            contract: contract.clone(),
            sync_only: AtomicBool::new(!contract.advertises_async()),
            decoding: Semaphore::new(config.gepa.pipeline.workers.evaluate.max(1) as usize),
        }
    }

    /// Returns the fallback to sync mode if the config asks for async rollouts and the container does not advertise
    /// them.
    pub fn fallback_at_start(&self) -> Option<TransportFallback> {
        let is_refused =
            self.gepa.rollout_submission_mode == SubmissionMode::Async && !self.contract.advertises_async();
        let modes = &self.contract.rollout_modes;
        is_refused.then(|| fallback(format!("the container's rollout_modes are {}", modes.join(", "))))
    }

    /// Returns the mode of the next rollout.
    pub fn mode(&self) -> SubmissionMode {
        if self.sync_only.load(Ordering::Relaxed) { SubmissionMode::Sync } else { self.gepa.rollout_submission_mode }
    }

    /// Runs one rollout until it ends, fails or reaches its deadline.
    ///
    /// `body` is called when the rollout is sent, and a second time if the container rejects async rollouts.
    pub async fn rollout(&self, rollout_id: &str, body: &BodyBuilder<'_>, sending: Sending) -> RolloutOutcome {
        let began = Instant::now();
        let mut rollout = ActiveRollout::new(self, rollout_id);
        let outcome = rollout.run(body, sending).await;
        if outcome.as_ref().is_ok_and(|received| received.record.is_ok()) {
            self.memories.note_end(rollout_id, began.elapsed());
        }
        RolloutOutcome { outcome, ..rollout.end }
    }

    /// Asks the container to terminate a rollout whose result is no longer needed. Ignores the answer.
    pub async fn terminate(&self, rollout_id: &str) {
        self.request_termination(rollout_id, "cancelled").await;
    }

    /// Asks the container to terminate a rollout. Returns whether it acknowledged.
    async fn request_termination(&self, rollout_id: &str, reason: &str) -> bool {
        let address = self.client.address(&format!("/rollouts/{rollout_id}/terminate"));
        let body = Bytes::from(json!({ "reason": reason }).to_string());
        let sent = self.client.send(Method::POST, &address, Some(body), self.client.request_timeout()).await;
        sent.is_ok_and(|raw| raw.is_success())
    }

    fn timeout(&self, mode: SubmissionMode) -> Duration {
        Duration::from_secs(match mode {
            SubmissionMode::Sync => self.client.container.rollout_timeout_seconds,
            SubmissionMode::Async => self.gepa.rollout_async_timeout_seconds,
        })
    }

    /// Parses a body; a large one on a blocking thread.
    async fn receive(&self, body: Bytes) -> ReceivedRecord {
        let _turn = self.decoding.acquire().await;
        if body.len() < LARGE_REPLY_BYTES {
            return ReceivedRecord::read(body);
        }
        let copy = body.clone();
        tokio::task::spawn_blocking(in_current_span(move || ReceivedRecord::read(copy))).await.unwrap_or_else(|error| {
            let record = Err(failure(FailureClass::Contract, format!("reading the reply failed: {error}")));
            ReceivedRecord { body, altered: None, record }
        })
    }

    fn refused(&self, raw: &RawResponse) -> CallFailure {
        let class = match raw.status {
            status if http::is_overload(status) => FailureClass::NotSent,
            408 | 500.. => FailureClass::Failed,
            _ => FailureClass::Contract,
        };
        let (route, said) = (&self.contract.routes.rollout, excerpt(&raw.body));
        // Some containers require a policy, which a rollout has only if it is configured.
        let is_policy_missing = !self.has_policy && matches!(raw.status, 400 | 422) && said.contains("policy");
        let advice = if is_policy_missing { "; set `policy.model`: the rollout has no policy" } else { "" };
        failure(class, format!("POST {route} answered {}: {said}{advice}", raw.status))
    }

    fn too_large(&self, status: u16) -> CallFailure {
        let limit = self.client.container.max_reply_mb;
        let message = format!("the answer ({status}) is larger than container.max_reply_mb = {limit}");
        failure(FailureClass::Contract, message)
    }
}

/// Result of one poll of a rollout.
enum PollResult {
    Active,
    /// The rollout succeeded or failed, with its record; or the answer is invalid and polling again cannot help.
    Ended(RecordResult),
    /// The container does not know the rollout, or has no such route.
    Unknown,
    /// No usable answer to this poll.
    Missed(String),
}

/// One rollout in progress.
struct ActiveRollout<'a> {
    transport: &'a Transport,
    id: &'a str,
    /// The outcome so far. Its record is a placeholder until the rollout has ended.
    end: RolloutOutcome,
}

impl<'a> ActiveRollout<'a> {
    fn new(transport: &'a Transport, id: &'a str) -> Self {
        let outcome = Err(unsent("the run ended"));
        let end = RolloutOutcome { outcome, overload: None, fallback: None, fatal: None, outage: None, is_lost: false };
        Self { transport, id, end }
    }

    async fn run(&mut self, body: &BodyBuilder<'_>, sending: Sending) -> RecordResult {
        let transport = self.transport;
        if let Sending::AskFirst { sent_at } = sending
            && let Some(outcome) = self.recover(sent_at).await
        {
            return outcome;
        }
        if let Some(outcome) = self.submit(body, transport.mode()).await {
            return outcome;
        }
        if !transport.sync_only.swap(true, Ordering::Relaxed) {
            self.end.fallback =
                Some(fallback("the container rejected an async rollout: it supports sync rollouts only".into()));
        }
        self.submit(body, SubmissionMode::Sync).await.unwrap_or_else(|| Err(unsent("the run ended")))
    }

    /// Sends the rollout and polls it until it ends. Returns `None` if the container rejects async rollouts; then
    /// nothing ran.
    async fn submit(&mut self, body: &BodyBuilder<'_>, mode: SubmissionMode) -> Option<RecordResult> {
        let transport = self.transport;
        let body = match body(mode) {
            Ok(body) => body,
            Err(error) => {
                let message = error.message.clone();
                self.end.fatal = Some(error);
                return Some(Err(failure(FailureClass::Contract, message)));
            }
        };
        let timeout = transport.timeout(mode);
        let (client, address) = (&transport.client, &transport.address);
        let sent = client.send_with_retries(Method::POST, address, Some(body), timeout, LongPause::Return).await;
        let deadline = sent.sent_at + timeout;
        self.record_overload(sent.refused);
        Some(match sent.outcome {
            Ok(raw) if raw.is_success() => self.accepted(raw, deadline).await,
            Ok(raw) => {
                self.record_overload(Some(raw.status));
                if mode == SubmissionMode::Async && takes_only_sync(&raw) {
                    return None;
                }
                self.end.fatal = identity_conflict(self.id, &raw);
                let failure = transport.refused(&raw);
                match raw.status {
                    // A server in front of the container lost it, and the rollout may have run.
                    502 | 504 => self
                        .find(Instant::now() + transport.client.request_timeout(), deadline, None)
                        .await
                        .unwrap_or_else(|| {
                            self.end.outage = Some(Outage::new(failure.message.clone()));
                            Err(unknown(&failure.message))
                        }),
                    status if http::is_overload(status) => {
                        self.end.outage =
                            Some(Outage { retry_after: raw.retry_after, ..Outage::new(failure.message.clone()) });
                        Err(failure)
                    }
                    _ => Err(failure),
                }
            }
            Err(ExchangeError::NeverSent(reason)) if transport.client.is_denial(&reason) => {
                self.end.fatal = Some(transport.client.denied());
                Err(unsent(&reason))
            }
            Err(ExchangeError::NeverSent(reason)) => {
                self.end.outage = Some(Outage::new(transport.client.unreachable(&reason)));
                Err(unsent(&reason))
            }
            Err(ExchangeError::OutOfFiles(reason)) => {
                self.end.fatal = Some(http::out_of_files(&reason));
                Err(unsent(&reason))
            }
            Err(ExchangeError::TooLarge { status }) => Err(transport.too_large(status)),
            Err(ExchangeError::Unknown(reason)) => {
                // The rollout's deadline may have passed, so the lookup has a timeout of its own.
                let patience = Instant::now() + transport.client.request_timeout();
                self.find(patience, deadline, Some(&reason)).await.unwrap_or_else(|| Err(unknown(&reason)))
            }
        })
    }

    /// Handles the reply to a submission. A reply with a final status is the record, in either mode; otherwise polls.
    async fn accepted(&mut self, raw: RawResponse, deadline: Instant) -> RecordResult {
        let status = raw.status;
        let received = self.transport.receive(raw.body).await;
        let record = match &received.record {
            Ok(record) => record,
            Err(failure) => return Err(failure.clone()),
        };
        let is_active = match record.status()? {
            RolloutStatus::Active => true,
            RolloutStatus::Absent => status == 202,
            RolloutStatus::Succeeded | RolloutStatus::Failed => false,
        };
        if !is_active {
            return Ok(received);
        }
        if record.is_of_another(self.id) {
            let message = format!("the container runs the rollout under another id than the requested {}", self.id);
            return Err(failure(FailureClass::Contract, message));
        }
        self.follow(deadline).await
    }

    /// Asks the container for a rollout that may have been sent, and waits for it if it runs. Retries until `patience`
    /// while the container does not answer. Returns `None` if the container does not know the rollout; then it may be
    /// sent. `lost` is the reason why its first answer is missing.
    async fn find(&mut self, patience: Instant, deadline: Instant, lost: Option<&str>) -> Option<RecordResult> {
        let mut retries = self.transport.client.container.connect_retries;
        let poll = loop {
            let poll = self.poll(patience).await;
            let next = Instant::now() + self.poll_interval();
            match poll {
                PollResult::Missed(cause) if retries > 0 && next < patience => {
                    debug!(cause, "the state of the rollout is polled again");
                }
                PollResult::Missed(_) | PollResult::Active | PollResult::Ended(_) | PollResult::Unknown => break poll,
            }
            retries -= 1;
            tokio::time::sleep_until(next).await;
        };
        match poll {
            PollResult::Active => Some(self.follow(deadline).await),
            PollResult::Ended(outcome) => Some(outcome),
            PollResult::Unknown => None,
            PollResult::Missed(reason) => {
                self.end.outage = Some(Outage::new(self.transport.client.unreachable(&reason)));
                Some(Err(unknown(lost.unwrap_or(&reason))))
            }
        }
    }

    /// Polls until the rollout ends or the deadline passes. Tolerates failed polls: a container that runs rollouts in a
    /// single thread does not answer meanwhile.
    async fn follow(&mut self, deadline: Instant) -> RecordResult {
        let mut last_miss = None;
        loop {
            let next = (Instant::now() + self.poll_interval()).min(deadline);
            tokio::time::sleep_until(next).await;
            if Instant::now() >= deadline {
                return Err(self.expire(last_miss).await);
            }
            match self.poll(deadline).await {
                PollResult::Active => last_miss = None,
                PollResult::Ended(outcome) => return outcome,
                PollResult::Unknown => return Err(unknown("the container has no such rollout any more")),
                PollResult::Missed(reason) => {
                    debug!(cause = reason, "a poll of the rollout failed");
                    last_miss = Some(reason);
                }
            }
        }
    }

    /// Fetches the state, which is short, and the record only if the rollout has ended or the container serves no
    /// state.
    async fn poll(&mut self, deadline: Instant) -> PollResult {
        let state = self.get(&format!("/rollouts/{}/state", self.id), deadline).await;
        let ended = match state {
            PollResult::Ended(Ok(body)) => Some(body),
            PollResult::Unknown => None,
            PollResult::Active | PollResult::Missed(_) | PollResult::Ended(Err(_)) => return state,
        };
        match (self.get(&format!("/rollouts/{}", self.id), deadline).await, ended) {
            // A failed state is final even without a record.
            (PollResult::Unknown | PollResult::Active, Some(state)) if has_failed(&state) => {
                PollResult::Ended(Ok(state))
            }
            (record, _) => record,
        }
    }

    async fn get(&mut self, route: &str, deadline: Instant) -> PollResult {
        let client = &self.transport.client;
        let timeout = client.request_timeout().min(deadline.saturating_duration_since(Instant::now()));
        let raw = match client.send(Method::GET, &client.address(route), None, timeout).await {
            Ok(raw) => {
                // An earlier poll may have met the limit of open files.
                self.end.fatal = None;
                raw
            }
            Err(ExchangeError::OutOfFiles(reason)) => {
                self.end.fatal = Some(http::out_of_files(&reason));
                return PollResult::Missed(reason);
            }
            Err(ExchangeError::NeverSent(reason) | ExchangeError::Unknown(reason)) => {
                return PollResult::Missed(reason);
            }
            Err(ExchangeError::TooLarge { status }) => return PollResult::Ended(Err(self.transport.too_large(status))),
        };
        self.record_overload(Some(raw.status));
        match raw.status {
            200..300 => {}
            408 | 425 | 429 | 500.. => return PollResult::Missed(format!("the container answered {}", raw.status)),
            _ => return PollResult::Unknown,
        }
        let received = self.transport.receive(raw.body).await;
        let status = match &received.record {
            Ok(record) if record.is_of_another(self.id) => {
                let message = format!("the container answered for another rollout than {}", self.id);
                Err(failure(FailureClass::Contract, message))
            }
            Ok(record) => record.status(),
            Err(failure) => Err(failure.clone()),
        };
        match status {
            Ok(RolloutStatus::Active) => PollResult::Active,
            Ok(RolloutStatus::Succeeded | RolloutStatus::Failed | RolloutStatus::Absent) => {
                PollResult::Ended(Ok(received))
            }
            Err(failure) => PollResult::Ended(Err(failure)),
        }
    }

    /// Terminates a rollout after its deadline. Its outcome is a timeout only if the container acknowledges, else
    /// unknown.
    async fn expire(&self, last_miss: Option<String>) -> CallFailure {
        if self.transport.request_termination(self.id, ASYNC_TIMEOUT_REASON).await {
            return failure(FailureClass::Timeout, "the rollout passed its deadline and was terminated".into());
        }
        let miss = last_miss.map(|miss| format!("; the last poll failed: {miss}")).unwrap_or_default();
        unknown(&format!("the rollout passed its deadline, and the container did not terminate it{miss}"))
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(self.transport.gepa.rollout_poll_interval_ms)
    }

    /// Remembers the status if it is one of the configured overload codes.
    fn record_overload(&mut self, status: Option<u16>) {
        let overloads = &self.transport.gepa.pipeline.adaptive_rollout_concurrency.overload_status_codes;
        self.end.overload = status.filter(|status| overloads.contains(status)).or(self.end.overload);
    }
}

fn has_failed(state: &ReceivedRecord) -> bool {
    state.record.as_ref().is_ok_and(|record| matches!(record.status(), Ok(RolloutStatus::Failed)))
}

fn unsent(reason: &str) -> CallFailure {
    failure(FailureClass::NotSent, format!("the rollout was not sent: {reason}"))
}

fn unknown(reason: &str) -> CallFailure {
    failure(FailureClass::UnknownOutcome, format!("it is unknown whether the rollout ran: {reason}"))
}

fn fallback(reason: String) -> TransportFallback {
    TransportFallback {
        requested: SubmissionMode::Async.as_str().to_owned(),
        effective: SubmissionMode::Sync.as_str().to_owned(),
        reason,
    }
}

/// Returns whether the container rejected an async rollout because of its mode. Ignores echoes of the request.
fn takes_only_sync(raw: &RawResponse) -> bool {
    const PHRASES: [&str; 5] = ["submission_mode", "only sync", "sync only", "async is not", "async not supported"];
    matches!(raw.status, 400 | 422) && {
        let words = summary(&raw.body).to_lowercase();
        PHRASES.iter().any(|phrase| words.contains(phrase))
    }
}

/// Returns an error if the container knows the rollout id with another body. Two different rollouts must not share an
/// id.
fn identity_conflict(rollout_id: &str, raw: &RawResponse) -> Option<OptimizerError> {
    const CONFLICT: &str = "rollout_identity_conflict";
    (raw.status == 409 && summary(&raw.body).contains(CONFLICT)).then(|| {
        let message = format!("{CONFLICT}: the container ran rollout {rollout_id} with another body");
        container_error(message, "Restart the container so that it forgets earlier runs, or choose another run.run_id.")
    })
}

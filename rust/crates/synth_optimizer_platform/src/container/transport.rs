//! Carries rollouts to the container and brings back their records, without ever running one twice unknowingly. A rollout
//! that the container has is followed: its state is polled, its record fetched once, and at its deadline it is ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Url};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::warn;

use super::broken;
use super::client::Client;
use super::contract::Contract;
use super::record::{Received, Status, failure};
use crate::http::{Lost, Raw, excerpt, summary};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{GepaSection, SubmissionMode};
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::TransportFallback;

/// Replies above this size are read on a thread of their own.
const LARGE_REPLY: usize = 256 * 1024;

/// Builds the body of a rollout in the mode in which it is sent.
type BodyOf<'a> = dyn Fn(SubmissionMode) -> Result<Bytes, OptimizerError> + Send + Sync + 'a;

/// The record of a rollout at its end, good or bad: `read_reply` tells which.
type Outcome = Result<Received, CallFailure>;

/// How a rollout ended.
#[derive(Debug)]
pub struct RolloutEnd {
    pub outcome: Outcome,
    /// A status met on the way that means overload.
    pub overload: Option<u16>,
    /// Set once, by the call after which rollouts are sent in the other mode.
    pub fallback: Option<TransportFallback>,
    /// Set when the run cannot go on.
    pub fatal: Option<OptimizerError>,
}

/// Runs rollouts on one container. Shared by all workers.
#[derive(Debug)]
pub struct Transport {
    client: Client,
    gepa: GepaSection,
    contract: Contract,
    /// Of the route of rollouts.
    address: Url,
    /// The container has refused an async rollout, or advertises none.
    sync_only: AtomicBool,
    /// `workers.evaluate`: how many answers are read at once.
    decoding: Semaphore,
}

impl Transport {
    pub fn new(client: Client, contract: &Contract, config: &Config) -> Self {
        Self {
            address: client.address(&contract.routes.rollout),
            client,
            gepa: config.gepa.clone(),
            contract: contract.clone(),
            sync_only: AtomicBool::new(!contract.advertises_async()),
            decoding: Semaphore::new(config.gepa.pipeline.workers.evaluate.max(1) as usize),
        }
    }

    /// Set when the config asks for async rollouts and the container advertises only others.
    pub fn fallback_at_start(&self) -> Option<TransportFallback> {
        let is_refused =
            self.gepa.rollout_submission_mode == SubmissionMode::Async && !self.contract.advertises_async();
        let modes = &self.contract.rollout_modes;
        is_refused.then(|| fallback(format!("the container's rollout_modes are {}", modes.join(", "))))
    }

    /// How the next rollout is sent.
    pub fn mode(&self) -> SubmissionMode {
        if self.sync_only.load(Ordering::Relaxed) { SubmissionMode::Sync } else { self.gepa.rollout_submission_mode }
    }

    /// Runs one rollout to its end, its deadline or its failure.
    ///
    /// `body` is asked for when it is needed: once, and again when the container takes no async rollouts. After a crash,
    /// a rollout that may have been sent is asked for before it is sent again.
    pub async fn rollout(&self, rollout_id: &str, body: &BodyOf<'_>, may_have_been_sent: bool) -> RolloutEnd {
        let end = RolloutEnd { outcome: Err(unsent("it was not sent")), overload: None, fallback: None, fatal: None };
        let mut rollout = Rollout { transport: self, id: rollout_id, end };
        let outcome = rollout.run(body, may_have_been_sent).await;
        RolloutEnd { outcome, ..rollout.end }
    }

    /// Ends a rollout that nobody waits for any more. Whether it was ended is not known to the caller.
    pub async fn terminate(&self, rollout_id: &str) {
        self.ask_to_end(rollout_id, "cancelled").await;
    }

    /// Whether the container acknowledged.
    async fn ask_to_end(&self, rollout_id: &str, reason: &str) -> bool {
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

    /// Reads a body. A large one is read on a thread of its own.
    async fn receive(&self, body: Bytes) -> Received {
        let _turn = self.decoding.acquire().await;
        if body.len() < LARGE_REPLY {
            return Received::read(body);
        }
        let kept = body.clone();
        tokio::task::spawn_blocking(move || Received::read(kept)).await.unwrap_or_else(|error| {
            let record = Err(failure(FailureClass::Contract, format!("reading the reply broke off: {error}")));
            Received { body, record }
        })
    }

    fn refused(&self, raw: &Raw) -> CallFailure {
        let class = match raw.status {
            429 | 503 => FailureClass::NotSent,
            408 | 500.. => FailureClass::Failed,
            _ => FailureClass::Contract,
        };
        let route = &self.contract.routes.rollout;
        failure(class, format!("POST {route} answered {}: {}", raw.status, excerpt(&raw.body)))
    }

    fn too_large(&self, status: u16) -> CallFailure {
        let limit = self.client.container.max_reply_mb;
        let message = format!("the answer ({status}) is larger than container.max_reply_mb = {limit}");
        failure(FailureClass::Contract, message)
    }
}

/// One look at a rollout.
enum Look {
    Active,
    /// At its end, good or bad, with the body that says so; or an answer that no repetition will mend.
    Ended(Outcome),
    /// The container does not know it, or has no such route.
    Unknown,
    /// No usable answer this time.
    Missed(String),
}

/// One rollout on its way.
struct Rollout<'a> {
    transport: &'a Transport,
    id: &'a str,
    /// What is known of its end; the outcome is none before it has come.
    end: RolloutEnd,
}

impl Rollout<'_> {
    async fn run(&mut self, body: &BodyOf<'_>, may_have_been_sent: bool) -> Outcome {
        let transport = self.transport;
        if may_have_been_sent {
            let deadline = Instant::now() + transport.timeout(transport.mode());
            if let Some(outcome) = self.find(deadline, deadline, None).await {
                return outcome;
            }
        }
        if let Some(outcome) = self.submit(body, transport.mode()).await {
            return outcome;
        }
        if !transport.sync_only.swap(true, Ordering::Relaxed) {
            self.end.fallback =
                Some(fallback("the container refused an async rollout: it takes only sync ones".into()));
        }
        self.submit(body, SubmissionMode::Sync).await.unwrap_or_else(|| Err(unsent("it was not sent")))
    }

    /// Sends the rollout and follows it to its end. Nothing ran when the container takes no async rollouts: then there is
    /// no outcome.
    async fn submit(&mut self, body: &BodyOf<'_>, mode: SubmissionMode) -> Option<Outcome> {
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
        let sent = transport.client.send_patiently(Method::POST, &transport.address, Some(body), timeout).await;
        let deadline = sent.sent_at + timeout;
        self.note(sent.refused);
        Some(match sent.outcome {
            Ok(raw) if raw.is_success() => self.accepted(raw, deadline).await,
            Ok(raw) => {
                self.note(Some(raw.status));
                if mode == SubmissionMode::Async && takes_only_sync(&raw) {
                    return None;
                }
                self.end.fatal = identity_conflict(self.id, &raw);
                Err(transport.refused(&raw))
            }
            Err(Lost::NeverSent(reason)) => Err(unsent(&reason)),
            Err(Lost::TooLarge { status }) => Err(transport.too_large(status)),
            Err(Lost::Unknown(reason)) => {
                // The deadline may be what has passed; the question is a call of its own.
                let patience = Instant::now() + transport.client.request_timeout();
                self.find(patience, deadline, Some(&reason)).await.unwrap_or_else(|| Err(unknown(&reason)))
            }
        })
    }

    /// A first reply that is at its end is final, in whichever mode it was asked for.
    async fn accepted(&mut self, raw: Raw, deadline: Instant) -> Outcome {
        let status = raw.status;
        let received = self.transport.receive(raw.body).await;
        let record = match &received.record {
            Ok(record) => record,
            // A record with a number that JSON does not have is kept as evidence; what is no record is not.
            Err(failure) if failure.class == FailureClass::InvalidScore => return Ok(received),
            Err(failure) => return Err(failure.clone()),
        };
        let is_active = match record.status()? {
            Status::Active => true,
            Status::Absent => status == 202,
            Status::Succeeded | Status::Failed => false,
        };
        if !is_active {
            return Ok(received);
        }
        if record.is_of_another(self.id) {
            let message =
                format!("the container runs the rollout under another id than {}, which it was given", self.id);
            return Err(failure(FailureClass::Contract, message));
        }
        self.follow(deadline).await
    }

    /// Looks for a rollout that may have been sent, again until `patience` while there is no answer at all, and waits for
    /// it if it runs. There is no outcome where the container does not know it: it may be sent. `lost` is why its first
    /// answer did not come.
    async fn find(&mut self, patience: Instant, deadline: Instant, lost: Option<&str>) -> Option<Outcome> {
        let mut retries = self.transport.client.container.connect_retries;
        let look = loop {
            let look = self.look(patience).await;
            let next = Instant::now() + self.poll_interval();
            match look {
                Look::Missed(cause) if retries > 0 && next < patience => {
                    warn!(cause, "the state of the rollout is asked for again");
                }
                Look::Missed(_) | Look::Active | Look::Ended(_) | Look::Unknown => break look,
            }
            retries -= 1;
            tokio::time::sleep_until(next).await;
        };
        match look {
            Look::Active => Some(self.follow(deadline).await),
            Look::Ended(outcome) => Some(outcome),
            Look::Unknown => None,
            Look::Missed(reason) => Some(Err(unknown(lost.unwrap_or(&reason)))),
        }
    }

    /// Polls until the rollout is at its end or the deadline passes. A missed poll is no reason to give up: a container
    /// that runs its rollouts in one thread does not answer meanwhile.
    async fn follow(&mut self, deadline: Instant) -> Outcome {
        let mut last_miss = None;
        loop {
            let next = (Instant::now() + self.poll_interval()).min(deadline);
            tokio::time::sleep_until(next).await;
            if Instant::now() >= deadline {
                return Err(self.expire(last_miss).await);
            }
            match self.look(deadline).await {
                Look::Active => last_miss = None,
                Look::Ended(outcome) => return outcome,
                Look::Unknown => return Err(unknown("the container no longer knows the rollout")),
                Look::Missed(reason) => {
                    warn!(cause = reason, "a look at the rollout was missed");
                    last_miss = Some(reason);
                }
            }
        }
    }

    /// The state first, which is short; the record once the state is at its end, or where no state is served.
    async fn look(&mut self, deadline: Instant) -> Look {
        let state = self.get(&format!("/rollouts/{}/state", self.id), deadline).await;
        let ended = match state {
            Look::Ended(Ok(body)) => Some(body),
            Look::Unknown => None,
            Look::Active | Look::Missed(_) | Look::Ended(Err(_)) => return state,
        };
        match (self.get(&format!("/rollouts/{}", self.id), deadline).await, ended) {
            // A failure needs no record to be one.
            (Look::Unknown | Look::Active, Some(state)) if has_failed(&state) => Look::Ended(Ok(state)),
            (record, _) => record,
        }
    }

    async fn get(&mut self, route: &str, deadline: Instant) -> Look {
        let client = &self.transport.client;
        let timeout = client.request_timeout().min(deadline.saturating_duration_since(Instant::now()));
        let raw = match client.send(Method::GET, &client.address(route), None, timeout).await {
            Ok(raw) => raw,
            Err(Lost::NeverSent(reason) | Lost::Unknown(reason)) => return Look::Missed(reason),
            Err(Lost::TooLarge { status }) => return Look::Ended(Err(self.transport.too_large(status))),
        };
        self.note(Some(raw.status));
        match raw.status {
            200..300 => {}
            408 | 425 | 429 | 500.. => return Look::Missed(format!("the container answered {}", raw.status)),
            _ => return Look::Unknown,
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
            Ok(Status::Active) => Look::Active,
            Ok(Status::Succeeded | Status::Failed | Status::Absent) => Look::Ended(Ok(received)),
            Err(failure) => Look::Ended(Err(failure)),
        }
    }

    /// The deadline has passed: the rollout is known to have ended only if the container says so.
    async fn expire(&self, last_miss: Option<String>) -> CallFailure {
        if self.transport.ask_to_end(self.id, "gepa_async_timeout").await {
            return failure(FailureClass::Timeout, "the rollout passed its deadline and was terminated".into());
        }
        let miss = last_miss.map(|miss| format!("; the last poll failed: {miss}")).unwrap_or_default();
        unknown(&format!("the rollout passed its deadline and the container did not end it{miss}"))
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(self.transport.gepa.rollout_poll_interval_ms)
    }

    /// Remembers a status that means overload.
    fn note(&mut self, status: Option<u16>) {
        let overloads = &self.transport.gepa.pipeline.adaptive_rollout_concurrency.overload_status_codes;
        self.end.overload = status.filter(|status| overloads.contains(status)).or(self.end.overload);
    }
}

fn has_failed(state: &Received) -> bool {
    state.record.as_ref().is_ok_and(|record| matches!(record.status(), Ok(Status::Failed)))
}

fn unsent(reason: &str) -> CallFailure {
    failure(FailureClass::NotSent, format!("the rollout was not sent: {reason}"))
}

fn unknown(reason: &str) -> CallFailure {
    failure(FailureClass::UnknownOutcome, format!("nobody knows whether the rollout ran: {reason}"))
}

fn fallback(reason: String) -> TransportFallback {
    TransportFallback {
        requested: SubmissionMode::Async.word().to_owned(),
        effective: SubmissionMode::Sync.word().to_owned(),
        reason,
    }
}

/// Whether an async rollout was refused for its mode. What the container echoes of the request does not count.
fn takes_only_sync(raw: &Raw) -> bool {
    const PHRASES: [&str; 5] = ["submission_mode", "only sync", "sync only", "async is not", "async not supported"];
    matches!(raw.status, 400 | 422) && {
        let words = summary(&raw.body).to_lowercase();
        PHRASES.iter().any(|phrase| words.contains(phrase))
    }
}

/// A container that knows the id with another body: two different rollouts have one id, which is a defect.
fn identity_conflict(rollout_id: &str, raw: &Raw) -> Option<OptimizerError> {
    const CONFLICT: &str = "rollout_identity_conflict";
    (raw.status == 409 && summary(&raw.body).contains(CONFLICT)).then(|| {
        let message = format!("{CONFLICT}: the container has run rollout {rollout_id} with another request");
        broken(message, "Restart the container, so that it forgets older runs, or give the run another run_id.")
    })
}

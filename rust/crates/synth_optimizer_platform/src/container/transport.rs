//! Carries rollouts to the container and brings back their records, without ever running one twice unknowingly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Url};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::client::{Client, Request};
use super::contract::Contract;
use super::poll::Found;
use super::record::{Received, Status, failure};
use crate::http::{Lost, Raw, excerpt, summary};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::TransportFallback;

/// Replies above this size are read on a thread of their own.
const LARGE_REPLY: usize = 256 * 1024;

/// Builds the body of a rollout in the mode in which it is sent.
pub type BodyOf<'a> = dyn Fn(SubmissionMode) -> Result<Bytes, OptimizerError> + Send + Sync + 'a;

/// One rollout to run.
#[derive(Clone, Copy)]
pub struct RolloutCall<'a> {
    pub rollout_id: &'a str,
    /// Asked when the body is needed: once, and again when the container takes no async rollouts.
    pub body: &'a BodyOf<'a>,
    /// Set after a crash: the container is asked for the rollout before it is sent again.
    pub may_have_been_sent: bool,
}

impl std::fmt::Debug for RolloutCall<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RolloutCall")
            .field("rollout_id", &self.rollout_id)
            .field("may_have_been_sent", &self.may_have_been_sent)
            .finish_non_exhaustive()
    }
}

/// How a rollout ended.
#[derive(Debug)]
pub struct RolloutEnd {
    /// The record of a rollout at its end, good or bad: `read_reply` tells which.
    pub outcome: Result<Received, CallFailure>,
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
    pub(super) client: Client,
    route: String,
    /// Of the route.
    address: Url,
    pub(super) sync_timeout: Duration,
    pub(super) async_timeout: Duration,
    pub(super) poll_interval: Duration,
    overload_statuses: Vec<u16>,
    wants_async: bool,
    /// The container has refused an async rollout, or advertises none.
    sync_only: AtomicBool,
    advertises_async: bool,
    rollout_modes: Vec<String>,
    /// `workers.evaluate`: how many answers are read at once.
    decoding: Semaphore,
}

impl Transport {
    pub fn new(client: Client, contract: &Contract, config: &Config) -> Self {
        let gepa = &config.gepa;
        let modes = &contract.rollout_modes;
        let advertises_async = modes.is_empty() || modes.iter().any(|mode| mode.trim().eq_ignore_ascii_case("async"));
        Self {
            address: client.address(&contract.routes.rollout),
            client,
            route: contract.routes.rollout.clone(),
            sync_timeout: Duration::from_secs(config.container.rollout_timeout_seconds),
            async_timeout: Duration::from_secs(gepa.rollout_async_timeout_seconds),
            poll_interval: Duration::from_millis(gepa.rollout_poll_interval_ms),
            overload_statuses: gepa.pipeline.adaptive_rollout_concurrency.overload_status_codes.clone(),
            wants_async: match gepa.rollout_submission_mode {
                SubmissionMode::Async => true,
                SubmissionMode::Sync => false,
            },
            sync_only: AtomicBool::new(!advertises_async),
            advertises_async,
            rollout_modes: modes.clone(),
            decoding: Semaphore::new(gepa.pipeline.workers.evaluate.max(1) as usize),
        }
    }

    /// Set when the config asks for async rollouts and the container advertises only others.
    pub fn fallback_at_start(&self) -> Option<TransportFallback> {
        (self.wants_async && !self.advertises_async)
            .then(|| fallback(format!("the container's rollout_modes are {}", self.rollout_modes.join(", "))))
    }

    /// How the next rollout is sent.
    pub fn mode(&self) -> SubmissionMode {
        if self.wants_async && !self.sync_only.load(Ordering::Relaxed) {
            SubmissionMode::Async
        } else {
            SubmissionMode::Sync
        }
    }

    /// Runs one rollout to its end, its deadline or its failure.
    pub async fn rollout(&self, call: RolloutCall<'_>) -> RolloutEnd {
        let mut end =
            RolloutEnd { outcome: Err(unsent("it was not sent")), overload: None, fallback: None, fatal: None };
        if call.may_have_been_sent {
            let deadline = Instant::now() + self.timeout(self.mode());
            match self.find(call.rollout_id, deadline, &mut end.overload).await {
                Found::Ended(outcome) => {
                    end.outcome = outcome;
                    return end;
                }
                Found::Nowhere => {}
            }
        }
        let mode = self.mode();
        if self.submit(call, mode, &mut end).await == Submitted::OnlySync {
            if !self.sync_only.swap(true, Ordering::Relaxed) {
                end.fallback = Some(fallback("the container refused an async rollout: it takes only sync ones".into()));
            }
            self.submit(call, SubmissionMode::Sync, &mut end).await;
        }
        end
    }

    /// Sends the rollout and follows it to its end.
    async fn submit(&self, call: RolloutCall<'_>, mode: SubmissionMode, end: &mut RolloutEnd) -> Submitted {
        let body = match (call.body)(mode) {
            Ok(body) => body,
            Err(error) => {
                end.outcome = Err(failure(FailureClass::Contract, error.message.clone()));
                end.fatal = Some(error);
                return Submitted::Done;
            }
        };
        let timeout = self.timeout(mode);
        let request = Request { method: Method::POST, address: self.address.clone(), body: Some(body), timeout };
        let sent = self.client.send_patiently(request).await;
        let deadline = sent.sent_at + timeout;
        self.note(sent.refused, &mut end.overload);
        end.outcome = match sent.outcome {
            Ok(raw) if raw.is_success() => self.accepted(call.rollout_id, raw, deadline, end).await,
            Ok(raw) => {
                self.note(Some(raw.status), &mut end.overload);
                if mode == SubmissionMode::Async && takes_only_sync(&raw) {
                    return Submitted::OnlySync;
                }
                end.fatal = identity_conflict(call.rollout_id, &raw);
                Err(self.refused(&raw))
            }
            Err(Lost::NeverSent(reason)) => Err(unsent(&reason)),
            Err(Lost::TooLarge { status }) => Err(self.too_large(status)),
            Err(Lost::Unknown(reason)) => self.reconcile(call.rollout_id, &reason, deadline, &mut end.overload).await,
        };
        Submitted::Done
    }

    /// A first reply that is at its end is final, in whichever mode it was asked for.
    async fn accepted(
        &self,
        rollout_id: &str,
        raw: Raw,
        deadline: Instant,
        end: &mut RolloutEnd,
    ) -> Result<Received, CallFailure> {
        let status = raw.status;
        let received = self.receive(raw.body).await;
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
        if record.is_of_another(rollout_id) {
            let message =
                format!("the container runs the rollout under another id than {rollout_id}, which it was given");
            return Err(failure(FailureClass::Contract, message));
        }
        self.follow(rollout_id, deadline, &mut end.overload).await
    }

    /// Reads a body. A large one is read on a thread of its own.
    pub(super) async fn receive(&self, body: Bytes) -> Received {
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

    pub(super) fn timeout(&self, mode: SubmissionMode) -> Duration {
        match mode {
            SubmissionMode::Sync => self.sync_timeout,
            SubmissionMode::Async => self.async_timeout,
        }
    }

    /// Remembers a status that means overload.
    pub(super) fn note(&self, status: Option<u16>, overload: &mut Option<u16>) {
        if let Some(status) = status.filter(|status| self.overload_statuses.contains(status)) {
            *overload = Some(status);
        }
    }

    fn refused(&self, raw: &Raw) -> CallFailure {
        let class = match raw.status {
            429 | 503 => FailureClass::NotSent,
            408 | 500.. => FailureClass::Failed,
            _ => FailureClass::Contract,
        };
        failure(class, format!("POST {} answered {}: {}", self.route, raw.status, excerpt(&raw.body)))
    }

    pub(super) fn too_large(&self, status: u16) -> CallFailure {
        let limit = self.client.limits.max_reply / (1024 * 1024);
        let message = format!("the answer ({status}) is larger than container.max_reply_mb = {limit}");
        failure(FailureClass::Contract, message)
    }
}

#[derive(PartialEq, Eq)]
enum Submitted {
    Done,
    /// Nothing ran: the container takes no async rollouts.
    OnlySync,
}

fn unsent(reason: &str) -> CallFailure {
    failure(FailureClass::NotSent, format!("the rollout was not sent: {reason}"))
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
    let words = || summary(&raw.body).to_lowercase();
    matches!(raw.status, 400 | 422)
        && ["submission_mode", "only sync", "sync only", "async is not", "async not supported"]
            .iter()
            .any(|phrase| words().contains(phrase))
}

/// A container that knows the id with another body: two different rollouts have one id, which is a defect.
fn identity_conflict(rollout_id: &str, raw: &Raw) -> Option<OptimizerError> {
    const CONFLICT: &str = "rollout_identity_conflict";
    (raw.status == 409 && summary(&raw.body).contains(CONFLICT)).then(|| {
        let message = format!("{CONFLICT}: the container has run rollout {rollout_id} with another request");
        OptimizerError::new(ErrorCode::Container, message)
            .with_hint("Restart the container, so that it forgets older runs, or give the run another run_id.")
    })
}

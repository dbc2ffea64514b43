//! Follows a rollout that the container has: polls its state, fetches its record once, and ends it at its deadline.

use bytes::Bytes;
use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;
use tracing::warn;

use super::client::Request;
use super::record::{Received, Status, failure};
use super::transport::Transport;
use crate::http::{Lost, Raw};
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};

/// What the container knows about a rollout.
pub(super) enum Found {
    /// It has run, or nobody will ever know.
    Ended(Result<Received, CallFailure>),
    /// The container does not know it: it may be sent.
    Nowhere,
}

/// One look at a rollout.
enum Look {
    Active,
    /// At its end, good or bad, with the body that says so.
    Ended(Received),
    /// The container does not know it, or has no such route.
    Unknown,
    /// No usable answer this time.
    Missed(String),
    /// An answer that no repetition will mend.
    Broken(CallFailure),
}

impl Transport {
    /// Ends a rollout that nobody waits for any more. Whether it was ended is not known to the caller.
    pub async fn terminate(&self, rollout_id: &str) {
        self.ask_to_end(rollout_id, "cancelled").await;
    }

    /// Looks for a rollout that may have been sent before a crash, and waits for it if it runs.
    pub(super) async fn find(&self, rollout_id: &str, deadline: Instant, overload: &mut Option<u16>) -> Found {
        match self.look_patiently(rollout_id, deadline, overload).await {
            Look::Active => Found::Ended(self.follow(rollout_id, deadline, overload).await),
            Look::Ended(body) => Found::Ended(Ok(body)),
            Look::Unknown => Found::Nowhere,
            Look::Missed(reason) => Found::Ended(Err(unknown(&reason))),
            Look::Broken(failure) => Found::Ended(Err(failure)),
        }
    }

    /// Settles a rollout whose request may have arrived and whose answer did not.
    pub(super) async fn reconcile(
        &self,
        rollout_id: &str,
        reason: &str,
        deadline: Instant,
        overload: &mut Option<u16>,
    ) -> Result<Received, CallFailure> {
        // The deadline may be what has passed; the question is a call of its own.
        match self.look_patiently(rollout_id, Instant::now() + self.client.request_timeout, overload).await {
            Look::Active => self.follow(rollout_id, deadline, overload).await,
            Look::Ended(body) => Ok(body),
            Look::Unknown | Look::Missed(_) => Err(unknown(reason)),
            Look::Broken(failure) => Err(failure),
        }
    }

    /// Polls until the rollout is at its end or the deadline passes. A missed poll is no reason to give up: a container
    /// that runs its rollouts in one thread does not answer meanwhile.
    pub(super) async fn follow(
        &self,
        rollout_id: &str,
        deadline: Instant,
        overload: &mut Option<u16>,
    ) -> Result<Received, CallFailure> {
        let mut last_miss = None;
        loop {
            let next = (Instant::now() + self.poll_interval).min(deadline);
            tokio::time::sleep_until(next).await;
            if Instant::now() >= deadline {
                return Err(self.expire(rollout_id, last_miss).await);
            }
            match self.look(rollout_id, deadline, overload).await {
                Look::Active => last_miss = None,
                Look::Ended(body) => return Ok(body),
                Look::Unknown => return Err(unknown("the container no longer knows the rollout")),
                Look::Missed(reason) => {
                    warn!(cause = reason, "a look at the rollout was missed");
                    last_miss = Some(reason);
                }
                Look::Broken(failure) => return Err(failure),
            }
        }
    }

    /// Looks again while there is no answer at all.
    async fn look_patiently(&self, rollout_id: &str, deadline: Instant, overload: &mut Option<u16>) -> Look {
        for _ in 0..self.client.limits.connect_retries {
            let look = self.look(rollout_id, deadline, overload).await;
            let next = Instant::now() + self.poll_interval;
            match look {
                Look::Missed(cause) if next < deadline => warn!(cause, "the state of the rollout is asked for again"),
                Look::Missed(_) | Look::Active | Look::Ended(_) | Look::Unknown | Look::Broken(_) => return look,
            }
            tokio::time::sleep_until(next).await;
        }
        self.look(rollout_id, deadline, overload).await
    }

    /// The state first, which is short; the record once the state is at its end, or where no state is served.
    async fn look(&self, rollout_id: &str, deadline: Instant, overload: &mut Option<u16>) -> Look {
        let state = self.get(&format!("/rollouts/{rollout_id}/state"), rollout_id, deadline, overload).await;
        let ended = match state {
            Look::Ended(body) => Some(body),
            Look::Unknown => None,
            Look::Active | Look::Missed(_) | Look::Broken(_) => return state,
        };
        let record = self.get(&format!("/rollouts/{rollout_id}"), rollout_id, deadline, overload).await;
        match (record, ended) {
            // A failure needs no record to be one.
            (Look::Unknown | Look::Active, Some(state)) if has_failed(&state) => Look::Ended(state),
            (record, _) => record,
        }
    }

    async fn get(&self, route: &str, rollout_id: &str, deadline: Instant, overload: &mut Option<u16>) -> Look {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = self.client.request_timeout.min(left);
        let request = Request { method: Method::GET, address: self.client.address(route), body: None, timeout };
        match self.client.send(request).await {
            Ok(raw) => {
                self.note(Some(raw.status), overload);
                self.read(raw, rollout_id).await
            }
            Err(Lost::NeverSent(reason) | Lost::Unknown(reason)) => Look::Missed(reason),
            Err(Lost::TooLarge { status }) => Look::Broken(self.too_large(status)),
        }
    }

    /// The deadline has passed: the rollout is known to have ended only if the container says so.
    async fn expire(&self, rollout_id: &str, last_miss: Option<String>) -> CallFailure {
        if self.ask_to_end(rollout_id, "gepa_async_timeout").await {
            return failure(FailureClass::Timeout, "the rollout passed its deadline and was terminated".into());
        }
        let miss = last_miss.map(|miss| format!("; the last poll failed: {miss}")).unwrap_or_default();
        unknown(&format!("the rollout passed its deadline and the container did not end it{miss}"))
    }

    /// Whether the container acknowledged.
    async fn ask_to_end(&self, rollout_id: &str, reason: &str) -> bool {
        let route = format!("/rollouts/{rollout_id}/terminate");
        let body = Some(Bytes::from(json!({ "reason": reason }).to_string()));
        let request = Request {
            method: Method::POST,
            address: self.client.address(&route),
            body,
            timeout: self.client.request_timeout,
        };
        self.client.send(request).await.is_ok_and(|raw| raw.is_success())
    }

    async fn read(&self, raw: Raw, rollout_id: &str) -> Look {
        match raw.status {
            200..300 => {}
            408 | 425 | 429 | 500.. => return Look::Missed(format!("the container answered {}", raw.status)),
            _ => return Look::Unknown,
        }
        let received = self.receive(raw.body).await;
        let status = match &received.record {
            Ok(record) if record.is_of_another(rollout_id) => {
                let message = format!("the container answered for another rollout than {rollout_id}");
                return Look::Broken(failure(FailureClass::Contract, message));
            }
            Ok(record) => record.status(),
            Err(failure) => Err(failure.clone()),
        };
        match status {
            Ok(Status::Active) => Look::Active,
            Ok(Status::Succeeded | Status::Failed | Status::Absent) => Look::Ended(received),
            Err(failure) => Look::Broken(failure),
        }
    }
}

fn has_failed(state: &Received) -> bool {
    state.record.as_ref().is_ok_and(|record| matches!(record.status(), Ok(Status::Failed)))
}

fn unknown(reason: &str) -> CallFailure {
    failure(FailureClass::UnknownOutcome, format!("nobody knows whether the rollout ran: {reason}"))
}

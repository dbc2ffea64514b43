//! Follows a rollout that the container has: polls its state, fetches its record once, and ends it at its deadline.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;
use tracing::warn;

use super::record::{Received, Status, failure};
use super::transport::{Outcome, Rollout, Transport, unknown};
use crate::http::{Lost, Raw};
use synth_optimizer_core::model::answer::{CallFailure, FailureClass};

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

impl Rollout<'_> {
    /// Looks for a rollout that may have been sent, again until `patience` while there is no answer at all, and waits for
    /// it if it runs. There is no outcome where the container does not know it: it may be sent. `lost` is why its first
    /// answer did not come.
    pub(super) async fn find(&mut self, patience: Instant, deadline: Instant, lost: Option<&str>) -> Option<Outcome> {
        let mut retries = self.transport.client.container.connect_retries;
        let look = loop {
            let look = self.look(patience).await;
            let next = Instant::now() + self.poll_interval();
            match look {
                Look::Missed(cause) if retries > 0 && next < patience => {
                    warn!(cause, "the state of the rollout is asked for again");
                }
                Look::Missed(_) | Look::Active | Look::Ended(_) | Look::Unknown | Look::Broken(_) => break look,
            }
            retries -= 1;
            tokio::time::sleep_until(next).await;
        };
        match look {
            Look::Active => Some(self.follow(deadline).await),
            Look::Ended(body) => Some(Ok(body)),
            Look::Unknown => None,
            Look::Missed(reason) => Some(Err(unknown(lost.unwrap_or(&reason)))),
            Look::Broken(failure) => Some(Err(failure)),
        }
    }

    /// Polls until the rollout is at its end or the deadline passes. A missed poll is no reason to give up: a container
    /// that runs its rollouts in one thread does not answer meanwhile.
    pub(super) async fn follow(&mut self, deadline: Instant) -> Outcome {
        let mut last_miss = None;
        loop {
            let next = (Instant::now() + self.poll_interval()).min(deadline);
            tokio::time::sleep_until(next).await;
            if Instant::now() >= deadline {
                return Err(self.expire(last_miss).await);
            }
            match self.look(deadline).await {
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

    /// The state first, which is short; the record once the state is at its end, or where no state is served.
    async fn look(&mut self, deadline: Instant) -> Look {
        let state = self.get(&format!("/rollouts/{}/state", self.id), deadline).await;
        let ended = match state {
            Look::Ended(body) => Some(body),
            Look::Unknown => None,
            Look::Active | Look::Missed(_) | Look::Broken(_) => return state,
        };
        match (self.get(&format!("/rollouts/{}", self.id), deadline).await, ended) {
            // A failure needs no record to be one.
            (Look::Unknown | Look::Active, Some(state)) if has_failed(&state) => Look::Ended(state),
            (record, _) => record,
        }
    }

    async fn get(&mut self, route: &str, deadline: Instant) -> Look {
        let client = &self.transport.client;
        let timeout = client.request_timeout().min(deadline.saturating_duration_since(Instant::now()));
        match client.send(Method::GET, &client.address(route), None, timeout).await {
            Ok(raw) => {
                self.note(Some(raw.status));
                self.read(raw).await
            }
            Err(Lost::NeverSent(reason) | Lost::Unknown(reason)) => Look::Missed(reason),
            Err(Lost::TooLarge { status }) => Look::Broken(self.transport.too_large(status)),
        }
    }

    async fn read(&self, raw: Raw) -> Look {
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
            Ok(Status::Succeeded | Status::Failed | Status::Absent) => Look::Ended(received),
            Err(failure) => Look::Broken(failure),
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
}

impl Transport {
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
}

fn has_failed(state: &Received) -> bool {
    state.record.as_ref().is_ok_and(|record| matches!(record.status(), Ok(Status::Failed)))
}

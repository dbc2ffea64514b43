//! One HTTP exchange: a request under a total deadline, a reply under a size cap, and what is safe to send again.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Url};
use tokio::time::Instant;

use super::client::Client;
use crate::http::{self, Lost, Raw, Reading};

/// Whether the container refused the call before it did any work.
fn is_refusal(raw: &Raw) -> bool {
    matches!(raw.status, 429 | 503)
}

/// How a call that is sent again while that is safe has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) outcome: Result<Raw, Lost>,
    /// The last status with which the container refused the call.
    pub(super) refused: Option<u16>,
    /// When the call was sent for the last time.
    pub(super) sent_at: Instant,
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) address: Url,
    pub(super) body: Option<Bytes>,
    /// From the first byte out to the last byte in.
    pub(super) timeout: Duration,
}

impl Client {
    /// Sends once.
    pub(super) async fn send(&self, request: Request) -> Result<Raw, Lost> {
        let deadline = Instant::now() + request.timeout;
        let timeout = request.timeout;
        match tokio::time::timeout_at(deadline, self.exchange(request)).await {
            Ok(result) => result,
            Err(_) => Err(Lost::Unknown(format!("there was no whole answer within {} s", timeout.as_secs_f64()))),
        }
    }

    /// Sends again only what has certainly not been run: calls that never left and calls that the container refused.
    pub(super) async fn send_patiently(&self, request: Request) -> Ended {
        let (mut unsent, mut refusals, mut refused) = (0, 0, None);
        loop {
            let sent_at = Instant::now();
            let outcome = self.send(request.clone()).await;
            let pause = match &outcome {
                Err(Lost::NeverSent(_)) if unsent < self.limits.connect_retries => {
                    unsent += 1;
                    self.limits.backoff(unsent)
                }
                Ok(raw) if is_refusal(raw) => {
                    refused = Some(raw.status);
                    if refusals == self.limits.overload_retries {
                        return Ended { outcome, refused, sent_at };
                    }
                    refusals += 1;
                    let asked = raw.retry_after.map(|pause| pause.min(self.limits.backoff_max));
                    asked.unwrap_or_else(|| self.limits.backoff(refusals))
                }
                Ok(_) | Err(Lost::NeverSent(_) | Lost::Unknown(_) | Lost::TooLarge { .. }) => {
                    return Ended { outcome, refused, sent_at };
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn exchange(&self, request: Request) -> Result<Raw, Lost> {
        let mut builder = self.http.request(request.method, request.address);
        if let Some(body) = request.body {
            builder = builder.header(CONTENT_TYPE, "application/json").body(body);
        }
        http::exchange(builder, Reading { most: self.limits.max_reply, idle: None }).await
    }
}

/// What may be sent again, how often and after which pause, and how much is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) connect_retries: u32,
    pub(super) overload_retries: u32,
    pub(super) backoff_first: Duration,
    pub(super) backoff_max: Duration,
    pub(super) max_reply: u64,
}

impl Limits {
    /// The pause before the given retry, counted from 1; it doubles every time.
    fn backoff(&self, retry: u32) -> Duration {
        http::backoff(self.backoff_first, self.backoff_max, retry)
    }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;

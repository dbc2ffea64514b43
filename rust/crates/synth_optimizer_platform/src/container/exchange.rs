//! One HTTP exchange: a request under a total deadline, a reply under a size cap, and what is safe to send again.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use tokio::time::Instant;

use super::client::Client;
use super::excerpt::shown_error;
use super::retry_after;

/// A whole reply, whatever its status.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) body: Bytes,
    /// How long the container asks us to wait.
    retry_after: Option<Duration>,
}

impl Raw {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the container refused the call before it did any work.
    fn is_refusal(&self) -> bool {
        matches!(self.status, 429 | 503)
    }
}

/// Why there is no whole reply.
#[derive(Debug)]
pub(super) enum Lost {
    /// The request did not leave: nobody listens, no address, no TLS.
    NeverSent(String),
    /// The request may have arrived: the connection broke or the deadline passed.
    Unknown(String),
    /// The reply began and is larger than the cap.
    TooLarge { status: u16 },
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
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) route: &'a str,
    pub(super) body: Option<Bytes>,
    /// From the first byte out to the last byte in.
    pub(super) timeout: Duration,
}

impl Client {
    /// Sends once.
    pub(super) async fn send(&self, request: Request<'_>) -> Result<Raw, Lost> {
        let deadline = Instant::now() + request.timeout;
        let timeout = request.timeout;
        match tokio::time::timeout_at(deadline, self.exchange(request)).await {
            Ok(result) => result,
            Err(_) => Err(Lost::Unknown(format!("there was no whole answer within {} s", timeout.as_secs_f64()))),
        }
    }

    /// Sends again only what has certainly not been run: calls that never left and calls that the container refused.
    pub(super) async fn send_patiently(&self, request: Request<'_>) -> Ended {
        let (mut unsent, mut refusals, mut refused) = (0, 0, None);
        loop {
            let sent_at = Instant::now();
            let outcome = self.send(request.clone()).await;
            let pause = match &outcome {
                Err(Lost::NeverSent(_)) if unsent < self.limits.connect_retries => {
                    unsent += 1;
                    self.limits.backoff(unsent)
                }
                Ok(raw) if raw.is_refusal() => {
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

    async fn exchange(&self, request: Request<'_>) -> Result<Raw, Lost> {
        let mut builder = self.http.request(request.method, self.address(request.route));
        if let Some(body) = request.body {
            builder = builder.header(CONTENT_TYPE, "application/json").body(body);
        }
        let mut response = builder.send().await.map_err(|error| lost(&error))?;
        let status = response.status().as_u16();
        if response.content_length().is_some_and(|length| length > self.limits.max_reply) {
            return Err(Lost::TooLarge { status });
        }
        let content_type = header(response.headers(), CONTENT_TYPE.as_str());
        let retry_after = retry_after::pause(&header(response.headers(), RETRY_AFTER.as_str()));
        let (mut whole, mut body) = (Bytes::new(), BytesMut::new());
        while let Some(chunk) = response.chunk().await.map_err(|error| lost(&error))? {
            if (whole.len() + body.len() + chunk.len()) as u64 > self.limits.max_reply {
                return Err(Lost::TooLarge { status });
            }
            // Most replies come in one piece, which is taken as it is.
            if whole.is_empty() && body.is_empty() {
                whole = chunk;
            } else {
                body.extend_from_slice(&std::mem::take(&mut whole));
                body.extend_from_slice(&chunk);
            }
        }
        let body = if body.is_empty() { whole } else { body.freeze() };
        Ok(Raw { status, content_type, body, retry_after })
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
        let factor = 2u32.checked_pow(retry.saturating_sub(1)).unwrap_or(u32::MAX);
        self.backoff_first.saturating_mul(factor).min(self.backoff_max)
    }
}

fn header(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// A connection that did not come about carried nothing; after that, the request may have arrived.
fn lost(error: &reqwest::Error) -> Lost {
    let reason = shown_error(error);
    if error.is_connect() || error.is_builder() { Lost::NeverSent(reason) } else { Lost::Unknown(reason) }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;

//! The HTTP client of one container: exchanges under a deadline and a size cap, what is safe to send again, and the calls
//! of the setup.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Url};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tracing::warn;

use super::broken;
use super::reach::{Reach, not_allowed, says_not_allowed};
use crate::http::{self, Lost, Raw, Reading, excerpt, pauses, shown_error};
use synth_optimizer_core::config::sections::ContainerSection;
use synth_optimizer_core::model::error::OptimizerError;

/// Speaks with one container. Clones share their connections.
///
/// It follows no redirect, uses no proxy, sends no credential, and connects only to what its reach allows.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    pub(super) container: ContainerSection,
    reach: Reach,
    base: Url,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Client").field("host", &self.base.host_str()).field("port", &self.base.port()).finish()
    }
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

impl Client {
    /// A client that may connect to anything. Nothing is looked up yet.
    pub fn new(container: &ContainerSection) -> Result<Self, OptimizerError> {
        Self::guarded(container, &Reach::default())
    }

    /// A client that connects only to what is allowed. Fails when the address leads to something else; nobody is
    /// connected to.
    pub async fn within(container: &ContainerSection, reach: &Reach) -> Result<Self, OptimizerError> {
        reach.check(&container.url).await?;
        Self::guarded(container, reach)
    }

    fn guarded(container: &ContainerSection, reach: &Reach) -> Result<Self, OptimizerError> {
        let hint = "Write it like http://127.0.0.1:9100.";
        let bad = |problem: &str| broken(format!("container.url {problem}"), hint);
        // The parser's own message could repeat what may be a credential.
        let base = Url::parse(container.url.trim()).map_err(|_| bad("is not an address"))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(bad("does not start with http:// or https:// and a host"));
        }
        let builder = http::client(&base).connect_timeout(Duration::from_secs(container.connect_timeout_seconds));
        let http = reach.guard(builder, base.port_or_known_default()).build().map_err(|error| {
            let message = format!("the HTTP client cannot be made: {}", shown_error(&error));
            broken(message, "An https:// container needs the certificates of the system.")
        })?;
        Ok(Self { http, container: container.clone(), reach: reach.clone(), base })
    }

    /// How long a call other than a rollout may take.
    pub(super) fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.container.request_timeout_seconds)
    }

    /// Whether somebody listens at the address.
    pub(super) async fn is_taken(&self) -> bool {
        let (host, port) = self.host_and_port();
        let connected = async {
            let addresses = self.reach.addresses(&host, port).await?;
            let places: Vec<SocketAddr> = addresses.into_iter().map(|address| (address, port).into()).collect();
            TcpStream::connect(places.as_slice()).await
        };
        let limit = Duration::from_secs(self.container.connect_timeout_seconds);
        matches!(tokio::time::timeout(limit, connected).await, Ok(Ok(_)))
    }

    /// A call of the setup. It is sent again when nobody listens or the container refuses it with 429 or 503.
    pub async fn json(&self, method: Method, route: &str, body: Option<&Value>) -> Result<Value, OptimizerError> {
        let place = format!("{method} {route}");
        let body = body.map(|body| Bytes::from(body.to_string()));
        let ended = self.send_patiently(method, &self.address(route), body, self.request_timeout()).await;
        let raw = ended.outcome.map_err(|lost| self.no_reply(&place, lost))?;
        if !raw.is_success() {
            return Err(refused(&place, &raw));
        }
        serde_json::from_slice(&raw.body).map_err(|_| {
            let kind = if raw.content_type.is_empty() { "no content type" } else { &raw.content_type };
            let hint = "container.url must name the task container itself, not a page or a proxy before it.";
            broken(format!("{place} answered {} with no JSON ({kind})", raw.status), hint)
                .with_detail(excerpt(&raw.body))
        })
    }

    /// Sends once. The timeout goes from the first byte out to the last byte in.
    pub(super) async fn send(
        &self,
        method: Method,
        address: &Url,
        body: Option<Bytes>,
        timeout: Duration,
    ) -> Result<Raw, Lost> {
        let mut builder = self.http.request(method, address.clone());
        if let Some(body) = body {
            builder = builder.header(CONTENT_TYPE, "application/json").body(body);
        }
        let most = self.container.max_reply_mb.saturating_mul(1024 * 1024);
        let exchange = http::exchange(builder, Reading { most, idle: None });
        tokio::time::timeout(timeout, exchange).await.unwrap_or_else(|_elapsed| {
            Err(Lost::Unknown(format!("there was no whole answer within {} s", timeout.as_secs_f64())))
        })
    }

    /// Sends again only what has certainly not been run: calls that never left and calls that the container refused.
    pub(super) async fn send_patiently(
        &self,
        method: Method,
        address: &Url,
        body: Option<Bytes>,
        timeout: Duration,
    ) -> Ended {
        let longest = Duration::from_millis(self.container.retry_backoff_max_ms);
        let retries = |most| pauses(Duration::from_millis(self.container.retry_backoff_ms), longest, most);
        let mut unsent = retries(self.container.connect_retries);
        let mut refusals = retries(self.container.overload_retries);
        let mut refused = None;
        loop {
            let sent_at = Instant::now();
            let outcome = self.send(method.clone(), address, body.clone(), timeout).await;
            let (pause, cause) = match &outcome {
                Err(Lost::NeverSent(reason)) => (unsent.next(), reason.clone()),
                Ok(raw) if matches!(raw.status, 429 | 503) => {
                    refused = Some(raw.status);
                    let asked = raw.retry_after.map(|pause| pause.min(longest));
                    (refusals.next().map(|usual| asked.unwrap_or(usual)), format!("it answered {}", raw.status))
                }
                Ok(_) | Err(Lost::Unknown(_) | Lost::TooLarge { .. }) => (None, String::new()),
            };
            let Some(pause) = pause else { return Ended { outcome, refused, sent_at } };
            let route = address.path();
            warn!(route, cause, pause_ms = pause.as_millis() as u64, "the container is asked again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Whether `/health` answers with success.
    pub async fn is_healthy(&self) -> bool {
        let sent = self.send(Method::GET, &self.address("/health"), None, self.request_timeout()).await;
        sent.is_ok_and(|raw| raw.is_success())
    }

    /// The address of a route; the base may have a path of its own.
    pub(super) fn address(&self, route: &str) -> Url {
        http::address(&self.base, route)
    }

    /// Host and port, as a socket takes them.
    pub(super) fn host_and_port(&self) -> (String, u16) {
        let host = self.base.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        (host, self.base.port_or_known_default().unwrap_or(80))
    }

    fn no_reply(&self, place: &str, lost: Lost) -> OptimizerError {
        let (host, port) = self.host_and_port();
        let (message, hint) = match lost {
            Lost::NeverSent(reason) if says_not_allowed(&reason) => return not_allowed(&host),
            Lost::NeverSent(reason) => (
                format!("{place} was not sent to {host}:{port}: {reason}"),
                "Start the container, or correct container.url.",
            ),
            Lost::Unknown(reason) => (
                format!("{place} at {host}:{port} gave no answer: {reason}"),
                "Look into the container's log; container.request_timeout_seconds limits the wait.",
            ),
            Lost::TooLarge { status } => (
                format!("{place} answered {status} with more than {} MB", self.container.max_reply_mb),
                "Raise container.max_reply_mb, or let the container send less.",
            ),
        };
        broken(message, hint)
    }
}

fn refused(place: &str, raw: &Raw) -> OptimizerError {
    let hint = match raw.status {
        300..=399 => "Redirects are not followed: name the final address in container.url.",
        401 | 403 => "The container is called without credentials; it must not ask for any.",
        404 | 405 => "The container must serve every route that its /metadata advertises.",
        429 | 503 => "The container is overloaded; container.overload_retries tells how often it is asked again.",
        500.. => "Look into the container's log.",
        _ => "The container's own words are in the detail.",
    };
    broken(format!("{place} answered {}: {}", raw.status, excerpt(&raw.body)), hint)
}

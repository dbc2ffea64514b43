//! The HTTP client of one container: requests with a deadline and a size limit, safe retries, and the setup calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Method, Url};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tracing::{info, warn};

use super::container_error;
use super::token::ContainerToken;
use crate::access::EgressPolicy;
use crate::http::{
    self, ExchangeError, LargeReplies, RawResponse, ReadLimits, backoff_delays, describe_error, excerpt,
};
use crate::json_text;
use synth_optimizer_core::config::sections::ContainerSection;
use synth_optimizer_core::model::error::OptimizerError;

/// HTTP client of one container. Clones share their connections.
///
/// It connects only to addresses that its egress policy allows. It follows no redirects and uses no proxy. It sends the token
/// of `container.token_env`, if there is one, to the container's own origin only.
#[derive(Clone)]
pub struct Client {
    /// Replaced when a connection must not be used again.
    http: Arc<RwLock<reqwest::Client>>,
    pub(super) container: ContainerSection,
    egress_policy: EgressPolicy,
    base: Url,
    large_replies: LargeReplies,
    token: Option<ContainerToken>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Client").field("host", &self.base.host_str()).field("port", &self.base.port()).finish()
    }
}

/// What to do if the container asks for a longer pause than `retry_backoff_max_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LongPause {
    /// Retry earlier.
    Shorten,
    /// Return the refusal. The run then waits as long as the container asks.
    Return,
}

/// Result of a request, after all safe retries.
#[derive(Debug)]
pub(super) struct RetriedExchange {
    pub(super) outcome: Result<RawResponse, ExchangeError>,
    /// The last overload status (429, 503 or 529) that the container returned.
    pub(super) refused: Option<u16>,
    /// When the last attempt was sent.
    pub(super) sent_at: Instant,
}

impl Client {
    /// Creates a client that may connect to any address. The host name is not resolved yet.
    pub fn new(container: &ContainerSection) -> Result<Self, OptimizerError> {
        Self::build(container, &EgressPolicy::default())
    }

    /// Creates a client that connects only to addresses that the policy allows. Resolves the host and fails if one of
    /// its addresses is not allowed; opens no connection.
    pub async fn with_egress_policy(
        container: &ContainerSection,
        egress_policy: &EgressPolicy,
    ) -> Result<Self, OptimizerError> {
        egress_policy.check(&container.url).await?;
        Self::build(container, egress_policy)
    }

    fn build(container: &ContainerSection, egress_policy: &EgressPolicy) -> Result<Self, OptimizerError> {
        let hint = "Write it like http://127.0.0.1:9100.";
        let bad = |problem: &str| container_error(format!("container.url {problem}"), hint);
        let base = Url::parse(container.url.trim()).map_err(|error| bad("is not a URL").caused_by(error))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(bad("does not start with http:// or https:// and a host"));
        }
        let http = Arc::new(RwLock::new(connections(container, egress_policy, &base)?));
        let large_replies = LargeReplies::new(max_reply_bytes(container));
        let token = container.token_env.as_deref().map(ContainerToken::read).transpose()?;
        let (container, egress_policy) = (container.clone(), egress_policy.clone());
        Ok(Self { http, container, egress_policy, base, large_replies, token })
    }

    /// Returns the timeout of every call other than a rollout.
    pub(super) fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.container.request_timeout_seconds)
    }

    /// Returns whether a server accepts connections at the container's address.
    pub(crate) async fn is_listening(&self) -> bool {
        let (host, port) = self.host_and_port();
        let connected = async {
            let resolve = self.egress_policy.resolve(&host, port).await?;
            let places: Vec<SocketAddr> = resolve.into_iter().map(|address| (address, port).into()).collect();
            TcpStream::connect(places.as_slice()).await
        };
        let limit = Duration::from_secs(self.container.connect_timeout_seconds);
        matches!(tokio::time::timeout(limit, connected).await, Ok(Ok(_)))
    }

    /// Sends a setup call and returns its JSON reply. Retries if the connection fails or the container answers 429,
    /// 503 or 529.
    pub async fn json(&self, method: Method, route: &str, body: Option<&Value>) -> Result<Value, OptimizerError> {
        let place = format!("{method} {route}");
        let body = body.map(|body| Bytes::from(body.to_string()));
        let (address, timeout) = (self.address(route), self.request_timeout());
        let ended = self.send_with_retries(method, &address, body, timeout, LongPause::Shorten).await;
        let raw = ended.outcome.map_err(|lost| self.exchange_error(&place, lost))?;
        if !raw.is_success() {
            return Err(self.refused(&place, &raw));
        }
        let (value, altered) = json_text::parse(&raw.body).map_err(|error| {
            let kind = if raw.content_type.is_empty() { "no content type" } else { &raw.content_type };
            let hint = "Set container.url to the task container itself, not to a page or proxy in front of it.";
            container_error(format!("{place} answered {} without JSON ({kind})", raw.status), hint)
                .with_detail(excerpt(&raw.body))
                .caused_by(error)
        })?;
        if let Some(changes) = altered {
            warn!(route, %changes, "the reply of the container was altered, because its JSON is not readable");
        }
        Ok(value)
    }

    /// Sends a request once. The timeout covers the request and the whole response.
    pub(super) async fn send(
        &self,
        method: Method,
        address: &Url,
        body: Option<Bytes>,
        timeout: Duration,
    ) -> Result<RawResponse, ExchangeError> {
        let mut builder = self.http.read().request(method, address.clone());
        if let Some(body) = body {
            builder = builder.header(CONTENT_TYPE, "application/json").body(body);
        }
        let token = self.token.as_ref().filter(|_| address.origin() == self.base.origin());
        if let Some(token) = token {
            builder = builder.header(AUTHORIZATION, token.bearer());
        }
        let max_bytes = max_reply_bytes(&self.container);
        let (idle_timeout, large_idle_timeout) = (None, self.request_timeout());
        let limits =
            ReadLimits { max_bytes, idle_timeout, large_idle_timeout, large_replies: self.large_replies.clone() };
        let exchange = http::exchange(builder, limits);
        let outcome = tokio::time::timeout(timeout, exchange).await.unwrap_or_else(|_elapsed| {
            Err(ExchangeError::Unknown(format!("no complete answer arrived within {} s", timeout.as_secs_f64())))
        });
        // Many servers close the connection after a server error, without saying so. A request on such a connection is lost.
        if matches!(&outcome, Ok(raw) if raw.status >= 500) || matches!(&outcome, Err(ExchangeError::Unknown(_))) {
            match connections(&self.container, &self.egress_policy, &self.base) {
                Ok(http) => *self.http.write() = http,
                Err(error) => warn!(%error, "the connections to the container are kept after an error"),
            }
        }
        outcome.map(|raw| match token {
            Some(token) => RawResponse { body: token.hide_in(raw.body), ..raw },
            None => raw,
        })
    }

    /// Sends a request and retries only when the container certainly did not process it: the connection failed, or the
    /// container answered 429, 503 or 529.
    pub(super) async fn send_with_retries(
        &self,
        method: Method,
        address: &Url,
        body: Option<Bytes>,
        timeout: Duration,
        long_pause: LongPause,
    ) -> RetriedExchange {
        let longest = Duration::from_millis(self.container.retry_backoff_max_ms);
        let retries = |most| backoff_delays(Duration::from_millis(self.container.retry_backoff_ms), longest, most);
        let mut unsent = retries(self.container.connect_retries);
        let mut refusals = retries(self.container.overload_retries);
        let mut refused = None;
        loop {
            let sent_at = Instant::now();
            let outcome = self.send(method.clone(), address, body.clone(), timeout).await;
            let (pause, cause) = match &outcome {
                Err(ExchangeError::NeverSent(reason) | ExchangeError::OutOfFiles(reason)) => {
                    (unsent.next(), reason.clone())
                }
                Ok(raw) if http::is_overload(raw.status) => {
                    refused = Some(raw.status);
                    let asked = raw.retry_after.unwrap_or_default();
                    let next = refusals.next().filter(|_| asked <= longest || long_pause == LongPause::Shorten);
                    let pause = next.map(|usual| raw.retry_after.map_or(usual, |asked| asked.min(longest)));
                    (pause, format!("it answered {}", raw.status))
                }
                Ok(_) | Err(ExchangeError::Unknown(_) | ExchangeError::TooLarge { .. }) => (None, String::new()),
            };
            let Some(pause) = pause else { return RetriedExchange { outcome, refused, sent_at } };
            let route = address.path();
            info!(route, cause, pause_ms = pause.as_millis() as u64, "the container is called again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Returns whether `/health` answers with a success status.
    pub async fn is_healthy(&self) -> bool {
        let sent = self.send(Method::GET, &self.address("/health"), None, self.request_timeout()).await;
        sent.is_ok_and(|raw| raw.is_success())
    }

    /// Returns the URL of a route. The base URL may have a path of its own.
    pub(super) fn address(&self, route: &str) -> Url {
        http::address(&self.base, route)
    }

    /// Returns host and port in the form that a socket accepts.
    pub(super) fn host_and_port(&self) -> (String, u16) {
        let host = self.base.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        (host, self.base.port_or_known_default().unwrap_or(80))
    }

    /// Describes a container that does not answer.
    pub(super) fn unreachable(&self, reason: &str) -> String {
        let (host, port) = self.host_and_port();
        format!("the container at {host}:{port} does not answer: {reason}")
    }

    /// Returns whether a connection failed because the egress policy denied it.
    pub(super) fn is_denial(&self, reason: &str) -> bool {
        self.egress_policy.is_denial(reason)
    }

    /// Returns the error for an address that the egress policy does not allow.
    pub(super) fn denied(&self) -> OptimizerError {
        self.egress_policy.denied(&self.host_and_port().0)
    }

    fn exchange_error(&self, place: &str, lost: ExchangeError) -> OptimizerError {
        let (host, port) = self.host_and_port();
        let is_outage = !matches!(lost, ExchangeError::TooLarge { .. });
        let (message, hint) = match lost {
            ExchangeError::OutOfFiles(reason) => return http::out_of_files(&reason),
            ExchangeError::NeverSent(reason) if self.egress_policy.is_denial(&reason) => {
                return self.egress_policy.denied(&host);
            }
            ExchangeError::NeverSent(reason) => (
                format!("{place} was not sent to {host}:{port}: {reason}"),
                "Start the container, or correct container.url.",
            ),
            ExchangeError::Unknown(reason) => (
                format!("{place} at {host}:{port} returned no answer: {reason}"),
                "Check the container's log; container.request_timeout_seconds is the limit.",
            ),
            ExchangeError::TooLarge { status } => (
                format!("{place} answered {status} with more than {} MB", self.container.max_reply_mb),
                "Raise container.max_reply_mb, or reduce the reply of the container.",
            ),
        };
        let error = container_error(message, hint);
        if is_outage { error.of_outage() } else { error }
    }

    fn refused(&self, place: &str, raw: &RawResponse) -> OptimizerError {
        let hint = match raw.status {
            300..=399 => "Set container.url to the final address; redirects are not followed.".to_owned(),
            401 | 403 => match &self.container.token_env {
                Some(name) => format!("Check the token in {name}, the variable that container.token_env names."),
                None => "Name the variable that holds the token of the container in container.token_env.".to_owned(),
            },
            404 | 405 => "Serve every route that /metadata of the container advertises.".to_owned(),
            status if http::is_overload(status) => {
                "Reduce the load of the container, or raise container.overload_retries.".to_owned()
            }
            500.. => "Check the container's log.".to_owned(),
            _ => "Read the container's message.".to_owned(),
        };
        let error = container_error(format!("{place} answered {}: {}", raw.status, excerpt(&raw.body)), hint);
        if http::is_overload(raw.status) || matches!(raw.status, 502 | 504) { error.of_outage() } else { error }
    }
}

/// Returns an HTTP client without open connections.
fn connections(
    container: &ContainerSection,
    egress_policy: &EgressPolicy,
    base: &Url,
) -> Result<reqwest::Client, OptimizerError> {
    let builder = http::client(base).connect_timeout(Duration::from_secs(container.connect_timeout_seconds));
    egress_policy.restrict(builder, base)?.build().map_err(|error| {
        let message = format!("creating the HTTP client failed: {}", describe_error(&error));
        container_error(message, "Install the certificates of the system, or use an http:// container.")
    })
}

fn max_reply_bytes(container: &ContainerSection) -> u64 {
    container.max_reply_mb.saturating_mul(1024 * 1024)
}

//! What the HTTP clients of this product share: how they are made, and one exchange under a size cap.

mod excerpt;

use std::sync::Once;
use std::time::{Duration, SystemTime};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, RequestBuilder, Response, Url};
use tracing::trace;

pub(crate) use excerpt::{excerpt, shortened, shown_error, shown_value, summary};

/// Idle connections are dropped before uvicorn closes them, which it does after 5 s: a request must not meet a
/// connection that ends as it is sent.
const IDLE: Duration = Duration::from_secs(4);

/// Replies up to this size are small beside the buffer of a connection.
const COPIED: usize = 4 * 1024;

/// A whole reply, whatever its status.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    /// How long the server asks us to wait.
    pub(crate) retry_after: Option<Duration>,
}

impl Raw {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Why there is no whole reply.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The request did not leave: nobody listens, no address, no TLS.
    NeverSent(String),
    /// The request may have arrived: the connection broke or the deadline passed.
    Unknown(String),
    /// The reply began and is larger than the cap.
    TooLarge { status: u16 },
}

/// How much of a reply is read, and how long it may pause once it has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) most: u64,
    pub(crate) idle: Option<Duration>,
}

/// A client for one base address. It follows no redirect and uses no proxy.
pub(crate) fn client(base: &Url) -> ClientBuilder {
    static TLS: Once = Once::new();
    // Another library of the process may have installed its own, which serves as well.
    TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .pool_idle_timeout(IDLE)
        .http1_only()
        .tcp_nodelay(true)
        .user_agent(concat!("synth-optimizers/", env!("CARGO_PKG_VERSION")));
    // Without TLS certificates are not needed, and a small machine may have none.
    if base.scheme() == "http" { builder.tls_certs_only([]) } else { builder }
}

/// The address of a route; the base may have a path of its own.
pub(crate) fn address(base: &Url, route: &str) -> Url {
    let mut address = base.clone();
    let (path, query) = route.split_once('?').map_or((route, None), |(path, query)| (path, Some(query)));
    address.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    address.set_query(query);
    address
}

/// The pauses before each retry: every one is twice the one before, and none is longer than `longest`.
pub(crate) fn pauses(first: Duration, longest: Duration, retries: u32) -> impl Iterator<Item = Duration> + Send {
    let (first, retries) = (first.min(longest), retries as usize);
    ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest).with_max_times(retries).build()
}

/// Sends a request once and reads its reply.
pub(crate) async fn exchange(request: RequestBuilder, reading: Reading) -> Result<Raw, Lost> {
    let mut response = request.send().await.map_err(|error| lost(&error))?;
    let status = response.status().as_u16();
    if response.content_length().is_some_and(|length| length > reading.most) {
        return Err(Lost::TooLarge { status });
    }
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content_type = header(CONTENT_TYPE).to_owned();
    let retry_after = retry_after(header(RETRY_AFTER), SystemTime::now());
    let (mut chunks, mut length) = (Vec::new(), 0);
    while let Some(chunk) = chunk(&mut response, reading.idle).await? {
        length += chunk.len();
        if length as u64 > reading.most {
            return Err(Lost::TooLarge { status });
        }
        chunks.push(chunk);
    }
    let body = match chunks.as_slice() {
        // Most replies come in one piece, which is taken as it is. A small one is copied: it may be kept for a while, and
        // would keep the whole buffer of its connection.
        [whole] if length > COPIED => whole.clone(),
        parts => Bytes::from(parts.concat()),
    };
    trace!(status, bytes = body.len(), "reply read");
    Ok(Raw { status, content_type, body, retry_after })
}

async fn chunk(response: &mut Response, idle: Option<Duration>) -> Result<Option<Bytes>, Lost> {
    let read = response.chunk();
    let read = match idle {
        None => read.await,
        Some(idle) => tokio::time::timeout(idle, read)
            .await
            .map_err(|_| Lost::Unknown(format!("the answer stopped in its middle for {} s", idle.as_secs_f64())))?,
    };
    read.map_err(|error| lost(&error))
}

/// How long `Retry-After` asks us to wait, in seconds or until a date; nothing when it is absent or cannot be read.
fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = header.trim().parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(header.trim()).ok()?;
    // A date that has passed asks for no pause.
    Some(until.duration_since(now).unwrap_or_default())
}

/// A connection that did not come about carried nothing; after that, the request may have arrived.
fn lost(error: &reqwest::Error) -> Lost {
    let reason = shown_error(error);
    if error.is_connect() || error.is_builder() { Lost::NeverSent(reason) } else { Lost::Unknown(reason) }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;

//! Shared parts of the HTTP clients: their construction, and one request and response with a size limit.

mod excerpt;

use std::error::Error;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, RequestBuilder, Response, Url};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::trace;

pub(crate) use excerpt::{describe_error, describe_value, excerpt, shorten, summary};

use crate::file_error;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Idle connections are closed after this time. Uvicorn closes them after 5 s; a request must not use a connection that
/// the server is closing.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Replies up to this size are copied, because they are much smaller than the connection's buffer.
const MAX_COPIED_BYTES: u64 = 4 * 1024;

/// Replies from this size on take turns, so that many of them at once stay within `LARGE_REPLIES_BYTES`.
const LARGE_REPLY_BYTES: u64 = 1024 * 1024;

/// How many bytes of large replies are read at once. A reply of the largest allowed size is always read.
const LARGE_REPLIES_BYTES: u64 = 32 * 1024 * 1024;

/// A complete response with any status.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    /// Delay that the server requests with `Retry-After`.
    pub(crate) retry_after: Option<Duration>,
}

impl RawResponse {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Why there is no complete response.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The request was not sent: the connection, the name lookup or TLS failed.
    NeverSent(String),
    /// The request was not sent, because this process or machine has no file descriptor left.
    OutOfFiles(String),
    /// The request may have arrived: the connection was lost or the deadline passed.
    Unknown(String),
    /// The response is larger than the limit.
    TooLarge { status: u16 },
}

/// Returns whether a status says that the server is overloaded and has not processed the request.
pub(crate) const fn is_overload(status: u16) -> bool {
    matches!(status, 429 | 503 | 529)
}

/// Limits for reading a response.
#[derive(Debug, Clone)]
pub(crate) struct ReadLimits {
    pub(crate) max_bytes: u64,
    /// How long the server may send nothing during a reply. `None`: as long as the whole request may take.
    pub(crate) idle_timeout: Option<Duration>,
    /// The same for a large reply, for which other large replies wait.
    pub(crate) large_idle_timeout: Duration,
    pub(crate) large_replies: LargeReplies,
}

/// Limits how many large replies of one server are read at once. The others wait: their servers stop sending meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct LargeReplies {
    turns: Arc<Semaphore>,
    /// Buffers of replies that were not read to their end. Allocators keep the memory of large buffers, so the next
    /// reply uses the same one.
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
    max_bytes: u64,
}

impl LargeReplies {
    /// Creates the limit for replies of at most `max_bytes`.
    pub(crate) fn new(max_bytes: u64) -> Self {
        let at_once = (LARGE_REPLIES_BYTES / max_bytes.max(LARGE_REPLY_BYTES)).max(1);
        Self { turns: Arc::new(Semaphore::new(at_once as usize)), spare: Arc::default(), max_bytes }
    }

    /// Waits until a large reply may be read, and returns a buffer that begins with `bytes`. The expected length is that
    /// of the whole reply, if the server reports it.
    async fn begin(&self, bytes: &[u8], expected: Option<u64>) -> LargeBody {
        // The semaphore is never closed.
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        let mut buffer = self.spare.lock().pop().unwrap_or_default();
        let length = expected.unwrap_or(self.max_bytes.min(LARGE_REPLIES_BYTES));
        buffer.reserve_exact(length as usize);
        buffer.extend_from_slice(bytes);
        LargeBody { buffer, spare: Arc::clone(&self.spare), _turn: turn }
    }
}

/// The body of a large reply that is being read.
struct LargeBody {
    buffer: Vec<u8>,
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Released after the buffer is put back.
    _turn: Option<OwnedSemaphorePermit>,
}

impl LargeBody {
    fn finish(mut self) -> Bytes {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.shrink_to_fit();
        Bytes::from(buffer)
    }
}

impl Drop for LargeBody {
    fn drop(&mut self) {
        if self.buffer.capacity() > 0 {
            self.buffer.clear();
            self.spare.lock().push(std::mem::take(&mut self.buffer));
        }
    }
}

/// Returns the builder of a client for one base URL. The client follows no redirects and uses no proxy.
pub(crate) fn client(base: &Url) -> ClientBuilder {
    static TLS: Once = Once::new();
    // Another library of this process may have installed a provider already, which works too.
    TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .http1_only()
        .tcp_nodelay(true)
        .user_agent(concat!("synth-optimizers/", env!("CARGO_PKG_VERSION")));
    // Plain HTTP needs no certificates, and a minimal system may have none.
    if base.scheme() == "http" { builder.tls_certs_only([]) } else { builder }
}

/// Returns the URL of a route. The base URL may have a path of its own.
pub(crate) fn address(base: &Url, route: &str) -> Url {
    let mut address = base.clone();
    let (path, query) = route.split_once('?').map_or((route, None), |(path, query)| (path, Some(query)));
    address.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    address.set_query(query);
    address
}

/// Returns the delay before each retry. Each delay is twice the previous one, up to `longest`.
pub(crate) fn backoff_delays(
    first: Duration,
    longest: Duration,
    retries: u32,
) -> impl Iterator<Item = Duration> + Send {
    let (first, retries) = (first.min(longest), retries as usize);
    ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest).with_max_times(retries).build()
}

/// Sends a request once and reads its response.
pub(crate) async fn exchange(request: RequestBuilder, limits: ReadLimits) -> Result<RawResponse, ExchangeError> {
    let mut response = request.send().await.map_err(|error| exchange_error(&error))?;
    let status = response.status().as_u16();
    if response.content_length().is_some_and(|length| length > limits.max_bytes) {
        return Err(ExchangeError::TooLarge { status });
    }
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content_type = header(CONTENT_TYPE).to_owned();
    let retry_after = retry_after(header(RETRY_AFTER), SystemTime::now());
    let (mut chunks, mut large, mut length) = (Vec::new(), None, 0);
    loop {
        let idle_timeout = if large.is_some() { Some(limits.large_idle_timeout) } else { limits.idle_timeout };
        let Some(chunk) = chunk(&mut response, idle_timeout).await? else { break };
        length += chunk.len() as u64;
        if length > limits.max_bytes {
            return Err(ExchangeError::TooLarge { status });
        }
        match &mut large {
            Some(LargeBody { buffer, .. }) => buffer.extend_from_slice(&chunk),
            None => chunks.push(chunk),
        }
        if length > LARGE_REPLY_BYTES && large.is_none() {
            let begun = std::mem::take(&mut chunks).concat();
            large = Some(limits.large_replies.begin(&begun, response.content_length()).await);
        }
    }
    let body = match (large, chunks.as_slice()) {
        (Some(large), _) => large.finish(),
        // Most responses are one chunk, which is used without copying. A small one is copied, because it would keep the
        // whole buffer of the connection in memory.
        (None, [whole]) if length > MAX_COPIED_BYTES => whole.clone(),
        (None, parts) => Bytes::from(parts.concat()),
    };
    trace!(status, bytes = body.len(), "reply read");
    Ok(RawResponse { status, content_type, body, retry_after })
}

async fn chunk(response: &mut Response, idle_timeout: Option<Duration>) -> Result<Option<Bytes>, ExchangeError> {
    let read = response.chunk();
    let read = match idle_timeout {
        None => read.await,
        Some(idle) => tokio::time::timeout(idle, read).await.map_err(|_elapsed| {
            ExchangeError::Unknown(format!("the answer is incomplete after {} s without data", idle.as_secs_f64()))
        })?,
    };
    read.map_err(|error| exchange_error(&error))
}

/// Parses `Retry-After`, in seconds or as a date. Returns `None` if it is missing or invalid.
fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = header.trim().parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(header.trim()).ok()?;
    // A date in the past means no delay.
    Some(until.duration_since(now).unwrap_or_default())
}

/// Classifies an error: if the connection failed or was closed too early, nothing was sent; otherwise the request may have
/// arrived.
fn exchange_error(error: &reqwest::Error) -> ExchangeError {
    let reason = describe_error(error);
    if error.is_connect() && is_out_of_files(error) {
        return ExchangeError::OutOfFiles(reason);
    }
    if error.is_connect() || error.is_builder() || was_canceled(error) {
        ExchangeError::NeverSent(reason)
    } else {
        ExchangeError::Unknown(reason)
    }
}

/// Returns whether the connection was closed before the first byte of the request was written.
fn was_canceled(error: &reqwest::Error) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<hyper::Error>()).any(hyper::Error::is_canceled)
}

/// Returns whether an error was caused by too many open files of this process or machine.
fn is_out_of_files(error: &reqwest::Error) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(file_error::is_out_of_files)
}

/// Returns an error and the errors that caused it.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source())
}

/// Returns the error of a request that was not sent because no file descriptor was left.
pub(crate) fn out_of_files(reason: &str) -> OptimizerError {
    let message = format!("this machine allows no more open files, so a request was not sent: {reason}");
    OptimizerError::new(ErrorCode::Io, message).with_hint(file_error::OUT_OF_FILES_HINT)
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;

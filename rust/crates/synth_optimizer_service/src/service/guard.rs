//! Checks of every HTTP request before it is routed: its id, its host, its origin, its token and its content type.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use camino::Utf8Path;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use sha2::{Digest, Sha256};
use tracing::{Instrument, debug, error_span, warn};

use super::api::header_text;
use super::api_error::ApiError;
use super::context::Context;
use super::page::assets::is_page_path;
use crate::ServiceErrorCode;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::secrets::Secret;
use synth_optimizer_platform::clock::random_hex;

/// The hosts that clients may address, and the token that they must send.
#[derive(Debug)]
pub(super) struct Guard {
    names: BTreeSet<String>,
    /// The service is bound to all addresses of the machine: any IP address is allowed, and names must be listed.
    any_address: bool,
    token: Option<Token>,
}

impl Guard {
    pub(super) fn new(address: SocketAddr, allow_hosts: &[String], token: Option<Token>) -> Self {
        let own = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let local = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let listed = allow_hosts.iter().map(|name| name.trim().to_lowercase());
        let any_address = address.ip().is_unspecified();
        let local = local.into_iter().filter(|_| any_address || address.ip().is_loopback());
        Self { names: listed.chain(local).chain([own]).collect(), any_address, token }
    }

    /// Checks all rules. Returns the error of the first rule that the request violates. The page's own files need no token,
    /// because they hold no data.
    pub(super) fn check(&self, request: &Request, is_page: bool) -> Result<(), ApiError> {
        self.check_host(request)?;
        check_origin(request.headers())?;
        if let Some(token) = &self.token
            && !is_page
            && !token.matches(header_text(request.headers(), header::AUTHORIZATION))
        {
            return Err(ApiError::new(ServiceErrorCode::Unauthorized, "the token is missing or wrong"));
        }
        check_content_type(request)
    }

    fn check_host(&self, request: &Request) -> Result<(), ApiError> {
        let hosts: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
        let named = match hosts.as_slice() {
            [host] => host.to_str().ok(),
            _ => None,
        };
        // The target of a request may name another host than its `Host` header.
        let targeted = request.uri().authority().map(|authority| authority.as_str());
        let is_allowed = |host: &str| self.is_allowed_host(host);
        if named.is_some_and(is_allowed) && targeted.is_none_or(is_allowed) {
            return Ok(());
        }
        let strange = targeted.filter(|host| !is_allowed(host)).or(named);
        let shown = strange.map_or_else(|| "no single name".to_owned(), |host| format!("{host:?}"));
        Err(ApiError::new(ServiceErrorCode::HostNotAllowed, format!("the host {shown} is not a name of this service")))
    }

    fn is_allowed_host(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, Some(port)),
            _ => (host, None),
        };
        let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
        let is_address = || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        is_port && (self.names.contains(&name.to_lowercase()) || (self.any_address && is_address()))
    }
}

/// Checks that a browser page calls its own origin, including the port: other programs on this machine may serve pages too.
fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let host = header_text(headers, header::HOST).unwrap_or_default().to_lowercase();
    let is_own = |origin: &HeaderValue| {
        let text = origin.to_str().unwrap_or_default().to_lowercase();
        let own = text.split_once("://").is_some_and(|(scheme, authority)| match scheme {
            "http" => with_port(authority, "80") == with_port(&host, "80"),
            "https" => with_port(authority, "443") == with_port(&host, "443"),
            _ => false,
        });
        !host.is_empty() && own
    };
    match headers.get_all(header::ORIGIN).iter().all(is_own) {
        true => Ok(()),
        false => {
            Err(ApiError::new(ServiceErrorCode::OriginNotAllowed, "the request comes from a page of another site"))
        }
    }
}

/// Returns the host with its port, or with the default port of its scheme.
fn with_port(authority: &str, usual: &str) -> String {
    match authority.rsplit_once(':') {
        Some((_, port)) if !port.contains(']') => authority.to_owned(),
        _ => format!("{authority}:{usual}"),
    }
}

/// Requires JSON bodies: a page of another site can send forms and plain text without a CORS preflight, but not JSON.
fn check_content_type(request: &Request) -> Result<(), ApiError> {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let headers = request.headers();
    let is_json =
        |value: &str| value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    let has_body = has_body(headers);
    match headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default()) {
        Some(kind) if is_json(kind) => Ok(()),
        None if !has_body => Ok(()),
        Some(kind) => Err(ApiError::new(ServiceErrorCode::NotJson, format!("the Content-Type is {kind:?}, not JSON"))),
        None => Err(ApiError::new(ServiceErrorCode::NotJson, "the request has no Content-Type")),
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING)
        || header_text(headers, header::CONTENT_LENGTH).is_some_and(|length| length != "0")
}

/// Assigns the request id, checks the request, runs its handler, and adds the common response headers.
pub(super) async fn check_request(State(context): State<Arc<Context>>, request: Request, next: Next) -> Response {
    let name = request_id_of(request.headers());
    let has_body = has_body(request.headers());
    // Unknown paths are not logged.
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let span = error_span!("http_request", request_id = name, method = request.method().as_str(), route);
    let began = Instant::now();
    let is_page = is_page_path(request.uri().path());
    let response = match context.guard.check(&request, is_page).and_then(|()| context.check_open(&request)) {
        Ok(()) => next.run(request).instrument(span.clone()).await,
        Err(refusal) => refusal.with_unread_body().into_response(),
    };
    let (response, cause) = finish_response(response, has_body, &name);
    let status = response.status();
    let duration_ms = began.elapsed().as_millis() as u64;
    span.in_scope(|| debug!(status = status.as_u16(), duration_ms, cause, "HTTP request answered"));
    context.workers.metrics.count_answer(status.as_u16());
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        span.in_scope(|| warn!(status = status.as_u16(), duration_ms, cause, "HTTP request failed"));
    }
    response
}

/// Builds the response of an error, and adds the headers that every response has. Returns the cause of an error, for logs.
pub(super) fn finish_response(
    mut response: Response,
    has_body: bool,
    request_id: &str,
) -> (Response, Option<Box<str>>) {
    let mut cause = None;
    if let Some(mut refusal) = response.extensions_mut().remove::<ApiError>() {
        cause = refusal.cause.take();
        let closes = has_body && refusal.is_body_unread;
        response = refusal.response(request_id);
        if closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A page of another site cannot embed pictures of runs.
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    for (name, value) in [(header::CONTENT_SECURITY_POLICY, "default-src 'none'"), (header::CACHE_CONTROL, "no-store")]
    {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if let Ok(request_id) = HeaderValue::from_str(request_id) {
        headers.insert("x-request-id", request_id);
    }
    (response, cause)
}

/// Reads the body of a routed request within the limits of size and time.
pub(super) async fn read_body(State(context): State<Arc<Context>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let (most, time) =
        (context.workers.settings.max_body_mb.saturating_mul(1 << 20), context.workers.settings.body_timeout);
    let too_large = || ApiError::new(ServiceErrorCode::BodyTooLarge, format!("the body is larger than {most} bytes"));
    let length = header_text(&parts.headers, header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    let read = match length {
        Some(length) if length > most as u64 => Err(too_large()),
        _ => match tokio::time::timeout(time, Limited::new(body, most).collect()).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(error)) => Err(ApiError::cut_body(&*error)),
            Err(_elapsed) => {
                let message = format!("the body did not arrive within {} s", time.as_secs());
                Err(ApiError::new(ServiceErrorCode::BodyTimeout, message))
            }
        },
    };
    match read {
        Ok(body) => next.run(Request::from_parts(parts, Body::from(body))).await,
        Err(refusal) => refusal.with_unread_body().into_response(),
    }
}

/// Returns the request id of the client, if it has only allowed characters, or a new one.
fn request_id_of(headers: &HeaderMap) -> String {
    const LONGEST: usize = 128;
    let is_plain = |name: &&str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':');
        !name.is_empty() && name.len() <= LONGEST && name.bytes().all(allowed)
    };
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok()).filter(is_plain);
    // Without random numbers all requests share one id, but they are served.
    given.map_or_else(|| format!("req_{}", random_hex::<8>().unwrap_or_default()), str::to_owned)
}

/// Minimum length of a token: 128 bits in hexadecimal.
const MIN_TOKEN_LENGTH: usize = 32;

/// The token that clients must send. Only its digest is kept in memory.
#[derive(Clone)]
pub(super) struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token")
    }
}

impl Token {
    /// Reads the token from a file. Fails if other users can read the file.
    pub(super) fn read(path: &Utf8Path) -> Result<Self, OptimizerError> {
        let unreadable = |error: std::io::Error| {
            OptimizerError::from_cause(ErrorCode::Config, format!("cannot read the token file {path}"), error)
                .with_hint("Create one with `umask 077; head -c 32 /dev/urandom | base64 > token`.")
        };
        let refused = |problem: &str, hint: &str| {
            OptimizerError::new(ErrorCode::Config, format!("the token file {path} {problem}")).with_hint(hint)
        };
        if std::fs::metadata(path).map_err(unreadable)?.mode() & 0o077 != 0 {
            return Err(refused("can be read by other users", &format!("chmod 600 {path}")));
        }
        let token = Secret::new(std::fs::read_to_string(path).map_err(unreadable)?.trim());
        let text = token.expose();
        if text.len() < MIN_TOKEN_LENGTH || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused(
                "holds no token: at least 32 visible ASCII characters on one line",
                "Create one with `umask 077; head -c 32 /dev/urandom | base64 > token`.",
            ));
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Returns whether this header carries the token. Comparing digests in constant time leaks nothing about the token.
    pub(super) fn matches(&self, authorization: Option<&str>) -> bool {
        let Some((scheme, given)) = authorization.and_then(|value| value.split_once(' ')) else { return false };
        let given: [u8; 32] = Sha256::digest(given.trim()).into();
        let differing = given.iter().zip(&self.0).fold(0, |all, (left, right)| all | (left ^ right));
        scheme.eq_ignore_ascii_case("bearer") && differing == 0
    }
}

//! Accepts connections. Limits protect the service from slow or hostile clients, and reserve file descriptors for the runs.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;
use tracing::{debug, warn};

use super::CLOSE_TIMEOUT;
use super::workers::Workers;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::os;

/// Maximum number of headers per request.
const MAX_HEADERS: usize = 100;
/// Maximum size of all headers of a request.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Size of the kernel's send buffer per connection. Without a limit, a client that does not read costs megabytes.
const SEND_BUFFER_BYTES: u32 = 128 * 1024;
/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;
/// How long to wait when no file descriptor is free.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// File descriptors reserved for the service itself.
const OWN_DESCRIPTORS: u64 = 128;
/// File descriptors reserved per run: databases, feeds, locks, and connections to its container.
const DESCRIPTORS_PER_RUN: u64 = 128;

/// Opens the port.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, OptimizerError> {
    bind(address).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => "Another program listens on this address; choose another --bind.",
            ErrorKind::PermissionDenied => "Ports below 1024 need privileges; choose a higher port.",
            _ => "Choose an address of this machine.",
        };
        OptimizerError::from_cause(ErrorCode::Io, format!("cannot listen on {address}"), error).with_hint(hint)
    })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted service must be able to bind to the same address at once.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `closing` is true, then waits up to `CLOSE_TIMEOUT` for requests in flight.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    workers: &Workers,
    mut closing: watch::Receiver<bool>,
) {
    let settings = &workers.settings;
    let slots = Arc::new(Semaphore::new(max_connections(settings.max_connections, settings.workers)));
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .keep_alive(true);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            }
        };
        // A connection beyond the limit is closed at once.
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            warn!(limit = settings.max_connections, "a connection was refused: the limit of connections is reached");
            continue;
        };
        let io = TokioIo::new(Box::pin(with_write_timeout(stream, settings.write_timeout)));
        let connection = http.serve_connection(io, TowerToHyperService::new(router.clone()));
        let (connection, metrics) = (graceful.watch(connection), Arc::clone(&workers.metrics));
        tokio::spawn(async move {
            // A disconnecting client is not an error of the service.
            if let Err(error) = connection.await {
                debug!(%error, "a connection was closed early");
                if is_write_timeout(&error) {
                    metrics.dropped_streams.inc();
                }
            }
            drop(slot);
        });
    }
    drop(listener);
    // Ignored: requests still in flight end with the service.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, graceful.shutdown()).await;
}

/// Returns whether a connection ended because its client did not read.
fn is_write_timeout(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|cause| cause.kind() == ErrorKind::TimedOut)
}

/// Wraps a connection so that it ends when its client does not read for `write_timeout`.
fn with_write_timeout(stream: TcpStream, write_timeout: Duration) -> TimeoutStream<TcpStream> {
    // Ignored: without it, responses are only slightly delayed.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(write_timeout));
    stream
}

/// Raises the descriptor limit of this process to its maximum. Returns how many connections clients may open: `wanted`, or
/// fewer if the runs need the descriptors.
fn max_connections(wanted: usize, runs: usize) -> usize {
    connection_limit(wanted, runs, os::system().raise_open_file_limit())
}

fn connection_limit(wanted: usize, runs: usize, limit: Option<u64>) -> usize {
    let Some(limit) = limit else { return wanted };
    let left = limit.saturating_sub(OWN_DESCRIPTORS).saturating_sub(DESCRIPTORS_PER_RUN.saturating_mul(runs as u64));
    // Clients always get at least a quarter of the descriptors.
    wanted.min(usize::try_from(left.max(limit / 4)).unwrap_or(usize::MAX)).max(1)
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;

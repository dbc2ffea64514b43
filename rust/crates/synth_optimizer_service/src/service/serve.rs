//! Takes connections, within limits that a slow or hostile client cannot stretch and that leave the runs their file
//! descriptors.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;
use tracing::{debug, warn};

use super::LAST_ANSWERS;
use super::workers::Workers;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Headers of one request.
const MOST_HEADERS: usize = 100;
/// Bytes of all headers of one request.
const HEADER_BYTES: usize = 64 * 1024;
/// Bytes that the system keeps for a client that does not read. Without a limit it keeps megabytes for each.
const SEND_BUFFER: u32 = 128 * 1024;
/// Connections that may wait to be taken.
const BACKLOG: u32 = 1024;
/// How long to wait when the system has no file descriptor left.
const BREATHER: Duration = Duration::from_millis(50);
/// File descriptors that the service itself has open.
const OWN_DESCRIPTORS: u64 = 128;
/// What one run has open at most: databases, feeds, locks, and connections to its container.
const DESCRIPTORS_OF_A_RUN: u64 = 128;

/// Opens the port.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, OptimizerError> {
    bind(address).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => "Another program listens there; choose another --bind.",
            ErrorKind::PermissionDenied => "Ports below 1024 belong to the system; choose a higher one.",
            _ => "Choose an address of this machine.",
        };
        OptimizerError::from_cause(ErrorCode::Io, format!("cannot listen on {address}"), error).with_hint(hint)
    })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A service that was killed is started again at the same address.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `closing` says so; then lets the requests under way end for a moment.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    workers: &Workers,
    mut closing: watch::Receiver<bool>,
) {
    let settings = &workers.settings;
    let places = Arc::new(Semaphore::new(connections(settings.max_connections, settings.workers)));
    let graceful = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_headers(MOST_HEADERS)
        .max_buf_size(HEADER_BYTES)
        .keep_alive(true);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "a connection cannot be taken");
                tokio::time::sleep(BREATHER).await;
                continue;
            }
        };
        // A client that comes when all places are taken is turned away at once.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            warn!(limit = settings.max_connections, "a connection was turned away: all places are taken");
            continue;
        };
        let io = TokioIo::new(Box::pin(within(stream, settings.write_timeout)));
        let connection = http.serve_connection(io, TowerToHyperService::new(router.clone()));
        let (connection, metrics) = (graceful.watch(connection), Arc::clone(&workers.metrics));
        tokio::spawn(async move {
            // A client that breaks off is no failure of the service.
            if let Err(error) = connection.await {
                debug!(%error, "a connection broke off");
                if is_unread(&error) {
                    metrics.dropped_streams.inc();
                }
            }
            drop(place);
        });
    }
    drop(listener);
    // Lost: requests that are still under way are ended with the service.
    let _ = tokio::time::timeout(LAST_ANSWERS, graceful.shutdown()).await;
}

/// Whether a connection ended because its client took nothing of what it was sent.
fn is_unread(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|cause| cause.kind() == ErrorKind::TimedOut)
}

/// A connection that ends when its client takes nothing of what it is sent.
fn within(stream: TcpStream, write_timeout: Duration) -> TimeoutStream<TcpStream> {
    // Lost: without it answers are only a little later.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(write_timeout));
    stream
}

/// Takes as many descriptors as the system lets this process have, and tells how many connections of clients may use:
/// what is wanted, or less where the runs need the rest.
fn connections(wanted: usize, runs: usize) -> usize {
    let limits = getrlimit(Resource::Nofile);
    // Where it cannot be raised, there is less.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }).is_ok();
    let limit = if raised { limits.maximum } else { limits.current };
    connections_within(wanted, runs, limit)
}

fn connections_within(wanted: usize, runs: usize, limit: Option<u64>) -> usize {
    let Some(limit) = limit else { return wanted };
    let left = limit.saturating_sub(OWN_DESCRIPTORS).saturating_sub(DESCRIPTORS_OF_A_RUN.saturating_mul(runs as u64));
    // A service that nobody can call is of no use: at worst, clients get a quarter.
    wanted.min(usize::try_from(left.max(limit / 4)).unwrap_or(usize::MAX)).max(1)
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;

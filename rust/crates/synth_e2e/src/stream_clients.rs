//! Many clients of one run's event stream, some of which never read.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

/// How long a client waits before it reconnects.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Receive buffer of a client that does not read. It is small so that the service notices soon.
const SMALL_BUFFER_BYTES: u32 = 4096;

/// The clients to start.
#[derive(Debug, Clone, Copy)]
pub struct StreamClients {
    pub port: u16,
    pub readers: usize,
    /// Clients that open the stream and never read.
    pub stalled: usize,
}

/// What the clients received.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct StreamReport {
    /// Number of events that each reader received, if all received the same number.
    pub events: Option<u64>,
    /// How many times readers had to reconnect.
    pub reconnects: usize,
    /// Stalled clients whose connection the service closed before the run had ended.
    pub dropped: usize,
    /// Readers that missed an event, received one twice, or received them out of order.
    pub problems: Vec<String>,
}

impl StreamClients {
    /// Opens every stream, calls `on_all_open`, and returns when every reader has received the end.
    pub async fn run(self, run_id: &str, on_all_open: impl FnOnce()) -> io::Result<StreamReport> {
        let (run_ended, run_has_ended) = watch::channel(false);
        let opened_streams = Arc::new(tokio::sync::Semaphore::new(0));
        let path: Arc<str> = format!("/runs/{run_id}/events").into();
        let readers: Vec<_> = (0..self.readers)
            .map(|_| tokio::spawn(read_to_end(self.port, Arc::clone(&path), Arc::clone(&opened_streams))))
            .collect();
        let stalled: Vec<_> = (0..self.stalled)
            .map(|_| {
                tokio::spawn(stay_connected(
                    self.port,
                    Arc::clone(&path),
                    Arc::clone(&opened_streams),
                    run_has_ended.clone(),
                ))
            })
            .collect();
        let all = u32::try_from(self.readers + self.stalled).unwrap_or(u32::MAX);
        let arrived = opened_streams.acquire_many(all).await;
        drop(arrived.map_err(io::Error::other)?);
        on_all_open();
        let mut report = StreamReport::default();
        let mut counts = Vec::new();
        for reader in readers {
            match reader.await.map_err(io::Error::other)? {
                Ok((events, reconnects)) => {
                    counts.push(events);
                    report.reconnects += reconnects;
                }
                Err(problem) => report.problems.push(problem.to_string()),
            }
        }
        run_ended.send_replace(true);
        for sleeper in stalled {
            report.dropped += usize::from(sleeper.await.map_err(io::Error::other)??);
        }
        report.events = counts.first().copied().filter(|first| counts.iter().all(|count| count == first));
        Ok(report)
    }
}

/// Opens a stream after an event. Returns the connection and the part of the body that has arrived with the headers.
async fn open_stream(
    port: u16,
    path: &str,
    last: Option<u64>,
    buffer: Option<u32>,
) -> io::Result<(TcpStream, Vec<u8>)> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    let mut stream = socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    let last = last.map(|last| format!("Last-Event-ID: {last}\r\n")).unwrap_or_default();
    let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{last}\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let body = read.split_off(end + 4);
            let head = String::from_utf8_lossy(&read).into_owned();
            return match head.contains(" 200 ") || head.contains(" 204 ") {
                true => Ok((stream, if head.contains(" 204 ") { b"event: end\n".to_vec() } else { body })),
                false => Err(io::Error::other(head)),
            };
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::Error::other("the connection ended before its answer"));
        }
    }
}

/// Reads the events of a run until the service ends the stream. Calls `opened` when the stream is open, and `on_line` for each
/// line.
pub async fn read_event_lines(
    port: u16,
    run_id: &str,
    opened: impl FnOnce(),
    mut on_line: impl FnMut(&[u8]),
) -> io::Result<()> {
    let (mut stream, mut text) = open_stream(port, &format!("/runs/{run_id}/events"), None, None).await?;
    opened();
    loop {
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let rest = text.split_off(end + 1);
            on_line(std::mem::replace(&mut text, rest).trim_ascii_end());
        }
        if stream.read_buf(&mut text).await? == 0 {
            return Ok(());
        }
    }
}

/// Reads to the end of the run. Returns the number of events and of reconnects.
async fn read_to_end(
    port: u16,
    path: Arc<str>,
    opened_streams: Arc<tokio::sync::Semaphore>,
) -> io::Result<(u64, usize)> {
    let (mut next, mut opened) = (0, 0);
    loop {
        if let Ok((mut stream, mut text)) = open_stream(port, &path, u64::checked_sub(next, 1), None).await {
            opened += 1;
            if opened == 1 {
                opened_streams.add_permits(1);
            }
            loop {
                if consume_lines(&mut text, &mut next)? {
                    return Ok((next, opened - 1));
                }
                if !matches!(stream.read_buf(&mut text).await, Ok(bytes) if bytes > 0) {
                    break;
                }
            }
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

/// Consumes the complete lines of the received bytes. Returns whether the run has ended. The chunk sizes of the transfer
/// encoding are lines too, and are skipped.
fn consume_lines(text: &mut Vec<u8>, next: &mut u64) -> io::Result<bool> {
    let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else { return Ok(false) };
    let rest = text.split_off(end + 1);
    let lines = std::mem::replace(text, rest);
    for line in lines.split(|byte| *byte == b'\n') {
        if line.starts_with(b"event: end") {
            return Ok(true);
        }
        let Some(id) = line.strip_prefix(b"id: ") else { continue };
        let id: u64 = String::from_utf8_lossy(id).trim().parse().map_err(io::Error::other)?;
        if id != *next {
            return Err(io::Error::other(format!("event {id} came where {next} was due")));
        }
        *next += 1;
    }
    Ok(false)
}

/// Opens a stream and never reads it. Returns whether the service closed it before the run had ended.
async fn stay_connected(
    port: u16,
    path: Arc<str>,
    opened_streams: Arc<tokio::sync::Semaphore>,
    mut run_has_ended: watch::Receiver<bool>,
) -> io::Result<bool> {
    let (stream, _) = open_stream(port, &path, None, Some(SMALL_BUFFER_BYTES)).await?;
    opened_streams.add_permits(1);
    let _ = run_has_ended.wait_for(|run_ended| *run_ended).await;
    // Writing to a connection that the service has closed fails.
    for _ in 0..20 {
        if stream.try_write(b" ").is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            return Ok(true);
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
    Ok(false)
}

//! Many readers of one run's events, some of which never read.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

/// How long a reader waits before it comes back.
const PAUSE: Duration = Duration::from_millis(50);
/// What the system keeps for a reader that does not read, so that the service soon notices.
const SMALL: u32 = 4096;

/// Who watches.
#[derive(Debug, Clone, Copy)]
pub struct Audience {
    pub port: u16,
    pub readers: usize,
    /// Those that open the stream and never read.
    pub sleepers: usize,
}

/// What they saw.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Events that each reader saw, if all saw as many.
    pub events: Option<u64>,
    /// How often a reader had to come back.
    pub returns: usize,
    /// Sleepers whose connection was ended before the run was over.
    pub dropped: usize,
    /// Readers that missed an event, saw one twice, or saw them out of order.
    pub problems: Vec<String>,
}

impl Audience {
    /// Opens every stream and says when all are open; ends when every reader has seen the end.
    pub async fn attend(self, run_id: &str, all_here: impl FnOnce()) -> io::Result<Seen> {
        let (over, is_over) = watch::channel(false);
        let here = Arc::new(tokio::sync::Semaphore::new(0));
        let path: Arc<str> = format!("/runs/{run_id}/events").into();
        let readers: Vec<_> =
            (0..self.readers).map(|_| tokio::spawn(read(self.port, Arc::clone(&path), Arc::clone(&here)))).collect();
        let sleepers: Vec<_> = (0..self.sleepers)
            .map(|_| tokio::spawn(sleep(self.port, Arc::clone(&path), Arc::clone(&here), is_over.clone())))
            .collect();
        let all = u32::try_from(self.readers + self.sleepers).unwrap_or(u32::MAX);
        let arrived = here.acquire_many(all).await;
        drop(arrived.map_err(io::Error::other)?);
        all_here();
        let mut seen = Seen::default();
        let mut counts = Vec::new();
        for reader in readers {
            match reader.await.map_err(io::Error::other)? {
                Ok((events, returns)) => {
                    counts.push(events);
                    seen.returns += returns;
                }
                Err(problem) => seen.problems.push(problem.to_string()),
            }
        }
        over.send_replace(true);
        for sleeper in sleepers {
            seen.dropped += usize::from(sleeper.await.map_err(io::Error::other)??);
        }
        seen.events = counts.first().copied().filter(|first| counts.iter().all(|count| count == first));
        Ok(seen)
    }
}

/// Opens a stream after an event, and gives it once its head is there, with what came of the body.
async fn open(port: u16, path: &str, last: Option<u64>, buffer: Option<u32>) -> io::Result<(TcpStream, Vec<u8>)> {
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

/// Reads the events of a run until the service ends the stream, and gives each line to `on_line` as it comes. Tells when the
/// stream is open.
pub async fn listen(port: u16, run_id: &str, opened: impl FnOnce(), mut on_line: impl FnMut(&[u8])) -> io::Result<()> {
    let (mut stream, mut text) = open(port, &format!("/runs/{run_id}/events"), None, None).await?;
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

/// Reads to the end of the run and gives how many events there were and how often it had to come back.
async fn read(port: u16, path: Arc<str>, here: Arc<tokio::sync::Semaphore>) -> io::Result<(u64, usize)> {
    let (mut next, mut opened) = (0, 0);
    loop {
        if let Ok((mut stream, mut text)) = open(port, &path, u64::checked_sub(next, 1), None).await {
            opened += 1;
            if opened == 1 {
                here.add_permits(1);
            }
            loop {
                if take(&mut text, &mut next)? {
                    return Ok((next, opened - 1));
                }
                if !matches!(stream.read_buf(&mut text).await, Ok(bytes) if bytes > 0) {
                    break;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Takes the whole lines of what has come; tells whether the run is over. Chunk sizes of the transfer are lines as well,
/// and none of ours.
fn take(text: &mut Vec<u8>, next: &mut u64) -> io::Result<bool> {
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

/// Opens a stream and never reads it; tells whether it was ended before the run was over.
async fn sleep(
    port: u16,
    path: Arc<str>,
    here: Arc<tokio::sync::Semaphore>,
    mut is_over: watch::Receiver<bool>,
) -> io::Result<bool> {
    let (stream, _) = open(port, &path, None, Some(SMALL)).await?;
    here.add_permits(1);
    let _ = is_over.wait_for(|over| *over).await;
    // A connection that the other side has given up takes nothing more.
    for _ in 0..20 {
        if stream.try_write(b" ").is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            return Ok(true);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(false)
}

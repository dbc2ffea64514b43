//! A small HTTP/1.1 server: keep-alive, bodies with a length, one task per connection.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::service::{StubContainer, StubReply};

/// Maximum size of a request.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// Serves connections until the process ends.
pub async fn serve(listener: TcpListener, service: Arc<StubContainer>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let service = Arc::clone(&service);
        tokio::spawn(async move { connection(stream, &service).await });
    }
}

/// Serves one connection. Any error closes it.
async fn connection(mut stream: TcpStream, service: &Arc<StubContainer>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer: Vec<u8> = Vec::with_capacity(8 << 10);
    let mut out: Vec<u8> = Vec::with_capacity(4 << 10);
    loop {
        let head = loop {
            if let Some(end) = find(&buffer, b"\r\n\r\n") {
                break end + 4;
            }
            if buffer.len() > MAX_REQUEST_BYTES || stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let Some(request) = Head::read(&buffer[..head]) else { return Ok(()) };
        let whole = head + request.length.min(MAX_REQUEST_BYTES);
        while buffer.len() < whole {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        match service.answer(&request.method, &request.path, &buffer[head..whole]).await {
            StubReply::Close => return Ok(()),
            StubReply::Endless => return write_endless(&mut stream).await,
            StubReply::Json { status, body } => write_reply(&mut out, status, &body),
        }
        stream.write_all(&out).await?;
        if request.close {
            return Ok(());
        }
        buffer.drain(..whole);
    }
}

/// Writes a reply without an end, until the client closes the connection.
async fn write_endless(stream: &mut TcpStream) -> io::Result<()> {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .await?;
    let chunk = format!("10000\r\n{}\r\n", "[".repeat(0x10000));
    loop {
        stream.write_all(chunk.as_bytes()).await?;
    }
}

fn write_reply(out: &mut Vec<u8>, status: u16, body: &[u8]) {
    out.clear();
    let reason = match status {
        200 => "OK",
        404 => "Not Found",
        409 => "Conflict",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests\r\nretry-after: 0",
        _ => "Internal Server Error",
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body);
}

/// The needed parts of a request's head.
struct Head {
    method: String,
    path: String,
    length: usize,
    close: bool,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split("\r\n");
        let mut first = lines.next()?.split(' ');
        let (method, target) = (first.next()?.to_owned(), first.next()?);
        let path = target.split('?').next().unwrap_or_default().to_owned();
        let mut head = Self { method, path, length: 0, close: false };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                head.length = value.trim().parse().ok()?;
            } else if name.eq_ignore_ascii_case("connection") {
                head.close = value.trim().eq_ignore_ascii_case("close");
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                return None;
            }
        }
        Some(head)
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

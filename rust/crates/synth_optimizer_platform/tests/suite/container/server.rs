//! A small HTTP server on loopback that answers each request with a scripted action, down to the bytes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// A request that the server received.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// Number of earlier requests with this method and path.
    pub(crate) nth: usize,
}

impl ReceivedRequest {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// What the server does with a request.
pub(crate) enum ServerAction {
    /// Sends a complete reply and keeps the connection open.
    Reply { status: u16, headers: Vec<(&'static str, String)>, body: Vec<u8> },
    /// Sends these bytes and closes the connection.
    Raw(Vec<u8>),
    /// Sends these bytes, then one more byte at intervals, endlessly.
    Drip(Vec<u8>),
    /// Sends these bytes, then as much as the client accepts.
    Flood(Vec<u8>),
    /// Sends these bytes and keeps the connection open.
    Stall(Vec<u8>),
    /// Sends nothing and keeps the connection open.
    Hang,
    /// Sends nothing and closes the connection.
    Close,
}

pub(crate) fn json(status: u16, body: &Value) -> ServerAction {
    text(status, "application/json", &body.to_string())
}

pub(crate) fn text(status: u16, kind: &str, body: &str) -> ServerAction {
    ServerAction::Reply { status, headers: vec![("content-type", kind.to_owned())], body: body.as_bytes().to_vec() }
}

type ServerScript = dyn Fn(&ReceivedRequest) -> ServerAction + Send + Sync;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    opened: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(script: impl Fn(&ReceivedRequest) -> ServerAction + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let script: Arc<ServerScript> = Arc::new(script);
        let (opened, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let opened_count = Arc::clone(&opened);
        let (log, end, closed_count) = (Arc::clone(&seen), Arc::clone(&is_stopped), Arc::clone(&closed));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                opened_count.fetch_add(1, Ordering::Relaxed);
                let (script, log, end) = (Arc::clone(&script), Arc::clone(&log), Arc::clone(&end));
                let closed_count = Arc::clone(&closed_count);
                thread::spawn(move || {
                    serve(stream.unwrap(), &*script, &log, &end);
                    closed_count.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self { address, seen, opened, closed, is_stopped }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns method and path of every request.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen().iter().map(ReceivedRequest::line).collect()
    }

    /// Returns the number of connections that were opened.
    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }

    /// Returns the number of closed connections.
    pub(crate) fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|met| *met == line).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, script: &ServerScript, log: &Mutex<Vec<ReceivedRequest>>, is_stopped: &AtomicBool) {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(mut request) = read_request(&mut reader) {
        let act = {
            let mut log = log.lock().unwrap();
            request.nth = log.iter().filter(|met| met.line() == request.line()).count();
            log.push(request.clone());
            drop(log);
            script(&request)
        };
        let pause = || thread::sleep(Duration::from_millis(20));
        match act {
            ServerAction::Reply { status, headers, body } => {
                let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                if stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
                    return;
                }
            }
            ServerAction::Raw(bytes) => {
                let _ = stream.write_all(&bytes);
                return;
            }
            ServerAction::Drip(bytes) => {
                let _ = stream.write_all(&bytes);
                while !is_stopped.load(Ordering::Relaxed) && stream.write_all(b" ").is_ok() {
                    pause();
                }
                return;
            }
            ServerAction::Flood(bytes) => {
                let _ = stream.write_all(&bytes);
                let block = vec![b' '; 64 * 1024];
                while !is_stopped.load(Ordering::Relaxed) && stream.write_all(&block).is_ok() {}
                return;
            }
            action @ (ServerAction::Stall(_) | ServerAction::Hang) => {
                if let ServerAction::Stall(bytes) = action {
                    let _ = stream.write_all(&bytes);
                }
                while !is_stopped.load(Ordering::Relaxed) {
                    pause();
                }
                return;
            }
            ServerAction::Close => return,
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(ReceivedRequest { method, path, headers, body, nth: 0 })
}

/// Returns an address at which no server listens.
pub(crate) fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

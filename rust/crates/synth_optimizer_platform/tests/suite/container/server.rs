//! A small HTTP server on loopback whose every answer, down to the bytes, is scripted.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// How many requests with this method and path came before.
    pub(crate) nth: usize,
}

impl Received {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// What the server does with a request.
pub(crate) enum Act {
    /// A whole reply; the connection stays open.
    Reply { status: u16, headers: Vec<(&'static str, String)>, body: Vec<u8> },
    /// These bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// These bytes, then one more byte from time to time, without end.
    Drip(Vec<u8>),
    /// These bytes, then as much as the other side takes.
    Flood(Vec<u8>),
    /// Nothing, and the connection stays open.
    Hang,
    /// Nothing, and the connection is closed.
    Close,
}

pub(crate) fn json(status: u16, body: &Value) -> Act {
    text(status, "application/json", &body.to_string())
}

pub(crate) fn text(status: u16, kind: &str, body: &str) -> Act {
    Act::Reply { status, headers: vec![("content-type", kind.to_owned())], body: body.as_bytes().to_vec() }
}

type Script = dyn Fn(&Received) -> Act + Send + Sync;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Received>>>,
    closed: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(script: impl Fn(&Received) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let script: Arc<Script> = Arc::new(script);
        let closed = Arc::new(AtomicUsize::new(0));
        let (log, end, left) = (Arc::clone(&seen), Arc::clone(&over), Arc::clone(&closed));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let (script, log, end) = (Arc::clone(&script), Arc::clone(&log), Arc::clone(&end));
                let left = Arc::clone(&left);
                thread::spawn(move || {
                    serve(stream.unwrap(), &*script, &log, &end);
                    left.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        Self { address, seen, closed, over }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Received> {
        self.seen.lock().unwrap().clone()
    }

    /// Method and path of every request.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen().iter().map(Received::line).collect()
    }

    /// How many connections have been closed.
    pub(crate) fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|met| *met == line).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(mut stream: TcpStream, script: &Script, log: &Mutex<Vec<Received>>, over: &AtomicBool) {
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
            Act::Reply { status, headers, body } => {
                let mut head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                if stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
                    return;
                }
            }
            Act::Raw(bytes) => {
                let _ = stream.write_all(&bytes);
                return;
            }
            Act::Drip(bytes) => {
                let _ = stream.write_all(&bytes);
                while !over.load(Ordering::Relaxed) && stream.write_all(b" ").is_ok() {
                    pause();
                }
                return;
            }
            Act::Flood(bytes) => {
                let _ = stream.write_all(&bytes);
                let block = vec![b' '; 64 * 1024];
                while !over.load(Ordering::Relaxed) && stream.write_all(&block).is_ok() {}
                return;
            }
            Act::Hang => {
                while !over.load(Ordering::Relaxed) {
                    pause();
                }
                return;
            }
            Act::Close => return,
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Received> {
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
    Some(Received { method, path, headers, body, nth: 0 })
}

/// An address at which nobody listens.
pub(crate) fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

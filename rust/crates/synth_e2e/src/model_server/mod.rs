//! A stand-in for the Responses and Chat Completions APIs on loopback: the test says what the model answers to each
//! request.

mod reply;
mod rules;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

pub use reply::{Reply, chat, patch, run, say};
pub use rules::{manifest, proposed, write_rules};

/// How long a reply that never comes is held open.
const HANG: Duration = Duration::from_secs(600);

/// One request of the model's client.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    /// Names are in small letters.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// How many requests came before it.
    pub number: usize,
    /// What the tools have answered in this conversation so far.
    pub outputs: Vec<String>,
}

impl Asked {
    /// A header by its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All that stands in the conversation.
    pub fn text(&self) -> String {
        let items = self.body.get("input").or_else(|| self.body.get("messages"));
        let items = items.and_then(Value::as_array).into_iter().flatten();
        items.map(text_of).collect::<Vec<_>>().join("\n")
    }
}

/// What the model answers.
type Model = Box<dyn Fn(&Asked) -> Reply + Send + Sync>;

struct Shared {
    model: Model,
    asked: Mutex<Vec<Asked>>,
    open: Mutex<Vec<TcpStream>>,
    hung_up: AtomicUsize,
    is_down: AtomicBool,
}

/// A server that ends with this value.
pub struct ModelServer {
    shared: Arc<Shared>,
    port: u16,
}

impl fmt::Debug for ModelServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ModelServer(127.0.0.1:{})", self.port)
    }
}

impl ModelServer {
    pub fn start(model: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            model: Box::new(model),
            asked: Mutex::default(),
            open: Mutex::default(),
            hung_up: AtomicUsize::new(0),
            is_down: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_down.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.serve(stream));
            }
        });
        Ok(Self { shared, port })
    }

    /// The base address that a client is given.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// Every request so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many clients have hung up on a reply that was held.
    pub fn hung_up(&self) -> usize {
        self.shared.hung_up.load(Ordering::SeqCst)
    }

    /// Breaks every connection and takes no more.
    pub fn stop(&self) {
        self.shared.stop();
        // The listener wakes up to see that it is over.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn stop(&self) {
        self.is_down.store(true, Ordering::SeqCst);
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// One request per connection: its end is the end of the reply.
    fn serve(&self, stream: TcpStream) {
        if let Ok(other) = stream.try_clone() {
            self.open.lock().unwrap_or_else(PoisonError::into_inner).push(other);
        }
        let Ok(Some((path, headers, body))) = read_request(&stream) else { return };
        let outputs = body.get("input").and_then(Value::as_array).into_iter().flatten();
        let outputs = outputs.filter(|item| kind_of(item).ends_with("_call_output")).map(text_of).collect();
        let asked = {
            let mut known = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let asked = Asked { path, headers, body, number: known.len(), outputs };
            known.push(asked.clone());
            asked
        };
        let reply = (self.model)(&asked);
        let goes_down = matches!(reply, Reply::GoDown);
        let is_held = matches!(reply, Reply::NoHeaders | Reply::Silence);
        // A client that has hung up does not want the rest.
        let _ = reply.write(&stream, HANG);
        self.hung_up.fetch_add(usize::from(is_held), Ordering::SeqCst);
        if goes_down {
            self.stop();
        }
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn kind_of(item: &Value) -> &str {
    item.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The text of an item: a message's parts, or what a tool has put out.
fn text_of(item: &Value) -> String {
    match item.get("content").or_else(|| item.get("output")) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

type Request = (String, Vec<(String, String)>, Value);

fn read_request(stream: &TcpStream) -> io::Result<Option<Request>> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut headers, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        let (name, value) = (name.to_lowercase(), value.trim().to_owned());
        if name == "content-length" {
            length = value.parse().unwrap_or(0);
        }
        headers.push((name, value));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((path, headers, serde_json::from_slice(&body).unwrap_or_default())))
}

//! A fake server of the Responses and Chat Completions APIs on loopback. The test provides the model's reply to each
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

pub use reply::{ModelReply, chat, patch, run, say};
pub use rules::{manifest, proposed, write_rules};

/// How long a withheld reply keeps its connection open.
const HOLD_TIMEOUT: Duration = Duration::from_secs(600);

/// One request to the model.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    pub path: String,
    /// Header names are in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// Number of earlier requests.
    pub number: usize,
    /// Tool outputs of this conversation so far.
    pub outputs: Vec<String>,
}

impl ModelRequest {
    /// Returns a header by its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the text of the whole conversation.
    pub fn text(&self) -> String {
        let items = self.body.get("input").or_else(|| self.body.get("messages"));
        let items = items.and_then(Value::as_array).into_iter().flatten();
        items.map(text_of).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the reply of the model to a request.
type ModelScript = Box<dyn Fn(&ModelRequest) -> ModelReply + Send + Sync>;

struct ServerState {
    model: ModelScript,
    requests: Mutex<Vec<ModelRequest>>,
    /// The reply to `GET /models`.
    models: Mutex<ModelReply>,
    open: Mutex<Vec<TcpStream>>,
    hung_up: AtomicUsize,
    is_down: AtomicBool,
}

/// A model server. Dropping it stops the server.
pub struct ModelServer {
    shared: Arc<ServerState>,
    port: u16,
}

impl fmt::Debug for ModelServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ModelServer(127.0.0.1:{})", self.port)
    }
}

impl ModelServer {
    pub fn start(model: impl Fn(&ModelRequest) -> ModelReply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(ServerState {
            model: Box::new(model),
            requests: Mutex::default(),
            models: Mutex::new(ModelReply::Status { code: 404, retry_after: None, message: "no list".into() }),
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

    /// Returns the base URL for clients.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// Sets the reply to `GET /models`. By default the server has no list of its models.
    pub fn set_models(&self, reply: ModelReply) {
        *self.shared.models.lock().unwrap_or_else(PoisonError::into_inner) = reply;
    }

    /// Returns all requests to the model so far.
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of clients that disconnected while their reply was withheld.
    pub fn hung_up(&self) -> usize {
        self.shared.hung_up.load(Ordering::SeqCst)
    }

    /// Closes all connections and accepts no more.
    pub fn stop(&self) {
        self.shared.stop();
        // Wakes up the listener, so that it notices the stop.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ServerState {
    fn stop(&self) {
        self.is_down.store(true, Ordering::SeqCst);
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Serves one request per connection. Closing the connection ends the reply.
    fn serve(&self, stream: TcpStream) {
        if let Ok(other) = stream.try_clone() {
            self.open.lock().unwrap_or_else(PoisonError::into_inner).push(other);
        }
        let Ok(Some((method, path, headers, body))) = read_request(&stream) else { return };
        if method == "GET" {
            let reply = self.models.lock().unwrap_or_else(PoisonError::into_inner).clone();
            // Errors are ignored: the client has disconnected.
            let _ = reply.write(&stream, HOLD_TIMEOUT);
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
        let outputs = body.get("input").and_then(Value::as_array).into_iter().flatten();
        let outputs = outputs.filter(|item| kind_of(item).ends_with("_call_output")).map(text_of).collect();
        let request = {
            let mut known = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            let request = ModelRequest { path, headers, body, number: known.len(), outputs };
            known.push(request.clone());
            request
        };
        let reply = (self.model)(&request);
        let goes_down = matches!(reply, ModelReply::ShutDown);
        let is_held = matches!(reply, ModelReply::NoHeaders | ModelReply::Silence);
        // Errors are ignored: the client has disconnected.
        let _ = reply.write(&stream, HOLD_TIMEOUT);
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

/// Returns the text of an item: the parts of a message, or the output of a tool.
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

type Request = (String, String, Vec<(String, String)>, Value);

fn read_request(stream: &TcpStream) -> io::Result<Option<Request>> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
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
    Ok(Some((method, path, headers, serde_json::from_slice(&body).unwrap_or_default())))
}

//! The line protocol of the app-server: requests with deadlines, notifications by thread, and an answer to everything
//! that it asks.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::sync::{mpsc as channel, oneshot};
use tracing::{debug, warn};

/// Longest message that is read. One that is longer breaks the protocol, and ends the process.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// Why a request has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RpcFault {
    #[error("codex has ended")]
    Gone,
    #[error("codex did not answer {method} within {} s", limit.as_secs())]
    Late { method: &'static str, limit: Duration },
    #[error("codex refused {method}: {message}")]
    Refused { method: &'static str, message: String },
}

/// What a thread is doing when it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left<'a> {
    Idle,
    /// A turn was asked for and has no id yet.
    Starting,
    Running {
        turn: &'a str,
    },
}

/// Notifications of one thread, in order. The channel ends with the process.
pub(super) type Notes = channel::UnboundedReceiver<Value>;

/// The connection to one app-server. Plain threads read and write, so that messages can be sent from anywhere, also where
/// no task can be waited for.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// None once the connection is closed.
    out: Option<mpsc::Sender<Value>>,
    next_id: u64,
    pending: BTreeMap<u64, oneshot::Sender<Result<Value, String>>>,
    threads: BTreeMap<String, channel::UnboundedSender<Value>>,
    /// Threads that nobody waits for any more and whose turn may still run.
    left: BTreeSet<String>,
    /// What is known of the turn of a thread that is listened to.
    turns: BTreeMap<String, Seen>,
}

/// How far a turn has come by what codex has said, whether or not the listener has read it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Running(String),
    Over,
}

impl Wire {
    pub(super) fn new(stdin: ChildStdin, stdout: ChildStdout) -> Self {
        let (out, lines) = mpsc::channel();
        let state = State {
            out: Some(out),
            next_id: 0,
            pending: BTreeMap::new(),
            threads: BTreeMap::new(),
            left: BTreeSet::new(),
            turns: BTreeMap::new(),
        };
        let wire = Self { state: Arc::new(Mutex::new(state)) };
        thread::spawn(move || write(stdin, &lines));
        let reading = wire.clone();
        thread::spawn(move || reading.read(stdout));
        wire
    }

    /// Sends a request and waits for its result.
    pub(super) async fn call(&self, method: &'static str, params: Value, limit: Duration) -> Result<Value, RpcFault> {
        let (id, answer) = self.request(method, params).ok_or(RpcFault::Gone)?;
        let answered = tokio::time::timeout(limit, answer).await;
        match answered {
            Ok(Ok(Ok(result))) => Ok(result),
            Ok(Ok(Err(message))) => Err(RpcFault::Refused { method, message }),
            Ok(Err(_closed)) => Err(RpcFault::Gone),
            Err(_elapsed) => {
                self.lock().pending.remove(&id);
                Err(RpcFault::Late { method, limit })
            }
        }
    }

    /// Sends a request whose answer nobody reads.
    pub(super) fn tell(&self, method: &'static str, params: Value) {
        // A process that is gone needs to be told nothing.
        let _ = self.request(method, params);
    }

    pub(super) fn notify(&self, method: &'static str) {
        self.lock().send(json!({ "method": method }));
    }

    /// Notifications of a thread from now on.
    pub(super) fn listen(&self, thread: &str) -> Notes {
        let (sender, receiver) = channel::unbounded_channel();
        let mut state = self.lock();
        if state.out.is_some() {
            state.threads.insert(thread.to_owned(), sender);
        }
        receiver
    }

    /// Lets go of a thread: its turn is ended, and with it the commands that it left running.
    pub(super) fn leave(&self, thread: &str, left: Left<'_>) {
        self.lock().leave(thread, left);
    }

    /// Ends the process in the gentlest way there is: its input ends.
    pub(super) fn close(&self) {
        self.lock().close();
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().out.is_some()
    }

    fn request(&self, method: &'static str, params: Value) -> Option<(u64, Answer)> {
        self.lock().request(method, params)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn read(&self, stdout: ChildStdout) {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        loop {
            line.clear();
            match reader.by_ref().take(MOST_BYTES).read_until(b'\n', &mut line) {
                Ok(read) if read > 0 && line.ends_with(b"\n") => {}
                Ok(_) => break,
                Err(error) => {
                    warn!(%error, "codex cannot be read");
                    break;
                }
            }
            match serde_json::from_slice::<Value>(&line) {
                Ok(message) => self.lock().take(message),
                Err(error) => debug!(bytes = line.len(), %error, "codex said something that is not JSON"),
            }
        }
        self.close();
    }
}

type Answer = oneshot::Receiver<Result<Value, String>>;

impl State {
    fn send(&self, message: Value) -> bool {
        self.out.as_ref().is_some_and(|out| out.send(message).is_ok())
    }

    fn request(&mut self, method: &'static str, params: Value) -> Option<(u64, Answer)> {
        self.next_id += 1;
        let id = self.next_id;
        if !self.send(json!({ "id": id, "method": method, "params": params })) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.pending.insert(id, sender);
        Some((id, receiver))
    }

    fn leave(&mut self, thread: &str, left: Left<'_>) {
        self.threads.remove(thread);
        match (left, self.turns.remove(thread)) {
            (Left::Idle, _) | (Left::Starting | Left::Running { .. }, Some(Seen::Over)) => {
                self.clean(thread);
                self.request("thread/unsubscribe", json!({ "threadId": thread }));
            }
            // The rest is done when the turn shows itself.
            (Left::Starting, None) => {
                self.left.insert(thread.to_owned());
            }
            (Left::Starting, Some(Seen::Running(turn))) => self.break_off(thread, &turn),
            (Left::Running { turn }, Some(Seen::Running(_)) | None) => self.break_off(thread, turn),
        }
    }

    fn break_off(&mut self, thread: &str, turn: &str) {
        self.left.insert(thread.to_owned());
        self.request("turn/interrupt", json!({ "threadId": thread, "turnId": turn }));
        self.clean(thread);
    }

    /// Ends the commands that a thread has left running.
    fn clean(&mut self, thread: &str) {
        self.request("thread/backgroundTerminals/clean", json!({ "threadId": thread }));
    }

    fn close(&mut self) {
        self.out = None;
        // Everyone who waits learns of the end.
        self.pending.clear();
        self.threads.clear();
        self.left.clear();
        self.turns.clear();
    }

    fn take(&mut self, message: Value) {
        let id = message.get("id").cloned();
        // Its own requests are numbered as ours are, so that only the method tells them apart.
        match (message.get("method").and_then(Value::as_str), id) {
            (Some(method), Some(id)) => {
                let mut answer = answer_to(method);
                answer["id"] = id;
                self.send(answer);
            }
            (Some(_), None) => self.note(message),
            (None, Some(id)) => {
                let waiting = id.as_u64().and_then(|id| self.pending.remove(&id));
                let result = match message.get("error") {
                    None => Ok(message.get("result").cloned().unwrap_or_default()),
                    Some(error) => {
                        Err(error.get("message").and_then(Value::as_str).unwrap_or("no reason given").to_owned())
                    }
                };
                if let Some(waiting) = waiting {
                    // Lost: the caller has stopped waiting.
                    let _ = waiting.send(result);
                }
            }
            (None, None) => {}
        }
    }

    fn note(&mut self, message: Value) {
        let thread = message.pointer("/params/threadId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let turn = message.pointer("/params/turn/id").and_then(Value::as_str).unwrap_or_default();
        let method = message.get("method").and_then(Value::as_str);
        if self.left.contains(&thread) {
            match method {
                Some("turn/started") => {
                    self.request("turn/interrupt", json!({ "threadId": thread, "turnId": turn }));
                }
                Some("turn/completed") => {
                    self.clean(&thread);
                    self.request("thread/unsubscribe", json!({ "threadId": thread }));
                    self.left.remove(&thread);
                }
                _ => {}
            }
        } else if let Some(listener) = self.threads.get(&thread) {
            match method {
                Some("turn/started") => {
                    self.turns.insert(thread, Seen::Running(turn.to_owned()));
                }
                Some("turn/completed") => {
                    self.turns.insert(thread, Seen::Over);
                }
                _ => {}
            }
            // Lost: the turn is over.
            let _ = listener.send(message);
        }
    }
}

/// A run has nobody to ask: whatever codex asks for is declined.
fn answer_to(method: &str) -> Value {
    match method {
        "item/commandExecution/requestApproval" | "item/fileChange/requestApproval" => {
            json!({ "result": { "decision": "decline" } })
        }
        "applyPatchApproval" | "execCommandApproval" => json!({ "result": { "decision": "denied" } }),
        "item/permissions/requestApproval" => json!({ "result": { "permissions": {} } }),
        "item/tool/requestUserInput" => json!({ "result": { "answers": {} } }),
        "mcpServer/elicitation/request" => json!({ "result": { "action": "decline" } }),
        "item/tool/call" => json!({ "result": { "contentItems": [], "success": false } }),
        _ => json!({ "error": { "code": -32601, "message": "this client does not offer that" } }),
    }
}

fn write(mut stdin: ChildStdin, lines: &mpsc::Receiver<Value>) {
    while let Ok(message) = lines.recv() {
        if stdin.write_all(format!("{message}\n").as_bytes()).and_then(|()| stdin.flush()).is_err() {
            break;
        }
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;

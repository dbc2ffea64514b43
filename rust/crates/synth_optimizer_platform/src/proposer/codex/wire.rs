//! The line protocol of the app-server: requests with deadlines, notifications by thread, and an answer to everything
//! that it asks.

use std::collections::BTreeMap;
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
    #[error("codex refused turn/start: it named no turn")]
    Unnamed,
}

/// Notifications of one thread, in order. The channel ends with the process.
pub(super) type Notes = channel::UnboundedReceiver<Value>;

/// The connection to one app-server. Plain threads read and write, so that messages can be sent from anywhere, also where
/// no task can be waited for.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    state: Arc<Mutex<State>>,
}

/// What both sides of the connection have said and wait for.
#[derive(Debug, Default)]
pub(super) struct State {
    /// None once the connection is closed.
    out: Option<mpsc::Sender<Value>>,
    next_id: u64,
    pending: BTreeMap<u64, oneshot::Sender<Result<Value, String>>>,
    threads: BTreeMap<String, Thread>,
}

/// A thread that is listened to, or one that was left while its turn may still run.
#[derive(Debug)]
struct Thread {
    /// None once the thread was left.
    listener: Option<channel::UnboundedSender<Value>>,
    turn: Turn,
}

/// How far the turn of a thread has come by what codex has said, whether or not the listener has read it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Turn {
    /// It was asked for and has no id yet.
    Starting,
    Running(String),
    /// It is over, or was refused.
    Over,
}

impl Wire {
    pub(super) fn new(stdin: ChildStdin, stdout: ChildStdout) -> Self {
        let (out, lines) = mpsc::channel();
        let wire = Self { state: Arc::new(Mutex::new(State { out: Some(out), ..State::default() })) };
        thread::spawn(move || write(stdin, &lines));
        let reading = wire.clone();
        thread::spawn(move || reading.read(stdout));
        wire
    }

    /// Sends a request and waits for its result.
    pub(super) async fn call(&self, method: &'static str, params: Value, limit: Duration) -> Result<Value, RpcFault> {
        let (id, answer) = self.lock().request(method, params).ok_or(RpcFault::Gone)?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(Ok(result))) => Ok(result),
            Ok(Ok(Err(message))) => Err(RpcFault::Refused { method, message }),
            Ok(Err(_closed)) => Err(RpcFault::Gone),
            Err(_elapsed) => {
                self.lock().pending.remove(&id);
                Err(RpcFault::Late { method, limit })
            }
        }
    }

    /// Asks for a turn of a thread that is listened to.
    pub(super) async fn start_turn(&self, thread: &str, params: Value, limit: Duration) -> Result<(), RpcFault> {
        let started = self.call("turn/start", params, limit).await;
        let named = started.and_then(|started| match started.pointer("/turn/id").and_then(Value::as_str) {
            Some(id) => Ok(Turn::Running(id.to_owned())),
            None => Err(RpcFault::Unnamed),
        });
        // What codex has said of the turn meanwhile is newer than this answer.
        if let Some(Thread { turn: turn @ Turn::Starting, .. }) = self.lock().threads.get_mut(thread) {
            match &named {
                Ok(running) => *turn = running.clone(),
                Err(RpcFault::Refused { .. }) => *turn = Turn::Over,
                // It may have begun.
                Err(RpcFault::Unnamed | RpcFault::Gone | RpcFault::Late { .. }) => {}
            }
        }
        named.map(|_| ())
    }

    /// For everything that is not waited for.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
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
        self.lock().close();
    }
}

impl State {
    pub(super) fn is_open(&self) -> bool {
        self.out.is_some()
    }

    /// Ends the process in the gentlest way there is: its input ends.
    pub(super) fn close(&mut self) {
        // Everyone who waits learns of the end.
        *self = Self::default();
    }

    /// Notifications of a thread whose turn is about to be asked for.
    pub(super) fn listen(&mut self, thread: &str) -> Notes {
        let (sender, receiver) = channel::unbounded_channel();
        if self.is_open() {
            self.threads.insert(thread.to_owned(), Thread { listener: Some(sender), turn: Turn::Starting });
        }
        receiver
    }

    pub(super) fn send(&self, message: Value) -> bool {
        self.out.as_ref().is_some_and(|out| out.send(message).is_ok())
    }

    fn request(
        &mut self,
        method: &'static str,
        params: Value,
    ) -> Option<(u64, oneshot::Receiver<Result<Value, String>>)> {
        self.next_id += 1;
        let id = self.next_id;
        if !self.send(json!({ "id": id, "method": method, "params": params })) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.pending.insert(id, sender);
        Some((id, receiver))
    }

    /// Lets go of a thread: its turn is ended, and with it the commands that it left running.
    pub(super) fn leave(&mut self, id: &str) {
        match self.threads.get_mut(id) {
            // The rest is done when the turn shows itself, or its end.
            Some(thread) if thread.turn != Turn::Over => {
                thread.listener = None;
                if self.interrupt(id) {
                    self.clean(id);
                }
            }
            Some(_) | None => self.release(id),
        }
    }

    /// Tells the turn of a thread to end; false if there is none that has begun.
    pub(super) fn interrupt(&mut self, id: &str) -> bool {
        let Some(Turn::Running(turn)) = self.threads.get(id).map(|thread| &thread.turn) else { return false };
        let params = json!({ "threadId": id, "turnId": turn });
        self.request("turn/interrupt", params).is_some()
    }

    /// Ends the commands that a thread has left running.
    fn clean(&mut self, id: &str) {
        self.request("thread/backgroundTerminals/clean", json!({ "threadId": id }));
    }

    fn release(&mut self, id: &str) {
        self.threads.remove(id);
        self.clean(id);
        self.request("thread/unsubscribe", json!({ "threadId": id }));
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
        let text = |place: &str| message.pointer(place).and_then(Value::as_str).unwrap_or_default();
        let id = text("/params/threadId");
        let Some(thread) = self.threads.get_mut(id) else { return };
        match text("/method") {
            "turn/started" => thread.turn = Turn::Running(text("/params/turn/id").to_owned()),
            "turn/completed" => thread.turn = Turn::Over,
            _ if thread.listener.is_none() => return,
            _ => {}
        }
        match &thread.listener {
            Some(listener) => {
                // Lost: the turn is over.
                let _ = listener.send(message);
            }
            // A turn that shows itself after it was left is ended, and one that has ended is let go of.
            None if thread.turn == Turn::Over => self.release(id),
            None => {
                self.interrupt(id);
            }
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

//! The JSON-RPC line protocol of the app-server: requests with deadlines, notifications by thread, and replies to the
//! requests of the server.

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

use crate::json_text;
use crate::logs::in_current_span;

/// Maximum size of a message. A longer one violates the protocol and ends the process.
const MAX_MESSAGE_BYTES: u64 = 64 * 1024 * 1024;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RpcError {
    #[error("codex has exited")]
    ProcessEnded,
    #[error("codex did not answer {method} within {} s", limit.as_secs())]
    TimedOut { method: &'static str, limit: Duration },
    #[error("codex rejected {method}: {message}")]
    Refused { method: &'static str, message: String },
    #[error("codex rejected turn/start: the answer has no turn id")]
    MissingTurnId,
}

/// Notifications of one thread, in order. The channel closes when the process exits.
pub(super) type Notifications = channel::UnboundedReceiver<Value>;

/// The connection to one app-server. OS threads read and write, so messages can also be sent outside of async code,
/// such as in `drop`.
#[derive(Debug, Clone)]
pub(super) struct RpcClient {
    state: Arc<Mutex<RpcState>>,
}

/// Shared state of the connection.
#[derive(Debug, Default)]
pub(super) struct RpcState {
    /// `None` once the connection is closed.
    out: Option<mpsc::Sender<Value>>,
    next_id: u64,
    pending: BTreeMap<u64, oneshot::Sender<Result<Value, String>>>,
    threads: BTreeMap<String, ThreadListener>,
}

/// A codex thread with a listener, or one that was released while its turn may still run.
#[derive(Debug)]
struct ThreadListener {
    /// `None` once the caller released the thread.
    listener: Option<channel::UnboundedSender<Value>>,
    turn: TurnPhase,
}

/// Progress of a thread's turn according to the messages received, even if the listener has not read them yet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TurnPhase {
    /// The turn was requested and has no id yet.
    Starting,
    Running(String),
    /// The turn has ended or was rejected.
    Ended,
}

impl RpcClient {
    pub(super) fn new(stdin: ChildStdin, stdout: ChildStdout) -> Self {
        let (out, lines) = mpsc::channel();
        let rpc = Self { state: Arc::new(Mutex::new(RpcState { out: Some(out), ..RpcState::default() })) };
        thread::spawn(in_current_span(move || write(stdin, &lines)));
        let reading = rpc.clone();
        thread::spawn(in_current_span(move || reading.read(stdout)));
        rpc
    }

    /// Sends a request and waits for its result.
    pub(super) async fn call(&self, method: &'static str, params: Value, limit: Duration) -> Result<Value, RpcError> {
        let (id, answer) = self.lock().request(method, params).ok_or(RpcError::ProcessEnded)?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(Ok(result))) => Ok(result),
            Ok(Ok(Err(message))) => Err(RpcError::Refused { method, message }),
            Ok(Err(_closed)) => Err(RpcError::ProcessEnded),
            Err(_elapsed) => {
                self.lock().pending.remove(&id);
                Err(RpcError::TimedOut { method, limit })
            }
        }
    }

    /// Starts a turn of a thread with a listener.
    pub(super) async fn start_turn(&self, thread: &str, params: Value, limit: Duration) -> Result<(), RpcError> {
        let started = self.call("turn/start", params, limit).await;
        let named = started.and_then(|started| match started.pointer("/turn/id").and_then(Value::as_str) {
            Some(id) => Ok(TurnPhase::Running(id.to_owned())),
            None => Err(RpcError::MissingTurnId),
        });
        // Notifications that arrived in the meantime are newer than this answer.
        if let Some(ThreadListener { turn: turn @ TurnPhase::Starting, .. }) = self.lock().threads.get_mut(thread) {
            match &named {
                Ok(running) => *turn = running.clone(),
                Err(RpcError::Refused { .. }) => *turn = TurnPhase::Ended,
                // The turn may have started.
                Err(RpcError::MissingTurnId | RpcError::ProcessEnded | RpcError::TimedOut { .. }) => {}
            }
        }
        named.map(|_| ())
    }

    /// Locks the state for operations that do not wait for an answer.
    pub(super) fn lock(&self) -> MutexGuard<'_, RpcState> {
        self.state.lock()
    }

    fn read(&self, stdout: ChildStdout) {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        loop {
            line.clear();
            match reader.by_ref().take(MAX_MESSAGE_BYTES).read_until(b'\n', &mut line) {
                Ok(read) if read > 0 && line.ends_with(b"\n") => {}
                Ok(_) => break,
                Err(error) => {
                    warn!(%error, "reading from codex failed");
                    break;
                }
            }
            match json_text::parse(&line) {
                Ok((message, altered)) => {
                    if let Some(changes) = altered {
                        warn!(%changes, "a message of codex was altered, because its JSON is not readable");
                    }
                    self.lock().handle_message(message);
                }
                Err(error) => debug!(bytes = line.len(), %error, "codex wrote a line that is not JSON"),
            }
        }
        self.lock().close();
    }
}

impl RpcState {
    pub(super) fn is_open(&self) -> bool {
        self.out.is_some()
    }

    /// Closes the input of the process, which ends it gracefully.
    pub(super) fn close(&mut self) {
        // Dropping the senders notifies all waiting callers.
        *self = Self::default();
    }

    /// Subscribes to the notifications of a thread whose turn is about to start.
    pub(super) fn listen(&mut self, thread: &str) -> Notifications {
        let (sender, receiver) = channel::unbounded_channel();
        if self.is_open() {
            self.threads
                .insert(thread.to_owned(), ThreadListener { listener: Some(sender), turn: TurnPhase::Starting });
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

    /// Releases a thread: interrupts its turn and ends the commands that it left running.
    pub(super) fn leave(&mut self, id: &str) {
        match self.threads.get_mut(id) {
            // The remaining steps follow when codex reports the start or the end of the turn.
            Some(thread) if thread.turn != TurnPhase::Ended => {
                thread.listener = None;
                if self.interrupt(id) {
                    self.clean(id);
                }
            }
            Some(_) | None => self.release(id),
        }
    }

    /// Interrupts the turn of a thread. Returns false if no turn is running.
    pub(super) fn interrupt(&mut self, id: &str) -> bool {
        let Some(TurnPhase::Running(turn)) = self.threads.get(id).map(|thread| &thread.turn) else { return false };
        let params = json!({ "threadId": id, "turnId": turn });
        self.request("turn/interrupt", params).is_some()
    }

    /// Ends the commands that a thread left running.
    fn clean(&mut self, id: &str) {
        self.request("thread/backgroundTerminals/clean", json!({ "threadId": id }));
    }

    fn release(&mut self, id: &str) {
        self.threads.remove(id);
        self.clean(id);
        self.request("thread/unsubscribe", json!({ "threadId": id }));
    }

    fn handle_message(&mut self, message: Value) {
        let id = message.get("id").cloned();
        // Requests of the server and answers to ours use the same ids. Only requests have a method.
        match (message.get("method").and_then(Value::as_str), id) {
            (Some(method), Some(id)) => {
                let mut answer = decline(method);
                answer["id"] = id;
                self.send(answer);
            }
            (Some(_), None) => self.handle_notification(message),
            (None, Some(id)) => {
                let waiting = id.as_u64().and_then(|id| self.pending.remove(&id));
                let result = match message.get("error") {
                    None => Ok(message.get("result").cloned().unwrap_or_default()),
                    Some(error) => {
                        Err(error.get("message").and_then(Value::as_str).unwrap_or("no reason given").to_owned())
                    }
                };
                if let Some(waiting) = waiting {
                    // Errors are ignored: the caller has stopped waiting.
                    let _ = waiting.send(result);
                }
            }
            (None, None) => {}
        }
    }

    fn handle_notification(&mut self, message: Value) {
        let text = |place: &str| message.pointer(place).and_then(Value::as_str).unwrap_or_default();
        let id = text("/params/threadId");
        let Some(thread) = self.threads.get_mut(id) else { return };
        match text("/method") {
            "turn/started" => thread.turn = TurnPhase::Running(text("/params/turn/id").to_owned()),
            "turn/completed" => thread.turn = TurnPhase::Ended,
            _ if thread.listener.is_none() => return,
            _ => {}
        }
        match &thread.listener {
            Some(listener) => {
                // Errors are ignored: the listener is gone because the turn has ended.
                let _ = listener.send(message);
            }
            // A released thread: interrupt its turn if it starts, and clean up once it has ended.
            None if thread.turn == TurnPhase::Ended => self.release(id),
            None => {
                self.interrupt(id);
            }
        }
    }
}

/// Returns the reply to a request of the server. No user is present, so every request is declined.
fn decline(method: &str) -> Value {
    match method {
        "item/commandExecution/requestApproval" | "item/fileChange/requestApproval" => {
            json!({ "result": { "decision": "decline" } })
        }
        "applyPatchApproval" | "execCommandApproval" => json!({ "result": { "decision": "denied" } }),
        "item/permissions/requestApproval" => json!({ "result": { "permissions": {} } }),
        "item/tool/requestUserInput" => json!({ "result": { "answers": {} } }),
        "mcpServer/elicitation/request" => json!({ "result": { "action": "decline" } }),
        "item/tool/call" => json!({ "result": { "contentItems": [], "success": false } }),
        _ => json!({ "error": { "code": -32601, "message": "this client does not support the method" } }),
    }
}

fn write(mut stdin: ChildStdin, lines: &mpsc::Receiver<Value>) {
    while let Ok(message) = lines.recv() {
        if let Err(error) = stdin.write_all(format!("{message}\n").as_bytes()).and_then(|()| stdin.flush()) {
            return debug!(%error, "codex takes no more input");
        }
    }
}

#[cfg(test)]
#[path = "rpc_tests.rs"]
mod tests;

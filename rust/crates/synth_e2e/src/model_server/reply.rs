//! Replies of the fake server: items of a response, an error, or invalid data.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// Name of the model.
const MODEL: &str = "stub-model";

/// One reply.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelReply {
    /// A complete response with these items and usage.
    Items(Vec<Value>),
    /// A complete response that names another model in its body and a header.
    FromModel { model: String, header: Option<String>, items: Vec<Value> },
    /// This document, without streaming.
    Document(Value),
    /// An error response.
    Status { code: u16, retry_after: Option<u32>, message: String },
    /// These bytes as the body of a stream.
    Raw(Vec<u8>),
    /// No response, not even headers.
    NoHeaders,
    /// A response that starts and then stalls.
    Silence,
    /// A response that starts; then the server stops.
    ShutDown,
}

/// Returns a final message of the model.
pub fn say(text: impl Into<String>) -> Value {
    json!({
        "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{ "type": "output_text", "text": text.into(), "annotations": [] }],
    })
}

/// Returns a complete chat completion with usage.
pub fn chat(model: &str, text: impl Into<String>) -> ModelReply {
    ModelReply::Document(json!({
        "id": "chatcmpl-1", "object": "chat.completion", "model": model,
        "choices": [{
            "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": text.into() },
        }],
        "usage": { "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100 },
    }))
}

/// Returns a tool call that runs a command.
pub fn run(command: impl Into<String>) -> Value {
    let arguments = json!({ "cmd": command.into(), "yield_time_ms": 30_000 }).to_string();
    json!({
        "type": "function_call", "id": "fc_1", "call_id": format!("call_{}", number()), "name": "exec_command",
        "arguments": arguments, "status": "completed",
    })
}

/// Returns a tool call that writes a file.
pub fn patch(path: &str, text: &str) -> Value {
    let lines: Vec<String> = text.lines().map(|line| format!("+{line}")).collect();
    let input = format!("*** Begin Patch\n*** Add File: {path}\n{}\n*** End Patch\n", lines.join("\n"));
    json!({
        "type": "custom_tool_call", "id": "ctc_1", "call_id": format!("call_{}", number()), "name": "apply_patch",
        "input": input, "status": "completed",
    })
}

/// Returns a unique number for the id of a tool call.
fn number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl ModelReply {
    pub(super) fn write(&self, stream: &TcpStream, hang: Duration) -> io::Result<()> {
        match self {
            Self::Items(items) => response(stream, MODEL, None, items),
            Self::FromModel { model, header, items } => response(stream, model, header.as_deref(), items),
            Self::Document(document) => {
                let (body, mut stream) = (document.to_string(), stream);
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
            Self::Status { code, retry_after, message } => {
                let body = json!({ "error": { "message": message, "type": "test", "code": "test", "param": null } });
                let body = body.to_string();
                let wait = retry_after.map(|seconds| format!("retry-after: {seconds}\r\n")).unwrap_or_default();
                let mut stream = stream;
                write!(
                    stream,
                    "HTTP/1.1 {code} Status\r\ncontent-type: application/json\r\n{wait}connection: close\r\n\
                     content-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
            Self::Raw(bytes) => {
                write_head(stream, None)?;
                let mut stream = stream;
                stream.write_all(bytes)
            }
            Self::NoHeaders => wait(stream, hang),
            Self::Silence => {
                write_head(stream, None)?;
                write_event(stream, &created(MODEL))?;
                wait(stream, hang)
            }
            Self::ShutDown => {
                write_head(stream, None)?;
                write_event(stream, &created(MODEL))
            }
        }
    }
}

/// Keeps the connection open until the client disconnects or the limit passes.
fn wait(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(limit))?;
    let mut stream = stream;
    let mut byte = [0];
    io::Read::read(&mut stream, &mut byte).map(|_| ())
}

fn write_head(mut stream: &TcpStream, model: Option<&str>) -> io::Result<()> {
    let model = model.map(|model| format!("openai-model: {model}\r\n")).unwrap_or_default();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{model}connection: close\r\n\r\n")
}

fn created(model: &str) -> Value {
    let response = json!({ "id": "resp_1", "status": "in_progress", "model": model, "output": [] });
    json!({ "type": "response.created", "response": response })
}

fn write_event(mut stream: &TcpStream, event: &Value) -> io::Result<()> {
    let name = event.get("type").and_then(Value::as_str).unwrap_or_default();
    stream.write_all(format!("event: {name}\ndata: {event}\n\n").as_bytes())
}

/// Writes a response. Every response reports 100 input tokens, 40 of them cached, and 20 output tokens.
fn response(stream: &TcpStream, model: &str, header: Option<&str>, items: &[Value]) -> io::Result<()> {
    write_head(stream, header)?;
    write_event(stream, &created(model))?;
    for (index, item) in items.iter().enumerate() {
        let mut opened = item.clone();
        if opened.get("content").is_some() {
            opened["content"] = json!([]);
        }
        write_event(stream, &json!({ "type": "response.output_item.added", "output_index": index, "item": opened }))?;
        write_event(stream, &json!({ "type": "response.output_item.done", "output_index": index, "item": item }))?;
    }
    let usage = json!({
        "input_tokens": 100, "input_tokens_details": { "cached_tokens": 40 },
        "output_tokens": 20, "output_tokens_details": { "reasoning_tokens": 5 }, "total_tokens": 120,
    });
    let whole = json!({ "id": "resp_1", "status": "completed", "model": model, "output": items, "usage": usage });
    write_event(stream, &json!({ "type": "response.completed", "response": whole }))
}

//! The service in tests: a process with the scripted proposer, and a small HTTP client for it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use serde_json::Value;
use synth_optimizer_service::service::ProposerFactory;

use crate::process::ServerProcess;
use crate::scripted::ScriptedProposer;
use crate::wait::{WAIT_TIMEOUT, wait_until};

/// Returns a factory that creates the scripted proposer for every configuration.
pub fn scripted_proposers() -> Option<ProposerFactory> {
    Some(|_| Some(Arc::new(ScriptedProposer::default())))
}

/// A service process. Dropping it kills the process.
#[derive(Debug)]
pub struct ServiceProcess {
    process: ServerProcess,
    /// Time from the start of the process until it was ready, with the requests of its predecessor recovered.
    pub ready_after: Duration,
}

impl ServiceProcess {
    /// Starts the scripted service in a directory and waits until it is ready.
    pub fn start(program: &str, directory: &Utf8Path, flags: &[&str]) -> io::Result<Self> {
        let started = Instant::now();
        let mut command = Command::new(program);
        command.args(["--db", directory.join("service.sqlite").as_str(), "--config-root", directory.as_str()]);
        command.args(flags);
        let mut service = Self { process: ServerProcess::start(command)?, ready_after: Duration::ZERO };
        wait_until("the service is ready", || service.get("/ready").is_ok_and(|(status, _)| status == 200));
        service.ready_after = started.elapsed();
        Ok(service)
    }

    pub fn port(&self) -> u16 {
        self.process.port
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills the process and waits until it has ended.
    pub fn kill(&mut self) {
        self.process.stop();
    }

    /// Sends a GET request. Returns status and document.
    pub fn get(&self, path: &str) -> io::Result<(u16, Value)> {
        http_request(self.port(), "GET", path, None, &[])
    }
}

/// Sends one HTTP request on a new connection. Returns status and document.
pub fn http_request(
    port: u16,
    method: &str,
    path: &str,
    body: Option<&Value>,
    headers: &[(&str, &str)],
) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
    stream.set_write_timeout(Some(WAIT_TIMEOUT))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(text.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let broken = || io::Error::new(io::ErrorKind::InvalidData, format!("not an answer: {reply:?}"));
    let (head, body) = reply.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    // A connection that broke delivers less than its `Content-Length`.
    let promised = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    if promised.is_some_and(|promised: usize| promised != body.len()) {
        return Err(broken());
    }
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}

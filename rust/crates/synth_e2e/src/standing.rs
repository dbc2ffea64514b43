//! The standing service in tests: with the scripted proposer, as a process, and asked over HTTP.

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
use crate::waiting::{PATIENCE, wait_until};

/// The scripted proposer, whatever the configuration names.
pub fn scripted_proposers() -> Option<ProposerFactory> {
    Some(|_| Some(Arc::new(ScriptedProposer::default())))
}

/// A service as a process. It is killed when this is dropped.
#[derive(Debug)]
pub struct StandingService {
    process: ServerProcess,
    /// From the start of the process until it had taken back what the one before held.
    pub ready_after: Duration,
}

impl StandingService {
    /// Starts the program of the scripted service in a directory, and waits until it is ready.
    pub fn start(program: &str, directory: &Utf8Path, flags: &[&str]) -> io::Result<Self> {
        let begun = Instant::now();
        let mut command = Command::new(program);
        command.args(["--db", directory.join("service.sqlite").as_str(), "--config-root", directory.as_str()]);
        command.args(flags);
        let mut service = Self { process: ServerProcess::start(command)?, ready_after: Duration::ZERO };
        wait_until("the service is ready", || service.get("/ready").is_ok_and(|(status, _)| status == 200));
        service.ready_after = begun.elapsed();
        Ok(service)
    }

    pub fn port(&self) -> u16 {
        self.process.port
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.stop();
    }

    /// A document and its status.
    pub fn get(&self, path: &str) -> io::Result<(u16, Value)> {
        ask(self.port(), "GET", path, None, &[])
    }
}

/// One request on a connection of its own.
pub fn ask(
    port: u16,
    method: &str,
    path: &str,
    body: Option<&Value>,
    headers: &[(&str, &str)],
) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
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
    // A connection that broke in the middle has less than it promised.
    let promised = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    if promised.is_some_and(|promised: usize| promised != body.len()) {
        return Err(broken());
    }
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}

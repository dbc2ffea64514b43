//! Child processes of tests: limited in time, and killed when their handle is dropped.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to print its port.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(60);

/// A server process on loopback, which prints a line that ends with its port.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    pub port: u16,
}

impl ServerProcess {
    /// Starts the command and waits for its line. Its standard input stays open as long as this process lives; a server
    /// with `--watch-stdin` ends when it closes.
    pub fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (send, receive) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                let mut line = String::new();
                let mut reader = BufReader::new(out);
                let _ = reader.read_line(&mut line);
                let _ = send.send(line);
                // Further output is read and discarded, so that the server never blocks on a full pipe.
                let _ = io::copy(&mut reader, &mut io::sink());
            });
        }
        let line = receive.recv_timeout(STARTUP_TIMEOUT).unwrap_or_default();
        match line.split_whitespace().next_back().and_then(|word| word.parse().ok()) {
            Some(port) => Ok(Self { child, port }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(io::Error::other(format!("{command:?} did not print its port but {line:?}")))
            }
        }
    }

    /// Starts the stub container at `program` with these flags.
    pub fn stub<S: AsRef<OsStr>>(program: &str, flags: impl IntoIterator<Item = S>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg("--watch-stdin").args(flags);
        Self::start(command)
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server and waits until it has ended.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns whether the server has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The exit status and output of a child process.
#[derive(Debug)]
pub struct ProcessOutput {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// Whether it was killed because it took too long.
    pub timed_out: bool,
}

/// Runs a command to its end, or kills it after `limit`.
pub fn run_to_end(mut command: Command, limit: Duration) -> io::Result<ProcessOutput> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    let mut timed_out = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            timed_out = true;
            child.kill()?;
            break child.wait()?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        thread::sleep(pause.min(left).max(Duration::from_micros(50)));
        pause = (pause * 2).min(Duration::from_millis(5));
    };
    let text = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ok(ProcessOutput { status, stdout: text(stdout), stderr: text(stderr), timed_out })
}

fn drain(stream: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

//! What Linux, macOS and the BSDs share: POSIX calls, and the programs `ps` and `sysctl`.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, test_kill_process};
use rustix::time::ClockId;

use super::{ProcessFilter, System, millis_of, raise_open_file_limit};

/// How far two reports of the same start can be apart, in seconds. Some systems compute it from the wall clock.
const START_TOLERANCE_SECONDS: u64 = 2;
/// The limit of open files that macOS accepts, `OPEN_MAX`.
const MACOS_OPEN_FILES: u64 = 10_240;
/// The limits of a path, as on Linux.
const MAX_LINKS: u32 = 40;
const MAX_PATH_BYTES: usize = 4096;

/// How often and in which interval a program is started again.
const START_ATTEMPTS: u32 = 5;
const START_PAUSE: Duration = Duration::from_millis(20);

/// The id of a boot as macOS, FreeBSD and Linux call it.
const BOOT_ID_NAMES: [&str; 3] = ["kern.bootsessionuuid", "kern.boot_id", "kernel.random.boot_id"];
/// Lists all processes with their environment: on macOS, and on the others.
const LIST_WITH_ENVIRONMENT: [&[&str]; 2] = [&["-A", "-E", "-ww"], &["axeww"]];

/// The interfaces that POSIX systems share.
#[derive(Debug, Clone, Copy)]
pub struct Posix;

impl System for Posix {
    fn name(&self) -> &'static str {
        "posix"
    }

    fn boot_millis(&self) -> u64 {
        millis_of(ClockId::Monotonic)
    }

    fn boot_id(&self) -> String {
        let ids = BOOT_ID_NAMES.iter().filter_map(|name| text_of("sysctl", &["-n", name]));
        ids.map(|id| id.trim().to_owned()).find(|id| !id.is_empty()).unwrap_or_default()
    }

    /// Returns the start time in seconds since 1970.
    fn process_start_time(&self, pid: i32) -> Option<u64> {
        match ask_ps(pid) {
            PsAnswer::Running(start_time) => Some(start_time),
            PsAnswer::Ended | PsAnswer::Unknown => None,
        }
    }

    fn is_running(&self, pid: i32, start_time: u64) -> bool {
        // Zero and negative numbers would name groups.
        let Some(id) = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw) else { return false };
        if test_kill_process(id) == Err(Errno::SRCH) {
            return false;
        }
        match ask_ps(pid) {
            PsAnswer::Running(found) => found.abs_diff(start_time) <= START_TOLERANCE_SECONDS,
            PsAnswer::Ended => false,
            PsAnswer::Unknown => true,
        }
    }

    fn pid_namespace(&self) -> Option<String> {
        Some("posix".to_owned())
    }

    fn processes(&self, filter: ProcessFilter<'_>) -> Vec<i32> {
        let columns = ["-o", "pid=", "-o", "pgid=", "-o", "stat=", "-o", "command="];
        let lists = LIST_WITH_ENVIRONMENT.iter().filter_map(|form| text_of("ps", &[*form, &columns].concat()));
        let selected = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let (pid, group) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            words.next().filter(|state| !is_ended(state))?;
            (filter.group == Some(group) || words.any(|word| word == filter.mark)).then_some(pid)
        };
        lists.take(1).flat_map(|list| list.lines().filter_map(selected).collect::<Vec<i32>>()).collect()
    }

    fn signal(&self, filter: ProcessFilter<'_>, signal: Signal) {
        for pid in self.processes(filter).into_iter().filter_map(Pid::from_raw) {
            // Errors are ignored: a process that has exited in the meantime needs no signal.
            let _ = kill_process(pid, signal);
        }
    }

    fn open_beneath(&self, root: &Path, relative: &Path) -> Result<File, Errno> {
        walk(root, relative).map(File::from)
    }

    fn raise_open_file_limit(&self) -> Option<u64> {
        let limits = getrlimit(Resource::Nofile);
        raise_open_file_limit(&[limits.maximum, limits.current.map(|current| current.max(MACOS_OPEN_FILES))])
    }

    fn sandbox_hint(&self) -> &'static str {
        "Commands of codex need the sandbox of this system: user namespaces on Linux, `sandbox-exec` on macOS. Run the \
         optimizer where a user may use it."
    }
}

/// What `ps` says about one process.
enum PsAnswer {
    /// It runs, and started at this second since 1970.
    Running(u64),
    Ended,
    Unknown,
}

fn ask_ps(pid: i32) -> PsAnswer {
    let Some(done) = run("ps", &["-o", "stat=", "-o", "lstart=", "-p", &pid.to_string()]) else {
        return PsAnswer::Unknown;
    };
    let line = String::from_utf8_lossy(&done.stdout);
    match line.trim().split_once(' ') {
        // Without a process, `ps` fails and writes nothing. A message is about something else.
        None if done.stderr.is_empty() && line.trim().is_empty() => PsAnswer::Ended,
        None => PsAnswer::Unknown,
        Some((state, _)) if is_ended(state) => PsAnswer::Ended,
        // `lstart` has the format of asctime, which is one of the formats of a date in HTTP.
        Some((_, started)) => httpdate::parse_http_date(started.trim())
            .ok()
            .and_then(|started| started.duration_since(UNIX_EPOCH).ok())
            .map_or(PsAnswer::Unknown, |since| PsAnswer::Running(since.as_secs())),
    }
}

/// Returns whether a state of `ps` is that of a zombie or of a dead process.
fn is_ended(state: &str) -> bool {
    state.starts_with(['Z', 'X'])
}

/// Runs a program of the system and returns its output if it succeeds.
fn text_of(program: &str, arguments: &[&str]) -> Option<String> {
    let done = run(program, arguments).filter(|done| done.status.success())?;
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs a program of the system. Time zone and language are fixed, so that all processes read the same text. Repeats a start
/// that failed for a moment, such as for lack of file descriptors, because an answer decides about leases.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let mut path = OsString::from("/usr/bin:/bin:/usr/sbin:/sbin");
    if let Some(own) = std::env::var_os("PATH") {
        path.push(":");
        path.push(own);
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).env_clear().env("PATH", path).env("LC_ALL", "C").env("TZ", "UTC0");
    for _ in 0..START_ATTEMPTS {
        match command.output() {
            Ok(done) => return Some(done),
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(_) => std::thread::sleep(START_PAUSE),
        }
    }
    None
}

/// Opens a path one component at a time. Each directory stays open, so that `..` is the directory that was opened before,
/// and a link is read and resolved the same way.
fn walk(root: &Path, relative: &Path) -> Result<OwnedFd, Errno> {
    let path = relative.as_os_str().as_bytes();
    match path {
        [] => return Err(Errno::NOENT),
        [b'/', ..] => return Err(Errno::XDEV),
        _ if path.len() >= MAX_PATH_BYTES => return Err(Errno::NAMETOOLONG),
        _ => {}
    }
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut opened = vec![rustix::fs::open(root, directory, Mode::empty())?];
    // The components that are left, the next one last. One that is empty is the directory itself.
    let mut rest: Vec<Vec<u8>> = components(path).collect();
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name.is_empty() || name == b"." {
            continue;
        }
        if name == b".." {
            opened.pop();
            if opened.is_empty() {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let current = opened.last().ok_or(Errno::XDEV)?;
        let is_last = rest.is_empty();
        // Without NONBLOCK, opening a named pipe would block until a writer opens it.
        let file = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let flags = if is_last { file } else { file | OFlags::DIRECTORY };
        match openat(current, name.as_slice(), flags, Mode::empty()) {
            Ok(found) if is_last => return Ok(found),
            Ok(found) => opened.push(found),
            // Systems report a link with different errors, so any error may be about a link.
            Err(error) => {
                let target = readlinkat(current, name.as_slice(), Vec::new()).map_err(|_not_a_link| error)?;
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                if target.to_bytes().starts_with(b"/") {
                    return Err(Errno::XDEV);
                }
                rest.extend(components(target.to_bytes()));
            }
        }
    }
    opened.pop().ok_or(Errno::XDEV)
}

/// Returns the components of a path from the last to the first.
fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec)
}

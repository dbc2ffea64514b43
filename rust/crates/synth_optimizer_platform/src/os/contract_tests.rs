//! The contract of [`System`], tested for every implementation that this machine can run.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Resource, Signal, getrlimit};

use super::{ProcessFilter, System, system};

fn systems() -> Vec<&'static dyn System> {
    vec![
        #[cfg(target_os = "linux")]
        &super::linux::Linux,
        &super::posix::Posix,
    ]
}

/// A process that lives until it is killed; dropping it kills it.
struct Sleeper(Child);

impl Sleeper {
    fn start(variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null()).process_group(0).envs(variables.iter().copied());
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_eventually(what: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !what() {
        if started.elapsed().as_secs() > 30 {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn the_build_chooses_its_implementation() {
    let expected = if cfg!(all(target_os = "linux", not(synth_portable_os))) { "linux" } else { "posix" };
    assert_eq!(system().name(), expected);
}

#[test]
fn the_clock_advances_and_never_goes_back() {
    for system in systems() {
        let (first, started) = (system.boot_millis(), Instant::now());
        let mut last = first;
        while last < first + 3 {
            let now = system.boot_millis();
            assert!(now >= last, "{}: {now} after {last}", system.name());
            last = now;
        }
        let most = started.elapsed().as_millis() as u64 + 2;
        assert!(system.boot_millis() - first <= most + 1, "{} counts milliseconds", system.name());
    }
}

#[test]
fn all_processes_see_the_same_boot() {
    for system in systems() {
        let id = system.boot_id();
        assert!(!id.is_empty() && id == system.boot_id(), "{}: {id:?}", system.name());
        assert_eq!(id.trim(), id);
        assert!(system.pid_namespace().is_some_and(|name| Some(name) == system.pid_namespace()));
    }
}

#[test]
fn a_process_is_identified_by_its_pid_and_its_start() {
    for system in systems() {
        let name = system.name();
        let mut sleeper = Sleeper::start(&[]);
        let pid = sleeper.pid();
        let start = system.process_start_time(pid).unwrap();
        assert!(system.process_start_time(std::process::id().cast_signed()).is_some(), "{name}");
        assert!(system.is_running(pid, start), "{name}");
        // The system has given the pid to another process.
        assert!(!system.is_running(pid, start.saturating_sub(1000)) && !system.is_running(pid, start + 1000), "{name}");

        // A zombie holds its pid until its parent reads its exit status.
        sleeper.0.kill().unwrap();
        assert!(is_eventually(|| !system.is_running(pid, start)), "{name}");
        assert_eq!(system.process_start_time(pid), None, "{name}");
        sleeper.0.wait().unwrap();
        assert!(!system.is_running(pid, start) && system.process_start_time(pid).is_none(), "{name}");
        for nothing in [0, -1, i32::MAX, i32::MIN] {
            assert!(!system.is_running(nothing, start) && system.process_start_time(nothing).is_none(), "{name}");
        }
    }
}

#[test]
fn each_implementation_has_its_own_precision() {
    let pid = std::process::id().cast_signed();
    for system in systems() {
        let start = system.process_start_time(pid).unwrap();
        // Linux is exact. `ps` may vary by a second, which the portable form tolerates.
        let (same, other) = if system.name() == "linux" { (start, start + 1) } else { (start + 1, start + 4) };
        assert!(system.is_running(pid, same) && !system.is_running(pid, other), "{}", system.name());
    }
}

#[test]
fn processes_are_selected_by_mark_or_group_and_signalled() {
    for system in systems() {
        let name = system.name();
        let value = format!("{name}-{}", std::process::id());
        let mark = format!("SYNTH_TEST_MARK={value}");
        let longer = format!("{value}0");
        let mut own = [(); 2].map(|()| Sleeper::start(&[("SYNTH_TEST_MARK", &value)]));
        let others = [
            Sleeper::start(&[]),
            Sleeper::start(&[("SYNTH_TEST_MARK", &longer)]),
            Sleeper::start(&[("X_SYNTH_TEST_MARK", &value)]),
        ];
        let by_mark = ProcessFilter { mark: &mark, group: None };
        let by_group = ProcessFilter { mark: "SYNTH_TEST_MARK=none", group: Some(others[0].pid()) };
        let sorted = |filter| {
            let mut found = system.processes(filter);
            found.sort_unstable();
            found
        };
        let mut expected = [own[0].pid(), own[1].pid()];
        expected.sort_unstable();
        assert_eq!(sorted(by_mark), expected, "{name}");
        assert_eq!(sorted(by_group), [others[0].pid()], "{name}");
        assert!(sorted(ProcessFilter { mark: "SYNTH_TEST_MARK=none", group: None }).is_empty(), "{name}");

        system.signal(by_mark, Signal::TERM);
        // The two are zombies until their exit status is read.
        assert!(is_eventually(|| system.processes(by_mark).is_empty()), "{name}");
        for ended in &mut own {
            let status = ended.0.wait().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "{name}");
        }
        let is_alive = |other: &Sleeper| system.process_start_time(other.pid()).is_some();
        assert!(others.iter().all(is_alive), "{name}");
        system.signal(by_group, Signal::KILL);
        assert!(is_eventually(|| !is_alive(&others[0])) && is_alive(&others[1]) && is_alive(&others[2]), "{name}");
    }
}

/// Makes a directory `root` with files, links and a pipe, and a secret beside it.
fn tree() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().join("root");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/b/file"), "file").unwrap();
    fs::write(root.join("top"), "top").unwrap();
    fs::write(root.with_file_name("secret"), "secret").unwrap();
    for (target, link) in [
        ("a/b/file", "to_file"),
        ("a", "to_dir"),
        ("../b/../../top", "a/b/up"),
        ("../secret", "out"),
        ("..", "parent"),
        ("a/../../secret", "out_later"),
        ("circle", "circle"),
        ("nothing", "dangling"),
        (".", "here"),
    ] {
        symlink(target, root.join(link)).unwrap();
    }
    symlink(root.join("top"), root.join("absolute")).unwrap();
    assert!(Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
    (dir, root)
}

/// Opens a path and returns the file's identity or the error.
fn opened(system: &dyn System, root: &Path, path: &str) -> Result<(u64, u64), Errno> {
    let file = system.open_beneath(root, Path::new(path))?;
    let found = file.metadata().unwrap();
    Ok((found.dev(), found.ino()))
}

#[test]
fn paths_stay_beneath_the_root() {
    let (_dir, root) = tree();
    let long = "x/".repeat(2048);
    for system in systems() {
        for path in ["top", "a/b/file", "./a//b/./file", "a/../a/b/file", "to_file", "to_dir/b/file", "a/b/up/../top"] {
            let text = || {
                let mut text = String::new();
                system.open_beneath(&root, Path::new(path))?.read_to_string(&mut text).unwrap();
                Ok::<_, Errno>(text)
            };
            let expected = if path.ends_with("file") { Ok("file".to_owned()) } else { Ok("top".to_owned()) };
            let expected = if path.contains("up/..") { Err(Errno::NOTDIR) } else { expected };
            assert_eq!(text(), expected, "{}: {path}", system.name());
        }
        for path in [".", "a", "a/", "a/..", "to_dir", "here", "here/here/to_dir/", "pipe"] {
            assert!(opened(system, &root, path).is_ok(), "{}: {path}", system.name());
        }
        for (path, error) in [
            ("", Errno::NOENT),
            ("gone", Errno::NOENT),
            ("gone/..", Errno::NOENT),
            ("dangling", Errno::NOENT),
            ("..", Errno::XDEV),
            ("../secret", Errno::XDEV),
            ("../root/top", Errno::XDEV),
            ("a/../../secret", Errno::XDEV),
            ("out", Errno::XDEV),
            ("out_later", Errno::XDEV),
            ("parent/secret", Errno::XDEV),
            ("absolute", Errno::XDEV),
            ("/etc/passwd", Errno::XDEV),
            ("top/", Errno::NOTDIR),
            ("top/.", Errno::NOTDIR),
            ("top/..", Errno::NOTDIR),
            ("to_file/", Errno::NOTDIR),
            ("circle", Errno::LOOP),
            (long.as_str(), Errno::NAMETOOLONG),
            (&long[..300].replace('/', "x"), Errno::NAMETOOLONG),
        ] {
            assert_eq!(opened(system, &root, path), Err(error), "{}: {path}", system.name());
        }
    }
}

#[cfg(target_os = "linux")]
proptest::proptest! {
    /// The portable form finds the same file as the kernel, or fails with the same error.
    #[test]
    fn both_implementations_resolve_every_path_alike(
        names in proptest::collection::vec(
            proptest::sample::select(vec![
                "a", "b", "file", "top", "up", "to_file", "to_dir", "out", "out_later", "parent", "circle", "here", "..", ".",
                "", "absolute", "gone", "dangling",
            ]),
            1..7,
        )
    ) {
        let (_dir, root) = tree();
        let path = names.join("/");
        let (kernel, walk) = (opened(&super::linux::Linux, &root, &path), opened(&super::posix::Posix, &root, &path));
        proptest::prop_assert_eq!(kernel, walk, "{}", path);
    }
}

#[test]
fn a_directory_that_becomes_a_link_does_not_lead_out() {
    for system in systems() {
        let (_dir, root) = tree();
        let outside = root.with_file_name("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "secret").unwrap();
        symlink("../../outside", root.join("a/link")).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    // `a/b` is now the directory and now the link.
                    for (from, to) in [("b", "kept"), ("link", "b"), ("b", "link"), ("kept", "b")] {
                        fs::rename(root.join("a").join(from), root.join("a").join(to)).unwrap();
                    }
                }
            });
            let mut found = 0;
            for _ in 0..3000 {
                if let Ok(mut file) = system.open_beneath(&root, Path::new("a/b/file")) {
                    let mut text = String::new();
                    file.read_to_string(&mut text).unwrap();
                    if text == "file" {
                        found += 1;
                    } else {
                        found = i32::MIN;
                    }
                }
            }
            is_done.store(true, Ordering::Relaxed);
            assert!(found > 0, "{}: {found}", system.name());
        });
    }
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let before = getrlimit(Resource::Nofile);
    for system in systems() {
        let raised = system.raise_open_file_limit();
        let after = getrlimit(Resource::Nofile);
        assert_eq!(raised, after.current, "{}", system.name());
        assert_eq!(after.maximum, before.maximum, "{}", system.name());
        assert!(raised.is_none_or(|raised| before.current.is_some_and(|current| raised >= current)));
    }
}

#[test]
fn the_hint_about_the_sandbox_names_what_it_needs() {
    for system in systems() {
        assert!(system.sandbox_hint().contains("user namespaces"), "{}", system.name());
    }
}

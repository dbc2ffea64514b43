//! Files of a run: its directory and lock, atomic writes, the registry and the disk budget.
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;
use synth_optimizer_core::config::sections::DiskBudgetSection;
use synth_optimizer_core::model::error::ErrorCode;
use synth_optimizer_core::model::usage::Cost;
use synth_optimizer_platform::artifacts::{
    AtomicFile, DiskWatch, FileLock, RegistryEntry, RegistryStatus, RunDir, RunPaths, register, write_atomic,
};

fn root() -> (tempfile::TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap();
    (dir, path)
}

fn mode(path: &Utf8Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn names(dir: &Utf8Path) -> Vec<String> {
    let mut names: Vec<String> =
        dir.read_dir_utf8().unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_run_directory_has_one_holder() {
    let (_keep, root) = root();
    let output = root.join("runs");
    let dir = RunDir::open(&output, "a.b-c_1").unwrap();
    assert_eq!(dir.dir(), output.join("a.b-c_1"));
    assert_eq!((mode(&output), mode(dir.dir()), mode(&dir.lock())), (0o700, 0o700, 0o600));
    let error = RunDir::open(&output, "a.b-c_1").unwrap_err();
    assert_eq!(error.code, ErrorCode::Io);
    assert!(error.message.contains(&format!("in use by pid {} since 20", std::process::id())), "{error}");
    assert!(error.message.contains("a.b-c_1") && error.hint.contains("run_id"), "{error:?}");
    RunDir::open(&output, "other").unwrap();
    let holder = FileLock::holder(&dir.lock()).unwrap().unwrap();
    assert!(holder.starts_with(&format!("pid {} since 20", std::process::id())), "{holder}");
    let lock = dir.lock();
    drop(dir);
    assert_eq!(FileLock::holder(&lock).unwrap(), None);
    assert_eq!(FileLock::holder(&output.join("nothing/run.lock")).unwrap(), None);
    RunDir::open(&output, "a.b-c_1").unwrap();
}

/// The kernel frees the lock of a killed process, and a child of that process does not keep it.
#[test]
fn the_lock_of_a_killed_process_is_free() {
    let (_keep, root) = root();
    let dir = RunDir::open(&root, "run").unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    drop(dir);
    let again = RunDir::open(&root, "run");
    child.kill().unwrap();
    child.wait().unwrap();
    again.unwrap();

    // Starts this test program again as a process that holds the lock, and kills it.
    let mut holder = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "artifacts::holds_a_run_until_it_is_killed", "--nocapture"])
        .env("HOLD_RUN_UNDER", &root)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let statuses = std::io::BufReader::new(holder.stdout.take().unwrap());
    assert!(std::io::BufRead::lines(statuses).any(|line| line.unwrap().contains("held")));
    let error = RunDir::open(&root, "run").unwrap_err();
    assert!(error.message.contains(&format!("in use by pid {} since", holder.id())), "{error}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    RunDir::open(&root, "run").unwrap();
}

/// Runs as the child process of the test above. Does nothing otherwise.
#[test]
fn holds_a_run_until_it_is_killed() {
    let Ok(root) = std::env::var("HOLD_RUN_UNDER") else { return };
    let _dir = RunDir::open(Utf8Path::new(&root), "run").unwrap();
    std::io::stdout().write_all(b"held\n").unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn run_ids_cannot_lead_out_of_the_output_directory() {
    let (_keep, root) = root();
    for name in ["", ".", "..", "../x", "a/b", "/etc", "a b", "é", &"x".repeat(129)] {
        assert_eq!(RunPaths::new(&root, name).unwrap_err().code, ErrorCode::Config, "{name:?}");
        assert!(RunDir::open(&root, name).is_err());
    }
    assert!(names(&root).is_empty());
}

#[test]
fn files_are_written_atomically() {
    let (_keep, root) = root();
    let dir = RunDir::open(&root, "run").unwrap();
    let path = dir.manifest();
    write_atomic(&path, b"one").unwrap();
    write_atomic(&path, b"two").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(mode(&path), 0o600);
    let mut file = AtomicFile::create(&path).unwrap();
    file.write_all(b"thr").unwrap();
    drop(file);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(names(dir.dir()), ["result_manifest.json", "run.lock"]);
    // The next holder removes the temporary files of a killed process.
    std::fs::write(dir.dir().join(".frontier.json.12.0.tmp"), "half").unwrap();
    drop(dir);
    let dir = RunDir::open(&root, "run").unwrap();
    assert_eq!(names(dir.dir()), ["result_manifest.json", "run.lock"]);
    assert_eq!(write_atomic(&root.join("none/file"), b"").unwrap_err().code, ErrorCode::Io);
}

fn registry(root: &Utf8Path) -> Vec<Value> {
    let text = std::fs::read_to_string(root.join("run_registry.jsonl")).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_registry_has_each_run_and_status_once() {
    let (_keep, root) = root();
    let entry = RegistryEntry {
        cache_mode: Some("readwrite".into()),
        cache_namespace: Some("gepa:a".into()),
        proposer_backend: Some("codex_app_server".into()),
        ..RegistryEntry::default()
    };
    let (a, b) = (RunPaths::new(&root, "a").unwrap(), RunPaths::new(&root, "b").unwrap());
    for _ in 0..2 {
        for paths in [&a, &b] {
            register(paths, RegistryStatus::Started, &entry).unwrap();
        }
    }
    let paid = RegistryEntry {
        best_candidate_id: Some("gepa_1".into()),
        cost_usd: Cost::from_usd(Some(0.5)),
        usage: Some(serde_json::json!({ "total_tokens": 9 })),
        ..entry.clone()
    };
    assert!(register(&a, RegistryStatus::Completed, &paid).unwrap());
    assert!(!register(&a, RegistryStatus::Completed, &paid).unwrap());
    let lines = registry(&root);
    let statuses: Vec<(&str, &str)> =
        lines.iter().map(|line| (line["run_id"].as_str().unwrap(), line["status"].as_str().unwrap())).collect();
    assert_eq!(statuses, [("a", "started"), ("b", "started"), ("a", "completed")]);
    assert_eq!(lines[0]["cost_usd"], Value::Null);
    assert_eq!((&lines[2]["cost_usd"], &lines[2]["best_candidate_id"]), (&0.5.into(), &"gepa_1".into()));
    assert_eq!(lines[0]["manifest_path"], root.join("a/result_manifest.json").as_str());
    assert_eq!(mode(&root.join("run_registry.jsonl")), 0o600);
}

#[test]
fn a_torn_registry_line_is_repaired() {
    let (_keep, root) = root();
    let path = root.join("run_registry.jsonl");
    let paths = RunPaths::new(&root, "a").unwrap();
    for (before, kept) in [("{\"run_id\":\"x\",\"sta", 0), ("{\"run_id\":\"x\"}", 1), ("{}\n{\"run", 1), ("", 0)] {
        std::fs::write(&path, before).unwrap();
        assert!(register(&paths, RegistryStatus::Failed, &RegistryEntry::default()).unwrap());
        assert_eq!(registry(&root).len(), kept + 1, "{before}");
    }
}

#[test]
fn concurrent_writers_share_the_registry() {
    let (_keep, root) = root();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let root = &root;
            scope.spawn(move || {
                for number in 0..25 {
                    let paths = RunPaths::new(root, &format!("r{thread}-{number}")).unwrap();
                    register(&paths, RegistryStatus::Started, &RegistryEntry::default()).unwrap();
                }
            });
        }
    });
    assert_eq!(registry(&root).len(), 100);
}

#[test]
fn disk_limits_refuse_new_runs_and_stop_live_ones() {
    let (_keep, root) = root();
    let output = root.join("runs");
    let section =
        |soft, hard| DiskBudgetSection { enabled: true, soft_limit_gb: soft, hard_limit_gb: hard, path: None };
    let watch = |soft, hard| DiskWatch::new(&section(soft, hard), &output);
    watch(1e-6, 1e-5).check_start().unwrap();
    std::fs::create_dir_all(output.join("a/b")).unwrap();
    std::fs::write(output.join("a/b/c"), vec![0; 2000]).unwrap();
    std::os::unix::fs::symlink("/usr", output.join("link")).unwrap();
    let error = watch(1e-6, 1e-5).check_start().unwrap_err();
    assert_eq!(error.code, ErrorCode::DiskBudget);
    assert!(error.message.contains(output.as_str()) && error.message.contains("new runs are refused"), "{error}");
    assert!(error.hint.contains("soft_limit_gb"));
    let mut running = watch(1e-6, 1e-5);
    running.check_running().unwrap();
    std::fs::write(output.join("a/b/d"), vec![0; 20_000]).unwrap();
    running.check_running().expect("the size is not measured again immediately");
    let error = watch(1e-6, 1e-5).check_running().unwrap_err();
    assert!(error.message.contains("the run stops") && error.hint.contains("hard_limit_gb"), "{error:?}");
    let off = DiskBudgetSection { enabled: false, ..section(1e-6, 1e-6) };
    DiskWatch::new(&off, &output).check_start().unwrap();
    let elsewhere = DiskBudgetSection { path: Some(root.join("empty")), ..section(1e-6, 1e-6) };
    DiskWatch::new(&elsewhere, &output).check_start().unwrap();
}

//! The page without a service: it shows what can be read of queues and directories, and changes no file.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use camino::{Utf8Path, Utf8PathBuf};
use rusqlite::Connection;
use serde_json::json;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::RunStarted;
use synth_optimizer_platform::artifacts::RunDir;
use synth_optimizer_platform::views::render;
use synth_optimizer_platform::workspace::{Batch, RunRow, StoredEvent, Workspace};
use synth_optimizer_service::queue::{ClaimFilter, LeaseProof};
use synth_optimizer_service::service::{DirectoryRuns, Viewer, ViewerSource};
use tempfile::TempDir;

use crate::fixture::{QueueFixture, claim};

/// Starts the page of a place.
fn viewer(place: &Path) -> Viewer {
    let source = ViewerSource::open(Utf8Path::from_path(place).unwrap()).unwrap();
    Viewer::start(source, "127.0.0.1:0").unwrap()
}

/// Requests a path with more headers. Returns the status line with the headers, and the body.
fn get(address: SocketAddr, path: &str, more: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n{more}Connection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

/// Creates a run that has started, in an output directory.
fn run(root: &Utf8Path, name: &str) -> Utf8PathBuf {
    let dir = RunDir::open(root, name).unwrap();
    let row = RunRow {
        run_id: name.into(),
        algorithm: "gepa".into(),
        config: json!({"run": {"run_id": name}}),
        config_digest: "ab".repeat(32),
        container_url: "http://127.0.0.1:9000".into(),
        cache_mode: "off".into(),
        cache_namespace: "gepa".into(),
        cache_path: None,
        output_dir: root.to_string(),
        run_dir: dir.dir().to_string(),
        created_at: 1_700_000_000_000,
    };
    let workspace = Workspace::create(dir.workspace_db().as_std_path(), &row, Durability::Process).unwrap();
    let started = Event::RunStarted(RunStarted {
        algorithm: "gepa".into(),
        config_digest: "ab".repeat(32),
        seed: 1,
        container_url: "http://127.0.0.1:9000".into(),
    });
    let events = vec![StoredEvent::new(0, 1_700_000_000_000, started)];
    workspace.commit_blocking(Batch { events, ..Batch::default() }).unwrap();
    workspace.close().unwrap();
    dir.dir().to_owned()
}

/// Returns the contents of all files below a directory.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(contents(&path)),
            false => _ = found.insert(path.display().to_string(), std::fs::read(&path).unwrap()),
        }
    }
    found
}

fn directory() -> (TempDir, Utf8PathBuf) {
    let temporary = TempDir::new().unwrap();
    let root = Utf8PathBuf::from_path_buf(temporary.path().canonicalize().unwrap()).unwrap();
    (temporary, root)
}

#[test]
fn requests_that_ended_without_files_say_why() {
    let fixture = QueueFixture::new();
    let submitted = fixture.submit("failed");
    let claimed = claim(&fixture.queue, "lease", ClaimFilter::Request(&submitted.request_id)).unwrap();
    let error = OptimizerError::new(ErrorCode::Config, "there is no program <x>").with_hint("Name one.");
    fixture.queue.fail(&claimed.request_id, LeaseProof::Token(claimed.fencing_token), &error, None, None).unwrap();
    fixture.submit("waiting");
    let page = viewer(&fixture.path());
    let (_, html) = get(page.address(), "/views/runs/failed", "");
    assert!(html.contains("No result: there is no program &lt;x&gt;") && html.contains("Name one."), "{html}");
    let (_, html) = get(page.address(), "/views/runs/waiting", "");
    assert!(html.contains("No score yet."), "{html}");
    let (head, body) = get(page.address(), "/views?cursor=never", "");
    assert!(head.starts_with("http/1.1 422") && body.contains("invalid_cursor"), "{head} {body}");
}

#[test]
fn a_page_that_only_reads_changes_no_file() {
    let fixture = QueueFixture::new();
    fixture.submit("waiting");
    let path = fixture.path();
    let dir = path.parent().unwrap().to_owned();
    drop(fixture.queue);
    // Opening it for writing would bring back the write-ahead log.
    let mode: String =
        Connection::open(&path).unwrap().query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete");
    let (_temporary, root) = directory();
    let run_dir = run(&root, "run-1");
    let before = (contents(&dir), contents(run_dir.as_std_path()));
    for (place, views) in [
        (path.as_path(), ["", "/health", "/runs/waiting"]),
        (root.as_std_path(), ["", "/runs/run-1", "/runs/run-1/health"]),
    ] {
        let page = viewer(place);
        for view in views {
            let (head, body) = get(page.address(), &format!("/views{view}"), "");
            assert!(head.starts_with("http/1.1 200"), "{view}: {head} {body}");
        }
    }
    assert!((contents(&dir), contents(run_dir.as_std_path())) == before, "a file was changed");
}

#[test]
fn a_view_is_sent_once_and_other_sites_cannot_embed_it() {
    let (_temporary, root) = directory();
    run(&root, "run-1");
    let page = viewer(root.as_std_path());
    let (head, body) = get(page.address(), "/views/runs/run-1/settings", "");
    assert!(head.starts_with("http/1.1 200") && body.contains("data-title"), "{head}");
    let (_, rest) = head.split_once("etag: ").unwrap();
    let etag = rest.lines().next().unwrap();
    let (again, body) = get(page.address(), "/views/runs/run-1/settings", &format!("If-None-Match: {etag}\r\n"));
    assert!(again.starts_with("http/1.1 304") && body.is_empty(), "{again} {body}");
    for path in ["/views", "/ui/", "/runs/run-1/artifacts/workspace.sqlite", "/nothing"] {
        let (head, _) = get(page.address(), path, "");
        assert!(head.contains("cross-origin-resource-policy: same-origin"), "{path}: {head}");
    }
    let (head, _) = get(page.address(), "/views/runs/..%2Frun-1", "");
    assert!(head.starts_with("http/1.1 404"), "{head}");
}

#[test]
fn damaged_renamed_and_incomplete_runs_show_what_can_be_read() {
    let (_temporary, root) = directory();
    let renamed = root.join("my run (copy)");
    std::fs::rename(run(&root, "first"), &renamed).unwrap();
    let damaged = run(&root, "damaged");
    std::fs::write(damaged.join("workspace.sqlite"), "no database, but long enough".repeat(200)).unwrap();
    let bare = run(&root, "bare");
    std::fs::remove_file(bare.join("workspace.sqlite")).unwrap();
    std::fs::write(bare.join("result_manifest.json"), r#"{"status": "completed"}"#).unwrap();
    let runs = DirectoryRuns::open(&root).unwrap();
    let show = |path: &str| render(&runs, path, "").unwrap_or_else(|error| panic!("{path}: {error}")).html;
    let list = show("");
    assert!(list.contains("my run (copy)") && list.contains("badge-bad\">unreadable"), "{list}");
    let copy = show("runs/my%20run%20%28copy%29/settings");
    assert!(copy.contains("id=\"artifacts\"") && !copy.contains("id=\"unreadable\""), "{copy}");
    let only = DirectoryRuns::open(&renamed).unwrap();
    assert!(render(&only, "runs/my%20run%20%28copy%29", "").is_ok());
    for view in ["", "/settings", "/rows", "/rollouts/1"] {
        assert!(show(&format!("runs/damaged{view}")).contains("id=\"unreadable\""), "{view}");
    }
    let html = show("runs/bare/settings");
    assert!(html.contains("The workspace of the run is missing.") && html.contains("badge-good\">completed"), "{html}");
    assert!(render(&runs, "runs/..", "").is_err() && render(&runs, "runs/.", "").is_err());
    assert!(render(&runs, "", "cursor=x").unwrap_err().to_string().contains("invalid_cursor"));
}

#[test]
fn a_search_by_state_reads_a_part_of_a_large_directory() {
    let (_temporary, root) = directory();
    for number in 0..=200 {
        let dir = root.join(format!("run-{number}"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("result_manifest.json"), r#"{"status": "completed"}"#).unwrap();
    }
    let runs = DirectoryRuns::open(&root).unwrap();
    let show = |query: &str| render(&runs, "", query).unwrap().html;
    let first = show("state=failed");
    assert!(first.contains("older ones were not searched") && first.contains("state=failed&amp;cursor=200"), "{first}");
    assert!(show("state=failed&cursor=200").contains("There are no runs that match the filter."));
    assert!(show("state=completed").contains("cursor=50"));
}

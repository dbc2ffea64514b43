//! The views of the page and the report: every address has its view, and whatever somebody wrote is text.

use std::sync::Arc;

use camino::Utf8PathBuf;
use serde_json::json;
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_platform::artifacts::{FeedWriter, RegistryEntry, RunDir, RunPaths};
use synth_optimizer_platform::results::{write_failure, write_results};
use synth_optimizer_platform::views::{
    RunControls, RunList, RunListQuery, RunSource, ServiceHealth, ShownRun, render, run_report,
};
use synth_optimizer_platform::workspace::models::{ReadError, Refusal};
use synth_optimizer_platform::workspace::{Batch, Reader, RunRow, StoredEvent, Workspace};
use tempfile::TempDir;

use crate::sample;

/// One run in a directory.
#[derive(Debug)]
struct OneRun {
    paths: RunPaths,
    _temporary: TempDir,
}

impl OneRun {
    fn new(log: &[StoredEvent]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
        let dir = RunDir::open(&root, "run-1").unwrap();
        let run = RunRow {
            run_id: "run-1".into(),
            algorithm: "gepa".into(),
            config: json!({"run": {"run_id": "run-1"}, "gepa": {"max_total_rollouts": 100, "max_cost_usd": 0.0}}),
            config_digest: "0123456789abcdef".repeat(4),
            container_url: "http://127.0.0.1:9000".into(),
            cache_mode: "off".into(),
            cache_namespace: "gepa:run-1".into(),
            cache_path: None,
            output_dir: root.to_string(),
            run_dir: dir.dir().to_string(),
            created_at: 1_811_980_800_000,
        };
        let workspace = Workspace::create(dir.workspace_db().as_std_path(), &run, Durability::Process).unwrap();
        let mut feed = FeedWriter::open(&dir, |each| workspace.log(0, each)).unwrap();
        feed.append(log).unwrap();
        workspace.commit_blocking(Batch { events: log.to_vec(), ..Batch::default() }).unwrap();
        if workspace.totals().unwrap().is_terminal() {
            write_results(&dir, &workspace, feed, None).unwrap();
        }
        workspace.close().unwrap();
        Self { paths: dir.paths().clone(), _temporary: temporary }
    }

    fn show(&self, path: &str, query: &str) -> String {
        render(self, path, query).unwrap_or_else(|error| panic!("{path}?{query}: {error}")).html
    }
}

impl RunSource for OneRun {
    fn runs(&self, _: &RunListQuery) -> Result<RunList, ReadError> {
        Ok(RunList { runs: Vec::new(), next_cursor: None, controls: RunControls::Service })
    }

    fn run(&self, run_id: &str) -> Result<ShownRun, ReadError> {
        if run_id != "run-1" {
            let (message, hint) = (format!("no run {run_id}"), "List the runs.".to_owned());
            return Err(ReadError::NotFound(Refusal { code: "run_not_found", field: "run_id", message, hint }));
        }
        Ok(ShownRun {
            paths: self.paths.clone(),
            state: "completed".into(),
            is_terminal: true,
            waiting: None,
            submitted_at: None,
            controls: RunControls::Service,
            reader: Some(Arc::new(Reader::open(self.paths.workspace_db().as_std_path())?)),
        })
    }

    fn health(&self) -> Result<Option<ServiceHealth>, ReadError> {
        Ok(None)
    }

    fn place(&self) -> String {
        "a test".into()
    }
}

/// A text that would be markup, and signs that change terminals and directions.
const HOSTILE: &str = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u{1b}[31m\u{202e}&amp;\"'";

/// Returns the finished run with hostile texts of candidates and rationales.
fn hostile() -> Vec<StoredEvent> {
    let mut log = sample::finished();
    for stored in &mut log {
        if let Event::CandidateRegistered(registered) = &mut stored.event {
            registered.rationale = HOSTILE.to_owned();
            registered.payload.values_mut().for_each(|text| text.push_str(HOSTILE));
        }
    }
    log.into_iter().map(|stored| StoredEvent::new(stored.sequence, stored.unix_millis, stored.event)).collect()
}

#[test]
fn every_address_has_its_view_and_hostile_texts_stay_texts() {
    let run = OneRun::new(&hostile());
    let candidate = format!("runs/run-1/candidates/{}", sample::CHILD);
    let first_row = run.run("run-1").unwrap().reader.unwrap().row_table(&Default::default()).unwrap();
    let row = format!("runs/run-1/rows/{}", first_row.rows[0].example_id);
    let addresses = [
        ("", ""),
        ("runs", "state=running"),
        ("health", ""),
        ("runs/run-1", ""),
        ("runs/run-1", "axis=cost&width=narrow"),
        ("runs/run-1/lineage", "part=accepted"),
        (&candidate, ""),
        (&candidate, "against=initial"),
        (&candidate, "other=gepa_x"),
        ("runs/run-1/rows", "split=heldout&order=gain&candidates=all"),
        (&row, "split=train"),
        ("runs/run-1/rollouts/1", ""),
        ("runs/run-1/turns", ""),
        ("runs/run-1/turns/1", ""),
        ("runs/run-1/compare", ""),
        ("runs/run-1/settings", ""),
        ("runs/run-1/health", ""),
    ];
    for (path, query) in addresses {
        if query == "other=gepa_x" {
            assert!(matches!(render(&run, path, query), Err(ReadError::NotFound(_))));
            continue;
        }
        let html = run.show(path, query);
        assert!(!html.contains("<script") && !html.contains("<img"), "{path}: {html}");
        assert!(!html.contains('\u{1b}') && !html.contains('\u{202e}'), "{path}");
    }
    let texts = run.show(&candidate, "");
    assert!(texts.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{texts}");
    for missing in ["runs/other", "nothing", "runs/run-1/nothing", "runs/run-1/rollouts/999999", "runs/run-1/turns/77"]
    {
        assert!(matches!(render(&run, missing, ""), Err(ReadError::NotFound(_))), "{missing}");
    }
}

#[test]
fn the_overview_shows_the_claim_and_the_numbers_of_the_run() {
    let run = OneRun::new(&sample::finished());
    let html = run.show("runs/run-1", "");
    assert!(html.contains("class=\"synth-picture\"") && html.contains("data-action=\"delete\""));
    assert!(html.contains(sample::CHILD) && html.contains("<del>") && html.contains("<ins>"), "{html}");
    assert!(html.contains("<dt>search</dt>") && html.contains("reference"), "{html}");
}

#[test]
fn the_report_is_one_file_without_scripts_and_links() {
    let run = OneRun::new(&hostile());
    let written = std::fs::read_to_string(run.paths.report()).unwrap();
    assert_eq!(run_report(&run.paths).unwrap(), written);
    assert!(
        written.contains("Content-Security-Policy") && written.contains("default-src &#39;none&#39;")
            || written.contains("default-src 'none'")
    );
    for never in ["<script", "<img", "href=", "src=", "url(", "\u{1b}", "\u{202e}"] {
        assert!(
            !written.contains(never)
                || never == "src=" && written.matches("src=").count() == written.matches("&lt;img src=").count(),
            "{never}"
        );
    }
    assert!(written.contains("Held-out rows") && written.contains("runs apply run-1"));
}

#[test]
fn runs_without_a_result_have_a_report_that_says_why() {
    let failed = OneRun::new(&sample::failed());
    assert!(std::fs::read_to_string(failed.paths.report()).unwrap().contains("No result: "));
    let cancelled = OneRun::new(&sample::cancelled());
    assert!(std::fs::read_to_string(cancelled.paths.report()).unwrap().contains("badge-bad\">cancelled"));
    let live = sample::finished();
    let live = OneRun::new(&live[..live.len() / 2]);
    assert!(!live.paths.report().exists());
    assert!(
        run_report(&live.paths).unwrap().contains("So far")
            || run_report(&live.paths).unwrap().contains("No score yet")
    );

    let temporary = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(temporary.path().to_owned()).unwrap();
    let dir = RunDir::open(&root, "early").unwrap();
    let error = OptimizerError::new(ErrorCode::Container, "nobody answers <b>").with_hint("Start it.");
    write_failure(&dir, &RegistryEntry::default(), &error).unwrap();
    let report = std::fs::read_to_string(dir.report()).unwrap();
    assert!(report.contains("nobody answers &lt;b&gt;") && report.contains("before it had a log"), "{report}");
}

//! The views of the page and the report: every address has its view, and whatever somebody wrote is text.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use camino::Utf8PathBuf;
use serde_json::{Value, json};
use synth_optimizer_core::config::sections::Durability;
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_fields::{RolloutFailed, RolloutsRequested, Stage};
use synth_optimizer_core::model::ids::{CallId, CandidateId, RowId};
use synth_optimizer_core::model::usage::Usage;
use synth_optimizer_platform::artifacts::{FeedWriter, RegistryEntry, RunDir, RunPaths};
use synth_optimizer_platform::results::{write_failure, write_results};
use synth_optimizer_platform::views::{
    ListedRun, RunControls, RunFilesRead, RunList, RunListQuery, RunSource, ServiceHealth, ShownRun, render, run_report,
};
use synth_optimizer_platform::workspace::models::{ReadError, Refusal};
use synth_optimizer_platform::workspace::{Batch, Reader, RunRow, StoredEvent, Workspace};
use tempfile::TempDir;

use crate::sample;

/// One run in a directory.
#[derive(Debug)]
struct OneRun {
    paths: RunPaths,
    state: &'static str,
    /// Why its request ended.
    error: Option<Value>,
    /// What the list of runs says.
    list: RunList,
    /// How often the list was read.
    listed: AtomicUsize,
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
        let list = RunList { runs: Vec::new(), next_cursor: None, controls: RunControls::Service };
        Self {
            paths: dir.paths().clone(),
            state: "completed",
            error: None,
            list,
            listed: AtomicUsize::new(0),
            _temporary: temporary,
        }
    }

    /// Returns a run in this state that has no workspace.
    fn without_workspace(state: &'static str, error: Option<Value>) -> Self {
        let run = Self { state, error, ..Self::new(&[]) };
        std::fs::remove_file(run.paths.workspace_db()).unwrap();
        run
    }

    fn show(&self, path: &str, query: &str) -> String {
        render(self, path, query).unwrap_or_else(|error| panic!("{path}?{query}: {error}")).html
    }
}

impl RunSource for OneRun {
    fn runs(&self, _: &RunListQuery) -> Result<RunList, ReadError> {
        self.listed.fetch_add(1, Ordering::Relaxed);
        Ok(self.list.clone())
    }

    fn run_ids(&self) -> Result<Vec<String>, ReadError> {
        Ok(vec!["run-1".into()])
    }

    fn run(&self, run_id: &str) -> Result<ShownRun, ReadError> {
        if run_id != "run-1" {
            let (message, hint) = (format!("no run {run_id}"), "List the runs.".to_owned());
            return Err(ReadError::NotFound(Refusal { code: "run_not_found", field: "run_id", message, hint }));
        }
        let read = RunFilesRead::read(&self.paths, |path| Ok(Arc::new(Reader::open(path.as_std_path())?)))?;
        Ok(ShownRun {
            paths: self.paths.clone(),
            state: self.state.into(),
            is_terminal: !["running", "queued"].contains(&self.state),
            waiting: None,
            submitted_at: None,
            controls: RunControls::Service,
            reader: read.reader,
            problem: read.problem,
            error: self.error.clone(),
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
    assert!(html.contains("<dt>ended</dt>") && html.contains(", after "), "{html}");
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

#[test]
fn a_candidate_that_does_not_exist_is_a_problem_of_the_comparison_only() {
    let run = OneRun::new(&sample::finished());
    let html = run.show(&format!("runs/run-1/candidates/{}", sample::CHILD), "other=gepa_x");
    assert!(html.contains("class=\"problem\"") && html.contains("id=\"rollouts\""), "{html}");
    assert!(html.contains("name=\"other\""), "the form can be corrected");
}

#[test]
fn runs_without_a_workspace_say_why() {
    let error = json!({"error_code": "config_error", "message": "no program <b>", "hint": "Name one."});
    let failed = OneRun::without_workspace("failed", Some(error));
    let html = failed.show("runs/run-1", "");
    assert!(html.contains("No result: no program &lt;b&gt;") && html.contains("Name one."), "{html}");
    let cancelled = OneRun::without_workspace("cancelled", None).show("runs/run-1", "");
    assert!(cancelled.contains("The run was cancelled before it had a score."), "{cancelled}");
    assert!(OneRun::without_workspace("queued", None).show("runs/run-1", "").contains("No score yet."));
    for (state, words) in [
        ("completed", "The workspace of the run is missing."),
        ("failed", "The run ended before it had a workspace."),
        ("queued", "The run has not started."),
    ] {
        let run = OneRun::without_workspace(state, None);
        for view in ["lineage", "rows", "turns", "settings", "health"] {
            let html = run.show(&format!("runs/run-1/{view}"), "");
            assert!(html.contains(words), "{state} {view}: {html}");
        }
        let refused = render(&run, "runs/run-1/rollouts/1", "").unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn a_damaged_workspace_hides_only_what_it_has() {
    let run = OneRun::new(&sample::finished());
    std::fs::write(run.paths.workspace_db(), "no database, but long enough".repeat(200)).unwrap();
    for view in ["", "/lineage", "/rows", "/turns", "/settings", "/health", "/rollouts/1", "/compare"] {
        let html = run.show(&format!("runs/run-1{view}"), "");
        assert!(html.contains("id=\"unreadable\"") && html.contains("class=\"tabs\""), "{view}: {html}");
    }
    assert!(run.show("runs/run-1/settings", "").contains("report.html"), "the files are listed");
}

#[test]
fn a_damaged_manifest_hides_only_the_verdict() {
    let run = OneRun::new(&sample::finished());
    std::fs::write(run.paths.manifest(), "{").unwrap();
    let html = run.show("runs/run-1", "");
    assert!(html.contains("is not JSON") && html.contains("synth-picture"), "{html}");
    assert!(run.show("runs/run-1/rows", "").contains("data-href"));
}

#[test]
fn a_cell_of_the_heat_map_leads_to_its_only_rollout() {
    let run = OneRun::new(&sample::finished());
    let html = run.show("runs/run-1/rows", "split=heldout");
    let addresses: Vec<&str> =
        html.split("data-href=\"").skip(1).filter_map(|rest| rest.split_once('"')).map(|(href, _)| href).collect();
    assert_eq!(addresses.len(), 4, "{html}");
    for address in addresses {
        let path = address.strip_prefix("/ui/").unwrap();
        assert!(path.starts_with("runs/run-1/rollouts/"), "{path}");
        assert!(run.show(path, "").contains("held-out") || run.show(path, "").contains("heldout"), "{path}");
    }
}

#[test]
fn a_view_of_a_row_reads_a_part_of_a_long_run() {
    let mut log = sample::finished();
    log.truncate(log.len() / 2);
    let row = |number: u64| RowId::new(&format!("train:{}", number.max(1)));
    log.push(StoredEvent::new(
        log.len() as u64,
        1_811_980_900_000,
        Event::RolloutsRequested(RolloutsRequested {
            first_call_id: CallId(1000),
            evaluation: CallId(1000),
            candidate_id: CandidateId::new(sample::CHILD),
            stage: Stage::CandidateFullTrain,
            generation: None,
            row_ids: (0..100_000).map(row).collect(),
            attempt: 1,
            replicate: 0,
        }),
    ));
    let run = OneRun { state: "running", ..OneRun::new(&log) };
    let html = run.show("runs/run-1/rows/train:99999", "split=train");
    assert!(!html.contains("/rollouts/"), "the row is beyond the calls that one view reads");
    let (_, rest) = html.split_once("cursor=").unwrap();
    let (cursor, _) = rest.split_once('"').unwrap();
    let next = run.show("runs/run-1/rows/train:99999", &format!("split=train&cursor={cursor}"));
    assert!(next.contains("/rollouts/100999") && !next.contains("cursor="), "{next}");
    let own = run.show("runs/run-1/rows/train:99999", &format!("split=train&candidate={}", sample::CHILD));
    assert!(own.contains("/rollouts/100999") && own.contains("All candidates"), "{own}");
}

#[test]
fn an_empty_page_of_a_search_leads_to_older_runs() {
    let mut run = OneRun::new(&sample::finished());
    run.list.next_cursor = Some("77".into());
    let html = run.show("", "name=nothing");
    assert!(html.contains("older ones were not searched") && html.contains("name=nothing&amp;cursor=77"), "{html}");
    run.list.next_cursor = None;
    assert!(run.show("", "name=nothing").contains("no runs that match the filter"));
    assert!(run.show("", "").contains("There are no runs."));
}

#[test]
fn the_list_shows_how_far_every_limit_is() {
    let mut run = OneRun::new(&sample::finished());
    let read = run.run("run-1").unwrap();
    let limits = read.reader.as_ref().unwrap().limits().unwrap();
    let rule = |name: &str, value: f64, limit: f64| {
        let mut rule = limits[0].clone();
        (rule.name, rule.value, rule.limit, rule.share) = (name.into(), Some(value), Some(limit), Some(value / limit));
        rule
    };
    run.list.runs.push(ListedRun {
        run_id: "run-1".into(),
        state: "running".into(),
        is_terminal: false,
        waiting: None,
        submitted_at: None,
        overview: Some(synth_optimizer_platform::artifacts::run_status(&run.paths).unwrap()),
        limits: vec![
            rule("gepa.max_train_rollouts", 40.0, 80.0),
            rule("gepa.max_heldout_rollouts", 3.0, 9.0),
            rule("gepa.max_time_seconds", 12.5, 60.0),
            rule("gepa.max_prompt_tokens", 1000.0, 5000.0),
            rule("gepa.max_completion_tokens", 10.0, 20.0),
        ],
        steps: Vec::new(),
        problem: None,
    });
    let html = run.show("", "");
    let shown = ["40 / 80 train rollouts", "3 / 9 held-out rollouts", "60 seconds", "1,000 / 5,000 prompt tokens"];
    for words in shown.into_iter().chain(["10 / 20 completion tokens"]) {
        assert!(html.contains(words), "{words}: {html}");
    }
}

#[test]
fn a_live_run_shows_how_many_calls_may_be_in_flight() {
    let log = sample::finished();
    let run = OneRun { state: "running", ..OneRun::new(&log[..log.len() / 2]) };
    let html = run.show("runs/run-1", "");
    assert!(html.contains("0 of 8 rollouts in flight") && html.contains("of 1 proposer turn in flight"), "{html}");
}

#[test]
fn the_health_of_a_run_is_shown_without_writing() {
    let run = OneRun::new(&sample::finished());
    let count = || {
        let sql = "SELECT count(*) FROM invariant_reports";
        let db = rusqlite::Connection::open(run.paths.workspace_db()).unwrap();
        db.query_row(sql, [], |row| row.get::<_, u64>(0)).unwrap()
    };
    let before = count();
    assert!(run.show("runs/run-1/health", "").contains("id=\"projections\""));
    assert_eq!(count(), before);
}

#[test]
fn best_and_initial_name_candidates_of_a_comparison() {
    let run = OneRun::new(&sample::finished());
    let html = run.show("runs/run-1/compare", "candidate=initial&other_candidate=best");
    assert!(!html.contains("class=\"problem\""), "{html}");
    assert!(html.contains(&format!("candidates/{}", sample::SEED)) && html.contains(sample::CHILD));
    assert_eq!(run.listed.load(Ordering::Relaxed), 0, "the names of runs need no entries of the list");
    let refused = run.show("runs/run-1/compare", "candidate=worst");
    assert!(refused.contains("class=\"problem\""), "{refused}");
}

#[test]
fn attempts_of_a_rollout_are_listed_and_linked() {
    let mut log = sample::finished();
    log.truncate(log.len() / 2);
    let mut add = |event| log.push(StoredEvent::new(log.len() as u64, 1_811_980_900_000, event));
    let candidate_id = CandidateId::new(sample::CHILD);
    for (call_id, attempt) in [(1000, 1), (1001, 2)] {
        add(Event::RolloutsRequested(RolloutsRequested {
            first_call_id: CallId(call_id),
            evaluation: CallId(1000),
            candidate_id: candidate_id.clone(),
            stage: Stage::CandidateFullTrain,
            generation: None,
            row_ids: vec![RowId::new("train:3")],
            attempt,
            replicate: 0,
        }));
        if attempt == 1 {
            add(Event::RolloutFailed(RolloutFailed {
                call_id: CallId(call_id),
                candidate_id: candidate_id.clone(),
                row_id: RowId::new("train:3"),
                stage: Stage::CandidateFullTrain,
                attempt,
                class: FailureClass::Timeout,
                message: "no answer".into(),
                usage: Usage::default(),
                cached: false,
                retried: true,
            }));
        }
    }
    let run = OneRun { state: "running", ..OneRun::new(&log) };
    for call_id in [1000, 1001] {
        let html = run.show(&format!("runs/run-1/rollouts/{call_id}"), "");
        let (_, attempts) = html.split_once("id=\"attempts\"").unwrap();
        assert!(attempts.contains("/rollouts/1000\"") && attempts.contains("/rollouts/1001\""), "{html}");
    }
    assert!(!run.show("runs/run-1/rollouts/1", "").contains("id=\"attempts\""));
}

#[test]
fn the_claim_of_a_run_without_a_gain_is_said_once() {
    let run = OneRun::new(&sample::finished());
    let sentence = "no evidence of improvement: no held-out row has scores of both";
    let manifest = json!({"claim": {"verdict": "no_evidence", "sentence": sentence, "gain": null}});
    std::fs::write(run.paths.manifest(), manifest.to_string()).unwrap();
    let html = run.show("runs/run-1", "");
    assert!(html.contains("No evidence of improvement: no held-out row has scores of both."), "{html}");
    assert_eq!(html.matches("o evidence of improvement").count(), 1);
}

#[test]
fn the_claim_of_an_improvement_has_its_numbers_once() {
    let run = OneRun::new(&sample::finished());
    let gain = json!({"estimate": 0.13, "low": 0.06, "high": 0.19});
    let claim = json!({"verdict": "better", "gain": gain, "p_value": 0.00002, "sentence": "better by 0.1300 [...]"});
    let manifest = json!({"claim": claim, "heldout_gain": {"wins": 49, "losses": 18}});
    std::fs::write(run.paths.manifest(), manifest.to_string()).unwrap();
    let html = run.show("runs/run-1", "");
    let verdict =
        "Held-out +0.130 [0.060, 0.190], 49 better, 18 worse: an improvement that is hard to explain by luck.";
    assert!(html.contains(verdict) && html.contains("p &lt; 0.0001"), "{html}");
    assert!(!html.contains("0.1300"), "{html}");
}

#[test]
fn the_report_names_commands_that_check_the_result() {
    let run = OneRun::new(&sample::finished());
    let report = run_report(&run.paths).unwrap();
    assert!(report.contains("workspace rebuild --db workspace.sqlite --check"), "{report}");
    assert!(report.contains("events compare --left events.normalized.jsonl"));
}

#[test]
fn the_best_and_the_initial_candidate_are_named_by_these_words() {
    let run = OneRun::new(&sample::finished());
    let texts = |of: &str, query: &str| {
        let html = run.show(&format!("runs/run-1/candidates/{of}"), query);
        let (_, texts) = html.split_once("id=\"texts\"").unwrap();
        texts.split_once("</section>").unwrap().0.to_owned()
    };
    let against_best = texts(sample::SEED, "against=best");
    assert!(against_best.contains(&format!("candidates/{}", sample::CHILD)) && against_best.contains("<ins>"));
    assert!(texts(sample::CHILD, "other=best").contains("it is this one"));
    assert!(texts(sample::SEED, "").contains("it is this one"));
}

#[test]
fn choices_of_the_rows_are_parts_of_every_address() {
    let run = OneRun::new(&sample::finished());
    let html = run.show("runs/run-1/rows", &format!("candidates={}", sample::CHILD));
    assert!(html.contains(&format!("<option value=\"{0}\" selected>{0}</option>", sample::CHILD)), "{html}");
    assert!(html.contains("1 of 2 candidates") || html.contains("1 candidates"), "{html}");
    assert!(matches!(render(&run, "runs/run-1/rows", "candidates=other"), Err(ReadError::Invalid(_))));
    assert!(matches!(render(&run, "runs/run-1/rows", "order=odd&split=x"), Err(ReadError::Invalid(_))));
}

#[test]
fn candidates_without_a_decision_do_not_look_like_active_ones() {
    let run = OneRun::new(&sample::finished());
    let html = run.show("runs/run-1/lineage", "");
    assert!(!html.contains("badge-live"), "{html}");
}

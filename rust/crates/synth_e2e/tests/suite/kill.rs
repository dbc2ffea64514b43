//! Killed runs: at whatever point a run is killed, the same command resumes it, and its results equal those of an
//! uninterrupted run. The container's own record of executed rollouts shows that none was run twice.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::{TestDir, finished, stub};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::WAIT_TIMEOUT;
use synth_e2e::{RowNames, RunFiles, ServerProcess, read_bill, run_to_end, small_config, write_config};
use synth_gepa::{RandomStream, random_stream};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{PipelineMode, SearchMode, SubmissionMode};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::canonical::canonical_json;
use synth_optimizer_core::model::envelope::normalize;

/// `scripted_run` kills itself at the nth hook point: before and after each durable write.
const KILL_AT: &str = "SYNTH_OPTIMIZERS_TEST_KILL_AT";
/// The total number of kills at random times, and the random seed of these times.
const KILLS: &str = "SYNTH_E2E_KILLS";
const SEED: &str = "SYNTH_E2E_SEED";

/// Every run reaches at least this many hook points. A loop that ends earlier has killed nothing.
const MIN_HOOK_POINTS: u64 = 20;
const MAX_HOOK_POINTS: u64 = 2_000;

/// Whether the container recognises a rollout id that it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdMemory {
    Remember,
    /// Only ids of rollouts that have ended.
    RememberEnded,
    Forget,
}

impl IdMemory {
    fn flag(self) -> &'static str {
        match self {
            Self::Remember => "remember",
            Self::RememberEnded => "ended",
            Self::Forget => "forget",
        }
    }
}

/// Makes a run a search in sprints.
fn in_sprints(config: &mut Config) {
    config.gepa.search = SearchMode::Sprint;
    config.gepa.max_generations = Some(6);
    config.gepa.sprint.rollouts = Some(12);
    config.gepa.sprint.repeats = 4;
    // Three held-out rows prove nothing.
    config.gepa.sprint.return_unproven = true;
    config.gepa.pipeline.mode = PipelineMode::AsyncPipelined;
    config.gepa.pipeline.max_in_flight_candidates = Some(4);
}

/// Normalizes a raw or a normalized feed.
fn normalize_feed(feed: &str) -> String {
    let lines = feed.lines().filter(|line| !line.trim().is_empty());
    let kept = lines.filter_map(|line| normalize(serde_json::from_str(line).unwrap()).unwrap());
    kept.map(|value| canonical_json(&value) + "\n").collect()
}

/// A stub container with its bill, a config for it, and the results of an uninterrupted run.
struct KillFixture {
    _stub: ServerProcess,
    test_dir: TestDir,
    memory: IdMemory,
    cache: CacheMode,
    clean: BTreeMap<&'static str, String>,
    clean_time: Duration,
    /// Number of rollouts of the uninterrupted run.
    clean_count: Option<u64>,
    /// Number of lines of the bill that belong to runs that were checked.
    settled: usize,
}

impl KillFixture {
    fn new(memory: IdMemory, cache: CacheMode, mode: SubmissionMode, latency_ms: &str) -> Self {
        Self::with(memory, cache, latency_ms, |config| config.gepa.rollout_submission_mode = mode)
    }

    /// A search in sprints with several generations at a time, whose first check comes soon.
    fn in_sprints(memory: IdMemory, cache: CacheMode) -> Self {
        let fixture = Self::with(memory, cache, "0", in_sprints);
        let log = &fixture.clean[COMPARED_FILES[0]];
        for event in ["noise.measured", "head.moved", "check.decided", "adopted"] {
            assert!(log.contains(event), "the clean run has no {event}");
        }
        fixture
    }

    fn with(memory: IdMemory, cache: CacheMode, latency_ms: &str, configure: impl FnOnce(&mut Config)) -> Self {
        let test_dir = TestDir::new();
        let bill = test_dir.path().join("bill");
        let stub = stub(&["--memory", memory.flag(), "--latency-ms", latency_ms, "--bill", bill.as_str()]);
        let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
        config.cache.mode = cache;
        configure(&mut config);
        write_config(&test_dir.config(), &config).unwrap();
        let begun = Instant::now();
        let files = test_dir.finish("e2e-clean", &[]);
        let clean_time = begun.elapsed();
        assert!(finished(&files).train_gain.is_some_and(|gain| gain.difference > 0.0), "the clean run learns nothing");
        let clean = COMPARED_FILES.into_iter().map(|name| (name, files.comparable(name).unwrap())).collect();
        let mut fixture =
            Self { _stub: stub, test_dir, memory, cache, clean, clean_time, clean_count: None, settled: 0 };
        fixture.check(&files);
        fixture
    }

    /// Runs a process that kills itself at a hook point. Returns false if the run completed before.
    fn is_killed_at(&self, hook_point: u64, run_id: &str) -> bool {
        let mut command = self.test_dir.command(run_id, &[]);
        command.env(KILL_AT, hook_point.to_string());
        let ended = run_to_end(command, WAIT_TIMEOUT).unwrap();
        let killed = ended.status.signal() == Some(9) && !ended.timed_out;
        assert!(
            killed || ended.status.success(),
            "{run_id} ended with {}\n{}\n{}",
            ended.status,
            ended.stdout,
            ended.stderr
        );
        killed
    }

    /// Checks that the files equal those of the uninterrupted run, and that the bill matches the calls in the log.
    fn check(&mut self, files: &RunFiles) {
        let run = &files.run_id;
        let counts = finished(files).rollouts;
        let (counted, unknown) = (counts.train + counts.heldout, counts.unknown_outcomes);
        assert_eq!(counted, *self.clean_count.get_or_insert(counted) + unknown, "{run} counts other rollouts");
        for (name, clean) in &self.clean {
            let found = files.comparable(name).unwrap();
            let differing = found.lines().zip(clean.lines()).enumerate().find(|(_, (ours, theirs))| ours != theirs);
            assert_eq!(found.lines().count(), clean.lines().count(), "{run}: {name} has another length");
            assert_eq!(differing, None, "{run}: {name} differs");
            assert!(found == *clean, "{run}: {name} differs");
        }
        let feed = std::fs::read_to_string(files.directory.join("events.jsonl")).unwrap();
        let whole = normalize_feed(&feed).replace(run, "RUN") == files.comparable(COMPARED_FILES[0]).unwrap();
        assert!(whole, "{run}: events.jsonl and events.normalized.jsonl differ");
        crate::harness::assert_consistent(files);
        let ledger = files.ledger().unwrap();
        let bill = read_bill(&self.test_dir.path().join("bill")).unwrap();
        let ours: Vec<&str> = bill[self.settled..].iter().map(|line| line.rollout_id.as_str()).collect();
        self.settled = bill.len();
        let unique: BTreeSet<String> = ours.iter().map(|id| (*id).to_owned()).collect();
        let never_asked: Vec<&String> = unique.difference(&ledger.requested).collect();
        assert!(never_asked.is_empty(), "{run}: the container ran what the log never asked for: {never_asked:?}");
        match self.cache {
            CacheMode::Off => {
                let differing: Vec<&String> = unique.symmetric_difference(&ledger.live).collect();
                assert!(differing.is_empty(), "{run}: the bill and the log differ in {differing:?}");
            }
            // A killed process may have stored an answer in the cache and not in the log. The resumed run finds it there.
            CacheMode::Readwrite | CacheMode::Readonly => {
                let unpaid: Vec<&String> = ledger.live.difference(&unique).collect();
                assert!(unpaid.is_empty(), "{run}: the log has answers that the container never gave: {unpaid:?}");
            }
        }
        let twice = (ours.len() - unique.len()) as u64;
        assert_eq!(unknown, ledger.unknown_outcomes, "{run}: the log counts other unknown outcomes than its end");
        match self.memory {
            IdMemory::Remember => assert_eq!((twice, unknown), (0, 0), "{run}: rollouts were run twice"),
            IdMemory::RememberEnded => assert_eq!(twice, 0, "{run}: rollouts were run twice"),
            IdMemory::Forget => {
                assert!(twice <= unknown, "{run}: {twice} rollouts were run twice, {unknown} outcomes were unknown");
            }
        }
        if self.cache == CacheMode::Off {
            assert!(ours.len() as u64 <= counted, "{run}: {} rollouts ran, {counted} are counted", ours.len());
        }
    }
}

/// Kills a run at its first hook point, the next run at its second, and so on, until a run completes.
fn kill_at_every_hook_point(memory: IdMemory, mode: SubmissionMode) {
    kill_at_hook_points(memory, mode, 1);
}

fn kill_at_hook_points(memory: IdMemory, mode: SubmissionMode, step: usize) {
    kill_fixture(KillFixture::new(memory, CacheMode::Off, mode, "0"), step);
}

fn kill_fixture(mut fixture: KillFixture, step: usize) {
    for hook_point in (1..=MAX_HOOK_POINTS).step_by(step) {
        let run_id = format!("e2e-killed-{hook_point}");
        let died = fixture.is_killed_at(hook_point, &run_id);
        let files = if died { fixture.test_dir.finish(&run_id, &[]) } else { fixture.test_dir.files(&run_id) };
        fixture.check(&files);
        if !died {
            assert!(hook_point > MIN_HOOK_POINTS, "no kill at hook point {hook_point}: {KILL_AT} has no effect");
            return;
        }
    }
    panic!("a run reaches more than {MAX_HOOK_POINTS} hook points");
}

#[test]
fn kill_at_every_hook_point_with_a_container_that_deduplicates() {
    kill_at_every_hook_point(IdMemory::Remember, SubmissionMode::Sync);
}

#[test]
fn kill_at_every_hook_point_with_a_container_that_forgets_ids() {
    kill_at_every_hook_point(IdMemory::Forget, SubmissionMode::Sync);
}

#[test]
fn kill_at_every_hook_point_with_polled_rollouts() {
    kill_at_every_hook_point(IdMemory::Forget, SubmissionMode::Async);
}

/// Such a container is asked for seconds, as long as a copy of a rollout may still run. So not every hook point is tried.
#[test]
fn kill_at_some_hook_points_with_a_container_that_remembers_ended_rollouts() {
    kill_at_hook_points(IdMemory::RememberEnded, SubmissionMode::Sync, 16);
}

#[test]
fn kill_at_some_hook_points_of_a_search_in_sprints() {
    kill_fixture(KillFixture::in_sprints(IdMemory::Remember, CacheMode::Off), 5);
    kill_fixture(KillFixture::in_sprints(IdMemory::Forget, CacheMode::Readwrite), 9);
}

/// The limit on rollouts holds at the container, however often a run is killed: a rollout of unknown outcome counts.
#[test]
fn killed_runs_stay_within_their_limit() {
    const CAP: u64 = 26;
    for memory in [IdMemory::Remember, IdMemory::RememberEnded, IdMemory::Forget] {
        for workers in ["1", "8", "64"] {
            let test_dir = TestDir::new();
            let bill = test_dir.path().join("bill");
            let stub = stub(&["--memory", memory.flag(), "--latency-ms", "3", "--bill", bill.as_str()]);
            let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
            config.cache.mode = CacheMode::Off;
            config.gepa.max_total_rollouts = CAP as u32;
            config.gepa.max_generations = Some(20);
            write_config(&test_dir.config(), &config).unwrap();
            let mut processes = 1;
            loop {
                let mut command = test_dir.command("e2e-capped", &["--workers", workers]);
                // Each process reaches a little further than the one before, so that the run ends.
                command.env(KILL_AT, (8 + 4 * processes).to_string());
                let ended = run_to_end(command, WAIT_TIMEOUT).unwrap();
                if ended.status.signal() != Some(9) {
                    assert!(ended.status.success(), "{}\n{}", ended.stdout, ended.stderr);
                    break;
                }
                processes += 1;
            }
            let files = test_dir.files("e2e-capped");
            let billed = read_bill(&bill).unwrap().len() as u64;
            let counts = finished(&files).rollouts;
            let (counted, unknown) = (counts.train + counts.heldout, counts.unknown_outcomes);
            let manifest: serde_json::Value =
                serde_json::from_str(&files.read("result_manifest.json").unwrap()).unwrap();
            assert_eq!(manifest["rollouts"]["unknown_outcomes"], unknown);
            assert_eq!(manifest["usage"]["rollouts"]["unknown_outcomes"], unknown);
            println!(
                "{memory:?}, {workers} workers: {processes} processes, {billed} billed of {CAP}, {unknown} unknown"
            );
            assert!(
                processes > 2 && billed <= counted && counted <= CAP,
                "{billed} billed, {counted} counted of {CAP}"
            );
            assert!(memory == IdMemory::Forget || unknown == 0 || memory == IdMemory::RememberEnded);
        }
    }
}

/// Every process makes a little progress and is killed, also those that resume the run.
#[test]
fn a_run_that_is_killed_repeatedly_completes() {
    const EVERY: u64 = 12;
    let mut fixture = KillFixture::new(IdMemory::Remember, CacheMode::Off, SubmissionMode::Sync, "0");
    let mut processes = 1;
    while fixture.is_killed_at(EVERY, "e2e-stubborn") {
        processes += 1;
        assert!(processes <= MAX_HOOK_POINTS, "no progress after {processes} processes");
    }
    assert!(processes > 2, "the run was killed {} times only", processes - 1);
    let files = fixture.test_dir.files("e2e-stubborn");
    fixture.check(&files);
}

#[test]
fn kill_at_random_times() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = number(SEED).unwrap_or(now.into());
    let wanted = number(KILLS).unwrap_or(200);
    println!("{SEED}={seed} {KILLS}={wanted}");
    let mut worlds = [
        KillFixture::new(IdMemory::Remember, CacheMode::Off, SubmissionMode::Sync, "2"),
        KillFixture::new(IdMemory::Remember, CacheMode::Readwrite, SubmissionMode::Sync, "2"),
        KillFixture::new(IdMemory::Forget, CacheMode::Off, SubmissionMode::Async, "2"),
    ];
    let mut random = random_stream(seed, "kills", 0);
    let (mut kills, mut run) = (0, 0);
    while kills < wanted {
        let fixture = &mut worlds[run % 3];
        let run_id = format!("e2e-random-{run}");
        // Killed until it completes or has been killed often enough for one run.
        let at_most = (1 + random.index(12)) as u64;
        let mut killed_here = 0;
        let files = loop {
            if killed_here == at_most || kills == wanted {
                break fixture.test_dir.finish(&run_id, &[]);
            }
            let ended =
                run_to_end(fixture.test_dir.command(&run_id, &[]), random_delay(fixture.clean_time, &mut random))
                    .unwrap();
            if !ended.timed_out {
                assert!(ended.status.success(), "{run_id} ended with {}\n{}", ended.status, ended.stdout);
                break fixture.test_dir.files(&run_id);
            }
            kills += 1;
            killed_here += 1;
        };
        fixture.check(&files);
        run += 1;
    }
    println!("{kills} kills in {run} runs");
}

/// Returns a random time within the duration of an uninterrupted run.
fn random_delay(clean_time: Duration, random: &mut RandomStream) -> Duration {
    clean_time.mul_f64(random.unit())
}

/// One cache serves runs with other ids and directories, with any number of workers, and finally without a container.
#[test]
fn fresh_cached_and_readonly_runs_are_equal() {
    runs_are_equal(|_| {});
}

#[test]
fn fresh_cached_and_readonly_searches_in_sprints_are_equal() {
    runs_are_equal(in_sprints);
}

fn runs_are_equal(configure: impl FnOnce(&mut Config)) {
    let test_dir = TestDir::new();
    let bill = test_dir.path().join("bill");
    let mut stub = stub(&["--train", "12", "--heldout", "6", "--modules", "2", "--bill", bill.as_str()]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 12, 6, &FIELDS);
    config.gepa.max_generations = Some(4);
    configure(&mut config);
    config.cache.path = Some(test_dir.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    write_config(&test_dir.config(), &config).unwrap();
    let run = |run_id: &str, flags: &[&str]| {
        let elsewhere = test_dir.path().join(format!("runs-of-{run_id}"));
        let set = format!("run.output_dir={elsewhere}");
        test_dir.finish(run_id, &[&["--set", &set], flags].concat());
        RunFiles::new(&elsewhere, run_id)
    };
    let billed = || read_bill(&bill).unwrap().len();

    let uncached = run("e2e-uncached", &["--workers", "1", "--set", "cache.mode=off"]);
    assert!(finished(&uncached).train_gain.is_some_and(|gain| gain.difference > 0.0));
    let before = billed();
    let fresh = run("e2e-fresh", &["--workers", "64"]);
    assert!(billed() > before, "the first run with a cache calls the container");
    let before = billed();
    let cached = run("e2e-cached", &["--workers", "1"]);
    assert_eq!(billed(), before, "a cached run sends nothing to the container");
    stub.stop();
    let readonly = run("e2e-readonly", &["--workers", "64", "--set", "cache.mode=readonly"]);

    for name in COMPARED_FILES {
        let expected = uncached.comparable(name).unwrap();
        for files in [&fresh, &cached, &readonly] {
            assert!(files.comparable(name).unwrap() == expected, "{}: {name} differs", files.run_id);
        }
    }
}

/// A run with failed and retried rollouts is replayed with its failures.
#[test]
fn failures_are_replayed_from_the_cache() {
    let test_dir = TestDir::new();
    let bill = test_dir.path().join("bill");
    let mut stub = stub(&["--train", "12", "--heldout", "6", "--fail-every", "7", "--bill", bill.as_str()]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 12, 6, &FIELDS[..1]);
    config.cache.path = Some(test_dir.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    write_config(&test_dir.config(), &config).unwrap();
    let fresh = test_dir.finish("e2e-fresh", &["--workers", "8"]);
    assert!(fresh.read("events.jsonl").unwrap().contains("rollout.failed"), "nothing failed");
    let before = read_bill(&bill).unwrap().len();
    let cached = test_dir.finish("e2e-cached", &["--workers", "1"]);
    assert_eq!(read_bill(&bill).unwrap().len(), before, "a cached run sends nothing to the container");
    stub.stop();
    let readonly = test_dir.finish("e2e-readonly", &["--workers", "64", "--set", "cache.mode=readonly"]);
    for name in COMPARED_FILES {
        let expected = fresh.comparable(name).unwrap();
        for files in [&cached, &readonly] {
            assert!(files.comparable(name).unwrap() == expected, "{}: {name} differs", files.run_id);
        }
    }
}

/// No row after the one that trips the circuit breaker is called, however the run is executed, and the log is the same.
#[test]
fn a_task_that_fails_on_every_row_ends_the_same_with_any_workers_killed_and_from_the_cache() {
    // Eight rows with two attempts each.
    const CALLED: usize = 16;
    let test_dir = TestDir::new();
    let bill = test_dir.path().join("bill");
    let container = stub(&["--train", "24", "--heldout", "6", "--fail-every", "1", "--bill", bill.as_str()]);
    let mut config = small_config(&container.url(), RowNames::TaskIds, 24, 6, &FIELDS[..1]);
    config.gepa.search = SearchMode::Reference;
    config.cache.path = Some(test_dir.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    write_config(&test_dir.config(), &config).unwrap();
    let mut settled = 0;
    let mut fail = |run_id: &str, flags: &[&str], called: usize| {
        let ended = test_dir.run(run_id, flags);
        assert_eq!(ended.status.code(), Some(1), "{}{}", ended.stdout, ended.stderr);
        let files = test_dir.files(run_id);
        crate::harness::assert_consistent(&files);
        let bill = read_bill(&bill).unwrap();
        let ran: BTreeSet<&str> = bill[settled..].iter().map(|line| line.rollout_id.as_str()).collect();
        assert_eq!((ran.len(), bill.len() - settled), (called, called), "{run_id}");
        settled = bill.len();
        files.comparable(COMPARED_FILES[0]).unwrap()
    };
    let clean = fail("e2e-clean", &["--workers", "1"], CALLED);
    // The other 16 rows are postponed behind the second attempts, then withdrawn.
    assert_eq!(clean.matches("\"withdrawn\"").count(), 2 * 16, "{clean}");
    assert!(fail("e2e-workers", &["--workers", "64"], CALLED) == clean);
    assert!(fail("e2e-readonly", &["--workers", "64", "--set", "cache.mode=readonly"], 0) == clean);
    for hook_point in (1..=MAX_HOOK_POINTS).step_by(5) {
        let run_id = format!("e2e-killed-{hook_point}");
        let mut command = test_dir.command(&run_id, &["--workers", "8"]);
        command.env(KILL_AT, hook_point.to_string());
        let ended = run_to_end(command, WAIT_TIMEOUT).unwrap();
        assert!(fail(&run_id, &["--workers", "8"], CALLED) == clean, "{run_id}");
        if ended.status.signal() != Some(9) {
            assert!(hook_point > MIN_HOOK_POINTS, "no kill at hook point {hook_point}: {KILL_AT} has no effect");
            return;
        }
    }
    panic!("a run reaches more than {MAX_HOOK_POINTS} hook points");
}

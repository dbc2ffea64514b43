//! Runs that are killed: whatever the moment, the same command goes on and ends as if nothing had happened, and the
//! container's own bill shows that nothing was run twice.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::{Place, finished, stub};
use synth_e2e::run_files::COMPARED_FILES;
use synth_e2e::stub::FIELDS;
use synth_e2e::wait::WAIT_TIMEOUT;
use synth_e2e::{RowNames, RunFiles, ServerProcess, read_bill, run_to_end, small_config, write_config};
use synth_gepa::{RandomStream, random_stream};
use synth_optimizer_core::config::gepa::SubmissionMode;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::canonical::canonical_json;
use synth_optimizer_core::model::envelope::normalize;

/// `scripted_run` kills itself at the nth boundary that it meets: before and after each durable step.
const KILL_AT: &str = "SYNTH_OPTIMIZERS_TEST_KILL_AT";
/// How many kills at random moments there are in all, and the seed of the moments.
const KILLS: &str = "SYNTH_E2E_KILLS";
const SEED: &str = "SYNTH_E2E_SEED";

/// A run meets more boundaries than these; a loop that ends earlier has not killed anything.
const FEWEST_BOUNDARIES: u64 = 20;
const MOST_BOUNDARIES: u64 = 2_000;

/// What the container does with an id that it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Remember,
    Forget,
}

/// The normalized feed of a raw or a normalized one.
fn normalize_feed(feed: &str) -> String {
    let lines = feed.lines().filter(|line| !line.trim().is_empty());
    let kept = lines.filter_map(|line| normalize(serde_json::from_str(line).unwrap()).unwrap());
    kept.map(|value| canonical_json(&value) + "\n").collect()
}

/// A stub with its bill, a config for it, and what an uninterrupted run leaves.
struct World {
    _stub: ServerProcess,
    place: Place,
    memory: Memory,
    cache: CacheMode,
    clean: BTreeMap<&'static str, String>,
    clean_time: Duration,
    /// Lines of the bill that belong to runs that have been checked.
    settled: usize,
}

impl World {
    fn new(memory: Memory, cache: CacheMode, mode: SubmissionMode, latency_ms: &str) -> Self {
        let place = Place::new();
        let bill = place.path().join("bill");
        let word = match memory {
            Memory::Remember => "remember",
            Memory::Forget => "forget",
        };
        let stub = stub(&["--memory", word, "--latency-ms", latency_ms, "--bill", bill.as_str()]);
        let mut config = small_config(&stub.url(), RowNames::TaskIds, 6, 3, &FIELDS[..1]);
        config.cache.mode = cache;
        config.gepa.rollout_submission_mode = mode;
        write_config(&place.config(), &config).unwrap();
        let begun = Instant::now();
        let files = place.finish("e2e-clean", &[]);
        let clean_time = begun.elapsed();
        assert!(finished(&files).train_gain.is_some_and(|gain| gain.difference > 0.0), "the clean run learns nothing");
        let clean = COMPARED_FILES.into_iter().map(|name| (name, files.comparable(name).unwrap())).collect();
        let mut world = Self { _stub: stub, place, memory, cache, clean, clean_time, settled: 0 };
        world.check(&files);
        world
    }

    /// One process that is to die at a boundary. True if it did, false if it came to a good end before.
    fn dies_at(&self, boundary: u64, run_id: &str) -> bool {
        let mut command = self.place.command(run_id, &[]);
        command.env(KILL_AT, boundary.to_string());
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

    /// The oracle: the files are those of the clean run, and the bill is what the log asked for.
    fn check(&mut self, files: &RunFiles) {
        let run = &files.run_id;
        for (name, clean) in &self.clean {
            let found = files.comparable(name).unwrap();
            let differing = found.lines().zip(clean.lines()).enumerate().find(|(_, (ours, theirs))| ours != theirs);
            assert_eq!(found.lines().count(), clean.lines().count(), "{run}: {name} has another length");
            assert_eq!(differing, None, "{run}: {name} differs");
            assert!(found == *clean, "{run}: {name} differs");
        }
        let feed = std::fs::read_to_string(files.directory.join("events.jsonl")).unwrap();
        let whole = normalize_feed(&feed).replace(run, "RUN") == files.comparable(COMPARED_FILES[0]).unwrap();
        assert!(whole, "{run}: events.jsonl and events.normalized.jsonl tell different stories");
        crate::harness::assert_sound(files);
        let ledger = files.ledger().unwrap();
        let bill = read_bill(&self.place.path().join("bill")).unwrap();
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
            // An answer can reach the cache and not the log; the resumed run then finds it there.
            CacheMode::Readwrite | CacheMode::Readonly => {
                let unpaid: Vec<&String> = ledger.live.difference(&unique).collect();
                assert!(unpaid.is_empty(), "{run}: the log has answers that the container never gave: {unpaid:?}");
            }
        }
        let twice = (ours.len() - unique.len()) as u64;
        match self.memory {
            Memory::Remember => assert_eq!(twice, 0, "{run}: rollouts were run twice"),
            Memory::Forget => assert!(
                twice <= ledger.unknown_outcomes,
                "{run}: {twice} rollouts were run twice, and only {} outcomes were unknown",
                ledger.unknown_outcomes
            ),
        }
    }
}

/// Kills a run at its first boundary, the next run at its second, and so on, until one survives.
fn kill_at_every_boundary(memory: Memory, mode: SubmissionMode) {
    let mut world = World::new(memory, CacheMode::Off, mode, "0");
    for boundary in 1..=MOST_BOUNDARIES {
        let run_id = format!("e2e-killed-{boundary}");
        let died = world.dies_at(boundary, &run_id);
        let files = if died { world.place.finish(&run_id, &[]) } else { world.place.files(&run_id) };
        world.check(&files);
        if !died {
            assert!(boundary > FEWEST_BOUNDARIES, "no kill at boundary {boundary}: {KILL_AT} does not bite");
            return;
        }
    }
    panic!("a run meets more than {MOST_BOUNDARIES} boundaries");
}

#[test]
fn killed_at_every_boundary_with_a_container_that_remembers() {
    kill_at_every_boundary(Memory::Remember, SubmissionMode::Sync);
}

#[test]
fn killed_at_every_boundary_with_a_container_that_forgets() {
    kill_at_every_boundary(Memory::Forget, SubmissionMode::Sync);
}

#[test]
fn killed_at_every_boundary_with_rollouts_that_are_polled() {
    kill_at_every_boundary(Memory::Forget, SubmissionMode::Async);
}

/// Every process gets a little further and is killed, the resumed ones too.
#[test]
fn killed_again_and_again_gets_to_its_end() {
    const EVERY: u64 = 12;
    let mut world = World::new(Memory::Remember, CacheMode::Off, SubmissionMode::Sync, "0");
    let mut processes = 1;
    while world.dies_at(EVERY, "e2e-stubborn") {
        processes += 1;
        assert!(processes <= MOST_BOUNDARIES, "no progress after {processes} processes");
    }
    assert!(processes > 2, "the run was killed {} times only", processes - 1);
    let files = world.place.files("e2e-stubborn");
    world.check(&files);
}

#[test]
fn killed_at_random_moments() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = number(SEED).unwrap_or(now.into());
    let wanted = number(KILLS).unwrap_or(200);
    println!("{SEED}={seed} {KILLS}={wanted}");
    let mut worlds = [
        World::new(Memory::Remember, CacheMode::Off, SubmissionMode::Sync, "2"),
        World::new(Memory::Remember, CacheMode::Readwrite, SubmissionMode::Sync, "2"),
        World::new(Memory::Forget, CacheMode::Off, SubmissionMode::Async, "2"),
    ];
    let mut random = random_stream(seed, "kills", 0);
    let (mut kills, mut run) = (0, 0);
    while kills < wanted {
        let world = &mut worlds[run % 3];
        let run_id = format!("e2e-random-{run}");
        // Killed until it gets through by itself or has been killed often enough for one run.
        let at_most = (1 + random.index(12)) as u64;
        let mut killed_here = 0;
        let files = loop {
            if killed_here == at_most || kills == wanted {
                break world.place.finish(&run_id, &[]);
            }
            let ended = run_to_end(world.place.command(&run_id, &[]), moment(world.clean_time, &mut random)).unwrap();
            if !ended.timed_out {
                assert!(ended.status.success(), "{run_id} ended with {}\n{}", ended.status, ended.stdout);
                break world.place.files(&run_id);
            }
            kills += 1;
            killed_here += 1;
        };
        world.check(&files);
        run += 1;
    }
    println!("{kills} kills in {run} runs");
}

/// When to kill: anywhere in the time of a clean run.
fn moment(clean_time: Duration, random: &mut RandomStream) -> Duration {
    clean_time.mul_f64(random.unit())
}

/// One cache serves runs with other names and places, at any number of workers, and at last without any container.
#[test]
fn fresh_cached_and_readonly_runs_are_equal() {
    let place = Place::new();
    let bill = place.path().join("bill");
    let mut stub = stub(&["--train", "12", "--heldout", "6", "--modules", "2", "--bill", bill.as_str()]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 12, 6, &FIELDS);
    config.gepa.max_generations = 4;
    config.cache.path = Some(place.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    write_config(&place.config(), &config).unwrap();
    let run = |run_id: &str, flags: &[&str]| {
        let elsewhere = place.path().join(format!("runs-of-{run_id}"));
        let set = format!("run.output_dir={elsewhere}");
        place.finish(run_id, &[&["--set", &set], flags].concat());
        RunFiles::new(&elsewhere, run_id)
    };
    let billed = || read_bill(&bill).unwrap().len();

    let uncached = run("e2e-uncached", &["--workers", "1", "--set", "cache.mode=off"]);
    assert!(finished(&uncached).train_gain.is_some_and(|gain| gain.difference > 0.0));
    let before = billed();
    let fresh = run("e2e-fresh", &["--workers", "64"]);
    assert!(billed() > before, "the first run with a cache asks the container");
    let before = billed();
    let cached = run("e2e-cached", &["--workers", "1"]);
    assert_eq!(billed(), before, "a cached run asks the container for nothing");
    stub.stop();
    let readonly = run("e2e-readonly", &["--workers", "64", "--set", "cache.mode=readonly"]);

    for name in COMPARED_FILES {
        let expected = uncached.comparable(name).unwrap();
        for files in [&fresh, &cached, &readonly] {
            assert!(files.comparable(name).unwrap() == expected, "{}: {name} differs", files.run_id);
        }
    }
}

/// A run in which rollouts fail and are tried again is replayed with its failures.
#[test]
fn failures_are_replayed_as_they_happened() {
    let place = Place::new();
    let bill = place.path().join("bill");
    let mut stub = stub(&["--train", "12", "--heldout", "6", "--fail-every", "7", "--bill", bill.as_str()]);
    let mut config = small_config(&stub.url(), RowNames::TaskIds, 12, 6, &FIELDS[..1]);
    config.cache.path = Some(place.path().join("cache.sqlite"));
    config.cache.namespace = Some("shared".into());
    write_config(&place.config(), &config).unwrap();
    let fresh = place.finish("e2e-fresh", &["--workers", "8"]);
    assert!(fresh.read("events.jsonl").unwrap().contains("rollout.failed"), "nothing failed");
    let before = read_bill(&bill).unwrap().len();
    let cached = place.finish("e2e-cached", &["--workers", "1"]);
    assert_eq!(read_bill(&bill).unwrap().len(), before, "a cached run asks the container for nothing");
    stub.stop();
    let readonly = place.finish("e2e-readonly", &["--workers", "64", "--set", "cache.mode=readonly"]);
    for name in COMPARED_FILES {
        let expected = fresh.comparable(name).unwrap();
        for files in [&cached, &readonly] {
            assert!(files.comparable(name).unwrap() == expected, "{}: {name} differs", files.run_id);
        }
    }
}

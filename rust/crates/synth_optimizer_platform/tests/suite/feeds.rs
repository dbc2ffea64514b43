//! Feeds: lines, repair after a crash, normalizing, replay and comparison.
use crate::sample;
use camino::{Utf8Path, Utf8PathBuf};
use synth_optimizer_core::model::canonical::canonical_json;
use synth_optimizer_core::model::envelope::{Envelope, normalize};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::{FeedRepair, FeedWriter, RunDir, RunPaths, events_compare, events_replay};
use synth_optimizer_platform::workspace::StoredEvent;

const RUN: &str = "run-1";

struct Place {
    temporary: tempfile::TempDir,
    dir: RunDir,
}

impl Place {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let dir = RunDir::open(Utf8Path::from_path(temporary.path()).unwrap(), RUN).unwrap();
        Self { temporary, dir }
    }

    fn open(&self, log: &[StoredEvent]) -> FeedWriter {
        FeedWriter::open(&self.dir, |each| log.iter().cloned().try_for_each(each)).unwrap()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.dir.events()).unwrap()
    }

    fn file(&self, name: &str, text: &str) -> Utf8PathBuf {
        let path = Utf8Path::from_path(self.temporary.path()).unwrap().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn lines(log: &[StoredEvent]) -> String {
    let line = |stored: &StoredEvent| {
        let envelope = Envelope::new(stored.sequence, RUN, stored.unix_millis, stored.event.clone());
        format!("{}\n", envelope.to_line().unwrap())
    };
    log.iter().map(line).collect()
}

#[test]
fn lines_are_those_of_the_envelope() {
    let log = sample::finished();
    let place = Place::new();
    let mut feed = place.open(&[]);
    for batch in log.chunks(7) {
        feed.append(batch).unwrap();
    }
    assert_eq!(place.text(), lines(&log));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(place.dir.events()).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_gap_is_refused() {
    let log = sample::finished();
    let place = Place::new();
    let mut feed = place.open(&log[..5]);
    let error = feed.append(&log[6..8]).unwrap_err();
    assert_eq!(error.code, ErrorCode::Invariant);
}

/// Whatever a crash or a hand leaves, opening makes the file equal to the log, and appending goes on.
#[test]
fn the_feed_is_repaired_from_the_log() {
    let log = sample::finished();
    let whole = lines(&log[..20]);
    let ends: Vec<usize> = whole.match_indices('\n').map(|(at, _)| at + 1).collect();
    let (ten, twelve) = (ends[9], ends[11]);
    let mut damaged = whole.clone().into_bytes();
    damaged[ends[4] + 30] ^= 0x55;
    let other = whole.replacen("run started", "run begun", 1);
    let cases: Vec<(&str, Vec<u8>, FeedRepair)> = vec![
        ("whole", whole.clone().into(), FeedRepair { kept: 20, cut_bytes: 0, written: 0 }),
        ("missing", Vec::new(), FeedRepair { kept: 0, cut_bytes: 0, written: 20 }),
        ("tail missing", whole[..ten].into(), FeedRepair { kept: 10, cut_bytes: 0, written: 10 }),
        ("torn", whole[..ten + 17].into(), FeedRepair { kept: 10, cut_bytes: 17, written: 10 }),
        (
            "break missing",
            whole[..ten - 1].into(),
            FeedRepair { kept: 9, cut_bytes: (ten - 1 - ends[8]) as u64, written: 11 },
        ),
        ("damaged middle", damaged, FeedRepair { kept: 5, cut_bytes: (whole.len() - ends[4]) as u64, written: 15 }),
        (
            "line lost",
            [&whole[..ten], &whole[twelve..]].concat().into(),
            FeedRepair { kept: 10, cut_bytes: (whole.len() - twelve) as u64, written: 10 },
        ),
        ("other story", other.clone().into(), FeedRepair { kept: 0, cut_bytes: other.len() as u64, written: 20 }),
        (
            "ahead of the log",
            lines(&log[..25]).into(),
            FeedRepair { kept: 20, cut_bytes: (lines(&log[..25]).len() - whole.len()) as u64, written: 0 },
        ),
        ("not text", vec![0xff; 5000], FeedRepair { kept: 0, cut_bytes: 5000, written: 20 }),
    ];
    for (name, bytes, repair) in cases {
        let place = Place::new();
        std::fs::write(place.dir.events(), bytes).unwrap();
        let mut feed = place.open(&log[..20]);
        assert_eq!(feed.repair(), repair, "{name}");
        assert_eq!(place.text(), whole, "{name}");
        feed.append(&log[20..]).unwrap();
        assert_eq!(place.text(), lines(&log), "{name}");
    }
}

#[test]
fn a_log_that_cannot_be_read_is_an_error() {
    let place = Place::new();
    let error = FeedWriter::open(&place.dir, |_| Err(OptimizerError::new(ErrorCode::Sqlite, "gone"))).unwrap_err();
    assert_eq!(error.code, ErrorCode::Sqlite);
}

/// The normalized feed of a raw or a normalized one.
fn normalize_feed(feed: &str) -> String {
    let lines = feed.lines().filter(|line| !line.trim().is_empty());
    let kept = lines.filter_map(|line| normalize(serde_json::from_str(line).unwrap()).unwrap());
    kept.map(|value| canonical_json(&value) + "\n").collect()
}

#[test]
fn the_normalized_feed_is_that_of_the_raw_one() {
    let log = sample::finished();
    let place = Place::new();
    place.open(&log).finish().unwrap();
    let normalized = std::fs::read_to_string(place.dir.normalized_events()).unwrap();
    assert_eq!(normalized, normalize_feed(&place.text()));
    assert!(!normalized.contains("run.resumed") && !normalized.contains("127.0.0.1"));
    // Raw, normalized, and another run's: all tell the same.
    events_compare(&place.dir.events(), &place.dir.normalized_events()).unwrap();
    let other = place.file("other.jsonl", &lines(&log).replace(RUN, "run-2").replace("9000", "9001"));
    events_compare(&place.dir.normalized_events(), &other).unwrap();
    let leftovers = std::fs::read_dir(place.dir.dir()).unwrap().count();
    assert_eq!(leftovers, 3, "the feed, the normalized feed and the lock");
}

#[test]
fn comparing_names_the_first_difference() {
    let log = sample::finished();
    let place = Place::new();
    let left = place.file("left.jsonl", &lines(&log));
    let right = place.file("right.jsonl", &lines(&log).replace("not_better", "not_enough"));
    let error = events_compare(&left, &right).unwrap_err();
    assert_eq!(error.code, ErrorCode::EventCompare);
    // Two events of the raw feeds are left out before it.
    let line = log.iter().position(|stored| stored.event.type_name() == "candidate.rejected").unwrap() + 1;
    let told = format!(
        "event {} (candidate.rejected) differs at fields.reason: line {line} of {left}, line {line} of {right}",
        line - 2
    );
    assert_eq!(error.message, told);
    let detail = error.detail.unwrap();
    assert!(detail.contains("left:  …") && detail.contains("not_better") && detail.contains("not_enough"), "{detail}");
    assert!(detail.lines().all(|line| line.chars().count() < 180));
}

#[test]
fn comparing_notices_that_one_feed_ends() {
    let log = sample::finished();
    let place = Place::new();
    let whole = place.file("whole.jsonl", &lines(&log));
    let part = place.file("part.jsonl", &lines(&log[..10]));
    for (left, right) in [(&whole, &part), (&part, &whole)] {
        let error = events_compare(left, right).unwrap_err();
        assert_eq!(error.code, ErrorCode::EventCompare);
        assert!(error.message.starts_with(&format!("{part} ends after 10 events; event 11 (")), "{error}");
        assert!(error.message.ends_with(&format!("is on line 11 of {whole}")), "{error}");
    }
    let empty = place.file("empty.jsonl", "");
    events_compare(&empty, &empty).unwrap();
    assert!(events_compare(&empty, &whole).unwrap_err().message.contains("ends after 0 events"));
}

#[test]
fn broken_feeds_are_errors_with_a_place() {
    let log = sample::finished();
    let place = Place::new();
    let whole = place.file("whole.jsonl", &lines(&log));
    let broken = place.file("broken.jsonl", &format!("{}{{\"version\":1\n", lines(&log[..3])));
    for error in [events_compare(&whole, &broken).unwrap_err(), events_replay(&broken).unwrap_err()] {
        assert_eq!(error.code, ErrorCode::Json);
        assert!(error.message.contains("broken.jsonl") && error.message.contains("line 4"), "{error}");
    }
    let missing = place.dir.dir().join("none.jsonl");
    assert_eq!(events_compare(&whole, &missing).unwrap_err().code, ErrorCode::Io);
    assert!(events_replay(&missing).unwrap_err().message.contains("none.jsonl"));
    let unknown = place.file("unknown.jsonl", "{\"type\":\"tomorrow\",\"fields\":{}}\n");
    assert!(events_compare(&unknown, &unknown).unwrap_err().message.contains("tomorrow"));
    place.open(&log).finish().unwrap();
    let error = events_replay(&place.dir.normalized_events()).unwrap_err();
    assert!(error.hint.contains("events.jsonl"), "{error:?}");
}

fn story(log: &[StoredEvent]) -> String {
    let place = Place::new();
    let path = place.file("events.jsonl", &lines(log));
    events_replay(&path).unwrap()
}

#[test]
fn a_finished_run_as_a_story() {
    insta::assert_snapshot!(story(&sample::finished()));
}

#[test]
fn a_cancelled_run_as_a_story() {
    let story = story(&sample::cancelled());
    let tail: Vec<&str> = story.lines().rev().take(6).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    insta::assert_snapshot!(tail.join("\n"));
}

#[test]
fn a_failed_run_as_a_story() {
    let story = story(&sample::failed());
    assert!(story.contains("the run cannot go on: synth_optimizer_container_error: connection refused\n"), "{story}");
    assert!(story.contains("run failed: synth_optimizer_container_error: connection refused\n"), "{story}");
}

#[test]
fn a_run_that_goes_on_as_a_story() {
    let story = story(&sample::search().events);
    assert!(story.ends_with("the run is not over\n"), "{story}");
}

#[test]
fn paths_can_be_had_without_the_lock() {
    let place = Place::new();
    let output = Utf8Path::from_path(place.temporary.path()).unwrap();
    assert_eq!(&RunPaths::new(output, RUN).unwrap(), place.dir.paths());
}

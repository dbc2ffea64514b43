//! Feeds: lines, repair after a crash, normalizing, replay and comparison.
use crate::sample;
use camino::{Utf8Path, Utf8PathBuf};
use synth_optimizer_core::model::canonical::canonical_json;
use synth_optimizer_core::model::envelope::{Envelope, normalize};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::{FeedRepair, FeedWriter, RunDir, RunPaths, events_compare, events_replay};
use synth_optimizer_platform::workspace::StoredEvent;

const RUN: &str = "run-1";

struct FeedFixture {
    temporary: tempfile::TempDir,
    dir: RunDir,
}

impl FeedFixture {
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
fn feed_lines_equal_envelope_lines() {
    let log = sample::finished();
    let fixture = FeedFixture::new();
    let mut feed = fixture.open(&[]);
    for batch in log.chunks(7) {
        feed.append(batch).unwrap();
    }
    assert_eq!(fixture.text(), lines(&log));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(fixture.dir.events()).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn appending_after_a_gap_fails() {
    let log = sample::finished();
    let fixture = FeedFixture::new();
    let mut feed = fixture.open(&log[..5]);
    let error = feed.append(&log[6..8]).unwrap_err();
    assert_eq!(error.code, ErrorCode::Invariant);
}

/// Opening repairs any damage to the feed from the log, and events can be appended after that.
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
        let fixture = FeedFixture::new();
        std::fs::write(fixture.dir.events(), bytes).unwrap();
        let mut feed = fixture.open(&log[..20]);
        assert_eq!(feed.repair(), repair, "{name}");
        assert_eq!(fixture.text(), whole, "{name}");
        feed.append(&log[20..]).unwrap();
        assert_eq!(fixture.text(), lines(&log), "{name}");
    }
}

#[test]
fn a_log_that_cannot_be_read_is_an_error() {
    let fixture = FeedFixture::new();
    let error = FeedWriter::open(&fixture.dir, |_| Err(OptimizerError::new(ErrorCode::Sqlite, "gone"))).unwrap_err();
    assert_eq!(error.code, ErrorCode::Sqlite);
}

/// Normalizes a raw or a normalized feed.
fn normalize_feed(feed: &str) -> String {
    let lines = feed.lines().filter(|line| !line.trim().is_empty());
    let kept = lines.filter_map(|line| normalize(serde_json::from_str(line).unwrap()).unwrap());
    kept.map(|value| canonical_json(&value) + "\n").collect()
}

#[test]
fn the_normalized_feed_equals_the_normalized_raw_feed() {
    let log = sample::finished();
    let fixture = FeedFixture::new();
    fixture.open(&log).finish().unwrap();
    let normalized = std::fs::read_to_string(fixture.dir.normalized_events()).unwrap();
    assert_eq!(normalized, normalize_feed(&fixture.text()));
    assert!(!normalized.contains("run.resumed") && !normalized.contains("127.0.0.1"));
    // The raw feed, the normalized feed and the feed of another run are equal.
    events_compare(&fixture.dir.events(), &fixture.dir.normalized_events()).unwrap();
    let other = fixture.file("other.jsonl", &lines(&log).replace(RUN, "run-2").replace("9000", "9001"));
    events_compare(&fixture.dir.normalized_events(), &other).unwrap();
    let leftovers = std::fs::read_dir(fixture.dir.dir()).unwrap().count();
    assert_eq!(leftovers, 3, "the feed, the normalized feed and the lock");
}

#[test]
fn compare_reports_the_first_difference() {
    let log = sample::finished();
    let fixture = FeedFixture::new();
    let left = fixture.file("left.jsonl", &lines(&log));
    let right = fixture.file("right.jsonl", &lines(&log).replace("not_better", "not_enough"));
    let error = events_compare(&left, &right).unwrap_err();
    assert_eq!(error.code, ErrorCode::EventCompare);
    // Normalizing leaves out two events before it.
    let line = log.iter().position(|stored| stored.event.type_name() == "candidate.rejected").unwrap() + 1;
    let expected = format!(
        "event {} (candidate.rejected) differs at fields.reason: line {line} of {left}, line {line} of {right}",
        line - 2
    );
    assert_eq!(error.message, expected);
    let detail = error.detail.unwrap();
    assert!(detail.contains("left:  …") && detail.contains("not_better") && detail.contains("not_enough"), "{detail}");
    assert!(detail.lines().all(|line| line.chars().count() < 180));
}

#[test]
fn compare_reports_a_feed_that_ends_early() {
    let log = sample::finished();
    let fixture = FeedFixture::new();
    let whole = fixture.file("whole.jsonl", &lines(&log));
    let part = fixture.file("part.jsonl", &lines(&log[..10]));
    for (left, right) in [(&whole, &part), (&part, &whole)] {
        let error = events_compare(left, right).unwrap_err();
        assert_eq!(error.code, ErrorCode::EventCompare);
        assert!(error.message.starts_with(&format!("{part} ends after 10 events; event 11 (")), "{error}");
        assert!(error.message.ends_with(&format!("is on line 11 of {whole}")), "{error}");
    }
    let empty = fixture.file("empty.jsonl", "");
    events_compare(&empty, &empty).unwrap();
    assert!(events_compare(&empty, &whole).unwrap_err().message.contains("ends after 0 events"));
}

#[test]
fn broken_feeds_are_reported_with_file_and_line() {
    let log = sample::finished();
    let fixture = FeedFixture::new();
    let whole = fixture.file("whole.jsonl", &lines(&log));
    let broken = fixture.file("broken.jsonl", &format!("{}{{\"version\":1\n", lines(&log[..3])));
    for error in [events_compare(&whole, &broken).unwrap_err(), events_replay(&broken).unwrap_err()] {
        assert_eq!(error.code, ErrorCode::Json);
        assert!(error.message.contains("broken.jsonl") && error.message.contains("line 4"), "{error}");
    }
    let missing = fixture.dir.dir().join("none.jsonl");
    assert_eq!(events_compare(&whole, &missing).unwrap_err().code, ErrorCode::Io);
    assert!(events_replay(&missing).unwrap_err().message.contains("none.jsonl"));
    let unknown = fixture.file("unknown.jsonl", "{\"type\":\"tomorrow\",\"fields\":{}}\n");
    assert!(events_compare(&unknown, &unknown).unwrap_err().message.contains("tomorrow"));
    fixture.open(&log).finish().unwrap();
    let error = events_replay(&fixture.dir.normalized_events()).unwrap_err();
    assert!(error.hint.contains("events.jsonl"), "{error:?}");
}

fn replay(log: &[StoredEvent]) -> String {
    let fixture = FeedFixture::new();
    let path = fixture.file("events.jsonl", &lines(log));
    events_replay(&path).unwrap()
}

#[test]
fn replay_of_a_finished_run() {
    insta::assert_snapshot!(replay(&sample::finished()));
}

#[test]
fn replay_of_a_cancelled_run() {
    let replay = replay(&sample::cancelled());
    let tail: Vec<&str> = replay.lines().rev().take(6).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    insta::assert_snapshot!(tail.join("\n"));
}

#[test]
fn replay_of_a_failed_run() {
    let replay = replay(&sample::failed());
    assert!(
        replay.contains("the run cannot continue: synth_optimizer_container_error: connection refused\n"),
        "{replay}"
    );
    assert!(replay.contains("run failed: synth_optimizer_container_error: connection refused\n"), "{replay}");
}

#[test]
fn replay_of_a_live_run() {
    let replay = replay(&sample::search().events);
    assert!(replay.ends_with("the run has not ended\n"), "{replay}");
}

#[test]
fn paths_are_available_without_the_lock() {
    let fixture = FeedFixture::new();
    let output = Utf8Path::from_path(fixture.temporary.path()).unwrap();
    assert_eq!(&RunPaths::new(output, RUN).unwrap(), fixture.dir.paths());
}

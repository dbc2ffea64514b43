//! The request cache: modes, visibility, batches, damage, limits and shared files.
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use rusqlite::Connection;
use synth_optimizer_core::config::sections::{CacheMode, CacheSection};
use synth_optimizer_core::model::cache_key::{CacheBoundary, cache_key};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::Reply;
use synth_optimizer_platform::cache::{Cache, CacheSettings, Lookup};

struct CacheDir {
    dir: tempfile::TempDir,
}

impl CacheDir {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> &Utf8Path {
        Utf8Path::from_path(self.dir.path()).unwrap()
    }

    fn path(&self) -> Utf8PathBuf {
        self.root().join("request_cache.sqlite")
    }

    fn settings(&self, mode: CacheMode) -> CacheSettings {
        CacheSettings { mode, path: self.path(), namespace: "n".into(), max_bytes: 64 << 20 }
    }

    fn open(&self, mode: CacheMode) -> Cache {
        Cache::open(&self.settings(mode)).unwrap()
    }

    fn sql(&self, sql: &str) -> usize {
        Connection::open(self.path()).unwrap().execute(sql, []).unwrap()
    }
}

fn key(number: usize) -> String {
    cache_key("n", CacheBoundary::Rollout, &serde_json::json!({ "row": number }))
}

fn reply(text: &str) -> Reply {
    text.as_bytes().to_vec().into()
}

fn text(number: usize) -> Reply {
    Reply::from(format!("{{\"reward\":{number},\"trace\":\"{}\"}}", "step ".repeat(20)).into_bytes())
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn fill(place: &CacheDir, count: usize) {
    let cache = place.open(CacheMode::Readwrite);
    for number in 0..count {
        cache.put(CacheBoundary::Rollout, &key(number), text(number)).unwrap();
    }
    wait(cache.flush()).unwrap();
}

#[test]
fn default_settings_depend_on_the_run() {
    let section = CacheSection { max_mb: 3, ..CacheSection::default() };
    let settings = CacheSettings::of(&section, Utf8Path::new("/runs/a"), "a");
    assert_eq!(settings.path, "/runs/a/request_cache.sqlite");
    assert_eq!((settings.namespace.as_str(), settings.max_bytes), ("gepa:a", 3 << 20));
}

#[test]
fn mode_off_creates_no_file() {
    let place = CacheDir::new();
    let cache = place.open(CacheMode::Off);
    cache.put(CacheBoundary::Rollout, &key(1), text(1)).unwrap();
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Miss);
    wait(cache.flush()).unwrap();
    let profile = cache.profile();
    assert_eq!((profile.totals.hits, profile.totals.misses, profile.totals.writes, profile.size_bytes), (0, 0, 0, 0));
    assert_eq!(std::fs::read_dir(place.root()).unwrap().count(), 0);
}

#[test]
fn readwrite_remembers_and_readonly_answers() {
    let place = CacheDir::new();
    fill(&place, 3);
    let mode = std::fs::metadata(place.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for mode in [CacheMode::Readwrite, CacheMode::Readonly] {
        let cache = place.open(mode);
        assert_eq!(cache.get(CacheBoundary::Rollout, &key(2)).unwrap(), Lookup::Hit(text(2)));
        assert_eq!(cache.get(CacheBoundary::Rollout, &key(9)).unwrap(), Lookup::Miss);
        let profile = cache.profile();
        assert_eq!(
            (profile.totals.entries, profile.totals.hits, profile.totals.misses, profile.totals.writes),
            (Some(3), 1, 1, 0)
        );
        let rollouts = profile.by_boundary["container.rollout"];
        assert_eq!((rollouts.entries, rollouts.hits, rollouts.misses), (Some(3), 1, 1));
    }
}

#[test]
fn the_first_answer_of_a_key_is_kept() {
    let place = CacheDir::new();
    let cache = place.open(CacheMode::Readwrite);
    for number in [1, 2] {
        cache.put(CacheBoundary::Rollout, &key(0), text(number)).unwrap();
    }
    wait(cache.flush()).unwrap();
    cache.put(CacheBoundary::Rollout, &key(0), text(3)).unwrap();
    wait(cache.flush()).unwrap();
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(0)).unwrap(), Lookup::Hit(text(1)));
    assert_eq!(cache.profile().totals.writes, 1);
}

#[test]
fn the_latest_failure_of_an_attempt_is_kept_until_it_is_forgotten() {
    let place = CacheDir::new();
    let cache = place.open(CacheMode::Readwrite);
    let failure = |cache: &Cache| cache.get_failure(CacheBoundary::Proposer, &key(0), 1).unwrap();
    for reason in ["overload", "timeout"] {
        cache.put_failure(CacheBoundary::Proposer, &key(0), 1, reply(reason)).unwrap();
        assert_eq!(failure(&cache), Lookup::Hit(reply(reason)));
        wait(cache.flush()).unwrap();
        assert_eq!(failure(&cache), Lookup::Hit(reply(reason)));
    }
    cache.forget_failure(CacheBoundary::Proposer, &key(0), 1).unwrap();
    assert_eq!(failure(&cache), Lookup::Miss);
    drop(cache);
    assert_eq!(failure(&place.open(CacheMode::Readonly)), Lookup::Miss);
}

#[test]
fn failures_are_kept_apart_from_answers() {
    let place = CacheDir::new();
    let cache = place.open(CacheMode::Readwrite);
    cache.put_failure(CacheBoundary::Rollout, &key(0), 1, reply("overload")).unwrap();
    cache.put(CacheBoundary::Rollout, &key(0), text(7)).unwrap();
    drop(cache);
    let cache = place.open(CacheMode::Readonly);
    assert_eq!(cache.get_failure(CacheBoundary::Rollout, &key(0), 1).unwrap(), Lookup::Hit(reply("overload")));
    assert_eq!(cache.get_failure(CacheBoundary::Rollout, &key(0), 2).unwrap(), Lookup::Miss);
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(0)).unwrap(), Lookup::Hit(text(7)));
    let profile = cache.profile();
    assert_eq!((profile.totals.entries, profile.totals.hits, profile.totals.misses), (Some(1), 2, 0));
    assert_eq!(profile.by_boundary["container.rollout.failure"].entries, Some(1));
}

#[test]
fn a_lookup_sees_what_was_put_before_it() {
    let place = CacheDir::new();
    let cache = Arc::new(place.open(CacheMode::Readwrite));
    // Another connection holds a lock, so the batch cannot be committed.
    let other = Connection::open(place.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    cache.put(CacheBoundary::Rollout, &key(1), text(1)).unwrap();
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Hit(text(1)));
    assert_eq!(cache.profile().totals.writes, 0);
    other.execute_batch("COMMIT").unwrap();
    wait(cache.flush()).unwrap();
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Hit(text(1)));
    assert_eq!(cache.profile().totals.writes, 1);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let cache = Arc::clone(&cache);
            std::thread::spawn(move || {
                for number in 0..500 {
                    let key = key(1000 * (thread + 1) + number);
                    cache.put(CacheBoundary::Rollout, &key, text(number)).unwrap();
                    assert_eq!(cache.get(CacheBoundary::Rollout, &key).unwrap(), Lookup::Hit(text(number)));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn many_writes_share_few_transactions() {
    let place = CacheDir::new();
    let cache = place.open(CacheMode::Readwrite);
    for number in 0..2000 {
        cache.put(CacheBoundary::Rollout, &key(number), text(number)).unwrap();
    }
    wait(cache.flush()).unwrap();
    let profile = cache.profile();
    assert_eq!((profile.totals.writes, profile.totals.entries), (2000, Some(2000)));
    assert!(profile.transactions <= 500, "{} transactions", profile.transactions);
}

#[test]
fn ten_thousand_lookups_return_the_right_result() {
    let place = CacheDir::new();
    fill(&place, 1000);
    for mode in [CacheMode::Readwrite, CacheMode::Readonly] {
        let cache = place.open(mode);
        for number in 0..10_000 {
            let found = cache.get(CacheBoundary::Rollout, &key(number % 2000)).unwrap();
            assert_eq!(found == Lookup::Miss, number % 2000 >= 1000);
        }
        assert_eq!(cache.profile().totals.hits, 5000);
    }
}

/// Every kind of damage to an entry is `Damaged` in readwrite mode and an error in readonly mode.
#[test]
fn damaged_entries_are_detected() {
    let flip =
        "UPDATE request_response_cache SET response = substr(response, 1, 20) || x'00ff' || substr(response, 23)";
    let cases = [
        flip,
        "UPDATE request_response_cache SET response = substr(response, 1, length(response) - 5)",
        "UPDATE request_response_cache SET response = x''",
        "UPDATE request_response_cache SET response = 'text'",
        "UPDATE request_response_cache SET checksum = zeroblob(32)",
        "UPDATE request_response_cache SET checksum = 7",
        "UPDATE request_response_cache SET size = size + 1",
        "UPDATE request_response_cache SET size = 9223372036854775807",
        "UPDATE request_response_cache SET size = 0",
    ];
    for damage in cases {
        let place = CacheDir::new();
        fill(&place, 1);
        assert_eq!(place.sql(damage), 1, "{damage}");
        let error = place.open(CacheMode::Readonly).get(CacheBoundary::Rollout, &key(0)).unwrap_err();
        assert_eq!(error.code, ErrorCode::CacheCorrupt, "{damage}");
        assert!(error.message.contains("container.rollout") && error.message.contains(&key(0)), "{error}");
        let cache = place.open(CacheMode::Readwrite);
        assert_eq!(cache.get(CacheBoundary::Rollout, &key(0)).unwrap(), Lookup::Damaged, "{damage}");
        cache.put(CacheBoundary::Rollout, &key(0), text(5)).unwrap();
        wait(cache.flush()).unwrap();
        assert_eq!(cache.get(CacheBoundary::Rollout, &key(0)).unwrap(), Lookup::Hit(text(5)), "{damage}");
        assert_eq!((cache.profile().totals.damaged, cache.profile().totals.writes), (1, 1));
    }
}

#[test]
fn an_entry_copied_to_another_key_is_rejected() {
    let place = CacheDir::new();
    fill(&place, 1);
    let columns = "boundary, size, created_at, checksum, response FROM request_response_cache";
    place.sql(&format!("INSERT INTO request_response_cache SELECT 'other', cache_key, {columns}"));
    place.sql(&format!(
        "INSERT INTO request_response_cache SELECT namespace, '{}', {columns} WHERE namespace = 'n'",
        key(1)
    ));
    let other = CacheSettings { namespace: "other".into(), ..place.settings(CacheMode::Readwrite) };
    assert_eq!(Cache::open(&other).unwrap().get(CacheBoundary::Rollout, &key(0)).unwrap(), Lookup::Damaged);
    let cache = place.open(CacheMode::Readwrite);
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Damaged);
    assert_eq!(
        cache.get(CacheBoundary::Program, &key(0)).unwrap(),
        Lookup::Damaged,
        "the boundary is part of the checksum"
    );
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(0)).unwrap(), Lookup::Hit(text(0)));
}

fn open_error(settings: &CacheSettings) -> OptimizerError {
    Cache::open(settings).unwrap_err()
}

#[test]
fn a_damaged_or_foreign_file_is_reported() {
    for mode in [CacheMode::Readwrite, CacheMode::Readonly] {
        let place = CacheDir::new();
        std::fs::write(place.path(), "this is not a database, and long enough to have a header of one".repeat(20))
            .unwrap();
        let error = open_error(&place.settings(mode));
        assert_eq!(error.code, ErrorCode::CacheCorrupt);
        assert!(error.message.contains("request_cache.sqlite") && error.hint.contains("cache.path"), "{error:?}");

        let place = CacheDir::new();
        Connection::open(place.path())
            .unwrap()
            .execute_batch("CREATE TABLE request_response_cache (namespace, cache_key, request_json)")
            .unwrap();
        let error = open_error(&place.settings(mode));
        assert_eq!(error.code, ErrorCode::CacheCorrupt);
        assert!(error.message.contains("not a cache of this release"), "{error:?}");
    }
}

#[test]
fn a_file_that_lost_pages_never_panics() {
    let place = CacheDir::new();
    fill(&place, 300);
    let bytes = std::fs::read(place.path()).unwrap();
    for kept in [0, 100, 4096, bytes.len() / 2, bytes.len() - 5000] {
        std::fs::write(place.path(), &bytes[..kept]).unwrap();
        for mode in [CacheMode::Readonly, CacheMode::Readwrite] {
            let Ok(cache) = Cache::open(&place.settings(mode)) else { continue };
            for number in 0..300 {
                match cache.get(CacheBoundary::Rollout, &key(number)) {
                    Ok(Lookup::Hit(found)) => assert_eq!(found, text(number)),
                    Ok(Lookup::Miss | Lookup::Damaged) => {}
                    Err(error) => assert_eq!(error.code, ErrorCode::CacheCorrupt, "{error:?}"),
                }
            }
        }
    }
}

#[test]
fn a_full_cache_is_reported_and_keeps_its_entries() {
    let place = CacheDir::new();
    let settings = CacheSettings { max_bytes: 1 << 20, ..place.settings(CacheMode::Readwrite) };
    let cache = Cache::open(&settings).unwrap();
    let mut stored = 0;
    let error = loop {
        // Random enough not to be compressible.
        let noise: Vec<u8> = (0..700).flat_map(|part| key(1000 * stored + part).into_bytes()).collect();
        let put = cache.put(CacheBoundary::Rollout, &key(stored), Reply::from(noise));
        if let Err(error) = put.and_then(|()| wait(cache.flush())) {
            break error;
        }
        stored += 1;
        assert!(stored < 200);
    };
    assert_eq!(error.code, ErrorCode::CacheFull);
    assert!(error.message.contains("request_cache.sqlite") && error.message.contains("1048576"), "{error}");
    assert_eq!(cache.put(CacheBoundary::Rollout, &key(999), text(1)).unwrap_err().code, ErrorCode::CacheFull);
    assert!(stored >= 10, "{stored}");
    assert_eq!(cache.profile().totals.entries, Some(stored as u64));
    drop(cache);
    assert!(std::fs::metadata(place.path()).unwrap().len() <= 1 << 20);
    let check: String =
        Connection::open(place.path()).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let again = place.open(CacheMode::Readonly);
    assert!((0..stored).all(|number| matches!(again.get(CacheBoundary::Rollout, &key(number)), Ok(Lookup::Hit(_)))));
}

#[test]
fn handles_share_one_file() {
    let place = CacheDir::new();
    let caches: Vec<_> = std::thread::scope(|scope| {
        let opening: Vec<_> = (0..4).map(|_| scope.spawn(|| place.open(CacheMode::Readwrite))).collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    std::thread::scope(|scope| {
        for (place, cache) in caches.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..300 {
                    cache.put(CacheBoundary::Rollout, &key(100 * place + number), text(100 * place + number)).unwrap();
                }
                wait(cache.flush()).unwrap();
            });
        }
    });
    for cache in &caches {
        assert_eq!(cache.profile().totals.entries, Some(600));
        for number in 0..600 {
            assert_eq!(cache.get(CacheBoundary::Rollout, &key(number)).unwrap(), Lookup::Hit(text(number)));
        }
    }
    assert_eq!(caches.iter().map(|cache| cache.profile().totals.writes).sum::<u64>(), 600);
}

#[test]
fn readonly_without_a_file_misses_and_names_it() {
    let place = CacheDir::new();
    let cache = place.open(CacheMode::Readonly);
    assert_eq!(cache.get(CacheBoundary::Proposer, &key(1)).unwrap(), Lookup::Miss);
    cache.put(CacheBoundary::Proposer, &key(1), text(1)).unwrap();
    let error = cache.miss_error(CacheBoundary::Proposer, &key(1), "proposal of generation 3");
    assert_eq!(error.code, ErrorCode::CacheMiss);
    assert!(error.message.contains("proposal of generation 3"), "{error}");
    assert!(error.message.contains(&format!("{} does not exist", place.path())), "{error}");
    assert!(error.detail.unwrap().contains(&key(1)));
    assert_eq!(std::fs::read_dir(place.root()).unwrap().count(), 0);
    // The file may be created later.
    fill(&place, 2);
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Hit(text(1)));
}

#[test]
fn readonly_modifies_no_file() {
    let place = CacheDir::new();
    fill(&place, 5);
    let listing = || {
        let mut names: Vec<_> =
            std::fs::read_dir(place.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        (names, std::fs::read(place.path()).unwrap(), std::fs::metadata(place.path()).unwrap().modified().unwrap())
    };
    let before = listing();
    assert_eq!(before.0.len(), 1);
    let cache = place.open(CacheMode::Readonly);
    assert_eq!(cache.get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Hit(text(1)));
    assert_eq!(listing(), before);
    drop(cache);
    assert_eq!(listing(), before);
}

#[test]
fn readonly_sees_what_another_process_writes_meanwhile() {
    let place = CacheDir::new();
    fill(&place, 50);
    let reader = place.open(CacheMode::Readonly);
    assert_eq!(reader.get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Hit(text(1)));
    for round in 1..5 {
        let writer = place.open(CacheMode::Readwrite);
        for number in 0..50 {
            writer.put(CacheBoundary::Rollout, &key(50 * round + number), text(50 * round + number)).unwrap();
        }
        wait(writer.flush()).unwrap();
        for number in 0..50 * round + 50 {
            assert_eq!(reader.get(CacheBoundary::Rollout, &key(number)).unwrap(), Lookup::Hit(text(number)), "{round}");
        }
        drop(writer);
        assert_eq!(reader.get(CacheBoundary::Rollout, &key(50 * round)).unwrap(), Lookup::Hit(text(50 * round)));
    }
}

#[test]
fn readonly_reads_from_a_readonly_directory() {
    let place = CacheDir::new();
    fill(&place, 5);
    let set = |mode| std::fs::set_permissions(place.root(), std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o500);
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o400)).unwrap();
    let cache = place.open(CacheMode::Readonly);
    let found = cache.get(CacheBoundary::Rollout, &key(1));
    set(0o700);
    assert_eq!(found.unwrap(), Lookup::Hit(text(1)));
}

#[test]
fn the_write_ahead_log_of_a_killed_process_is_read() {
    let place = CacheDir::new();
    let cache = place.open(CacheMode::Readwrite);
    cache.put(CacheBoundary::Rollout, &key(1), text(1)).unwrap();
    wait(cache.flush()).unwrap();
    // A killed process leaves the file and a write-ahead log that was not moved into it.
    let copy = CacheDir::new();
    for suffix in ["", "-wal"] {
        std::fs::copy(format!("{}{suffix}", place.path()), format!("{}{suffix}", copy.path())).unwrap();
    }
    for mode in [CacheMode::Readonly, CacheMode::Readwrite, CacheMode::Readonly] {
        assert_eq!(copy.open(mode).get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Hit(text(1)));
    }
}

#[test]
fn paths_with_special_characters_work() {
    let place = CacheDir::new();
    let path = place.root().join("a b?c#d%e/f.sqlite");
    for mode in [CacheMode::Readwrite, CacheMode::Readonly] {
        let cache = Cache::open(&CacheSettings { path: path.clone(), ..place.settings(mode) }).unwrap();
        cache.put(CacheBoundary::Rollout, &key(1), text(1)).unwrap();
        assert_eq!(cache.get(CacheBoundary::Rollout, &key(1)).unwrap(), Lookup::Hit(text(1)));
    }
    assert!(path.is_file());
    let dir = std::fs::metadata(path.parent().unwrap()).unwrap();
    assert_eq!(dir.permissions().mode() & 0o777, 0o700);
}

//! Takes a request in. Once it is acknowledged it is stored, whatever happens to the process or the machine.

use rusqlite::{Connection, named_params};
use serde_json::{Value, json};

use super::Queue;
use super::entry::{RequestEntry, entries, entry_of};
use super::error::{QueueCode, QueueError};
use super::lane::{cache_lane, container_lane};
use super::open::random;
use super::transitions::{RequestRow, execute, first, int, record};
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::sections::Config;
use synth_optimizer_core::config::{EffectiveValue, Loaded, hidden_fields, search_digest, shown};
use synth_optimizer_core::model::lifecycle::{Lifecycle, RequestState};
use synth_optimizer_core::secrets::scrub;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::cache::CacheSettings;
use synth_optimizer_platform::clock::Moment;
use synth_optimizer_platform::runtime::new_run_id;

/// What is submitted.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// Resolved: what it says is what runs, whatever becomes of the file.
    pub config: &'a Loaded,
    /// Where it was read from, for people.
    pub config_path: Option<&'a str>,
    pub priority: i64,
    /// Whether a background worker may claim it.
    pub auto_start: bool,
    /// Whether it goes on only when a step is asked for.
    pub manual_step: bool,
    /// Names this submit: sending it again gives the same request.
    pub idempotency_key: Option<&'a str>,
    /// SHA-256 of what was sent, by which another submit with the same key is recognized.
    pub body_digest: &'a str,
    /// How many requests may wait; any number if none is named.
    pub most_queued: Option<u32>,
}

/// What became of a submit.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    pub entry: RequestEntry,
    /// Whether the request was there already, from an earlier submit with the same key.
    pub replayed: bool,
}

/// What is stored of the configuration.
struct Stored {
    run_id: String,
    config: Value,
    values: Value,
    digest: String,
    run_dir: String,
    cache_namespace: String,
}

impl Queue {
    /// The request of an earlier submit with this key; a conflict when that submit sent something else.
    pub fn find_by_idempotency_key(&self, key: &str, body_digest: &str) -> Result<Option<RequestEntry>, QueueError> {
        self.read(|db, _| replay(db, Some(key), body_digest))
    }

    /// Fails when a run of this id cannot be submitted: one is not over, or is completed.
    pub fn check_run_id(&self, run_id: &str) -> Result<(), QueueError> {
        self.read(|db, _| check_run_id(db, run_id))
    }

    pub fn submit(&self, submission: &Submission<'_>) -> Result<Submitted, QueueError> {
        // What costs time happens before the transaction; a key that was used already must be answered all the same.
        let stored = stored(submission.config);
        self.write(|db, now| {
            if let Some(entry) = replay(db, submission.idempotency_key, submission.body_digest)? {
                return Ok(Submitted { entry, replayed: true });
            }
            let stored = stored?;
            check_run_id(db, &stored.run_id)?;
            check_room(db, submission.most_queued)?;
            let seq = insert(db, now, submission, &stored)?;
            Ok(Submitted { entry: entry_of(db, seq)?, replayed: false })
        })
    }
}

fn stored(loaded: &Loaded) -> Result<Stored, QueueError> {
    let mut config: Config = loaded.config.clone();
    let run_id = match config.run.run_id.clone() {
        Some(run_id) => run_id,
        None => new_run_id::<GepaEngine>()?,
    };
    config.run.run_id = Some(run_id.clone());
    let paths = RunPaths::new(&config.run.output_dir, &run_id)?;
    let kept = shown(&config);
    let hidden = hidden_fields(&kept);
    if !hidden.is_empty() {
        let message = format!("the configuration holds secrets, which are not stored: {}", hidden.join(", "));
        return Err(QueueError::new(
            QueueCode::InlineSecretRefused,
            message,
            "Name the variable that holds the key (api_key_env) and set it where the service runs.",
        ));
    }
    let mut values = loaded.values.clone();
    for value in values.iter_mut().filter(|value| value.path == "run.run_id") {
        value.value = json!(run_id);
    }
    let shown =
        |value: EffectiveValue| json!({"field": value.path, "value": value.value, "origin": value.origin.to_string()});
    let values = values.into_iter().map(shown).collect();
    Ok(Stored {
        digest: search_digest(&config),
        cache_namespace: CacheSettings::of(&config.cache, paths.dir(), &run_id).namespace,
        run_dir: paths.dir().to_string(),
        config: kept,
        values,
        run_id,
    })
}

/// The request of an earlier submit with the same key.
fn replay(db: &Connection, key: Option<&str>, body_digest: &str) -> Result<Option<RequestEntry>, QueueError> {
    let Some(key) = key else { return Ok(None) };
    let Some(entry) = entries(db, "WHERE r.idempotency_key = ?1", [key])?.into_iter().next() else { return Ok(None) };
    let same = "SELECT 1 FROM run_requests WHERE idempotency_key = ?1 AND request_body_sha256 = ?2";
    if first(db, same, (key, body_digest))?.is_some() {
        return Ok(Some(entry));
    }
    let message = format!("idempotency key {key:?} was used for another submit: run {}", entry.run_id);
    Err(QueueError::new(QueueCode::IdempotencyKeyConflict, message, "Use a new key for each different submit.")
        .in_state(entry.status))
}

fn check_run_id(db: &Connection, run_id: &str) -> Result<(), QueueError> {
    let latest = RequestRow::read(db, "WHERE run_id = ?1 ORDER BY seq DESC LIMIT 1", [run_id])?;
    let Some(latest) = latest.into_iter().next() else { return Ok(()) };
    let refused = |code, message: String, hint| Err(QueueError::new(code, message, hint).in_state(latest.status));
    if !latest.status.is_final() {
        let message = format!("run {run_id} is {} as request {}", latest.status.word(), latest.request_id);
        return refused(QueueCode::RunIdInUse, message, "Wait for it, cancel it, or choose another run.run_id.");
    }
    if latest.status == RequestState::Completed {
        let message = format!("run {run_id} is completed, by request {}", latest.request_id);
        return refused(QueueCode::RunExists, message, "Choose another run.run_id, or delete the run first.");
    }
    Ok(())
}

fn check_room(db: &Connection, most: Option<u32>) -> Result<(), QueueError> {
    let queued = first(db, "SELECT count(*) FROM run_requests WHERE status = 'queued'", [])?.unwrap_or(0);
    match most {
        Some(most) if queued >= i64::from(most) => {
            let message = format!("{queued} requests wait, and no more than {most} may");
            let hint = "Try again when some of them have run, or start the service with a larger --max-queued.";
            Err(QueueError::new(QueueCode::QueueFull, message, hint))
        }
        Some(_) | None => Ok(()),
    }
}

fn insert(db: &Connection, now: &Moment, submission: &Submission<'_>, stored: &Stored) -> Result<i64, QueueError> {
    let config = &submission.config.config;
    let request_id = format!("runreq_{}", random()?);
    let values = named_params! {
        ":request_id": request_id, ":run_id": stored.run_id, ":status": RequestState::INITIAL.word(),
        ":priority": submission.priority, ":auto_start": submission.auto_start,
        ":manual_step": submission.manual_step, ":config_path": submission.config_path,
        ":config": stored.config.to_string(), ":values": stored.values.to_string(), ":digest": stored.digest,
        ":url": scrub(&config.container.url), ":mode": config.cache.mode.word(),
        ":namespace": stored.cache_namespace, ":output_dir": config.run.output_dir.as_str(),
        ":run_dir": stored.run_dir, ":key": submission.idempotency_key, ":body": submission.body_digest,
        ":container_lane": container_lane(&config.container.url),
        ":cache_lane": cache_lane(config.cache.mode, &stored.cache_namespace), ":now": int(now.wall),
    };
    let text = "INSERT INTO run_requests (request_id, run_id, status, priority, auto_start, manual_step, config_path,
           config_json, values_json, config_digest, container_url, cache_mode, cache_namespace, output_dir, run_dir,
           idempotency_key, request_body_sha256, container_lane, cache_lane, submitted_at, updated_at)
         VALUES (:request_id, :run_id, :status, :priority, :auto_start, :manual_step, :config_path, :config, :values,
           :digest, :url, :mode, :namespace, :output_dir, :run_dir, :key, :body, :container_lane, :cache_lane, :now,
           :now)";
    execute(db, "store a request", text, values)?;
    let standing = RequestRow::of_request(db, &request_id)?;
    let detail = json!({"config_path": submission.config_path, "priority": submission.priority});
    record(db, now, &standing, RequestState::INITIAL, "submit", &detail)?;
    Ok(standing.seq)
}

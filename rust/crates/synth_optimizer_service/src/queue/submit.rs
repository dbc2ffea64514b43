//! Submits run requests, and deletes finished ones. The caller deletes the run directories. An acknowledged request is on
//! disk and survives a crash of the process or the machine.

use rusqlite::named_params;
use serde_json::{Value, json};

use super::claim::container_lane;
use super::entry::{RequestEntry, entries, entry_of};
use super::error::QueueError;
use super::read::is_in;
use super::transitions::{RequestRow, execute, first_value, record, to_i64};
use super::{Queue, Tx};
use crate::ServiceErrorCode;
use synth_gepa::GepaEngine;
use synth_optimizer_core::config::sections::{CacheMode, Config};
use synth_optimizer_core::config::{EffectiveValue, ResolvedConfig, hidden_fields, redacted_config, search_digest};
use synth_optimizer_core::model::lifecycle::{Lifecycle, RequestState};
use synth_optimizer_core::secrets::scrub;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::clock::random_hex;
use synth_optimizer_platform::runtime::new_run_id;

/// A run request to submit.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// The resolved configuration. Later changes of the file do not affect the run.
    pub config: &'a ResolvedConfig,
    /// Path of the configuration file, for display.
    pub config_path: Option<&'a str>,
    pub priority: i64,
    /// Whether a background worker may claim the request.
    pub auto_start: bool,
    /// Whether the run advances only by step requests.
    pub manual_step: bool,
    /// Identifies this submission: a second submission with the same key returns the same request.
    pub idempotency_key: Option<&'a str>,
    /// SHA-256 of the body, to detect a different submission with the same key.
    pub body_digest: &'a str,
    /// How many requests may be queued; `None` for no limit.
    pub max_queued: Option<u32>,
}

/// The result of a submission.
#[derive(Debug, Clone, PartialEq)]
pub struct SubmitOutcome {
    pub entry: RequestEntry,
    /// Whether the request exists already, from an earlier submission with the same key.
    pub replayed: bool,
}

/// The configuration as the queue stores it.
struct StoredConfig {
    run_id: String,
    config: Value,
    values: Value,
    digest: String,
    run_dir: String,
    cache_namespace: String,
}

impl Queue {
    /// Returns the request of an earlier submission with this key. Fails with a conflict if that submission had another body.
    pub fn find_by_idempotency_key(&self, key: &str, body_digest: &str) -> Result<Option<RequestEntry>, QueueError> {
        self.read(|tx| find_replay(tx, Some(key), body_digest))
    }

    /// Fails when a run with this id is unfinished or completed, so that it cannot be submitted.
    pub fn check_run_id(&self, run_id: &str) -> Result<(), QueueError> {
        self.read(|tx| check_run_id(tx, run_id))
    }

    pub fn submit(&self, submission: &Submission<'_>) -> Result<SubmitOutcome, QueueError> {
        // The slow part runs before the transaction. Its error is raised only if the key was not used before.
        let stored_config = stored_config(submission.config);
        self.write(|tx| {
            if let Some(entry) = find_replay(tx, submission.idempotency_key, submission.body_digest)? {
                return Ok(SubmitOutcome { entry, replayed: true });
            }
            let stored_config = stored_config?;
            check_run_id(tx, &stored_config.run_id)?;
            check_queue_limit(tx, submission.max_queued)?;
            let seq = insert(tx, submission, &stored_config)?;
            Ok(SubmitOutcome { entry: entry_of(tx, seq)?, replayed: false })
        })
    }

    /// Returns every request of a run, if all have ended. An unknown run has no requests.
    pub fn deletable(&self, run_id: &str) -> Result<Vec<RequestEntry>, QueueError> {
        self.read(|tx| finished_requests(tx, run_id))
    }

    /// Deletes every request of a run, if all have ended and all are in `known`. Fails if another request was submitted since.
    pub fn delete(&self, run_id: &str, known: &[RequestEntry]) -> Result<(), QueueError> {
        self.write(|tx| {
            let found = finished_requests(tx, run_id)?;
            if let Some(new) = found.iter().find(|entry| known.iter().all(|old| old.request_id != entry.request_id)) {
                let message = format!("run {run_id} was submitted again and is not deleted");
                let hint = "Wait for the new run request, or cancel it.";
                return Err(QueueError::new(ServiceErrorCode::NotTerminal, message, hint).in_state(new.status));
            }
            execute(tx, "delete requests", "DELETE FROM run_requests WHERE run_id = ?1", [run_id])
        })
    }

    /// Returns the latest request of each run that has ended in one of these states (an empty list selects all) before
    /// this time, in milliseconds since 1970.
    pub fn prunable(&self, older_than: Option<u64>, states: &[RequestState]) -> Result<Vec<RequestEntry>, QueueError> {
        if let Some(live) = states.iter().find(|state| !state.is_final()) {
            let message = format!("run requests that are {} cannot be pruned", live.as_str());
            let hint = "Use completed, failed or cancelled.";
            return Err(QueueError::new(ServiceErrorCode::NotTerminal, message, hint).in_state(*live));
        }
        let rest = format!(
            "WHERE r.finished_at < ?1 AND {} AND NOT EXISTS
               (SELECT 1 FROM run_requests AS later WHERE later.run_id = r.run_id AND later.seq > r.seq)
             ORDER BY r.seq",
            is_in("r.status", states)
        );
        self.read(|tx| entries(tx, &rest, [older_than.map_or(i64::MAX, to_i64)]))
    }
}

fn stored_config(loaded: &ResolvedConfig) -> Result<StoredConfig, QueueError> {
    let mut config: Config = loaded.config.clone();
    let run_id = match config.run.run_id.clone() {
        Some(run_id) => run_id,
        None => new_run_id::<GepaEngine>()?,
    };
    config.run.run_id = Some(run_id.clone());
    let paths = RunPaths::new(&config.run.output_dir, &run_id)?;
    let kept = redacted_config(&config);
    let hidden = hidden_fields(&kept);
    if !hidden.is_empty() {
        let message = format!("the service stores no secrets, and the configuration has some: {}", hidden.join(", "));
        return Err(QueueError::new(
            ServiceErrorCode::InlineSecret,
            message,
            "Name the variable that holds the key in api_key_env, and set it in the environment of the service.",
        ));
    }
    let mut values = loaded.values.clone();
    for value in values.iter_mut().filter(|value| value.path == "run.run_id") {
        value.value = json!(run_id);
    }
    let shown =
        |value: EffectiveValue| json!({"field": value.path, "value": value.value, "origin": value.origin.to_string()});
    let values = values.into_iter().map(shown).collect();
    Ok(StoredConfig {
        digest: search_digest(&config),
        cache_namespace: config.cache.namespace_of(&run_id),
        run_dir: paths.dir().to_string(),
        config: kept,
        values,
        run_id,
    })
}

/// Returns the request of an earlier submission with the same key.
fn find_replay(tx: &Tx<'_>, key: Option<&str>, body_digest: &str) -> Result<Option<RequestEntry>, QueueError> {
    let Some(key) = key else { return Ok(None) };
    let Some(entry) = entries(tx, "WHERE r.idempotency_key = ?1", [key])?.into_iter().next() else { return Ok(None) };
    let same = "SELECT 1 FROM run_requests WHERE idempotency_key = ?1 AND request_body_sha256 = ?2";
    if first_value(tx, same, (key, body_digest))?.is_some() {
        return Ok(Some(entry));
    }
    let message = format!("idempotency key {key:?} was used for another body: run {}", entry.run_id);
    Err(QueueError::new(ServiceErrorCode::IdempotencyConflict, message, "Use a new key for each body.")
        .in_state(entry.status))
}

fn check_run_id(tx: &Tx<'_>, run_id: &str) -> Result<(), QueueError> {
    let latest = RequestRow::first(tx, "WHERE run_id = ?1 ORDER BY seq DESC LIMIT 1", [run_id])?;
    let Some(latest) = latest else { return Ok(()) };
    let refused = |code, message: String, hint| Err(QueueError::new(code, message, hint).in_state(latest.status));
    if !latest.status.is_final() {
        let message = format!("run {run_id} is {} in run request {}", latest.status.as_str(), latest.request_id);
        return refused(ServiceErrorCode::RunIdInUse, message, "Wait for it, cancel it, or choose another run.run_id.");
    }
    if latest.status == RequestState::Completed {
        let message = format!("run {run_id} was completed by run request {}", latest.request_id);
        return refused(ServiceErrorCode::RunExists, message, "Choose another run.run_id, or delete the run first.");
    }
    Ok(())
}

fn check_queue_limit(tx: &Tx<'_>, most: Option<u32>) -> Result<(), QueueError> {
    let queued = first_value(tx, "SELECT count(*) FROM run_requests WHERE status = 'queued'", [])?.unwrap_or(0);
    match most {
        Some(most) if queued >= i64::from(most) => {
            let message = format!("{queued} run requests are queued, and the limit is {most}");
            let hint = "Submit again when fewer run requests are queued, or raise --max-queued.";
            Err(QueueError::new(ServiceErrorCode::QueueFull, message, hint))
        }
        Some(_) | None => Ok(()),
    }
}

fn insert(tx: &Tx<'_>, submission: &Submission<'_>, stored_config: &StoredConfig) -> Result<i64, QueueError> {
    let config = &submission.config.config;
    let request_id = format!("runreq_{}", random_hex::<16>()?);
    let values = named_params! {
        ":request_id": request_id, ":run_id": stored_config.run_id, ":status": RequestState::INITIAL.as_str(),
        ":priority": submission.priority, ":auto_start": submission.auto_start,
        ":manual_step": submission.manual_step, ":config_path": submission.config_path,
        ":config": stored_config.config.to_string(), ":values": stored_config.values.to_string(), ":digest": stored_config.digest,
        ":url": scrub(&config.container.url), ":mode": config.cache.mode.as_str(),
        ":namespace": stored_config.cache_namespace, ":output_dir": config.run.output_dir.as_str(),
        ":run_dir": stored_config.run_dir, ":key": submission.idempotency_key, ":body": submission.body_digest,
        ":container_lane": container_lane(&config.container.url),
        ":cache_lane": (config.cache.mode != CacheMode::Off).then_some(&stored_config.cache_namespace), ":now": to_i64(tx.now.wall),
    };
    let text = "INSERT INTO run_requests (request_id, run_id, status, priority, auto_start, manual_step, config_path,
           config_json, values_json, config_digest, container_url, cache_mode, cache_namespace, output_dir, run_dir,
           idempotency_key, request_body_sha256, container_lane, cache_lane, submitted_at, updated_at)
         VALUES (:request_id, :run_id, :status, :priority, :auto_start, :manual_step, :config_path, :config, :values,
           :digest, :url, :mode, :namespace, :output_dir, :run_dir, :key, :body, :container_lane, :cache_lane, :now,
           :now)";
    execute(tx, "store a request", text, values)?;
    let row = RequestRow::of_request(tx, &request_id)?;
    let detail = json!({"config_path": submission.config_path, "priority": submission.priority});
    record(tx, &row, RequestState::INITIAL, "submit", &detail)?;
    Ok(row.seq)
}

fn finished_requests(tx: &Tx<'_>, run_id: &str) -> Result<Vec<RequestEntry>, QueueError> {
    let found = entries(tx, "WHERE r.run_id = ?1 ORDER BY r.seq", [run_id])?;
    match found.iter().find(|entry| !entry.is_terminal) {
        None => Ok(found),
        Some(live) => {
            let message = format!("run {run_id} is {} and cannot be deleted", live.status.as_str());
            let hint = "Cancel the run, and wait until it has ended.";
            Err(QueueError::new(ServiceErrorCode::NotTerminal, message, hint).in_state(live.status))
        }
    }
}

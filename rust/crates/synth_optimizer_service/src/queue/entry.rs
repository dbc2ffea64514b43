//! A request as people and programs see it, and how it is read from its row.

use rusqlite::types::Type;
use rusqlite::{Connection, Row};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{QueueError, sql};
use super::waiting::{Waiting, waiting};
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::lifecycle::{Lifecycle, RequestState};

/// A request to run something. Times are RFC 3339 in UTC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RequestEntry {
    pub request_id: String,
    pub run_id: String,
    pub status: RequestState,
    pub is_terminal: bool,
    /// The highest is claimed first.
    pub priority: i64,
    /// Whether a background worker may claim it.
    pub auto_start: bool,
    /// Whether it goes on only when somebody asks for a step.
    pub manual_step: bool,
    pub config_path: Option<String>,
    pub config_digest: String,
    pub container_url: String,
    pub cache_mode: String,
    pub cache_namespace: String,
    pub output_dir: String,
    pub run_dir: String,
    pub idempotency_key: Option<String>,
    pub submitted_at: String,
    /// The latest claim.
    pub leased_at: Option<String>,
    /// When the lease would end if the clock on the wall did not jump; the boot clock decides.
    pub lease_expires_at: Option<String>,
    pub pause_expires_at: Option<String>,
    /// The first start.
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
    pub updated_at: String,
    pub lease_id: Option<String>,
    pub worker_id: Option<String>,
    /// Of the latest lease; 0 before the first.
    pub fencing_token: i64,
    /// How often it was claimed.
    pub attempts: i64,
    /// How often it was taken from a holder that was gone.
    pub recoveries: i64,
    pub run_workspace_db_path: Option<String>,
    pub result_manifest_path: Option<String>,
    pub best_candidate_id: Option<String>,
    pub cost_usd: Option<f64>,
    pub usage: Option<Value>,
    pub result: Option<Value>,
    pub error: Option<Value>,
    /// What it waits for, unless it is over or worked on.
    pub waiting: Option<Waiting>,
    /// The process that held it before its present holder, if it was one of this machine.
    #[serde(skip)]
    pub last_holder_pid: Option<i64>,
}

/// The columns of an entry, of the table `r`, and who holds the lanes that a queued one needs. The configuration, which is
/// large, is read where it is wanted.
const COLUMNS: &str = "r.request_id, r.run_id, r.status, r.priority, r.auto_start, r.manual_step, r.config_path,
  r.config_digest, r.container_url, r.cache_mode, r.cache_namespace, r.output_dir, r.run_dir, r.idempotency_key,
  r.submitted_at, r.leased_at, r.lease_expires_at, r.pause_expires_at, r.started_at, r.finished_at, r.updated_at,
  r.lease_id, r.worker_id, r.fencing_token, r.attempts, r.recoveries, r.last_holder_pid, r.control, r.control_at,
  r.run_workspace_db_path, r.result_manifest_path, r.best_candidate_id, r.cost_usd, r.error_json, r.usage_json,
  r.result_json,
  CASE r.status WHEN 'queued' THEN (SELECT json_array(a.request_id, a.run_id, a.lease_expires_at) FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.container_lane = r.container_lane) END AS container_holder,
  CASE r.status WHEN 'queued' THEN (SELECT json_array(a.request_id, a.run_id, a.lease_expires_at) FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.cache_lane IS NOT NULL AND a.cache_lane = r.cache_lane) END AS cache_holder";

/// Reads entries; `rest` is what follows `FROM run_requests AS r`.
pub(super) fn entries(
    db: &Connection,
    rest: &str,
    values: impl rusqlite::Params,
) -> Result<Vec<RequestEntry>, QueueError> {
    db.prepare_cached(&format!("SELECT {COLUMNS} FROM run_requests AS r {rest}"))
        .and_then(|mut statement| statement.query_map(values, entry)?.collect())
        .map_err(sql("read requests"))
}

/// The entry of a row that is there.
pub(super) fn entry_of(db: &Connection, seq: i64) -> Result<RequestEntry, QueueError> {
    db.prepare_cached(&format!("SELECT {COLUMNS} FROM run_requests AS r WHERE r.seq = ?1"))
        .and_then(|mut statement| statement.query_row([seq], entry))
        .map_err(sql("read a request"))
}

/// A moment that is shown.
pub(super) fn moment(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<String>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(shown))
}

impl RequestEntry {
    /// The process whose lock on the run may be replaced: the one that held the request before.
    pub(crate) fn superseded(&self) -> Option<String> {
        self.last_holder_pid.map(|pid| format!("pid {pid}"))
    }
}

pub(super) fn shown(millis: i64) -> String {
    rfc3339(u64::try_from(millis).unwrap_or(0))
}

/// Reads the word of a closed vocabulary.
pub(super) fn state(row: &Row<'_>, column: &str) -> rusqlite::Result<RequestState> {
    let word: String = row.get(column)?;
    RequestState::from_word(&word).ok_or_else(|| unreadable(format!("{word:?} is not the state of a request")))
}

pub(super) fn unreadable(message: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, message.into())
}

/// Reads a document.
pub(super) fn json(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Value>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))).transpose()
}

fn entry(row: &Row<'_>) -> rusqlite::Result<RequestEntry> {
    let status = state(row, "status")?;
    Ok(RequestEntry {
        request_id: row.get("request_id")?,
        run_id: row.get("run_id")?,
        status,
        is_terminal: status.is_final(),
        priority: row.get("priority")?,
        auto_start: row.get("auto_start")?,
        manual_step: row.get("manual_step")?,
        config_path: row.get("config_path")?,
        config_digest: row.get("config_digest")?,
        container_url: row.get("container_url")?,
        cache_mode: row.get("cache_mode")?,
        cache_namespace: row.get("cache_namespace")?,
        output_dir: row.get("output_dir")?,
        run_dir: row.get("run_dir")?,
        idempotency_key: row.get("idempotency_key")?,
        submitted_at: shown(row.get("submitted_at")?),
        leased_at: moment(row, "leased_at")?,
        lease_expires_at: moment(row, "lease_expires_at")?,
        pause_expires_at: moment(row, "pause_expires_at")?,
        started_at: moment(row, "started_at")?,
        finished_at: moment(row, "finished_at")?,
        updated_at: shown(row.get("updated_at")?),
        lease_id: row.get("lease_id")?,
        worker_id: row.get("worker_id")?,
        fencing_token: row.get("fencing_token")?,
        attempts: row.get("attempts")?,
        recoveries: row.get("recoveries")?,
        run_workspace_db_path: row.get("run_workspace_db_path")?,
        result_manifest_path: row.get("result_manifest_path")?,
        best_candidate_id: row.get("best_candidate_id")?,
        cost_usd: row.get("cost_usd")?,
        usage: json(row, "usage_json")?,
        result: json(row, "result_json")?,
        error: json(row, "error_json")?,
        waiting: waiting(row, status)?,
        last_holder_pid: row.get("last_holder_pid")?,
    })
}

//! A run request as users and clients see it, with what it waits for; and how rows are decoded.

use rusqlite::Row;
use rusqlite::types::{Type, ValueRef};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Tx;
use super::error::{QueueError, sql};
use synth_optimizer_core::model::envelope::rfc3339;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_core::string_enum;

/// A run request. Times are RFC 3339 in UTC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RequestEntry {
    pub request_id: String,
    pub run_id: String,
    pub status: RequestState,
    pub is_terminal: bool,
    /// Requests with a higher priority are claimed first.
    pub priority: i64,
    /// Whether a background worker may claim the request.
    pub auto_start: bool,
    /// Whether the run advances only by step requests.
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
    /// Time of the latest claim.
    pub leased_at: Option<String>,
    /// Wall-clock time at which the lease ends, for display. The boot clock decides.
    pub lease_expires_at: Option<String>,
    /// When a pause with a timeout ends and the request is cancelled.
    pub pause_expires_at: Option<String>,
    /// Time of the first start.
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
    pub updated_at: String,
    pub lease_id: Option<String>,
    pub worker_id: Option<String>,
    /// The fencing token of the latest lease; 0 before the first one.
    pub fencing_token: i64,
    /// How many times the request was claimed.
    pub attempts: i64,
    /// How many times the request was recovered from a holder that was gone.
    pub recoveries: i64,
    pub run_workspace_db_path: Option<String>,
    pub result_manifest_path: Option<String>,
    pub best_candidate_id: Option<String>,
    pub cost_usd: Option<f64>,
    pub usage: Option<Value>,
    pub result: Option<Value>,
    pub error: Option<Value>,
    /// What the request waits for; null while it runs and after it has ended.
    pub waiting: Option<Waiting>,
    /// The process of the previous holder, if it ran on this machine.
    #[serde(skip_serializing)]
    #[schemars(skip)]
    pub last_holder_pid: Option<i64>,
}

impl RequestEntry {
    /// Returns the previous holder, as the run's lock file names it. Its lock on the run may be replaced.
    pub(crate) fn previous_holder(&self) -> Option<String> {
        self.last_holder_pid.map(|pid| format!("pid {pid}"))
    }
}

string_enum! {
    /// Why a request waits.
    WaitingReason {
        /// It waits for a free worker.
        Queue = "queue",
        /// Something that its run needs is unavailable. A worker tries again.
        Outage = "outage",
        ContainerBusy = "container_busy",
        CacheBusy = "cache_busy",
        ManualStep = "manual_step",
        AutoStartOff = "auto_start_off",
        Paused = "paused",
        /// A control request is pending. The run obeys it at its next check.
        Stopping = "stopping",
    }
}

/// What a request waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    pub reason: WaitingReason,
    pub message: String,
    pub since: Option<String>,
    /// When a pause with a timeout ends, or when a run that waits for the end of an outage is tried again; null otherwise.
    pub deadline_at: Option<String>,
}

/// The columns of an entry, from table `r`, with the current holders of the lanes that a queued request needs. The
/// configuration is large and is read separately.
const COLUMNS: &str = "r.request_id, r.run_id, r.status, r.finished_at IS NOT NULL AS is_terminal, r.priority,
  r.auto_start, r.manual_step, r.config_path, r.config_digest, r.container_url, r.cache_mode, r.cache_namespace,
  r.output_dir, r.run_dir, r.idempotency_key, r.submitted_at, r.leased_at, r.lease_expires_at, r.pause_expires_at,
  r.started_at, r.finished_at, r.updated_at, r.lease_id, r.worker_id, r.fencing_token, r.attempts, r.recoveries,
  r.last_holder_pid, r.control, r.control_at, r.retry_at, r.retry_reason, r.run_workspace_db_path, r.result_manifest_path, r.best_candidate_id,
  r.cost_usd, r.error_json, r.usage_json, r.result_json,
  CASE r.status WHEN 'queued' THEN (SELECT json_array(a.request_id, a.run_id) FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.container_lane = r.container_lane) END AS container_holder_json,
  CASE r.status WHEN 'queued' THEN (SELECT json_array(a.request_id, a.run_id) FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.cache_lane IS NOT NULL AND a.cache_lane = r.cache_lane) END
    AS cache_holder_json";

/// One row of `COLUMNS`.
#[derive(Deserialize)]
struct EntryRow {
    #[serde(flatten)]
    entry: RequestEntry,
    control: Option<String>,
    control_at: Option<String>,
    retry_at: Option<String>,
    retry_reason: Option<String>,
    /// The request and the run that occupy a lane.
    container_holder: Option<(String, String)>,
    cache_holder: Option<(String, String)>,
}

/// Reads entries. `rest` is the SQL after `FROM run_requests AS r`.
pub(super) fn entries(tx: &Tx<'_>, rest: &str, values: impl rusqlite::Params) -> Result<Vec<RequestEntry>, QueueError> {
    let text = format!("SELECT {COLUMNS} FROM run_requests AS r {rest}");
    let entry = |row: &Row<'_>| {
        let row: EntryRow = decode(row)?;
        Ok(RequestEntry { waiting: waiting(&row), ..row.entry })
    };
    rows(tx, "read requests", &text, values, entry)
}

/// Returns the entry of an existing row.
pub(super) fn entry_of(tx: &Tx<'_>, seq: i64) -> Result<RequestEntry, QueueError> {
    let found = entries(tx, "WHERE r.seq = ?1", [seq])?.into_iter().next();
    found.ok_or_else(|| sql("read a request")(rusqlite::Error::QueryReturnedNoRows))
}

fn waiting(row: &EntryRow) -> Option<Waiting> {
    let entry = &row.entry;
    let busy = |reason, what: String, (request_id, run_id): &(String, String)| {
        (reason, format!("{what} is in use by run {run_id} (run request {request_id})"), None)
    };
    let own = |reason, message: &str| (reason, message.to_owned(), None);
    let (reason, message, deadline_at) = match entry.status {
        RequestState::Queued if entry.manual_step => {
            own(WaitingReason::ManualStep, &format!("the run waits for POST /runs/{}/step", entry.run_id))
        }
        RequestState::Queued if !entry.auto_start => {
            own(WaitingReason::AutoStartOff, "auto_start is off; execute it with POST /worker/run-next")
        }
        RequestState::Queued if row.retry_at.is_some() => {
            (WaitingReason::Outage, row.retry_reason.clone().unwrap_or_default(), row.retry_at.clone())
        }
        RequestState::Queued => match (&row.container_holder, &row.cache_holder) {
            (Some(holder), _) => {
                busy(WaitingReason::ContainerBusy, format!("container {}", entry.container_url), holder)
            }
            (None, Some(holder)) => {
                busy(WaitingReason::CacheBusy, format!("cache namespace {}", entry.cache_namespace), holder)
            }
            (None, None) => own(WaitingReason::Queue, "the run request waits for a free worker"),
        },
        RequestState::Paused => {
            let message = match &entry.pause_expires_at {
                Some(_) => "the run is paused; it is cancelled unless it is resumed before the pause ends".to_owned(),
                None => format!("the run is paused until POST /runs/{}/resume", entry.run_id),
            };
            (WaitingReason::Paused, message, entry.pause_expires_at.clone())
        }
        RequestState::Leased | RequestState::Running => {
            own(WaitingReason::Stopping, &format!("{} was requested and sent to the run", row.control.as_ref()?))
        }
        RequestState::Completed | RequestState::Failed | RequestState::Cancelled => return None,
    };
    let since = row.control_at.clone().filter(|_| reason == WaitingReason::Stopping);
    Some(Waiting { reason, message, since: since.or_else(|| Some(entry.updated_at.clone())), deadline_at })
}

/// Formats milliseconds since 1970 as RFC 3339.
pub(super) fn format_millis(millis: i64) -> String {
    rfc3339(u64::try_from(millis).unwrap_or(0))
}

/// Columns that hold booleans.
const FLAGS: [&str; 3] = ["auto_start", "manual_step", "is_terminal"];

/// Decodes a row by its column names: times (`at`, `…_at`) become RFC 3339 text, and documents (`…_json`) become JSON values.
pub(super) fn decode<T: DeserializeOwned>(row: &Row<'_>) -> rusqlite::Result<T> {
    let unreadable =
        |error: serde_json::Error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error));
    let mut fields = Map::new();
    for (index, name) in row.as_ref().column_names().into_iter().enumerate() {
        let value = match row.get_ref(index)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(flag) if FLAGS.contains(&name) => (flag != 0).into(),
            ValueRef::Integer(millis) if name == "at" || name.ends_with("_at") => format_millis(millis).into(),
            ValueRef::Integer(number) => number.into(),
            ValueRef::Real(number) => number.into(),
            ValueRef::Text(text) if name.ends_with("_json") => serde_json::from_slice(text).map_err(unreadable)?,
            ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).into(),
        };
        fields.insert(name.trim_end_matches("_json").to_owned(), value);
    }
    serde_json::from_value(Value::Object(fields)).map_err(unreadable)
}

/// Runs a query and collects its rows.
pub(super) fn rows<T, C: FromIterator<T>>(
    tx: &Tx<'_>,
    doing: &str,
    text: &str,
    values: impl rusqlite::Params,
    each: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<C, QueueError> {
    tx.db
        .prepare_cached(text)
        .and_then(|mut statement| statement.query_map(values, each)?.collect())
        .map_err(sql(doing))
}

//! What a request waits for, in words: nothing waits without a name for it.

use rusqlite::Row;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{moment, shown, unreadable};
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_core::words;

words! {
    /// Why a request does not go on.
    WaitingReason {
        /// A worker has to become free.
        Queue = "queue",
        ContainerBusy = "container_busy",
        CacheBusy = "cache_busy",
        ManualStep = "manual_step",
        AutoStartOff = "auto_start_off",
        Paused = "paused",
        /// It was asked to end or to pause and does so at its next check.
        Stopping = "stopping",
    }
}

/// What a request waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    pub reason: WaitingReason,
    pub message: String,
    pub since: Option<String>,
    /// When it may go on by itself at the latest, where that is known.
    pub next_check_at: Option<String>,
}

/// The request and the run that hold a lane, and when their lease ends.
type Holder = (String, String, Option<i64>);

pub(super) fn waiting(row: &Row<'_>, status: RequestState) -> rusqlite::Result<Option<Waiting>> {
    match status {
        RequestState::Queued => queued(row).map(Some),
        RequestState::Paused => Ok(Some(Waiting {
            reason: WaitingReason::Paused,
            message: "it is paused: resume it before the pause ends, or it is cancelled".to_owned(),
            since: moment(row, "updated_at")?,
            next_check_at: moment(row, "pause_expires_at")?,
        })),
        RequestState::Leased | RequestState::Running => stopping(row),
        RequestState::Completed | RequestState::Failed | RequestState::Cancelled => Ok(None),
    }
}

fn queued(row: &Row<'_>) -> rusqlite::Result<Waiting> {
    let since = moment(row, "updated_at")?;
    let own = |reason, message: &str| Waiting {
        reason,
        message: message.to_owned(),
        since: since.clone(),
        next_check_at: None,
    };
    let busy = |reason, what: String, (request_id, run_id, expires): Holder| Waiting {
        reason,
        message: format!("{what} is used by run {run_id} (request {request_id})"),
        since: since.clone(),
        next_check_at: expires.map(shown),
    };
    if row.get("manual_step")? {
        return Ok(own(WaitingReason::ManualStep, "it goes on when a step is asked for"));
    }
    if !row.get::<_, bool>("auto_start")? {
        return Ok(own(WaitingReason::AutoStartOff, "it was submitted without auto_start: run it with run-next"));
    }
    if let Some(holder) = holder(row, "container_holder")? {
        let what = format!("container {}", row.get::<_, String>("container_url")?);
        return Ok(busy(WaitingReason::ContainerBusy, what, holder));
    }
    if let Some(holder) = holder(row, "cache_holder")? {
        let what = format!("cache namespace {}", row.get::<_, String>("cache_namespace")?);
        return Ok(busy(WaitingReason::CacheBusy, what, holder));
    }
    Ok(own(WaitingReason::Queue, "it is claimed as soon as a worker is free"))
}

fn stopping(row: &Row<'_>) -> rusqlite::Result<Option<Waiting>> {
    let Some(action) = row.get::<_, Option<String>>("control")? else { return Ok(None) };
    Ok(Some(Waiting {
        reason: WaitingReason::Stopping,
        message: format!("{action} was asked for: the run does so at its next check"),
        since: moment(row, "control_at")?,
        next_check_at: moment(row, "lease_expires_at")?,
    }))
}

fn holder(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Holder>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))).transpose()
}

//! What the holder of a request says about it. Everything is refused as fenced once the lease is somebody else's.

use std::time::Duration;

use rusqlite::{Connection, named_params};
use serde_json::{Value, json};

use super::Queue;
use super::entry::{RequestEntry, entry_of};
use super::error::{QueueCode, QueueError, sql};
use super::moves::{Standing, fenced, int, length, shift};
use super::recover::{let_go, set_aside};
use super::wish::{Wish, WishKind};
use crate::clock::Moment;
use crate::config::secrets::redact;
use crate::model::lifecycle::{RequestState, RequestTrigger};

/// By what somebody says that a request is theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold<'a> {
    /// The fencing token of the claim.
    Token(i64),
    /// The id of the lease.
    Lease(&'a str),
    /// Nothing: whoever holds it is meant, as long as the lease has not run out.
    Current,
}

/// What a run left behind.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    pub run_workspace_db_path: Option<String>,
    pub result_manifest_path: Option<String>,
    pub best_candidate_id: Option<String>,
    /// Unknown is not zero.
    pub cost_usd: Option<f64>,
    pub usage: Option<Value>,
    pub result: Option<Value>,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq)]
pub struct Beat {
    pub entry: RequestEntry,
    /// What the holder is asked for.
    pub wish: Option<Wish>,
}

/// What a holder hears when it asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    Wish(Wish),
    /// The lease is not its own any more.
    Fenced,
}

impl Queue {
    /// What the holder is asked for. Nothing is written.
    pub fn heard(&self, request_id: &str, hold: Hold<'_>) -> Result<Heard, QueueError> {
        match self.read(|db, now| standing(db, now, request_id, hold)) {
            Ok(standing) => Ok(standing.wish.map_or(Heard::Nothing, Heard::Wish)),
            Err(refused) if refused.code == QueueCode::Fenced => Ok(Heard::Fenced),
            Err(error) => Err(error),
        }
    }

    /// The holder begins to work on it.
    pub fn start(&self, request_id: &str, hold: Hold<'_>) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, standing| {
            shift(db, now, standing, RequestTrigger::Start, None, &json!({})).map(|_| ())
        })
    }

    /// Makes the lease last that long from now, and tells what is asked for. `progress_at` is when the run was last heard
    /// of, in milliseconds since 1970. `None`: the lease is not ours any more.
    pub fn heartbeat(
        &self,
        request_id: &str,
        hold: Hold<'_>,
        lease: Duration,
        progress_at: Option<u64>,
    ) -> Result<Option<Beat>, QueueError> {
        let beat = self.write(|db, now| {
            let standing = standing(db, now, request_id, hold)?;
            let values = named_params! {
                ":now": int(now.wall), ":boot": int(now.boot), ":boot_id": now.boot_id, ":lease": int(length(lease)),
                ":seq": standing.seq, ":token": standing.fencing_token, ":progress": progress_at.map(int),
            };
            db.prepare_cached(
                "UPDATE run_requests SET lease_expires_at = :now + :lease, lease_deadline_boot = :boot + :lease,
                   lease_boot_id = :boot_id, updated_at = :now, progress_at = coalesce(:progress, progress_at)
                 WHERE seq = :seq AND fencing_token = :token AND status IN ('leased', 'running')",
            )
            .and_then(|mut statement| statement.execute(values))
            .map_err(sql("extend a lease"))?;
            Ok(Beat { entry: entry_of(db, standing.seq)?, wish: standing.wish })
        });
        match beat {
            Ok(beat) => Ok(Some(beat)),
            Err(refused) if refused.code == QueueCode::Fenced => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes how far the run is, by any number that changes when it gets on, and tells how many holders were lost since
    /// it was another one.
    pub fn progress(&self, request_id: &str, hold: Hold<'_>, mark: i64) -> Result<i64, QueueError> {
        self.write(|db, now| {
            let standing = standing(db, now, request_id, hold)?;
            db.prepare_cached(
                "UPDATE run_requests SET losses = CASE WHEN progress_mark IS ?1 THEN losses ELSE 0 END,
                   progress_mark = ?1, progress_at = ?2, updated_at = ?2 WHERE seq = ?3 RETURNING losses",
            )
            .and_then(|mut statement| statement.query_row((mark, int(now.wall), standing.seq), |row| row.get(0)))
            .map_err(sql("note progress"))
        })
    }

    /// The run is done.
    pub fn complete(&self, request_id: &str, hold: Hold<'_>, done: &Completion) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, standing| {
            let detail = json!({"best_candidate_id": done.best_candidate_id});
            shift(db, now, standing, RequestTrigger::Complete, None, &detail)?;
            store_result(db, standing.seq, done)
        })
    }

    /// Adds to a request that did not end well what its run has left.
    pub fn summarize(&self, request_id: &str, done: &Completion) -> Result<RequestEntry, QueueError> {
        self.write(|db, _| {
            let standing = Standing::of_request(db, request_id)?;
            if matches!(standing.status, RequestState::Failed | RequestState::Cancelled) {
                store_result(db, standing.seq, done)?;
            }
            entry_of(db, standing.seq)
        })
    }

    /// The run failed; `error` says why, and must not hold a secret.
    pub fn fail(&self, request_id: &str, hold: Hold<'_>, error: &Value) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, standing| {
            end_with(db, standing, error)?;
            shift(db, now, standing, RequestTrigger::Fail, None, error).map(|_| ())
        })
    }

    /// The holder has ended the run because it was cancelled.
    pub fn cancelled(&self, request_id: &str, hold: Hold<'_>, reason: &str) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, standing| {
            let asked = standing.wish.as_ref().filter(|wish| wish.kind == WishKind::Cancel);
            let message = asked.and_then(|wish| wish.reason.as_deref()).unwrap_or(reason);
            let payload = json!({"reason_code": "cancelled", "message": message});
            end_with(db, standing, &payload)?;
            shift(db, now, standing, RequestTrigger::Cancel, None, &payload).map(|_| ())
        })
    }

    /// The holder has set the run aside, for this long at most. What it was asked for and has not done takes effect
    /// instead.
    pub fn paused(&self, request_id: &str, hold: Hold<'_>, timeout: Duration) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, standing| {
            let detail = json!({"reason": "the run was set aside"});
            match standing.wish {
                Some(_) => let_go(db, now, standing, RequestTrigger::Release, &detail),
                None => set_aside(db, now, standing, Some(timeout), &detail),
            }
        })
    }

    /// The holder lets go of it, so that somebody else can go on. What it was asked for and has not done takes effect.
    pub fn release(&self, request_id: &str, hold: Hold<'_>, reason: &str) -> Result<RequestEntry, QueueError> {
        self.held(request_id, hold, |db, now, standing| {
            let_go(db, now, standing, RequestTrigger::Release, &json!({"reason": reason}))
        })
    }

    fn held(
        &self,
        request_id: &str,
        hold: Hold<'_>,
        act: impl FnOnce(&Connection, &Moment, &Standing) -> Result<(), QueueError>,
    ) -> Result<RequestEntry, QueueError> {
        self.write(|db, now| {
            let standing = standing(db, now, request_id, hold)?;
            act(db, now, &standing)?;
            entry_of(db, standing.seq)
        })
    }
}

fn store_result(db: &Connection, seq: i64, done: &Completion) -> Result<(), QueueError> {
    let values = named_params! {
        ":db": done.run_workspace_db_path, ":manifest": done.result_manifest_path,
        ":best": done.best_candidate_id, ":cost": done.cost_usd,
        ":usage": done.usage.as_ref().map(Value::to_string),
        ":result": done.result.as_ref().map(Value::to_string), ":seq": seq,
    };
    db.prepare_cached(
        "UPDATE run_requests SET run_workspace_db_path = :db, result_manifest_path = :manifest,
           best_candidate_id = :best, cost_usd = :cost, usage_json = :usage, result_json = :result
         WHERE seq = :seq",
    )
    .and_then(|mut statement| statement.execute(values))
    .map(|_| ())
    .map_err(sql("store a result"))
}

/// Stores why a request ends, before it does.
pub(super) fn end_with(db: &Connection, standing: &Standing, payload: &Value) -> Result<(), QueueError> {
    db.prepare_cached("UPDATE run_requests SET error_json = ?1 WHERE seq = ?2")
        .and_then(|mut statement| statement.execute((redact("", payload).to_string(), standing.seq)))
        .map(|_| ())
        .map_err(sql("store why a request ends"))
}

/// The request as its holder finds it.
fn standing(db: &Connection, now: &Moment, request_id: &str, hold: Hold<'_>) -> Result<Standing, QueueError> {
    let standing = Standing::of_request(db, request_id)?;
    let token = match hold {
        Hold::Token(token) => Some(token),
        Hold::Lease(_) | Hold::Current => None,
    };
    if hold == Hold::Current && standing.lease.is_none() {
        return Err(unheld(&standing));
    }
    let is_theirs = standing.lease.as_ref().is_some_and(|lease| match hold {
        Hold::Token(token) => token == standing.fencing_token,
        Hold::Lease(lease_id) => lease_id == lease.lease_id,
        Hold::Current => !lease.is_over(now),
    });
    if is_theirs { Ok(standing) } else { Err(fenced(&standing, token)) }
}

fn unheld(standing: &Standing) -> QueueError {
    let (request_id, run_id, status) = (&standing.request_id, &standing.run_id, standing.status);
    let message = format!("request {request_id} of run {run_id} is {} and held by nobody", status.word());
    QueueError::new(QueueCode::InvalidTransition, message, "A queued request must be claimed first.").in_state(status)
}

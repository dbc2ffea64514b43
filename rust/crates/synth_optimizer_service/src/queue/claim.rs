//! Gives the next request to a worker. Two that need the same container or the same cache never run at once.

use std::time::Duration;

use rusqlite::{Connection, named_params};
use serde_json::json;
use url::Url;

use super::Queue;
use super::entry::{RequestEntry, entry_of};
use super::error::{QueueError, not_found, sql};
use super::lock::{Holder, ServiceIdentity};
use super::recover::recover;
use super::transitions::{RequestRow, execute, first, int, length, next, record};
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::lifecycle::RequestTrigger;
use synth_optimizer_platform::clock::Moment;

/// Who claims what.
#[derive(Debug, Clone)]
pub struct Claim<'a> {
    pub lease_id: &'a str,
    pub worker_id: Option<&'a str>,
    /// How long the lease lasts without a heartbeat.
    pub lease: Duration,
    pub holder: Holder,
    pub which: Which<'a>,
}

/// Which requests may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// Those that start by themselves.
    Background,
    /// Any but those that are stepped.
    Any,
    /// This one, if it is queued and its lanes are free.
    Request(&'a str),
}

/// The lanes of a queued request `q` are free. Both conditions are those of the indexes, which they are answered from.
const FREE: &str = "NOT EXISTS (SELECT 1 FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.container_lane = q.container_lane)
  AND NOT EXISTS (SELECT 1 FROM run_requests AS a
    WHERE a.status IN ('leased', 'running') AND a.cache_lane IS NOT NULL AND a.cache_lane = q.cache_lane)";

impl Queue {
    /// The request with the highest priority, and of those the oldest, whose lanes are free. What the dead held is
    /// requeued first. One whose lane is busy holds up nobody else.
    pub fn claim(&self, claim: &Claim<'_>) -> Result<Option<RequestEntry>, QueueError> {
        self.write(|db, now| {
            recover(db, now, claim.holder.identity())?;
            let found = match claim.which {
                Which::Background => first(db, &ordered("q.auto_start = 1 AND q.manual_step = 0"), [])?,
                Which::Any => first(db, &ordered("q.manual_step = 0"), [])?,
                Which::Request(request_id) => {
                    if first(db, "SELECT seq FROM run_requests WHERE request_id = ?1", [request_id])?.is_none() {
                        return Err(not_found("request", request_id));
                    }
                    first(db, &ordered("q.request_id = ?1"), [request_id])?
                }
            };
            found.map(|seq| lease(db, now, seq, claim)).transpose()
        })
    }
}

fn ordered(rule: &str) -> String {
    format!(
        "SELECT q.seq FROM run_requests AS q WHERE q.status = 'queued' AND {rule} AND {FREE}
         ORDER BY q.priority DESC, q.seq LIMIT 1"
    )
}

fn lease(db: &Connection, now: &Moment, seq: i64, claim: &Claim<'_>) -> Result<RequestEntry, QueueError> {
    let row = || RequestRow::first(db, "WHERE seq = ?1", [seq])?.ok_or_else(|| not_found("request", "that was found"));
    let queued = row()?;
    let to = next(&queued, RequestTrigger::Claim)?;
    let token = next_token(db)?;
    let process = claim.holder.process();
    let values = named_params! {
        ":to": to.word(), ":now": int(now.wall), ":boot": int(now.boot), ":boot_id": now.boot_id,
        ":lease": length(claim.lease), ":lease_id": claim.lease_id, ":worker": claim.worker_id, ":token": token,
        ":kind": claim.holder.kind(), ":instance": claim.holder.identity().map(ServiceIdentity::instance_id),
        ":pid": process.as_ref().map(|process| process.holder_pid),
        ":started": process.as_ref().map(|process| int(process.holder_started)),
        ":namespace": process.as_ref().map(|process| &process.holder_pid_namespace),
        ":seq": seq,
    };
    let text =
        "UPDATE run_requests SET status = :to, updated_at = :now, leased_at = :now, lease_expires_at = :now + :lease,
           lease_deadline_boot = :boot + :lease, lease_boot_id = :boot_id, lease_id = :lease_id, worker_id = :worker,
           fencing_token = :token, attempts = attempts + 1, holder_kind = :kind, holder_instance = :instance,
           holder_pid = :pid, holder_started = :started, holder_pid_namespace = :namespace
         WHERE seq = :seq AND status = 'queued'";
    execute(db, "claim a request", text, values)?;
    // The history names the new holder.
    let mut held = row()?;
    held.status = queued.status;
    let detail = json!({"lease_id": claim.lease_id, "holder": claim.holder.kind()});
    record(db, now, &held, to, RequestTrigger::Claim.word(), &detail)?;
    entry_of(db, seq)
}

/// The next fencing token.
fn next_token(db: &Connection) -> Result<i64, QueueError> {
    db.prepare_cached("UPDATE fencing SET token = token + 1 RETURNING token")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(sql("take a fencing token"))
}

/// The container, under one name however its address is written. The names of loopback are one.
pub(crate) fn container_lane(url: &str) -> String {
    let Ok(parsed) = Url::parse(url.trim()) else { return url.trim().to_owned() };
    let host = match parsed.host_str().unwrap_or_default() {
        "127.0.0.1" | "[::1]" | "[::ffff:7f00:1]" => "localhost",
        host => host.trim_end_matches('.'),
    };
    let port = parsed.port_or_known_default().unwrap_or_default();
    format!("{}://{host}:{port}{}", parsed.scheme(), parsed.path().trim_end_matches('/'))
}

/// The cache, unless it is off.
pub(super) fn cache_lane(mode: CacheMode, namespace: &str) -> Option<&str> {
    match mode {
        CacheMode::Off => None,
        CacheMode::Readwrite | CacheMode::Readonly => Some(namespace),
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;

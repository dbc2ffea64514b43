//! What is asked of a request from outside. A request that nobody holds obeys at once; otherwise the wish is stored and
//! its holder hears it with the next heartbeat.

use std::time::Duration;

use rusqlite::{Connection, named_params};
use serde::Serialize;
use serde_json::json;

use super::entry::{RequestEntry, entry_of};
use super::error::{QueueCode, QueueError, sql};
use super::moves::{Standing, int, length, next, record, shift};
use super::outcome::end_with;
use super::tie::leave_loose;
use super::{DEFAULT_PAUSE, Queue};
use crate::clock::Moment;
use crate::config::secrets::scrub;
use crate::config::words::words;
use crate::model::lifecycle::{Lifecycle, RequestState, RequestTrigger};
use crate::runtime::Acknowledgement;

words! {
    /// What a holder may be asked for.
    WishKind {
        /// End at the next check; what was paid for stays in the run directory.
        Cancel = "cancel",
        /// Let go at the next check and wait to be resumed.
        Pause = "pause",
        /// End with the best candidate so far.
        Stop = "stop",
    }
}

/// What the holder of a request is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub kind: WishKind,
    pub reason: Option<String>,
    /// How long a pause may last.
    pub pause: Option<Duration>,
}

/// What became of something that was asked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ack {
    /// `noop`: it is so already.
    pub acknowledgement: Acknowledgement,
    pub entry: RequestEntry,
}

impl Queue {
    /// Ends a request. Its holder, if it has one, ends the run at its next check.
    pub fn cancel(&self, request_id: &str, reason: Option<&str>) -> Result<Ack, QueueError> {
        self.end(request_id, WishKind::Cancel, reason)
    }

    /// Ends a run with its best candidate so far. One that has begun and that nobody works on is taken up once more for
    /// that; one that has not is cancelled.
    pub fn stop(&self, request_id: &str, reason: Option<&str>) -> Result<Ack, QueueError> {
        self.end(request_id, WishKind::Stop, reason)
    }

    /// Sets a request aside. Unless it is resumed in time, it is cancelled.
    pub fn pause(&self, request_id: &str, timeout: Option<Duration>, reason: Option<&str>) -> Result<Ack, QueueError> {
        let timeout = timeout.unwrap_or(DEFAULT_PAUSE);
        self.ask(request_id, |db, now, standing| match standing.status {
            RequestState::Paused => Ok(Acknowledgement::Noop),
            RequestState::Queued => {
                if let Some(ending) = &standing.wish {
                    return Err(is_ending(standing, ending.kind));
                }
                let detail = json!({"reason": reason, "timeout_seconds": timeout.as_secs_f64()});
                shift(db, now, standing, RequestTrigger::Pause, Some(timeout), &detail)?;
                Ok(Acknowledgement::Accepted)
            }
            RequestState::Leased | RequestState::Running => match standing.wish.as_ref().map(|wish| wish.kind) {
                Some(WishKind::Pause) => Ok(Acknowledgement::Noop),
                Some(ending @ (WishKind::Cancel | WishKind::Stop)) => Err(is_ending(standing, ending)),
                None => {
                    let kind = WishKind::Pause;
                    wish(db, now, standing, &Wish { kind, reason: reason.map(str::to_owned), pause: Some(timeout) })
                }
            },
            RequestState::Completed | RequestState::Failed | RequestState::Cancelled => {
                next(standing, RequestTrigger::Pause).map(|_| Acknowledgement::Noop)
            }
        })
    }

    /// Lets a paused request go on. A pause that its holder has not obeyed yet is withdrawn.
    pub fn resume(&self, request_id: &str, reason: Option<&str>) -> Result<Ack, QueueError> {
        self.ask(request_id, |db, now, standing| match standing.status {
            RequestState::Paused => {
                shift(db, now, standing, RequestTrigger::Resume, None, &json!({"reason": reason}))?;
                Ok(Acknowledgement::Accepted)
            }
            RequestState::Leased | RequestState::Running => match standing.wish.as_ref().map(|wish| wish.kind) {
                Some(WishKind::Pause) => withdraw(db, now, standing, reason),
                Some(WishKind::Cancel | WishKind::Stop) | None => Ok(Acknowledgement::Noop),
            },
            RequestState::Queued => Ok(Acknowledgement::Noop),
            RequestState::Completed | RequestState::Failed | RequestState::Cancelled => {
                next(standing, RequestTrigger::Resume).map(|_| Acknowledgement::Noop)
            }
        })
    }

    fn end(&self, request_id: &str, kind: WishKind, reason: Option<&str>) -> Result<Ack, QueueError> {
        let trigger = RequestTrigger::Cancel;
        self.ask(request_id, |db, now, standing| match standing.status {
            RequestState::Queued | RequestState::Paused if kind == WishKind::Stop && is_taken_up_again(standing) => {
                if standing.wish.is_some() {
                    return Ok(Acknowledgement::Noop);
                }
                if standing.status == RequestState::Paused {
                    shift(db, now, standing, RequestTrigger::Resume, None, &json!({"reason": reason}))?;
                }
                let queued = Standing::of_request(db, request_id)?;
                wish(db, now, &queued, &Wish { kind, reason: reason.map(str::to_owned), pause: None })
            }
            RequestState::Queued | RequestState::Paused => {
                let why = match kind {
                    WishKind::Stop => "stopped",
                    WishKind::Cancel | WishKind::Pause => "cancelled",
                };
                let payload = json!({"reason_code": why, "message": reason.unwrap_or(why)});
                end_with(db, standing, &payload)?;
                shift(db, now, standing, trigger, None, &payload)?;
                leave_loose(db, standing)?;
                Ok(Acknowledgement::Accepted)
            }
            RequestState::Leased | RequestState::Running => match standing.wish.as_ref().map(|wish| wish.kind) {
                Some(WishKind::Cancel) => Ok(Acknowledgement::Noop),
                Some(same) if same == kind => Ok(Acknowledgement::Noop),
                Some(_) | None => {
                    wish(db, now, standing, &Wish { kind, reason: reason.map(str::to_owned), pause: None })
                }
            },
            RequestState::Completed | RequestState::Failed | RequestState::Cancelled => Ok(Acknowledgement::Noop),
        })
    }

    fn ask(
        &self,
        request_id: &str,
        act: impl FnOnce(&Connection, &Moment, &Standing) -> Result<Acknowledgement, QueueError>,
    ) -> Result<Ack, QueueError> {
        self.write(|db, now| {
            let standing = Standing::of_request(db, request_id)?;
            let acknowledgement = act(db, now, &standing)?;
            Ok(Ack { acknowledgement, entry: entry_of(db, standing.seq)? })
        })
    }
}

fn wish(db: &Connection, now: &Moment, standing: &Standing, wish: &Wish) -> Result<Acknowledgement, QueueError> {
    let pause = wish.pause.map(length);
    set(db, now, standing, Some(wish))?;
    let detail = json!({"reason": wish.reason, "timeout_ms": pause});
    record(db, now, standing, standing.status, &format!("ask_{}", wish.kind.word()), &detail)?;
    Ok(Acknowledgement::Accepted)
}

fn withdraw(
    db: &Connection,
    now: &Moment,
    standing: &Standing,
    reason: Option<&str>,
) -> Result<Acknowledgement, QueueError> {
    set(db, now, standing, None)?;
    record(db, now, standing, standing.status, "withdraw_pause", &json!({"reason": reason}))?;
    Ok(Acknowledgement::Accepted)
}

fn set(db: &Connection, now: &Moment, standing: &Standing, wish: Option<&Wish>) -> Result<(), QueueError> {
    let values = named_params! {
        ":wish": wish.map(|wish| wish.kind.word()),
        ":reason": wish.and_then(|wish| wish.reason.as_deref()).map(scrub),
        ":pause": wish.and_then(|wish| wish.pause).map(|pause| int(length(pause))),
        ":at": wish.map(|_| int(now.wall)), ":now": int(now.wall), ":seq": standing.seq,
    };
    db.prepare_cached(
        "UPDATE run_requests SET wish = :wish, wish_reason = :reason, wish_pause_ms = :pause, wish_at = :at,
           updated_at = :now WHERE seq = :seq AND status IN ('queued', 'leased', 'running')",
    )
    .and_then(|mut statement| statement.execute(values))
    .map(|_| ())
    .map_err(sql("store a wish"))
}

/// Whether a worker takes it up by itself and finds something to end.
fn is_taken_up_again(standing: &Standing) -> bool {
    standing.has_begun && standing.auto_start && !standing.manual_step
}

fn is_ending(standing: &Standing, wish: WishKind) -> QueueError {
    let message = format!(
        "run {} is {} and was asked to {}: it cannot be paused",
        standing.run_id,
        standing.status.state_word(),
        wish.word()
    );
    QueueError::new(QueueCode::InvalidTransition, message, "Wait until it has ended.").in_state(standing.status)
}

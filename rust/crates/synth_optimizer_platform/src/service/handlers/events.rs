//! What is new: events as a page or a stream, and the best candidate for whoever waits for a better one.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::super::api::{PageOrStream, Tagged, empty};
use super::super::context::Context;
use super::super::input::{IfNoneMatch, Path, Query, StreamWish, names};
use super::super::refusal::{Code, Refusal};
use super::super::runs::RunFiles;
use super::super::stream::{self, Standing};
use super::RunPath;
use crate::workspace::models::{BestCandidate, BestMark, EventPage, event_window};

/// Which events.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct EventQuery {
    /// Only events after this sequence number; -1 for all.
    #[schemars(range(min = -1))]
    after: Option<i64>,
    /// Events of a page.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<i64>,
}

pub(in super::super) async fn events(
    context: Arc<Context>,
    (Path(run), Query(query), StreamWish { is_wanted, last }): (Path<RunPath>, Query<EventQuery>, StreamWish),
) -> Result<PageOrStream<EventPage>, Refusal> {
    let run = context.run(&run.run_id.0).await?;
    if !is_wanted {
        return Ok(PageOrStream::Page(page(&context, run, &query).await?));
    }
    let after = last.or(query.after).unwrap_or(-1);
    let next = u64::try_from(after.saturating_add(1)).unwrap_or(0);
    // A reader that has everything of a run that is over must not come back again and again.
    if run.end(&context).await?.is_some() {
        let last = {
            let run = run.clone();
            context.read(move || run.last_sequence()).await?
        };
        if last.map_or(after >= 0, |last| next > last) {
            return Ok(PageOrStream::Stream(empty(StatusCode::NO_CONTENT, None)));
        }
    }
    Ok(PageOrStream::Stream(stream::events(&context, run, next)))
}

async fn page(context: &Arc<Context>, run: RunFiles, query: &EventQuery) -> Result<EventPage, Refusal> {
    event_window(query.after, query.limit)?;
    let is_over = run.end(context).await?.is_some();
    let (after, limit) = (query.after, query.limit);
    let page = context
        .read(move || match run.reader()? {
            Some(reader) => Ok::<_, Refusal>(reader.event_page(after, limit)?),
            // Nothing has happened yet.
            None => Ok(EventPage { items: Vec::new(), next_after: after.unwrap_or(-1), last_sequence: None, is_over }),
        })
        .await?;
    Ok(EventPage { is_over, ..page })
}

/// Whether to wait.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct BestQuery {
    /// Wait until the best candidate is newer than this sequence number.
    #[schemars(range(min = -1))]
    wait_newer_than: Option<i64>,
    /// How long to wait.
    #[schemars(range(min = 0, max = 60))]
    timeout_seconds: Option<f64>,
}

/// The longest wait.
const LONGEST: f64 = 60.0;
/// The wait when nothing else is said.
const USUAL: f64 = 30.0;

pub(in super::super) async fn best(
    context: Arc<Context>,
    (Path(run), Query(query), IfNoneMatch(known)): (Path<RunPath>, Query<BestQuery>, IfNoneMatch),
) -> Result<Tagged<BestCandidate>, Refusal> {
    let run = context.run(&run.run_id.0).await?;
    let wait = match query.timeout_seconds {
        Some(seconds) if !(0.0..=LONGEST).contains(&seconds) => {
            let message = format!("timeout_seconds {seconds} is not between 0 and {LONGEST}");
            return Err(Refusal::new(Code::BadParameter, message));
        }
        seconds => Duration::from_secs_f64(seconds.unwrap_or(USUAL)),
    };
    if let Some(newer_than) = query.wait_newer_than {
        if newer_than < -1 {
            let message = format!("wait_newer_than {newer_than} is not the sequence number of an event, nor -1");
            return Err(Refusal::new(Code::BadParameter, message));
        }
        let standing = wait_for_newer(&context, &run, newer_than, wait).await?;
        if !is_newer(standing.best.as_ref(), newer_than) {
            let etag = standing.best.map(|mark| tag(mark.sequence, &mark.candidate_id));
            return Ok(Tagged::Unchanged { etag, is_over: standing.is_over });
        }
    }
    let reading = run.clone();
    let best = context.read(move || match reading.reader()? {
        Some(reader) => Ok::<_, Refusal>(reader.best_candidate()?),
        None => Ok(None),
    });
    let Some(best) = best.await? else {
        return Err(Refusal::new(Code::NothingBest, format!("run {} has no best candidate yet", run.run_id())));
    };
    let etag = tag(best.sequence, &best.candidate_id);
    match known.is_some_and(|known| names(&known, &etag)) {
        true => Ok(Tagged::Unchanged { etag: Some(etag), is_over: false }),
        false => Ok(Tagged::Document { document: best, etag }),
    }
}

/// Waits until the best candidate is newer than that, the run is over, or the time is.
async fn wait_for_newer(
    context: &Arc<Context>,
    run: &RunFiles,
    newer_than: i64,
    wait: Duration,
) -> Result<Standing, Refusal> {
    // The reading goes on as long as the tail is here.
    let (tail, _) = context.hub().watch(context, run);
    let mut standing = tail.standing();
    let deadline = Instant::now() + wait;
    let mut known = |looked: &Standing| {
        looked.is_lost || (looked.is_known && (looked.is_over || is_newer(looked.best.as_ref(), newer_than)))
    };
    tokio::select! {
        found = standing.wait_for(&mut known) => drop(found),
        () = tokio::time::sleep_until(deadline) => {}
        () = context.closing() => return Err(Refusal::new(Code::Draining, "the service is shutting down")),
    }
    let found = standing.borrow().clone();
    match found.is_lost {
        true => Err(Refusal::new(Code::StoreBusy, format!("the log of run {} cannot be read just now", run.run_id()))),
        false => Ok(found),
    }
}

fn is_newer(best: Option<&BestMark>, than: i64) -> bool {
    best.is_some_and(|mark| i64::try_from(mark.sequence).unwrap_or(i64::MAX) > than)
}

fn tag(sequence: u64, candidate_id: &str) -> String {
    format!("\"{sequence}-{candidate_id}\"")
}

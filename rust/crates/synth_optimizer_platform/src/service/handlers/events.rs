//! What is new: events as a page or a stream, and the best candidate for whoever waits for a better one.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{StatusCode, header};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::super::api::{Flexible, empty};
use super::super::context::{Context, LOOK};
use super::super::input::{Headers, Path, Query, header_text};
use super::super::refusal::{Code, Refusal};
use super::super::runs::RunFiles;
use super::super::stream;
use super::RunPath;
use crate::workspace::models::{BestCandidate, EventPage, event_window};

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
    (Path(run), Query(query), Headers(headers)): (Path<RunPath>, Query<EventQuery>, Headers),
) -> Result<Flexible<EventPage>, Refusal> {
    let run = context.run(&run.run_id.0).await?;
    let accepts = header_text(&headers, header::ACCEPT).unwrap_or_default();
    if !accepts.split(',').any(|kind| kind.trim().starts_with("text/event-stream")) {
        return Ok(Flexible::Document(page(&context, run, &query).await?));
    }
    let after = match headers.get("last-event-id") {
        None => query.after.unwrap_or(-1),
        Some(id) => id
            .to_str()
            .ok()
            .and_then(|id| id.parse().ok())
            .filter(|id| *id >= -1)
            .ok_or_else(|| Refusal::new(Code::BadParameter, "the Last-Event-ID is not the id of an event"))?,
    };
    let next = u64::try_from(after.saturating_add(1)).unwrap_or(0);
    // A reader that has everything of a run that is over must not come back again and again.
    if run.end(&context).await?.is_some() {
        let last = {
            let run = run.clone();
            context.read(move || run.last_sequence()).await?
        };
        if last.map_or(after >= 0, |last| next > last) {
            return Ok(Flexible::Raw(empty(StatusCode::NO_CONTENT, None)));
        }
    }
    Ok(Flexible::Raw(stream::events(&context, run, next)))
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
    (Path(run), Query(query), Headers(headers)): (Path<RunPath>, Query<BestQuery>, Headers),
) -> Result<Flexible<BestCandidate>, Refusal> {
    let run = context.run(&run.run_id.0).await?;
    let wait = match query.timeout_seconds {
        Some(seconds) if !(0.0..=LONGEST).contains(&seconds) => {
            let message = format!("timeout_seconds {seconds} is not between 0 and {LONGEST}");
            return Err(Refusal::new(Code::BadParameter, message));
        }
        seconds => Duration::from_secs_f64(seconds.unwrap_or(USUAL)),
    };
    if query.wait_newer_than.is_some_and(|known| known < -1) {
        return Err(Refusal::new(Code::BadParameter, "wait_newer_than is not the sequence number of an event, nor -1"));
    }
    let deadline = Instant::now() + wait;
    loop {
        let is_over = run.end(&context).await?.is_some();
        let found = mark(&context, &run).await?;
        let newer = match (&found, query.wait_newer_than) {
            (Some((sequence, _)), Some(known)) => i64::try_from(*sequence).unwrap_or(i64::MAX) > known,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if newer {
            break;
        }
        let is_waiting = query.wait_newer_than.is_some();
        if !is_waiting && found.is_none() {
            return Err(Refusal::new(Code::NothingBest, format!("run {} has no best candidate yet", run.run_id())));
        }
        if is_over || Instant::now() >= deadline {
            let tag = found.map(|(_, tag)| tag);
            return Ok(Flexible::Raw(empty(StatusCode::NOT_MODIFIED, tag.as_deref())));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = context.closing() => return Err(Refusal::new(Code::Draining, "the service is shutting down")),
        }
    }
    let reading = run.clone();
    let best = context.read(move || reading.reader()?.map_or(Ok(None), |reader| Ok(reader.best_candidate()?)));
    let best: Option<BestCandidate> = best.await.map_err(|error: Refusal| error)?;
    let Some(best) = best else {
        return Err(Refusal::new(Code::NothingBest, format!("run {} has no best candidate yet", run.run_id())));
    };
    let etag = tag(best.sequence, &best.candidate_id);
    let is_known = |known: &str| known.split(',').any(|known| known.trim() == etag || known.trim() == "*");
    if header_text(&headers, header::IF_NONE_MATCH).is_some_and(is_known) {
        return Ok(Flexible::Raw(empty(StatusCode::NOT_MODIFIED, Some(&etag))));
    }
    Ok(Flexible::Tagged { document: best, etag })
}

/// The sequence and the tag of the best candidate.
async fn mark(context: &Arc<Context>, run: &RunFiles) -> Result<Option<(u64, String)>, Refusal> {
    let run = run.clone();
    context
        .read(move || {
            let Some(reader) = run.reader()? else { return Ok(None) };
            let mark = reader.best_mark()?;
            Ok::<_, Refusal>(mark.map(|mark| (mark.sequence, tag(mark.sequence, &mark.candidate_id))))
        })
        .await
}

fn tag(sequence: u64, candidate_id: &str) -> String {
    format!("\"{sequence}-{candidate_id}\"")
}

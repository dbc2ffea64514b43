//! What is new: events as a page or a stream, and the best candidate for whoever waits for a better one.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::{IfNoneMatch, RunPath, Service};
use crate::Code;
use crate::service::api::{Between, Headers, PageOrStream, Path, Query, Tagged};
use crate::service::context::Context;
use crate::service::follow::stream;
use crate::service::refusal::Refusal;
use crate::service::runs::RunFiles;
use synth_optimizer_core::model::run_totals::BestMark;
use synth_optimizer_platform::workspace::models::{BestCandidate, EventPage, event_window};

/// Which events.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// Only events after this sequence number; -1 for all.
    #[schemars(range(min = -1))]
    after: Option<i64>,
    /// Events of a page.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<i64>,
}

/// Whether a stream is wanted, and after which event.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EventHeaders {
    #[serde(default)]
    #[schemars(skip)]
    accept: String,
    /// With `Accept: text/event-stream`: the last event that was seen.
    #[serde(default, rename = "last-event-id")]
    #[schemars(rename = "Last-Event-ID", with = "i64", range(min = -1))]
    last_event_id: Option<EventId>,
}

/// The sequence number of an event, or -1, as text.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct EventId(i64);

impl TryFrom<String> for EventId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().ok().filter(|id| *id >= -1).map(Self).ok_or("it is not the id of an event")
    }
}

pub(crate) async fn events(
    State(context): Service,
    Path(run): Path<RunPath>,
    Query(query): Query<EventQuery>,
    Headers(headers): Headers<EventHeaders>,
) -> Result<PageOrStream<EventPage>, Refusal> {
    let run = context.run(&run.run_id.0).await?;
    if !headers.accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream")) {
        return Ok(PageOrStream::Page(page(&context, run, &query).await?));
    }
    let after = headers.last_event_id.map(|id| id.0).or(query.after).unwrap_or(-1);
    let next = u64::try_from(after.saturating_add(1)).unwrap_or(0);
    // A reader that has everything of a run that is over must not come back again and again.
    if run.end(&context).await?.is_some() {
        let last = {
            let run = run.clone();
            context.read(move || run.last_sequence()).await?
        };
        if last.map_or(after >= 0, |last| next > last) {
            return Ok(PageOrStream::Over);
        }
    }
    Ok(PageOrStream::Stream(stream(&context, run, next)))
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
pub(crate) struct BestQuery {
    /// Wait until the best candidate is newer than this sequence number.
    #[schemars(range(min = -1))]
    wait_newer_than: Option<i64>,
    /// How long to wait.
    timeout_seconds: Option<Between<f64, 0, 60>>,
}

/// The wait when nothing else is said.
const USUAL: f64 = 30.0;

pub(crate) async fn best(
    State(context): Service,
    Path(run): Path<RunPath>,
    Query(query): Query<BestQuery>,
    Headers(known): Headers<IfNoneMatch>,
) -> Result<Tagged<Json<BestCandidate>>, Refusal> {
    let run = context.run(&run.run_id.0).await?;
    let wait = Duration::from_secs_f64(query.timeout_seconds.map_or(USUAL, |Between(seconds)| seconds));
    if let Some(newer_than) = query.wait_newer_than {
        if newer_than < -1 {
            let message = format!("wait_newer_than {newer_than} is not the sequence number of an event, nor -1");
            return Err(Refusal::new(Code::BadParameter, message));
        }
        let (best, is_over) = wait_for_newer(&context, &run, newer_than, wait).await?;
        if !is_newer(best.as_ref(), newer_than) {
            let etag = best.map(|mark| tag(mark.sequence, mark.candidate_id.as_str()));
            return Ok(Tagged::Unchanged { etag, is_over });
        }
    }
    let reading = run.clone();
    let best = context.read(move || match reading.reader()? {
        Some(reader) => Ok::<_, Refusal>(reader.best_candidate()?),
        None => Ok(None),
    });
    let Some(best) = best.await? else {
        return Err(Refusal::new(Code::NothingBest, format!("run {} has no best candidate yet", run.paths.run_id())));
    };
    let etag = tag(best.sequence, best.candidate.candidate_id.as_str());
    Ok(match known.has(&etag) {
        true => Tagged::Unchanged { etag: Some(etag), is_over: false },
        false => Tagged::New { answer: Json(best), etag: Some(etag) },
    })
}

/// Waits until the best candidate is newer than that, the run is over, or the time is. Returns the best one, and whether the
/// run is over.
async fn wait_for_newer(
    context: &Arc<Context>,
    run: &RunFiles,
    newer_than: i64,
    wait: Duration,
) -> Result<(Option<BestMark>, bool), Refusal> {
    let lost =
        || Refusal::new(Code::StoreBusy, format!("the log of run {} cannot be read just now", run.paths.run_id()));
    let deadline = Instant::now() + wait;
    let (tail, mut news) = context.hub.watch(context, run);
    loop {
        // Before the look: what happens after it is news.
        let end = tail.end.get().copied();
        let reading = run.clone();
        let looked = context.read(move || match reading.reader()? {
            Some(reader) => Ok::<_, Refusal>(reader.best_mark()?),
            None => Ok(None),
        });
        let best = looked.await.map_err(|refusal| {
            tracing::warn!(run_id = run.paths.run_id(), error = refusal.shown(), "the best candidate cannot be read");
            lost()
        })?;
        match end {
            Some(None) => return Err(lost()),
            Some(Some(_)) => return Ok((best, true)),
            None if is_newer(best.as_ref(), newer_than) || Instant::now() >= deadline => return Ok((best, false)),
            None => {}
        }
        tokio::select! {
            // One look is enough for everything that has happened.
            _ = news.recv() => while news.try_recv().is_ok() {},
            () = tokio::time::sleep_until(deadline) => {}
            () = context.closing() => return Err(Refusal::new(Code::Draining, "the service is shutting down")),
        }
    }
}

fn is_newer(best: Option<&BestMark>, than: i64) -> bool {
    best.is_some_and(|mark| i64::try_from(mark.sequence).unwrap_or(i64::MAX) > than)
}

fn tag(sequence: u64, candidate_id: &str) -> String {
    format!("\"{sequence}-{candidate_id}\"")
}

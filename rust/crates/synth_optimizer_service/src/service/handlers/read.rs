//! Handlers that read runs, during and after their execution. Events come as a page or as a stream, and a client can wait for
//! a better candidate.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::{Answer, IfNoneMatch, RunId, RunPath, ServiceState};
use crate::ServiceErrorCode;
use crate::queue::{HistoryEntry, RequestEntry, RequestPage, Waiting, WaitingReason};
use crate::service::api::{Bounded, EtagResponse, Headers, PageOrStream, Path, Query, RawResponse};
use crate::service::api_error::ApiError;
use crate::service::context::{Context, RunFiles, file_body};
use crate::service::event_stream::stream;
use crate::service::page::assets::FILE_POLICY;
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_core::model::run_totals::BestMark;
use synth_optimizer_core::model::usage::RunUsage;
use synth_optimizer_platform::artifacts::{
    ArtifactFile, Artifacts, RunOverview, artifacts as list_artifacts, open_artifact, run_status,
};
use synth_optimizer_platform::rollout_trace::RolloutDetail;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{
    BestCandidate, CandidateDetail, CandidatePage, CandidateQuery, EventPage, ReadError, RolloutPage, RolloutQuery,
    RunFrontier, RunModels, ScorePage, ScoreSeriesList, SeriesQuery, event_window, score_window,
};

/// Selects runs.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunsQuery {
    /// Only runs in these states, separated by commas.
    state: Option<String>,
    /// Number of runs per page.
    limit: Option<Bounded<i64, 1, 200>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

pub(crate) async fn runs(State(context): ServiceState, Query(query): Query<RunsQuery>) -> Answer<RequestPage> {
    let limit = query.limit.and_then(|Bounded(limit)| usize::try_from(limit).ok()).unwrap_or(50);
    let words = query.state.as_deref().unwrap_or_default();
    let words = words.split(',').map(str::trim).filter(|word| !word.is_empty());
    let states = words
        .map(|word| {
            RequestState::parse(word).ok_or_else(|| {
                let hint = format!("Use one of {}.", RequestState::NAMES.join(", "));
                ApiError::new(ServiceErrorCode::BadParameter, format!("{word:?} is not a state of a run request"))
                    .with_hint(hint)
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let cursor = query.cursor;
    let mut page = context.query(move |queue| queue.list(&states, limit, cursor.as_deref())).await?;
    page.items.iter_mut().for_each(|entry| add_step_wait(&context, entry));
    Ok(Json(page))
}

/// Sets the waiting reason of a run that this service executes step by step.
fn add_step_wait(context: &Context, entry: &mut RequestEntry) {
    let job = context.workers.job(&entry.request_id).filter(|job| job.is_stepped);
    if entry.waiting.is_none() && !entry.is_terminal && job.is_some() {
        entry.waiting = Some(Waiting {
            reason: WaitingReason::ManualStep,
            message: format!("the run waits for POST /runs/{}/step", entry.run_id),
            since: Some(entry.updated_at.clone()),
            deadline_at: None,
        });
    }
}

/// Everything about one run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunDetail {
    request: RequestEntry,
    /// The progress of the run; null before it has started.
    run: Option<RunOverview>,
    models: RunModels,
    /// The configuration as submitted, without secrets.
    config: Value,
    /// Every field of the configuration with its origin.
    origins: Value,
    usage: Option<RunUsage>,
    /// The history of all requests of the run.
    history: Vec<HistoryEntry>,
}

pub(crate) async fn run(State(context): ServiceState, Path(path): Path<RunPath>) -> Answer<RunDetail> {
    let mut request = context.latest_request(&path.run_id.0).await?;
    add_step_wait(&context, &mut request);
    let run = context.run_files(&path.run_id.0).await?;
    let (id, of) = (request.request_id.clone(), request.run_id.clone());
    let (config, origins, history) = context
        .query(move |queue| {
            let (config, origins) = queue.config(&id)?;
            Ok((config, origins, queue.history(&of)?))
        })
        .await?;
    let requested = |section: &str| config[section]["model"].as_str().map(str::to_owned);
    let requested_models = RunModels::asked(requested("policy"), requested("proposer"));
    let (overview, models) = context
        .run_blocking(move || {
            let Some(reader) = run.reader()? else { return Ok::<_, ApiError>((None, requested_models)) };
            Ok((Some(run_status(&run.paths)?), reader.run_models()?))
        })
        .await?;
    let usage = overview.as_ref().map(|overview| overview.usage);
    Ok(Json(RunDetail { request, run: overview, models, config, origins, usage, history }))
}

pub(crate) async fn candidates(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Query(query): Query<CandidateQuery>,
) -> Answer<CandidatePage> {
    query.check()?;
    read_run(&context, &run, move |reader| reader.candidate_page(&query)).await
}

/// Path parameters that select a candidate.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CandidatePath {
    /// Id of the run.
    run_id: RunId,
    /// Id of the candidate.
    candidate_id: String,
}

pub(crate) async fn candidate(
    State(context): ServiceState,
    Path(path): Path<CandidatePath>,
) -> Answer<CandidateDetail> {
    let CandidatePath { run_id, candidate_id } = path;
    read_item(&context, &run_id.0, "candidate_not_found", move |reader| reader.candidate(&candidate_id)).await
}

pub(crate) async fn rollouts(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Query(query): Query<RolloutQuery>,
) -> Answer<RolloutPage> {
    query.check()?;
    read_run(&context, &run, move |reader| reader.rollout_page(&query)).await
}

/// Path parameters that select a rollout.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RolloutPath {
    /// Id of the run.
    run_id: RunId,
    /// Id of the rollout, as sent to the container, or the number of its call.
    rollout_id: String,
}

/// Optional parts of a rollout.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RolloutInclude {
    /// `trace`: also return the whole reply.
    include: Option<IncludedPart>,
}

/// An optional part of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum IncludedPart {
    Trace,
}

pub(crate) async fn rollout(
    State(context): ServiceState,
    Path(path): Path<RolloutPath>,
    Query(query): Query<RolloutInclude>,
) -> Answer<RolloutDetail> {
    let RolloutPath { run_id, rollout_id } = path;
    let with_trace = query.include == Some(IncludedPart::Trace);
    read_item(&context, &run_id.0, "rollout_not_found", move |reader| reader.rollout(&rollout_id, with_trace)).await
}

pub(crate) async fn frontier(State(context): ServiceState, Path(run): Path<RunPath>) -> Answer<RunFrontier> {
    read_run(&context, &run, |reader| reader.frontier()).await
}

/// Selects scores.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ScoreQuery {
    /// Only scores that were settled after this sequence number.
    #[schemars(range(min = -1))]
    since: Option<i64>,
    /// Number of scores per page.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<i64>,
}

pub(crate) async fn scores(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Query(query): Query<ScoreQuery>,
) -> Answer<ScorePage> {
    score_window(query.since, query.limit)?;
    read_run(&context, &run, move |reader| reader.score_page(query.since, query.limit)).await
}

pub(crate) async fn score_series(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Query(query): Query<SeriesQuery>,
) -> Answer<ScoreSeriesList> {
    query.check()?;
    read_run(&context, &run, move |reader| reader.score_series(&query)).await
}

pub(crate) async fn artifacts(State(context): ServiceState, Path(run): Path<RunPath>) -> Answer<Artifacts> {
    let run = context.run_files(&run.run_id.0).await?;
    let listed = context.run_blocking(move || {
        let reader = run.reader()?;
        Ok::<_, ApiError>(list_artifacts(run.paths.dir(), reader.as_deref())?)
    });
    Ok(Json(listed.await?))
}

/// Path parameters that select an artifact.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ArtifactPath {
    /// Id of the run.
    run_id: RunId,
    /// Name of the file.
    name: String,
}

pub(crate) async fn artifact(
    State(context): ServiceState,
    Path(path): Path<ArtifactPath>,
    Headers(known): Headers<IfNoneMatch>,
) -> Result<EtagResponse<RawResponse>, ApiError> {
    let run = context.run_files(&path.run_id.0).await?;
    let found = context.run_blocking(move || {
        let reader = run.reader()?;
        Ok::<_, ApiError>(open_artifact(run.paths.dir(), reader.as_deref(), &path.name)?)
    });
    let ArtifactFile { entry, file } = found.await?;
    let etag = entry.sha256.map(|digest| format!("\"{digest}\""));
    if etag.as_ref().is_some_and(|etag| known.has(etag)) {
        return Ok(EtagResponse { answer: None, etag, is_terminal: false });
    }
    let length = HeaderValue::from(entry.bytes);
    let kind = HeaderValue::from_str(&entry.media_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let policy = HeaderValue::from_static(FILE_POLICY);
    let headers =
        [(header::CONTENT_LENGTH, length), (header::CONTENT_TYPE, kind), (header::CONTENT_SECURITY_POLICY, policy)];
    let answer = Some(RawResponse((headers, file_body(file, entry.bytes)).into_response()));
    Ok(EtagResponse { answer, etag, is_terminal: false })
}

/// Reads from the workspace of a run. Returns the default value if the run has not started.
pub(super) async fn read_run<T: Default + Send + 'static>(
    context: &Arc<Context>,
    run: &RunPath,
    read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
) -> Answer<T> {
    let run = context.run_files(&run.run_id.0).await?;
    Ok(Json(context.read_run(&run, read).await?.unwrap_or_default()))
}

/// Reads one item from the workspace of a run. Fails with `code` if the run has not started.
pub(super) async fn read_item<T: Send + 'static>(
    context: &Arc<Context>,
    run_id: &str,
    code: &'static str,
    read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
) -> Answer<T> {
    let run = context.run_files(run_id).await?;
    let found = context.read_run(&run, read).await?;
    found.map(Json).ok_or_else(|| ApiError::not_found(code, format!("run {run_id} has not started")))
}

/// Selects events.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EventQuery {
    /// Only events after this sequence number; -1 for all.
    #[schemars(range(min = -1))]
    after: Option<i64>,
    /// Number of events per page.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<i64>,
}

/// Headers that select a stream and its first event.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EventHeaders {
    #[serde(default)]
    #[schemars(skip)]
    accept: String,
    /// With `Accept: text/event-stream`: the id of the last event that the client has seen.
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
        text.parse().ok().filter(|id| *id >= -1).map(Self).ok_or("it is not a sequence number of an event")
    }
}

pub(crate) async fn events(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Query(query): Query<EventQuery>,
    Headers(headers): Headers<EventHeaders>,
) -> Result<PageOrStream<EventPage>, ApiError> {
    let run = context.run_files(&run.run_id.0).await?;
    if !headers.accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream")) {
        return Ok(PageOrStream::Page(page(&context, &run, query).await?));
    }
    let after = headers.last_event_id.map(|id| id.0).or(query.after).unwrap_or(-1);
    let next = u64::try_from(after.saturating_add(1)).unwrap_or(0);
    // 204 tells a client that has all events of an ended run not to reconnect.
    if run.entry(&context).await?.is_terminal {
        let last = context.read_run(&run, Reader::last_sequence).await?.flatten();
        if last.map_or(after >= 0, |last| next > last) {
            return Ok(PageOrStream::Stream(StatusCode::NO_CONTENT.into_response()));
        }
    }
    Ok(PageOrStream::Stream(stream(&context, run, next)))
}

async fn page(context: &Arc<Context>, run: &RunFiles, query: EventQuery) -> Result<EventPage, ApiError> {
    let EventQuery { after, limit } = query;
    event_window(after, limit)?;
    let is_terminal = run.entry(context).await?.is_terminal;
    let page = context.read_run(run, move |reader| reader.event_page(after, limit)).await?;
    let nothing = || EventPage { items: Vec::new(), next_after: after.unwrap_or(-1), last_sequence: None, is_terminal };
    Ok(EventPage { is_terminal, ..page.unwrap_or_else(nothing) })
}

/// Whether to wait for a newer best candidate, and how long.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BestQuery {
    /// Wait until the best candidate is newer than this sequence number.
    #[schemars(range(min = -1))]
    wait_newer_than: Option<i64>,
    /// How long to wait.
    timeout_seconds: Option<Bounded<f64, 0, 60>>,
}

/// How long to wait by default.
const DEFAULT_WAIT_SECONDS: f64 = 30.0;

pub(crate) async fn best(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Query(query): Query<BestQuery>,
    Headers(known): Headers<IfNoneMatch>,
) -> Result<EtagResponse<Json<BestCandidate>>, ApiError> {
    let run = context.run_files(&run.run_id.0).await?;
    let wait = Duration::from_secs_f64(query.timeout_seconds.map_or(DEFAULT_WAIT_SECONDS, |Bounded(seconds)| seconds));
    if let Some(newer_than) = query.wait_newer_than {
        if newer_than < -1 {
            let message = format!("wait_newer_than {newer_than} is neither a sequence number of an event nor -1");
            return Err(ApiError::new(ServiceErrorCode::BadParameter, message));
        }
        let (best, is_terminal) = wait_for_newer(&context, &run, newer_than, wait).await?;
        if !is_newer(best.as_ref(), newer_than) {
            let etag = best.map(|mark| tag(mark.sequence, mark.candidate_id.as_str()));
            return Ok(EtagResponse { answer: None, etag, is_terminal });
        }
    }
    let Some(best) = context.read_run(&run, Reader::best_candidate).await?.flatten() else {
        return Err(ApiError::new(
            ServiceErrorCode::NothingBest,
            format!("run {} has no best candidate yet", run.paths.run_id()),
        ));
    };
    let etag = tag(best.sequence, best.candidate.candidate_id.as_str());
    Ok(EtagResponse { answer: (!known.has(&etag)).then_some(Json(best)), etag: Some(etag), is_terminal: false })
}

/// Waits until the best candidate is newer than `newer_than`, the run has ended, or the time has passed. Returns the best
/// candidate and whether the run has ended.
async fn wait_for_newer(
    context: &Arc<Context>,
    run: &RunFiles,
    newer_than: i64,
    wait: Duration,
) -> Result<(Option<BestMark>, bool), ApiError> {
    let lost = || {
        ApiError::new(ServiceErrorCode::DatabaseBusy, format!("reading the log of run {} failed", run.paths.run_id()))
    };
    let deadline = Instant::now() + wait;
    let (tail, mut updates) = context.hub.subscribe(context, run);
    loop {
        // Read before the candidate, so that a later change is received as an update.
        let end = tail.end.get().copied();
        let best = context.read_run(run, Reader::best_mark).await.map_err(|refusal| {
            tracing::warn!(
                run_id = run.paths.run_id(),
                error = refusal.public_message(),
                "reading the best candidate failed"
            );
            lost()
        })?;
        let best = best.flatten();
        match end {
            Some(None) => return Err(lost()),
            Some(Some(_)) => return Ok((best, true)),
            None if is_newer(best.as_ref(), newer_than) || Instant::now() >= deadline => return Ok((best, false)),
            None => {}
        }
        tokio::select! {
            // One read covers all updates that have arrived.
            _ = updates.recv() => while updates.try_recv().is_ok() {},
            () = tokio::time::sleep_until(deadline) => {}
            () = context.wait_for_shutdown() => return Err(ApiError::new(ServiceErrorCode::Draining, "the service is shutting down")),
        }
    }
}

fn is_newer(best: Option<&BestMark>, than: i64) -> bool {
    best.is_some_and(|mark| i64::try_from(mark.sequence).unwrap_or(i64::MAX) > than)
}

fn tag(sequence: u64, candidate_id: &str) -> String {
    format!("\"{sequence}-{candidate_id}\"")
}

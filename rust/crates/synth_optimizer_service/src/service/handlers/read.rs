//! Looking at runs, while they go on and after.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answer, IfNoneMatch, RunId, RunPath, Service};
use crate::queue::{HistoryEntry, Page, RequestEntry, Waiting, WaitingReason};
use crate::service::api::{Between, Headers, Path, Query, Raw, Tagged};
use crate::service::context::Context;
use crate::service::files;
use crate::service::job::Manner;
use crate::service::refusal::{Code, Refusal};
use synth_optimizer_core::model::lifecycle::RequestState;
use synth_optimizer_core::model::usage::RunUsage;
use synth_optimizer_platform::artifacts::{
    ArtifactFile, Artifacts, RunOverview, artifacts as list_artifacts, open_artifact, run_status,
};
use synth_optimizer_platform::rollout_trace::RolloutDetail;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{
    CandidateDetail, CandidatePage, CandidateQuery, ReadError, RolloutPage, RolloutQuery, RunFrontier, RunModels,
    ScorePage, ScoreSeriesList, SeriesQuery, score_window,
};

/// Which runs.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunsQuery {
    /// Only runs in this state; several with commas.
    state: Option<String>,
    /// Runs of a page.
    limit: Option<Between<i64, 1, 200>>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

pub(crate) async fn runs(State(context): Service, Query(query): Query<RunsQuery>) -> Answer<Page> {
    let limit = query.limit.and_then(|Between(limit)| usize::try_from(limit).ok()).unwrap_or(50);
    let words = query.state.as_deref().unwrap_or_default();
    let words = words.split(',').map(str::trim).filter(|word| !word.is_empty());
    let states = words
        .map(|word| {
            RequestState::from_word(word).ok_or_else(|| {
                let hint = format!("Use one of {}.", RequestState::WORDS.join(", "));
                Refusal::new(Code::BadParameter, format!("{word:?} is not the state of a run")).with_hint(hint)
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let cursor = query.cursor;
    let mut page = context.ask(move |queue| queue.list(&states, limit, cursor.as_deref())).await?;
    page.items.iter_mut().for_each(|entry| explain(&context, entry));
    Ok(Json(page))
}

/// A run that this service holds for somebody who steps it waits for that.
fn explain(context: &Context, entry: &mut RequestEntry) {
    let job = context.workers.job(&entry.request_id).filter(|job| job.manner() == Manner::Stepped);
    if entry.waiting.is_none() && !entry.is_terminal && job.is_some() {
        entry.waiting = Some(Waiting {
            reason: WaitingReason::ManualStep,
            message: "it goes on when a step is asked for".into(),
            since: Some(entry.updated_at.clone()),
            next_check_at: entry.lease_expires_at.clone(),
        });
    }
}

/// Everything about one run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunDetail {
    request: RequestEntry,
    /// Where the run is; null before it has begun.
    run: Option<RunOverview>,
    models: RunModels,
    /// The configuration as it was when it was submitted, without secrets.
    config: Value,
    /// Every field of it with its origin.
    origins: Value,
    usage: Option<RunUsage>,
    /// Everything that happened to the requests of the run.
    history: Vec<HistoryEntry>,
}

pub(crate) async fn run(State(context): Service, Path(path): Path<RunPath>) -> Answer<RunDetail> {
    let mut request = context.entry(&path.run_id.0).await?;
    explain(&context, &mut request);
    let run = context.run(&path.run_id.0).await?;
    let (id, of) = (request.request_id.clone(), request.run_id.clone());
    let (config, origins, history) = context
        .ask(move |queue| {
            let (config, origins) = queue.config(&id)?;
            Ok((config, origins, queue.run_history(&of)?))
        })
        .await?;
    let requested = |section: &str| config[section]["model"].as_str().map(str::to_owned);
    let asked = RunModels::asked(requested("policy"), requested("proposer"));
    let (overview, models) = context
        .read(move || {
            let Some(reader) = run.reader()? else { return Ok::<_, Refusal>((None, asked)) };
            Ok((Some(run_status(run.paths())?), reader.run_models()?))
        })
        .await?;
    let usage = overview.as_ref().map(|overview| overview.usage);
    Ok(Json(RunDetail { request, run: overview, models, config, origins, usage, history }))
}

pub(crate) async fn candidates(
    State(context): Service,
    Path(run): Path<RunPath>,
    Query(query): Query<CandidateQuery>,
) -> Answer<CandidatePage> {
    query.check()?;
    look(&context, &run, move |reader| reader.candidate_page(&query)).await
}

/// The candidate that is meant.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CandidatePath {
    /// Id of the run.
    run_id: RunId,
    /// Id of the candidate.
    candidate_id: String,
}

pub(crate) async fn candidate(State(context): Service, Path(path): Path<CandidatePath>) -> Answer<CandidateDetail> {
    let CandidatePath { run_id, candidate_id } = path;
    find(&context, &run_id.0, "candidate_not_found", move |reader| reader.candidate(&candidate_id)).await
}

pub(crate) async fn rollouts(
    State(context): Service,
    Path(run): Path<RunPath>,
    Query(query): Query<RolloutQuery>,
) -> Answer<RolloutPage> {
    query.check()?;
    look(&context, &run, move |reader| reader.rollout_page(&query)).await
}

/// The rollout that is meant.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RolloutPath {
    /// Id of the run.
    run_id: RunId,
    /// Id of the rollout, as the container knows it, or the number of its request.
    rollout_id: String,
}

/// What else is wanted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RolloutInclude {
    /// `trace`: the whole reply as well.
    include: Option<Include>,
}

/// A part of a rollout that is given on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Include {
    Trace,
}

pub(crate) async fn rollout(
    State(context): Service,
    Path(path): Path<RolloutPath>,
    Query(query): Query<RolloutInclude>,
) -> Answer<RolloutDetail> {
    let RolloutPath { run_id, rollout_id } = path;
    let with_trace = query.include == Some(Include::Trace);
    find(&context, &run_id.0, "rollout_not_found", move |reader| reader.rollout(&rollout_id, with_trace)).await
}

pub(crate) async fn frontier(State(context): Service, Path(run): Path<RunPath>) -> Answer<RunFrontier> {
    look(&context, &run, |reader| reader.frontier()).await
}

/// Which scores.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ScoreQuery {
    /// Only scores that were settled after this sequence number.
    #[schemars(range(min = -1))]
    since: Option<i64>,
    /// Scores of a page.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<i64>,
}

pub(crate) async fn scores(
    State(context): Service,
    Path(run): Path<RunPath>,
    Query(query): Query<ScoreQuery>,
) -> Answer<ScorePage> {
    score_window(query.since, query.limit)?;
    look(&context, &run, move |reader| reader.score_page(query.since, query.limit)).await
}

pub(crate) async fn score_series(
    State(context): Service,
    Path(run): Path<RunPath>,
    Query(query): Query<SeriesQuery>,
) -> Answer<ScoreSeriesList> {
    query.check()?;
    look(&context, &run, move |reader| reader.score_series(&query)).await
}

pub(crate) async fn artifacts(State(context): Service, Path(run): Path<RunPath>) -> Answer<Artifacts> {
    let run = context.run(&run.run_id.0).await?;
    let listed = context.read(move || {
        let reader = run.reader()?;
        Ok::<_, Refusal>(list_artifacts(run.paths().dir(), reader.as_deref())?)
    });
    Ok(Json(listed.await?))
}

/// The artifact that is meant.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ArtifactPath {
    /// Id of the run.
    run_id: RunId,
    /// Name of the file.
    name: String,
}

pub(crate) async fn artifact(
    State(context): Service,
    Path(path): Path<ArtifactPath>,
    Headers(known): Headers<IfNoneMatch>,
) -> Result<Tagged<Raw>, Refusal> {
    let run = context.run(&path.run_id.0).await?;
    let found = context.read(move || {
        let reader = run.reader()?;
        Ok::<_, Refusal>(open_artifact(run.paths().dir(), reader.as_deref(), &path.name)?)
    });
    let ArtifactFile { entry, file } = found.await?;
    let etag = entry.sha256.map(|digest| format!("\"{digest}\""));
    if etag.as_ref().is_some_and(|etag| known.has(etag)) {
        return Ok(Tagged::Unchanged { etag, is_over: false });
    }
    let length = HeaderValue::from(entry.bytes);
    let kind = HeaderValue::from_str(&entry.media_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let headers = [(header::CONTENT_LENGTH, length), (header::CONTENT_TYPE, kind)];
    Ok(Tagged::New { answer: Raw((headers, files::body(file, entry.bytes)).into_response()), etag })
}

/// Reads something of a run that has begun; one that has not has nothing of it yet.
async fn look<T: Default + Send + 'static>(
    context: &Arc<Context>,
    run: &RunPath,
    read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
) -> Answer<T> {
    let run = context.run(&run.run_id.0).await?;
    let found = context.read(move || match run.reader()? {
        Some(reader) => Ok::<_, Refusal>(read(&reader)?),
        None => Ok(T::default()),
    });
    Ok(Json(found.await?))
}

/// Reads one thing of a run; one that has not begun has none.
async fn find<T: Send + 'static>(
    context: &Arc<Context>,
    run_id: &str,
    code: &'static str,
    read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
) -> Answer<T> {
    let run = context.run(run_id).await?;
    let found = context.read(move || match run.reader()? {
        Some(reader) => Ok(read(&reader)?),
        None => Err(Refusal::missing(code, format!("run {} has not begun", run.run_id()))),
    });
    Ok(Json(found.await?))
}

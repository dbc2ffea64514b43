//! Looking at runs, while they go on and after.

use std::sync::Arc;

use axum::http::{HeaderValue, Response, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::api::{Document, Raw, empty};
use super::super::context::Context;
use super::super::files;
use super::super::input::{IfNoneMatch, Path, Query, names};
use super::super::job::Manner;
use super::super::refusal::{Code, Refusal};
use super::{RunId, RunPath};
use crate::artifacts::{RunOverview, run_status};
use crate::model::lifecycle::RequestState;
use crate::queue::{HistoryEntry, Page, RequestEntry, Waiting, WaitingReason};
use crate::workspace::Reader;
use crate::workspace::models::{
    ArtifactFile, Artifacts, CandidateDetail, CandidatePage, CandidateQuery, ReadError, RolloutDetail, RolloutPage,
    RolloutQuery, RunFrontier, RunModels, RunUsage, ScorePage, ScoreSeriesList, SeriesQuery,
    artifacts as list_artifacts, open_artifact, score_window,
};

/// Which runs.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct RunsQuery {
    /// Only runs in this state; several with commas.
    state: Option<String>,
    /// Runs of a page.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

pub(in super::super) async fn runs(
    context: Arc<Context>,
    Query(query): Query<RunsQuery>,
) -> Result<Document<Page>, Refusal> {
    let limit = query.limit.unwrap_or(50);
    let Some(limit) = usize::try_from(limit).ok().filter(|limit| (1..=200).contains(limit)) else {
        return Err(Refusal::new(Code::BadParameter, format!("limit {limit} is not between 1 and 200")));
    };
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
    Ok(Document(page))
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
pub(in super::super) struct RunDetail {
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

pub(in super::super) async fn run(
    context: Arc<Context>,
    Path(path): Path<RunPath>,
) -> Result<Document<RunDetail>, Refusal> {
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
    let (overview, models, usage) = context
        .read(move || {
            let Some(reader) = run.reader()? else { return Ok::<_, Refusal>((None, asked, None)) };
            Ok((Some(run_status(run.paths())?), reader.run_models()?, Some(reader.run_usage()?)))
        })
        .await?;
    Ok(Document(RunDetail { request, run: overview, models, config, origins, usage, history }))
}

pub(in super::super) async fn candidates(
    context: Arc<Context>,
    (Path(run), Query(query)): (Path<RunPath>, Query<CandidateQuery>),
) -> Result<Document<CandidatePage>, Refusal> {
    query.check()?;
    look(&context, &run, move |reader| reader.candidate_page(&query)).await
}

/// The candidate that is meant.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in super::super) struct CandidatePath {
    /// Id of the run.
    run_id: RunId,
    /// Id of the candidate.
    candidate_id: String,
}

pub(in super::super) async fn candidate(
    context: Arc<Context>,
    Path(path): Path<CandidatePath>,
) -> Result<Document<CandidateDetail>, Refusal> {
    let CandidatePath { run_id, candidate_id } = path;
    find(&context, &run_id.0, "candidate_not_found", move |reader| reader.candidate(&candidate_id)).await
}

pub(in super::super) async fn rollouts(
    context: Arc<Context>,
    (Path(run), Query(query)): (Path<RunPath>, Query<RolloutQuery>),
) -> Result<Document<RolloutPage>, Refusal> {
    query.check()?;
    look(&context, &run, move |reader| reader.rollout_page(&query)).await
}

/// The rollout that is meant.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in super::super) struct RolloutPath {
    /// Id of the run.
    run_id: RunId,
    /// Id of the rollout, as the container knows it, or the number of its request.
    rollout_id: String,
}

/// What else is wanted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct RolloutInclude {
    /// `trace`: the whole reply as well.
    include: Option<Include>,
}

/// A part of a rollout that is given on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Include {
    Trace,
}

pub(in super::super) async fn rollout(
    context: Arc<Context>,
    (Path(path), Query(query)): (Path<RolloutPath>, Query<RolloutInclude>),
) -> Result<Document<RolloutDetail>, Refusal> {
    let RolloutPath { run_id, rollout_id } = path;
    let with_trace = query.include == Some(Include::Trace);
    find(&context, &run_id.0, "rollout_not_found", move |reader| reader.rollout(&rollout_id, with_trace)).await
}

pub(in super::super) async fn frontier(
    context: Arc<Context>,
    Path(run): Path<RunPath>,
) -> Result<Document<RunFrontier>, Refusal> {
    look(&context, &run, |reader| reader.frontier()).await
}

/// Which scores.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct ScoreQuery {
    /// Only scores that were settled after this sequence number.
    #[schemars(range(min = -1))]
    since: Option<i64>,
    /// Scores of a page.
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<i64>,
}

pub(in super::super) async fn scores(
    context: Arc<Context>,
    (Path(run), Query(query)): (Path<RunPath>, Query<ScoreQuery>),
) -> Result<Document<ScorePage>, Refusal> {
    score_window(query.since, query.limit)?;
    look(&context, &run, move |reader| reader.score_page(query.since, query.limit)).await
}

pub(in super::super) async fn score_series(
    context: Arc<Context>,
    (Path(run), Query(query)): (Path<RunPath>, Query<SeriesQuery>),
) -> Result<Document<ScoreSeriesList>, Refusal> {
    query.check()?;
    look(&context, &run, move |reader| reader.score_series(&query)).await
}

pub(in super::super) async fn artifacts(
    context: Arc<Context>,
    Path(run): Path<RunPath>,
) -> Result<Document<Artifacts>, Refusal> {
    let run = context.run(&run.run_id.0).await?;
    let listed = context.read(move || {
        let reader = run.reader()?;
        Ok::<_, Refusal>(list_artifacts(run.paths().dir(), reader.as_deref())?)
    });
    Ok(Document(listed.await?))
}

/// The artifact that is meant.
#[derive(Debug, Deserialize, JsonSchema)]
pub(in super::super) struct ArtifactPath {
    /// Id of the run.
    run_id: RunId,
    /// Name of the file.
    name: String,
}

pub(in super::super) async fn artifact(
    context: Arc<Context>,
    (Path(path), IfNoneMatch(known)): (Path<ArtifactPath>, IfNoneMatch),
) -> Result<Raw, Refusal> {
    let run = context.run(&path.run_id.0).await?;
    let found = context.read(move || {
        let reader = run.reader()?;
        Ok::<_, Refusal>(open_artifact(run.paths().dir(), reader.as_deref(), &path.name)?)
    });
    let ArtifactFile { entry, file } = found.await?;
    let etag = entry.sha256.as_ref().map(|digest| format!("\"{digest}\""));
    let is_known = known.zip(etag.as_deref()).is_some_and(|(known, etag)| names(&known, etag));
    if is_known {
        return Ok(Raw(empty(StatusCode::NOT_MODIFIED, etag.as_deref())));
    }
    let mut response = Response::new(files::body(file, entry.bytes));
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.bytes));
    let values = [(header::CONTENT_TYPE, Some(entry.media_type)), (header::ETAG, etag)];
    for (name, value) in values {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            fields.insert(name, value);
        }
    }
    Ok(Raw(response))
}

/// Reads something of a run that has begun; one that has not has nothing of it yet.
async fn look<T: Default + Send + 'static>(
    context: &Arc<Context>,
    run: &RunPath,
    read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
) -> Result<Document<T>, Refusal> {
    let run = context.run(&run.run_id.0).await?;
    let found = context.read(move || match run.reader()? {
        Some(reader) => Ok::<_, Refusal>(read(&reader)?),
        None => Ok(T::default()),
    });
    Ok(Document(found.await?))
}

/// Reads one thing of a run; one that has not begun has none.
async fn find<T: Send + 'static>(
    context: &Arc<Context>,
    run_id: &str,
    code: &'static str,
    read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
) -> Result<Document<T>, Refusal> {
    let run = context.run(run_id).await?;
    let found = context.read(move || match run.reader()? {
        Some(reader) => Ok(read(&reader)?),
        None => Err(Refusal::missing(code, format!("run {} has not begun", run.run_id()))),
    });
    Ok(Document(found.await?))
}

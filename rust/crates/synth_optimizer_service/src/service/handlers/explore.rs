//! Handlers for views of a run as a whole: the tree of candidates, the table of rows, proposer turns and comparisons.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::Deserialize;

use super::read::{read_item, read_run};
use super::{Answer, RunId, RunPath, ServiceState};
use crate::service::api::{Path, Query, RawResponse};
use crate::service::api_error::ApiError;
use crate::service::page::assets::FILE_POLICY;
use synth_optimizer_platform::turn_transcript::TurnDetail;
use synth_optimizer_platform::views::run_report;
use synth_optimizer_platform::workspace::Reader;
use synth_optimizer_platform::workspace::models::{
    CompareQuery, RowQuery, RowTable, RunComparison, RunLineage, TurnPage, TurnQuery, compare_runs,
};

pub(crate) async fn lineage(State(context): ServiceState, Path(run): Path<RunPath>) -> Answer<RunLineage> {
    read_run(&context, &run, Reader::lineage).await
}

pub(crate) async fn rows(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Query(query): Query<RowQuery>,
) -> Answer<RowTable> {
    query.check()?;
    read_run(&context, &run, move |reader| reader.row_table(&query)).await
}

pub(crate) async fn turns(
    State(context): ServiceState,
    Path(run): Path<RunPath>,
    Query(query): Query<TurnQuery>,
) -> Answer<TurnPage> {
    query.check()?;
    read_run(&context, &run, move |reader| reader.turn_page(&query)).await
}

/// Path parameters that select a proposer turn.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TurnPath {
    /// Id of the run.
    run_id: RunId,
    /// Number of the turn, from 1.
    turn: String,
}

pub(crate) async fn turn(State(context): ServiceState, Path(path): Path<TurnPath>) -> Answer<TurnDetail> {
    let TurnPath { run_id, turn } = path;
    read_item(&context, &run_id.0, "turn_not_found", move |reader| reader.turn(&turn)).await
}

pub(crate) async fn report(State(context): ServiceState, Path(run): Path<RunPath>) -> Result<RawResponse, ApiError> {
    let run = context.run_files(&run.run_id.0).await?;
    let html = context.run_blocking(move || Ok::<_, ApiError>(run_report(&run.paths)?)).await?;
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, FILE_POLICY)];
    Ok(RawResponse((headers, html).into_response()))
}

/// Path parameters that select two runs.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ComparePath {
    /// Id of the first run.
    run_id: RunId,
    /// Id of the second run, which may be the same one.
    other_run_id: RunId,
}

pub(crate) async fn compare(
    State(context): ServiceState,
    Path(path): Path<ComparePath>,
    Query(query): Query<CompareQuery>,
) -> Answer<RunComparison> {
    let left = context.run_files(&path.run_id.0).await?;
    let right = context.run_files(&path.other_run_id.0).await?;
    let compared = context.run_blocking(move || {
        let (Some(left), Some(right)) = (left.reader()?, right.reader()?) else {
            let message = "a run that has not started cannot be compared";
            return Err(ApiError::not_found("run_not_started", message.to_owned()));
        };
        Ok(compare_runs(&left, &right, &query)?)
    });
    Ok(Json(compared.await?))
}

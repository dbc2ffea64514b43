//! Handlers of the page: its files and its views.

use std::sync::Arc;

use aide::NoApi;
use axum::extract::{Request, State};
use schemars::JsonSchema;
use serde::Deserialize;

use super::ServiceState;
use crate::service::api::{Path, RawResponse};
use crate::service::api_error::ApiError;
use crate::service::context::Context;
use crate::service::page::assets::page_file;
use crate::service::page::{Executor, QueueRuns};
use synth_optimizer_platform::views::render;

/// Path parameters of the page.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PagePath {
    /// Path of a file of the page or of a view.
    path: String,
}

pub(crate) async fn page(Path(page): Path<PagePath>) -> Result<RawResponse, ApiError> {
    Ok(RawResponse(page_file(&page.path)))
}

pub(crate) async fn page_index() -> Result<RawResponse, ApiError> {
    Ok(RawResponse(page_file("")))
}

/// Answers the address without its last slash, as people type it.
pub(crate) async fn page_root() -> Result<RawResponse, ApiError> {
    page_index().await
}

pub(crate) async fn runs_view(State(context): ServiceState, request: NoApi<Request>) -> Result<RawResponse, ApiError> {
    rendered(context, request).await
}

pub(crate) async fn view(
    State(context): ServiceState,
    Path(_): Path<PagePath>,
    request: NoApi<Request>,
) -> Result<RawResponse, ApiError> {
    rendered(context, request).await
}

/// Renders the view of an address. Its path stays encoded: an id may contain a slash.
async fn rendered(context: Arc<Context>, NoApi(request): NoApi<Request>) -> Result<RawResponse, ApiError> {
    let path = request.uri().path().trim_start_matches("/views").to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let rendering = Arc::clone(&context);
    let key = format!("{path}?{query}");
    let answer = context.views.answer(key, request.headers(), || async move {
        let source = Arc::clone(&rendering);
        rendering.run_blocking(move || Ok(render(&queue_runs(&source), &path, &query)?)).await
    });
    answer.await.map(RawResponse)
}

/// Returns the runs of the service.
fn queue_runs(context: &Context) -> QueueRuns<'_> {
    QueueRuns {
        queue: &context.workers.queue,
        readers: context.readers.clone(),
        place: "this service".to_owned(),
        executor: Some(Executor { workers: Arc::clone(&context.workers), started_at: context.started_at.clone() }),
    }
}

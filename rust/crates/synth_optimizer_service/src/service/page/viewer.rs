//! The page without a service: serves the views of run directories or of a queue's file, on this machine only. Nothing is written.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;
use tokio::sync::watch;

use super::super::api_error::ApiError;
use super::super::context::{ReaderCache, file_body};
use super::super::guard::{Guard, finish_response};
use super::super::serve::listen;
use super::assets::{FILE_POLICY, is_page_path, page_file};
use super::view_cache::ViewCache;
use super::{DirectoryRuns, QueueRuns};
use crate::ServiceErrorCode;
use crate::queue::Queue;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::{ArtifactFile, open_artifact};
use synth_optimizer_platform::views::{RunSource, render};
use synth_optimizer_platform::workspace::models::ReadError;

/// How often workspaces without recent requests are closed.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Where a viewer finds runs.
#[derive(Debug)]
pub enum ViewerSource {
    /// An output directory or a run directory.
    Directory(DirectoryRuns),
    /// The database of a service.
    Queue(Box<QueueFile>),
}

/// The database of a service that is only read.
#[derive(Debug)]
pub struct QueueFile {
    queue: Queue,
    path: Utf8PathBuf,
    readers: ReaderCache,
}

impl ViewerSource {
    /// Opens a run directory, an output directory or the database of a service.
    pub fn open(path: &Utf8Path) -> Result<Self, OptimizerError> {
        if path.is_file() {
            let queue = Queue::open_to_read(path.as_std_path())?;
            let file = QueueFile { queue, path: path.to_owned(), readers: ReaderCache::default() };
            return Ok(Self::Queue(Box::new(file)));
        }
        DirectoryRuns::open(path).map(Self::Directory)
    }

    fn readers(&self) -> &ReaderCache {
        match self {
            Self::Directory(runs) => &runs.readers,
            Self::Queue(file) => &file.readers,
        }
    }

    /// Calls `read` with the runs.
    fn with<T>(&self, read: impl FnOnce(&dyn RunSource) -> T) -> T {
        match self {
            Self::Directory(runs) => read(runs),
            Self::Queue(file) => read(&QueueRuns {
                queue: &file.queue,
                readers: file.readers.clone(),
                place: file.path.to_string(),
                executor: None,
            }),
        }
    }
}

/// What all handlers of a viewer share.
#[derive(Debug)]
struct ViewerState {
    source: ViewerSource,
    guard: Guard,
    views: ViewCache,
}

/// A page that is served until it is dropped.
#[derive(Debug)]
pub struct Viewer {
    address: SocketAddr,
    close: watch::Sender<bool>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Viewer {
    /// Opens the port and serves the page.
    pub fn start(source: ViewerSource, bind: &str) -> Result<Self, OptimizerError> {
        let address: SocketAddr = bind.parse().map_err(|_| {
            OptimizerError::new(ErrorCode::Config, format!("{bind:?} is not an address and a port"))
                .with_hint("Write it like 127.0.0.1:8880; port 0 selects a free one.")
        })?;
        if !address.ip().is_loopback() {
            let message = format!("{address} can be reached from other machines, and the page has no token");
            return Err(OptimizerError::new(ErrorCode::Config, message)
                .with_hint("Use a loopback address such as 127.0.0.1:0, or start a service with --token-file."));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("synth-optimizers-ui")
            .enable_all()
            .build()
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "cannot start the runtime", error))?;
        let listener = runtime.block_on(listen(address))?;
        let address = listener
            .local_addr()
            .map_err(|error| OptimizerError::from_cause(ErrorCode::Io, "reading the bound address failed", error))?;
        let (close, mut closing) = watch::channel(false);
        let guard = Guard::new(address, &[], None);
        let state = Arc::new(ViewerState { source, guard, views: ViewCache::default() });
        let router = Router::new()
            .route("/", get(|| async { Redirect::temporary("/ui/") }))
            .route("/ui", get(|| async { page_file("") }))
            .route("/ui/", get(|| async { page_file("") }))
            .route("/ui/{*path}", get(|Path(path): Path<String>| async move { page_file(&path) }))
            .route("/views", get(view))
            .route("/views/{*path}", get(view))
            .route("/runs/{run_id}/events", get(events))
            .route("/runs/{run_id}/artifacts/{*name}", get(artifact))
            .fallback(|| async { ApiError::new(ServiceErrorCode::RouteNotFound, "the page has no such route") })
            .layer(from_fn_with_state(Arc::clone(&state), check_request))
            .with_state(Arc::clone(&state));
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(MAINTENANCE_INTERVAL).await;
                state.source.readers().close_idle().await;
            }
        });
        runtime.spawn(async move {
            let closed = async move { _ = closing.wait_for(|closing| *closing).await };
            // A listener that fails ends the page; the command notices that no request is answered.
            let _ = axum::serve(listener, router).with_graceful_shutdown(closed).await;
        });
        Ok(Self { address, close, runtime: Some(runtime) })
    }

    /// Returns the address of the page.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.close.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// Checks host and origin of a request, and adds the headers of every response.
async fn check_request(State(state): State<Arc<ViewerState>>, request: Request, next: Next) -> Response {
    let is_page = is_page_path(request.uri().path());
    let response = match state.guard.check(&request, is_page) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    finish_response(response, false, "").0
}

/// Runs work that blocks on files.
async fn blocking<T: Send + 'static>(
    state: &Arc<ViewerState>,
    work: impl FnOnce(&ViewerState) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ApiError> {
    let state = Arc::clone(state);
    let done = tokio::task::spawn_blocking(move || work(&state)).await;
    let done = done.map_err(|error| {
        ReadError::from(OptimizerError::from_cause(ErrorCode::Invariant, "a read ended without a result", error))
    });
    Ok(done.and_then(|done| done)?)
}

async fn view(State(state): State<Arc<ViewerState>>, request: Request) -> Result<Response, ApiError> {
    let path = request.uri().path().trim_start_matches("/views").to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let rendering = Arc::clone(&state);
    let key = format!("{path}?{query}");
    let render = || async move {
        blocking(&rendering, move |state| state.source.with(|source| render(source, &path, &query))).await
    };
    state.views.answer(key, request.headers(), render).await
}

/// Selects events.
#[derive(Debug, Deserialize)]
struct EventQuery {
    after: Option<i64>,
    limit: Option<i64>,
}

async fn events(
    State(state): State<Arc<ViewerState>>,
    Path(run_id): Path<String>,
    Query(query): Query<EventQuery>,
) -> Result<Response, ApiError> {
    let page = blocking(&state, move |state| {
        let run = state.source.with(|source| source.run(&run_id))?;
        let page = run.reader.as_ref().map(|reader| reader.event_page(query.after, query.limit)).transpose()?;
        Ok(page.map(|page| serde_json::json!(page)))
    });
    let page = page.await?.unwrap_or_else(
        || serde_json::json!({"items": [], "next_after": -1, "last_sequence": null, "is_terminal": false}),
    );
    Ok(axum::Json(page).into_response())
}

async fn artifact(
    State(state): State<Arc<ViewerState>>,
    Path((run_id, name)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let opened = blocking(&state, move |state| {
        let run = state.source.with(|source| source.run(&run_id))?;
        open_artifact(run.paths.dir(), run.reader.as_deref(), &name)
    });
    let ArtifactFile { entry, file } = opened.await?;
    let mut response = (StatusCode::OK, file_body(file, entry.bytes)).into_response();
    let kind = HeaderValue::from_str(&entry.media_type).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.bytes));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(FILE_POLICY));
    Ok(response)
}

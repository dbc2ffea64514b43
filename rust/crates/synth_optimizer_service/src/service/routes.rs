//! The route table of the service, one line per route, and its OpenAPI document.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with as delete, get_with as get, post_with as post};
use aide::generate::{in_context, reset_context};
use aide::openapi::OpenApi;
use axum::Router;
use axum::extract::Request;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::api_error::ApiError;
use super::context::Context;
use super::handlers::{control, explore, page, read, submit, system};
use crate::ServiceErrorCode;

macro_rules! routes {
    ($($method:ident $path:literal $module:ident::$name:ident, $summary:literal;)*) => {
        fn routes() -> ApiRouter<Arc<Context>> {
            ApiRouter::new()$(.api_route(
                $path,
                $method($module::$name, |operation| operation.id(stringify!($name)).summary($summary)),
            ))*
        }
    };
}

routes! {
    get "/health" system::health, "Report that the process is alive";
    get "/ready" system::ready, "Report whether the database is open and workers run";
    get "/status" system::status, "Show the status of the queue";
    get "/workspace" system::workspace, "Show counts, leases, workers and invariants";
    post "/workspace/prune" system::prune, "Delete ended runs";
    get "/metrics" system::metrics, "Serve metrics for Prometheus";
    get "/openapi.json" system::openapi, "This document";
    post "/runs" submit::submit, "Submit a run";
    post "/runs/preflight" submit::preflight, "Check a run without submitting it";
    get "/runs" read::runs, "List runs, the newest first";
    get "/runs/{run_id}" read::run, "One run";
    delete "/runs/{run_id}" control::delete_run, "Delete an ended run";
    post "/runs/{run_id}/cancel" control::cancel, "Cancel a run";
    post "/runs/{run_id}/pause" control::pause, "Pause a run";
    post "/runs/{run_id}/resume" control::resume, "Resume a paused run";
    post "/runs/{run_id}/stop" control::stop, "Finish a run early, with its held-out evaluation";
    post "/runs/{run_id}/step" control::step, "Execute the next step of a run in manual-step mode";
    get "/runs/{run_id}/events" read::events, "List events, as a page or as a stream";
    get "/runs/{run_id}/candidates" read::candidates, "List candidates in the order of registration";
    get "/runs/{run_id}/candidates/{candidate_id}" read::candidate, "Show a candidate with its lineage";
    get "/runs/{run_id}/rollouts" read::rollouts, "List rollouts in the order of their calls";
    get "/runs/{run_id}/rollouts/{rollout_id}" read::rollout, "Show a rollout with its evidence";
    get "/runs/{run_id}/frontier" read::frontier, "Show the frontier and its cells";
    get "/runs/{run_id}/scores" read::scores, "List scores in the order of their events";
    get "/runs/{run_id}/scores/series" read::score_series, "Show scores over time by metric";
    get "/runs/{run_id}/best" read::best, "Show the best candidate, or wait for a newer one";
    get "/runs/{run_id}/lineage" explore::lineage, "Show all candidates as a tree, with the checks of sprints";
    get "/runs/{run_id}/rows" explore::rows, "Show the table of rows and candidates";
    get "/runs/{run_id}/turns" explore::turns, "List proposer turns in the order of their calls";
    get "/runs/{run_id}/turns/{turn}" explore::turn, "Show a proposer turn with its transcript";
    get "/runs/{run_id}/compare/{other_run_id}" explore::compare, "Compare two runs, or two candidates of one run";
    get "/runs/{run_id}/report" explore::report, "Write the report of a run in any state as one HTML file";
    get "/runs/{run_id}/artifacts" read::artifacts, "List the files of a run";
    get "/runs/{run_id}/artifacts/{*name}" read::artifact, "Download a file";
    get "/ui" page::page_root, "The page for people, without the last slash of its address";
    get "/ui/" page::page_index, "The page for people";
    get "/ui/{*path}" page::page, "A file of the page; any other path is a view that its script shows";
    get "/views" page::runs_view, "The list of runs as HTML";
    get "/views/{*path}" page::view, "A view of the page as HTML";
    post "/worker/run-next" control::run_next, "Execute the next run request and wait until it ends";
    post "/worker/tick" control::tick, "Execute one unit of work";
    post "/worker/recover" control::recover, "Recover run requests from lost workers";
}

/// Returns the router and its OpenAPI document.
pub(super) fn router() -> (Router<Arc<Context>>, Value) {
    // aide collects the schemas of a document in a thread-local variable.
    reset_context();
    in_context(|context| {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        context.schema = settings.into_generator();
    });
    let mut document = OpenApi::default();
    let router = routes()
        .finish_api(&mut document)
        .fallback(|request: Request| async move {
            ApiError::new(ServiceErrorCode::RouteNotFound, format!("the service has no route {}", request.uri().path()))
                .with_unread_body()
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let message = format!("{1} does not support the method {0}", request.method(), request.uri().path());
            ApiError::new(ServiceErrorCode::MethodNotAllowed, message).with_unread_body()
        });
    (router, with_service_info(&document))
}

/// Returns the document with the parts that aide does not generate.
fn with_service_info(document: &OpenApi) -> Value {
    let mut document = json!(document);
    document["info"] = json!({
        "title": "synth-optimizers service",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "A queue of optimizer runs: submit, control and watch runs, and read their results.",
    });
    document["security"] = json!([{}, {"token": []}]);
    document["components"]["securitySchemes"] = json!({"token": {"type": "http", "scheme": "bearer"}});
    document["x-errors"] = ServiceErrorCode::ALL.into_iter().map(ServiceErrorCode::to_json).collect();
    // `{*name}` is the router's syntax for a path with directories; OpenAPI writes `{name}`.
    if let Some(paths) = document["paths"].as_object_mut() {
        *paths = std::mem::take(paths).into_iter().map(|(path, of)| (path.replace("{*", "{"), of)).collect();
    }
    document
}

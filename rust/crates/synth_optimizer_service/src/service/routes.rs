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
use super::handlers::{control, read, submit, system};
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
    get "/health" system::health, "Whether the process lives";
    get "/ready" system::ready, "Whether the database is open and workers run";
    get "/status" system::status, "The queue in one document";
    get "/workspace" system::workspace, "Counts, leases, workers and invariants";
    post "/workspace/prune" system::prune, "Delete runs that are over";
    get "/metrics" system::metrics, "Figures for Prometheus";
    get "/openapi.json" system::openapi, "This document";
    post "/runs" submit::submit, "Submit a run";
    post "/runs/preflight" submit::preflight, "Find everything that stands in the way of a run";
    get "/runs" read::runs, "List runs, the newest first";
    get "/runs/{run_id}" read::run, "One run";
    delete "/runs/{run_id}" control::delete_run, "Delete a run that is over";
    post "/runs/{run_id}/cancel" control::cancel, "End a run for good";
    post "/runs/{run_id}/pause" control::pause, "Set a run aside";
    post "/runs/{run_id}/resume" control::resume, "Go on with a run that was set aside";
    post "/runs/{run_id}/stop" control::stop, "Finish a run early, with its held-out evaluation";
    post "/runs/{run_id}/step" control::step, "Let a run that is stepped by hand do what it wants next";
    get "/runs/{run_id}/events" read::events, "Events, as a page or as a stream";
    get "/runs/{run_id}/candidates" read::candidates, "Candidates, in the order in which they were registered";
    get "/runs/{run_id}/candidates/{candidate_id}" read::candidate, "One candidate with its lineage";
    get "/runs/{run_id}/rollouts" read::rollouts, "Rollouts, in the order in which they were wanted";
    get "/runs/{run_id}/rollouts/{rollout_id}" read::rollout, "One rollout with its evidence";
    get "/runs/{run_id}/frontier" read::frontier, "Who is best on which row";
    get "/runs/{run_id}/scores" read::scores, "Scores, as they were settled";
    get "/runs/{run_id}/scores/series" read::score_series, "Scores over time, by metric";
    get "/runs/{run_id}/best" read::best, "The best candidate, or a newer one";
    get "/runs/{run_id}/artifacts" read::artifacts, "Files of a run";
    get "/runs/{run_id}/artifacts/{*name}" read::artifact, "The bytes of one file";
    post "/worker/run-next" control::run_next, "Carry out the next request, and wait for its end";
    post "/worker/tick" control::tick, "Do one unit of work";
    post "/worker/recover" control::recover, "Take requests back from workers that are gone";
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
            ApiError::new(ServiceErrorCode::RouteNotFound, format!("there is no route {}", request.uri().path()))
                .with_unread_body()
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let message = format!("{} is not possible on {}", request.method(), request.uri().path());
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
        "description": "A queue of optimizer runs: submit, steer, watch, and take the results.",
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

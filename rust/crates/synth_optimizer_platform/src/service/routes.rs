//! Every route of the service, one line each.

use super::api::{Route, delete, get, post};
use super::handlers::{control, events, read, submit, system, work};

/// The table. The document at `/openapi.json` is made from it.
pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/health", "Whether the process lives", system::health),
        get("/ready", "Whether the database is open and workers run", system::ready),
        get("/status", "The queue in one document", system::status),
        get("/workspace", "Counts, leases, workers and invariants", system::workspace),
        post("/workspace/prune", "Delete runs that are over", system::prune),
        get("/metrics", "Figures for Prometheus", system::metrics),
        get("/openapi.json", "This document", system::openapi),
        post("/runs", "Submit a run", submit::submit),
        post("/runs/preflight", "Find everything that stands in the way of a run", submit::preflight),
        get("/runs", "List runs, the newest first", read::runs),
        get("/runs/{run_id}", "One run", read::run),
        delete("/runs/{run_id}", "Delete a run that is over", control::delete_run),
        post("/runs/{run_id}/cancel", "End a run for good", control::cancel),
        post("/runs/{run_id}/pause", "Set a run aside", control::pause),
        post("/runs/{run_id}/resume", "Go on with a run that was set aside", control::resume),
        post("/runs/{run_id}/stop", "Finish a run early, with its held-out evaluation", control::stop),
        post("/runs/{run_id}/step", "Let a run that is stepped by hand do what it wants next", control::step),
        get("/runs/{run_id}/events", "Events, as a page or as a stream", events::events),
        get("/runs/{run_id}/candidates", "Candidates, in the order in which they were registered", read::candidates),
        get("/runs/{run_id}/candidates/{candidate_id}", "One candidate with its lineage", read::candidate),
        get("/runs/{run_id}/rollouts", "Rollouts, in the order in which they were wanted", read::rollouts),
        get("/runs/{run_id}/rollouts/{rollout_id}", "One rollout with its evidence", read::rollout),
        get("/runs/{run_id}/frontier", "Who is best on which row", read::frontier),
        get("/runs/{run_id}/scores", "Scores, as they were settled", read::scores),
        get("/runs/{run_id}/scores/series", "Scores over time, by metric", read::score_series),
        get("/runs/{run_id}/best", "The best candidate, or a newer one", events::best),
        get("/runs/{run_id}/artifacts", "Files of a run", read::artifacts),
        get("/runs/{run_id}/artifacts/{name}", "The bytes of one file", read::artifact),
        post("/worker/run-next", "Carry out the next request, and wait for its end", work::run_next),
        post("/worker/tick", "Do one unit of work", work::tick),
        post("/worker/recover", "Take requests back from workers that are gone", work::recover),
    ]
}

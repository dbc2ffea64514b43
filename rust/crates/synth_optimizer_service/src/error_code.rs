//! The table of error codes of the queue and the service: HTTP status, error class, retryability and hint.

use serde_json::{Value, json};

use synth_optimizer_core::model::error::ErrorCode;

macro_rules! codes {
    ($($code:ident, $wire:literal, $status:literal, $class:ident, $retryable:ident, $hint:literal;)*) => {
        /// Why the queue or the service rejects a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ServiceErrorCode { $($code,)* }

        impl ServiceErrorCode {
            /// Every code, in table order.
            pub const ALL: [Self; [$($wire),*].len()] = [$(Self::$code),*];

            pub(crate) const fn row(self) -> (&'static str, u16, ErrorCode, Retry, &'static str) {
                match self { $(Self::$code => ($wire, $status, ErrorCode::$class, Retry::$retryable, $hint),)* }
            }
        }
    };
}

/// Whether the same request may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    Later,
    Never,
}

codes! {
    HostNotAllowed, "host_not_allowed", 403, Http, Never, "Use the address that the service is bound to, or start it with --allow-host NAME.";
    OriginNotAllowed, "origin_not_allowed", 403, Http, Never, "Pages of other sites may not call this service.";
    Unauthorized, "unauthorized", 401, Http, Never, "Send the token of the service's --token-file as `Authorization: Bearer TOKEN`.";
    RouteNotFound, "route_not_found", 404, Http, Never, "GET /openapi.json lists every route.";
    MethodNotAllowed, "method_not_allowed", 405, Http, Never, "GET /openapi.json lists the methods of every route.";
    NotJson, "content_type_not_json", 415, Http, Never, "Send the body with `Content-Type: application/json`.";
    BodyTooLarge, "body_too_large", 413, Http, Never, "Send less, or start the service with a larger --max-body-mb.";
    BodyTimeout, "body_timeout", 408, Http, Later, "Send the whole body at once.";
    BadJson, "invalid_json", 400, Json, Never, "The place in the body is named; GET /openapi.json has its shape.";
    BadParameter, "invalid_parameter", 422, Config, Never, "GET /openapi.json has the parameters of every route.";
    InvalidCursor, "invalid_cursor", 422, Config, Never, "Use next_cursor of the page before, or none for the first page.";
    BadRequest, "invalid_request", 422, Config, Never, "GET /openapi.json has the shape of every body.";
    InvalidConfig, "invalid_config", 422, Config, Never, "Correct the named fields; POST /runs/preflight lists every problem at once.";
    PreflightFailed, "preflight_failed", 422, Config, Never, "Mend what stands in the way; POST /runs/preflight looks again. `allow_unverified` queues it all the same.";
    ConfigPathRefused, "config_path_refused", 422, Config, Never, "Name a TOML file beneath the service's --config-root, or send the configuration as `config`.";
    InlineSecret, "inline_secret_refused", 422, Config, Never, "Name the variable that holds the secret (`api_key_env`); a secret itself is never stored.";
    RunNotFound, "run_not_found", 404, Config, Never, "GET /runs lists the runs.";
    NothingBest, "no_best_candidate", 404, Optimizer, Later, "There is a best candidate as soon as the seed is measured.";
    NotTerminal, "not_terminal", 409, StateTransition, Never, "Cancel the run first; only a run that is over can be deleted.";
    InvalidTransition, "invalid_transition", 409, StateTransition, Never, "The current state is in `state`.";
    ManualStepRequired, "manual_step_required", 409, StateTransition, Never, "Only a run that was submitted with `manual_step` is stepped.";
    IdempotencyConflict, "idempotency_conflict", 409, StateTransition, Never, "Use another Idempotency-Key for another body.";
    RunIdInUse, "run_id_in_use", 409, StateTransition, Never, "Leave out run.run_id or choose another one.";
    RunExists, "run_exists", 409, StateTransition, Never, "Leave out run.run_id or choose another one; DELETE /runs/{run_id} removes the old one.";
    Fenced, "fenced", 409, StateTransition, Never, "Another worker holds the request now.";
    DatabaseInUse, "service_db_in_use", 409, Sqlite, Never, "One service works on a database; use that one, or another --db.";
    WorkersBusy, "workers_busy", 429, Http, Later, "Wait until one of them is over, or start the service with more --workers.";
    PreflightBusy, "preflight_busy", 429, Http, Later, "Wait until some of them are done, or leave them out with `allow_unverified`.";
    QueueFull, "queue_full", 429, Http, Later, "Try again when some of the waiting runs have run, or start the service with a larger --max-queued.";
    DatabaseBusy, "database_busy", 503, Sqlite, Later, "Another process writes to the database; try again.";
    Starting, "starting", 503, Http, Later, "The service is about to be ready; try again.";
    Draining, "draining", 503, Http, Later, "The service is shutting down; try again when it is back.";
    Internal, "internal", 500, Invariant, Never, "This is a defect: keep the service's database and report it.";
}

impl ServiceErrorCode {
    /// Returns the stable code that clients match on.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Returns its row of the table as JSON, for the API's description.
    pub fn to_json(self) -> Value {
        let (code, status, class, retry, hint) = self.row();
        json!({
            "code": code, "status": status, "error_code": class.as_str(), "retryable": retry == Retry::Later, "hint": hint,
        })
    }
}

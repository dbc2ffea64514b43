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
    OriginNotAllowed, "origin_not_allowed", 403, Http, Never, "Call the service from a program that sends no Origin header.";
    Unauthorized, "unauthorized", 401, Http, Never, "Send the token of the service's --token-file as `Authorization: Bearer TOKEN`.";
    RouteNotFound, "route_not_found", 404, Http, Never, "Use one of the routes in GET /openapi.json.";
    MethodNotAllowed, "method_not_allowed", 405, Http, Never, "Use one of the methods that GET /openapi.json lists for the route.";
    NotJson, "content_type_not_json", 415, Http, Never, "Send the body with `Content-Type: application/json`.";
    BodyTooLarge, "body_too_large", 413, Http, Never, "Send a smaller body, or start the service with a larger --max-body-mb.";
    BodyTimeout, "body_timeout", 408, Http, Later, "Send the whole body within --body-timeout-seconds.";
    BadJson, "invalid_json", 400, Json, Never, "Correct the body at the named place; GET /openapi.json has its schema.";
    BadParameter, "invalid_parameter", 422, Config, Never, "Correct the parameter; GET /openapi.json lists the parameters of every route.";
    InvalidCursor, "invalid_cursor", 422, Config, Never, "Pass next_cursor of the previous page, or no cursor for the first page.";
    BadRequest, "invalid_request", 422, Config, Never, "Correct the body; GET /openapi.json has the schema of every body.";
    InvalidConfig, "invalid_config", 422, Config, Never, "Correct the named fields; POST /runs/preflight lists every problem at once.";
    PreflightFailed, "preflight_failed", 422, Config, Never, "Fix the findings and check them with POST /runs/preflight, or submit with `allow_unverified` to skip the checks of container and proposer.";
    ConfigPathRefused, "config_path_refused", 422, Config, Never, "Name a TOML file beneath the service's --config-root, or send the configuration as `config`.";
    InlineSecret, "inline_secret_refused", 422, Config, Never, "Name the variable that holds the secret (`api_key_env`); a secret itself is never stored.";
    RunNotFound, "run_not_found", 404, Config, Never, "List the runs with GET /runs.";
    NothingBest, "no_best_candidate", 404, Optimizer, Later, "Wait until the initial candidate is evaluated; it is the first best candidate.";
    NotTerminal, "not_terminal", 409, StateTransition, Never, "Cancel the run and wait until it has ended, then delete it.";
    InvalidTransition, "invalid_transition", 409, StateTransition, Never, "Check `state`: it names the current state, which does not allow this.";
    ManualStepRequired, "manual_step_required", 409, StateTransition, Never, "Submit the run with `manual_step` to execute it step by step.";
    IdempotencyConflict, "idempotency_conflict", 409, StateTransition, Never, "Send another Idempotency-Key with another body.";
    RunIdInUse, "run_id_in_use", 409, StateTransition, Never, "Leave out run.run_id or choose another one.";
    RunExists, "run_exists", 409, StateTransition, Never, "Leave out run.run_id or choose another one; DELETE /runs/{run_id} removes the old one.";
    Fenced, "fenced", 409, StateTransition, Never, "Stop working on the run request: another worker holds its lease.";
    DatabaseInUse, "service_db_in_use", 409, Sqlite, Never, "Use the service that has the database open, stop it, or choose another --db.";
    WorkersBusy, "workers_busy", 429, Http, Later, "Wait until one of the runs has ended, or start the service with more --workers.";
    PreflightBusy, "preflight_busy", 429, Http, Later, "Wait until one of the checks has ended, or skip them with `allow_unverified`.";
    QueueFull, "queue_full", 429, Http, Later, "Submit again when fewer run requests are queued, or raise --max-queued.";
    DatabaseBusy, "database_busy", 503, Sqlite, Later, "Retry: another process is writing to the database.";
    Starting, "starting", 503, Http, Later, "Retry when GET /ready answers 200.";
    Draining, "draining", 503, Http, Later, "Retry after the service has been started again.";
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

//! Loads the task from a container (contract, program, task info, rows) and validates each part before the search
//! starts.
//!
//! `load` stops at the first problem. `inspect_container` continues and collects every problem.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::client::Client;
use super::container_error;
use super::contract::{Contract, Task, TaskRow, read_contract};
use super::credential_check::find_credential_setting;
use super::program::read_program;
use super::rows::{RowsRequest, join_splits, plan_rows, read_rows, search_row};
use super::splits::resolve_rows;
use synth_optimizer_core::config::{Config, pools};
use synth_optimizer_core::model::cache_key::CacheBoundary;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::ids::{HeldoutRow, RowId, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Program, Row};
use synth_optimizer_core::secrets::scrub;

/// One setup call.
#[derive(Debug, Clone)]
pub struct SetupCall<'a> {
    pub boundary: CacheBoundary,
    pub method: Method,
    pub route: &'a str,
    pub body: Option<&'a Value>,
}

/// Future of a setup call.
pub type SetupReply<'a> = Pin<Box<dyn Future<Output = Result<Value, OptimizerError>> + Send + 'a>>;

/// Answers setup calls: from the container, or from a cache in front of it.
pub trait SetupCalls: Sync {
    fn call<'a>(&'a self, call: SetupCall<'a>) -> SetupReply<'a>;
}

impl SetupCalls for Client {
    fn call<'a>(&'a self, call: SetupCall<'a>) -> SetupReply<'a> {
        Box::pin(self.json(call.method, call.route, call.body))
    }
}

/// Loads and validates the inputs of the search; stops at the first problem. Sends nothing if the config contains a
/// credential.
pub async fn load(config: &Config, calls: &dyn SetupCalls) -> Result<Task, OptimizerError> {
    load_until_problem(config, calls).await.map_err(|(_, error)| error)
}

/// Loads the inputs of a run that has started. A container that does not return its rows now has other rows.
pub(crate) async fn load_again(config: &Config, calls: &dyn SetupCalls) -> Result<Task, OptimizerError> {
    load_until_problem(config, calls).await.map_err(|(part, error)| {
        let is_of_rows = matches!(part, SetupPart::Rows | SetupPart::TrainRows | SetupPart::HeldoutRows);
        if is_of_rows && error.code == ErrorCode::Container && !error.is_outage {
            changed_rows().with_detail(error.message)
        } else {
            error
        }
    })
}

/// Returns the error of a resumed run whose container has other rows than at its start.
pub(crate) fn changed_rows() -> OptimizerError {
    container_error(
        "the container's rows changed since the run started",
        "Restore the rows, such as the file that they come from, or start a new run with another run.run_id.",
    )
}

/// Returns the error of a resumed run whose container has another program than at its start.
pub(crate) fn changed_program() -> OptimizerError {
    container_error(
        "the container's program changed since the run started",
        "Start the container with the previous version, or start a new run with another run.run_id.",
    )
}

async fn load_until_problem(config: &Config, calls: &dyn SetupCalls) -> Result<Task, (SetupPart, OptimizerError)> {
    let mut inspection = ContainerInspection { stop_at_first_problem: true, ..ContainerInspection::default() };
    inspection.load_parts(config, calls).await;
    match (inspection.problems.into_iter().next(), inspection.task) {
        (None, Some(task)) => Ok(task),
        (Some(problem), _) => Err(problem),
        (None, None) => {
            let message = "the task was not loaded, without an error";
            Err((SetupPart::Settings, OptimizerError::new(ErrorCode::Invariant, message)))
        }
    }
}

/// Loads and validates the inputs of the search; collects every problem.
pub(crate) async fn inspect_container(config: &Config, calls: &dyn SetupCalls) -> ContainerInspection {
    let mut inspection = ContainerInspection::default();
    inspection.load_parts(config, calls).await;
    inspection
}

/// Fails if the policy contains a credential, because it is sent to the container with every rollout.
fn refuse_credentials(config: &Config) -> Result<(), OptimizerError> {
    let Some(policy) = &config.policy else { return Ok(()) };
    let Some(place) = find_credential_setting("policy.config", &json!(policy.config)) else { return Ok(()) };
    let message = format!("`{place}` is named like a credential, and the policy is sent to the container");
    Err(container_error(message, "Keep keys in the container's environment; policy.api_key_env names their variable."))
}

async fn get(calls: &dyn SetupCalls, boundary: CacheBoundary, route: &str) -> Result<Value, OptimizerError> {
    calls.call(SetupCall { boundary, method: Method::GET, route, body: None }).await
}

/// Fetches `/task_info`. The inner error says why the container has none; the outer one is a failure of this machine,
/// such as a full disk.
async fn task_info(calls: &dyn SetupCalls) -> Result<Result<Value, String>, OptimizerError> {
    use ErrorCode::{CacheMiss, Container, Http, Json};
    match get(calls, CacheBoundary::TaskInfo, "/task_info").await {
        Ok(info) => Ok(Ok(info)),
        Err(error) if matches!(error.code, Container | Http | Json | CacheMiss) => Ok(Err(scrub(&error.message))),
        Err(error) => Err(error),
    }
}

/// Rows as the container returned them.
type FetchedRows = Vec<(RowId, TaskRow)>;

/// Fetches the rows of one split.
async fn fetch(rows_request: &RowsRequest, calls: &dyn SetupCalls) -> Result<FetchedRows, OptimizerError> {
    let (route, body) = (rows_request.route.as_str(), rows_request.request());
    let call = SetupCall { boundary: CacheBoundary::DatasetRows, method: Method::POST, route, body: Some(&body) };
    read_rows(rows_request, calls.call(call).await?)
}

/// Fetches the rows of one split. An error also names missing rows if they are found within `patience`.
async fn fetch_or_name_missing(
    rows_request: &RowsRequest,
    calls: &dyn SetupCalls,
    patience: Duration,
) -> Result<FetchedRows, OptimizerError> {
    let error = match fetch(rows_request, calls).await {
        Err(error) if error.code == ErrorCode::Container && rows_request.names.len() > 1 => error,
        fetched => return fetched,
    };
    // Limits the search for missing rows if the container hangs.
    let missing = timeout(patience, missing(rows_request, calls)).await.unwrap_or_default();
    if missing.is_empty() {
        return Err(error);
    }
    let message = format!("{}; the container does not return {}", error.message, missing.join(", "));
    Err(OptimizerError { message, ..error })
}

/// Finds rows that the container does not return, by bisection. Returns none if the container returns no rows at all.
async fn missing(rows_request: &RowsRequest, calls: &dyn SetupCalls) -> Vec<String> {
    const CALLS: usize = 48;
    const NAMED: usize = 5;
    let mut open: Vec<Range<usize>> = std::iter::once(0..rows_request.names.len()).collect();
    let mut missing = Vec::new();
    let (mut asked, mut given) = (0, 0);
    while let Some(places) = open.pop() {
        let middle = places.start + places.len() / 2;
        for half in [middle..places.end, places.start..middle] {
            if asked == CALLS || missing.len() == NAMED {
                break;
            }
            asked += 1;
            match fetch(&rows_request.part(half.clone()), calls).await {
                Ok(_) => given += 1,
                // The caller reports the error of the whole split.
                Err(_) if half.len() == 1 => missing.push(half.start),
                Err(_) => open.push(half),
            }
        }
    }
    // If no request succeeds, the problem is not a missing row.
    missing.sort_unstable();
    let named = missing.into_iter().filter(|_| given > 0);
    named.map(|place| rows_request.describe(place)).collect()
}

/// The part of the setup that a problem concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetupPart {
    /// A setting that must not be sent.
    Settings,
    /// The container is not reachable.
    Connection,
    Contract,
    Program,
    Rows,
    TrainRows,
    HeldoutRows,
}

/// The valid parts that a container returned, and all problems.
#[derive(Debug, Default)]
pub(crate) struct ContainerInspection {
    pub(crate) contract: Option<Contract>,
    pub(crate) task: Option<Task>,
    pub(crate) problems: Vec<(SetupPart, OptimizerError)>,
    /// Whether to stop after the first problem.
    stop_at_first_problem: bool,
}

impl ContainerInspection {
    /// Records the problem of a failed part. The outer `None` means to stop here; the inner `None` means to continue
    /// without this part.
    fn accept<T>(&mut self, part: SetupPart, result: Result<T, OptimizerError>) -> Option<Option<T>> {
        let loaded = result.map_err(|error| self.problems.push((part, error))).ok();
        (loaded.is_some() || !self.stop_at_first_problem).then_some(loaded)
    }

    /// Loads the parts in order. Returns `None` when the remaining parts depend on one that is missing.
    async fn load_parts(&mut self, config: &Config, calls: &dyn SetupCalls) -> Option<()> {
        self.accept(SetupPart::Settings, refuse_credentials(config))??;
        let metadata = self.accept(SetupPart::Connection, get(calls, CacheBoundary::Metadata, "/metadata").await)??;
        let contract = self.accept(SetupPart::Contract, read_contract(&metadata))??;
        self.contract = Some(contract.clone());
        let program =
            self.accept(SetupPart::Program, get(calls, CacheBoundary::Program, &contract.routes.program).await)?;
        let checked = match program.as_ref().map(|program| read_program(program, config)).transpose() {
            Ok(checked) => checked,
            Err(errors) => {
                self.problems.extend(errors.into_iter().map(|error| (SetupPart::Program, error)));
                if self.stop_at_first_problem {
                    return None;
                }
                None
            }
        };
        let task_info = self.accept(SetupPart::Connection, task_info(calls).await)?;
        let dataset = match contract.routes.taskset.as_ref().or(contract.routes.dataset.as_ref()) {
            Some((route, _)) => self.accept(SetupPart::Rows, get(calls, CacheBoundary::Dataset, route).await)??,
            None => Value::Null,
        };
        let config = &self.accept(SetupPart::Rows, resolve_rows(config, &contract.routes, &dataset))??;
        let plan = self.accept(SetupPart::Rows, plan_rows(config, &contract.routes, &dataset))??;
        let patience = Duration::from_secs(config.container.request_timeout_seconds);
        let stop_at_first_problem = self.stop_at_first_problem;
        let rows = async |rows_request| match stop_at_first_problem {
            true => fetch(rows_request, calls).await,
            false => fetch_or_name_missing(rows_request, calls, patience).await,
        };
        let train = self.accept(SetupPart::TrainRows, rows(&plan.train).await)?;
        let heldout = self.accept(SetupPart::HeldoutRows, rows(&plan.heldout).await)?;
        let (program, checked, task_info) = (program?, checked?, task_info?);
        let (train, heldout) = (train?, heldout?);
        let inputs = inputs(config, checked.program, &train, &heldout);
        let rows = self.accept(SetupPart::HeldoutRows, join_splits(train, heldout))??;
        self.task = Some(Task {
            contract,
            metadata,
            program,
            program_digest: checked.digest,
            family: checked.family,
            task_info,
            dataset,
            inputs,
            rows,
            mapping: plan.mapping,
            config: config.clone(),
        });
        Some(())
    }
}

/// Assembles the inputs of the search.
fn inputs(config: &Config, program: Program, train: &[(RowId, TaskRow)], heldout: &[(RowId, TaskRow)]) -> Inputs {
    let known = |rows: &[(RowId, TaskRow)]| -> Vec<Row> {
        let path = &config.gepa.batch_sampler.field;
        rows.iter().map(|(id, row)| search_row(id, row, path)).collect()
    };
    let pools = pools(config);
    let in_train = |places: &[usize]| places.iter().map(|place| TrainRow(*place as u32)).collect();
    Inputs {
        program,
        train: known(train),
        heldout: known(heldout),
        pareto_pool: in_train(&pools.pareto),
        minibatch_pool: in_train(&pools.minibatch),
        reflection_pool: in_train(&pools.reflection),
        heldout_pool: pools.heldout.iter().map(|place| HeldoutRow(*place as u32)).collect(),
    }
}

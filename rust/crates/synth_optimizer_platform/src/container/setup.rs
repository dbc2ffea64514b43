//! Loads the task from a container: contract, program, task info and rows, each checked before the search begins. A survey
//! goes on where a part is wrong, so that every problem is found.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::client::Client;
use super::contract::{Contract, Routes, Task, TaskRow, read_contract};
use super::program::{Checked, program_problems, read_program};
use super::rows::{asked_as, join_splits, read_rows, rows_request, search_row};
use super::screen::credential_setting;
use super::seeds::{Names, Plan, Wanted, plan};
use synth_optimizer_core::config::{Config, pools};
use synth_optimizer_core::model::cache_key::Boundary;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::RowsMapped;
use synth_optimizer_core::model::ids::{HeldoutRow, RowId, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Row};
use synth_optimizer_core::secrets::scrub;

/// One call of the setup.
#[derive(Debug, Clone)]
pub struct SetupCall<'a> {
    pub boundary: Boundary,
    pub method: Method,
    pub route: &'a str,
    pub body: Option<&'a Value>,
}

/// A call under way.
pub type SetupReply<'a> = Pin<Box<dyn Future<Output = Result<Value, OptimizerError>> + Send + 'a>>;

/// Who makes the calls of the setup: the container itself, or a cache before it.
pub trait SetupCalls: Sync {
    fn call<'a>(&'a self, call: SetupCall<'a>) -> SetupReply<'a>;
}

impl SetupCalls for Client {
    fn call<'a>(&'a self, call: SetupCall<'a>) -> SetupReply<'a> {
        Box::pin(self.json(call.method, call.route, call.body))
    }
}

/// Loads and checks everything that the search is given, up to the first problem. Nothing is sent when the config holds a
/// credential.
pub async fn load(config: &Config, calls: &dyn SetupCalls) -> Result<Task, OptimizerError> {
    refuse_credentials(config)?;
    let metadata = get(calls, Boundary::Metadata, "/metadata").await?;
    let contract = read_contract(&metadata)?;
    let program = get(calls, Boundary::Program, &contract.routes.program).await?;
    let checked = read_program(&program, config)?;
    let task_info = task_info(calls).await?;
    let (dataset, plan) = row_plan(config, &contract, calls).await?;
    let train = fetch(&contract, &plan, &plan.train, calls).await?;
    let heldout = fetch(&contract, &plan, &plan.heldout, calls).await?;
    let mapping = plan.mapping;
    Parts { contract, metadata, program, checked, task_info, dataset, train, heldout, mapping }.join(config)
}

/// What a container tells, each part checked by itself.
pub(super) struct Parts {
    pub(super) contract: Contract,
    pub(super) metadata: Value,
    pub(super) program: Value,
    pub(super) checked: Checked,
    pub(super) task_info: Result<Value, String>,
    pub(super) dataset: Value,
    pub(super) train: Vec<(RowId, TaskRow)>,
    pub(super) heldout: Vec<(RowId, TaskRow)>,
    pub(super) mapping: Option<RowsMapped>,
}

impl Parts {
    /// The whole, if no row is both a train row and a held-out row.
    pub(super) fn join(self, config: &Config) -> Result<Task, OptimizerError> {
        let known = |rows: &[(RowId, TaskRow)]| -> Vec<Row> {
            let path = &config.gepa.batch_sampler.field;
            rows.iter().map(|(id, row)| search_row(id, row, path)).collect()
        };
        let pools = pools(config);
        let in_train = |places: &[usize]| places.iter().map(|place| TrainRow(*place as u32)).collect();
        let inputs = Inputs {
            program: self.checked.program,
            train: known(&self.train),
            heldout: known(&self.heldout),
            pareto_pool: in_train(&pools.pareto),
            minibatch_pool: in_train(&pools.minibatch),
            reflection_pool: in_train(&pools.reflection),
            heldout_pool: pools.heldout.iter().map(|place| HeldoutRow(*place as u32)).collect(),
        };
        Ok(Task {
            contract: self.contract,
            metadata: self.metadata,
            program: self.program,
            program_digest: self.checked.digest,
            family: self.checked.family,
            task_info: self.task_info,
            dataset: self.dataset,
            inputs,
            rows: join_splits(self.train, self.heldout)?,
            mapping: self.mapping,
        })
    }
}

/// The policy is sent to the container with every rollout.
pub(super) fn refuse_credentials(config: &Config) -> Result<(), OptimizerError> {
    let Some(place) = credential_setting("policy.config", &json!(config.policy.config)) else { return Ok(()) };
    let message = format!("`{place}` has the name of a credential, and the policy is sent to the container");
    Err(OptimizerError::new(ErrorCode::Container, message)
        .with_hint("Keys stay in the container's environment; policy.api_key_env names their variable."))
}

pub(super) async fn get(calls: &dyn SetupCalls, boundary: Boundary, route: &str) -> Result<Value, OptimizerError> {
    calls.call(SetupCall { boundary, method: Method::GET, route, body: None }).await
}

/// What the container says about its task, or why it says nothing.
pub(super) async fn task_info(calls: &dyn SetupCalls) -> Result<Result<Value, String>, OptimizerError> {
    match get(calls, Boundary::TaskInfo, "/task_info").await {
        Ok(info) => Ok(Ok(info)),
        Err(error) if is_missing(error.code) => Ok(Err(scrub(&error.message))),
        Err(error) => Err(error),
    }
}

/// By which names rows are asked for, and the document of the container that tells it.
pub(super) async fn row_plan(
    config: &Config,
    contract: &Contract,
    calls: &dyn SetupCalls,
) -> Result<(Value, Plan), OptimizerError> {
    let info_route = contract.routes.taskset.as_ref().or(contract.routes.dataset.as_ref()).map(|routes| &routes.0);
    let dataset = match info_route {
        Some(route) => get(calls, Boundary::Dataset, route).await?,
        None => Value::Null,
    };
    let plan = plan(config, contract.dialect, &dataset)?;
    Ok((dataset, plan))
}

/// The rows of one split.
pub(super) async fn fetch(
    contract: &Contract,
    plan: &Plan,
    wanted: &Wanted,
    calls: &dyn SetupCalls,
) -> Result<Vec<(RowId, TaskRow)>, OptimizerError> {
    let route = rows_route(&contract.routes, wanted)?;
    let body = rows_request(wanted, &plan.filters);
    let call = SetupCall { boundary: Boundary::DatasetRows, method: Method::POST, route, body: Some(&body) };
    read_rows(route, wanted, calls.call(call).await?)
}

/// The route that serves rows by this kind of name.
fn rows_route<'a>(routes: &'a Routes, wanted: &Wanted) -> Result<&'a str, OptimizerError> {
    let pair = match wanted.names {
        Names::Seeds(_) => &routes.dataset,
        Names::Ids(_) => &routes.taskset,
    };
    pair.as_ref().map(|(_, rows)| rows.as_str()).ok_or_else(|| {
        OptimizerError::new(ErrorCode::Container, "the container advertises no route for rows of this kind")
    })
}

/// Whether a call failed because the container has no answer to it. The task info is optional; a broken disk is not.
fn is_missing(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::Container | ErrorCode::Http | ErrorCode::Json | ErrorCode::CacheMiss)
}

/// What a problem is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A setting that may not be sent.
    Settings,
    /// Whether anybody answers.
    Reach,
    Contract,
    Program,
    Rows,
    TrainRows,
    HeldoutRows,
}

/// What a container has told, as far as it is right.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) contract: Option<Contract>,
    pub(crate) task: Option<Task>,
    pub(crate) problems: Vec<(Part, OptimizerError)>,
}

impl Survey {
    fn kept<T>(&mut self, part: Part, result: Result<T, OptimizerError>) -> Option<T> {
        result.map_err(|error| self.problems.push((part, error))).ok()
    }
}

/// What is needed to ask for rows.
struct Rows<'a> {
    contract: &'a Contract,
    plan: &'a Plan,
    calls: &'a dyn SetupCalls,
    patience: Duration,
}

impl Rows<'_> {
    /// The rows of a split; an error names those that the container does not have, where they can be found.
    async fn of(&self, wanted: &Wanted) -> Result<Vec<(RowId, TaskRow)>, OptimizerError> {
        let error = match fetch(self.contract, self.plan, wanted, self.calls).await {
            Ok(rows) => return Ok(rows),
            Err(error) if error.code == ErrorCode::Container && wanted.len() > 1 => error,
            Err(error) => return Err(error),
        };
        // A container that hangs is not asked for long.
        let missing = timeout(self.patience, self.missing(wanted)).await.unwrap_or_default();
        if missing.is_empty() {
            return Err(error);
        }
        let message = format!("{}; the container does not give {}", error.message, missing.join(", "));
        Err(OptimizerError { message, ..error })
    }

    /// The first rows that are refused alone while others are given, found by halving.
    async fn missing(&self, wanted: &Wanted) -> Vec<String> {
        const CALLS: usize = 48;
        const NAMED: usize = 5;
        let mut open: Vec<Range<usize>> = std::iter::once(0..wanted.len()).collect();
        let mut missing = Vec::new();
        let (mut calls, mut given) = (0, 0);
        while let Some(places) = open.pop() {
            let middle = places.start + places.len() / 2;
            for half in [middle..places.end, places.start..middle] {
                if calls == CALLS || missing.len() == NAMED {
                    break;
                }
                calls += 1;
                match fetch(self.contract, self.plan, &wanted.part(half.clone()), self.calls).await {
                    Ok(_) => given += 1,
                    // The error of the whole split is the one that is told.
                    Err(_) if half.len() == 1 => missing.push(half.start),
                    Err(_) => open.push(half),
                }
            }
        }
        // Where nothing is given, it is not the rows that are wrong.
        missing.sort_unstable();
        let named = missing.into_iter().filter(|_| given > 0);
        named.map(|place| asked_as(wanted, place)).collect()
    }
}

/// Asks the same as `load`, to the end.
pub(crate) async fn survey(config: &Config, calls: &dyn SetupCalls) -> Survey {
    let mut survey = Survey::default();
    if survey.kept(Part::Settings, refuse_credentials(config)).is_none() {
        return survey;
    }
    let Some(metadata) = survey.kept(Part::Reach, get(calls, Boundary::Metadata, "/metadata").await) else {
        return survey;
    };
    let Some(contract) = survey.kept(Part::Contract, read_contract(&metadata)) else { return survey };
    survey.contract = Some(contract.clone());
    let program = survey.kept(Part::Program, get(calls, Boundary::Program, &contract.routes.program).await);
    let checked = program.as_ref().and_then(|program| {
        survey.problems.extend(program_problems(program, config).into_iter().map(|error| (Part::Program, error)));
        // Its problems are among those above.
        read_program(program, config).ok()
    });
    let task_info = survey.kept(Part::Reach, task_info(calls).await);
    let Some((dataset, plan)) = survey.kept(Part::Rows, row_plan(config, &contract, calls).await) else {
        return survey;
    };
    let patience = Duration::from_secs(config.container.request_timeout_seconds);
    let rows = Rows { contract: &contract, plan: &plan, calls, patience };
    let train = survey.kept(Part::TrainRows, rows.of(&plan.train).await);
    let heldout = survey.kept(Part::HeldoutRows, rows.of(&plan.heldout).await);
    if let (Some(program), Some(checked), Some(task_info), Some(train), Some(heldout)) =
        (program, checked, task_info, train, heldout)
    {
        let mapping = plan.mapping;
        let parts = Parts { contract, metadata, program, checked, task_info, dataset, train, heldout, mapping };
        survey.task = survey.kept(Part::HeldoutRows, parts.join(config));
    }
    survey
}

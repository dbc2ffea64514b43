//! Loads the task from a container: contract, program, task info and rows, each checked before the search begins.

use std::future::Future;
use std::pin::Pin;

use reqwest::Method;
use serde_json::{Value, json};

use super::client::Client;
use super::contract::read_contract;
use super::program::read_program;
use super::rows::{join_splits, read_rows, rows_request, search_row};
use super::screen::credential_setting;
use super::seeds::{Names, Plan, Wanted, plan};
use super::task::{Routes, Task, TaskRow};
use crate::config::{Config, pools, scrub};
use crate::model::cache_key::Boundary;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::ids::{HeldoutRow, RowId, TrainRow};
use crate::model::program::{Inputs, Row};

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

/// Loads and checks everything that the search is given. Nothing is sent when the config holds a credential.
pub async fn load(config: &Config, calls: &dyn SetupCalls) -> Result<Task, OptimizerError> {
    if let Some(place) = credential_setting("policy.config", &json!(config.policy.config)) {
        let message = format!("`{place}` has the name of a credential, and the policy is sent to the container");
        return Err(OptimizerError::new(ErrorCode::Container, message)
            .with_hint("Keys stay in the container's environment; policy.api_key_env names their variable."));
    }
    let get = |boundary, route| calls.call(SetupCall { boundary, method: Method::GET, route, body: None });
    let metadata = get(Boundary::Metadata, "/metadata").await?;
    let contract = read_contract(&metadata)?;
    let program = get(Boundary::Program, &contract.routes.program).await?;
    let checked = read_program(&program, config)?;
    let task_info = match get(Boundary::TaskInfo, "/task_info").await {
        Ok(info) => Ok(info),
        Err(error) if is_missing(error.code) => Err(scrub(&error.message)),
        Err(error) => return Err(error),
    };
    let info_route = contract.routes.taskset.as_ref().or(contract.routes.dataset.as_ref()).map(|routes| &routes.0);
    let dataset = match info_route {
        Some(route) => get(Boundary::Dataset, route).await?,
        None => Value::Null,
    };
    let Plan { train, heldout, filters, mapping } = plan(config, contract.dialect, &dataset)?;
    let fetch = async |wanted: &Wanted| {
        let route = rows_route(&contract.routes, wanted)?;
        let body = rows_request(wanted, &filters);
        let call = SetupCall { boundary: Boundary::DatasetRows, method: Method::POST, route, body: Some(&body) };
        read_rows(route, wanted, calls.call(call).await?)
    };
    let train = fetch(&train).await?;
    let heldout = fetch(&heldout).await?;
    let known = |rows: &[(RowId, TaskRow)]| -> Vec<Row> {
        let path = &config.gepa.batch_sampler.field;
        rows.iter().map(|(id, row)| search_row(id, row, path)).collect()
    };
    let pools = pools(config);
    let in_train = |places: &[usize]| places.iter().map(|place| TrainRow(*place as u32)).collect();
    let inputs = Inputs {
        program: checked.program,
        train: known(&train),
        heldout: known(&heldout),
        pareto_pool: in_train(&pools.pareto),
        minibatch_pool: in_train(&pools.minibatch),
        reflection_pool: in_train(&pools.reflection),
        heldout_pool: pools.heldout.iter().map(|place| HeldoutRow(*place as u32)).collect(),
    };
    Ok(Task {
        contract,
        metadata,
        program,
        program_digest: checked.digest,
        family: checked.family,
        task_info,
        dataset,
        inputs,
        rows: join_splits(train, heldout)?,
        mapping,
    })
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

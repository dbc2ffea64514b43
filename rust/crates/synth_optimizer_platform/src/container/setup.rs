//! Loads the task from a container: contract, program, task info and rows, each checked before the search begins. A survey
//! goes on where a part is wrong, so that every problem is found.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::broken;
use super::client::Client;
use super::contract::{Contract, Task, TaskRow, read_contract};
use super::program::read_program;
use super::rows::{Wanted, join_splits, plan, read_rows, search_row};
use super::screen::credential_setting;
use synth_optimizer_core::config::{Config, pools};
use synth_optimizer_core::model::cache_key::Boundary;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::ids::{HeldoutRow, RowId, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Program, Row};
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
    let mut survey = Survey { stops: true, ..Survey::default() };
    survey.ask(config, calls).await;
    match (survey.problems.into_iter().next(), survey.task) {
        (None, Some(task)) => Ok(task),
        (Some((_, error)), _) => Err(error),
        (None, None) => Err(OptimizerError::new(ErrorCode::Invariant, "the task was not loaded, and nothing is wrong")),
    }
}

/// Asks the same, to the end.
pub(crate) async fn survey(config: &Config, calls: &dyn SetupCalls) -> Survey {
    let mut survey = Survey::default();
    survey.ask(config, calls).await;
    survey
}

/// The policy is sent to the container with every rollout.
fn refuse_credentials(config: &Config) -> Result<(), OptimizerError> {
    let Some(place) = credential_setting("policy.config", &json!(config.policy.config)) else { return Ok(()) };
    let message = format!("`{place}` has the name of a credential, and the policy is sent to the container");
    Err(broken(message, "Keys stay in the container's environment; policy.api_key_env names their variable."))
}

async fn get(calls: &dyn SetupCalls, boundary: Boundary, route: &str) -> Result<Value, OptimizerError> {
    calls.call(SetupCall { boundary, method: Method::GET, route, body: None }).await
}

/// What the container says about its task, or why it says nothing. It may have no answer; a broken disk is an error.
async fn task_info(calls: &dyn SetupCalls) -> Result<Result<Value, String>, OptimizerError> {
    use ErrorCode::{CacheMiss, Container, Http, Json};
    match get(calls, Boundary::TaskInfo, "/task_info").await {
        Ok(info) => Ok(Ok(info)),
        Err(error) if matches!(error.code, Container | Http | Json | CacheMiss) => Ok(Err(scrub(&error.message))),
        Err(error) => Err(error),
    }
}

/// Rows as the container gave them.
type Rows = Vec<(RowId, TaskRow)>;

/// The rows of one split.
async fn fetch(wanted: &Wanted, calls: &dyn SetupCalls) -> Result<Rows, OptimizerError> {
    let (route, body) = (wanted.route.as_str(), wanted.request());
    let call = SetupCall { boundary: Boundary::DatasetRows, method: Method::POST, route, body: Some(&body) };
    read_rows(wanted, calls.call(call).await?)
}

/// The same; an error names the rows that the container does not have, where they can be found in time.
async fn fetch_or_name(wanted: &Wanted, calls: &dyn SetupCalls, patience: Duration) -> Result<Rows, OptimizerError> {
    let error = match fetch(wanted, calls).await {
        Err(error) if error.code == ErrorCode::Container && wanted.names.len() > 1 => error,
        fetched => return fetched,
    };
    // A container that hangs is not asked for long.
    let missing = timeout(patience, missing(wanted, calls)).await.unwrap_or_default();
    if missing.is_empty() {
        return Err(error);
    }
    let message = format!("{}; the container does not give {}", error.message, missing.join(", "));
    Err(OptimizerError { message, ..error })
}

/// The first rows that are refused alone while others are given, found by halving.
async fn missing(wanted: &Wanted, calls: &dyn SetupCalls) -> Vec<String> {
    const CALLS: usize = 48;
    const NAMED: usize = 5;
    let mut open: Vec<Range<usize>> = std::iter::once(0..wanted.names.len()).collect();
    let mut missing = Vec::new();
    let (mut asked, mut given) = (0, 0);
    while let Some(places) = open.pop() {
        let middle = places.start + places.len() / 2;
        for half in [middle..places.end, places.start..middle] {
            if asked == CALLS || missing.len() == NAMED {
                break;
            }
            asked += 1;
            match fetch(&wanted.part(half.clone()), calls).await {
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
    named.map(|place| wanted.asked_as(place)).collect()
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
    /// Whether nothing more is asked after the first problem.
    stops: bool,
}

impl Survey {
    /// What a part is, if it is right. Where the survey stops at what is wrong, there is no answer at all.
    fn kept<T>(&mut self, part: Part, result: Result<T, OptimizerError>) -> Option<Option<T>> {
        let told = result.map_err(|error| self.problems.push((part, error))).ok();
        (told.is_some() || !self.stops).then_some(told)
    }

    /// Asks for one part after the other, as long as the next one makes sense.
    async fn ask(&mut self, config: &Config, calls: &dyn SetupCalls) -> Option<()> {
        self.kept(Part::Settings, refuse_credentials(config))??;
        let metadata = self.kept(Part::Reach, get(calls, Boundary::Metadata, "/metadata").await)??;
        let contract = self.kept(Part::Contract, read_contract(&metadata))??;
        self.contract = Some(contract.clone());
        let program = self.kept(Part::Program, get(calls, Boundary::Program, &contract.routes.program).await)?;
        let checked = match program.as_ref().map(|program| read_program(program, config)).transpose() {
            Ok(checked) => checked,
            Err(errors) => {
                self.problems.extend(errors.into_iter().map(|error| (Part::Program, error)));
                if self.stops {
                    return None;
                }
                None
            }
        };
        let task_info = self.kept(Part::Reach, task_info(calls).await)?;
        let dataset = match contract.routes.taskset.as_ref().or(contract.routes.dataset.as_ref()) {
            Some((route, _)) => self.kept(Part::Rows, get(calls, Boundary::Dataset, route).await)??,
            None => Value::Null,
        };
        let plan = self.kept(Part::Rows, plan(config, &contract.routes, &dataset))??;
        let patience = Duration::from_secs(config.container.request_timeout_seconds);
        let stops = self.stops;
        let rows = async |wanted| match stops {
            true => fetch(wanted, calls).await,
            false => fetch_or_name(wanted, calls, patience).await,
        };
        let train = self.kept(Part::TrainRows, rows(&plan.train).await)?;
        let heldout = self.kept(Part::HeldoutRows, rows(&plan.heldout).await)?;
        let (program, checked, task_info) = (program?, checked?, task_info?);
        let (train, heldout) = (train?, heldout?);
        let inputs = inputs(config, checked.program, &train, &heldout);
        let rows = self.kept(Part::HeldoutRows, join_splits(train, heldout))??;
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
        });
        Some(())
    }
}

/// What the search is given.
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

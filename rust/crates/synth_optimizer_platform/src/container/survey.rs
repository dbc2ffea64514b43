//! Asks a container for its task part by part, and goes on where a part is wrong, so that every problem is found.

use std::ops::Range;
use std::time::Duration;

use tokio::time::timeout;

use super::contract::read_contract;
use super::program::{program_problems, read_program};
use super::rows::asked_as;
use super::seeds::{Plan, Wanted};
use super::setup::{Parts, SetupCalls, fetch, get, refuse_credentials, row_plan, task_info};
use super::task::{Contract, Task, TaskRow};
use crate::config::Config;
use crate::model::cache_key::Boundary;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::ids::RowId;

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

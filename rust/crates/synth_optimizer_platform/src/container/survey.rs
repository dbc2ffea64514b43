//! Asks a container for its task part by part, and goes on where a part is wrong, so that every problem is found.

use super::contract::read_contract;
use super::program::{program_problems, read_program};
use super::seeds::{Plan, Wanted};
use super::setup::{Parts, SetupCalls, fetch, get, refuse_credentials, row_plan, task_info};
use super::task::{Contract, Task, TaskRow};
use crate::config::Config;
use crate::model::cache_key::Boundary;
use crate::model::error::OptimizerError;
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

    async fn split(
        &mut self,
        part: Part,
        contract: &Contract,
        plan: &Plan,
        wanted: &Wanted,
        calls: &dyn SetupCalls,
    ) -> Option<Vec<(RowId, TaskRow)>> {
        let rows = fetch(contract, plan, wanted, calls).await;
        self.kept(part, rows)
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
    let train = survey.split(Part::TrainRows, &contract, &plan, &plan.train, calls).await;
    let heldout = survey.split(Part::HeldoutRows, &contract, &plan, &plan.heldout, calls).await;
    if let (Some(program), Some(checked), Some(task_info), Some(train), Some(heldout)) =
        (program, checked, task_info, train, heldout)
    {
        let mapping = plan.mapping;
        let parts = Parts { contract, metadata, program, checked, task_info, dataset, train, heldout, mapping };
        survey.task = survey.kept(Part::HeldoutRows, parts.join(config));
    }
    survey
}

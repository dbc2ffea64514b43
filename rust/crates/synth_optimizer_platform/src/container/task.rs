//! What a container has told about its task, checked and ready for the search.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::model::event_fields::RowsMapped;
use crate::model::ids::RowId;
use crate::model::program::Inputs;

/// How the container names its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Seeds, `dataset_row`.
    Dataset,
    /// Task ids, `task`.
    Taskset,
    /// Both; rows are fetched by task id and sent under both keys.
    Both,
}

impl Dialect {
    /// The dialects by name.
    pub fn words(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Dataset => &["dataset"],
            Self::Taskset => &["taskset"],
            Self::Both => &["dataset", "taskset"],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// The advertised routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    pub program: String,
    pub rollout: String,
    /// `dataset_route` and `dataset_rows_route`.
    pub dataset: Option<(String, String)>,
    /// `taskset_route` and `taskset_tasks_route`.
    pub taskset: Option<(String, String)>,
}

impl Routes {
    /// The routes by the keys under which they are advertised.
    pub fn named(&self) -> BTreeMap<String, String> {
        let one = |key: &str, route: &String| (key.to_owned(), route.clone());
        let mut named = BTreeMap::from([one("program_route", &self.program), one("rollout_route", &self.rollout)]);
        if let Some((dataset, rows)) = &self.dataset {
            named.extend([one("dataset_route", dataset), one("dataset_rows_route", rows)]);
        }
        if let Some((taskset, tasks)) = &self.taskset {
            named.extend([one("taskset_route", taskset), one("taskset_tasks_route", tasks)]);
        }
        named
    }
}

/// The container's contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    pub version: String,
    pub dialect: Dialect,
    pub routes: Routes,
    /// `capabilities.rollout_modes`; empty when the container does not say.
    pub rollout_modes: Vec<String>,
}

/// One row as the container gave it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    pub value: Value,
    /// Digest of `value`.
    pub digest: String,
    pub seed: Option<i64>,
}

/// Everything that was loaded before the search begins.
#[derive(Debug, Clone)]
pub struct Task {
    pub contract: Contract,
    pub metadata: Value,
    pub program: Value,
    /// Digest of the program's modules, for cache keys.
    pub program_digest: String,
    /// The task family, `task_id` at the top of a rollout request.
    pub family: String,
    /// What the container says about its task, or why it says nothing.
    pub task_info: Result<Value, String>,
    /// The reply of the dataset or taskset route.
    pub dataset: Value,
    pub inputs: Inputs,
    pub rows: BTreeMap<RowId, Arc<TaskRow>>,
    /// Set when seeds of the config became task ids.
    pub mapping: Option<RowsMapped>,
}

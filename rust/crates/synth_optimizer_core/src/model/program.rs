//! The inputs of a run: the program's mutable texts and the rows it is measured on.

use serde::{Deserialize, Serialize};

use super::canonical::canonical_digest;
use super::ids::{HeldoutRow, Payload, RowId, TrainRow};

/// One mutable text of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// The candidate field that holds the text.
    pub field: String,
    /// Placeholders that every version of the text must contain, such as `{question}`.
    pub template_variables: Vec<String>,
}

/// The part of the container's program that the search uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub program_id: String,
    /// Every mutable field that the container declares.
    pub modules: Vec<Module>,
    /// The fields that this run may change, in round-robin order.
    pub targets: Vec<String>,
    /// The texts of the initial candidate.
    pub seed: Payload,
}

/// The part of a row that the search uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub id: RowId,
    /// The value that stratified sampling balances.
    pub stratum: Option<String>,
    /// Every text of the row, for the leakage scan.
    pub texts: Vec<String>,
}

/// Everything that is loaded from the container before the search starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    pub program: Program,
    pub train: Vec<Row>,
    pub heldout: Vec<Row>,
    /// Rows of the full evaluation.
    pub pareto_pool: Vec<TrainRow>,
    /// Rows from which minibatches are drawn.
    pub minibatch_pool: Vec<TrainRow>,
    /// Rows whose traces the proposer may see.
    pub reflection_pool: Vec<TrainRow>,
    /// Rows of the held-out evaluation.
    pub heldout_pool: Vec<HeldoutRow>,
}

impl Inputs {
    pub fn train_id(&self, row: TrainRow) -> &RowId {
        &self.train[row.0 as usize].id
    }

    pub fn heldout_id(&self, row: HeldoutRow) -> &RowId {
        &self.heldout[row.0 as usize].id
    }

    /// Returns a digest of the program and the initial texts.
    pub fn program_digest(&self) -> String {
        canonical_digest(&self.program)
    }

    /// Returns a digest of all rows and their order.
    pub fn rows_digest(&self) -> String {
        canonical_digest(&(&self.train, &self.heldout))
    }
}

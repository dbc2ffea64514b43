//! What a run is about: the program's mutable texts and the rows it is measured on.

use serde::{Deserialize, Serialize};

use super::canonical::canonical_digest;
use super::ids::{HeldoutRow, Payload, RowId, TrainRow};

/// One mutable text of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// The candidate field that holds the text.
    pub field: String,
    /// Placeholders that every version of the text must keep, as they stand in it (`{question}`).
    pub template_variables: Vec<String>,
}

/// The program of the container, as far as the search touches it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub program_id: String,
    /// Every mutable field that the container declares.
    pub modules: Vec<Module>,
    /// The fields that this run may change, in round-robin order.
    pub targets: Vec<String>,
    /// The texts to start from.
    pub seed: Payload,
}

/// A row, as far as the search needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub id: RowId,
    /// The value that stratified sampling balances.
    pub stratum: Option<String>,
    /// Every text of the row, for the leakage scan.
    pub texts: Vec<String>,
}

/// Everything that was loaded from the container before the search begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    pub program: Program,
    pub train: Vec<Row>,
    pub heldout: Vec<Row>,
    /// Rows of the full evaluation.
    pub pareto_pool: Vec<TrainRow>,
    /// Rows that minibatches are drawn from.
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

    /// Changes when the program or its seed texts change.
    pub fn program_digest(&self) -> String {
        canonical_digest(&self.program)
    }

    /// Changes when any row or its order changes.
    pub fn rows_digest(&self) -> String {
        canonical_digest(&(&self.train, &self.heldout))
    }
}

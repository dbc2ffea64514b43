//! How a run ended, for whoever started it.

use camino::Utf8PathBuf;

use crate::model::error::OptimizerError;
use crate::workspace::Totals;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunStatus {
    Completed,
    Failed,
    Cancelled,
    /// It can be resumed.
    Interrupted,
}

impl RunStatus {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A run that has ended or was let go.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub run_id: String,
    pub status: RunStatus,
    pub run_dir: Utf8PathBuf,
    pub totals: Totals,
    /// What a failed run failed of, or a cancelled one was cancelled for.
    pub error: Option<OptimizerError>,
    /// Transactions of the workspace in this process.
    pub transactions: u64,
}

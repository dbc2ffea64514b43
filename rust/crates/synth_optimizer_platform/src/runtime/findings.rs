//! The report of a preflight check: blockers, warnings and facts.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use synth_optimizer_core::config::{Config, ConfigFinding, Severity};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::ProposerReady;
use synth_optimizer_core::string_enum;

string_enum! {
    /// The part of the preflight check that a finding belongs to.
    CheckStage {
        Config = "config",
        /// The output directory and the run in it.
        Output = "output",
        Cache = "cache",
        /// Whether the container can be reached and speaks the contract.
        Container = "container",
        /// Program, fields, initial candidate and rows.
        Task = "task",
        Proposer = "proposer",
        Budget = "budget",
    }
}

/// The result of a preflight check. `ok` means that there are no blockers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct CheckReport {
    pub ok: bool,
    /// Every problem that prevents the run from starting.
    pub blockers: Vec<Finding>,
    /// Behaviour of the run that the user may not expect.
    pub warnings: Vec<Finding>,
    pub facts: Facts,
    /// The planned use of the budget. The caller knows the algorithm and fills it in.
    pub plan: Option<Value>,
    /// The configuration with the rows and sizes that the container determines, if it was asked.
    #[serde(skip)]
    #[schemars(skip)]
    pub resolved: Option<Box<Config>>,
}

/// One preflight finding.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Finding {
    pub stage: CheckStage,
    /// The error code, or the code of the config problem.
    pub code: String,
    /// The dotted path of the config field that the finding concerns, if known.
    pub field: Option<String>,
    /// The position in the config file, if the finding concerns one.
    pub location: Option<String>,
    pub message: String,
    pub hint: String,
    /// Whether the same check may pass later without a change of the config.
    pub retryable: bool,
}

/// Facts that the check learned. Null if it did not get that far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Facts {
    pub container: Option<ContainerFacts>,
    pub proposer: Option<ProposerReady>,
    pub rows: Option<RowFacts>,
}

/// The container's description of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContainerFacts {
    pub url: String,
    pub contract_version: String,
    pub dialects: Vec<String>,
    /// Empty if the container does not declare any.
    pub rollout_modes: Vec<String>,
    /// Null if the program is not valid.
    pub program_id: Option<String>,
    /// Every mutable field of the program.
    pub fields: Vec<String>,
}

/// The number of rows that the container returned, and of those in each pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RowFacts {
    pub train: usize,
    pub heldout: usize,
    pub pareto_pool: usize,
    pub minibatch_pool: usize,
    pub reflection_pool: usize,
    pub heldout_pool: usize,
}

impl Finding {
    /// Creates a finding from an error. The error's detail becomes part of the message, because a check leaves no log.
    pub(super) fn of(stage: CheckStage, error: &OptimizerError) -> Self {
        // Errors of a proposer often name the field only in their hint.
        let hinted = || if stage == CheckStage::Proposer { named_field(&error.hint) } else { None };
        let field = named_field(&error.message).or_else(hinted);
        let message = match &error.detail {
            Some(detail) => format!("{}: {detail}", error.message),
            None => error.message.clone(),
        };
        Self { field, ..Self::new(stage, error.code.as_str(), message, &error.hint) }
    }

    pub fn new(stage: CheckStage, code: &str, message: String, hint: &str) -> Self {
        let (code, hint) = (code.to_owned(), hint.to_owned());
        Self { stage, code, field: None, location: None, message, hint, retryable: false }
    }

    fn of_config(stage: CheckStage, diagnostic: &ConfigFinding) -> Self {
        let ConfigFinding { code, field, source, line, column, message, hint, .. } = diagnostic;
        let location = match (line, column) {
            (Some(line), Some(column)) => Some(format!("{source}:{line}:{column}")),
            _ => (!source.is_empty()).then(|| source.clone()),
        };
        let field = (!field.is_empty()).then(|| field.clone());
        Self { field, location, ..Self::new(stage, code, message.clone(), hint) }
    }

    /// Returns the finding with this field.
    pub fn at(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }
}

impl CheckReport {
    /// Creates the report for a configuration that cannot be read.
    pub fn of_config(found: &[ConfigFinding]) -> Self {
        let mut report = Self::default();
        report.config(found);
        report.ok = report.blockers.is_empty();
        report
    }

    /// Returns the value, or records the error as a blocker for this field.
    pub(super) fn require<T>(
        &mut self,
        stage: CheckStage,
        field: &str,
        result: Result<T, OptimizerError>,
    ) -> Option<T> {
        result.map_err(|error| self.blockers.push(Finding::of(stage, &error).at(field))).ok()
    }

    /// Adds findings about the config.
    pub(super) fn config(&mut self, found: &[ConfigFinding]) {
        for diagnostic in found {
            let stage = if diagnostic.code == BUDGET_TOO_SMALL { CheckStage::Budget } else { CheckStage::Config };
            self.take(Finding::of_config(stage, diagnostic), diagnostic.severity);
        }
    }

    /// Adds findings about the limits that became known after the container was asked.
    pub fn add_budget(&mut self, found: &[ConfigFinding]) {
        self.budget(found);
        self.ok = self.blockers.is_empty();
    }

    /// Adds findings about the limits, except those that the config check already reported.
    pub(super) fn budget(&mut self, found: &[ConfigFinding]) {
        for diagnostic in found {
            let finding = Finding::of_config(CheckStage::Budget, diagnostic);
            let is_told = |known: &Finding| known.code == finding.code && known.field == finding.field;
            if !self.blockers.iter().any(is_told) {
                self.take(finding, diagnostic.severity);
            }
        }
    }

    fn take(&mut self, finding: Finding, severity: Severity) {
        match severity {
            Severity::Error => self.blockers.push(finding),
            Severity::Warning => self.warnings.push(finding),
        }
    }
}

/// The code of the config finding that concerns the limits.
const BUDGET_TOO_SMALL: &str = "budget_too_small";

/// Returns the first config field that a text names by its dotted path.
fn named_field(text: &str) -> Option<String> {
    const SECTIONS: [&str; 10] =
        ["run", "container", "dataset", "taskset", "candidate", "policy", "proposer", "gepa", "cache", "disk_budget"];
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '[' | ']');
    let words = text.split(|letter: char| !is_part(letter)).map(|word| word.trim_end_matches('.'));
    let is_field = |word: &&str| {
        word.split_once('.').is_some_and(|(section, rest)| {
            SECTIONS.contains(&section) && rest.starts_with(|letter: char| letter.is_ascii_lowercase())
        })
    };
    // Names of run files look like fields.
    let is_file = |word: &&str| [".log", ".json", ".sqlite", ".lock"].iter().any(|ending| word.ends_with(ending));
    words.filter(is_field).find(|word| !is_file(word)).map(str::to_owned)
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;

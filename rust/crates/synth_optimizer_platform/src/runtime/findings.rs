//! What a check before a run has found: blockers, warnings and facts.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use synth_optimizer_core::config::{Diagnostic, Severity};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event_fields::ProposerReady;
use synth_optimizer_core::words;

words! {
    /// What a finding is about.
    CheckStage {
        Config = "config",
        /// The output directory and the run in it.
        Output = "output",
        Cache = "cache",
        /// Whether the container can be reached and speaks the contract.
        Container = "container",
        /// Program, fields, seed candidate and rows.
        Task = "task",
        Proposer = "proposer",
        Budget = "budget",
    }
}

/// Everything that was found. `ok` means that no blocker was.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct CheckReport {
    pub ok: bool,
    /// What keeps the run from beginning, all of it.
    pub blockers: Vec<Finding>,
    /// What the run would do otherwise than one may expect.
    pub warnings: Vec<Finding>,
    pub facts: Facts,
    /// What the run takes; the caller knows the algorithm and fills it in.
    pub plan: Option<Value>,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Finding {
    pub stage: CheckStage,
    /// The code of an error, or of a finding about the config.
    pub code: String,
    /// The dotted path of the field to look at, where one is known.
    pub field: Option<String>,
    /// The place in the config file, where it is about one.
    pub place: Option<String>,
    pub message: String,
    pub hint: String,
    /// Whether the same check may pass later without a change of the config.
    pub retryable: bool,
}

/// What was learned on the way; null where it was not.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Facts {
    pub container: Option<ContainerFacts>,
    pub proposer: Option<ProposerReady>,
    pub rows: Option<RowFacts>,
}

/// The container as it presents itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ContainerFacts {
    pub url: String,
    pub contract_version: String,
    pub dialects: Vec<String>,
    /// Empty when the container does not say.
    pub rollout_modes: Vec<String>,
    /// Null when the program is not valid.
    pub program_id: Option<String>,
    /// Every mutable field of the program.
    pub fields: Vec<String>,
}

/// Rows that the container has given, and those of each pool.
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
    /// An error as a finding. What it says in detail is part of the message: there is no log to look into.
    pub(super) fn of(stage: CheckStage, error: &OptimizerError) -> Self {
        // What is missing for a proposer is often named only where it says how to mend it.
        let hinted = || if stage == CheckStage::Proposer { named_field(&error.hint) } else { None };
        let field = named_field(&error.message).or_else(hinted);
        let message = match &error.detail {
            Some(detail) => format!("{}: {detail}", error.message),
            None => error.message.clone(),
        };
        Self { field, ..Self::new(stage, error.code.wire(), message, &error.hint) }
    }

    pub fn new(stage: CheckStage, code: &str, message: String, hint: &str) -> Self {
        let (code, hint) = (code.to_owned(), hint.to_owned());
        Self { stage, code, field: None, place: None, message, hint, retryable: false }
    }

    fn of_config(stage: CheckStage, diagnostic: &Diagnostic) -> Self {
        let Diagnostic { code, field, source, line, column, message, hint, .. } = diagnostic;
        let place = match (line, column) {
            (Some(line), Some(column)) => Some(format!("{source}:{line}:{column}")),
            _ => (!source.is_empty()).then(|| source.clone()),
        };
        let field = (!field.is_empty()).then(|| field.clone());
        Self { field, place, ..Self::new(stage, code, message.clone(), hint) }
    }

    /// The same finding about this field.
    pub fn at(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }
}

impl CheckReport {
    /// What was found about a configuration that cannot even be read.
    pub fn of_config(found: &[Diagnostic]) -> Self {
        let mut report = Self::default();
        report.config(found);
        report.ok = report.blockers.is_empty();
        report
    }

    /// Takes over an error as a blocker about this field.
    pub(super) fn require<T>(
        &mut self,
        stage: CheckStage,
        field: &str,
        result: Result<T, OptimizerError>,
    ) -> Option<T> {
        result.map_err(|error| self.blockers.push(Finding::of(stage, &error).at(field))).ok()
    }

    /// Takes over findings about the config.
    pub(super) fn config(&mut self, found: &[Diagnostic]) {
        for diagnostic in found {
            let stage = if diagnostic.code == TOO_SMALL { CheckStage::Budget } else { CheckStage::Config };
            self.take(Finding::of_config(stage, diagnostic), diagnostic.severity);
        }
    }

    /// Takes over findings about the limits, but for those that the config has told of already.
    pub(super) fn budget(&mut self, found: &[Diagnostic]) {
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

/// The one finding of a configuration that is about its limits.
const TOO_SMALL: &str = "budget_too_small";

/// The first field that a text names: messages call fields by their dotted path.
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
    // Files of a run begin like fields.
    let is_file = |word: &&str| [".log", ".json", ".sqlite", ".lock"].iter().any(|ending| word.ends_with(ending));
    words.filter(is_field).find(|word| !is_file(word)).map(str::to_owned)
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;

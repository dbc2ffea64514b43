//! Overrides of the file: environment variables and `--set`.

use std::collections::BTreeMap;

use serde_json::Value;
use toml::de::DeValue;

use super::report::{Code, EntryPart, Report};
use super::shape::{Shape, root};
use super::tree::{Node, SourceLocation, Tree};
use super::values::inline;
use crate::model::error::{ErrorCode, OptimizerError};

/// An environment variable that sets a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvironmentOverride {
    pub variable: &'static str,
    pub field: &'static str,
    pub doc: &'static str,
}

const fn row(variable: &'static str, field: &'static str, doc: &'static str) -> EnvironmentOverride {
    EnvironmentOverride { variable, field, doc }
}

/// Every environment variable that sets a field. Blank variables are ignored.
pub const OVERRIDES: &[EnvironmentOverride] = &[
    row("SYNTH_OPTIMIZERS_RUN_ID", "run.run_id", "Name of the run and of its directory."),
    row("SYNTH_OPTIMIZERS_OUTPUT_DIR", "run.output_dir", "Root directory of all runs. Relative to the config file."),
    row("SYNTH_OPTIMIZERS_CACHE_MODE", "cache.mode", "How the request cache is used."),
    row("SYNTH_OPTIMIZERS_CACHE_PATH", "cache.path", "Cache file. Relative to the config file."),
    row("SYNTH_OPTIMIZERS_CACHE_NAMESPACE", "cache.namespace", "Namespace within the cache file."),
    row("SYNTH_OPTIMIZERS_PROPOSER_BACKEND", "proposer.backend", "The backend that writes the proposals."),
];

/// Variables of older versions, with the field that replaces each; empty if there is none.
const RETIRED_VARIABLES: &[(&str, &str)] = &[
    ("GEPA_PLATFORM_RUN_ID", "run.run_id"),
    ("GEPA_PLATFORM_OUTPUT_DIR", "run.output_dir"),
    ("GEPA_PLATFORM_CACHE_MODE", "cache.mode"),
    ("GEPA_PLATFORM_CACHE_PATH", "cache.path"),
    ("GEPA_PLATFORM_CACHE_NAMESPACE", "cache.namespace"),
    ("GEPA_PLATFORM_PROPOSER_BACKEND", "proposer.backend"),
    ("SYNTH_OPTIMIZERS_ROLLOUT_SUBMISSION_MODE", "gepa.rollout_submission_mode"),
    ("SYNTH_OPTIMIZERS_ROLLOUT_POLL_INTERVAL_MS", "gepa.rollout_poll_interval_ms"),
    ("SYNTH_OPTIMIZERS_ROLLOUT_ASYNC_TIMEOUT_SECONDS", "gepa.rollout_async_timeout_seconds"),
    ("SYNTH_OPTIMIZERS_GEPA_PIPELINE_MODE", "gepa.pipeline.mode"),
    ("SYNTH_OPTIMIZERS_GEPA_STALENESS_POLICY", "gepa.pipeline.staleness_policy"),
    ("SYNTH_OPTIMIZERS_GEPA_MAX_IN_FLIGHT_CANDIDATES", "gepa.pipeline.max_in_flight_candidates"),
    ("SYNTH_OPTIMIZERS_GEPA_WORKERS_PROPOSE", "gepa.pipeline.workers.propose"),
    ("SYNTH_OPTIMIZERS_GEPA_WORKERS_ROLLOUT", "gepa.pipeline.workers.rollout"),
    ("SYNTH_OPTIMIZERS_GEPA_WORKERS_EVALUATE", "gepa.pipeline.workers.evaluate"),
    ("SYNTH_OPTIMIZERS_GEPA_ROLLOUT_CHUNK_SIZE", "gepa.rollout_chunk_size"),
    ("SYNTH_OPTIMIZERS_DISK_BUDGET_ENABLED", "disk_budget.enabled"),
    ("SYNTH_OPTIMIZERS_DISK_BUDGET_SOFT_LIMIT_GB", "disk_budget.soft_limit_gb"),
    ("SYNTH_OPTIMIZERS_DISK_BUDGET_HARD_LIMIT_GB", "disk_budget.hard_limit_gb"),
    ("SYNTH_OPTIMIZERS_DISK_BUDGET_PATH", "disk_budget.path"),
    ("SYNTH_OPTIMIZERS_GEPA_ROLLOUT_HTTP_RETRIES", "gepa.rollout_max_attempts"),
    ("SYNTH_OPTIMIZERS_MAX_CONCURRENT_ROLLOUTS", "gepa.pipeline.workers.rollout"),
    ("GEPA_ROLLOUT_CONCURRENCY", "gepa.pipeline.workers.rollout"),
    ("SYNTH_OPTIMIZERS_CONTAINER_HTTP_TIMEOUT_SECONDS", ""),
    ("SYNTH_OPTIMIZERS_GEPA_ROLLOUT_RETRY_BACKOFF_MS", ""),
];

/// Returns the layer of the environment, and warns about each variable that is no longer read.
pub(super) fn from_environment(environment: &BTreeMap<String, String>, report: &mut Report<'_>) -> Node {
    let given = |name: &str| environment.get(name).filter(|value| !value.trim().is_empty());
    let mut layer = Node::empty(SourceLocation::Inline);
    for row in OVERRIDES {
        if let Some(value) = given(row.variable) {
            let names: Vec<String> = row.field.split('.').map(str::to_owned).collect();
            layer.overlay(nested_node(&names, &SourceLocation::Environment(row.variable), Tree::Text(value.clone())));
        }
    }
    for (variable, field) in RETIRED_VARIABLES {
        if given(variable).is_some() {
            let hint = match *field {
                "" => "Unset it; no field replaces it.".to_owned(),
                field => format!("Write {field} in the file or use --set {field}=..., and unset it."),
            };
            let location = SourceLocation::Environment(variable);
            let message = format!("{variable} is ignored");
            report.push(Code::VariableIgnored, field, message, hint, Some((&location, EntryPart::Value)));
        }
    }
    layer
}

/// Returns the layer of one `--set key.path=value`.
pub(super) fn from_set(set: &str, number: usize, report: &mut Report<'_>) -> Option<Node> {
    let Some((names, value)) = set.split_once('=').and_then(|(path, value)| Some((key_path(path)?, value))) else {
        // The message does not repeat the text, because it may contain a secret.
        let message = format!("--set number {number} does not have the form key.path=value");
        let hint = "For example: --set gepa.minibatch_size=4";
        report.push(Code::InvalidOverride, "", message, hint, Some((&SourceLocation::Set, EntryPart::Key)));
        return None;
    };
    Some(nested_node(&names, &SourceLocation::Set, set_value(value, root().below(&names))))
}

/// Returns a value as the text of a `--set`. Fails for an empty value, which TOML cannot express.
pub fn set_text(path: &str, value: &Value) -> Result<String, OptimizerError> {
    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.iter().any(has_null),
            Value::Object(fields) => fields.values().any(has_null),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
    if has_null(value) {
        let message = format!("the override of {path:?} has no value");
        return Err(OptimizerError::new(ErrorCode::Config, message).with_hint("Leave out a field to keep its value."));
    }
    Ok(format!("{path}={}", inline(value)))
}

/// Parses the value of a `--set`. A text field takes the value literally, so that users need no nested quotes in a shell.
fn set_value(value: &str, shape: Option<&Shape>) -> Tree {
    let parsed = DeValue::parse(value.trim()).ok().and_then(|_| {
        let (mut document, _) = Node::from_toml(&format!("value = {}", value.trim()));
        document.relocate(&SourceLocation::Set);
        match document.tree {
            Tree::Table(entries) => entries.into_iter().next().map(|(_, node)| node.tree),
            _ => None,
        }
    });
    match (shape, parsed) {
        (Some(Shape::Text | Shape::Word { .. }), Some(Tree::Text(text))) => Tree::Text(text),
        (Some(Shape::Text | Shape::Word { .. }), _) | (_, None) => Tree::Text(value.to_owned()),
        (_, Some(tree)) => tree,
    }
}

/// Parses a dotted key, which may have quoted parts, into names.
fn key_path(path: &str) -> Option<Vec<String>> {
    let (document, errors) = Node::from_toml(&format!("{path} = 0"));
    let mut names = Vec::new();
    let mut node = &document;
    while let Tree::Table(entries) = &node.tree {
        let (name, inner) = entries.first()?;
        names.push(name.clone());
        node = inner;
    }
    (errors.is_empty() && !path.contains('\n')).then_some(names)
}

fn nested_node(names: &[String], location: &SourceLocation, tree: Tree) -> Node {
    let node = |tree: Tree| Node { location: location.clone(), tree };
    names.iter().rev().fold(node(tree), |inner, name| node(Tree::Table(vec![(name.clone(), inner)])))
}

//! Rules about the values of a configuration, alone and in combination. Every rule runs and reports all of its findings.

mod models;
mod names_and_paths;
mod rows;
mod search;
mod steering;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::report::{Code, EntryPart, Report};
use super::sections::Config;
use super::tree::{SourceLocation, join};

/// Runs every rule.
pub(super) fn validate(config: &Config, locations: &BTreeMap<String, SourceLocation>, report: &mut Report<'_>) {
    let mut rules = Validator { config, locations, report };
    blank_and_repeated(&mut rules);
    names_and_paths::check(&mut rules);
    rows::check(&mut rules);
    models::check(&mut rules);
    search::check(&mut rules);
    steering::check(&mut rules);
}

/// The configuration under validation, and the report that collects findings.
struct Validator<'r, 'a> {
    config: &'r Config,
    locations: &'r BTreeMap<String, SourceLocation>,
    report: &'r mut Report<'a>,
}

impl Validator<'_, '_> {
    /// Returns whether all these fields could be read. Rules skip unreadable fields, which are already reported.
    fn can_read(&self, fields: &[&str]) -> bool {
        fields.iter().all(|field| self.report.is_readable(field))
    }

    /// Returns whether a layer sets this field.
    fn is_given(&self, field: &str) -> bool {
        self.locations.contains_key(field)
    }

    /// Reports a finding about a field, unless the field is unreadable and already reported.
    fn add(&mut self, code: Code, field: &str, message: impl Into<String>, hint: impl Into<String>) {
        if !self.report.is_readable(field) {
            return;
        }
        let location = match self.locations.get(field) {
            // The span of a section covers only its header, so the marker points at the name in the header.
            Some(location @ SourceLocation::File { key, value }) if value.start <= key.start => {
                Some((location, EntryPart::Key))
            }
            Some(location) => Some((location, EntryPart::Value)),
            None => section_of(self.locations, field).map(|location| (location, EntryPart::Key)),
        };
        self.report.push(code, field, message, hint, location);
    }

    /// Reports a finding if `is_wrong`.
    fn add_if(&mut self, is_wrong: bool, code: Code, field: &str, message: impl Into<String>, hint: impl Into<String>) {
        if is_wrong {
            self.add(code, field, message, hint);
        }
    }
}

/// Returns the location of the nearest enclosing section in the file, for a field that is absent.
fn section_of<'p>(locations: &'p BTreeMap<String, SourceLocation>, field: &str) -> Option<&'p SourceLocation> {
    let parents = field.rmatch_indices('.').map(|(at, _)| &field[..at]);
    parents.filter_map(|parent| locations.get(parent)).find(|location| matches!(location, SourceLocation::File { .. }))
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Texts that must not be blank, with the hint. For a list or a table, the rule applies to every entry.
const NON_BLANK_FIELDS: &[(&[&str], &str)] = &[
    (&["run.output_dir"], "Name a directory, or leave it out for `runs`."),
    (&["container.cwd", "disk_budget.path"], "Name a directory, or leave it out."),
    (&["container.command", "proposer.command"], "Remove the entry, or give the argument."),
    (&["dataset.train_split", "dataset.heldout_split"], "Name a split of the container's data, or leave it out."),
    (&["taskset.train_split", "taskset.heldout_split"], "Name a split of the container's data, or leave it out."),
    (&["taskset.train_ids", "taskset.heldout_ids"], "Give the id of the task."),
    (&["candidate.target_modules"], "Name a mutable field of the container's program."),
    (&["seed_candidate"], "Give the text to start from, or leave the entry out."),
    (&["policy.provider", "proposer.provider"], "Give a name, or leave it out for the default."),
    (&["policy.model", "proposer.model"], "Name a model, or leave it out."),
    (&["gepa.selection_objective"], "Name an objective, or leave it out."),
    (&["gepa.objective_keys", "gepa.objective_acceptance.protected_objectives"], "Name an objective."),
    (&["cache.path", "proposer.price_file"], "Name a file, or leave it out."),
    (&["cache.namespace"], "Name a namespace, or leave it out."),
];

/// Lists without duplicate entries, with the hint.
const UNIQUE_LISTS: &[(&[&str], &str)] = &[
    (
        &["candidate.target_modules", "gepa.objective_keys", "gepa.objective_acceptance.protected_objectives"],
        "Keep one.",
    ),
    (
        &[
            "gepa.seed_pools.pareto_eval",
            "gepa.seed_pools.minibatch",
            "gepa.seed_pools.reflection",
            "gepa.seed_pools.validation",
            "gepa.task_pools.pareto",
            "gepa.task_pools.minibatch",
            "gepa.task_pools.reflection",
            "gepa.task_pools.heldout",
            "gepa.guard_ids",
        ],
        "List every row once.",
    ),
];

/// Checks rules that many fields share: texts that must not be blank, and lists without duplicates.
fn blank_and_repeated(rules: &mut Validator<'_, '_>) {
    let config = json!(rules.config);
    let value = |field: &str| config.pointer(&format!("/{}", field.replace('.', "/")));
    for (field, hint) in flatten_groups(NON_BLANK_FIELDS) {
        let blank: Vec<String> = match value(field) {
            Some(Value::String(text)) if is_blank(text) => vec![field.to_owned()],
            Some(Value::Array(items)) => {
                let blank = items.iter().enumerate().filter(|(_, item)| item.as_str().is_some_and(is_blank));
                blank.map(|(index, _)| format!("{field}[{index}]")).collect()
            }
            Some(Value::Object(entries)) => {
                let blank = entries.iter().filter(|(name, text)| is_blank(name) || text.as_str().is_some_and(is_blank));
                blank.map(|(name, _)| join(field, name)).collect()
            }
            _ => Vec::new(),
        };
        for field in blank {
            rules.add(Code::Blank, &field, format!("`{field}` is blank"), hint);
        }
    }
    for (field, hint) in flatten_groups(UNIQUE_LISTS) {
        let Some(Value::Array(items)) = value(field) else { continue };
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate().filter(|(_, item)| !seen.insert(item.to_string())) {
            let message = format!("`{field}` lists {item} twice");
            rules.add(Code::Duplicate, &format!("{field}[{index}]"), message, hint);
        }
    }
}

fn flatten_groups(
    groups: &[(&'static [&'static str], &'static str)],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    groups.iter().flat_map(|(fields, hint)| fields.iter().map(|field| (*field, *hint)))
}

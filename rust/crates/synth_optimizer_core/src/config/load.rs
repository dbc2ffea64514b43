//! Loads a configuration from its layers: defaults, the file or mapping, the environment, `--set`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use serde_json::Value;

use super::check::check;
use super::mask::{mask, outline};
use super::overrides::{from_environment, from_set};
use super::report::{Code, EntryPart, Report};
use super::sections::Config;
use super::steering;
use super::tree::{Node, SourceLocation};
use super::validate;
use super::values::{EffectiveValue, effective_values};
use crate::model::error::{ConfigFinding, ErrorCode, OptimizerError, Severity};

/// A configuration as text or mapping, with its name and base directory.
#[derive(Debug)]
pub struct ConfigSource<'a> {
    /// The name that messages show.
    pub name: &'a str,
    pub content: ConfigContent<'a>,
    /// The absolute directory to which relative paths refer.
    pub base_dir: &'a Utf8Path,
}

/// The content of a file, or a mapping, which has no line numbers.
#[derive(Debug)]
pub enum ConfigContent<'a> {
    Toml(&'a str),
    Mapping(Value),
}

/// A loaded configuration with its effective values and findings.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedConfig {
    pub config: Config,
    /// Every field with its value and its origin. Secrets are hidden.
    pub values: Vec<EffectiveValue>,
    pub warnings: Vec<ConfigFinding>,
}

/// Reads a text file that the configuration names, by its absolute path. An error is the rest of a sentence that starts with
/// the path, such as "does not exist".
pub type ReadText<'a> = &'a dyn Fn(&Utf8Path) -> Result<String, String>;

/// Loads a configuration that names no other file. An error contains all findings.
pub fn load(
    source: ConfigSource<'_>,
    environment: &BTreeMap<String, String>,
    sets: &[String],
) -> Result<ResolvedConfig, OptimizerError> {
    load_with(source, environment, sets, &no_files)
}

/// Loads a configuration and the text files that it names. An error contains all findings.
pub fn load_with(
    source: ConfigSource<'_>,
    environment: &BTreeMap<String, String>,
    sets: &[String],
    read: ReadText<'_>,
) -> Result<ResolvedConfig, OptimizerError> {
    let name = source.name;
    let loaded = try_load_with(source, environment, sets, read)?;
    match loaded.warnings.iter().any(|found| found.severity == Severity::Error) {
        true => Err(config_error(name, ErrorCode::Config, loaded.warnings)),
        false => Ok(loaded),
    }
}

/// Loads a configuration as far as possible, for callers that check for more problems. `warnings` may contain errors, and a
/// wrong field has its default value. Fails only if the file is not TOML or the value is not a mapping.
pub fn try_load(
    source: ConfigSource<'_>,
    environment: &BTreeMap<String, String>,
    sets: &[String],
) -> Result<ResolvedConfig, OptimizerError> {
    try_load_with(source, environment, sets, &no_files)
}

/// Loads a configuration like `try_load`, and the text files that it names.
pub fn try_load_with(
    ConfigSource { name, content, base_dir }: ConfigSource<'_>,
    environment: &BTreeMap<String, String>,
    sets: &[String],
    read: ReadText<'_>,
) -> Result<ResolvedConfig, OptimizerError> {
    match content {
        ConfigContent::Toml(text) => match Node::from_toml(text) {
            (tree, errors) if errors.is_empty() => {
                let report = Report::new(name, text, mask(text, &tree));
                finish(tree, report, (base_dir, read), environment, sets)
            }
            (tree, errors) => Err(syntax_error(name, text, tree, errors)),
        },
        ConfigContent::Mapping(value) => {
            let mut report = Report::new(name, "", String::new());
            if value.is_object() {
                let tree = Node::from_json(value, &SourceLocation::Inline);
                return finish(tree, report, (base_dir, read), environment, sets);
            }
            let hint = "For example: {\"container\": {\"url\": \"http://127.0.0.1:9100\"}, ...}";
            report.push(Code::WrongType, "", "a configuration must be a mapping of sections", hint, None);
            Err(config_error(name, ErrorCode::Config, report.finish()))
        }
    }
}

fn no_files(_: &Utf8Path) -> Result<String, String> {
    Err("cannot be read here, because the configuration was loaded without access to files".to_owned())
}

/// Returns the error for a file that is not TOML: its syntax errors, and all findings above the first one.
fn syntax_error(name: &str, text: &str, tree: Node, syntax_errors: Vec<(Range<usize>, String)>) -> OptimizerError {
    let mut report = Report::new(name, text, outline(text));
    let mut lines = BTreeSet::new();
    for (span, problem) in syntax_errors {
        // One broken line often causes several syntax errors; the first one names the cause.
        if lines.insert(report.position(span.start).0) {
            let message = format!("the file is not valid TOML: {problem}");
            let location = SourceLocation::File { key: span.clone(), value: span };
            report.push(Code::Syntax, "", message, syntax_hint(&problem), Some((&location, EntryPart::Key)));
        }
    }
    let first = lines.first().copied().unwrap_or(1);
    // Below the first syntax error, the parser may assign keys to the wrong section.
    let mut above = Report::new(name, text, outline(text));
    check(tree, &mut above);
    let above = above.finish().into_iter().filter(|found| found.line.is_some_and(|line| line < first));
    config_error(name, ErrorCode::TomlDecode, above.chain(report.finish()).collect())
}

fn finish(
    file: Node,
    mut report: Report<'_>,
    (base_dir, read): (&Utf8Path, ReadText<'_>),
    environment: &BTreeMap<String, String>,
    sets: &[String],
) -> Result<ResolvedConfig, OptimizerError> {
    // Each layer is checked separately, so that a bad value is reported even if a later layer replaces it.
    let mut tree = check(file, &mut report);
    let layer = from_environment(environment, &mut report);
    tree.overlay(check(layer, &mut report));
    for (index, set) in sets.iter().enumerate() {
        if let Some(layer) = from_set(set, index + 1, &mut report) {
            tree.overlay(check(layer, &mut report));
        }
    }
    let mut locations = tree.locations();
    // The checked tree fits the types. The error message of this invariant repeats no value, because it may be a secret.
    let misfit = |_| OptimizerError::new(ErrorCode::Invariant, "the validated configuration does not match its types");
    let mut config: Config = serde_json::from_value(tree.tree.to_json()).map_err(misfit)?;
    validate::validate(&config, &locations, &mut report);
    resolve_paths(&mut config, base_dir);
    steering::read_instructions(&mut config.proposer, &mut locations, &mut report, read);
    let values = effective_values(&config, &locations, &report);
    Ok(ResolvedConfig { config, values, warnings: report.finish() })
}

/// Resolves every path field against the base directory, independent of its layer.
fn resolve_paths(config: &mut Config, base_dir: &Utf8Path) {
    let optional = [
        &mut config.container.cwd,
        &mut config.cache.path,
        &mut config.disk_budget.path,
        &mut config.proposer.codex_home,
        &mut config.proposer.instructions_file,
        &mut config.proposer.price_file,
    ];
    for path in optional.into_iter().flatten().chain([&mut config.run.output_dir]) {
        *path = absolute(base_dir, path);
    }
    for source in config.candidate.sources.values_mut() {
        let (mark, place) = source.strip_prefix('@').map_or(("", source.as_str()), |place| ("@", place));
        let (file, key) = place.split_at(if mark.is_empty() { file_length(place) } else { place.len() });
        *source = format!("{mark}{}{key}", absolute(base_dir, Utf8Path::new(file)));
    }
    // A bare program name is found on `PATH` instead.
    if let Some(program) = config.proposer.command.first_mut().filter(|program| program.contains('/')) {
        *program = absolute(base_dir, Utf8Path::new(program)).into_string();
    }
}

/// Returns the length of the file name in a source such as `prompts.toml:"a/../b".system`. What follows it is no path.
fn file_length(source: &str) -> usize {
    let ends = [".toml:", ".yaml#", ".yml#", ".py:"].map(|end| source.find(end).map(|start| start + end.len() - 1));
    ends.into_iter().flatten().min().unwrap_or(source.len())
}

/// Joins the path and removes `.` and `..` lexically. A `..` at the root stays at the root.
fn absolute(base_dir: &Utf8Path, path: &Utf8Path) -> Utf8PathBuf {
    let mut resolved = Utf8PathBuf::new();
    for component in base_dir.join(path).components() {
        match component {
            Utf8Component::CurDir => {}
            Utf8Component::ParentDir => {
                resolved.pop();
            }
            _ => resolved.push(component.as_str()),
        }
    }
    resolved
}

fn config_error(name: &str, code: ErrorCode, findings: Vec<ConfigFinding>) -> OptimizerError {
    let errors: Vec<_> = findings.iter().filter(|found| found.severity == Severity::Error).collect();
    let text = |found: &&ConfigFinding| match (found.line, found.column) {
        (Some(line), Some(column)) => format!("{} (line {line}, column {column})", found.message),
        _ => found.message.clone(),
    };
    let message = match &errors[..] {
        [found] => format!("{name} has 1 problem: {}", text(found)),
        all => {
            format!("{name} has {} problems:\n  {}", all.len(), all.iter().map(text).collect::<Vec<_>>().join("\n  "))
        }
    };
    let hint = match &errors[..] {
        [found] if !found.hint.is_empty() => found.hint.clone(),
        _ => code.row().hint.to_owned(),
    };
    let mut error = OptimizerError::new(code, message).with_hint(hint);
    error.findings = findings;
    error
}

fn syntax_hint(problem: &str) -> &'static str {
    const HINTS: [(&str, &str); 6] = [
        ("duplicate key", "Each key and each section may be written once."),
        ("quoted", "Text is written in quotes: key = \"value\"."),
        ("boolean", "Text is written in quotes: key = \"value\"."),
        ("array", "A list is written in brackets with commas: key = [1, 2]."),
        ("string", "Close the text with the quote that opens it; use \"\"\" for several lines."),
        ("table", "A section is written [name] on a line of its own."),
    ];
    let known = HINTS.iter().find(|(part, _)| problem.contains(part));
    known.map_or("Write each entry as key = value on a line of its own.", |(_, hint)| *hint)
}

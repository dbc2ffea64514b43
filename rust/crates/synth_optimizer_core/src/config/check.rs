//! Checks one layer against the expected shape: unknown keys, wrong types, unknown values and numbers out of range. Suggests
//! corrections for misspelt or retired names and values.

use super::report::{Code, EntryPart, Report};
use super::row_selection::{self, RowsProblem};
use super::shape::{Field, Shape, root};
use super::tree::{Node, SourceLocation, Tree, join};
use crate::secrets::{is_credential_name, redact};
use crate::string_enum::fold;

/// Returns the valid part of a layer, and reports everything else.
pub(super) fn check(layer: Node, report: &mut Report<'_>) -> Node {
    let location = layer.location.clone();
    let root_path = Path { shown: String::new(), leaf: String::new() };
    check_value(layer, root(), &root_path, report).unwrap_or_else(|| Node::empty(location))
}

/// The path of the current value, and the field to mark as unreadable if the value is wrong.
struct Path {
    shown: String,
    leaf: String,
}

impl Path {
    fn field(&self, name: &str) -> Self {
        let shown = join(&self.shown, name);
        Self { leaf: shown.clone(), shown }
    }

    fn entry(&self, name: &str) -> Self {
        Self { shown: join(&self.shown, name), leaf: self.leaf.clone() }
    }

    fn item(&self, index: usize) -> Self {
        Self { shown: format!("{}[{index}]", self.shown), leaf: self.leaf.clone() }
    }
}

/// A finding code, its message and its hint.
type FindingParts = (Code, String, String);

fn report_problem(
    path: &Path,
    location: &SourceLocation,
    part: EntryPart,
    (code, message, hint): FindingParts,
    report: &mut Report<'_>,
) {
    report.mark_unreadable(&path.leaf);
    report.push(code, &path.shown, message, hint, Some((location, part)));
}

/// Returns the value if it fits the shape.
fn check_value(mut node: Node, shape: &Shape, path: &Path, report: &mut Report<'_>) -> Option<Node> {
    if let (Shape::Number { .. }, Tree::Integer(integer)) = (shape, &node.tree) {
        // Integers of realistic size are exact as a float.
        node.tree = Tree::Float(*integer as f64);
    }
    let Node { location, tree } = node;
    let tree = match (shape, tree) {
        (Shape::Table(_), Tree::Table(entries)) => Tree::Table(check_table(entries, shape, path, report)),
        (Shape::Map(_) | Shape::Anything, Tree::Table(entries)) => {
            let inner = if let Shape::Map(inner) = shape { inner } else { shape };
            let checked = entries.into_iter().map(|(name, node)| {
                let path = path.entry(&name);
                check_value(node, inner, &path, report).map(|node| (name, node))
            });
            // Check every entry before a bad one drops the map.
            Tree::Table(checked.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?)
        }
        (Shape::List(_) | Shape::Anything, Tree::Array(items)) => {
            let inner = if let Shape::List(inner) = shape { inner } else { shape };
            let checked =
                items.into_iter().enumerate().map(|(at, node)| check_value(node, inner, &path.item(at), report));
            Tree::Array(checked.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?)
        }
        (Shape::Rows { by_number }, Tree::Array(items)) => {
            let integer = Shape::Integer { least: i64::MIN.into(), most: i64::MAX.into() };
            let checked = items.into_iter().enumerate().map(|(at, node)| {
                let is_range = !by_number || matches!(&node.tree, Tree::Text(text) if text.contains(".."));
                check_value(node, if is_range { &Shape::Text } else { &integer }, &path.item(at), report)
            });
            let tree = Tree::Array(checked.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?);
            check_rows(tree, *by_number, &location, path, report)?
        }
        (Shape::Rows { by_number }, tree @ Tree::Text(_)) => check_rows(tree, *by_number, &location, path, report)?,
        (shape, tree) => match plain_value_problem(&tree, shape, &path.shown) {
            Some(problem) => {
                report_problem(path, &location, EntryPart::Value, problem, report);
                return None;
            }
            None => tree,
        },
    };
    Some(Node { location, tree })
}

/// Returns a list or text if it names rows.
fn check_rows(
    tree: Tree,
    by_number: bool,
    location: &SourceLocation,
    path: &Path,
    report: &mut Report<'_>,
) -> Option<Tree> {
    let value = tree.to_json();
    let found = match by_number {
        true => row_selection::read::<i64>(&value).err(),
        false => row_selection::read::<String>(&value).err(),
    };
    let Some(RowsProblem { entry, message, hint }) = found else { return Some(tree) };
    let (shown, location) = match (&tree, entry) {
        (Tree::Array(items), Some(at)) => (path.item(at).shown, items.get(at).map_or(location, |item| &item.location)),
        _ => (path.shown.clone(), location),
    };
    let path = Path { shown, leaf: path.leaf.clone() };
    let problem = (Code::InvalidRows, format!("`{}`: {message}", path.shown), hint);
    report_problem(&path, location, EntryPart::Value, problem, report);
    None
}

fn check_table(
    entries: Vec<(String, Node)>,
    shape: &Shape,
    path: &Path,
    report: &mut Report<'_>,
) -> Vec<(String, Node)> {
    let mut readable: Vec<(String, Node)> = Vec::new();
    for (name, node) in entries {
        let Some(field) = shape.field(&name) else {
            let problem = if report.is_full() {
                (Code::UnknownKey, String::new(), String::new())
            } else {
                unknown_key(&name, &node, shape.fields(), &path.shown, report)
            };
            report_problem(&path.field(&name), &node.location, EntryPart::Key, problem, report);
            continue;
        };
        let here = path.field(&field.name);
        if field.is_optional && node.tree == Tree::Null {
            continue;
        }
        if readable.iter().any(|(known, _)| *known == field.name) {
            let alias = field.alias.as_deref().unwrap_or(&field.name);
            let message = format!("`{alias}` and `{}` are two names of one field, and both are set", field.name);
            let problem = (Code::ConflictingNames, message, format!("Keep `{}`.", field.name));
            report_problem(&here, &node.location, EntryPart::Key, problem, report);
        } else if let Some(node) = check_value(node, &field.shape, &here, report) {
            readable.push((field.name.clone(), node));
        }
    }
    readable
}

fn unknown_key(name: &str, node: &Node, fields: &[Field], path: &str, report: &mut Report<'_>) -> FindingParts {
    let hint = match retired_field(&join(path, name)) {
        Some(sentence) => sentence.to_owned(),
        None => suggest_key(name, fields, path, report),
    };
    let home = if path.is_empty() { "a configuration".to_owned() } else { format!("[{path}]") };
    let is_section = path.is_empty() && matches!(node.tree, Tree::Table(_));
    let what = if is_section { "a section" } else { "a field" };
    (Code::UnknownKey, format!("`{name}` is not {what} of {home}"), hint)
}

/// Suggests fields for an unknown key, and marks them as unreadable, so that rules do not report them as missing.
fn suggest_key(name: &str, fields: &[Field], path: &str, report: &mut Report<'_>) -> String {
    const MAX_SUGGESTED_SECTIONS: usize = 3;
    let names = || fields.iter().map(|field| field.name.as_str());
    let sections = sections_with_field(name);
    let mut sentences = Vec::new();
    if let Some(near) = nearest(name, names()) {
        report.mark_unreadable(&join(path, near));
        sentences.push(format!("Did you mean `{near}`?"));
    }
    sections.iter().for_each(|home| report.mark_unreadable(&join(home, name)));
    if sections.iter().any(String::is_empty) {
        sentences.push(format!("`{name}` is a section of its own: [{name}]."));
    } else if (1..=MAX_SUGGESTED_SECTIONS).contains(&sections.len()) {
        sentences.push(format!("`{name}` belongs to [{}].", sections.join("] or [")));
    }
    if sentences.is_empty() {
        sentences.push(format!("Known here: {}.", names().collect::<Vec<_>>().join(", ")));
    }
    sentences.join(" ")
}

/// Returns the problem of a plain value, if any.
fn plain_value_problem(tree: &Tree, shape: &Shape, path: &str) -> Option<FindingParts> {
    match (shape, tree) {
        (Shape::Word { words, aliases }, Tree::Text(text)) => {
            let folded = fold(text);
            let is_known = words.contains(&folded) || aliases.contains(&folded);
            (!is_known).then(|| unknown_word(text, words, aliases, path))
        }
        (Shape::Text, Tree::Text(_)) | (Shape::Flag, Tree::Flag(_)) => None,
        (Shape::Anything, tree) => not_storable(tree).map(|what| {
            (Code::WrongType, format!("`{path}` is {what}"), "Leave it out, or write it as text.".to_owned())
        }),
        (Shape::Integer { .. }, Tree::Integer(_)) | (Shape::Number { .. }, Tree::Float(_)) => broken_bound(shape, tree)
            .map(|bound| {
                let message = format!("`{path}` is {}; it must be {bound}", display_value(path, tree));
                (Code::OutOfRange, message, format!("Give {bound}."))
            }),
        _ => Some(wrong_type(tree, shape, path)),
    }
}

/// Formats a plain value for a message: shortened, and hidden if it may be a secret.
fn display_value(path: &str, tree: &Tree) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    if path.split('.').any(|name| is_credential_name(name.trim_matches('"'))) {
        return "the value".to_owned();
    }
    if let Tree::Float(float) = tree {
        return format!("{float:?}");
    }
    let shown = super::values::inline(&redact("", &tree.to_json()));
    match shown.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &shown[..end]),
        None => shown,
    }
}

fn unknown_word(text: &str, words: &[String], aliases: &[String], path: &str) -> FindingParts {
    let shown = display_value(path, &Tree::Text(text.to_owned()));
    if let Some((reason, hint)) = refused_word(path, text) {
        let message = format!("{shown} is not available for `{path}`: {reason}");
        return (Code::UnsupportedValue, message, hint.to_owned());
    }
    let hint = match nearest(text, words.iter().chain(aliases).map(String::as_str)) {
        Some(near) => format!("Did you mean \"{near}\"?"),
        None => "Use one of them, or remove the field to use the default.".to_owned(),
    };
    let message = format!("{shown} is not a value of `{path}`, which takes \"{}\"", words.join("\", \""));
    (Code::UnknownValue, message, hint)
}

fn wrong_type(tree: &Tree, shape: &Shape, path: &str) -> FindingParts {
    let (wanted, given) = (shape_kind(shape), value_kind(tree));
    let value = match tree {
        Tree::Null | Tree::Array(_) | Tree::Table(_) => String::new(),
        _ => format!(" {}", display_value(path, tree)),
    };
    let message = format!("`{path}` must be {wanted}, not {given}{value}");
    let hint = match (tree, shape) {
        (Tree::Text(text), Shape::Integer { .. }) if text.trim().parse::<i64>().is_ok() => {
            format!("Write it without quotes: {}", text.trim())
        }
        (Tree::Text(text), Shape::Number { .. }) if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => {
            format!("Write it without quotes: {}", text.trim())
        }
        (Tree::Text(text), Shape::Flag) if matches!(fold(text).as_str(), "true" | "false") => {
            format!("Write it without quotes: {}", fold(text))
        }
        (Tree::Text(_), Shape::List(_)) => {
            format!("Write it in brackets: {} = [...]", path.rsplit('.').next().unwrap_or_default())
        }
        (Tree::Float(float), Shape::Integer { .. }) if float.fract() == 0.0 && float.abs() < 1e15 => {
            format!("Write it as {float:.0}")
        }
        (Tree::Flag(flag), Shape::Word { .. } | Shape::Text) => format!("Write it in quotes: \"{flag}\""),
        (Tree::Integer(number), Shape::Word { .. } | Shape::Text) => format!("Write it in quotes: \"{number}\""),
        (_, Shape::Table(_)) => format!("Write it as a section: [{path}]"),
        (Tree::Null, _) => "Leave it out to keep the default.".to_owned(),
        _ => format!("Give {wanted}."),
    };
    (Code::WrongType, message, hint)
}

fn broken_bound(shape: &Shape, tree: &Tree) -> Option<String> {
    match (shape, tree) {
        (Shape::Integer { least, .. }, Tree::Integer(value)) if value < least => Some(format!("at least {least}")),
        (Shape::Integer { most, .. }, Tree::Integer(value)) if value > most => Some(format!("at most {most}")),
        (Shape::Number { .. }, Tree::Float(value)) if !value.is_finite() => Some("a finite number".to_owned()),
        (Shape::Number { least, .. }, Tree::Float(value)) if value < least => Some(format!("at least {least}")),
        (Shape::Number { most, .. }, Tree::Float(value)) if value > most => Some(format!("at most {most}")),
        _ => None,
    }
}

/// Returns why a free-form table cannot hold the value, if so.
fn not_storable(tree: &Tree) -> Option<&'static str> {
    match tree {
        Tree::Null => Some("null, which a configuration file cannot hold"),
        Tree::Float(float) if !float.is_finite() => Some("a number that JSON cannot hold"),
        Tree::Integer(integer) if i64::try_from(*integer).is_err() => Some("an integer beyond 64 bits"),
        _ => None,
    }
}

fn value_kind(tree: &Tree) -> &'static str {
    match tree {
        Tree::Null => "null",
        Tree::Flag(_) => "the boolean",
        Tree::Integer(_) => "the integer",
        Tree::Float(_) => "the float",
        Tree::Text(_) => "the text",
        Tree::Array(_) => "a list",
        Tree::Table(_) => "a table",
    }
}

fn shape_kind(shape: &Shape) -> &'static str {
    match shape {
        Shape::Table(_) => "a section",
        Shape::Map(_) => "a table",
        Shape::List(_) => "a list",
        Shape::Text => "text",
        Shape::Flag => "true or false",
        Shape::Integer { .. } => "a whole number",
        Shape::Number { .. } => "a number",
        Shape::Word { .. } => "one of its values, in quotes",
        Shape::Rows { .. } => "\"all\", a range or a list",
        Shape::Anything => "a value",
    }
}

/// Returns the most similar known name, if one is similar enough.
pub fn nearest<'n>(word: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    const MIN_SIMILARITY: f64 = 0.84;
    let word = fold(word);
    let score = |name: &str| {
        let edits = strsim::damerau_levenshtein(&word, &fold(name));
        let few = edits <= 2 && edits * 3 <= name.len().max(word.len());
        strsim::jaro_winkler(&word, &fold(name)).max(if few { 0.9 } else { 0.0 })
    };
    known
        .into_iter()
        .map(|name| (score(name), name))
        .filter(|(score, _)| *score >= MIN_SIMILARITY)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, name)| name)
}

/// Returns the sections that have a field with this name.
fn sections_with_field(name: &str) -> Vec<String> {
    let has_name = |field: &Field| field.name == name || field.alias.as_deref() == Some(name);
    root().fields_below().into_iter().filter(|(_, field)| has_name(field)).map(|(home, _)| home).collect()
}

/// Returns advice for a field that other versions of the optimizer have and this one does not.
fn retired_field(path: &str) -> Option<&'static str> {
    const RETIRED_FIELDS: &[(&str, &str)] = &[
        ("run.correlation", "Keep the experiment's own record next to the run; leave this table out."),
        ("container.headers", "Requests to the container carry no extra headers; leave it out."),
        ("container.auth_bearer_env", "The container is called without credentials; leave it out."),
        ("container.auth_refresh", "The container is called without credentials; leave it out."),
        ("container.pool", "Hosted pools are not called; name the container in container.url."),
        ("policy.enabled", "The policy is sent to the container if [policy] is there; leave it out."),
        ("policy.policy_type", "The container decides how its policy works; put anything it reads into policy.config."),
        ("proposer.runtime_substrate", "The proposer runs as a local process; leave it out."),
        ("proposer.docker", "The proposer runs as a local process; leave it out."),
        ("proposer.daytona", "The proposer runs as a local process; leave it out."),
        ("proposer.nano_codex", "Use backend = \"codex_app_server\" or \"openai_compatible\"; leave this table out."),
        ("proposer.service_tier", "The service tier is the proposer's own setting; leave it out."),
        ("proposer.message_stall_timeout_seconds", "proposer.timeout_seconds limits the whole turn; leave it out."),
        ("proposer.allow_unverified_model", "Any model name is passed on; leave it out."),
        ("proposer.prompt", "Write what the proposer should consider into proposer.instructions."),
        (
            "gepa.min_full_coverage",
            "A candidate on a part of the rows is accepted only if they show that it is better; leave it out.",
        ),
        ("gepa.max_perfect_skips", "A minibatch without a gain is replaced by rows that have one; leave it out."),
        ("gepa.pipeline.delta_max", "Only staleness_policy = \"full\" exists, which has no bound; leave it out."),
        ("gepa.pipeline.speculative_completion", "It belongs to `flash_evolve`, which is not available; leave it out."),
        ("gepa.pipeline.adaptive_stage_workers", "Set gepa.pipeline.workers instead."),
        ("jesterky_workflow", "Workflows are not part of this optimizer; leave the section out."),
    ];
    RETIRED_FIELDS.iter().find(|(field, _)| *field == path).map(|(_, sentence)| *sentence)
}

/// Returns the reason and advice for a value that other versions of the optimizer accept and this one does not.
fn refused_word(path: &str, word: &str) -> Option<(&'static str, &'static str)> {
    const ENDPOINT: &str = "Write backend = \"openai_compatible\" with base_url, model and api_key_env.";
    const PROCESS: &str =
        "Write backend = \"codex_app_server\", or \"openai_compatible\" with a base_url that your process serves.";
    const FULL: &str = "Write staleness_policy = \"full\" or leave it out.";
    let word = fold(word);
    Some(match (path, word.as_str()) {
        ("proposer.backend", "local_process_json") => ("no proposer exchanges JSON with a local process", PROCESS),
        ("proposer.backend", "chat_completions") => {
            ("the proposer that speaks chat completions is `openai_compatible`", ENDPOINT)
        }
        ("proposer.backend", "deepseek_chat" | "openai") => ("providers have no backends of their own", ENDPOINT),
        ("proposer.backend", "codex") => {
            ("the backend that runs Codex is `codex_app_server`", "Write backend = \"codex_app_server\".")
        }
        ("proposer.execution_mode", "stdio") => {
            ("the proposer runs as `local_process`, over its standard streams", "Leave it out.")
        }
        ("proposer.execution_mode", "websocket" | "ws") => {
            ("the proposer is not reached over a WebSocket", "Leave it out.")
        }
        ("proposer.auth_mode", "chatgpt") => {
            ("the sign-in of the host is called `host`", "Write auth_mode = \"host\".")
        }
        ("gepa.pipeline.mode", "flash_evolve") => {
            ("its decisions depend on timing, so a run could not be replayed", "Write mode = \"async_pipelined\".")
        }
        ("gepa.pipeline.staleness_policy", "guarded" | "reflective") => {
            ("proposals are not discarded or patched because of their age, so that a run can be replayed", FULL)
        }
        _ => return None,
    })
}

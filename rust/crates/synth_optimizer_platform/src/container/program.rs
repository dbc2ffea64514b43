//! Checks the container's program and takes from it what the search may change.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::screen::credential_place;
use crate::http::shown_value;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::nearest;
use synth_optimizer_core::model::canonical::digest_of;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::ids::Payload;
use synth_optimizer_core::model::program::{Module, Program};

const VERSION: &str = "prompt_program.v1";

/// The program as far as the search and the rollouts need it.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) program: Program,
    /// Digest of every module, fixed ones included: their texts change answers too.
    pub(super) digest: String,
    /// The task family that rollouts name.
    pub(super) family: String,
}

/// Checks every rule; an error names the field that breaks it.
pub(super) fn read_program(document: &Value, config: &Config) -> Result<Checked, OptimizerError> {
    let read = Read::of(document, config)?;
    match check_configured(config, &read).into_iter().next() {
        Some(first) => Err(first),
        None => Ok(read.checked(config)),
    }
}

/// Every problem of a program that can be told: the first one of the document itself, else all those of the config's
/// fields.
pub(super) fn program_problems(document: &Value, config: &Config) -> Vec<OptimizerError> {
    match Read::of(document, config) {
        Ok(read) => check_configured(config, &read),
        Err(error) => vec![error],
    }
}

/// A document that keeps the rules, before it is held against the config's fields.
struct Read<'a> {
    program_id: &'a str,
    family: &'a str,
    listed: Vec<Listed<'a>>,
    fields: Vec<&'a str>,
    seed: Payload,
}

impl<'a> Read<'a> {
    fn of(document: &'a Value, config: &Config) -> Result<Self, OptimizerError> {
        let Some(document) = document.as_object() else {
            return Err(broken(format!("the program is {}, not an object", shown_value(document))));
        };
        let version = required_text(document, "version", "version")?;
        if version.trim() != VERSION {
            return Err(broken(format!("version is {:?}, not {VERSION:?}", shown_value(&version.into()))));
        }
        let program_id = required_text(document, "program_id", "program_id")?;
        let listed = read_modules(document)?;
        let fields = mutable_fields(&listed);
        if fields.is_empty() {
            return Err(broken("modules holds no module with mutable = true".into()));
        }
        check_targets(document, &fields)?;
        check_overlay(document, &fields)?;
        let seed = read_seed(document, config, &fields)?;
        let family = document.get("metadata").and_then(|metadata| metadata.get("task_id")).and_then(Value::as_str);
        let family = family.filter(|id| !id.trim().is_empty()).unwrap_or(program_id);
        Ok(Self { program_id, family, listed, fields, seed })
    }

    fn checked(self, config: &Config) -> Checked {
        let identity: Vec<Value> = self.listed.iter().map(Listed::identity).collect();
        let program = Program {
            program_id: self.program_id.to_owned(),
            modules: self.fields.iter().map(|field| module(field, &self.listed, &self.seed)).collect(),
            targets: config.candidate.target_modules.clone(),
            seed: self.seed,
        };
        Checked { program, digest: digest_of(&identity), family: self.family.to_owned() }
    }
}

/// One entry of `modules`.
struct Listed<'a> {
    id: &'a str,
    role: Option<&'a str>,
    content: Option<&'a str>,
    mutable: bool,
    field: Option<&'a str>,
    variables: Vec<&'a str>,
}

impl Listed<'_> {
    fn identity(&self) -> Value {
        json!([self.id, self.role, self.content, self.mutable, self.field])
    }
}

fn read_modules(document: &Map<String, Value>) -> Result<Vec<Listed<'_>>, OptimizerError> {
    let mut listed = Vec::new();
    for (place, module) in objects(document, "modules")? {
        let mutable = match module.get("mutable") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(mutable)) => *mutable,
            Some(other) => {
                return Err(broken(format!("{place}.mutable is {}, not true or false", shown_value(other))));
            }
        };
        let field = text(module, "candidate_field", &place)?.filter(|field| !field.trim().is_empty());
        if mutable && field.is_none() {
            return Err(broken(format!("{place}.candidate_field is missing, and the module is mutable")));
        }
        listed.push(Listed {
            id: required_text(module, "module_id", &format!("{place}.module_id"))?,
            role: text(module, "role", &place)?,
            content: text(module, "content", &place)?,
            mutable,
            field,
            variables: texts(module, "template_variables", &format!("{place}.template_variables"))?,
        });
    }
    Ok(listed)
}

/// The mutable fields in the order of the modules, each once.
fn mutable_fields<'a>(listed: &[Listed<'a>]) -> Vec<&'a str> {
    let mut fields = Vec::new();
    for field in listed.iter().filter(|module| module.mutable).filter_map(|module| module.field) {
        if !fields.contains(&field) {
            fields.push(field);
        }
    }
    fields
}

fn check_targets(document: &Map<String, Value>, fields: &[&str]) -> Result<(), OptimizerError> {
    for (place, target) in objects(document, "target_modules")? {
        required_text(target, "module_id", &format!("{place}.module_id"))?;
        let field = required_text(target, "candidate_field", &format!("{place}.candidate_field"))?;
        must_be_mutable(&format!("{place}.candidate_field"), field, fields)?;
        text(target, "objective", &place)?;
    }
    Ok(())
}

fn check_overlay(document: &Map<String, Value>, fields: &[&str]) -> Result<(), OptimizerError> {
    let Some(Value::Object(schema)) = document.get("rollout_overlay_schema") else { return Ok(()) };
    let place = "rollout_overlay_schema.candidate_fields";
    for (index, field) in texts(schema, "candidate_fields", place)?.into_iter().enumerate() {
        must_be_mutable(&format!("{place}[{index}]"), field, fields)?;
    }
    Ok(())
}

/// The texts to start from: those of the config if it has any, else the container's.
fn read_seed(document: &Map<String, Value>, config: &Config, fields: &[&str]) -> Result<Payload, OptimizerError> {
    let own = &config.seed_candidate;
    let seed: Payload = if own.is_empty() {
        let given = match document.get("seed_candidate") {
            Some(Value::Object(given)) => given.clone(),
            None | Some(Value::Null) => Map::new(),
            Some(other) => {
                return Err(broken(format!("seed_candidate is {}, not an object of texts", shown_value(other))));
            }
        };
        if given.is_empty() {
            return Err(broken("seed_candidate is missing, and the config has no [seed_candidate]".into())
                .with_hint("Give the texts to start from in the program's seed_candidate or under [seed_candidate]."));
        }
        let mut seed = BTreeMap::new();
        for (field, text) in given {
            let Value::String(text) = text else {
                return Err(broken(format!("seed_candidate.{field} is {}, not a text", shown_value(&text))));
            };
            seed.insert(field, text);
        }
        seed
    } else {
        own.clone()
    };
    for (field, text) in &seed {
        must_be_mutable(&format!("seed_candidate.{field}"), field, fields)?;
        if text.trim().is_empty() {
            return Err(broken(format!("seed_candidate.{field} is empty")));
        }
    }
    if let Some(place) = credential_place("seed_candidate", &json!(seed)) {
        return Err(broken(format!("{place} has the name of a credential"))
            .with_hint("Keys stay in the container's environment; rename the field if it holds none."));
    }
    Ok(seed)
}

/// The fields that the run wants to change must exist, be mutable and have a text to start from.
fn check_configured(config: &Config, read: &Read<'_>) -> Vec<OptimizerError> {
    let Read { listed, fields, seed, .. } = read;
    let mut problems = Vec::new();
    for (index, target) in config.candidate.target_modules.iter().enumerate() {
        let place = format!("candidate.target_modules[{index}]");
        if !fields.contains(&target.as_str()) {
            let owner =
                listed.iter().find(|module| module.id == target && module.mutable).and_then(|owner| owner.field);
            let fixed = listed.iter().any(|module| module.field == Some(target) || module.id == target);
            let hint = match (owner, fixed) {
                (Some(field), _) => format!("{target:?} is a module; write its candidate field {field:?}."),
                (None, true) => format!("{target:?} is fixed; mutable fields are {}.", fields.join(", ")),
                (None, false) => known(target, fields),
            };
            let message = format!("`{place}` names {target:?}, which is no mutable field of the container's program");
            problems.push(OptimizerError::new(ErrorCode::Container, message).with_hint(hint));
        } else if !seed.contains_key(target) {
            let message = format!("seed_candidate has no text for {target:?}, which `{place}` names");
            problems
                .push(broken(message).with_hint("Every field that the search may change needs a text to start from."));
        }
    }
    problems
}

/// Placeholders count only where the seed text has them: a text that never had one cannot lose it.
fn module(field: &str, listed: &[Listed<'_>], seed: &Payload) -> Module {
    let start = seed.get(field).map(String::as_str).unwrap_or_default();
    let mut template_variables = Vec::new();
    for name in listed.iter().filter(|module| module.mutable && module.field == Some(field)).flat_map(|m| &m.variables)
    {
        let placeholder = if name.starts_with('{') { (*name).to_owned() } else { format!("{{{name}}}") };
        if start.contains(&placeholder) && !template_variables.contains(&placeholder) {
            template_variables.push(placeholder);
        }
    }
    Module { field: field.to_owned(), template_variables }
}

fn must_be_mutable(place: &str, field: &str, fields: &[&str]) -> Result<(), OptimizerError> {
    if fields.contains(&field) {
        return Ok(());
    }
    Err(broken(format!("{place} names {field:?}, which is the field of no mutable module"))
        .with_hint(known(field, fields)))
}

fn known(word: &str, fields: &[&str]) -> String {
    match nearest(word, fields.iter().copied()) {
        Some(field) => format!("Did you mean {field:?}?"),
        None => format!("Mutable fields are {}.", fields.join(", ")),
    }
}

/// Objects with their places in the document.
type Places<'a> = Vec<(String, &'a Map<String, Value>)>;

/// The entries of a list that must have at least one, each an object, with their places.
fn objects<'a>(document: &'a Map<String, Value>, name: &str) -> Result<Places<'a>, OptimizerError> {
    let list = match document.get(name) {
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(Value::Array(_)) | None | Some(Value::Null) => {
            return Err(broken(format!("{name} is missing or empty")));
        }
        Some(other) => return Err(broken(format!("{name} is {}, not a list", shown_value(other)))),
    };
    let entry = |(index, value): (usize, &'a Value)| match value {
        Value::Object(entry) => Ok((format!("{name}[{index}]"), entry)),
        other => Err(broken(format!("{name}[{index}] is {}, not an object", shown_value(other)))),
    };
    list.iter().enumerate().map(entry).collect()
}

fn required_text<'a>(object: &'a Map<String, Value>, name: &str, place: &str) -> Result<&'a str, OptimizerError> {
    match object.get(name) {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text),
        Some(Value::String(_)) | None | Some(Value::Null) => Err(broken(format!("{place} is missing or empty"))),
        Some(other) => Err(broken(format!("{place} is {}, not a text", shown_value(other)))),
    }
}

fn text<'a>(object: &'a Map<String, Value>, name: &str, place: &str) -> Result<Option<&'a str>, OptimizerError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(broken(format!("{place}.{name} is {}, not a text", shown_value(other)))),
    }
}

fn texts<'a>(object: &'a Map<String, Value>, name: &str, place: &str) -> Result<Vec<&'a str>, OptimizerError> {
    let list = match object.get(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(broken(format!("{place} is {}, not a list", shown_value(other)))),
    };
    let entry = |(index, value): (usize, &'a Value)| {
        value.as_str().ok_or_else(|| broken(format!("{place}[{index}] is {}, not a text", shown_value(value))))
    };
    list.iter().enumerate().map(entry).collect()
}

fn broken(problem: String) -> OptimizerError {
    OptimizerError::new(ErrorCode::Container, format!("the container's program is not valid: {problem}"))
        .with_hint("The container's GET program route must answer with a whole prompt_program.v1 document.")
}

//! Checks the container's program and takes from it what the search may change.

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

/// Checks every rule. An error names the field that breaks it: the first one of the document itself, else all those of the
/// config.
pub(super) fn read_program(document: &Value, config: &Config) -> Result<Checked, Vec<OptimizerError>> {
    let (program_id, listed, fields, seed) = read(document, config).map_err(|error| vec![error])?;
    let problems = check_configured(config, &listed, &fields, &seed);
    if !problems.is_empty() {
        return Err(problems);
    }
    let family = document.pointer("/metadata/task_id").and_then(Value::as_str).filter(|id| !id.trim().is_empty());
    let identity: Vec<Value> = listed.iter().map(Listed::identity).collect();
    let program = Program {
        program_id: program_id.to_owned(),
        modules: fields.iter().map(|field| module(field, &listed, &seed)).collect(),
        targets: config.candidate.target_modules.clone(),
        seed,
    };
    Ok(Checked { program, digest: digest_of(&identity), family: family.unwrap_or(program_id).to_owned() })
}

/// The id of the program, its modules, their mutable fields and the seed candidate.
type Read<'a> = (&'a str, Vec<Listed<'a>>, Vec<&'a str>, Payload);

/// Holds the document against the rules, and not yet against the config's fields.
fn read<'a>(document: &'a Value, config: &Config) -> Result<Read<'a>, OptimizerError> {
    let Some(object) = document.as_object() else {
        return Err(broken(format!("the program is {}, not an object", shown_value(document))));
    };
    let document = Entry { place: String::new(), object };
    let version = document.required("version")?;
    if version.trim() != VERSION {
        return Err(broken(format!("version is {:?}, not {VERSION:?}", shown_value(&version.into()))));
    }
    let program_id = document.required("program_id")?;
    let listed = document.objects("modules")?.iter().map(Listed::read).collect::<Result<Vec<_>, _>>()?;
    let fields = mutable_fields(&listed);
    if fields.is_empty() {
        return Err(broken("modules holds no module with mutable = true".into()));
    }
    for target in document.objects("target_modules")? {
        target.required("module_id")?;
        must_be_mutable(&target.place("candidate_field"), target.required("candidate_field")?, &fields)?;
        target.text("objective")?;
    }
    if let Some(Value::Object(object)) = document.get("rollout_overlay_schema") {
        let schema = Entry { place: "rollout_overlay_schema".to_owned(), object };
        for (index, field) in schema.texts("candidate_fields")?.into_iter().enumerate() {
            must_be_mutable(&schema.place(&format!("candidate_fields[{index}]")), field, &fields)?;
        }
    }
    let seed = read_seed(&document, config, &fields)?;
    Ok((program_id, listed, fields, seed))
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

impl<'a> Listed<'a> {
    fn read(module: &Entry<'a>) -> Result<Self, OptimizerError> {
        let mutable = match module.get("mutable") {
            None => false,
            Some(given) => given.as_bool().ok_or_else(|| module.wrong("mutable", given, "true or false"))?,
        };
        let field = module.text("candidate_field")?.filter(|field| !field.trim().is_empty());
        if mutable && field.is_none() {
            let place = module.place("candidate_field");
            return Err(broken(format!("{place} is missing, and the module is mutable")));
        }
        Ok(Self {
            id: module.required("module_id")?,
            role: module.text("role")?,
            content: module.text("content")?,
            mutable,
            field,
            variables: module.texts("template_variables")?,
        })
    }

    fn identity(&self) -> Value {
        json!([self.id, self.role, self.content, self.mutable, self.field])
    }
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

/// The texts to start from: those of the config if it has any, else the container's.
fn read_seed(document: &Entry<'_>, config: &Config, fields: &[&str]) -> Result<Payload, OptimizerError> {
    let mut seed = config.seed_candidate.clone();
    if seed.is_empty() {
        let given = match document.get("seed_candidate") {
            None => &Map::new(),
            Some(Value::Object(given)) => given,
            Some(other) => return Err(document.wrong("seed_candidate", other, "an object of texts")),
        };
        if given.is_empty() {
            return Err(broken("seed_candidate is missing, and the config has no [seed_candidate]".into())
                .with_hint("Give the texts to start from in the program's seed_candidate or under [seed_candidate]."));
        }
        for (field, text) in given {
            let wrong = || document.wrong(&format!("seed_candidate.{field}"), text, "a text");
            seed.insert(field.clone(), text.as_str().ok_or_else(wrong)?.to_owned());
        }
    }
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
fn check_configured(config: &Config, listed: &[Listed<'_>], fields: &[&str], seed: &Payload) -> Vec<OptimizerError> {
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

/// An object of the document, and its place there.
struct Entry<'a> {
    place: String,
    object: &'a Map<String, Value>,
}

impl<'a> Entry<'a> {
    /// The place of one of its fields.
    fn place(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    /// A field; one that is null is not there.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, OptimizerError> {
        let text = |value: &'a Value| value.as_str().ok_or_else(|| self.wrong(name, value, "a text"));
        self.get(name).map(text).transpose()
    }

    fn required(&self, name: &str) -> Result<&'a str, OptimizerError> {
        self.text(name)?.filter(|text| !text.trim().is_empty()).ok_or_else(|| self.missing(name))
    }

    fn texts(&self, name: &str) -> Result<Vec<&'a str>, OptimizerError> {
        let text = |(index, value): (usize, &'a Value)| {
            value.as_str().ok_or_else(|| self.wrong(&format!("{name}[{index}]"), value, "a text"))
        };
        self.list(name)?.iter().enumerate().map(text).collect()
    }

    /// The entries of a list that must have at least one, each an object.
    fn objects(&self, name: &str) -> Result<Vec<Entry<'a>>, OptimizerError> {
        let entry = |(index, value): (usize, &'a Value)| {
            let name = format!("{name}[{index}]");
            let object = value.as_object().ok_or_else(|| self.wrong(&name, value, "an object"))?;
            Ok(Entry { place: self.place(&name), object })
        };
        let list = self.list(name)?;
        if list.is_empty() { Err(self.missing(name)) } else { list.iter().enumerate().map(entry).collect() }
    }

    fn list(&self, name: &str) -> Result<&'a [Value], OptimizerError> {
        let list = |value: &'a Value| value.as_array().ok_or_else(|| self.wrong(name, value, "a list"));
        Ok(self.get(name).map(list).transpose()?.map_or(&[], Vec::as_slice))
    }

    fn missing(&self, name: &str) -> OptimizerError {
        broken(format!("{} is missing or empty", self.place(name)))
    }

    fn wrong(&self, name: &str, value: &Value, expected: &str) -> OptimizerError {
        broken(format!("{} is {}, not {expected}", self.place(name), shown_value(value)))
    }
}

fn broken(problem: String) -> OptimizerError {
    OptimizerError::new(ErrorCode::Container, format!("the container's program is not valid: {problem}"))
        .with_hint("The container's GET program route must answer with a whole prompt_program.v1 document.")
}

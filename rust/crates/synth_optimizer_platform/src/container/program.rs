//! Validates the container's program and extracts the fields that the search may change.

use serde_json::{Map, Value, json};

use super::credential_check::find_credential;
use crate::http::describe_value;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::nearest;
use synth_optimizer_core::model::canonical::canonical_digest;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::ids::Payload;
use synth_optimizer_core::model::program::{Module, Program};

const VERSION: &str = "prompt_program.v1";

/// The parts of a valid program that the search and the rollouts need.
#[derive(Debug)]
pub(super) struct CheckedProgram {
    pub(super) program: Program,
    /// Digest of all modules, including the fixed ones, because their texts also affect the answers.
    pub(super) digest: String,
    /// The task family, sent with every rollout.
    pub(super) family: String,
}

/// Checks every rule of the program. Returns the first problem of the document, or else all problems of the config's
/// fields. Each error names the field.
pub(super) fn read_program(document: &Value, config: &Config) -> Result<CheckedProgram, Vec<OptimizerError>> {
    let (program_id, modules, fields, seed) = read(document, config).map_err(|error| vec![error])?;
    let problems = check_configured(config, &modules, &fields, &seed);
    if !problems.is_empty() {
        return Err(problems);
    }
    let family = document.pointer("/metadata/task_id").and_then(Value::as_str).filter(|id| !id.trim().is_empty());
    let identity = modules.iter().map(|module| (module.id, module.role, module.content, module.mutable, module.field));
    let identity: Vec<_> = identity.collect();
    let program = Program {
        program_id: program_id.to_owned(),
        modules: fields.iter().map(|field| module(field, &modules, &seed)).collect(),
        targets: config.candidate.target_modules.clone(),
        seed,
    };
    Ok(CheckedProgram { program, digest: canonical_digest(&identity), family: family.unwrap_or(program_id).to_owned() })
}

/// The id of the program, its modules, their mutable fields and the initial candidate.
type ParsedProgram<'a> = (&'a str, Vec<ModuleEntry<'a>>, Vec<&'a str>, Payload);

/// Checks the document itself. `check_configured` checks it against the fields of the config.
fn read<'a>(document: &'a Value, config: &Config) -> Result<ParsedProgram<'a>, OptimizerError> {
    if !document.is_object() {
        return Err(container_error(format!("the program is {}, not an object", describe_value(document))));
    }
    let document = JsonField { place: String::new(), value: document };
    let version = document.field("version").required()?;
    if version.trim() != VERSION {
        return Err(container_error(format!("version is {:?}, not {VERSION:?}", describe_value(&version.into()))));
    }
    let program_id = document.field("program_id").required()?;
    let modules = document.field("modules").objects()?.iter().map(ModuleEntry::read).collect::<Result<Vec<_>, _>>()?;
    let fields = mutable_fields(&modules);
    if fields.is_empty() {
        return Err(container_error("modules contains no module with mutable = true".into()));
    }
    for target in document.field("target_modules").objects()? {
        target.field("module_id").required()?;
        let field = target.field("candidate_field");
        must_be_mutable(&field.place, field.required()?, &fields)?;
        target.field("objective").text()?;
    }
    for entry in document.field("rollout_overlay_schema").field("candidate_fields").list()? {
        must_be_mutable(&entry.place, entry.whole_text()?, &fields)?;
    }
    let seed = read_seed(&document.field("seed_candidate"), config, &fields)?;
    Ok((program_id, modules, fields, seed))
}

/// One entry of `modules`.
struct ModuleEntry<'a> {
    id: &'a str,
    role: Option<&'a str>,
    content: Option<&'a str>,
    mutable: bool,
    field: Option<&'a str>,
    variables: Vec<&'a str>,
}

impl<'a> ModuleEntry<'a> {
    fn read(module: &JsonField<'a>) -> Result<Self, OptimizerError> {
        let mutable = module.field("mutable");
        let mutable = match mutable.value {
            Value::Null => false,
            given => given.as_bool().ok_or_else(|| mutable.wrong("true or false"))?,
        };
        let field = module.field("candidate_field");
        let named = field.text()?.filter(|name| !name.trim().is_empty());
        if mutable && named.is_none() {
            return Err(container_error(format!("{} is missing in a mutable module", field.place)));
        }
        Ok(Self {
            id: module.field("module_id").required()?,
            role: module.field("role").text()?,
            content: module.field("content").text()?,
            mutable,
            field: named,
            variables: module
                .field("template_variables")
                .list()?
                .iter()
                .map(JsonField::whole_text)
                .collect::<Result<_, _>>()?,
        })
    }
}

/// Returns the mutable fields in the order of the modules, without duplicates.
fn mutable_fields<'a>(modules: &[ModuleEntry<'a>]) -> Vec<&'a str> {
    let mut fields = Vec::new();
    for field in modules.iter().filter(|module| module.mutable).filter_map(|module| module.field) {
        if !fields.contains(&field) {
            fields.push(field);
        }
    }
    fields
}

/// Returns the initial candidate: the texts of the config if it has any, else those of the container.
fn read_seed(given: &JsonField<'_>, config: &Config, fields: &[&str]) -> Result<Payload, OptimizerError> {
    let mut seed = config.seed_candidate.clone();
    if seed.is_empty() {
        let texts = match given.value {
            Value::Null => &Map::new(),
            Value::Object(texts) => texts,
            _ => return Err(given.wrong("an object with text values")),
        };
        if texts.is_empty() {
            return Err(container_error("seed_candidate is missing, and the config has no [seed_candidate]".into())
                .with_hint("Add the initial texts to the program's seed_candidate or to [seed_candidate]."));
        }
        for name in texts.keys() {
            seed.insert(name.clone(), given.field(name).whole_text()?.to_owned());
        }
    }
    for (field, text) in &seed {
        must_be_mutable(&format!("seed_candidate.{field}"), field, fields)?;
        if text.trim().is_empty() {
            return Err(container_error(format!("seed_candidate.{field} is empty")));
        }
    }
    if let Some(place) = find_credential("seed_candidate", &json!(seed)) {
        return Err(container_error(format!("{place} is named like a credential"))
            .with_hint("Keep keys in the container's environment; rename the field if it holds no key."));
    }
    Ok(seed)
}

/// Checks that every configured target field exists, is mutable and has a text in the initial candidate.
fn check_configured(
    config: &Config,
    modules: &[ModuleEntry<'_>],
    fields: &[&str],
    seed: &Payload,
) -> Vec<OptimizerError> {
    let mut problems = Vec::new();
    for (index, target) in config.candidate.target_modules.iter().enumerate() {
        let place = format!("candidate.target_modules[{index}]");
        if !fields.contains(&target.as_str()) {
            let owner =
                modules.iter().find(|module| module.id == target && module.mutable).and_then(|owner| owner.field);
            let fixed = modules.iter().any(|module| module.field == Some(target) || module.id == target);
            let hint = match (owner, fixed) {
                (Some(field), _) => format!("{target:?} is a module; write its candidate field {field:?}."),
                (None, true) => format!("{target:?} is fixed; mutable fields are {}.", fields.join(", ")),
                (None, false) => field_hint(target, fields),
            };
            let message = format!("`{place}` names {target:?}, which is not a mutable field of the program");
            problems.push(super::container_error(message, hint));
        } else if !seed.contains_key(target) {
            let message = format!("seed_candidate has no text for {target:?}, which `{place}` names");
            problems.push(
                container_error(message).with_hint("Add an initial text for every field that the search may change."),
            );
        }
    }
    problems
}

/// Creates the module of a field. Keeps only template variables whose placeholder occurs in the initial text.
fn module(field: &str, modules: &[ModuleEntry<'_>], seed: &Payload) -> Module {
    let start = seed.get(field).map(String::as_str).unwrap_or_default();
    let mut template_variables = Vec::new();
    for name in modules.iter().filter(|module| module.mutable && module.field == Some(field)).flat_map(|m| &m.variables)
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
    Err(container_error(format!("{place} names {field:?}, which is not the field of a mutable module"))
        .with_hint(field_hint(field, fields)))
}

fn field_hint(word: &str, fields: &[&str]) -> String {
    match nearest(word, fields.iter().copied()) {
        Some(field) => format!("Did you mean {field:?}?"),
        None => format!("Mutable fields are {}.", fields.join(", ")),
    }
}

/// A value of the document with its path. A missing value is null.
struct JsonField<'a> {
    place: String,
    value: &'a Value,
}

impl<'a> JsonField<'a> {
    fn field(&self, name: &str) -> JsonField<'a> {
        let place = if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) };
        JsonField { place, value: self.value.get(name).unwrap_or(&Value::Null) }
    }

    fn whole_text(&self) -> Result<&'a str, OptimizerError> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    fn text(&self) -> Result<Option<&'a str>, OptimizerError> {
        if self.value.is_null() { Ok(None) } else { self.whole_text().map(Some) }
    }

    fn required(&self) -> Result<&'a str, OptimizerError> {
        self.text()?.filter(|text| !text.trim().is_empty()).ok_or_else(|| self.missing())
    }

    fn list(&self) -> Result<Vec<JsonField<'a>>, OptimizerError> {
        let items = match self.value {
            Value::Null => &[],
            Value::Array(items) => items.as_slice(),
            _ => return Err(self.wrong("a list")),
        };
        let entry = |(index, value)| JsonField { place: format!("{}[{index}]", self.place), value };
        Ok(items.iter().enumerate().map(entry).collect())
    }

    /// Returns the entries of a list. The list must not be empty, and every entry must be an object.
    fn objects(&self) -> Result<Vec<JsonField<'a>>, OptimizerError> {
        let entries = self.list()?;
        match entries.iter().find(|entry| !entry.value.is_object()) {
            Some(entry) => Err(entry.wrong("an object")),
            None if entries.is_empty() => Err(self.missing()),
            None => Ok(entries),
        }
    }

    fn missing(&self) -> OptimizerError {
        container_error(format!("{} is missing or empty", self.place))
    }

    fn wrong(&self, expected: &str) -> OptimizerError {
        container_error(format!("{} is {}, not {expected}", self.place, describe_value(self.value)))
    }
}

fn container_error(problem: String) -> OptimizerError {
    let hint = "Return a complete prompt_program.v1 document from the container's program route.";
    super::container_error(format!("the container's program is invalid: {problem}"), hint)
}

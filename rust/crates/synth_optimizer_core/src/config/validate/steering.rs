//! Rules about what a user demands of candidates: instructions, texts to keep, guarded rows and the length as an objective.

use super::super::gepa::{CANDIDATE_TOKENS, GuardRow, objective_names};
use super::super::report::Code;
use super::super::steering::{MAX_INSTRUCTIONS_CHARS, MAX_KEEP_CHARS, text_problem};
use super::{Validator, is_blank};

pub(super) fn check(rules: &mut Validator<'_, '_>) {
    instructions(rules);
    keep(rules);
    guards(rules);
    length(rules);
}

fn instructions(rules: &mut Validator<'_, '_>) {
    const FIELDS: [&str; 2] = ["proposer.instructions", "proposer.instructions_file"];
    let proposer = &rules.config.proposer;
    let Some(text) = &proposer.instructions else { return };
    if let Some((code, problem, hint)) = text_problem(text, MAX_INSTRUCTIONS_CHARS) {
        rules.add(code, FIELDS[0], format!("`{}` {problem}", FIELDS[0]), hint);
    }
    rules.add_if(
        proposer.instructions_file.is_some() && rules.can_read(&FIELDS),
        Code::ConflictingFields,
        FIELDS[1],
        "`proposer.instructions` and `proposer.instructions_file` are both set",
        "Keep one: the text itself, or the file that holds it.",
    );
}

fn keep(rules: &mut Validator<'_, '_>) {
    let config = rules.config;
    let targets = &config.candidate.target_modules;
    let mut seen = Vec::new();
    for (index, span) in config.candidate.keep.iter().enumerate() {
        let [text, field] = ["text", "field"].map(|name| format!("candidate.keep[{index}].{name}"));
        if span.text.is_empty() {
            let hint = "Give the literal text that must stay in the candidate.";
            rules.add(Code::Required, &text, format!("`{text}` is required"), hint);
            continue;
        }
        if let Some((code, problem, hint)) = text_problem(&span.text, MAX_KEEP_CHARS) {
            rules.add(code, &text, format!("`{text}` {problem}"), hint);
        }
        if seen.contains(&span) {
            rules.add(Code::Duplicate, &text, format!("`candidate.keep` lists {:?} twice", span.text), "Keep one.");
        }
        seen.push(span);
        let is_target = |name: &String| targets.is_empty() || targets.contains(name);
        if let Some(name) = span.field.as_ref().filter(|name| !is_target(name)) {
            let message = format!("`{field}` is {name:?}, which is not in `candidate.target_modules`");
            let hint = format!("Use one of: {}.", targets.join(", "));
            if rules.can_read(&["candidate.target_modules"]) {
                rules.add(Code::KeepSpanMissing, &field, message, hint);
            }
            continue;
        }
        // The other initial texts are known once the container's program is loaded.
        let fields: Vec<&String> = span.field.as_ref().map_or(targets.iter().collect(), |field| vec![field]);
        let given: Vec<&String> = fields.iter().filter_map(|field| config.seed_candidate.get(*field)).collect();
        let is_lost =
            !given.is_empty() && given.len() == fields.len() && !given.iter().any(|it| it.contains(&span.text));
        rules.add_if(
            is_lost && rules.can_read(&["candidate.target_modules", "seed_candidate"]),
            Code::KeepSpanMissing,
            &text,
            format!("the text to keep {:?} is in no initial text of `[seed_candidate]`", span.text),
            "Copy it from the initial text, with its case and white space, or remove the entry.",
        );
    }
}

fn guards(rules: &mut Validator<'_, '_>) {
    let config = rules.config;
    for (index, entry) in config.gepa.guard_ids.iter().enumerate() {
        let field = format!("gepa.guard_ids[{index}]");
        match GuardRow::read(entry) {
            None => {
                let message = format!("`{field}` must be a row id in quotes or a whole number, not {entry}");
                rules.add(Code::WrongType, &field, message, "Write it like \"train:3\" or 3.");
            }
            Some(GuardRow::Id(id)) if is_blank(&id) => {
                rules.add(Code::Blank, &field, format!("`{field}` is blank"), "Give the id of a train row.");
            }
            Some(GuardRow::Number(number)) if config.dataset.is_none() && config.taskset.is_some() => {
                let message = format!("`{field}` is the row number {number}, but the rows are tasks of [taskset]");
                rules.add(Code::GuardRowUnknown, &field, message, "Use the id of a train task.");
            }
            Some(_) => {}
        }
    }
}

/// Refuses the length as the deciding objective: the search would look for the shortest text, whatever it does.
fn length(rules: &mut Validator<'_, '_>) {
    const FIELDS: [&str; 2] = ["gepa.selection_objective", "gepa.objective_keys"];
    let gepa = &rules.config.gepa;
    let is_first = objective_names(gepa).first().is_some_and(|name| name == CANDIDATE_TOKENS);
    rules.add_if(
        is_first && rules.can_read(&FIELDS),
        Code::LengthDecides,
        FIELDS[usize::from(gepa.selection_objective.is_none())],
        format!("`{CANDIDATE_TOKENS}` would be the deciding objective, and the shortest text would win"),
        format!("Name a score first: objective_keys = [\"outcome_reward\", \"{CANDIDATE_TOKENS}\"]."),
    );
}

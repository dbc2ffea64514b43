//! Checks of a proposal before any rollout is spent on it.

use std::collections::BTreeSet;

use synth_optimizer_core::config::gepa::LeakagePolicy;
use synth_optimizer_core::model::answer::Proposal;
use synth_optimizer_core::model::event_fields::Problem;
use synth_optimizer_core::model::ids::{Payload, RowId};

use crate::edits::{edited, kept_share, new_texts, quoted};
use crate::engine::GepaEngine;
use crate::state::Generation;

/// A proposal that passed all checks.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedProposal {
    pub payload: Payload,
    pub changed_fields: Vec<String>,
    /// Fields that the proposal changed without being asked. Their changes are left out.
    pub dropped_fields: Vec<String>,
    /// Repeated train text, if the policy is `warn`: field, row and length.
    pub repeated: Vec<(String, RowId, u32)>,
    /// Share of the base's lines that the changed fields keep; `None` if the base has no lines there.
    pub kept_share: Option<f64>,
}

impl GepaEngine {
    /// Applies the requested changes of a proposal to its base texts, or returns all of its problems. Changes that were not
    /// requested are left out; a proposal without any other change is refused. Texts that edits make are checked like whole
    /// texts.
    pub fn check_proposal(
        &self,
        generation: &Generation,
        proposal: &Proposal,
    ) -> Result<CheckedProposal, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut repeated = Vec::new();
        let mut payload = generation.base.clone();
        let has_edits = edited(proposal).next().is_some();
        if proposal.fields.is_empty() && !has_edits {
            problems.push(problem("empty_proposal", None, "the proposal changes no field".into()));
        }
        let texts = new_texts(generation, proposal, &mut problems);
        let changes = texts.iter().filter(|(field, text)| generation.base.get(*field) != Some(*text));
        let (requested, other): (Vec<_>, Vec<_>) =
            changes.partition(|(field, _)| generation.components.contains(*field));
        let other_edits =
            edited(proposal).map(|(field, _)| field).filter(|field| !generation.components.contains(field));
        let dropped: BTreeSet<&String> = other.into_iter().map(|(field, _)| field).chain(other_edits).collect();
        for (field, text) in &requested {
            let base = generation.base.get(*field).map_or("", String::as_str);
            self.check_field(base, field, text, &mut problems);
            self.check_leakage(field, text, &mut problems, &mut repeated);
            payload.insert((*field).clone(), (*text).clone());
        }
        problems.extend(if requested.is_empty() { None } else { self.length_problem(&payload) });
        if requested.is_empty() || !problems.is_empty() {
            problems.extend(dropped.iter().map(|field| self.not_requested(generation, field)));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let changed_fields: Vec<String> = requested.into_iter().map(|(field, _)| field.clone()).collect();
        let dropped_fields = dropped.into_iter().cloned().collect();
        let kept_share = kept_share(&generation.base, &payload, &changed_fields);
        Ok(CheckedProposal { payload, changed_fields, dropped_fields, repeated, kept_share })
    }

    fn not_requested(&self, generation: &Generation, field: &str) -> Problem {
        let program = &self.inputs.program;
        if program.modules.iter().any(|module| module.field == field) {
            let wanted = generation.components.join(", ");
            return problem("field_not_requested", Some(field), format!("only {wanted} may change"));
        }
        let known = program.targets.join(", ");
        problem("field_unknown", Some(field), format!("unknown field; the program has {known}"))
    }

    /// Checks the new text of a requested field.
    fn check_field(&self, base: &str, field: &str, text: &str, problems: &mut Vec<Problem>) {
        if text.trim().is_empty() {
            problems.push(problem("field_empty", Some(field), "the text is empty".into()));
            return;
        }
        let (length, most) = (text.chars().count(), self.settings.gepa.max_field_chars as usize);
        if length > most {
            let message = format!("the text has {length} characters; at most {most} are allowed");
            problems.push(problem("field_too_long", Some(field), message));
        }
        let modules = self.inputs.program.modules.iter().filter(|module| module.field == field);
        let lost: Vec<&str> = modules
            .flat_map(|module| &module.template_variables)
            .map(String::as_str)
            .filter(|variable| base.contains(variable) && !text.contains(variable))
            .collect();
        if !lost.is_empty() {
            let message = format!("the text must keep {}", lost.join(", "));
            problems.push(problem("template_variable_lost", Some(field), message));
        }
        self.check_kept_texts(field, text, problems);
    }

    /// Returns the problems of a text that carries a change over. Variables of both texts must survive.
    pub(crate) fn carried_problems(&self, field: &str, bases: [&String; 2], text: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        for base in bases {
            self.check_field(base, field, text, &mut problems);
        }
        self.check_leakage(field, text, &mut problems, &mut Vec::new());
        problems
    }

    fn check_leakage(
        &self,
        field: &str,
        text: &str,
        problems: &mut Vec<Problem>,
        repeated: &mut Vec<(String, RowId, u32)>,
    ) {
        if let Some(leak) = self.heldout_leaks.find(text) {
            // The proposer sees this message, so it does not name the text or the row.
            let message = format!("{} characters repeat text of rows that are not in the evidence", leak.chars);
            problems.push(problem("heldout_leakage", Some(field), message));
        }
        let policy = self.settings.gepa.leakage.policy;
        if policy == LeakagePolicy::Allow {
            return;
        }
        let Some(leak) = self.train_leaks.find(text) else { return };
        let row = &self.inputs.train[leak.row].id;
        match policy {
            LeakagePolicy::Forbid => {
                let (chars, repeated) = (leak.chars, quoted(&leak.text));
                let message = format!("{chars} characters repeat train row {row} verbatim: {repeated}");
                problems.push(problem("train_leakage", Some(field), message));
            }
            LeakagePolicy::Warn => repeated.push((field.to_owned(), row.clone(), leak.chars)),
            LeakagePolicy::Allow => {}
        }
    }
}

pub(crate) fn problem(code: &str, field: Option<&str>, message: String) -> Problem {
    Problem { code: code.to_owned(), field: field.map(str::to_owned), message }
}

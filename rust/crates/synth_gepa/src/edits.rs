//! Proposals with edits: which fields the proposer edits, the texts that edits make, and how much of the parent they keep.

use similar::{Algorithm, DiffOp, capture_diff_slices};
use synth_optimizer_core::config::proposer::ProposalEdits;
use synth_optimizer_core::model::answer::Proposal;
use synth_optimizer_core::model::edit::{Edit, EditCause, EditFault, MAX_COUNTED, lay_over};
use synth_optimizer_core::model::event_fields::Problem;
use synth_optimizer_core::model::ids::Payload;

use crate::proposal::problem;
use crate::state::Generation;

/// `proposer.edits = "auto"` asks for whole texts up to this many lines.
const MAX_REWRITTEN_LINES: usize = 5;

/// Maximum number of characters of a quoted text in a problem.
const MAX_QUOTED_CHARS: usize = 80;

/// Returns the fields of a generation that the proposer should change by edits.
pub(crate) fn edit_fields(generation: &Generation, edits: ProposalEdits) -> Vec<String> {
    let is_long = |field: &&String| match edits {
        ProposalEdits::Auto => {
            generation.base.get(*field).is_some_and(|text| text.lines().count() > MAX_REWRITTEN_LINES)
        }
        ProposalEdits::Always => true,
        ProposalEdits::Never => false,
    };
    generation.components.iter().filter(is_long).cloned().collect()
}

/// Returns the new texts of a proposal: whole texts, and the base texts of requested fields with their edits. A field whose edits
/// cannot be applied adds problems instead.
pub(crate) fn new_texts(generation: &Generation, proposal: &Proposal, problems: &mut Vec<Problem>) -> Payload {
    let mut texts = proposal.fields.clone();
    for (field, edits) in edited(proposal).filter(|(field, _)| generation.components.contains(field)) {
        if proposal.fields.contains_key(field) {
            let message = "the field has a whole text and edits; give only one of them".to_owned();
            problems.push(problem("edits_and_text", Some(field), message));
            continue;
        }
        let base = generation.base.get(field).map_or("", String::as_str);
        match lay_over(base, edits) {
            Ok(text) => {
                texts.insert(field.clone(), text);
            }
            Err(faults) => problems.extend(faults.iter().map(|fault| edit_problem(field, fault))),
        }
    }
    texts
}

/// Returns the fields of a proposal that have edits. An empty list changes nothing.
pub(crate) fn edited(proposal: &Proposal) -> impl Iterator<Item = (&String, &Vec<Edit>)> {
    proposal.edits.iter().filter(|(_, edits)| !edits.is_empty())
}

fn edit_problem(field: &str, fault: &EditFault) -> Problem {
    let EditFault { number, operation, find, cause } = fault;
    let (edit, find) = (format!("edit {number} ({operation})"), quoted(find));
    let field = Some(field);
    match cause {
        EditCause::EmptyFind => problem("edit_empty", field, format!("{edit}: `find` is empty")),
        EditCause::EmptyText => problem("edit_empty", field, format!("{edit}: `text` is empty")),
        EditCause::Ambiguous { count } => {
            let count = if *count == MAX_COUNTED { format!("at least {count}") } else { count.to_string() };
            let message = format!(
                "{edit}: {find} occurs {count} times in the text, and must occur once; quote more of what surrounds it"
            );
            problem("edit_ambiguous", field, message)
        }
        EditCause::ChangedBefore => {
            let message = format!("{edit}: {find} occurs 0 times, because an edit before it changed this place");
            problem("edit_not_found", field, message)
        }
        EditCause::NotTogether => {
            let message = format!(
                "{edit}: {find} occurs 0 times in the text; its parts occur, but with other spaces, line breaks or order"
            );
            problem("edit_not_found", field, message)
        }
        EditCause::NotFound { nearest } => {
            let nearest = nearest.as_ref().map_or_else(
                || "nothing in the text is like it".to_owned(),
                |nearest| format!("the nearest line is {}", quoted(nearest)),
            );
            problem("edit_not_found", field, format!("{edit}: {find} occurs 0 times in the text; {nearest}"))
        }
    }
}

/// Returns the beginning of a text in quotation marks.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Returns the share of the lines of the base that the new texts keep, in the named fields; `None` if the base has no lines there.
pub(crate) fn kept_share(base: &Payload, texts: &Payload, fields: &[String]) -> Option<f64> {
    let (mut kept, mut all) = (0, 0);
    for field in fields {
        let [old, new] = [base, texts].map(|payload| payload.get(field).map_or("", String::as_str));
        let [old, new] = [old, new].map(|text| text.lines().collect::<Vec<_>>());
        all += old.len();
        let equal = capture_diff_slices(Algorithm::Myers, &old, &new).into_iter().map(|operation| match operation {
            DiffOp::Equal { len, .. } => len,
            DiffOp::Delete { .. } | DiffOp::Insert { .. } | DiffOp::Replace { .. } => 0,
        });
        kept += equal.sum::<usize>();
    }
    (all > 0).then(|| kept as f64 / all as f64)
}

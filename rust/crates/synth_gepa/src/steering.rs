//! What the user demands of candidates: texts to keep, guarded rows and a maximum length.

use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::{CANDIDATE_TOKENS, GuardRow, candidate_tokens};
use synth_optimizer_core::model::command::{CandidateRules, KeptText, LengthRule};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::Problem;
use synth_optimizer_core::model::ids::{Payload, TrainRow};
use synth_optimizer_core::model::program::{Inputs, Program};

use crate::engine::GepaEngine;
use crate::proposal::problem;
use crate::state::{Candidate, Generation, State};

/// Maximum number of characters of a kept text that a message repeats.
const MAX_SHOWN_CHARS: usize = 120;
/// Maximum number of guarded rows that one reason names.
const MAX_NAMED_ROWS: usize = 5;

/// Why a candidate is not accepted, although its criterion is met: a stable code and the reason in words.
pub(crate) type GuardViolation = (&'static str, String);

/// Returns the texts to keep by field. Fails if the initial candidate does not contain one of them.
pub(crate) fn kept_texts(config: &Config, program: &Program) -> Result<Vec<KeptText>, OptimizerError> {
    let mut kept = Vec::new();
    for span in &config.candidate.keep {
        let has_text = |field: &&String| program.seed.get(*field).is_some_and(|text| text.contains(&span.text));
        let is_meant = |field: &&String| span.field.as_ref().is_none_or(|only| only == *field);
        let fields: Vec<&String> = program.targets.iter().filter(is_meant).filter(has_text).collect();
        if fields.is_empty() {
            let place = match &span.field {
                Some(field) => format!("the initial text of the field {field:?}"),
                None => format!("any initial text of {}", program.targets.join(", ")),
            };
            let message = format!("the text to keep {} is not in {place}", shown(&span.text));
            return Err(OptimizerError::new(ErrorCode::Config, message).with_hint(
                "Copy it from the initial text, with its case and white space, or remove it from [[candidate.keep]].",
            ));
        }
        kept.extend(fields.into_iter().map(|field| KeptText { field: field.clone(), text: span.text.clone() }));
    }
    Ok(kept)
}

/// Returns the guarded rows in ascending order. Fails if one is not a row of the full evaluation.
pub(crate) fn guarded_rows(config: &Config, inputs: &Inputs) -> Result<Vec<TrainRow>, OptimizerError> {
    let mut guarded = Vec::new();
    for entry in &config.gepa.guard_ids {
        let place = match GuardRow::read(entry) {
            // Rows are loaded in the order of their row numbers in the configuration, or all rows of the split from 0 on.
            Some(GuardRow::Number(number)) => {
                match config.dataset.as_ref().and_then(|rows| rows.train_seeds.listed()) {
                    Some(listed) => listed.iter().position(|seed| *seed == number),
                    None => usize::try_from(number).ok(),
                }
            }
            Some(GuardRow::Id(id)) => inputs.train.iter().position(|row| row.id.as_str() == id),
            None => None,
        };
        let row = place.filter(|place| *place < inputs.train.len()).map(|place| TrainRow(place as u32));
        match row {
            Some(row) if inputs.pareto_pool.contains(&row) => guarded.push(row),
            Some(_) => {
                let message = format!("gepa.guard_ids names {entry}, which no full evaluation measures");
                let hint = "Add the row to the Pareto pool (pareto_eval or pareto), or remove it from guard_ids.";
                return Err(OptimizerError::new(ErrorCode::Config, message).with_hint(hint));
            }
            None => {
                let is_heldout = inputs.heldout.iter().any(|row| entry.as_str() == Some(row.id.as_str()));
                let what = if is_heldout { "is a held-out row" } else { "is not a train row of this run" };
                let known: Vec<&str> = inputs.train.iter().take(3).map(|row| row.id.as_str()).collect();
                let hint = format!("Name train rows, such as {}.", known.join(", "));
                let message = format!("gepa.guard_ids names {entry}, which {what}");
                return Err(OptimizerError::new(ErrorCode::Config, message).with_hint(hint));
            }
        }
    }
    guarded.sort_unstable();
    guarded.dedup();
    Ok(guarded)
}

impl GepaEngine {
    /// Returns the rules that the proposer of a generation has to know.
    pub(crate) fn candidate_rules(&self, generation: &Generation) -> CandidateRules {
        let is_requested = |kept: &&KeptText| generation.components.contains(&kept.field);
        CandidateRules {
            keep: self.kept.iter().filter(is_requested).cloned().collect(),
            length: self
                .settings
                .gepa
                .max_candidate_tokens
                .map(|max_tokens| LengthRule { max_tokens, base_tokens: self.tokens(&generation.base) }),
            guarded: self.train_ids(&self.guarded),
        }
    }

    /// Reports the texts to keep that a new text of a field has lost.
    pub(crate) fn check_kept_texts(&self, field: &str, text: &str, problems: &mut Vec<Problem>) {
        let lost = self.kept.iter().filter(|kept| kept.field == field && !text.contains(&kept.text));
        problems.extend(lost.map(|kept| {
            problem("kept_text_lost", Some(field), format!("the text must keep {} word for word", shown(&kept.text)))
        }));
    }

    /// Returns a problem if the texts are longer than the user allows.
    pub(crate) fn length_problem(&self, payload: &Payload) -> Option<Problem> {
        let most = self.settings.gepa.max_candidate_tokens?;
        let tokens = self.tokens(payload);
        (tokens > u64::from(most)).then(|| {
            let message = format!(
                "the candidate has about {tokens} tokens (characters of all target texts divided by 4); at most {most} are allowed"
            );
            problem("candidate_too_long", None, message)
        })
    }

    /// Returns the estimated tokens of a candidate's target texts.
    pub(crate) fn tokens(&self, payload: &Payload) -> u64 {
        candidate_tokens(payload, &self.inputs.program.targets)
    }

    /// Returns whether the length of candidates is an objective of the run.
    pub(crate) fn has_length_objective(&self) -> bool {
        self.settings.objectives.iter().any(|objective| objective.name == CANDIDATE_TOKENS)
    }

    /// Returns the violation if a candidate is worse than the best one on a guarded row, or has no score on it. `is_measured`
    /// says whether the row had its chance to get a score.
    ///
    /// The best candidate is the reference, because it is what an accepted candidate replaces. So a guarded row never gets
    /// worse from one best candidate to the next, and a gain on it is kept as well.
    pub(crate) fn guard_violation(
        &self,
        state: &State,
        candidate: &Candidate,
        is_measured: impl Fn(&TrainRow) -> bool,
    ) -> Option<GuardViolation> {
        let best = state.candidate(state.best?);
        let (mut worse, mut missing) = (Vec::new(), Vec::new());
        for row in self.guarded.iter().filter(|row| is_measured(row)) {
            let id = self.inputs.train_id(*row);
            match (candidate.score(*row), best.score(*row)) {
                (None, _) => missing.push(id.to_string()),
                (Some(own), Some(reference)) => {
                    let delta = self.settings.oriented(0, own) - self.settings.oriented(0, reference);
                    if delta < -f64::EPSILON {
                        worse.push(format!("{id} ({reference} before, {own} now)"));
                    }
                }
                // The initial candidate failed on this row, so any score is not worse.
                (Some(_), None) => {}
            }
        }
        if !worse.is_empty() {
            return Some(("guarded_row_worse", format!("worse on {}", names(&worse, "guarded row"))));
        }
        (!missing.is_empty())
            .then(|| ("guarded_row_missing", format!("no score on {}", names(&missing, "guarded row"))))
    }

    /// Moves guarded rows to the front, so that a partial evaluation measures them first.
    pub(crate) fn put_guarded_first(&self, rows: &mut [TrainRow]) {
        rows.sort_by_key(|row| !self.guarded.contains(row));
    }
}

fn names(rows: &[String], noun: &str) -> String {
    let more = rows.len().saturating_sub(MAX_NAMED_ROWS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let plural = if rows.len() == 1 { "" } else { "s" };
    format!("{noun}{plural} {}{more}", rows[..rows.len().min(MAX_NAMED_ROWS)].join(", "))
}

/// Returns a text in quotes, shortened.
fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{:?}… ({} characters)", &text[..end], text.chars().count()),
        None => format!("{text:?}"),
    }
}

//! A proposer without a model: it reads the missing rule in the feedback and adds it to the text.

use std::time::Duration;

use serde_json::{Value, json};
use synth_optimizer_core::model::answer::{CallFailure, FailureClass, Proposal, ProposalAnswer};
use synth_optimizer_core::model::event_fields::Operation;
use synth_optimizer_core::model::ids::Payload;
use synth_optimizer_core::model::usage::{Cost, Usage};
use synth_optimizer_platform::proposer::{ProposalRequest, Proposer, TurnFailure, TurnFuture, TurnId};

/// Prefix of the feedback of all test containers: `missing rule: WORD in FIELD`.
const MISSING_RULE_PREFIX: &str = "missing rule: ";

/// A deliberate fault in every generation whose number is a multiple of `every`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptedFault {
    /// The first answer names an unknown field; the repaired answer is valid.
    InvalidFields { every: u32 },
    /// The turn fails at every attempt.
    Fails { every: u32, class: FailureClass },
}

/// Answers depend only on the request. Every proposal adds at most one rule.
#[derive(Debug, Clone, Default)]
pub struct ScriptedProposer {
    pub latency: Duration,
    pub fault: Option<ScriptedFault>,
}

/// A rule that is missing in a field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MissingRule {
    word: String,
    field: String,
}

impl Proposer for ScriptedProposer {
    fn identity(&self) -> Value {
        json!({"backend": "scripted", "model": "scripted", "fault": format!("{:?}", self.fault)})
    }

    fn propose(&self, _: TurnId, request: ProposalRequest) -> TurnFuture<'_> {
        Box::pin(async move {
            if !self.latency.is_zero() {
                tokio::time::sleep(self.latency).await;
            }
            self.answer(&request).map_err(|failure| TurnFailure { failure, fatal: None, outage: None })
        })
    }
}

impl ScriptedProposer {
    /// Returns the answer to a request. It is deterministic.
    pub fn answer(&self, request: &ProposalRequest) -> Result<ProposalAnswer, CallFailure> {
        let words: usize = request.question.base.values().map(|text| text.split_whitespace().count()).sum();
        let usage = Usage {
            prompt_tokens: Some(200 + words as u64),
            completion_tokens: Some(30),
            total_tokens: Some(230 + words as u64),
            cost: Cost::from_usd(Some(0.001)),
        };
        let is_faulty = |every: u32| every > 0 && request.question.generation.is_multiple_of(every);
        let mut proposals = proposals(request);
        match self.fault {
            Some(ScriptedFault::Fails { every, class }) if is_faulty(every) => {
                let message = "the scripted proposer was told to fail".to_owned();
                return Err(CallFailure { class, message, retryable: true, usage, cached: false, models: None });
            }
            Some(ScriptedFault::InvalidFields { every })
                if is_faulty(every) && request.question.problems.is_empty() =>
            {
                let fields = Payload::from([("no_such_field".to_owned(), "text".to_owned())]);
                proposals = vec![Proposal { fields, rationale: "told to be invalid".into(), ..Proposal::default() }];
            }
            _ => {}
        }
        Ok(ProposalAnswer {
            proposals,
            problems: Vec::new(),
            usage,
            cached: false,
            requested_model: "scripted".into(),
            effective_model: "scripted".into(),
        })
    }
}

fn proposals(request: &ProposalRequest) -> Vec<Proposal> {
    if request.question.operation == Operation::Merge {
        return vec![merged(request)];
    }
    let mut found: Vec<Proposal> = Vec::new();
    for missing_rule in missing_rules(request) {
        let Some(text) = request.question.base.get(&missing_rule.field) else { continue };
        let fields = Payload::from([(missing_rule.field.clone(), format!("{text} {}", missing_rule.word))]);
        let known_to_fail = request
            .question
            .carried_failures
            .iter()
            .any(|failure| fields.iter().all(|(field, text)| failure.payload.get(field) == Some(text)));
        if !known_to_fail {
            found.push(Proposal {
                fields,
                rationale: format!("{} was missing in {}", missing_rule.word, missing_rule.field),
                ..Proposal::default()
            });
        }
    }
    found.truncate(request.question.proposal_count as usize);
    if found.is_empty() {
        found.extend(reworded(request));
    }
    found
}

/// Returns a different text with the same rules.
fn reworded(request: &ProposalRequest) -> Option<Proposal> {
    let field = request.question.components.first()?;
    let text =
        format!("{} (seen again in generation {})", request.question.base.get(field)?, request.question.generation);
    Some(Proposal {
        fields: Payload::from([(field.clone(), text)]),
        rationale: "nothing was missing".into(),
        ..Proposal::default()
    })
}

/// Returns the base with every word of the parents.
fn merged(request: &ProposalRequest) -> Proposal {
    let mut fields = Payload::new();
    for field in &request.question.components {
        let mut text = request.question.base.get(field).cloned().unwrap_or_default();
        let parents = request.question.parents.iter().filter_map(|parent| parent.payload.get(field));
        for word in parents.flat_map(|text| text.split_whitespace()) {
            if !has_word(&text, word) {
                text = format!("{text} {word}");
            }
        }
        fields.insert(field.clone(), text);
    }
    Proposal { fields, rationale: "both parents in one".into(), ..Proposal::default() }
}

/// Returns the missing rules in the order of the evidence, without duplicates and without rules that the base contains.
fn missing_rules(request: &ProposalRequest) -> Vec<MissingRule> {
    let mut missing_rules = Vec::new();
    for reply in request.evidence.iter().filter_map(|row| row.reply.as_ref()) {
        let mut texts = Vec::new();
        strings(reply, &mut texts);
        for missing_rule in texts.iter().filter_map(|text| missing_rule(text)) {
            let wanted = request.question.components.contains(&missing_rule.field);
            let known =
                request.question.base.get(&missing_rule.field).is_some_and(|text| has_word(text, &missing_rule.word));
            if wanted && !known && !missing_rules.contains(&missing_rule) {
                missing_rules.push(missing_rule);
            }
        }
    }
    missing_rules
}

fn missing_rule(text: &str) -> Option<MissingRule> {
    let (word, field) = text.split_once(MISSING_RULE_PREFIX)?.1.split_once(" in ")?;
    Some(MissingRule { word: word.trim().to_owned(), field: field.trim().to_owned() })
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|known| known == word)
}

/// Collects all texts of a reply, because containers put feedback in different places.
fn strings<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => out.push(text),
        Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
        Value::Object(entries) => entries.values().for_each(|entry| strings(entry, out)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
#[path = "scripted_tests.rs"]
mod tests;

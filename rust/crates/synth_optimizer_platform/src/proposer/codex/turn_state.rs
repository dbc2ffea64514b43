//! The state of a codex turn, folded from its notifications, and the meaning of its errors.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::Value;
use tracing::warn;

use super::session::HINT;
use crate::model_name::is_same_model;
use crate::proposer::prices::Tokens;
use crate::proposer::{FailureAction, TurnError};
use synth_optimizer_core::model::answer::FailureClass;
use synth_optimizer_core::model::usage::UsageReader;

/// State of the only turn of a thread.
#[derive(Debug, Clone, Default)]
pub(super) struct TurnState {
    commands: BTreeSet<String>,
    responses: u32,
    /// `None` until codex reports usage.
    pub(super) tokens: Option<Tokens>,
    has_refused_usage: bool,
    answer: Option<String>,
    remark: Option<String>,
    /// Another name of the requested model, such as a dated one, if codex reports it.
    pub(super) served_model: Option<String>,
    /// The model that answers instead of the requested one. Codex reports the model of the response header
    /// `openai-model`, but not the `model` in the response body.
    pub(super) other_model: Option<String>,
    /// How the turn ended. An error says why there is no answer.
    pub(super) ended: Option<Result<(), TurnError>>,
}

impl TurnState {
    /// Applies one notification of the thread. `model` is the requested model.
    pub(super) fn fold(&mut self, note: &Value, model: &str) {
        let text = |place: &str| note.pointer(place).and_then(Value::as_str);
        match text("/method").unwrap_or_default() {
            "item/started" | "item/completed" => self.item(note),
            "thread/tokenUsage/updated" => {
                self.responses += 1;
                // The thread has only this turn, so its total is the turn's. `totalTokens` may be the size of the
                // window.
                let mut reader = UsageReader::default();
                let mut part = |name| {
                    let reported = note.pointer(&format!("/params/tokenUsage/total/{name}"));
                    reported.and_then(|value| reader.tokens(name, value))
                };
                let (prompt, completion) = (part("inputTokens"), part("outputTokens"));
                let cached_prompt = part("cachedInputTokens").unwrap_or_default();
                if let (Some(prompt), Some(completion)) = (prompt, completion) {
                    self.tokens = Some(Tokens { prompt, cached_prompt, completion });
                }
                if !reader.refused.is_empty() && !std::mem::replace(&mut self.has_refused_usage, true) {
                    let refused = reader.refused.join(", ");
                    warn!(refused, "codex reports usage that cannot be true; it is not counted");
                }
            }
            "model/rerouted" => self.record_model(text("/params/toModel"), model),
            "thread/settings/updated" => self.record_model(text("/params/threadSettings/model"), model),
            "turn/completed" => {
                let failed = |message, failure_action| Err((FailureClass::Failed, message, failure_action));
                self.ended = Some(match text("/params/turn/status") {
                    Some("completed") => Ok(()),
                    Some("interrupted") => failed("codex interrupted the turn".into(), FailureAction::Retry),
                    _ => {
                        let error = &note["params"]["turn"]["error"];
                        failed(format!("the turn failed: {}", message(error)), failure_action(error))
                    }
                });
            }
            _ => {}
        }
    }

    fn item(&mut self, note: &Value) {
        let item = |name: &str| note.pointer(&format!("/params/item/{name}")).and_then(Value::as_str);
        match item("type") {
            Some("commandExecution" | "fileChange" | "mcpToolCall" | "dynamicToolCall") => {
                self.commands.extend(item("id").map(str::to_owned));
            }
            Some("agentMessage") if note["method"] == "item/completed" => {
                let text = item("text").map(str::to_owned);
                match item("phase") {
                    Some("final_answer") => self.answer = text,
                    Some(_) => {}
                    // Most servers report no phase.
                    None => self.remark = text,
                }
            }
            _ => {}
        }
    }

    fn record_model(&mut self, seen: Option<&str>, wanted: &str) {
        if let Some(seen) = seen.filter(|seen| *seen != wanted) {
            let place = if is_same_model(wanted, seen) { &mut self.served_model } else { &mut self.other_model };
            *place = Some(seen.to_owned());
        }
    }

    /// Returns the number of commands of the model. Codex does not report some of them, but every response except the
    /// last one runs a command.
    pub(super) fn commands(&self) -> u32 {
        u32::try_from(self.commands.len()).unwrap_or(u32::MAX).max(self.responses.saturating_sub(1))
    }

    /// Returns the final answer, or else the last message.
    pub(super) fn answer(&self) -> Option<&str> {
        self.answer.as_deref().or(self.remark.as_deref())
    }
}

const WAIT: FailureAction = FailureAction::Wait { hint: Cow::Borrowed(HINT), retry_after: None };

/// Returns the consequence of a turn's error. Unknown errors are retried; the number of attempts is bounded.
fn failure_action(error: &Value) -> FailureAction {
    if message(error).starts_with("Missing environment variable") {
        return FailureAction::Stop(HINT);
    }
    match &error["codexErrorInfo"] {
        Value::String(name) => match name.as_str() {
            "badRequest" | "sandboxError" => FailureAction::Stop(HINT),
            "unauthorized"
            | "usageLimitExceeded"
            | "rateLimitExceeded"
            | "serverOverloaded"
            | "internalServerError" => WAIT,
            "cyberPolicy" | "misalignmentPolicyViolation" | "tooManyDenials" | "sessionBudgetExceeded" => {
                FailureAction::GiveUp
            }
            _ => FailureAction::Retry,
        },
        // Connections that failed, with the status if there was one.
        Value::Object(entries) => match entries.values().find_map(|entry| entry.get("httpStatusCode")?.as_u64()) {
            Some(400 | 405..=407 | 410..=424 | 426..=428) => FailureAction::GiveUp,
            Some(_) | None => WAIT,
        },
        _ => FailureAction::Retry,
    }
}

/// Returns the message of an error.
fn message(error: &Value) -> &str {
    error.get("message").and_then(Value::as_str).filter(|text| !text.is_empty()).unwrap_or("codex reported no reason")
}

#[cfg(test)]
#[path = "turn_state_tests.rs"]
mod tests;

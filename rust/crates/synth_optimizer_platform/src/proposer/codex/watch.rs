//! What is known of a turn under way, folded from its notifications, and what its errors mean.

use std::collections::BTreeSet;

use serde_json::Value;

use super::session::HINT;
use crate::proposer::prices::{Tokens, is_same};
use crate::proposer::{Reason, Verdict};
use synth_optimizer_core::model::answer::FailureClass;

/// The state of one turn of a fresh thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    commands: BTreeSet<String>,
    responses: u32,
    /// None as long as nobody has said.
    pub(super) tokens: Option<Tokens>,
    answer: Option<String>,
    remark: Option<String>,
    /// The model that was asked for by the name under which it is served, such as a dated one, if codex has told it.
    pub(super) served_model: Option<String>,
    /// The model that answers in place of the one that was asked for. Codex tells of one that the header `openai-model` of
    /// a response names; it does not tell the `model` that stands in the response itself.
    pub(super) other_model: Option<String>,
    /// How the turn ended: an error is why there is no answer.
    pub(super) ended: Option<Result<(), Reason>>,
}

impl Watch {
    /// Takes in one notification of the thread; `model` is the one that was asked for.
    pub(super) fn fold(&mut self, note: &Value, model: &str) {
        let text = |place: &str| note.pointer(place).and_then(Value::as_str);
        match text("/method").unwrap_or_default() {
            "item/started" | "item/completed" => self.item(note),
            "thread/tokenUsage/updated" => {
                self.responses += 1;
                // The thread is this turn's alone, so that its total is the turn's. Its own sum may be the window's size.
                let part = |name| note.pointer(&format!("/params/tokenUsage/total/{name}")).and_then(Value::as_u64);
                if let (Some(prompt), Some(completion)) = (part("inputTokens"), part("outputTokens")) {
                    let cached_prompt = part("cachedInputTokens").unwrap_or_default();
                    self.tokens = Some(Tokens { prompt, cached_prompt, completion });
                }
            }
            "model/rerouted" => self.seen_model(text("/params/toModel"), model),
            "thread/settings/updated" => self.seen_model(text("/params/threadSettings/model"), model),
            "turn/completed" => {
                let failed = |message, verdict| Err((FailureClass::Failed, message, verdict));
                self.ended = Some(match text("/params/turn/status") {
                    Some("completed") => Ok(()),
                    Some("interrupted") => failed("codex broke the turn off by itself".into(), Verdict::Retry),
                    _ => {
                        let error = &note["params"]["turn"]["error"];
                        failed(format!("the turn failed: {}", message(error)), verdict(error))
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
                    // Most servers name no phase.
                    None => self.remark = text,
                }
            }
            _ => {}
        }
    }

    fn seen_model(&mut self, seen: Option<&str>, wanted: &str) {
        if let Some(seen) = seen.filter(|seen| *seen != wanted) {
            let place = if is_same(wanted, seen) { &mut self.served_model } else { &mut self.other_model };
            *place = Some(seen.to_owned());
        }
    }

    /// How often the model has acted. Some commands are never told of, but every one but the last answer is an act.
    pub(super) fn commands(&self) -> u32 {
        u32::try_from(self.commands.len()).unwrap_or(u32::MAX).max(self.responses.saturating_sub(1))
    }

    /// The last message.
    pub(super) fn answer(&self) -> Option<&str> {
        self.answer.as_deref().or(self.remark.as_deref())
    }
}

/// Reads the error of a turn. Values that are not known yet are taken as passing ones; the number of tries is bounded.
fn verdict(error: &Value) -> Verdict {
    if message(error).starts_with("Missing environment variable") {
        return Verdict::Stop(HINT);
    }
    match &error["codexErrorInfo"] {
        Value::String(name) => match name.as_str() {
            "unauthorized" | "usageLimitExceeded" | "badRequest" | "sandboxError" => Verdict::Stop(HINT),
            "cyberPolicy" | "misalignmentPolicyViolation" | "tooManyDenials" | "sessionBudgetExceeded" => {
                Verdict::GiveUp
            }
            _ => Verdict::Retry,
        },
        // Connections that failed, with the status if there was one.
        Value::Object(entries) => match entries.values().find_map(|entry| entry.get("httpStatusCode")?.as_u64()) {
            Some(401..=404) => Verdict::Stop(HINT),
            Some(400 | 405..=407 | 410..=424 | 426..=428) => Verdict::GiveUp,
            Some(_) | None => Verdict::Retry,
        },
        _ => Verdict::Retry,
    }
}

/// What codex says.
fn message(error: &Value) -> &str {
    error.get("message").and_then(Value::as_str).filter(|text| !text.is_empty()).unwrap_or("codex gives no reason")
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;

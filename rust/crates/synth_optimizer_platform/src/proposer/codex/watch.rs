//! What is known of a turn under way, folded from its notifications.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::proposer::openai::reply::is_same;
use crate::proposer::prices::Tokens;

/// How a turn ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ended {
    Completed,
    Interrupted,
    /// With the error that codex gives.
    Failed(Value),
}

/// The state of one turn of a fresh thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    commands: BTreeSet<String>,
    responses: u32,
    tokens: Option<Tokens>,
    answer: Option<String>,
    remark: Option<String>,
    served_model: Option<String>,
    other_model: Option<String>,
    ended: Option<Ended>,
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
                self.ended = Some(match text("/params/turn/status") {
                    Some("completed") => Ended::Completed,
                    Some("interrupted") => Ended::Interrupted,
                    _ => Ended::Failed(note.pointer("/params/turn/error").cloned().unwrap_or_default()),
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
            Some("agentMessage") if note.get("method").and_then(Value::as_str) == Some("item/completed") => {
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

    pub(super) fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// How often the model has acted. Some commands are never told of, but every one but the last answer is an act.
    pub(super) fn commands(&self) -> u32 {
        u32::try_from(self.commands.len()).unwrap_or(u32::MAX).max(self.responses.saturating_sub(1))
    }

    /// None as long as nobody has said.
    pub(super) fn tokens(&self) -> Option<Tokens> {
        self.tokens
    }

    /// The model that was asked for by the name under which it is served, such as a dated one, if codex has told it.
    pub(super) fn served_model(&self) -> Option<&str> {
        self.served_model.as_deref()
    }

    /// The model that answers in place of the one that was asked for. Codex tells of one that the header `openai-model` of
    /// a response names; it does not tell the `model` that stands in the response itself.
    pub(super) fn other_model(&self) -> Option<&str> {
        self.other_model.as_deref()
    }

    /// The last message.
    pub(super) fn answer(&self) -> Option<&str> {
        self.answer.as_deref().or(self.remark.as_deref())
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;

//! Reads the reply of an endpoint: which model answered, what it said, and what that took.

use serde_json::Value;

use crate::proposer::prices::Tokens;
use synth_optimizer_core::config::sections::ApiFamily;

/// What a model said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Text(String),
    /// It would not answer, in its own words.
    Refused(String),
    /// Its answer was longer than it may be.
    CutOff,
    /// It broke off, in the endpoint's words.
    Failed {
        message: String,
        may_pass: bool,
    },
}

/// A reply in the shape of its family.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reply {
    /// The model that answered, where the endpoint names it.
    pub(super) model: Option<String>,
    /// Nothing where the endpoint does not count.
    pub(super) tokens: Option<Tokens>,
    /// In dollars, where the endpoint says it.
    pub(super) cost_usd: Option<f64>,
    pub(super) said: Said,
}

/// A reply, or nothing when the document is none of its family.
pub(super) fn read(family: ApiFamily, document: &Value) -> Option<Reply> {
    let said = match family {
        ApiFamily::ChatCompletions => said_in_chat(document)?,
        ApiFamily::Responses => said_in_response(document)?,
    };
    let usage = &document["usage"];
    let model = document["model"].as_str().map(str::trim).filter(|model| !model.is_empty());
    Some(Reply { model: model.map(str::to_owned), tokens: tokens(usage), cost_usd: usage["cost"].as_f64(), said })
}

/// The status of an error that came in place of an answer under a status of success, as proxies send it.
pub(super) fn hidden_error(document: &Value) -> Option<u16> {
    let error = document.get("error").filter(|error| !error.is_null())?;
    if document.get("choices").or_else(|| document.get("output")).is_some() {
        return None;
    }
    let code = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    Some(code.filter(|code| (400..600).contains(code)).unwrap_or(500))
}

/// The answer without the thoughts that some models write before it.
pub(super) fn without_thoughts(text: &str) -> &str {
    let trimmed = text.trim_start();
    // Some servers leave out the tag that opens the thoughts. An answer itself may hold such tags too.
    if trimmed.starts_with(['{', '`']) {
        return trimmed;
    }
    ["</think>", "</thinking>"]
        .iter()
        .find_map(|end| trimmed.split_once(end))
        .map(|(_, answer)| answer.trim_start())
        .filter(|answer| answer.contains('{'))
        .unwrap_or(trimmed)
}

fn tokens(usage: &Value) -> Option<Tokens> {
    let either = |names: [&str; 2]| names.iter().find_map(|name| usage[*name].as_u64());
    let prompt = either(["prompt_tokens", "input_tokens"])?;
    let completion = either(["completion_tokens", "output_tokens"])?;
    let cached = ["prompt_tokens_details", "input_tokens_details"]
        .iter()
        .find_map(|name| usage[*name]["cached_tokens"].as_u64())
        .unwrap_or(0);
    Some(Tokens { prompt, cached_prompt: cached, completion })
}

fn said_in_chat(document: &Value) -> Option<Said> {
    let choice = document["choices"].as_array()?.first()?;
    let message = choice.get("message")?.as_object()?;
    if let Some(error) = choice.get("error").filter(|error| !error.is_null()) {
        return Some(Said::Failed { message: message_of(error), may_pass: true });
    }
    if let Some(refusal) = message.get("refusal").and_then(Value::as_str).filter(|refusal| !refusal.is_empty()) {
        return Some(Said::Refused(refusal.to_owned()));
    }
    Some(match choice["finish_reason"].as_str() {
        Some("length") => Said::CutOff,
        Some("content_filter") => Said::Refused("the content filter of the endpoint stopped it".into()),
        Some("error") => Said::Failed { message: "the endpoint broke off".into(), may_pass: true },
        Some(_) | None => Said::Text(message.get("content").map(text_of).unwrap_or_default()),
    })
}

fn said_in_response(document: &Value) -> Option<Said> {
    let output = document["output"].as_array();
    match document["status"].as_str() {
        Some("failed" | "cancelled") => {
            let error = &document["error"];
            let may_pass = !matches!(error["code"].as_str(), Some("invalid_prompt" | "image_parse_error"));
            return Some(Said::Failed { message: message_of(error), may_pass });
        }
        Some("incomplete") => {
            return Some(match document["incomplete_details"]["reason"].as_str() {
                Some("content_filter") => Said::Refused("the content filter of the endpoint stopped it".into()),
                Some(_) | None => Said::CutOff,
            });
        }
        Some(_) | None => {}
    }
    let mut text = String::new();
    for item in output?.iter().filter(|item| item["type"] == "message") {
        for part in item["content"].as_array().into_iter().flatten() {
            match part["type"].as_str() {
                Some("output_text") => text.push_str(part["text"].as_str().unwrap_or_default()),
                Some("refusal") => {
                    return Some(Said::Refused(part["refusal"].as_str().unwrap_or_default().to_owned()));
                }
                Some(_) | None => {}
            }
        }
    }
    Some(Said::Text(text))
}

/// Content is a text, or a list of parts that hold one.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part.as_str().or_else(|| part["text"].as_str())).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

fn message_of(error: &Value) -> String {
    let message = error.as_str().or_else(|| error["message"].as_str()).unwrap_or("the endpoint does not say why");
    message.to_owned()
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;

//! Reads what comes from an endpoint: which model answered, what it said and what that took; or what a refusal means: write
//! it differently, send it again, or end the run.

use serde_json::Value;

use super::endpoint::Manner;
use crate::http::{excerpt, shortened, summary};
use crate::proposer::prices::Tokens;
use synth_optimizer_core::config::proposer::StructuredOutput;
use synth_optimizer_core::config::sections::ApiFamily;
use synth_optimizer_core::model::answer::FailureClass::{self, Contract, Failed};
use synth_optimizer_core::secrets::scrub;

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

/// What to do after a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Do not ask to keep to the schema from now on, and send it again; nothing was paid for.
    Unstructured,
    /// The same with the newer name of the limit.
    NewerLimit,
    /// The same request may be taken later.
    Later,
    /// No repetition helps, and neither does another turn.
    Fatal { class: FailureClass, hint: &'static str },
}

/// Judges a refusal by its status and what it says.
pub(super) fn judge(status: u16, body: &[u8], manner: Manner, structured: StructuredOutput) -> Answer {
    let said = summary(body).to_lowercase();
    if manner.structured && is_about_schema(status, body, &said) {
        let hint = "The endpoint cannot be held to a schema: write proposer.structured_output = \"auto\".";
        return match structured {
            StructuredOutput::Auto => Answer::Unstructured,
            StructuredOutput::Required | StructuredOutput::Off => Answer::Fatal { class: Contract, hint },
        };
    }
    if !manner.newer_limit && status == 400 && said.contains("max_completion_tokens") {
        return Answer::NewerLimit;
    }
    const NO_CREDIT: [&str; 4] =
        ["insufficient_quota", "billing_hard_limit", "insufficient credits", "billing_not_active"];
    let is_poor = status == 402 || (status == 429 && NO_CREDIT.iter().any(|words| said.contains(words)));
    let (class, hint) = match status {
        _ if is_poor => (Failed, "The account at the endpoint has no credit."),
        501 => (Contract, "Another proposer.api_family may be served at this address."),
        408 | 409 | 425 | 429 | 500.. => return Answer::Later,
        401 | 403 => (
            Failed,
            "Name the variable that holds the key of this endpoint in proposer.api_key_env, and check the key.",
        ),
        404 | 405 => (
            Failed,
            "Check proposer.model and proposer.base_url, which goes up to and with /v1, and proposer.api_family.",
        ),
        413 => (Contract, "Lower proposer.max_evidence_kb."),
        300..=399 => (Contract, "Redirects are not followed: name the final address in proposer.base_url."),
        _ if said.contains("context") && said.contains("length") => {
            (Contract, "Lower proposer.max_evidence_kb, or name a model with a longer context.")
        }
        _ => (
            Contract,
            "The endpoint's own words are in the message; check model, reasoning_effort and max_output_tokens.",
        ),
    };
    Answer::Fatal { class, hint }
}

/// Whether a refused request did nothing that is paid for. A server that broke may have.
pub(super) fn is_free(status: u16) -> bool {
    status < 500 || matches!(status, 501 | 503 | 529)
}

/// The endpoint's own words, short and without credentials that look like one.
pub(super) fn words(body: &[u8]) -> String {
    let document = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let message = ["/error/message", "/error", "/message", "/detail"]
        .iter()
        .find_map(|place| document.pointer(place).and_then(Value::as_str));
    match message {
        Some(message) => shortened(&scrub(message)),
        None => excerpt(body),
    }
}

/// Whether the schema is what the endpoint does not take, as OpenAI, vLLM, Ollama, llama.cpp and OpenRouter say it.
fn is_about_schema(status: u16, body: &[u8], said: &str) -> bool {
    const BY_NAME: [&str; 9] = [
        "response_format",
        "response format",
        "json_schema",
        "json schema",
        "text.format",
        "structured output",
        "structured_output",
        "guided",
        "grammar",
    ];
    const IN_GENERAL: [&str; 8] = [
        "unsupported",
        "not supported",
        "support the requested parameters",
        "unknown field",
        "unknown parameter",
        "unrecognized",
        "extra_forbidden",
        "extra inputs",
    ];
    // A refusal in general words may name another parameter.
    const OTHERS: [&str; 4] = ["reasoning", "max_completion_tokens", "max_tokens", "max_output_tokens"];
    if !matches!(status, 400 | 404 | 415 | 422 | 501) {
        return false;
    }
    let document = serde_json::from_slice::<Value>(body).unwrap_or_default();
    // The name of the parameter, where it is given, is more certain than words.
    match document.pointer("/error/param").and_then(Value::as_str).filter(|name| !name.is_empty()) {
        Some(name) => name.starts_with("response_format") || name.starts_with("text"),
        None => {
            let holds = |words: &[&str]| words.iter().any(|words| said.contains(words));
            holds(&BY_NAME) || (holds(&IN_GENERAL) && !holds(&OTHERS))
        }
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;

//! Interprets responses of an endpoint: model, output and usage of a success; for an error, whether to change the
//! request, to retry, or to end the run.

use serde_json::Value;

use super::endpoint::RequestStyle;
use crate::http::{excerpt, shorten, summary};
use crate::proposer::prices::Tokens;
use synth_optimizer_core::config::proposer::StructuredOutput;
use synth_optimizer_core::config::sections::ApiFamily;
use synth_optimizer_core::model::answer::FailureClass::{self, Contract};
use synth_optimizer_core::model::usage::UsageReader;
use synth_optimizer_core::secrets::scrub;

/// Output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ModelOutput {
    Text(String),
    /// The model refused to answer; its own words.
    Refused(String),
    /// The answer exceeded the token limit.
    CutOff,
    /// The endpoint failed; its own words.
    Failed {
        message: String,
        may_pass: bool,
    },
}

/// A successful reply of either API family.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelReply {
    /// The model that answered, if the endpoint names it.
    pub(super) model: Option<String>,
    /// `None` if the endpoint reports no usage.
    pub(super) tokens: Option<Tokens>,
    /// Cost in US dollars, if the endpoint reports it.
    pub(super) cost_usd: Option<f64>,
    /// Reported values that cannot be true.
    pub(super) refused_usage: Vec<String>,
    pub(super) output: ModelOutput,
}

/// Reads a reply. Returns `None` if the document does not belong to the API family.
pub(super) fn read(family: ApiFamily, document: &Value) -> Option<ModelReply> {
    let output = match family {
        ApiFamily::ChatCompletions => chat_output(document)?,
        ApiFamily::Responses => response_output(document)?,
    };
    let (usage, mut reader) = (&document["usage"], UsageReader::default());
    let model = document["model"].as_str().map(str::trim).filter(|model| !model.is_empty());
    Some(ModelReply {
        model: model.map(str::to_owned),
        tokens: tokens(usage, &mut reader),
        cost_usd: reader.cost("cost", &usage["cost"]),
        refused_usage: reader.refused,
        output,
    })
}

/// Returns the status of an error inside a response with a success status, as some proxies send it.
pub(super) fn hidden_error(document: &Value) -> Option<u16> {
    let error = document.get("error").filter(|error| !error.is_null())?;
    if document.get("choices").or_else(|| document.get("output")).is_some() {
        return None;
    }
    let code = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    Some(code.filter(|code| (400..600).contains(code)).unwrap_or(500))
}

/// Removes the reasoning that some models write before the answer.
pub(super) fn strip_reasoning(text: &str) -> &str {
    let trimmed = text.trim_start();
    // Some servers omit the opening tag, so only the closing tag is searched. An answer itself may also contain such
    // tags.
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

fn tokens(usage: &Value, reader: &mut UsageReader) -> Option<Tokens> {
    let mut either = |names: [&str; 2]| names.iter().find_map(|name| reader.tokens(name, &usage[*name]));
    let (prompt, completion) =
        (either(["prompt_tokens", "input_tokens"]), either(["completion_tokens", "output_tokens"]));
    let cached = ["prompt_tokens_details", "input_tokens_details"]
        .iter()
        .find_map(|name| reader.tokens("cached_tokens", &usage[*name]["cached_tokens"]))
        .unwrap_or(0);
    Some(Tokens { prompt: prompt?, cached_prompt: cached, completion: completion? })
}

fn chat_output(document: &Value) -> Option<ModelOutput> {
    let choice = document["choices"].as_array()?.first()?;
    let message = choice.get("message")?.as_object()?;
    if let Some(error) = choice.get("error").filter(|error| !error.is_null()) {
        return Some(ModelOutput::Failed { message: message_of(error), may_pass: true });
    }
    if let Some(refusal) = message.get("refusal").and_then(Value::as_str).filter(|refusal| !refusal.is_empty()) {
        return Some(ModelOutput::Refused(refusal.to_owned()));
    }
    Some(match choice["finish_reason"].as_str() {
        Some("length") => ModelOutput::CutOff,
        Some("content_filter") => ModelOutput::Refused("the endpoint's content filter blocked it".into()),
        Some("error") => ModelOutput::Failed { message: "the endpoint reported an error".into(), may_pass: true },
        Some(_) | None => ModelOutput::Text(message.get("content").map(text_of).unwrap_or_default()),
    })
}

fn response_output(document: &Value) -> Option<ModelOutput> {
    let output = document["output"].as_array();
    match document["status"].as_str() {
        Some("failed" | "cancelled") => {
            let error = &document["error"];
            let may_pass = !matches!(error["code"].as_str(), Some("invalid_prompt" | "image_parse_error"));
            return Some(ModelOutput::Failed { message: message_of(error), may_pass });
        }
        Some("incomplete") => {
            return Some(match document["incomplete_details"]["reason"].as_str() {
                Some("content_filter") => ModelOutput::Refused("the endpoint's content filter blocked it".into()),
                Some(_) | None => ModelOutput::CutOff,
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
                    return Some(ModelOutput::Refused(part["refusal"].as_str().unwrap_or_default().to_owned()));
                }
                Some(_) | None => {}
            }
        }
    }
    Some(ModelOutput::Text(text))
}

/// Returns the text of a content value: a text, or a list of parts with text.
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
    let message = error.as_str().or_else(|| error["message"].as_str()).unwrap_or("the endpoint reported no reason");
    message.to_owned()
}

/// What to do after an error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RefusalAction {
    /// Send again without a schema, now and in later turns. The request was not billed.
    Unstructured,
    /// Send again with `max_completion_tokens`, now and in later turns. The request was not billed.
    NewerLimit,
    /// Send the same request again later.
    Later,
    /// The endpoint rejects the key or the account, or does not serve the model: a user can change that.
    Unavailable { hint: &'static str },
    /// Neither a retry nor another turn can succeed.
    Fatal { class: FailureClass, hint: &'static str },
}

/// Classifies an error response by its status and text.
pub(super) fn classify_refusal(
    status: u16,
    body: &[u8],
    style: RequestStyle,
    structured: StructuredOutput,
) -> RefusalAction {
    let output = summary(body).to_lowercase();
    if style.structured && is_about_schema(status, body, &output) {
        let hint = "Set proposer.structured_output = \"auto\"; the endpoint does not support schemas.";
        return match structured {
            StructuredOutput::Auto => RefusalAction::Unstructured,
            StructuredOutput::Required | StructuredOutput::Off => RefusalAction::Fatal { class: Contract, hint },
        };
    }
    if !style.newer_limit && status == 400 && output.contains("max_completion_tokens") {
        return RefusalAction::NewerLimit;
    }
    const NO_CREDIT: [&str; 4] =
        ["insufficient_quota", "billing_hard_limit", "insufficient credits", "billing_not_active"];
    let has_no_credit = status == 402 || (status == 429 && NO_CREDIT.iter().any(|words| output.contains(words)));
    let unavailable = |hint| RefusalAction::Unavailable { hint };
    let (class, hint) = match status {
        _ if has_no_credit => return unavailable("Add credit to the account at the endpoint."),
        501 => (Contract, "Try another proposer.api_family; this one is not served at the address."),
        408 | 409 | 425 | 429 | 500.. => return RefusalAction::Later,
        401 | 403 => {
            return unavailable("Check the key, and that proposer.api_key_env names the variable that holds it.");
        }
        404 | 405 => {
            return unavailable(
                "Check proposer.model, proposer.api_family and proposer.base_url, which ends with /v1.",
            );
        }
        413 => (Contract, "Lower proposer.max_evidence_kb."),
        300..=399 => (Contract, "Set proposer.base_url to the final address; redirects are not followed."),
        _ if output.contains("context") && output.contains("length") => {
            (Contract, "Lower proposer.max_evidence_kb, or name a model with a longer context.")
        }
        _ => (Contract, "Read the endpoint's message; check model, reasoning_effort and max_output_tokens."),
    };
    RefusalAction::Fatal { class, hint }
}

/// Returns whether a request with this status was certainly not billed. After a server error it may have been.
pub(super) fn is_unbilled(status: u16) -> bool {
    status < 500 || matches!(status, 501 | 503 | 529)
}

/// Returns the endpoint's error message, shortened and without texts that look like credentials.
pub(super) fn words(body: &[u8]) -> String {
    let document = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let message = ["/error/message", "/error", "/message", "/detail"]
        .iter()
        .find_map(|place| document.pointer(place).and_then(Value::as_str));
    match message {
        Some(message) => shorten(&scrub(message)),
        None => excerpt(body),
    }
}

/// Returns whether the endpoint rejects the schema, according to the messages of OpenAI, vLLM, Ollama, llama.cpp and
/// OpenRouter.
fn is_about_schema(status: u16, body: &[u8], output: &str) -> bool {
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
    // A general message may refer to another parameter.
    const OTHERS: [&str; 4] = ["reasoning", "max_completion_tokens", "max_tokens", "max_output_tokens"];
    if !matches!(status, 400 | 404 | 415 | 422 | 501) {
        return false;
    }
    let document = serde_json::from_slice::<Value>(body).unwrap_or_default();
    // An explicit parameter name is more reliable than the message.
    match document.pointer("/error/param").and_then(Value::as_str).filter(|name| !name.is_empty()) {
        Some(name) => name.starts_with("response_format") || name.starts_with("text"),
        None => {
            let holds = |words: &[&str]| words.iter().any(|words| output.contains(words));
            holds(&BY_NAME) || (holds(&IN_GENERAL) && !holds(&OTHERS))
        }
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;

//! What a refused request means: write it differently, send it again, or end the run.

use serde_json::Value;

use super::endpoint::Manner;
use crate::http::{excerpt, shortened, summary};
use synth_optimizer_core::config::proposer::StructuredOutput;
use synth_optimizer_core::model::answer::FailureClass::{self, Contract, Failed};

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
        Some(message) => shortened(&synth_optimizer_core::secrets::scrub(message)),
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
#[path = "refusal_tests.rs"]
mod tests;

//! One turn: sends the question until it is answered, and reports the failure and usage otherwise.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::OpenAiProposer;
use super::endpoint::{Endpoint, Prompt, RequestStyle};
use super::reply::{self, ModelOutput, RefusalAction};
use crate::http::{ExchangeError, RawResponse, backoff_delays, excerpt, out_of_files, shorten};
use crate::json_text;
use crate::model_name::is_same_model;
use crate::proposer::manifest::{self, ParsedAnswer};
use crate::proposer::transcript::Transcript;
use crate::proposer::{FailureAction, ProposalRequest, TurnAccount, TurnError, TurnFailure, ending_run};
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::event_fields::{Problem, TurnModels};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};

/// Stored as the model if the endpoint does not name one.
const UNNAMED_MODEL: &str = "unknown";

/// A turn in progress.
#[derive(Debug)]
pub(super) struct EndpointTurn<'a> {
    proposer: &'a OpenAiProposer,
    transcript: Transcript,
    billing: Billing,
    effective: Option<String>,
    /// Usage that the last reply reported.
    reported_usage: Option<Usage>,
}

/// Whether the requests of a turn may have been billed: the worst case so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Billing {
    Unsent,
    /// Rejected before any work was done.
    Refused,
    /// The endpoint answered.
    Worked,
    /// The endpoint failed and may have billed the work before that.
    Broke,
    /// The request is in flight, or its answer was lost.
    Unknown,
}

impl<'a> EndpointTurn<'a> {
    pub(super) fn new(proposer: &'a OpenAiProposer, transcript: Transcript) -> Self {
        Self { proposer, transcript, billing: Billing::Unsent, effective: None, reported_usage: None }
    }

    /// Sends the question until there is an answer. A request that was rejected only for its format does not count as a
    /// retry.
    pub(super) async fn answer(
        &mut self,
        request: &ProposalRequest,
        deadline: Instant,
    ) -> Result<ProposalAnswer, TurnError> {
        let OpenAiProposer { section, redactor, .. } = self.proposer;
        let endpoint = self.proposer.ready_endpoint().map_err(ending_run)?;
        let ask = Prompt::new(self.proposer, request);
        let (first, longest) =
            (Duration::from_millis(section.backoff_ms), Duration::from_secs(section.backoff_max_seconds));
        let mut backoff_delays = backoff_delays(first, longest, section.request_retries);
        let mut tries = 1;
        loop {
            let style = *self.proposer.style.lock();
            let (why, asked) = match self.send(endpoint, &ask.body(style)).await {
                Err(ExchangeError::NeverSent(reason)) => match endpoint.connection.denial(&reason) {
                    Some(denial) => return Err(ending_run(denial)),
                    None => (format!("the request was not sent: {reason}"), None),
                },
                Err(ExchangeError::OutOfFiles(reason)) => return Err(ending_run(out_of_files(&reason))),
                Err(ExchangeError::Unknown(reason)) => (format!("the answer was lost: {reason}"), None),
                Err(ExchangeError::TooLarge { status }) => {
                    let limit = section.max_answer_kb;
                    let message = format!("the answer ({status}) is larger than proposer.max_answer_kb = {limit}");
                    return Err((FailureClass::Contract, message, FailureAction::GiveUp));
                }
                Ok(raw) => {
                    let document = self.record_reply(&raw);
                    let hidden = document.as_ref().and_then(reply::hidden_error);
                    let status = if raw.is_success() { hidden.unwrap_or(raw.status) } else { raw.status };
                    if (200..300).contains(&status) {
                        self.billing = self.billing.max(Billing::Worked);
                        return self.read(&raw, document.as_ref(), request);
                    }
                    let free = if reply::is_unbilled(status) { Billing::Refused } else { Billing::Broke };
                    self.billing = self.billing.max(free);
                    let output = redactor.hide_known(&String::from_utf8_lossy(&raw.body));
                    let why = format!("the endpoint answered {status}: {}", reply::words(output.as_bytes()));
                    match reply::classify_refusal(status, output.as_bytes(), style, section.structured_output) {
                        RefusalAction::Fatal { class, hint } => return Err((class, why, FailureAction::Stop(hint))),
                        RefusalAction::Unavailable { hint } => {
                            let action = FailureAction::Wait { hint: hint.into(), retry_after: raw.retry_after };
                            return Err((FailureClass::Failed, why, action));
                        }
                        RefusalAction::Later => (why, raw.retry_after),
                        RefusalAction::Unstructured => {
                            self.adapt_style(&why, |style| style.structured = false);
                            continue;
                        }
                        RefusalAction::NewerLimit => {
                            self.adapt_style(&why, |style| style.newer_limit = true);
                            continue;
                        }
                    }
                }
            };
            let pause = backoff_delays.next().map(|pause| pause.max(asked.unwrap_or_default()));
            // The run waits for a long pause. A pause beyond the deadline would only delay the failure.
            let Some(pause) = pause.filter(|pause| *pause <= longest && Instant::now() + *pause < deadline) else {
                let class = match self.billing {
                    Billing::Unsent => FailureClass::NotSent,
                    Billing::Refused | Billing::Worked | Billing::Broke => FailureClass::Failed,
                    Billing::Unknown => FailureClass::UnknownOutcome,
                };
                let hint = "Check that the endpoint at proposer.base_url runs and answers.".into();
                let action = FailureAction::Wait { hint, retry_after: asked };
                return Err((class, format!("{why} (tried {tries} times)"), action));
            };
            let pause_ms = pause.as_millis() as u64;
            warn!(tries, pause_ms, cause = why, "the endpoint is called again");
            self.note(&format!("{why}; the request is sent again after {pause_ms} ms"));
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// Changes the request format for this and all later turns of this process.
    fn adapt_style(&mut self, why: &str, change: impl FnOnce(&mut RequestStyle)) {
        change(&mut self.proposer.style.lock());
        self.note(&format!("{why}; later requests leave out what the endpoint rejects"));
    }

    async fn send(&mut self, endpoint: &Endpoint, body: &Value) -> Result<RawResponse, ExchangeError> {
        // The semaphore is never closed.
        let _permit = self.proposer.permits.acquire().await;
        self.transcript.add("optimizer", body);
        // An aborted request may have been processed.
        let known = std::mem::replace(&mut self.billing, Billing::Unknown);
        let outcome = endpoint.send(Bytes::from(body.to_string())).await;
        if let Ok(_) | Err(ExchangeError::NeverSent(_) | ExchangeError::OutOfFiles(_)) = outcome {
            self.billing = known;
        }
        outcome
    }

    /// Adds a reply to the transcript and returns it as JSON, if it is JSON.
    fn record_reply(&mut self, raw: &RawResponse) -> Option<Value> {
        let (document, altered) = json_text::parse(&raw.body).ok().unzip();
        if let Some(changes) = altered.flatten() {
            warn!(%changes, "the reply of the endpoint was altered, because its JSON is not readable");
            self.note(&format!("the next reply was altered: {changes}"));
        }
        let body = document.clone().unwrap_or_else(|| json!(self.beginning_of(raw)));
        self.transcript.add("endpoint", &json!({ "status": raw.status, "body": body }));
        document
    }

    /// Reads a successful reply. Checks the model before the output.
    fn read(
        &mut self,
        raw: &RawResponse,
        document: Option<&Value>,
        request: &ProposalRequest,
    ) -> Result<ProposalAnswer, TurnError> {
        let OpenAiProposer { section, model, redactor, prices, .. } = self.proposer;
        let family = section.api_family;
        let Some(reply) = document.and_then(|document| reply::read(family, document)) else {
            let (kind, shown) = (self.shown(&raw.content_type), self.beginning_of(raw));
            let message = format!("the endpoint answered {} without {} ({kind}): {shown}", raw.status, family.as_str());
            return Err((FailureClass::Contract, message, FailureAction::Retry));
        };
        let mut usage = prices.usage(model, reply.model.as_deref(), reply.tokens);
        // The cost that the endpoint reports takes precedence over the price table.
        if let cost @ Cost::Known(_) = Cost::from_usd(reply.cost_usd) {
            usage.cost = cost;
        }
        self.reported_usage = Some(usage);
        if !reply.refused_usage.is_empty() {
            let refused = reply.refused_usage.join(", ");
            warn!(refused, "the endpoint reports usage that cannot be true; it counts as unknown");
            self.note(&format!("the endpoint reports usage that cannot be true: {refused}"));
        }
        self.effective = reply.model.as_deref().map(|effective| self.shown(effective));
        if let (Some(effective), Some(shown)) = (&reply.model, &self.effective)
            && !is_same_model(model, effective)
        {
            let message = format!("model {model} was requested, and {shown} answered");
            let hint = "Set proposer.model to a model that the endpoint serves.";
            return Err((FailureClass::Contract, message, FailureAction::Stop(hint)));
        }
        let most = section.max_answer_kb.saturating_mul(1024);
        let found = match reply.output {
            ModelOutput::Text(text) if text.len() as u64 > most => ParsedAnswer::too_large(&text, most),
            // The model may repeat a key, so the answer is redacted before it is stored.
            ModelOutput::Text(text) => manifest::read(reply::strip_reasoning(&text), request, redactor),
            ModelOutput::CutOff => {
                let message =
                    "the answer was truncated at its maximum length (proposer.max_output_tokens, or the endpoint's limit)"
                        .into();
                Problem { code: "answer_cut_off".into(), field: None, message }.into()
            }
            ModelOutput::Refused(words) => {
                let message = format!("the model refused to answer: {}", self.shown(&words));
                return Err((FailureClass::Failed, message, FailureAction::GiveUp));
            }
            ModelOutput::Failed { message, may_pass } => {
                let message = format!("the endpoint failed: {}", self.shown(&message));
                let verdict = if may_pass { FailureAction::Retry } else { FailureAction::GiveUp };
                return Err((FailureClass::Failed, message, verdict));
            }
        };
        Ok(found.into_answer(self.usage(), model, self.effective.as_deref().unwrap_or(UNNAMED_MODEL)))
    }

    /// Returns the usage of the turn. A sum with an unknown part is unknown.
    fn usage(&self) -> Usage {
        match (self.billing, self.reported_usage) {
            (Billing::Unknown, _) => Usage::default(),
            (Billing::Broke, Some(usage)) => Usage { cost: Cost::Unknown, ..usage },
            (_, Some(usage)) => usage,
            (Billing::Worked | Billing::Broke, None) => Usage::default(),
            (Billing::Unsent | Billing::Refused, None) => Usage {
                prompt_tokens: Some(0),
                completion_tokens: Some(0),
                total_tokens: Some(0),
                cost: Cost::Known(NanoUsd(0)),
            },
        }
    }

    /// Returns the failure of an interrupted turn. A request in flight may be billed.
    pub(super) fn interrupted(&self) -> TurnError {
        let class = if self.billing <= Billing::Refused { FailureClass::Withdrawn } else { FailureClass::Abandoned };
        (class, "the turn was interrupted".into(), FailureAction::GiveUp)
    }

    pub(super) fn timed_out(&self) -> TurnError {
        let class = if self.billing == Billing::Unsent { FailureClass::NotSent } else { FailureClass::Timeout };
        let seconds = self.proposer.section.timeout_seconds;
        let message = format!("no answer arrived within proposer.timeout_seconds = {seconds}");
        (class, message, FailureAction::Retry)
    }

    pub(super) fn failed(&mut self, reason: TurnError) -> TurnFailure {
        let OpenAiProposer { model, redactor, .. } = self.proposer;
        let models = TurnModels { requested: model.clone(), effective: self.effective.clone() };
        let outcome = TurnAccount { models: Some(models), usage: self.usage(), redactor: redactor.clone() };
        let failed = outcome.failed(reason);
        self.note(&failed.failure.message);
        failed
    }

    fn note(&mut self, text: &str) {
        self.transcript.add("note", &json!(text));
    }

    fn shown(&self, text: &str) -> String {
        shorten(&self.proposer.redactor.text(text))
    }

    /// Returns the beginning of a reply. Credentials are removed before it is cut, so that no part of one remains.
    fn beginning_of(&self, raw: &RawResponse) -> String {
        excerpt(self.proposer.redactor.hide_known(&String::from_utf8_lossy(&raw.body)).as_bytes())
    }
}

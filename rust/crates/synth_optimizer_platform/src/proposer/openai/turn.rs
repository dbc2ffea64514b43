//! One turn: a question that is sent until it is answered; how it ends without an answer, and what it has used by then.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::OpenAiProposer;
use super::endpoint::{Ask, Endpoint, Manner};
use super::reply::{self, Answer, Said};
use crate::http::{Lost, Raw, excerpt, pauses, shortened};
use crate::proposer::manifest::{self, Found};
use crate::proposer::prices::is_same;
use crate::proposer::transcript::Transcript;
use crate::proposer::{Outcome, ProposalRequest, Reason, TurnFailure, Verdict, cannot_begin};
use synth_optimizer_core::model::answer::{FailureClass, ProposalAnswer};
use synth_optimizer_core::model::event_fields::{Problem, TurnModels};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};

/// What is stored for a model that the endpoint does not name.
const UNNAMED: &str = "unknown";

/// A turn under way.
#[derive(Debug)]
pub(super) struct Course<'a> {
    proposer: &'a OpenAiProposer,
    transcript: Transcript,
    fate: Fate,
    effective: Option<String>,
    /// What the last reply told.
    told: Option<Usage>,
}

/// The worst that has become of the requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Unsent,
    /// Refused before any work was done.
    Refused,
    /// The endpoint answered.
    Worked,
    /// It broke, and may have charged for what it did before.
    Broke,
    /// Nobody knows: it is under way, or its answer was lost.
    Unknown,
}

impl<'a> Course<'a> {
    pub(super) fn new(proposer: &'a OpenAiProposer, transcript: Transcript) -> Self {
        Self { proposer, transcript, fate: Fate::Unsent, effective: None, told: None }
    }

    /// Sends the question until there is an answer. What was refused unpaid for its form alone is no retry.
    pub(super) async fn answer(
        &mut self,
        request: &ProposalRequest,
        deadline: Instant,
    ) -> Result<ProposalAnswer, Reason> {
        let OpenAiProposer { section, redactor, endpoint, .. } = self.proposer;
        let endpoint = endpoint.as_ref().map_err(|error| cannot_begin(error.clone()))?;
        let ask = Ask::new(self.proposer, request);
        let (first, longest) =
            (Duration::from_millis(section.backoff_ms), Duration::from_secs(section.backoff_max_seconds));
        let mut pauses = pauses(first, longest, section.request_retries);
        let mut tries = 1;
        loop {
            let manner = *self.proposer.manner.lock();
            let (why, asked) = match self.send(endpoint, &ask.body(manner)).await {
                Err(Lost::NeverSent(reason)) => (format!("the request was not sent: {reason}"), None),
                Err(Lost::Unknown(reason)) => (format!("the answer was lost: {reason}"), None),
                Err(Lost::TooLarge { status }) => {
                    let limit = section.max_answer_kb;
                    let message = format!("the answer ({status}) is larger than proposer.max_answer_kb = {limit}");
                    return Err((FailureClass::Contract, message, Verdict::GiveUp));
                }
                Ok(raw) => {
                    let document = self.hear(&raw);
                    let hidden = document.as_ref().and_then(reply::hidden_error);
                    let status = if raw.is_success() { hidden.unwrap_or(raw.status) } else { raw.status };
                    if (200..300).contains(&status) {
                        self.fate = self.fate.max(Fate::Worked);
                        return self.read(&raw, document.as_ref(), request);
                    }
                    let free = if reply::is_free(status) { Fate::Refused } else { Fate::Broke };
                    self.fate = self.fate.max(free);
                    let said = redactor.known_hidden(&String::from_utf8_lossy(&raw.body));
                    let why = format!("the endpoint answered {status}: {}", reply::words(said.as_bytes()));
                    match reply::judge(status, said.as_bytes(), manner, section.structured_output) {
                        Answer::Fatal { class, hint } => return Err((class, why, Verdict::Stop(hint))),
                        Answer::Later => (why, raw.retry_after),
                        Answer::Unstructured => {
                            self.learn(&why, |manner| manner.structured = false);
                            continue;
                        }
                        Answer::NewerLimit => {
                            self.learn(&why, |manner| manner.newer_limit = true);
                            continue;
                        }
                    }
                }
            };
            let pause = pauses.next().map(|pause| pause.max(asked.unwrap_or_default().min(longest)));
            // A pause beyond the deadline would only put off what is certain.
            let Some(pause) = pause.filter(|pause| Instant::now() + *pause < deadline) else {
                let class = match self.fate {
                    Fate::Unsent => FailureClass::NotSent,
                    Fate::Refused | Fate::Worked | Fate::Broke => FailureClass::Failed,
                    Fate::Unknown => FailureClass::UnknownOutcome,
                };
                return Err((class, format!("{why} (tried {tries} times)"), Verdict::Retry));
            };
            let pause_ms = pause.as_millis() as u64;
            warn!(tries, pause_ms, cause = why, "the endpoint is asked again");
            self.note(&format!("{why}; it is sent again after {pause_ms} ms"));
            tokio::time::sleep(pause).await;
            tries += 1;
        }
    }

    /// Remembers for this process how the endpoint wants to be asked.
    fn learn(&mut self, why: &str, change: impl FnOnce(&mut Manner)) {
        change(&mut self.proposer.manner.lock());
        self.note(&format!("{why}; it is asked in another way from now on"));
    }

    async fn send(&mut self, endpoint: &Endpoint, body: &Value) -> Result<Raw, Lost> {
        // The semaphore is never closed.
        let _permit = self.proposer.permits.acquire().await;
        self.transcript.add("optimizer", body);
        // A request that is broken off may have been taken.
        let known = std::mem::replace(&mut self.fate, Fate::Unknown);
        let outcome = endpoint.send(Bytes::from(body.to_string())).await;
        if let Ok(_) | Err(Lost::NeverSent(_)) = outcome {
            self.fate = known;
        }
        outcome
    }

    /// The document of a reply, if it is one.
    fn hear(&mut self, raw: &Raw) -> Option<Value> {
        let document = serde_json::from_slice::<Value>(&raw.body).ok();
        let body = document.clone().unwrap_or_else(|| json!(self.beginning_of(raw)));
        self.transcript.add("endpoint", &json!({ "status": raw.status, "body": body }));
        document
    }

    /// Reads a reply of success. Whoever answered is looked at before what it said.
    fn read(
        &mut self,
        raw: &Raw,
        document: Option<&Value>,
        request: &ProposalRequest,
    ) -> Result<ProposalAnswer, Reason> {
        let OpenAiProposer { section, model, redactor, prices, .. } = self.proposer;
        let family = section.api_family;
        let Some(reply) = document.and_then(|document| reply::read(family, document)) else {
            let (kind, shown) = (self.shown(&raw.content_type), self.beginning_of(raw));
            let message = format!("the endpoint answered {} with no {} ({kind}): {shown}", raw.status, family.word());
            return Err((FailureClass::Contract, message, Verdict::Retry));
        };
        let mut usage = prices.usage(model, reply.model.as_deref(), reply.tokens);
        // What the endpoint itself says is what is paid.
        if let cost @ Cost::Known(_) = Cost::from_usd(reply.cost_usd) {
            usage.cost = cost;
        }
        self.told = Some(usage);
        self.effective = reply.model.as_deref().map(|effective| self.shown(effective));
        if let (Some(effective), Some(shown)) = (&reply.model, &self.effective)
            && !is_same(model, effective)
        {
            let message = format!("asked for model {model}, {shown} answered");
            let hint = "Name the model that the endpoint serves in proposer.model.";
            return Err((FailureClass::Contract, message, Verdict::Stop(hint)));
        }
        let most = section.max_answer_kb.saturating_mul(1024);
        let found = match reply.said {
            Said::Text(text) if text.len() as u64 > most => Found::too_large(&text, most),
            // The model may repeat a key that was shown to it elsewhere: then it is not stored.
            Said::Text(text) => manifest::read(reply::without_thoughts(&text), request, redactor),
            Said::CutOff => {
                let message =
                    "the answer was cut off at its longest (proposer.max_output_tokens, or the endpoint's limit)"
                        .into();
                Problem { code: "answer_cut_off".into(), field: None, message }.into()
            }
            Said::Refused(words) => {
                let message = format!("the model refused to answer: {}", self.shown(&words));
                return Err((FailureClass::Failed, message, Verdict::GiveUp));
            }
            Said::Failed { message, may_pass } => {
                let message = format!("the endpoint failed: {}", self.shown(&message));
                let verdict = if may_pass { Verdict::Retry } else { Verdict::GiveUp };
                return Err((FailureClass::Failed, message, verdict));
            }
        };
        Ok(found.into_answer(self.usage(), model, self.effective.as_deref().unwrap_or(UNNAMED)))
    }

    /// What the turn used. A sum with an unknown part is unknown.
    fn usage(&self) -> Usage {
        match (self.fate, self.told) {
            (Fate::Unknown, _) => Usage::default(),
            (Fate::Broke, Some(usage)) => Usage { cost: Cost::Unknown, ..usage },
            (_, Some(usage)) => usage,
            (Fate::Worked | Fate::Broke, None) => Usage::default(),
            (Fate::Unsent | Fate::Refused, None) => Usage {
                prompt_tokens: Some(0),
                completion_tokens: Some(0),
                total_tokens: Some(0),
                cost: Cost::Known(NanoUsd(0)),
            },
        }
    }

    /// The run ends. What is under way may be paid for.
    pub(super) fn interrupted(&self) -> Reason {
        let class = if self.fate <= Fate::Refused { FailureClass::Withdrawn } else { FailureClass::Abandoned };
        (class, "the turn was interrupted".into(), Verdict::GiveUp)
    }

    pub(super) fn timed_out(&self) -> Reason {
        let class = if self.fate == Fate::Unsent { FailureClass::NotSent } else { FailureClass::Timeout };
        let seconds = self.proposer.section.timeout_seconds;
        let message = format!("there was no answer within proposer.timeout_seconds = {seconds}");
        (class, message, Verdict::Retry)
    }

    pub(super) fn failed(&mut self, reason: Reason) -> TurnFailure {
        let OpenAiProposer { model, redactor, .. } = self.proposer;
        let models = TurnModels { requested: model.clone(), effective: self.effective.clone() };
        let outcome = Outcome { models: Some(models), usage: self.usage(), redactor: redactor.clone() };
        let failed = outcome.failed(reason);
        self.note(&failed.failure.message);
        failed
    }

    fn note(&mut self, text: &str) {
        self.transcript.add("note", &json!(text));
    }

    fn shown(&self, text: &str) -> String {
        shortened(&self.proposer.redactor.text(text))
    }

    /// The beginning of a reply. Credentials go before the end is cut off, so that no half of one is left.
    fn beginning_of(&self, raw: &Raw) -> String {
        excerpt(self.proposer.redactor.known_hidden(&String::from_utf8_lossy(&raw.body)).as_bytes())
    }
}

//! One turn: a question that is sent until it is answered.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ending::{Fate, Retry};
use super::endpoint::Endpoint;
use super::refusal::{self, Verdict};
use super::reply::{self, Reply, Said};
use super::wire::Ask;
use super::{OpenAiProposer, models};
use crate::http::{Lost, Raw, backoff};
use crate::model::answer::{FailureClass, ProposalAnswer};
use crate::model::event_fields::Problem;
use crate::model::usage::{Cost, Usage};
use crate::proposer::transcript::Transcript;
use crate::proposer::{ProposalRequest, TurnFailure, manifest};

/// What is stored for a model that the endpoint does not name.
const UNNAMED: &str = "unknown";

/// A turn under way.
#[derive(Debug)]
pub(super) struct Course<'a> {
    pub(super) proposer: &'a OpenAiProposer,
    pub(super) transcript: Transcript,
    pub(super) fate: Fate,
    pub(super) in_flight: bool,
    pub(super) effective: Option<String>,
    /// What the last reply told.
    pub(super) told: Option<Usage>,
}

impl<'a> Course<'a> {
    pub(super) fn new(proposer: &'a OpenAiProposer, transcript: Transcript) -> Self {
        Self { proposer, transcript, fate: Fate::Unsent, in_flight: false, effective: None, told: None }
    }

    /// Sends the question until there is an answer. What was refused unpaid for its form alone is no retry.
    pub(super) async fn answer(
        &mut self,
        endpoint: &Endpoint,
        ask: &Ask,
        request: &ProposalRequest,
        deadline: Instant,
    ) -> Result<ProposalAnswer, TurnFailure> {
        let section = &self.proposer.section;
        let longest = Duration::from_secs(section.backoff_max_seconds);
        let mut retries = 0;
        loop {
            let manner = self.proposer.manner();
            let body = ask.body(manner);
            let (why, asked) = match self.send(endpoint, &body).await {
                Err(Lost::NeverSent(reason)) => (format!("the request was not sent: {reason}"), None),
                Err(Lost::Unknown(reason)) => (format!("the answer was lost: {reason}"), None),
                Err(Lost::TooLarge { status }) => return Err(self.too_large(status).into()),
                Ok(raw) => {
                    let document = self.hear(&raw);
                    let hidden = document.as_ref().and_then(reply::hidden_error);
                    let status = if raw.is_success() { hidden.unwrap_or(raw.status) } else { raw.status };
                    if (200..300).contains(&status) {
                        self.fate = self.fate.max(Fate::Worked);
                        return self.read(&raw, document.as_ref(), ask, request).map_err(|failure| *failure);
                    }
                    let free = if refusal::is_free(status) { Fate::Refused } else { Fate::Broke };
                    self.fate = self.fate.max(free);
                    let said = self.proposer.redactor.known_hidden(&String::from_utf8_lossy(&raw.body));
                    let why = format!("the endpoint answered {status}: {}", refusal::words(said.as_bytes()));
                    match refusal::judge(status, said.as_bytes(), manner, section.structured_output) {
                        Verdict::Rewrite(manner) => {
                            self.proposer.learn(manner);
                            self.note(&format!("{why}; it is asked in another way from now on"));
                            continue;
                        }
                        Verdict::Later => (why, raw.retry_after),
                        Verdict::Fatal { class, hint } => return Err(self.fatal(class, why, hint)),
                    }
                }
            };
            retries += 1;
            let first = Duration::from_millis(section.backoff_ms);
            let pause = backoff(first, longest, retries).max(asked.unwrap_or_default().min(longest));
            // A pause beyond the deadline would only put off what is certain.
            if retries > section.request_retries || Instant::now() + pause >= deadline {
                return Err(self.gave_up(why, retries).into());
            }
            self.note(&format!("{why}; it is sent again after {} ms", pause.as_millis()));
            tokio::time::sleep(pause).await;
        }
    }

    async fn send(&mut self, endpoint: &Endpoint, body: &Value) -> Result<Raw, Lost> {
        // The semaphore is never closed.
        let _permit = self.proposer.permits.acquire().await;
        self.transcript.add("optimizer", body);
        self.in_flight = true;
        let outcome = endpoint.send(Bytes::from(body.to_string())).await;
        self.in_flight = false;
        match &outcome {
            Ok(_) | Err(Lost::NeverSent(_)) => {}
            Err(Lost::Unknown(_) | Lost::TooLarge { .. }) => self.fate = Fate::Unknown,
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
        ask: &Ask,
        request: &ProposalRequest,
    ) -> Result<ProposalAnswer, Box<TurnFailure>> {
        let Some(reply) = document.and_then(|document| reply::read(ask.family, document)) else {
            let (kind, shown) = (self.shown(&raw.content_type), self.beginning_of(raw));
            let message =
                format!("the endpoint answered {} with no {} ({kind}): {shown}", raw.status, ask.family.word());
            return Err(Box::new(self.failure(FailureClass::Contract, &message, Retry::MayHelp).into()));
        };
        self.take_note_of(&reply);
        if let Some(effective) = &reply.model
            && !models::is_same(&self.proposer.model, effective)
        {
            let message = format!("asked for model {}, {} answered", self.proposer.model, self.shown(effective));
            let hint = "Name the model that the endpoint serves in proposer.model.";
            return Err(Box::new(self.fatal(FailureClass::Contract, message, hint)));
        }
        let text = match reply.said {
            Said::Text(text) => text,
            Said::Refused(words) => {
                let message = format!("the model refused to answer: {}", self.shown(&words));
                return Err(Box::new(self.failure(FailureClass::Failed, &message, Retry::IsVain).into()));
            }
            Said::CutOff => {
                let message =
                    "the answer was cut off at its longest (proposer.max_output_tokens, or the endpoint's limit)";
                return Ok(self.unusable("answer_cut_off", message.to_owned()));
            }
            Said::Failed { message, may_pass } => {
                let message = format!("the endpoint failed: {}", self.shown(&message));
                let retry = if may_pass { Retry::MayHelp } else { Retry::IsVain };
                return Err(Box::new(self.failure(FailureClass::Failed, &message, retry).into()));
            }
        };
        let most = self.proposer.section.max_answer_kb.saturating_mul(1024);
        if text.len() as u64 > most {
            let message = format!("the answer has {} bytes; at most {most} are allowed", text.len());
            return Ok(self.unusable("answer_too_large", message));
        }
        // The model may repeat a key that was shown to it elsewhere: then it is not stored.
        let found = manifest::read(reply::without_thoughts(&text), request, &self.proposer.redactor);
        Ok(self.answered(found))
    }

    /// An answer that cannot be used, and why; the model is asked to mend it.
    fn unusable(&self, code: &str, message: String) -> ProposalAnswer {
        let problem = Problem { code: code.to_owned(), field: None, message };
        self.answered(manifest::Found { proposals: Vec::new(), problems: vec![problem] })
    }

    fn answered(&self, found: manifest::Found) -> ProposalAnswer {
        ProposalAnswer {
            proposals: found.proposals,
            problems: found.problems,
            usage: self.usage(),
            cached: false,
            requested_model: self.proposer.model.clone(),
            effective_model: self.effective.clone().unwrap_or_else(|| UNNAMED.to_owned()),
        }
    }

    fn take_note_of(&mut self, reply: &Reply) {
        let (prices, requested) = (&self.proposer.prices, &self.proposer.model);
        let effective = reply.model.as_deref();
        let mut usage = prices.usage(effective.unwrap_or(requested), reply.tokens);
        if usage.cost == Cost::Unknown && effective.is_none_or(|effective| models::is_same(requested, effective)) {
            usage = prices.usage(requested, reply.tokens);
        }
        // What the endpoint itself says is what is paid.
        if let cost @ Cost::Known(_) = Cost::from_usd(reply.cost_usd) {
            usage.cost = cost;
        }
        self.told = Some(usage);
        self.effective = effective.map(|effective| self.shown(effective));
    }
}

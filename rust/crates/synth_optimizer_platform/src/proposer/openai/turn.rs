//! One turn: a question that is sent until it is answered, and what is known when it is not.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::endpoint::Endpoint;
use super::refusal::{self, Verdict};
use super::reply::{self, Reply, Said};
use super::wire::Ask;
use super::{OpenAiProposer, models};
use crate::http::{Lost, Raw, backoff, excerpt, shortened};
use crate::model::answer::{CallFailure, FailureClass, ProposalAnswer};
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::event_fields::TurnModels;
use crate::model::usage::{Cost, NanoUsd, Usage};
use crate::proposer::transcript::Transcript;
use crate::proposer::{ProposalRequest, TurnFailure, manifest};

/// What is stored for a model that the endpoint does not name.
const UNNAMED: &str = "unknown";

/// The worst that has become of the requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Unsent,
    /// Refused before any work was done.
    Refused,
    /// The endpoint worked on it, and broke or answered.
    Worked,
    /// Nobody knows: it is under way, or its answer was lost.
    Unknown,
}

/// A turn under way.
#[derive(Debug)]
pub(super) struct Course<'a> {
    proposer: &'a OpenAiProposer,
    transcript: Transcript,
    fate: Fate,
    in_flight: bool,
    effective: Option<String>,
    usage: Option<Usage>,
}

impl<'a> Course<'a> {
    pub(super) fn new(proposer: &'a OpenAiProposer, transcript: Transcript) -> Self {
        Self { proposer, transcript, fate: Fate::Unsent, in_flight: false, effective: None, usage: None }
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
                    let document = serde_json::from_slice::<Value>(&raw.body).ok();
                    let hidden = document.as_ref().and_then(reply::hidden_error);
                    let status = if raw.is_success() { hidden.unwrap_or(raw.status) } else { raw.status };
                    if (200..300).contains(&status) {
                        self.fate = self.fate.max(Fate::Worked);
                        return self.read(&raw, document.as_ref(), ask, request);
                    }
                    let free = if refusal::is_free(status) { Fate::Refused } else { Fate::Worked };
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
            let pause = asked.map_or_else(
                || backoff(Duration::from_millis(section.backoff_ms), longest, retries),
                |asked| asked.min(longest),
            );
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
            Ok(raw) => {
                let text = || json!(excerpt(&raw.body));
                let said = serde_json::from_slice::<Value>(&raw.body).unwrap_or_else(|_| text());
                self.transcript.add("endpoint", &json!({ "status": raw.status, "body": said }));
            }
            Err(Lost::NeverSent(_)) => {}
            Err(Lost::Unknown(_) | Lost::TooLarge { .. }) => self.fate = Fate::Unknown,
        }
        outcome
    }

    /// Reads a reply of success. Whoever answered is looked at before what it said.
    fn read(
        &mut self,
        raw: &Raw,
        document: Option<&Value>,
        ask: &Ask,
        request: &ProposalRequest,
    ) -> Result<ProposalAnswer, TurnFailure> {
        let Some(reply) = document.and_then(|document| reply::read(ask.family, document)) else {
            let shown = excerpt(self.proposer.redactor.known_hidden(&String::from_utf8_lossy(&raw.body)).as_bytes());
            let kind = if raw.content_type.is_empty() { "no content type" } else { &raw.content_type };
            let message =
                format!("the endpoint answered {} with no {} ({kind}): {shown}", raw.status, ask.family.word());
            return Err(self.failure(FailureClass::Contract, &message, Retry::MayHelp).into());
        };
        self.take_note_of(&reply);
        if let Some(effective) = &self.effective
            && !models::is_same(&self.proposer.model, effective)
        {
            let message = format!("asked for model {}, {effective} answered", self.proposer.model);
            let hint = "Name the model that the endpoint serves in proposer.model.";
            return Err(self.fatal(FailureClass::Contract, message, hint));
        }
        let text = match reply.said {
            Said::Text(text) => text,
            Said::Refused(words) => {
                let message = format!("the model refused to answer: {}", self.shown(&words));
                return Err(self.failure(FailureClass::Failed, &message, Retry::IsVain).into());
            }
            Said::CutOff => {
                let message = "the answer was cut off at its longest; raise proposer.max_output_tokens";
                return Err(self.failure(FailureClass::Contract, message, Retry::IsVain).into());
            }
            Said::Failed { message, may_pass } => {
                let message = format!("the endpoint failed: {}", self.shown(&message));
                let retry = if may_pass { Retry::MayHelp } else { Retry::IsVain };
                return Err(self.failure(FailureClass::Failed, &message, retry).into());
            }
        };
        if text.len() as u64 > self.proposer.section.max_answer_kb.saturating_mul(1024) {
            return Err(self.too_large(raw.status).into());
        }
        // The model may repeat a key that was shown to it elsewhere: then it is not stored.
        let redactor = &self.proposer.redactor;
        let text = redactor.known_hidden(&text);
        let mut found = manifest::read(reply::without_thoughts(&text), request);
        for proposal in &mut found.proposals {
            proposal.fields.values_mut().for_each(|text| *text = redactor.known_hidden(text));
        }
        Ok(ProposalAnswer {
            proposals: found.proposals,
            problems: found.problems,
            usage: self.usage(),
            cached: false,
            requested_model: self.proposer.model.clone(),
            effective_model: self.effective.clone().unwrap_or_else(|| UNNAMED.to_owned()),
        })
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
        self.usage = Some(usage);
        self.effective = effective.map(|effective| self.shown(effective));
    }

    /// What the turn used. A sum with an unknown part is unknown.
    fn usage(&self) -> Usage {
        match (self.fate, self.usage) {
            (Fate::Unknown, _) => Usage::default(),
            (_, Some(usage)) => usage,
            (Fate::Worked, None) => Usage::default(),
            (Fate::Unsent | Fate::Refused, None) => Usage {
                prompt_tokens: Some(0),
                completion_tokens: Some(0),
                total_tokens: Some(0),
                cost: Cost::Known(NanoUsd(0)),
            },
        }
    }
}

/// Whether another turn may end better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    MayHelp,
    IsVain,
}

/// How turns end without an answer.
impl Course<'_> {
    /// The run ends. What is under way may be paid for.
    pub(super) fn interrupted(&mut self) -> TurnFailure {
        let class = if self.settle() <= Fate::Refused { FailureClass::Withdrawn } else { FailureClass::Abandoned };
        self.failure(class, "the turn was interrupted", Retry::IsVain).into()
    }

    pub(super) fn timed_out(&mut self, timeout: Duration) -> TurnFailure {
        let class = if self.settle() == Fate::Unsent { FailureClass::NotSent } else { FailureClass::Timeout };
        let message = format!("there was no answer within proposer.timeout_seconds = {}", timeout.as_secs());
        self.failure(class, &message, Retry::MayHelp).into()
    }

    pub(super) fn cannot_begin(&mut self, error: &OptimizerError) -> TurnFailure {
        let failure = self.failure(FailureClass::NotSent, &error.message, Retry::IsVain);
        TurnFailure { failure, fatal: Some(error.clone()) }
    }

    fn gave_up(&mut self, why: String, tries: u32) -> CallFailure {
        let class = match self.fate {
            Fate::Unsent => FailureClass::NotSent,
            Fate::Refused | Fate::Worked => FailureClass::Failed,
            Fate::Unknown => FailureClass::UnknownOutcome,
        };
        self.failure(class, &format!("{why} (tried {tries} times)"), Retry::MayHelp)
    }

    fn too_large(&mut self, status: u16) -> CallFailure {
        let limit = self.proposer.section.max_answer_kb;
        let message = format!("the answer ({status}) is larger than proposer.max_answer_kb = {limit}");
        self.failure(FailureClass::Contract, &message, Retry::IsVain)
    }

    fn fatal(&mut self, class: FailureClass, message: String, hint: &str) -> TurnFailure {
        let failure = self.failure(class, &message, Retry::IsVain);
        let error = OptimizerError::new(ErrorCode::Proposer, failure.message.clone()).with_hint(hint);
        TurnFailure { failure, fatal: Some(error) }
    }

    fn failure(&mut self, class: FailureClass, message: &str, retry: Retry) -> CallFailure {
        let message = self.proposer.redactor.text(message);
        self.note(&message);
        let models = TurnModels { requested: self.proposer.model.clone(), effective: self.effective.clone() };
        CallFailure {
            class,
            message,
            retryable: retry == Retry::MayHelp,
            usage: self.usage(),
            cached: false,
            models: Some(Box::new(models)),
        }
    }

    /// A request that is broken off in flight may have been taken.
    fn settle(&mut self) -> Fate {
        if std::mem::take(&mut self.in_flight) {
            self.fate = Fate::Unknown;
        }
        self.fate
    }

    fn note(&mut self, text: &str) {
        self.transcript.add("note", &json!(text));
    }

    fn shown(&self, text: &str) -> String {
        shortened(&self.proposer.redactor.text(text))
    }
}

//! One turn: a question that is sent until it is answered; how it ends without an answer, and what it has used by then.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::OpenAiProposer;
use super::endpoint::Ask;
use super::endpoint::Endpoint;
use super::refusal::{self, Verdict};
use super::reply::{self, Reply, Said};
use crate::http::{Lost, Raw, excerpt, pauses, shortened};
use crate::proposer::transcript::Transcript;
use crate::proposer::{ProposalRequest, TurnFailure, manifest};
use synth_optimizer_core::model::answer::{CallFailure, FailureClass, ProposalAnswer};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::{Problem, TurnModels};
use synth_optimizer_core::model::usage::{Cost, NanoUsd, Usage};

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
        let (first, longest) =
            (Duration::from_millis(section.backoff_ms), Duration::from_secs(section.backoff_max_seconds));
        let mut pauses = pauses(first, longest, section.request_retries);
        let mut tries = 1;
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
            let pause = pauses.next().map(|pause| pause.max(asked.unwrap_or_default().min(longest)));
            // A pause beyond the deadline would only put off what is certain.
            let Some(pause) = pause.filter(|pause| Instant::now() + *pause < deadline) else {
                return Err(self.gave_up(why, tries).into());
            };
            let pause_ms = pause.as_millis() as u64;
            warn!(tries, pause_ms, cause = why, "the endpoint is asked again");
            self.note(&format!("{why}; it is sent again after {pause_ms} ms"));
            tokio::time::sleep(pause).await;
            tries += 1;
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
            && !reply::is_same(&self.proposer.model, effective)
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
        if usage.cost == Cost::Unknown && effective.is_none_or(|effective| reply::is_same(requested, effective)) {
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

/// The worst that has become of the requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
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

/// Whether another turn may end better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    MayHelp,
    IsVain,
}

impl Course<'_> {
    /// What the turn used. A sum with an unknown part is unknown.
    pub(super) fn usage(&self) -> Usage {
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

    pub(super) fn gave_up(&mut self, why: String, tries: u32) -> CallFailure {
        let class = match self.fate {
            Fate::Unsent => FailureClass::NotSent,
            Fate::Refused | Fate::Worked | Fate::Broke => FailureClass::Failed,
            Fate::Unknown => FailureClass::UnknownOutcome,
        };
        self.failure(class, &format!("{why} (tried {tries} times)"), Retry::MayHelp)
    }

    pub(super) fn too_large(&mut self, status: u16) -> CallFailure {
        let limit = self.proposer.section.max_answer_kb;
        let message = format!("the answer ({status}) is larger than proposer.max_answer_kb = {limit}");
        self.failure(FailureClass::Contract, &message, Retry::IsVain)
    }

    pub(super) fn fatal(&mut self, class: FailureClass, message: String, hint: &str) -> TurnFailure {
        let failure = self.failure(class, &message, Retry::IsVain);
        let error = OptimizerError::new(ErrorCode::Proposer, failure.message.clone()).with_hint(hint);
        TurnFailure { failure, fatal: Some(error) }
    }

    pub(super) fn failure(&mut self, class: FailureClass, message: &str, retry: Retry) -> CallFailure {
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
    pub(super) fn settle(&mut self) -> Fate {
        if std::mem::take(&mut self.in_flight) {
            self.fate = Fate::Unknown;
        }
        self.fate
    }

    pub(super) fn note(&mut self, text: &str) {
        self.transcript.add("note", &json!(text));
    }

    pub(super) fn shown(&self, text: &str) -> String {
        shortened(&self.proposer.redactor.text(text))
    }

    /// The beginning of a reply. Credentials go before the end is cut off, so that no half of one is left.
    pub(super) fn beginning_of(&self, raw: &Raw) -> String {
        excerpt(self.proposer.redactor.known_hidden(&String::from_utf8_lossy(&raw.body)).as_bytes())
    }
}

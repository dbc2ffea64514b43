//! The proposer `openai_compatible`: one question to an endpoint that speaks Chat Completions or Responses.
//!
//! `endpoint` writes the request and sends it once, `reply` reads what came, and `turn` does this until there is an answer or
//! none can be had.

mod endpoint;
mod reply;
mod turn;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use self::endpoint::{Endpoint, Manner};
use self::turn::Course;
use super::brief::BRIEF_VERSION;
use super::credentials::{Env, base_url, is_openai, key};
use super::prices::Prices;
use super::transcript::{Redactor, Transcript};
use super::{Doing, ProposalRequest, Proposer, Turn, TurnId};
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::proposer::{ProposerBackend, ProposerSection, StructuredOutput};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::ProposerReady;
use synth_optimizer_core::secrets::scrub;

/// Asks an endpoint for proposals. Shared by all turns of a run.
#[derive(Debug)]
pub struct OpenAiProposer {
    section: ProposerSection,
    model: String,
    run_dir: Utf8PathBuf,
    /// A run that only replays needs neither a key nor certificates, so what is missing is told when it is needed.
    endpoint: Result<Endpoint, OptimizerError>,
    prices: Prices,
    redactor: Redactor,
    permits: Semaphore,
    /// What the endpoint has been found to take.
    manner: Mutex<Manner>,
    interrupt: Notify,
}

impl OpenAiProposer {
    /// `env` reads a variable of the environment.
    pub fn new(config: &Config, run_dir: &Utf8Path, env: Env<'_>) -> Result<Self, OptimizerError> {
        let section = config.proposer.clone();
        let model = section.model.clone().ok_or_else(|| {
            OptimizerError::new(ErrorCode::Proposer, "proposer.model is missing")
                .with_hint("Name a model that the endpoint serves.")
        })?;
        let base = base_url(section.base_url.as_deref())?;
        let key = key(&section, &base, env);
        let redactor = Redactor::new(key.iter().flatten().map(|key| key.value.clone()));
        let is_openai = is_openai(&base);
        Ok(Self {
            endpoint: key.and_then(|key| Endpoint::new(&section, &base, key.as_ref())),
            model,
            run_dir: run_dir.to_owned(),
            prices: Prices::new(&section, is_openai),
            redactor,
            permits: Semaphore::new(section.max_concurrent_requests as usize),
            manner: Mutex::new(Manner {
                structured: section.structured_output != StructuredOutput::Off,
                newer_limit: is_openai,
            }),
            interrupt: Notify::new(),
            section,
        })
    }
}

impl Proposer for OpenAiProposer {
    fn identity(&self) -> Value {
        let section = &self.section;
        // The address is left out: the same model behind another port gives the same answers.
        json!({
            "backend": ProposerBackend::OpenaiCompatible.word(),
            "model": self.model,
            "api_family": section.api_family.word(),
            "reasoning_effort": section.reasoning_effort.map(|effort| effort.word()),
            "structured_output": section.structured_output.word(),
            "max_output_tokens": section.max_output_tokens,
            "max_evidence_kb": section.max_evidence_kb,
            "brief": BRIEF_VERSION,
        })
    }

    fn prepare(&self) -> Doing<'_, Result<Option<ProposerReady>, OptimizerError>> {
        Box::pin(async move {
            let endpoint = self.endpoint.as_ref().map_err(OptimizerError::clone)?;
            Ok(Some(ProposerReady {
                backend: ProposerBackend::OpenaiCompatible.word().to_owned(),
                model: self.model.clone(),
                provider: self.section.provider.clone(),
                program: scrub(self.section.base_url.as_deref().unwrap_or_default()),
                source: "proposer.base_url".to_owned(),
                version: String::new(),
                auth: if endpoint.bearer.is_some() { "api_key" } else { "none" }.to_owned(),
                sandbox: "none: the model is only asked".to_owned(),
            }))
        })
    }

    fn propose(&self, turn: TurnId, request: ProposalRequest) -> Turn<'_> {
        // Made here, so that it is told of an interrupt that comes before the turn is first polled.
        let interrupted = self.interrupt.notified();
        Box::pin(async move {
            let deadline = Instant::now() + Duration::from_secs(self.section.timeout_seconds);
            let mut course = Course::new(self, Transcript::new(&self.run_dir, turn, self.redactor.clone()));
            let ended = tokio::select! {
                biased;
                () = interrupted => Err(course.interrupted()),
                ended = timeout_at(deadline, course.answer(&request, deadline)) => {
                    ended.unwrap_or_else(|_elapsed| Err(course.timed_out()))
                }
            };
            ended.map_err(|reason| course.failed(reason))
        })
    }

    fn interrupt(&self) {
        self.interrupt.notify_waiters();
    }
}

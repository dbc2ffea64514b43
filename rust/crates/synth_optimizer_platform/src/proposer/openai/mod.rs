//! The proposer `openai_compatible`: one question to an endpoint that speaks Chat Completions or Responses.
//!
//! `endpoint` builds and sends a request once, `reply` interprets the response, and `turn` retries until there is an
//! answer or a final failure.

mod endpoint;
mod reply;
mod turn;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use self::endpoint::{Endpoint, RequestStyle};
use self::turn::EndpointTurn;
use super::brief::BRIEF_VERSION;
use super::connection::Connection;
use super::credentials::{Env, base_url, is_openai, required_key};
use super::prices::Prices;
use super::transcript::{Redactor, Transcript};
use super::{CheckFuture, ProposalRequest, Proposer, TurnFuture, TurnId};
use crate::access::EgressPolicy;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::proposer::{ProposerBackend, ProposerSection, StructuredOutput};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::{ModelShutdown, ProposerReady};
use synth_optimizer_core::secrets::scrub;

/// Proposer that calls an endpoint. Shared by all turns of a run.
#[derive(Debug)]
pub struct OpenAiProposer {
    section: ProposerSection,
    model: String,
    run_dir: Utf8PathBuf,
    /// An error is reported only when the endpoint is needed: a replay needs neither a key nor certificates.
    endpoint: Result<Endpoint, OptimizerError>,
    /// The problem of the key, if it has one. Without a key, the endpoint can still be checked.
    key_problem: Option<OptimizerError>,
    prices: Prices,
    redactor: Redactor,
    permits: Semaphore,
    /// The request format that the endpoint accepts.
    style: Mutex<RequestStyle>,
    interrupt: Notify,
}

impl OpenAiProposer {
    /// Creates a proposer that may call any address. `env` reads an environment variable.
    pub fn new(config: &Config, run_dir: &Utf8Path, env: Env<'_>) -> Result<Self, OptimizerError> {
        Self::with_egress_policy(config, run_dir, env, &EgressPolicy::default())
    }

    /// Creates a proposer that connects only to addresses that the policy allows.
    pub fn with_egress_policy(
        config: &Config,
        run_dir: &Utf8Path,
        env: Env<'_>,
        egress_policy: &EgressPolicy,
    ) -> Result<Self, OptimizerError> {
        let section = config.proposer.clone();
        let model = section.model.clone().ok_or_else(|| {
            OptimizerError::new(ErrorCode::Proposer, "proposer.model is missing")
                .with_hint("Name a model that the endpoint serves.")
        })?;
        let base = base_url(section.base_url.as_deref())?;
        let (key, key_problem) = match required_key(&section, &base, env) {
            Ok(key) => (key, None),
            Err(error) => (None, Some(error)),
        };
        let redactor = Redactor::new(key.iter().map(|key| key.value.clone()));
        let connection = Connection::new(&base, key.as_ref(), egress_policy);
        let is_openai = is_openai(&base);
        Ok(Self {
            endpoint: connection.map(|connection| Endpoint::new(&section, connection)),
            key_problem,
            model,
            run_dir: run_dir.to_owned(),
            prices: Prices::new(&section, is_openai)?,
            redactor,
            permits: Semaphore::new(
                section.max_concurrent_requests.map_or(Semaphore::MAX_PERMITS, |most| most as usize),
            ),
            style: Mutex::new(RequestStyle {
                structured: section.structured_output != StructuredOutput::Off,
                newer_limit: is_openai,
            }),
            interrupt: Notify::new(),
            section,
        })
    }

    /// Returns the endpoint, or the reason why no turn can start.
    fn ready_endpoint(&self) -> Result<&Endpoint, OptimizerError> {
        match (&self.key_problem, &self.endpoint) {
            (Some(error), _) | (None, Err(error)) => Err(error.clone()),
            (None, Ok(endpoint)) => Ok(endpoint),
        }
    }

    /// Checks key, endpoint and model without a paid call. Returns every problem, or the end of the model if it is named.
    async fn check_access(&self) -> Result<Option<ModelShutdown>, Vec<OptimizerError>> {
        let checked = match &self.endpoint {
            Ok(endpoint) => {
                let is_key_missing = self.key_problem.is_some();
                endpoint.connection.check_model(Some(&self.model), is_key_missing, &self.redactor).await
            }
            Err(error) => Err(error.clone()),
        };
        match (self.key_problem.clone(), checked) {
            (None, Ok(shutdown)) => Ok(shutdown),
            (problem, checked) => Err(problem.into_iter().chain(checked.err()).collect()),
        }
    }
}

impl Proposer for OpenAiProposer {
    fn identity(&self) -> Value {
        let section = &self.section;
        // The URL is not included: the same model at another address gives the same answers.
        json!({
            "backend": ProposerBackend::OpenaiCompatible.as_str(),
            "model": self.model,
            "api_family": section.api_family.as_str(),
            "reasoning_effort": section.reasoning_effort.map(|effort| effort.as_str()),
            "structured_output": section.structured_output.as_str(),
            "max_output_tokens": section.max_output_tokens,
            "max_evidence_kb": section.max_evidence_kb,
            "brief": BRIEF_VERSION,
            "instructions": section.instructions,
        })
    }

    fn check(&self) -> CheckFuture<'_> {
        Box::pin(async move {
            let model_shutdown = self.check_access().await?;
            let endpoint = self.ready_endpoint().map_err(|error| vec![error])?;
            Ok(Some(ProposerReady {
                backend: ProposerBackend::OpenaiCompatible.as_str().to_owned(),
                model: self.model.clone(),
                provider: self.section.provider.clone(),
                program: scrub(self.section.base_url.as_deref().unwrap_or_default()),
                source: "proposer.base_url".to_owned(),
                version: String::new(),
                auth: if endpoint.connection.has_key() { "api_key" } else { "none" }.to_owned(),
                sandbox: "none: the model executes nothing".to_owned(),
                model_shutdown,
            }))
        })
    }

    fn propose(&self, turn: TurnId, request: ProposalRequest) -> TurnFuture<'_> {
        // Created here, so that it receives an interrupt that occurs before the turn is first polled.
        let interrupted = self.interrupt.notified();
        Box::pin(async move {
            let deadline = Instant::now() + Duration::from_secs(self.section.timeout_seconds);
            let mut endpoint_turn =
                EndpointTurn::new(self, Transcript::new(&self.run_dir, turn, self.redactor.clone()));
            let ended = tokio::select! {
                biased;
                () = interrupted => Err(endpoint_turn.interrupted()),
                ended = timeout_at(deadline, endpoint_turn.answer(&request, deadline)) => {
                    ended.unwrap_or_else(|_elapsed| Err(endpoint_turn.timed_out()))
                }
            };
            ended.map_err(|reason| endpoint_turn.failed(reason))
        })
    }

    fn interrupt(&self) {
        self.interrupt.notify_waiters();
    }
}

//! The proposer boundary: the request to a proposer, and the contract of every backend.

mod brief;
mod codex;
mod connection;
mod credentials;
mod evidence;
mod files;
mod manifest;
mod openai;
mod prices;
#[cfg(test)]
mod tests_support;
mod transcript;

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use serde::Serialize;
use serde_json::Value;

use crate::access::EgressPolicy;
pub use codex::{CodexProposer, EnvLookup};
pub(crate) use evidence::shown_reply;
pub use manifest::SCHEMA_VERSION;
pub use openai::OpenAiProposer;

use crate::outage::Outage;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass, Proposal, ProposalAnswer};
use synth_optimizer_core::model::command::ProposerQuestion;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::{ProposerReady, TurnModels};
use synth_optimizer_core::model::ids::{CallId, RowId};
use synth_optimizer_core::model::usage::Usage;
use transcript::Redactor;

/// One row of evidence: its input, the container's reply and the score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    pub row_id: RowId,
    pub row: Value,
    pub score: Option<f64>,
    /// The container's whole reply, if there is one.
    pub reply: Option<Value>,
}

/// The input of a proposer turn. It contains no held-out rows and no secrets. It does not depend on the run's name,
/// directory or time, so its digest is the cache key of the turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProposalRequest {
    pub question: ProposerQuestion,
    pub program: Value,
    pub task_info: Option<Value>,
    /// Whether a higher or a lower score is better.
    pub direction: Direction,
    pub evidence: Vec<Evidence>,
    /// The proposals of the answer to which the problems of the question refer.
    pub refused: Vec<Proposal>,
}

/// Identifies a turn within its run. It is not part of the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnId {
    pub call_id: CallId,
    pub attempt: u32,
}

impl TurnId {
    /// Returns the name of the turn's workspace and transcript.
    fn name(self) -> String {
        format!("turn_{:06}_{}", self.call_id.0, self.attempt)
    }
}

/// A turn that produced no answer.
#[derive(Debug)]
pub struct TurnFailure {
    /// The stored failure, with the usage up to that point.
    pub failure: CallFailure,
    /// Set if the run cannot continue: another model than the requested one, a rejected request, a broken sandbox.
    pub fatal: Option<OptimizerError>,
    /// Set if the proposer is unavailable. The turn is sent again later.
    pub outage: Option<Outage>,
}

/// Maximum length of a stored message.
const MAX_MESSAGE_CHARS: usize = 600;

/// Models and usage of a turn so far.
#[derive(Debug, Clone, Default)]
struct TurnAccount {
    /// The models that a failure reports.
    models: Option<TurnModels>,
    usage: Usage,
    /// Hides credentials in messages about the turn.
    redactor: Redactor,
}

/// Why a turn failed: class, message and consequence.
type TurnError = (FailureClass, String, FailureAction);

/// Consequence of a failed turn.
#[derive(Debug, Clone, PartialEq)]
enum FailureAction {
    /// The same turn may succeed later.
    Retry,
    /// The proposer is unavailable: it cannot be reached or started, is overloaded or rejects the key.
    Wait { hint: Cow<'static, str>, retry_after: Option<Duration> },
    /// The same turn would fail again; another turn may succeed.
    GiveUp,
    /// Every turn would fail: the run ends with this hint.
    Stop(&'static str),
    /// No turn can start: the run ends with this error.
    EndRun(Box<OptimizerError>),
}

/// Returns the error of a turn that cannot start. The proposer may become available: a program is installed, or a login
/// renewed. A fault of this machine ends the run instead.
fn cannot_start(error: OptimizerError) -> TurnError {
    if error.code != ErrorCode::Proposer {
        return ending_run(error);
    }
    let action = FailureAction::Wait { hint: error.hint.into(), retry_after: None };
    (FailureClass::NotSent, error.message, action)
}

fn ending_run(error: OptimizerError) -> TurnError {
    (FailureClass::NotSent, error.message.clone(), FailureAction::EndRun(Box::new(error)))
}

impl TurnAccount {
    fn failed(&self, (class, message, action): TurnError) -> TurnFailure {
        let message: String = self.redactor.text(&message).chars().take(MAX_MESSAGE_CHARS).collect();
        let (models, retryable) = (self.models.clone().map(Box::new), action == FailureAction::Retry);
        let (mut fatal, mut outage) = (None, None);
        match action {
            FailureAction::Retry | FailureAction::GiveUp => {}
            FailureAction::Wait { hint, retry_after } => {
                outage = Some(Outage { cause: message.clone(), hint: Some(hint), retry_after });
            }
            FailureAction::Stop(hint) => {
                fatal = Some(OptimizerError::new(ErrorCode::Proposer, message.clone()).with_hint(hint));
            }
            FailureAction::EndRun(error) => fatal = Some(*error),
        }
        let failure = CallFailure { class, message, retryable, usage: self.usage, cached: false, models };
        TurnFailure { failure, fatal, outage }
    }
}

/// Future of a proposer operation.
pub type ProposerFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Future of a check: what is ready, or every problem that was found.
pub type CheckFuture<'a> = ProposerFuture<'a, Result<Option<ProposerReady>, Vec<OptimizerError>>>;

/// Future of a turn.
pub type TurnFuture<'a> = ProposerFuture<'a, Result<ProposalAnswer, TurnFailure>>;

/// Returns one error for all problems. The first one determines its code.
fn join_problems(problems: Vec<OptimizerError>) -> OptimizerError {
    let join = |first: OptimizerError, next: OptimizerError| OptimizerError {
        message: format!("{}; {}", first.message, next.message),
        hint: format!("{} {}", first.hint, next.hint),
        ..first
    };
    let none = || OptimizerError::new(ErrorCode::Invariant, "the check of the proposer failed without a problem");
    problems.into_iter().reduce(join).unwrap_or_else(none)
}

/// Creates the proposer that the config names. It starts no process and sends no request before `prepare`.
/// `codex_runtime` is the codex binary that is installed with the package, if there is one. The policy restricts the
/// endpoint of the model.
pub fn proposer_from_config(
    config: &Config,
    run_dir: &Utf8Path,
    codex_runtime: Option<&Utf8Path>,
    egress_policy: &EgressPolicy,
) -> Result<Arc<dyn Proposer>, OptimizerError> {
    if let Some(path) = &config.proposer.instructions_file {
        let message = format!("proposer.instructions_file {path} was not read when the configuration was loaded");
        return Err(
            OptimizerError::new(ErrorCode::Config, message).with_hint("Write the text into proposer.instructions.")
        );
    }
    let variable = |name: &str| std::env::var(name).ok();
    Ok(match config.proposer.backend {
        ProposerBackend::CodexAppServer => {
            let runtime = codex_runtime.map(Utf8Path::to_owned);
            let proposer = CodexProposer::new(config, run_dir, Arc::new(variable), runtime)?;
            Arc::new(proposer.with_egress_policy(egress_policy))
        }
        ProposerBackend::OpenaiCompatible => {
            Arc::new(OpenAiProposer::with_egress_policy(config, run_dir, &variable, egress_policy)?)
        }
    })
}

/// Writes proposals: the contract of every backend.
pub trait Proposer: Send + Sync + std::fmt::Debug {
    /// Returns everything that affects the answers of this proposer: backend, model and settings.
    fn identity(&self) -> Value;

    /// Checks everything that a turn needs, without a paid call, and returns every problem.
    fn check(&self) -> CheckFuture<'_> {
        Box::pin(async { Ok(None) })
    }

    /// Checks everything that a turn needs, before any paid call. A run that may call the proposer calls this once and
    /// records the result.
    fn prepare(&self) -> ProposerFuture<'_, Result<Option<ProposerReady>, OptimizerError>> {
        Box::pin(async { self.check().await.map_err(join_problems) })
    }

    /// Makes the model of an earlier process or of a cached answer the model of the run, unless it is known already. Every
    /// turn must use the model of the run. Returns whether it is this model.
    fn adopt_model(&self, _model: &str) -> bool {
        true
    }

    /// Runs one turn within its own deadlines. Dropping the future must leave no processes or files behind.
    fn propose(&self, turn: TurnId, request: ProposalRequest) -> TurnFuture<'_>;

    /// Asks the active turns to end at once and to report their usage.
    fn interrupt(&self) {}

    /// Ends everything that the proposer started. The run calls this once at its end.
    fn close(&self) -> ProposerFuture<'_, ()> {
        Box::pin(async {})
    }
}

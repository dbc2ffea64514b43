//! The proposer boundary: what a proposer is asked, and the contract that every backend keeps.

mod brief;
mod codex;
mod credentials;
mod files;
mod manifest;
mod openai;
mod prices;
#[cfg(test)]
mod tests_support;
mod transcript;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use camino::Utf8Path;
use serde::Serialize;
use serde_json::Value;

pub(crate) use brief::shown_reply;
pub use codex::{CodexProposer, Lookup};
pub use manifest::SCHEMA_VERSION;
pub use openai::OpenAiProposer;
pub use transcript::TRANSCRIPTS;

use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::gepa::Direction;
use synth_optimizer_core::config::proposer::ProposerBackend;
use synth_optimizer_core::model::answer::{CallFailure, FailureClass, Proposal, ProposalAnswer};
use synth_optimizer_core::model::command::Question;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_fields::{ProposerReady, TurnModels};
use synth_optimizer_core::model::ids::{RequestId, RowId};
use synth_optimizer_core::model::usage::Usage;
use transcript::Redactor;

/// One row of evidence: what was asked, what came of it, and the score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    pub row_id: RowId,
    pub row: Value,
    pub score: Option<f64>,
    /// The container's whole reply, where there is one.
    pub reply: Option<Value>,
}

/// Everything that a proposer is told. It holds no held-out row, no secret, and nothing that depends on the run's name,
/// place or time, so that its digest is the cache key of the turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProposalRequest {
    pub question: Question,
    pub program: Value,
    pub task_info: Option<Value>,
    /// Whether a higher or a lower score is better.
    pub direction: Direction,
    pub evidence: Vec<Evidence>,
    /// What the answer proposed that had the problems of the question.
    pub refused: Vec<Proposal>,
}

/// Names a turn among those of its run. It is no part of the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnId {
    pub request: RequestId,
    pub attempt: u32,
}

impl TurnId {
    /// The name of the turn's workspace and transcript.
    fn name(self) -> String {
        format!("turn_{:06}_{}", self.request.0, self.attempt)
    }
}

/// A turn that gave no answer.
#[derive(Debug)]
pub struct TurnFailure {
    /// What is stored, with everything that was used up to then.
    pub failure: CallFailure,
    /// Set when the run cannot go on: another model than the one that was asked for, no credentials, a broken sandbox.
    pub fatal: Option<OptimizerError>,
}

/// Most characters of a message that is stored.
const SHOWN_CHARACTERS: usize = 600;

/// Models and usage of a turn so far.
#[derive(Debug, Clone, Default)]
struct Outcome {
    /// What a failure tells of the models.
    models: Option<TurnModels>,
    usage: Usage,
    /// Hides credentials in whatever is told of the turn.
    redactor: Redactor,
}

/// Why a turn has failed, in words, and what that leads to.
type Reason = (FailureClass, String, Verdict);

/// What a failed turn leads to.
#[derive(Debug, Clone, PartialEq)]
enum Verdict {
    /// The same may succeed later.
    Retry,
    /// The same would fail again; another turn may not.
    GiveUp,
    /// Every turn would fail: the run ends, with this hint.
    Stop(&'static str),
    /// No turn can begin: the run ends with this error.
    CannotBegin(Box<OptimizerError>),
}

fn cannot_begin(error: OptimizerError) -> Reason {
    (FailureClass::NotSent, error.message.clone(), Verdict::CannotBegin(Box::new(error)))
}

impl Outcome {
    fn failed(&self, (class, message, verdict): Reason) -> TurnFailure {
        let message: String = self.redactor.text(&message).chars().take(SHOWN_CHARACTERS).collect();
        let (models, retryable) = (self.models.clone().map(Box::new), verdict == Verdict::Retry);
        let fatal = match verdict {
            Verdict::Retry | Verdict::GiveUp => None,
            Verdict::Stop(hint) => Some(OptimizerError::new(ErrorCode::Proposer, message.clone()).with_hint(hint)),
            Verdict::CannotBegin(error) => Some(*error),
        };
        let failure = CallFailure { class, message, retryable, usage: self.usage, cached: false, models };
        TurnFailure { failure, fatal }
    }
}

/// Something a proposer does.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A turn under way.
pub type Turn<'a> = Doing<'a, Result<ProposalAnswer, TurnFailure>>;

/// The proposer that a config names. Nothing is started and nobody is asked before it is prepared. `codex_runtime` is the
/// codex binary that is installed with the package, if there is one.
pub fn configured(
    config: &Config,
    run_dir: &Utf8Path,
    codex_runtime: Option<&Utf8Path>,
) -> Result<Arc<dyn Proposer>, OptimizerError> {
    let variable = |name: &str| std::env::var(name).ok();
    Ok(match config.proposer.backend {
        ProposerBackend::CodexAppServer => {
            let runtime = codex_runtime.map(Utf8Path::to_owned);
            Arc::new(CodexProposer::new(config, run_dir, Arc::new(variable), runtime)?)
        }
        ProposerBackend::OpenaiCompatible => Arc::new(OpenAiProposer::new(config, run_dir, &variable)?),
    })
}

/// Who writes proposals.
pub trait Proposer: Send + Sync + std::fmt::Debug {
    /// What makes answers of this proposer different from those of another: backend, model and settings.
    fn identity(&self) -> Value;

    /// Checks everything that a turn needs, before anything is paid for. Called once by a run that may call; what it
    /// tells is written down.
    fn prepare(&self) -> Doing<'_, Result<Option<ProposerReady>, OptimizerError>> {
        Box::pin(async { Ok(None) })
    }

    /// Takes one turn. It keeps its own deadlines. Dropped, it must leave nothing behind.
    fn propose(&self, turn: TurnId, request: ProposalRequest) -> Turn<'_>;

    /// Asks the turns under way to end at once, with what they have used.
    fn interrupt(&self) {}

    /// Ends everything that was started. Called once, when the run is over.
    fn close(&self) -> Doing<'_, ()> {
        Box::pin(async {})
    }
}

//! Calls that are stored as sent, and their way out and back.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tracing::{Instrument, Span, debug, error_span, info, warn};

use super::calls::{Calls, Finished};
use crate::proposer::ProposalRequest;
use synth_optimizer_core::model::answer::Answer;
use synth_optimizer_core::model::command::RolloutCommand;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event_meaning::CallKind;
use synth_optimizer_core::model::ids::RequestId;

/// A call that is stored as sent and not sent yet.
pub(super) enum Launch {
    Rollout { command: RolloutCommand, rollout_id: String, key: Option<String>, sent_before: bool },
    Proposal { id: RequestId, attempt: u32, request: Box<ProposalRequest>, key: Option<String> },
}

impl Launch {
    pub(super) fn request(&self) -> RequestId {
        match self {
            Self::Rollout { command, .. } => command.request,
            Self::Proposal { id, .. } => *id,
        }
    }

    /// Sends the call; what comes of it goes `back`.
    pub(super) fn spawn(self, calls: Arc<Calls>, back: UnboundedSender<Finished>) -> AbortHandle {
        let (span, began) = (self.span(), Instant::now());
        let task = match self {
            Self::Rollout { command, rollout_id, key, sent_before } => {
                let guard = Guard { request: command.request, kind: CallKind::Rollout, back };
                let call = async move {
                    debug!(sent_before, "rollout sent");
                    let finished = calls.rollout(command, &rollout_id, key, sent_before).await;
                    log_end(&finished, began);
                    guard.report(finished);
                };
                tokio::spawn(call.instrument(span))
            }
            Self::Proposal { id, attempt, request, key } => {
                let guard = Guard { request: id, kind: CallKind::Proposer, back };
                let turn = async move {
                    debug!(
                        proposals = request.question.proposal_count,
                        evidence = request.evidence.len(),
                        "proposer asked"
                    );
                    let finished = calls.propose(id, attempt, *request, key).await;
                    log_end(&finished, began);
                    guard.report(finished);
                };
                tokio::spawn(turn.instrument(span))
            }
        };
        task.abort_handle()
    }

    /// The span of everything that is logged of the call.
    fn span(&self) -> Span {
        match self {
            Self::Rollout { command, rollout_id, .. } => {
                let (candidate, stage) = (command.candidate_id.as_str(), command.stage.word());
                let evaluation = error_span!("evaluation", evaluation = command.evaluation.0, candidate, stage);
                let (call, row, attempt) = (command.request.0, command.row_id.as_str(), command.attempt);
                evaluation.in_scope(|| error_span!("call", call, rollout_id, row, attempt))
            }
            Self::Proposal { id, attempt, request, .. } => {
                let parent = request.question.parents.first().map_or("", |parent| parent.candidate_id.as_str());
                error_span!("turn", call = id.0, attempt, generation = request.question.generation, parent)
            }
        }
    }
}

fn log_end(finished: &Finished, began: Instant) {
    let duration_ms = began.elapsed().as_millis() as u64;
    let bytes = finished.reply.as_ref().map_or(0, |reply| reply.len());
    match &finished.answer {
        Answer::Rollout(answer) => debug!(duration_ms, bytes, reward = answer.reward, "rollout answered"),
        Answer::Proposal(answer) => {
            debug!(duration_ms, bytes, proposals = answer.proposals.len(), "proposer answered");
        }
        Answer::Failed(failure) => {
            let (class, retryable) = (failure.class.word(), failure.retryable);
            // The views of a run tell how many fail, so that a broken container does not flood them.
            info!(duration_ms, class, retryable, cause = failure.message, "call failed");
        }
        Answer::Abandoned { sent } => debug!(duration_ms, sent, "call abandoned"),
    }
    if let Some(error) = &finished.fatal {
        warn!(duration_ms, %error, "call ends the run");
    }
}

/// Sees to it that a call that panics is noticed instead of waited for.
struct Guard {
    request: RequestId,
    kind: CallKind,
    back: UnboundedSender<Finished>,
}

impl Guard {
    fn report(&self, finished: Finished) {
        // Nobody waits any more when the run is over.
        let _ = self.back.send(finished);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = format!("the call of request {} broke off", self.request.0);
            let mut finished = Finished::new(self.request, self.kind, Answer::Abandoned { sent: true });
            finished.fatal = Some(OptimizerError::new(ErrorCode::Invariant, message));
            self.report(finished);
        }
    }
}

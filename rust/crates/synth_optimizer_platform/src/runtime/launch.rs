//! Calls that are stored as sent, and their way out and back.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::calls::{Calls, Finished};
use crate::model::answer::Answer;
use crate::model::command::RolloutCommand;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::model::ids::RequestId;
use crate::proposer::ProposalRequest;
use crate::workspace::CallKind;

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
        let task = match self {
            Self::Rollout { command, rollout_id, key, sent_before } => {
                let guard = Guard { request: command.request, kind: CallKind::Rollout, back };
                tokio::spawn(async move { guard.report(calls.rollout(command, &rollout_id, key, sent_before).await) })
            }
            Self::Proposal { id, attempt, request, key } => {
                let guard = Guard { request: id, kind: CallKind::Proposer, back };
                tokio::spawn(async move { guard.report(calls.propose(id, attempt, *request, key).await) })
            }
        };
        task.abort_handle()
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

//! Calls during an outage: they wait in their lane, and those whose outcome is unknown are charged and sent again.

use std::time::Duration;

use tracing::info;

use super::Driver;
use crate::container::{Sending, Transport};
use crate::outage::Outage;
use crate::runtime::calls::CompletedCall;
use synth_optimizer_core::engine::Engine;
use synth_optimizer_core::model::answer::{Answer, CallFailure, FailureClass};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_core::model::event::Event;
use synth_optimizer_core::model::event_effects::CallKind;
use synth_optimizer_core::model::event_fields::{Dependency, RunWaiting, WaitingEnded};
use synth_optimizer_core::model::ids::CallId;

impl<E: Engine> Driver<'_, E> {
    /// Removes a call that failed because the container has exited. The resumed run sends it again.
    pub(super) fn lose_call(&mut self, completed: &CompletedCall) {
        let is_unsent = matches!(&completed.answer, Answer::Failed(failure) if !failure.class.was_sent());
        if is_unsent && self.lanes.sending(completed.call_id) == Sending::First {
            self.lanes.remove(completed.call_id);
            self.batch.unsent.push(completed.call_id);
        } else {
            self.lanes.mark_lost(completed.call_id);
        }
    }

    /// Returns a call to its lane, because the container or the proposer is unavailable.
    pub(super) fn defer_call(
        &mut self,
        call_id: CallId,
        kind: CallKind,
        answer: &Answer,
        outage: Outage,
    ) -> Result<(), OptimizerError> {
        let Answer::Failed(failure) = answer else { return Ok(()) };
        let sending = self.lanes.sending(call_id);
        let patience = Duration::from_secs(self.run.request.config.run.outage_patience_seconds);
        let began = !self.lanes.has_outage(kind);
        if let Some(lane) = self.lanes.defer(call_id, kind, outage, patience) {
            let in_millis = |then: tokio::time::Instant| {
                lane.since_millis + then.saturating_duration_since(lane.since).as_millis() as u64
            };
            let waiting = RunWaiting {
                waiting_for: dependency(kind),
                cause: lane.outage.cause.clone(),
                since: lane.since_millis,
                tries: lane.tries,
                next_try_at: in_millis(lane.next_try),
                deadline_at: in_millis(lane.since + patience),
            };
            // Every view shows the event, so the record is no warning.
            info!(waiting_for = waiting.waiting_for.as_str(), cause = waiting.cause, tries = waiting.tries, "waiting");
            self.append_events(vec![Event::RunWaiting(waiting)]);
        }
        if began && kind == CallKind::Rollout {
            self.calls.transport.iter().for_each(Transport::begin_outage);
        }
        // A proposer that rejects a request reports that it used nothing.
        let is_free = !failure.class.was_sent() || failure.usage.total() == Some(0);
        match (kind, failure.class) {
            // The container is asked for it when it is available again.
            (CallKind::Rollout, FailureClass::UnknownOutcome) => self.lanes.mark_sent(call_id),
            (CallKind::Proposer, _) if !is_free => return self.charge_lost_call(call_id, kind, &failure.message),
            _ if !matches!(sending, Sending::AskFirst { .. }) => self.batch.unsent.push(call_id),
            _ => {}
        }
        Ok(())
    }

    /// Charges a call whose outcome is unknown and enqueues it again. The call has failed if the budget does not cover that, or
    /// if it was lost as often as a rollout may be tried, unless an outage is the reason.
    pub(super) fn charge_lost_call(
        &mut self,
        call_id: CallId,
        kind: CallKind,
        cause: &str,
    ) -> Result<(), OptimizerError> {
        let is_last = !self.lanes.has_outage(kind)
            && self.lanes.count_loss(call_id) > self.run.request.config.gepa.rollout_max_attempts;
        let events = if is_last { Vec::new() } else { self.session.charge_unknown_outcome(call_id, cause)? };
        if events.is_empty() {
            let failure = CallFailure::new(FailureClass::UnknownOutcome, format!("its outcome is unknown: {cause}"));
            return self.settle_call(CompletedCall::new(call_id, kind, Answer::Failed(failure)));
        }
        self.append_events(events);
        self.lanes.send_again(call_id, kind);
        Ok(())
    }

    /// Returns the error of an outage that lasts longer than the run waits.
    pub(super) fn exhausted_outage(&self) -> Option<OptimizerError> {
        let patience = Duration::from_secs(self.run.request.config.run.outage_patience_seconds);
        let session = &self.session;
        let (kind, lane) = self.lanes.exhausted_outage(patience, |call_id| session.awaits_answer(call_id))?;
        let code = match kind {
            CallKind::Rollout => ErrorCode::Container,
            CallKind::Proposer => ErrorCode::Proposer,
        };
        let message = format!("{} (waited {} s)", lane.outage.cause, lane.since.elapsed().as_secs());
        let fix = lane.outage.hint.as_deref().unwrap_or(match kind {
            CallKind::Rollout => "Start the container again.",
            CallKind::Proposer => "Make the proposer available again.",
        });
        Some(
            OptimizerError::new(code, message)
                .with_hint(format!("{fix} The run is saved: run the same command to continue."))
                .of_outage(),
        )
    }
}

/// Returns the event that ends an outage.
pub(super) fn waiting_ended(kind: CallKind, waited_millis: u64) -> Event {
    let waiting_for = dependency(kind);
    info!(waiting_for = waiting_for.as_str(), waited_millis, "available again");
    Event::WaitingEnded(WaitingEnded { waiting_for, waited_millis })
}

fn dependency(kind: CallKind) -> Dependency {
    match kind {
        CallKind::Rollout => Dependency::Container,
        CallKind::Proposer => Dependency::Proposer,
    }
}

//! Control requests to a run, and how the work on a run ends. A route, the command line or Python makes a
//! `ControlRequest`, and the driver of the run receives that same value. Every layer returns the same `RunEnd`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{ErrorCode, OptimizerError};
use super::event::Event;
use crate::string_enum;

string_enum! {
    /// What a control request does. Among actions that end the work on a run, a later one replaces an earlier one.
    ControlAction {
        /// The process ends: save the run. A worker of the queue continues it later.
        Shutdown = "shutdown",
        /// Save the run and stop working on it. It can be resumed.
        Interrupt = "interrupt",
        /// Save the run and pause its run request until it is resumed.
        Pause = "pause",
        /// Cancel the run now and for good. Answers that have arrived are stored.
        Cancel = "cancel",
        /// Finish early: no new search work, then the held-out evaluation.
        Stop = "stop",
        /// Continue a paused run.
        Resume = "resume",
        /// In manual-step mode, send the calls that are waiting now.
        Step = "step",
    }
}

/// A control request to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRequest {
    pub action: ControlAction,
    pub reason: Option<String>,
    /// How long to wait for calls in flight; if unset, the run's own setting applies.
    pub grace: Option<Duration>,
    /// How long a pause may last before the run request is cancelled. `None` for a pause that lasts until it is resumed.
    pub pause: Option<Duration>,
}

impl ControlRequest {
    /// Returns a request without a reason.
    pub fn new(action: ControlAction) -> Self {
        Self { action, reason: None, grace: None, pause: None }
    }

    /// Sets the reason.
    pub fn with_reason(self, reason: Option<&str>) -> Self {
        Self { reason: reason.map(str::to_owned), ..self }
    }

    /// Sets how long to wait for calls in flight.
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self }
    }

    pub fn interrupt(reason: &str) -> Self {
        Self::new(ControlAction::Interrupt).with_reason(Some(reason))
    }

    pub fn pause(reason: &str) -> Self {
        Self::new(ControlAction::Pause).with_reason(Some(reason))
    }

    pub fn cancel(reason: &str) -> Self {
        Self::new(ControlAction::Cancel).with_reason(Some(reason))
    }

    pub fn shutdown(reason: &str) -> Self {
        Self::new(ControlAction::Shutdown).with_reason(Some(reason))
    }

    /// Parses an action that users may request of a run that a process is working on: interrupt, stop or cancel.
    pub fn parse(word: &str, reason: &str) -> Result<Self, OptimizerError> {
        let known = [ControlAction::Interrupt, ControlAction::Stop, ControlAction::Cancel];
        match ControlAction::parse(word).filter(|action| known.contains(action)) {
            Some(action) => Ok(Self::new(action).with_reason(Some(reason))),
            None => Err(OptimizerError::new(ErrorCode::Config, format!("{word:?} is not a control request"))
                .with_hint(format!("Use one of {}.", known.map(ControlAction::as_str).join(", ")))),
        }
    }

    /// Returns the reason, or a default sentence.
    pub fn reason(&self) -> String {
        self.reason.clone().unwrap_or_else(|| format!("{} was requested", self.action.as_str()))
    }
}

/// How the work on a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    Completed,
    Failed(OptimizerError),
    Cancelled(OptimizerError),
    /// The run is saved. It can be resumed.
    Interrupted,
    /// The run is saved, and its run request is paused until it is resumed.
    Paused,
}

impl RunEnd {
    /// Returns the status word that all layers show.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled(_) => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Paused => "paused",
        }
    }

    /// Returns how a run ended whose log ends with this event.
    pub fn from_event(event: &Event) -> Option<Self> {
        match event {
            Event::RunFinished(_) => Some(Self::Completed),
            Event::RunFailed(failed) => Some(Self::Failed(failed.error())),
            Event::RunCancelled(ended) => {
                let message = format!("the run was cancelled: {}", ended.reason);
                Some(Self::Cancelled(OptimizerError::new(ErrorCode::Cancelled, message)))
            }
            _ => None,
        }
    }

    /// Returns the error of a failed or cancelled run.
    pub fn error(&self) -> Option<&OptimizerError> {
        match self {
            Self::Failed(error) | Self::Cancelled(error) => Some(error),
            Self::Completed | Self::Interrupted | Self::Paused => None,
        }
    }
}

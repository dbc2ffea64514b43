//! What is asked of a run from outside, and how a run ends. A route, the command line or Python makes a `ControlRequest`, and
//! the loop of the run receives that same value; every layer passes the `RunEnd` back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::{ErrorCode, OptimizerError};
use super::event::Event;
use crate::string_enum;

string_enum! {
    /// What may be asked of a run. Of those that end the work on it, a later one replaces an earlier one.
    ControlAction {
        /// The process of the run ends: save the run. A worker of the queue continues it.
        Shutdown = "shutdown",
        /// Save the run and end. It can be resumed.
        Interrupt = "interrupt",
        /// Save the run and let its request wait until it is resumed.
        Pause = "pause",
        /// End the run for good, now. What was paid for is kept.
        Cancel = "cancel",
        /// Finish early: no new search, then the held-out evaluation.
        Stop = "stop",
        /// Continue a paused run.
        Resume = "resume",
        /// Let a run that is stepped by hand send what it wants now.
        Step = "step",
    }
}

/// One request to control a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRequest {
    pub action: ControlAction,
    pub reason: Option<String>,
    /// How long calls under way may take; without one, the run's own setting.
    pub grace: Option<Duration>,
    /// How long a pause may last before the request is cancelled.
    pub pause: Option<Duration>,
}

impl ControlRequest {
    /// A request that gives no reason.
    pub fn new(action: ControlAction) -> Self {
        Self { action, reason: None, grace: None, pause: None }
    }

    pub fn with_reason(self, reason: Option<&str>) -> Self {
        Self { reason: reason.map(str::to_owned), ..self }
    }

    /// Waits this long for calls under way.
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self }
    }

    pub fn interrupt(reason: &str) -> Self {
        Self::new(ControlAction::Interrupt).with_reason(Some(reason))
    }

    pub fn pause(reason: &str) -> Self {
        Self::new(ControlAction::Pause).with_reason(Some(reason))
    }

    pub fn stop(reason: &str) -> Self {
        Self::new(ControlAction::Stop).with_reason(Some(reason))
    }

    pub fn cancel(reason: &str) -> Self {
        Self::new(ControlAction::Cancel).with_reason(Some(reason))
    }

    pub fn shutdown(reason: &str) -> Self {
        Self::new(ControlAction::Shutdown).with_reason(Some(reason))
    }

    /// What a person may ask of a run that a process works on, by its word.
    pub fn parse(word: &str, reason: &str) -> Result<Self, OptimizerError> {
        let known = [ControlAction::Interrupt, ControlAction::Stop, ControlAction::Cancel];
        match ControlAction::parse(word).filter(|action| known.contains(action)) {
            Some(action) => Ok(Self::new(action).with_reason(Some(reason))),
            None => Err(OptimizerError::new(ErrorCode::Config, format!("{word:?} cannot be asked of a run"))
                .with_hint(format!("Use one of {}.", known.map(ControlAction::as_str).join(", ")))),
        }
    }

    /// The reason in words, also where none was given.
    pub fn reason(&self) -> String {
        self.reason.clone().unwrap_or_else(|| format!("{} was asked for", self.action.as_str()))
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
    /// The run is saved, and its request waits until it is resumed.
    Paused,
}

impl RunEnd {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled(_) => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Paused => "paused",
        }
    }

    /// How a run ended whose log ends with this event.
    pub fn from_event(event: &Event) -> Option<Self> {
        match event {
            Event::RunFinished(_) => Some(Self::Completed),
            Event::RunFailed(failed) => {
                Some(Self::Failed(OptimizerError::new(failed.error_code, failed.message.clone())))
            }
            Event::RunCancelled(ended) => {
                let message = format!("the run was cancelled: {}", ended.reason);
                Some(Self::Cancelled(OptimizerError::new(ErrorCode::Cancelled, message)))
            }
            _ => None,
        }
    }

    /// Why a run failed or was cancelled.
    pub fn error(&self) -> Option<&OptimizerError> {
        match self {
            Self::Failed(error) | Self::Cancelled(error) => Some(error),
            Self::Completed | Self::Interrupted | Self::Paused => None,
        }
    }
}

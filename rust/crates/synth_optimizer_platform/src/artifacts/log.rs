//! How the log is handed over: whoever holds it shows its events one by one.

use crate::workspace::Stored;
use synth_optimizer_core::model::error::OptimizerError;

/// Takes one event after the other; an error ends the reading. A log is given as a function that shows it to one of
/// these from its first event on, such as `|each| workspace.log(0, each)`.
pub type Each<'a> = &'a mut dyn FnMut(Stored) -> Result<(), OptimizerError>;

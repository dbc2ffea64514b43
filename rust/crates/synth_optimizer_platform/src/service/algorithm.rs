//! What the service needs to know of an optimizer: how to run and how to check. Which one it is, it does not know.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use crate::config::Diagnostic;
use crate::model::error::OptimizerError;
use crate::runtime::{CheckReport, Controlled, Outcome, Request};

/// Work that stays on the thread that began it.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// An optimizer that a service can run.
pub trait Algorithm: Debug + Send + Sync + 'static {
    /// The name under which runs are begun and resumed.
    fn name(&self) -> &'static str;

    /// Runs or resumes.
    fn execute<'a>(&'a self, request: Request, controlled: Controlled) -> Local<'a, Result<Outcome, OptimizerError>>;

    /// Finds what stands in the way of a run, with its plan. `problems` is what was found about the configuration.
    fn check<'a>(&'a self, request: &'a Request, problems: &'a [Diagnostic]) -> Local<'a, CheckReport>;
}

//! GEPA as the service and the check know it: the pure engine on the platform's runtime.

use synth_gepa::{GepaEngine, plan, shortfalls};
use synth_optimizer_platform::config::{Diagnostic, Severity};
use synth_optimizer_platform::model::error::OptimizerError;
use synth_optimizer_platform::runtime::{CheckReport, Controlled, Outcome, Request, check, execute};
use synth_optimizer_platform::service::{Algorithm, Local};

/// The name under which runs of GEPA are begun and resumed.
pub(crate) const NAME: &str = "gepa";

/// The algorithm.
#[derive(Debug)]
pub(crate) struct Gepa;

impl Algorithm for Gepa {
    fn name(&self) -> &'static str {
        NAME
    }

    fn execute<'a>(&'a self, request: Request, controlled: Controlled) -> Local<'a, Result<Outcome, OptimizerError>> {
        Box::pin(execute(request, GepaEngine::new, controlled))
    }

    fn check<'a>(&'a self, request: &'a Request, problems: &'a [Diagnostic]) -> Local<'a, CheckReport> {
        Box::pin(async move {
            // The arithmetic of a configuration with errors would be that of another one.
            let is_sound = problems.iter().all(|found| found.severity == Severity::Warning);
            let (plan, budget) = match is_sound {
                true => (serde_json::to_value(plan(&request.config)).ok(), shortfalls(&request.config)),
                false => (None, Vec::new()),
            };
            CheckReport { plan, ..check(request, problems, &budget, GepaEngine::new).await }
        })
    }
}

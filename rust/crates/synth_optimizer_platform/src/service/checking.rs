//! A check in a thread of its own: what is checked may start processes and wait for them.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::algorithm::Algorithm;
use crate::config::Diagnostic;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::runtime::{CheckReport, Request};

/// A check under way. Dropped, it is told to leave, and ends what it has started.
#[derive(Debug)]
pub struct Checking {
    told: oneshot::Receiver<Result<CheckReport, OptimizerError>>,
    leave: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checking {
    /// Starts it. What is handed over in `kept` is let go when nothing of the check is left.
    pub fn start(
        algorithm: Arc<dyn Algorithm>,
        request: Request,
        problems: Vec<Diagnostic>,
        kept: impl Send + 'static,
    ) -> Result<Self, OptimizerError> {
        let (tell, told) = oneshot::channel();
        let (leave, left) = oneshot::channel::<()>();
        let work = move || {
            let report = checked(algorithm.as_ref(), &request, &problems, left);
            drop(kept);
            // Whoever asked may have gone away.
            let _ = tell.send(report);
        };
        let thread = std::thread::Builder::new().name("synth-optimizers-check".into()).spawn(work);
        let thread =
            thread.map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no thread for the check: {error}")))?;
        Ok(Self { told, leave: Some(leave), thread: Some(thread) })
    }

    /// Waits for the report.
    pub async fn report(&mut self) -> Result<CheckReport, OptimizerError> {
        (&mut self.told).await.unwrap_or_else(|_| Err(lost()))
    }

    /// The report, if it is there.
    pub fn look(&mut self) -> Option<Result<CheckReport, OptimizerError>> {
        match self.told.try_recv() {
            Ok(report) => Some(report),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(lost())),
        }
    }

    /// Breaks it off and waits until nothing of it is left.
    pub fn leave(mut self) {
        self.leave = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lost() -> OptimizerError {
    OptimizerError::new(ErrorCode::Invariant, "the thread of the check ended without a report")
}

fn checked(
    algorithm: &dyn Algorithm,
    request: &Request,
    problems: &[Diagnostic],
    left: oneshot::Receiver<()>,
) -> Result<CheckReport, OptimizerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| OptimizerError::new(ErrorCode::Io, format!("no runtime for the check: {error}")))?;
    runtime.block_on(async {
        tokio::select! {
            report = algorithm.check(request, problems) => Ok(report),
            _ = left => Err(OptimizerError::new(ErrorCode::Cancelled, "the check was interrupted")),
        }
    })
}

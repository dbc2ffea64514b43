//! The fold of a run's events for Python, which views and trackers use instead of their own counters.

use parking_lot::Mutex;
use pyo3::prelude::*;
use serde_json::json;
use synth_optimizer_core::config::gepa::SearchMode;
use synth_optimizer_core::model::envelope::unix_millis_of;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::{self, Event};
use synth_optimizer_core::model::ids::CandidateId;
use synth_optimizer_core::model::run_view::RunView;
use synth_optimizer_platform::artifacts::{EventFormatter, EventLine, Weight};

use crate::convert::{PyJson, from_python};
use crate::errors::IntoPyResult;
use crate::runs::EventLog;

/// Returns all event types under `events`, each with a reference to the JSON Schema of its fields under `$defs`.
#[pyfunction]
pub(crate) fn event_catalogue() -> PyJson {
    PyJson(event::event_catalogue())
}

/// The state of a run, folded from its events.
#[pyclass(frozen, module = "synth_optimizers._synth_optimizers")]
#[derive(Debug, Default)]
pub(crate) struct RunFold {
    /// Locked, because one thread applies events while another one draws the view.
    state: Mutex<FoldState>,
}

#[derive(Debug, Default)]
struct FoldState {
    view: RunView,
    formatter: EventFormatter,
}

impl FoldState {
    /// Applies the next event and returns its lines.
    fn apply(&mut self, sequence: u64, unix_millis: u64, event: &Event) -> Vec<EventLine> {
        let lines = self.formatter.format(unix_millis, event);
        self.view.apply(sequence, unix_millis, event);
        lines
    }
}

/// A line, the time of its event in milliseconds since 1970, and its weight.
type TimedLine = (u64, &'static str, String);

/// How many events one call reads, so that the caller can handle signals between two calls.
const MAX_EVENTS_PER_READ: usize = 20_000;

#[pymethods]
impl RunFold {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Applies the next event and returns its lines as weight and text.
    fn apply(
        &self,
        sequence_number: u64,
        ts: &str,
        event_type: &str,
        fields: &Bound<'_, PyAny>,
        message: &str,
    ) -> PyResult<Vec<(&'static str, String)>> {
        // A newer release may add event types. Such an event is shown with its own message.
        let Ok(event) = serde_json::from_value::<Event>(json!({"type": event_type, "fields": from_python(fields)?}))
        else {
            return Ok(vec![(Weight::Plain.as_str(), message.to_owned())]);
        };
        let state = &mut *self.state.lock();
        let at = unix_millis_of(ts).or(state.view.totals.updated_at).unwrap_or_default();
        let lines = state.apply(sequence_number, at, &event);
        Ok(lines.into_iter().map(|line| (line.weight.as_str(), line.text)).collect())
    }

    /// Applies the events that a log has after the last applied one. Returns how many these are, and their lines.
    /// No event becomes a Python object.
    fn read(&self, py: Python<'_>, log: &Bound<'_, EventLog>) -> PyResult<(usize, Vec<TimedLine>)> {
        let log = log.get();
        py.detach(|| self.read_log(log)).into_py_result()
    }

    /// Returns type and fields of the event that ended the run; `None` before.
    fn end(&self) -> PyResult<Option<PyJson>> {
        self.state.lock().view.end.as_ref().map(PyJson::of).transpose()
    }

    /// Returns the search that the run has chosen.
    fn search(&self) -> Option<&'static str> {
        self.state.lock().view.search.map(SearchMode::as_str)
    }

    /// Returns state, counts and times, with the usage under `usage`.
    fn totals(&self) -> PyResult<PyJson> {
        let (totals, purposes) = {
            let state = self.state.lock();
            (state.view.totals.clone(), state.view.rollouts_by_purpose)
        };
        let mut shown = PyJson::of(&totals)?;
        shown.0["usage"] = json!(totals.counts.usage());
        shown.0["rollouts_by_purpose"] = json!(purposes);
        shown.0["rollouts_outstanding"] = totals.counts.rollouts_outstanding().into();
        Ok(shown)
    }

    /// Returns what a view shows besides the totals.
    fn shown(&self) -> PyJson {
        let state = self.state.lock();
        let view = &state.view;
        let train_score = |id: Option<&CandidateId>| id.and_then(|id| view.candidate(id)?.candidate.train_score);
        PyJson(json!({
            "container_url": view.started.as_ref().map(|run| &run.container_url),
            "best_train_score": train_score(view.totals.best_candidate_id()),
            "seed_train_score": train_score(view.totals.seed_candidate_id.as_ref()),
            "frontier_mean": view.frontier_mean(),
            "last_decision": view.last_decision,
            "evaluations": view.in_flight.evaluations.values().collect::<Vec<_>>(),
            "turns": view.in_flight.turns.values().collect::<Vec<_>>(),
        }))
    }
}

impl RunFold {
    fn read_log(&self, log: &EventLog) -> Result<(usize, Vec<TimedLine>), OptimizerError> {
        let (mut count, mut found) = (0, Vec::new());
        while count < MAX_EVENTS_PER_READ {
            let next = self.state.lock().view.totals.last_sequence.map_or(0, |last| last + 1);
            let read = log.visit(next, |run_id, stored| {
                let lines = self.state.lock().apply(stored.sequence, stored.unix_millis, &stored.event);
                let named =
                    if let Event::RunStarted(_) = stored.event { format!("run {run_id}: ") } else { String::new() };
                let timed =
                    |line: EventLine| (stored.unix_millis, line.weight.as_str(), format!("{named}{}", line.text));
                found.extend(lines.into_iter().filter(|line| line.weight != Weight::Minor).map(timed));
            })?;
            count += read;
            if read == 0 {
                break;
            }
        }
        Ok((count, found))
    }
}

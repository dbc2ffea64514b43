//! What the documentation is made from: the events, the findings, the overrides and the refusals, as plain objects.

use pyo3::prelude::*;
use serde_json::json;
use synth_optimizer_core::config::{FINDINGS, OVERRIDES};
use synth_optimizer_core::model::event;

use crate::json;

/// Every type of event under `events`, with a reference to the JSON Schema of its fields, and these under `$defs`.
#[pyfunction]
pub(crate) fn event_catalogue(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    json::to_python(py, &event::event_catalogue())
}

/// Every finding about a configuration: `code`, `severity` (none where it depends on the case) and `about`.
#[pyfunction]
pub(crate) fn config_findings(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let rows = FINDINGS.iter().map(|row| json!({"code": row.code, "severity": row.severity, "about": row.about}));
    json::to_python(py, &rows.collect())
}

/// Every environment variable that changes a field: `variable`, `field` and `about`.
#[pyfunction]
pub(crate) fn config_overrides(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let rows = OVERRIDES.iter().map(|row| json!({"variable": row.variable, "field": row.field, "about": row.doc}));
    json::to_python(py, &rows.collect())
}

//! The exception classes, created at import from the error table, and the conversion of Rust errors.

use std::ffi::CString;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use serde_json::json;
use synth_optimizer_core::config::{ConfigFinding, render};
use synth_optimizer_core::model::error::{ERRORS, ErrorCode, ErrorRow, OptimizerError};

use crate::convert::PyJson;

/// The module from which users import the classes. Tracebacks and pickles name it.
const ERRORS_MODULE: &str = "synth_optimizers.errors";

/// The classes in table order. The first one is the base of all others.
static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// Adds every class of the table to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for (row, class) in ERRORS.iter().zip(classes(module.py())?) {
        module.add(row.class, class)?;
    }
    Ok(())
}

/// Returns the error table: one mapping per row with `error_code`, `exception`, `exit_code`, `http_status` and `hint`.
#[pyfunction]
pub(crate) fn error_table() -> PyJson {
    let row = |row: &ErrorRow| {
        json!({
            "error_code": row.name,
            "exception": row.class,
            "exit_code": row.exit,
            "http_status": row.http,
            "hint": row.hint,
        })
    };
    PyJson(ERRORS.iter().map(row).collect())
}

/// Converts a Rust error to the exception class of its code, with `detail`, `hint` and `findings`.
pub(crate) fn raise(error: &OptimizerError) -> PyErr {
    Python::attach(|py| build(py, error).unwrap_or_else(|failure| failure))
}

/// Converts the error of a result to a Python exception.
pub(crate) trait IntoPyResult<T> {
    fn into_py_result(self) -> PyResult<T>;
}

impl<T, E: Into<OptimizerError>> IntoPyResult<T> for Result<T, E> {
    fn into_py_result(self) -> PyResult<T> {
        self.map_err(|error| raise(&error.into()))
    }
}

/// Converts findings to the frozen records of `synth_optimizers.findings`.
pub(crate) fn findings<'py>(py: Python<'py>, diagnostics: &[ConfigFinding]) -> PyResult<Bound<'py, PyTuple>> {
    static RECORD: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let record = RECORD.import(py, "synth_optimizers.findings", "Finding")?;
    let records = diagnostics
        .iter()
        .map(|diagnostic| {
            let fields = PyJson::of(diagnostic)?.into_pyobject(py)?;
            record.call((), Some(fields.cast::<PyDict>()?))
        })
        .collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(py, records)
}

fn build(py: Python<'_>, error: &OptimizerError) -> PyResult<PyErr> {
    let value = class_of(py, error.code)?.call1((error.to_string(),))?;
    // An error without its own detail shows its configuration findings, formatted as on the command line.
    let shown = (!error.findings.is_empty()).then(|| render(&error.findings));
    value.setattr("detail", error.detail.as_deref().or(shown.as_deref()))?;
    value.setattr("hint", error.hint.as_str())?;
    value.setattr("findings", findings(py, &error.findings)?)?;
    Ok(PyErr::from_value(value))
}

fn class_of(py: Python<'_>, code: ErrorCode) -> PyResult<&Bound<'_, PyType>> {
    ERRORS
        .iter()
        .zip(classes(py)?)
        .find(|(row, _)| row.code == code)
        .map(|(_, class)| class.bind(py))
        .ok_or_else(|| PyRuntimeError::new_err(format!("no exception class for {}", code.as_str())))
}

fn classes(py: Python<'_>) -> PyResult<&Vec<Py<PyType>>> {
    CLASSES.get_or_try_init(py, || {
        let mut made: Vec<Py<PyType>> = Vec::with_capacity(ERRORS.len());
        for row in ERRORS {
            let base = match made.first() {
                Some(first) => first.bind(py).clone(),
                None => py.get_type::<PyRuntimeError>(),
            };
            made.push(make_class(py, row, &base)?);
        }
        Ok(made)
    })
}

/// Creates an exception class. Its class attributes are the defaults of the instance attributes, so that an exception created in
/// Python has them too.
fn make_class(py: Python<'_>, row: &ErrorRow, base: &Bound<'_, PyType>) -> PyResult<Py<PyType>> {
    let attributes = PyDict::new(py);
    attributes.set_item("error_code", row.name)?;
    attributes.set_item("detail", py.None())?;
    attributes.set_item("hint", row.hint)?;
    attributes.set_item("findings", PyTuple::empty(py))?;
    let name = CString::new(format!("{ERRORS_MODULE}.{}", row.class))?;
    let doc = CString::new(format!("`{}`. {}", row.name, row.hint))?;
    // `new_type` drops its reference before it uses the dictionary, so `attributes` must keep it alive.
    let lent = attributes.clone().into_any().unbind();
    let class = PyErr::new_type(py, &name, Some(&doc), Some(base), Some(lent));
    drop(attributes);
    class
}

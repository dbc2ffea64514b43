//! The exception classes, made at import from the one table of errors.

use std::ffi::CString;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use synth_optimizer_platform::model::error::{ERRORS, ErrorRow};

/// The module that users import the classes from; tracebacks and pickles name it.
const HOME: &str = "synth_optimizers.errors";

/// The classes in the order of the table. The first row is the base of all others.
static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// Adds every class of the table to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for (row, class) in ERRORS.iter().zip(classes(module.py())?) {
        module.add(row.class, class)?;
    }
    Ok(())
}

/// The table of errors: one mapping per row with `error_code`, `exception`, `exit_code`, `http_status` and `hint`.
#[pyfunction]
pub(crate) fn error_table(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    ERRORS
        .iter()
        .map(|row| {
            let entry = PyDict::new(py);
            entry.set_item("error_code", row.wire)?;
            entry.set_item("exception", row.class)?;
            entry.set_item("exit_code", row.exit)?;
            entry.set_item("http_status", row.http)?;
            entry.set_item("hint", row.hint)?;
            Ok(entry)
        })
        .collect()
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

/// The class attributes are the defaults of the instance attributes, so that an exception made in Python has them too.
fn make_class(py: Python<'_>, row: &ErrorRow, base: &Bound<'_, PyType>) -> PyResult<Py<PyType>> {
    let attributes = PyDict::new(py);
    attributes.set_item("error_code", row.wire)?;
    attributes.set_item("detail", py.None())?;
    attributes.set_item("hint", row.hint)?;
    attributes.set_item("findings", PyTuple::empty(py))?;
    let name = CString::new(format!("{HOME}.{}", row.class))?;
    let doc = CString::new(format!("`{}`. {}", row.wire, row.hint))?;
    // `new_type` lets go of the dictionary before it uses it, so `attributes` must hold it until the class is made.
    let lent = attributes.clone().into_any().unbind();
    let class = PyErr::new_type(py, &name, Some(&doc), Some(base), Some(lent));
    drop(attributes);
    class
}

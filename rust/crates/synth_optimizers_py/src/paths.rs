//! Paths as Python holds them.

use camino::Utf8PathBuf;
use pyo3::prelude::*;
use pyo3::types::PyString;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

use crate::errors;

/// A `str` or `os.PathLike` as a path.
pub(crate) fn path_argument(py: Python<'_>, argument: &Bound<'_, PyAny>) -> PyResult<Utf8PathBuf> {
    let text = py.import("os")?.call_method1("fsdecode", (argument,))?.cast_into::<PyString>()?;
    match text.to_cow() {
        Ok(path) => Ok(Utf8PathBuf::from(path.into_owned())),
        Err(_) => {
            let message = format!("the path {} is not UTF-8 text", text.to_string_lossy());
            let error =
                OptimizerError::new(ErrorCode::Io, message).with_hint("Give the file or directory another name.");
            Err(errors::raise(py, &error))
        }
    }
}

/// The directory that relative paths start at.
pub(crate) fn working_directory(py: Python<'_>) -> PyResult<Utf8PathBuf> {
    path_argument(py, &py.import("os")?.call_method0("getcwd")?)
}

//! Configuration for Python: reads the file, hands text and environment to the core, and returns plain objects.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString};
use synth_optimizer_platform::config::{self, Loaded, Origin, Source};
use synth_optimizer_platform::model::error::{ErrorCode, OptimizerError};

use crate::{errors, json};

/// The JSON Schema of the configuration file.
#[pyfunction]
pub(crate) fn config_schema(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    json::to_python(py, &config::json_schema())
}

/// Loads a configuration from a TOML file or a mapping and returns it with the origin of every value.
#[pyfunction]
#[pyo3(signature = (path_or_mapping, *, overrides = Vec::new(), environ = None))]
pub(crate) fn load_config<'py>(
    py: Python<'py>,
    path_or_mapping: &Bound<'py, PyAny>,
    overrides: Vec<String>,
    environ: Option<&Bound<'py, PyMapping>>,
) -> PyResult<Bound<'py, PyDict>> {
    let environ = environment(py, environ)?;
    let loaded = match path_or_mapping.cast::<PyMapping>() {
        Ok(mapping) => {
            let value = json::from_python(mapping.as_any())?;
            let base_dir = working_directory(py)?;
            config::load_value(value, "mapping", &base_dir, &environ, &overrides)
        }
        Err(_) => {
            let path = path_argument(py, path_or_mapping)?;
            let base_dir = working_directory(py)?.join(path.parent().unwrap_or(Utf8Path::new("")));
            read(&path).and_then(|text| {
                let source = Source { name: path.as_str(), text: &text, base_dir: &base_dir };
                config::load(&source, &environ, &overrides)
            })
        }
    };
    match loaded {
        Ok(loaded) => to_python(py, &loaded),
        Err(error) => Err(errors::raise(py, &error)),
    }
}

fn to_python<'py>(py: Python<'py>, loaded: &Loaded) -> PyResult<Bound<'py, PyDict>> {
    let values = PyList::empty(py);
    for value in &loaded.values {
        values.append((value.path.as_str(), json::to_python(py, &value.value)?, origin(&value.origin)))?;
    }
    let answer = PyDict::new(py);
    answer.set_item("config", json::serialize(py, &loaded.config)?)?;
    answer.set_item("values", values)?;
    answer.set_item("warnings", errors::findings(py, &loaded.warnings)?)?;
    Ok(answer)
}

/// The origin in one word, with its place after a colon.
fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Default => "default".to_owned(),
        Origin::File { line: Some(line), column: Some(column) } => format!("file:{line}:{column}"),
        Origin::File { line: Some(line), column: None } => format!("file:{line}"),
        Origin::File { line: None, column: _ } => "mapping".to_owned(),
        Origin::Environment { variable } => format!("environment:{variable}"),
        Origin::Set => "set".to_owned(),
    }
}

fn read(path: &Utf8Path) -> Result<String, OptimizerError> {
    let bytes = std::fs::read(path).map_err(|error| {
        let reason = error.to_string();
        // The number of the operating system says nothing that its words do not say.
        let reason = reason.split_once(" (os error").map_or(reason.as_str(), |(words, _)| words);
        OptimizerError::new(ErrorCode::Io, format!("cannot read the configuration file {path}: {reason}"))
            .with_hint("Name an existing TOML file that you may read; a relative path starts at the working directory.")
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count() + 1;
        OptimizerError::new(ErrorCode::TomlDecode, format!("{path} is not UTF-8 text: line {line} has other bytes"))
            .with_hint("Save the file as UTF-8.")
    })
}

/// `os.environ` is asked, not the process environment: it is what a Python program changes.
fn environment(py: Python<'_>, given: Option<&Bound<'_, PyMapping>>) -> PyResult<BTreeMap<String, String>> {
    let own;
    let environ = match given {
        Some(environ) => environ,
        None => {
            own = py.import("os")?.getattr("environ")?.cast_into::<PyMapping>()?;
            &own
        }
    };
    let mut variables = BTreeMap::new();
    for pair in environ.items()? {
        // A variable that is not UTF-8 may belong to any other program: it must not stop this one.
        let (name, value): (Bound<'_, PyString>, Bound<'_, PyString>) = pair.extract()?;
        variables.insert(name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned());
    }
    Ok(variables)
}

fn path_argument(py: Python<'_>, argument: &Bound<'_, PyAny>) -> PyResult<Utf8PathBuf> {
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

fn working_directory(py: Python<'_>) -> PyResult<Utf8PathBuf> {
    path_argument(py, &py.import("os")?.call_method0("getcwd")?)
}

//! Conversions between Python and Rust: paths, and JSON values as plain objects.

use camino::Utf8PathBuf;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde::Serialize;
use serde_json::{Map, Number, Value};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

use crate::errors::{self, IntoPyResult};

/// Maximum nesting depth of values, which protects the stack.
const MAX_DEPTH: usize = 128;

/// A path argument: `str` or `os.PathLike`.
#[derive(Debug)]
pub(crate) struct PathArgument(pub(crate) Utf8PathBuf);

impl<'py> FromPyObject<'_, 'py> for PathArgument {
    type Error = PyErr;

    fn extract(argument: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let decoded = argument.py().import("os")?.call_method1("fsdecode", (argument,))?;
        let text = decoded.cast_into::<PyString>()?;
        let path = text.to_cow().map(|path| Self(Utf8PathBuf::from(path.into_owned())));
        path.or_else(|_not_unicode| {
            let message = format!("the path {} is not UTF-8 text", text.to_string_lossy());
            let error = OptimizerError::new(ErrorCode::Io, message);
            Err(error.with_hint("Rename the file or directory.")).into_py_result()
        })
    }
}

/// Returns the working directory, against which relative paths resolve.
pub(crate) fn working_directory(py: Python<'_>) -> PyResult<Utf8PathBuf> {
    py.import("os")?.call_method0("getcwd")?.extract().map(|PathArgument(path)| path)
}

/// A JSON value that becomes plain Python objects: `dict`, `list`, `str`, `int`, `float`, `bool` and `None`.
#[derive(Debug)]
pub(crate) struct PyJson(pub(crate) Value);

impl PyJson {
    pub(crate) fn of(value: &impl Serialize) -> PyResult<Self> {
        serde_json::to_value(value).map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Runs `work` with the GIL released and converts its result.
    pub(crate) fn from_detached<T: Serialize + Send, E: Into<OptimizerError> + Send>(
        py: Python<'_>,
        work: impl FnOnce() -> Result<T, E> + Send,
    ) -> PyResult<Self> {
        Self::of(&py.detach(work).into_py_result()?)
    }
}

impl<'py> IntoPyObject<'py> for PyJson {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_python(py, &self.0)
    }
}

pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => number.into_pyobject(py)?.into_any(),
            (None, Some(number), _) => number.into_pyobject(py)?.into_any(),
            (None, None, Some(number)) => PyFloat::new(py, number).into_any(),
            (None, None, None) => return Err(PyValueError::new_err(format!("{number} is beyond a float"))),
        },
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(items) => {
            let items = items.iter().map(|item| to_python(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (key, item) in fields {
                dict.set_item(key, to_python(py, item)?)?;
            }
            dict.into_any()
        }
    })
}

/// Converts plain Python objects to a JSON value. Raises a `ConfigError` with the location for values that JSON cannot express.
pub(crate) fn from_python(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    convert(object, "", MAX_DEPTH)
}

fn convert(object: &Bound<'_, PyAny>, place: &str, depth: usize) -> PyResult<Value> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(conversion_error(place, &format!("is nested deeper than {MAX_DEPTH} levels")));
    };
    if object.is_none() {
        return Ok(Value::Null);
    }
    // In Python a bool is an int, so it is tested first.
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return match text.to_cow() {
            Ok(text) => Ok(Value::String(text.into_owned())),
            Err(_surrogate) => Err(conversion_error(place, "is not Unicode text")),
        };
    }
    if object.is_instance_of::<PyInt>() {
        let number = object.extract::<i64>().map(Value::from).or_else(|_| object.extract::<u64>().map(Value::from));
        return number.map_err(|_overflow| conversion_error(place, "is an integer beyond 64 bits"));
    }
    if let Ok(float) = object.cast::<PyFloat>() {
        let float = float.value();
        let number = Number::from_f64(float).map(Value::Number);
        return number.ok_or_else(|| conversion_error(place, &format!("is {float}; a number must be finite")));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let items = object.try_iter()?.enumerate();
        let items = items.map(|(index, item)| convert(&item?, &format!("{place}[{index}]"), depth));
        return items.collect::<PyResult<Vec<_>>>().map(Value::Array);
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        return fields(mapping, place, depth);
    }
    // Python users may pass a `pathlib.Path` where the file has a string.
    if let Ok(path) = object.call_method0("__fspath__") {
        return convert(&path, place, depth);
    }
    let kind = object.get_type().name()?;
    Err(conversion_error(place, &format!("is of type {kind}; use text, numbers, booleans, lists and mappings")))
}

fn fields(mapping: &Bound<'_, PyMapping>, place: &str, depth: usize) -> PyResult<Value> {
    let mut fields = Map::new();
    for pair in mapping.items()? {
        let (key, item): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let Ok(key) = key.extract::<String>() else {
            return Err(conversion_error(place, &format!("has the key {}; a key must be text", key.repr()?)));
        };
        let inner = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
        fields.insert(key, convert(&item, &inner, depth)?);
    }
    Ok(Value::Object(fields))
}

fn conversion_error(place: &str, problem: &str) -> PyErr {
    let place = if place.is_empty() { "the configuration" } else { place };
    errors::raise(&OptimizerError::new(ErrorCode::Config, format!("{place} {problem}")))
}

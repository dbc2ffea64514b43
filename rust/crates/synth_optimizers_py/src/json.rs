//! JSON values to Python objects and back.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde::Serialize;
use serde_json::{Map, Number, Value};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

use crate::errors;

/// Values nested deeper than this are refused: the stack must outlive whatever a caller hands over.
const MAX_DEPTH: usize = 128;

/// A serializable value as plain Python objects.
pub(crate) fn serialize<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let value = serde_json::to_value(value).map_err(|error| PyValueError::new_err(error.to_string()))?;
    to_python(py, &value)
}

/// A JSON value as plain Python objects: `dict`, `list`, `str`, `int`, `float`, `bool` and `None`.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        Value::Number(number) => number_to_python(py, number)?,
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

/// Plain Python objects as a JSON value. What JSON cannot say is refused with a `ConfigError` that names the place.
pub(crate) fn from_python(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    convert(object, "", MAX_DEPTH)
}

fn convert(object: &Bound<'_, PyAny>, place: &str, depth: usize) -> PyResult<Value> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(refusal(object, place, &format!("is nested deeper than {MAX_DEPTH} levels")));
    };
    if object.is_none() {
        return Ok(Value::Null);
    }
    // A bool is an int to Python, so it is asked first.
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return match text.to_cow() {
            Ok(text) => Ok(Value::String(text.into_owned())),
            Err(_) => Err(refusal(object, place, "is not Unicode text")),
        };
    }
    if object.is_instance_of::<PyInt>() {
        return integer(object, place);
    }
    if let Ok(float) = object.cast::<PyFloat>() {
        let float = float.value();
        let number = Number::from_f64(float).map(Value::Number);
        return number.ok_or_else(|| refusal(object, place, &format!("is {float}; a number must be finite")));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let items = object.try_iter()?.enumerate();
        let items = items.map(|(index, item)| convert(&item?, &format!("{place}[{index}]"), depth));
        return items.collect::<PyResult<Vec<_>>>().map(Value::Array);
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        return fields(mapping, place, depth);
    }
    // A `pathlib.Path` is what Python users hold where the file has a string.
    if let Ok(path) = object.call_method0("__fspath__") {
        return convert(&path, place, depth);
    }
    let kind = object.get_type().name()?;
    Err(refusal(object, place, &format!("is of type {kind}; use text, numbers, booleans, lists and mappings")))
}

fn fields(mapping: &Bound<'_, PyMapping>, place: &str, depth: usize) -> PyResult<Value> {
    let mut fields = Map::new();
    for pair in mapping.items()? {
        let (key, item): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let Ok(key) = key.extract::<String>() else {
            return Err(refusal(&key, place, &format!("has the key {}; a key must be text", key.repr()?)));
        };
        let inner = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
        fields.insert(key, convert(&item, &inner, depth)?);
    }
    Ok(Value::Object(fields))
}

fn integer(object: &Bound<'_, PyAny>, place: &str) -> PyResult<Value> {
    if let Ok(number) = object.extract::<i64>() {
        return Ok(Value::from(number));
    }
    match object.extract::<u64>() {
        Ok(number) => Ok(Value::from(number)),
        Err(_) => Err(refusal(object, place, "is an integer beyond 64 bits")),
    }
}

fn number_to_python<'py>(py: Python<'py>, number: &Number) -> PyResult<Bound<'py, PyAny>> {
    if let Some(number) = number.as_i64() {
        return Ok(number.into_pyobject(py)?.into_any());
    }
    if let Some(number) = number.as_u64() {
        return Ok(number.into_pyobject(py)?.into_any());
    }
    let float = number.as_f64().ok_or_else(|| PyValueError::new_err(format!("{number} is beyond a float")))?;
    Ok(PyFloat::new(py, float).into_any())
}

fn refusal(object: &Bound<'_, PyAny>, place: &str, problem: &str) -> PyErr {
    let place = if place.is_empty() { "the configuration" } else { place };
    errors::raise(object.py(), &OptimizerError::new(ErrorCode::Config, format!("{place} {problem}")))
}

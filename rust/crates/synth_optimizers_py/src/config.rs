//! Configuration for Python: reads the file, passes text and environment to the core, and returns plain objects. Also the
//! tables that the documentation is generated from.

use std::collections::BTreeMap;

use camino::Utf8Path;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMapping, PyString, PyTuple};
use serde_json::{Value, json};
use synth_gepa::shortfalls;
use synth_optimizer_core::config::{
    self, ConfigContent, ConfigSource, FINDINGS, OVERRIDES, ReadText, ResolvedConfig, Severity,
};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::read_text_file;
use synth_optimizer_platform::workspace::Reader;

use crate::convert::{PathArgument, PyJson, from_python, to_python, working_directory};
use crate::errors::{self, IntoPyResult};

/// A loaded configuration. Its `warnings` contain errors only if `try_load_config` loaded it.
#[pyclass(frozen, module = "synth_optimizers._synth_optimizers")]
#[derive(Debug)]
pub(crate) struct LoadedConfig(pub(crate) ResolvedConfig);

#[pymethods]
impl LoadedConfig {
    /// Returns the effective configuration, with secrets hidden.
    fn to_dict(&self) -> PyJson {
        PyJson(config::redacted_config(&self.0.config))
    }

    /// Returns every effective value: dotted path, value, origin.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let values = PyList::empty(py);
        for value in &self.0.values {
            values.append((value.path.as_str(), to_python(py, &value.value)?, value.origin.to_string()))?;
        }
        Ok(values)
    }

    /// Findings about values that are used differently from what is written, and about limits that are too small.
    #[getter]
    fn warnings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let mut warnings = self.0.warnings.clone();
        // The limits of an invalid configuration would be meaningless. A limit that prevents the run is reported when it starts.
        if warnings.iter().all(|found| found.severity == Severity::Warning) {
            warnings.extend(shortfalls(&self.0.config).into_iter().filter(|found| found.severity == Severity::Warning));
        }
        errors::findings(py, &warnings)
    }
}

/// Returns the JSON Schema of the configuration file.
#[pyfunction]
pub(crate) fn config_schema() -> PyJson {
    PyJson(config::json_schema())
}

/// Returns all kinds of configuration findings: `code`, `severity` (`None` if it varies) and `about`.
#[pyfunction]
pub(crate) fn config_findings() -> PyJson {
    let rows = FINDINGS.iter().map(|row| json!({"code": row.code, "severity": row.severity, "about": row.about}));
    PyJson(rows.collect())
}

/// Returns all environment variables that override a field: `variable`, `field` and `about`.
#[pyfunction]
pub(crate) fn config_overrides() -> PyJson {
    let rows = OVERRIDES.iter().map(|row| json!({"variable": row.variable, "field": row.field, "about": row.doc}));
    PyJson(rows.collect())
}

/// Returns values by dotted path as `key.path=value` texts.
#[pyfunction]
pub(crate) fn override_texts(overrides: &Bound<'_, PyMapping>) -> PyResult<Vec<String>> {
    let Value::Object(values) = from_python(overrides.as_any())? else { return Ok(Vec::new()) };
    let text = |(path, value): (&String, &Value)| config::set_text(path, value);
    values.iter().map(text).collect::<Result<_, _>>().into_py_result()
}

/// Loads a configuration from a TOML file or a mapping.
#[pyfunction]
#[pyo3(signature = (path_or_mapping, *, overrides = Vec::new(), environ = None))]
pub(crate) fn load_config(
    py: Python<'_>,
    path_or_mapping: &Bound<'_, PyAny>,
    overrides: Vec<String>,
    environ: Option<&Bound<'_, PyMapping>>,
) -> PyResult<LoadedConfig> {
    let Ok(mapping) = path_or_mapping.cast::<PyMapping>() else {
        return from_file(py, path_or_mapping.extract()?, &overrides, environ, config::load_with);
    };
    let value = from_python(mapping.as_any())?;
    let base_dir = working_directory(py)?;
    let source = ConfigSource { name: "mapping", content: ConfigContent::Mapping(value), base_dir: &base_dir };
    let loaded = config::load_with(source, &environment(py, environ)?, &overrides, &read_text_file);
    loaded.map(LoadedConfig).into_py_result()
}

/// Loads a TOML file as far as possible, for `check_run` only.
#[pyfunction]
#[pyo3(signature = (path, *, overrides = Vec::new(), environ = None))]
pub(crate) fn try_load_config(
    py: Python<'_>,
    path: PathArgument,
    overrides: Vec<String>,
    environ: Option<&Bound<'_, PyMapping>>,
) -> PyResult<LoadedConfig> {
    from_file(py, path, &overrides, environ, config::try_load_with)
}

type Load =
    fn(ConfigSource<'_>, &BTreeMap<String, String>, &[String], ReadText<'_>) -> Result<ResolvedConfig, OptimizerError>;

fn from_file(
    py: Python<'_>,
    PathArgument(path): PathArgument,
    overrides: &[String],
    environ: Option<&Bound<'_, PyMapping>>,
    load: Load,
) -> PyResult<LoadedConfig> {
    let environ = environment(py, environ)?;
    let base_dir = working_directory(py)?.join(path.parent().unwrap_or(Utf8Path::new("")));
    let loaded = read(&path).and_then(|text| {
        let source = ConfigSource { name: path.as_str(), content: ConfigContent::Toml(&text), base_dir: &base_dir };
        load(source, &environ, overrides, &read_text_file)
    });
    loaded.map(LoadedConfig).into_py_result()
}

/// Loads the configuration of an existing run, to resume it in its current directory.
#[pyfunction]
pub(crate) fn load_run_config(run_dir: PathArgument) -> PyResult<LoadedConfig> {
    stored(&run_dir.0).map(LoadedConfig).into_py_result()
}

fn stored(dir: &Utf8Path) -> Result<ResolvedConfig, OptimizerError> {
    let paths = RunPaths::of_dir(dir)?;
    let run = Reader::open(paths.workspace_db().as_std_path())?.run_row()?;
    if run.run_id != paths.run_id() {
        let message = format!("{} holds the run {:?}, and must have its name", dir, run.run_id);
        return Err(OptimizerError::new(ErrorCode::Config, message).with_hint("Rename the directory to the run id."));
    }
    let mut loaded = config::from_stored(&run.config, paths.workspace_db().as_str())?;
    loaded.config.run.run_id = Some(run.run_id);
    loaded.config.run.output_dir = paths.output_dir().to_owned();
    Ok(loaded)
}

fn read(path: &Utf8Path) -> Result<String, OptimizerError> {
    let bytes = std::fs::read(path).map_err(|error| {
        let reason = error.to_string();
        // The error number adds nothing to the text.
        let reason = reason.split_once(" (os error").map_or(reason.as_str(), |(words, _)| words);
        OptimizerError::new(ErrorCode::Io, format!("cannot read the configuration file {path}: {reason}"))
            .with_hint("Name an existing, readable TOML file; a relative path starts at the working directory.")
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count() + 1;
        OptimizerError::new(ErrorCode::TomlDecode, format!("{path} is not UTF-8 text: line {line} has other bytes"))
            .with_hint("Save the file as UTF-8.")
    })
}

/// Reads `os.environ` instead of the process environment, because Python programs change the former.
fn environment(py: Python<'_>, given: Option<&Bound<'_, PyMapping>>) -> PyResult<BTreeMap<String, String>> {
    let environ = match given {
        Some(environ) => environ.clone(),
        None => py.import("os")?.getattr("environ")?.cast_into::<PyMapping>()?,
    };
    let mut variables = BTreeMap::new();
    for pair in environ.items()? {
        // A variable that is not UTF-8 may belong to another program, so it is not an error.
        let (name, value): (Bound<'_, PyString>, Bound<'_, PyString>) = pair.extract()?;
        variables.insert(name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned());
    }
    Ok(variables)
}

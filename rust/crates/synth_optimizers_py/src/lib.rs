//! The extension module `synth_optimizers._synth_optimizers`: registration only.

mod catalogues;
mod config;
mod errors;
mod fold;
mod json;
mod logs;
mod paths;
mod preflight;
mod queue;
mod run;
mod runs;
mod service;
mod signals;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::wrap_pyfunction;
use synth_optimizer_platform::logs::LOGGERS;

#[pymodule]
fn _synth_optimizers(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("LOGGERS", PyTuple::new(module.py(), LOGGERS)?)?;
    errors::register(module)?;
    module.add_function(wrap_pyfunction!(errors::error_table, module)?)?;
    module.add_function(wrap_pyfunction!(config::config_schema, module)?)?;
    module.add_function(wrap_pyfunction!(config::load_config, module)?)?;
    module.add_function(wrap_pyfunction!(config::try_load_config, module)?)?;
    module.add_function(wrap_pyfunction!(config::load_run_config, module)?)?;
    module.add_class::<config::LoadedConfig>()?;
    module.add_class::<fold::RunFold>()?;
    module.add_class::<run::NativeRun>()?;
    module.add_function(wrap_pyfunction!(run::start_run, module)?)?;
    module.add_function(wrap_pyfunction!(preflight::check_run, module)?)?;
    module.add_function(wrap_pyfunction!(preflight::plan_run, module)?)?;
    module.add_function(wrap_pyfunction!(runs::run_status, module)?)?;
    module.add_function(wrap_pyfunction!(runs::run_summary, module)?)?;
    module.add_function(wrap_pyfunction!(runs::run_best, module)?)?;
    module.add_function(wrap_pyfunction!(runs::ask_run, module)?)?;
    module.add_function(wrap_pyfunction!(runs::workspace_status, module)?)?;
    module.add_function(wrap_pyfunction!(runs::workspace_rebuild, module)?)?;
    module.add_function(wrap_pyfunction!(runs::workspace_vacuum, module)?)?;
    module.add_function(wrap_pyfunction!(runs::events_replay, module)?)?;
    module.add_function(wrap_pyfunction!(runs::events_compare, module)?)?;
    module.add_function(wrap_pyfunction!(catalogues::event_catalogue, module)?)?;
    module.add_function(wrap_pyfunction!(catalogues::config_findings, module)?)?;
    module.add_function(wrap_pyfunction!(catalogues::config_overrides, module)?)?;
    module.add_function(wrap_pyfunction!(service::serve, module)?)?;
    module.add_function(wrap_pyfunction!(service::service_defaults, module)?)?;
    module.add_function(wrap_pyfunction!(service::service_openapi, module)?)?;
    module.add_function(wrap_pyfunction!(service::gepa_service_run_next, module)?)?;
    module.add_function(wrap_pyfunction!(queue::workspace_submit_run_request, module)?)?;
    module.add_function(wrap_pyfunction!(queue::workspace_claim_next_run_request, module)?)?;
    module.add_function(wrap_pyfunction!(queue::workspace_start_run_request, module)?)?;
    module.add_function(wrap_pyfunction!(queue::workspace_heartbeat_run_request, module)?)?;
    module.add_function(wrap_pyfunction!(queue::workspace_complete_run_request, module)?)?;
    module.add_function(wrap_pyfunction!(queue::workspace_fail_run_request, module)?)?;
    module.add_function(wrap_pyfunction!(queue::workspace_cancel_run_request, module)?)?;
    module.add_function(wrap_pyfunction!(queue::workspace_recover_expired_run_requests, module)?)?;
    Ok(())
}

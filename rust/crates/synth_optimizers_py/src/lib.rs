//! The extension module `synth_optimizers._synth_optimizers`: registration only.

mod config;
mod convert;
mod errors;
mod fold;
mod logs;
mod queue;
mod run;
mod runs;
mod service;
mod views;

use pyo3::prelude::*;

/// A run allocates many small, short-lived values on several threads: replies, events and their lines.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule]
mod _synth_optimizers {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;
    use synth_optimizer_platform::logs::LOGGERS;

    #[pymodule_export]
    use crate::config::{
        LoadedConfig, config_findings, config_overrides, config_schema, load_config, load_run_config, override_texts,
        try_load_config,
    };
    #[pymodule_export]
    use crate::errors::error_table;
    #[pymodule_export]
    use crate::fold::{RunFold, event_catalogue};
    #[pymodule_export]
    use crate::queue::{
        workspace_cancel_run_request, workspace_claim_next_run_request, workspace_complete_run_request,
        workspace_fail_run_request, workspace_heartbeat_run_request, workspace_recover_expired_run_requests,
        workspace_start_run_request, workspace_submit_run_request,
    };
    #[pymodule_export]
    use crate::run::{NativeRun, check_run, plan_run, start_run};
    #[pymodule_export]
    use crate::runs::{
        EventLog, ask_run, events_compare, events_replay, run_best, run_result, run_status, run_summary,
        workspace_rebuild, workspace_status, workspace_vacuum,
    };
    #[pymodule_export]
    use crate::service::{gepa_service_run_next, serve, serve_page, service_defaults, service_openapi};
    #[pymodule_export]
    use crate::views::{
        run_candidates, run_compare, run_lineage, run_notebook_view, run_report, run_rows, run_turn, run_turns,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("LOGGERS", PyTuple::new(module.py(), LOGGERS)?)?;
        crate::errors::register(module)
    }
}

//! The extension module `synth_optimizers._synth_optimizers`: registration only.

mod config;
mod errors;
mod json;

use pyo3::prelude::*;
use pyo3::wrap_pyfunction;

#[pymodule]
fn _synth_optimizers(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    module.add_function(wrap_pyfunction!(errors::error_table, module)?)?;
    module.add_function(wrap_pyfunction!(config::config_schema, module)?)?;
    module.add_function(wrap_pyfunction!(config::load_config, module)?)?;
    Ok(())
}

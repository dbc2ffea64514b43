//! The extension module `synth_optimizers._synth_optimizers`: registration only.

mod errors;

use pyo3::prelude::*;
use pyo3::wrap_pyfunction;

#[pymodule]
fn _synth_optimizers(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    module.add_function(wrap_pyfunction!(errors::error_table, module)?)?;
    Ok(())
}

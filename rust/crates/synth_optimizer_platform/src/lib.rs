//! Executes optimization runs: containers, proposers, the cache, the workspace, the run directory, and the loop that
//! drives a pure engine. All input and output of a run is here.
//!
//! Start with [`runtime::execute`], which executes a whole run, and [`workspace::Reader`], which reads one.

pub mod access;
pub mod artifacts;
mod atomic_file;
pub mod cache;
pub mod clock;
pub mod container;
mod container_log;
mod digest;
mod file_error;
mod http;
mod json_text;
pub mod logs;
mod model_name;
pub mod os;
mod outage;
mod packing;
pub mod proposer;
mod reply;
pub mod results;
pub mod rollout_trace;
pub mod runtime;
mod text_file;
pub mod turn_transcript;
pub mod views;
pub mod workspace;

pub use outage::Outage;
pub use reply::Reply;
pub use text_file::read_text_file;

//! Support for end-to-end tests: container and service processes, a scripted proposer, and readers for the files of runs.

pub mod bill;
pub mod configs;
pub mod cpu;
pub mod logs;
pub mod model_server;
pub mod process;
pub mod run_files;
pub mod scripted;
pub mod service_kill_test;
pub mod service_process;
pub mod simulated_run;
pub mod stream_clients;
pub mod stub;
pub mod variations;
pub mod wait;

pub use bill::{BillLine, read_bill};
pub use configs::{RowNames, small_config, submission, write_config};
pub use cpu::cpu_time;
pub use model_server::ModelServer;
pub use process::{ProcessOutput, ServerProcess, run_to_end};
pub use run_files::RunFiles;
pub use scripted::{ScriptedFault, ScriptedProposer};

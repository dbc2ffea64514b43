//! Whole runs in tests: containers as processes, a scripted proposer, and what a run leaves behind.

pub mod audience;
pub mod bill;
pub mod configs;
pub mod cpu;
pub mod endurance;
pub mod files;
pub mod logs;
pub mod model_server;
pub mod process;
pub mod scripted;
pub mod standing;
pub mod stub;
pub mod waiting;

pub use bill::{BillLine, read_bill};
pub use configs::{RowNames, small_config, write_config};
pub use cpu::cpu_time;
pub use files::RunFiles;
pub use model_server::ModelServer;
pub use process::{Ended, ServerProcess, run_to_end};
pub use scripted::{ScriptedFault, ScriptedProposer};

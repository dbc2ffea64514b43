//! GEPA as a pure function: observations in, events out, state rebuilt from events alone.
//!
//! Nothing here sees a clock, a file, a socket or a thread; every random choice comes from the run's seed.

mod acceptance;
mod decide;
mod decide_answer;
mod decide_end;
mod decide_evaluation;
mod decide_generation;
mod engine;
mod evolve;
mod frontier;
mod leakage;
mod merge;
mod objectives;
mod plan;
mod proposal;
mod proposer_question;
mod random;
mod select;
mod settings;
mod state;

pub use engine::GepaEngine;
pub use frontier::{Frontier, FrontierChange};
pub use leakage::{Leak, LeakIndex};
pub use plan::{Bounds, PerGeneration, Plan, PlannedCost, PoolSizes, plan, shortfalls};
pub use proposal::CheckedProposal;
pub use random::{RandomStream, random_stream};
pub use select::MinibatchSampler;
pub use settings::Settings;
pub use state::State;

//! The GEPA algorithm as a pure function: observations in, events out, with a state that is rebuilt from events alone.
//!
//! Start with [`GepaEngine`] and [`State`]. This crate is pure: it uses no clock, file, socket or thread, and derives every
//! random choice from `run.seed`.

mod acceptance;
mod carry;
mod check;
mod decide;
mod decide_answer;
mod decide_check;
mod decide_end;
mod decide_evaluation;
mod decide_generation;
mod decide_rebase;
mod decide_result;
mod decide_sprint;
mod edits;
mod engine;
mod evolve;
mod frontier;
mod leakage;
mod merge;
mod objectives;
mod outstanding;
mod plan;
mod proposal;
mod proposer_question;
mod select;
mod settings;
mod sprint;
mod state;
mod steering;
mod window;

pub use check::{Differences, PooledVariance, Prior, probability_of_gain};
pub use engine::GepaEngine;
pub use frontier::{Frontier, FrontierChange};
pub use leakage::{Leak, LeakIndex};
pub use plan::{AtOnce, Bounds, PerGeneration, Plan, PlannedCost, PoolSizes, plan, shortfalls};
pub use proposal::CheckedProposal;
pub use select::MinibatchSampler;
pub use settings::Settings;
pub use state::State;
pub use synth_optimizer_core::random::{RandomStream, random_stream};

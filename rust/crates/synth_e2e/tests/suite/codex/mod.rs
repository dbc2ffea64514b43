//! The codex proposer with the real binary, against a model that the test plays.

mod endings;
mod faults;
mod happy;
mod hostile;
mod models;
mod races;
mod whole;
mod world;

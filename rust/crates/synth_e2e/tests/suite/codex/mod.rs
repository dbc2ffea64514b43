//! The codex proposer with the real binary, against a model that the test plays.

mod interruptions;
mod server_failures;
mod successful_turns;
mod hostile;
mod models;
mod races;
mod full_run;
mod fixture;

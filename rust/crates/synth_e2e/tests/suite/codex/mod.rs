//! The codex proposer with the real binary, against a scripted model server.

mod fixture;
mod full_run;
mod hostile;
mod interruptions;
mod models;
mod races;
mod server_failures;
mod successful_turns;

//! `workspace.sqlite`: stored data is read back, survives a crash, and matches the log.
mod agreement;
mod health;
mod models;
mod models_activity;
mod models_artifacts;
mod models_chart;
mod models_comparison;
mod models_lineage;
mod models_rows;
mod models_stop_rules;
mod models_turns;
mod opening;
pub(crate) mod script;
mod size;
mod views;
mod writing;

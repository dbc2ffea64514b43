//! `workspace.sqlite`: what is written is read back, survives a crash, and agrees with the log.
mod agreement;
mod health;
mod models;
mod models_artifacts;
mod opening;
mod script;
mod size;
mod views;
mod writing;

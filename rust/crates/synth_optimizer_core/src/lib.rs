//! The data model of a run and its configuration: plain data and pure functions.
//!
//! Start with [`model::event::Event`], which lists everything that can happen in a run, and with [`config::Config`],
//! which lists everything that a user may set. [`engine::Engine`] is the contract of an optimizer.
//!
//! This crate is pure: it uses no clock, file, socket or thread.

pub mod config;
pub mod engine;
pub mod model;
pub mod random;
pub mod secrets;
pub mod string_enum;

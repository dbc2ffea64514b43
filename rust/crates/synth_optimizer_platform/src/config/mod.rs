//! Configuration: what a user may write, and what it means.

pub mod diagnostics;
pub mod gepa;
pub mod sections;
pub(crate) mod words;

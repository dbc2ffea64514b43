//! Configuration: what a user may write, and what it means.
//!
//! `load` reads the layers in order (`tree`, `overrides`), checks each against the section types (`shape`, `check`),
//! then checks what the values mean together (`validate`). Every problem is reported in one pass. Nothing here reads a
//! file, the environment or the clock.

mod check;
mod findings;
pub mod gepa;
mod identity;
mod load;
mod mask;
mod overrides;
pub mod pipeline;
mod pools;
pub mod proposer;
mod report;
pub mod search;
mod section;
pub mod sections;
mod shape;
mod suggest;
mod tree;
mod url;
mod validate;
mod values;
mod write;

pub use crate::model::error::{Diagnostic, Severity};
pub use findings::{FINDINGS, FindingCode};
pub use identity::{search_differences, search_digest};
pub use load::{Loaded, Source, load, load_value, try_load, try_load_value};
pub use overrides::{OVERRIDES, Override};
pub use pools::{Pools, RolloutCaps, effective_caps, pools};
pub use report::render;
pub use sections::Config;
pub use shape::json_schema;
pub use suggest::nearest;
pub use values::{EffectiveValue, Origin, from_stored, hidden_fields, redacted, shown};
pub use write::to_toml;

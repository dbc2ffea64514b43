//! Configuration: what a user may write, and what it means.
//!
//! `load` reads the layers in order (`tree`, `overrides`), checks each against the section types (`shape`, `check`),
//! then checks what the values mean together (`validate`). Every problem is reported in one pass. Nothing here reads a
//! file, the environment or the clock.

mod check;
pub mod diagnostics;
pub mod gepa;
mod identity;
mod load;
mod mask;
mod objectives;
mod overrides;
mod paths;
pub mod pipeline;
mod pools;
pub mod proposer;
mod report;
mod scan;
pub mod search;
pub(crate) mod secrets;
pub mod sections;
mod shape;
mod stored;
pub(crate) mod suggest;
mod tree;
mod url;
mod validate;
mod values;
pub(crate) mod words;
mod write;

pub use diagnostics::{Diagnostic, Severity};
pub use identity::{redacted, search_differences, search_digest, shown};
pub use load::{Loaded, Source, load, load_value, try_load, try_load_value};
pub use overrides::{OVERRIDES, Override};
pub use pools::{Pools, RolloutCaps, effective_caps, pools};
pub use report::render;
pub use secrets::scrub;
pub use sections::Config;
pub use shape::json_schema;
pub use stored::{from_stored, hidden_fields};
pub use values::{EffectiveValue, Origin};
pub use write::to_toml;

//! The configuration of a run: its sections, how it is loaded, and how it is checked.
//!
//! `load` reads the layers in order (`tree`, `overrides`), checks each against the section types (`shape`, `check`), then
//! checks the values against each other (`validate`). It reports every problem in one pass. The caller reads the file and
//! the environment.

mod check;
pub mod gepa;
mod identity;
mod load;
mod mask;
mod overrides;
mod pools;
pub mod proposer;
mod report;
mod resolve;
mod row_selection;
mod search;
pub mod sections;
mod shape;
mod steering;
mod tree;
mod validate;
mod values;

pub use crate::model::error::{ConfigFinding, Severity};
pub use check::nearest;
pub use identity::{search_differences, search_digest};
pub use load::{ConfigContent, ConfigSource, ReadText, ResolvedConfig, load, load_with, try_load, try_load_with};
pub use overrides::{EnvironmentOverride, OVERRIDES, set_text};
pub use pools::{Pools, RolloutCaps, effective_caps, pools, rows_are_known};
pub use report::{FINDINGS, FindingCode, render};
pub use resolve::{SplitRows, adopt_stored, resolve, resolve_sizes};
pub use row_selection::{RowList, RowName, RowSelection};
pub use search::{SearchChoice, choose_search, initial_rows};
pub use sections::Config;
pub use shape::json_schema;
pub use values::{EffectiveValue, Origin, from_stored, hidden_fields, read_stored, redacted, redacted_config};

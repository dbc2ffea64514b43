//! The fields of each event, as they stand on the wire.

/// Defines plain data that is stored, shown and documented as it stands here.
macro_rules! fields {
    ($($(#[$meta:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty,)+ })+) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub struct $name { $($(#[$about])* pub $field: $type,)+ }
    )+ };
}

mod run;
mod search;

pub use run::*;
pub use search::*;

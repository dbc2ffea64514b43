//! The macro that defines a section: each field with its documentation, type, range and default in one place.

/// Defines sections of the configuration, with their defaults and their part of the JSON Schema.
///
/// A field is `name: Type [range] = default,`. The range is that of `schemars`; without a default the field starts with
/// the default of its type. An `Option` is left out where it is unset.
macro_rules! section {
    ($($(#[$meta:meta])* $name:ident { $($fields:tt)* })+) => {
        $(section!(@fields [$(#[$meta])* $name] [] [] $($fields)*);)+
    };
    (@fields [$(#[$meta:meta])* $name:ident] [$($declared:tt)*] [$($defaults:tt)*]) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($declared)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($defaults)* }
            }
        }
    };
    (@fields $section:tt [$($declared:tt)*] [$($defaults:tt)*]
        $(#[$meta:meta])* $field:ident: Option<$type:ty> $([$($range:tt)*])?, $($rest:tt)*) => {
        section!(@fields $section [
            $($declared)*
            $(#[$meta])*
            #[serde(skip_serializing_if = "Option::is_none")]
            $(#[schemars(range($($range)*))])?
            pub $field: Option<$type>,
        ] [$($defaults)* $field: None,] $($rest)*);
    };
    (@fields $section:tt [$($declared:tt)*] [$($defaults:tt)*]
        $(#[$meta:meta])* $field:ident: $type:ty $([$($range:tt)*])? $(= $default:expr)?, $($rest:tt)*) => {
        section!(@fields $section [
            $($declared)*
            $(#[$meta])*
            $(#[schemars(range($($range)*))])?
            pub $field: $type,
        ] [$($defaults)* $field: section!(@default $($default)?),] $($rest)*);
    };
    (@default $default:expr) => { $default };
    (@default) => { Default::default() };
}

pub(super) use section;

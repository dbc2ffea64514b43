//! Closed vocabularies: enums whose spellings are compared trimmed, lower-cased and with `-` as `_`.

/// The canonical form in which spellings are compared.
pub(crate) fn fold(word: &str) -> String {
    word.trim().to_lowercase().replace('-', "_")
}

/// Defines an enum with its accepted spellings; the first spelling is the canonical one.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[$vmeta:meta])* $variant:ident = $first:literal $(| $alias:literal)*,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant,)+ }

        impl $name {
            /// Canonical spellings, in order of declaration.
            pub const WORDS: &'static [&'static str] = &[$($first,)+];

            /// The canonical spelling.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $first,)+ }
            }

            /// Reads any accepted spelling.
            pub fn from_word(word: &str) -> Option<Self> {
                match $crate::config::words::fold(word).as_str() {
                    $($first $(| $alias)* => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::from_word(&word).ok_or_else(|| {
                    serde::de::Error::custom(format!("{word:?} is not one of {}", Self::WORDS.join(", ")))
                })
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn schema_id() -> std::borrow::Cow<'static, str> {
                concat!(module_path!(), "::", stringify!($name)).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "description": concat!($($doc,)+).trim(),
                    "type": "string",
                    "enum": [$($first,)+],
                    "x-aliases": { $($($alias: $first,)*)+ },
                })
            }
        }
    };
}

pub(crate) use words;

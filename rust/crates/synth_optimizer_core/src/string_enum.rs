//! Enums with a stable name and optional aliases per variant. Names are compared trimmed, in lower case and with `-` as
//! `_`.

/// Returns the canonical form in which names are compared.
pub fn fold(word: &str) -> String {
    word.trim().to_lowercase().replace('-', "_")
}

/// Returns the JSON Schema of a string enum. Each variant is its name, its aliases and its documentation.
pub fn schema(about: &str, words: &[(&str, &[&str], &str)]) -> schemars::Schema {
    let entry = |name: &str, value: &str| (name.to_owned(), serde_json::Value::from(value));
    let spellings = words.iter().flat_map(|(word, aliases, _)| aliases.iter().map(|alias| entry(alias, word)));
    let meanings = words.iter().filter(|(.., about)| !about.is_empty()).map(|(word, _, about)| entry(word, about));
    let meanings: serde_json::Map<_, _> = meanings.collect();
    let mut schema = schemars::json_schema!({
        "description": about,
        "type": "string",
        "enum": words.iter().map(|(word, ..)| *word).collect::<Vec<_>>(),
        "x-aliases": spellings.collect::<serde_json::Map<_, _>>(),
    });
    if !meanings.is_empty() {
        schema.insert("x-enum-descriptions".to_owned(), meanings.into());
    }
    schema
}

/// Defines enums whose variants have names. The first literal of a variant is its name; the others are accepted aliases.
#[macro_export]
macro_rules! string_enum {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $about:literal])* $variant:ident = $first:literal $(| $alias:literal)*,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[doc = $about])* $variant,)+ }

        impl $name {
            /// Every variant, in order of declaration.
            pub const ALL: [Self; [$($first,)+].len()] = [$(Self::$variant,)+];

            /// The name of every variant, in order of declaration.
            pub const NAMES: &'static [&'static str] = &[$($first,)+];

            /// Returns the name of the variant, as JSON, tables and configuration files contain it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $first,)+ }
            }

            /// Returns the variant with this name or alias.
            pub fn parse(word: &str) -> Option<Self> {
                match $crate::string_enum::fold(word).as_str() {
                    $($first $(| $alias)* => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <String as serde::Deserialize>::deserialize(deserializer)?;
                Self::parse(&word).ok_or_else(|| {
                    serde::de::Error::custom(format!("{word:?} is not one of {}", Self::NAMES.join(", ")))
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
                $crate::string_enum::schema(
                    concat!($($doc,)+).trim_ascii(),
                    &[$(($first, &[$($alias,)*], concat!($($about,)*).trim_ascii()),)+],
                )
            }
        }
    };
    ($($(#[doc = $doc:literal])+ $name:ident { $($words:tt)+ })+) => {
        $($crate::string_enum! { $(#[doc = $doc])+ $name { $($words)+ } })+
    };
}

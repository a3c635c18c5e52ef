//! Values that are written as one string, such as `debian:linux-source-6.12` or `512MiB`: one
//! macro ties `FromStr` and `Display` to serde and to the JSON schema.

use std::fmt;

/// Why a string is not a value of its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// What was expected, with an example.
    pub expected: String,
    /// What was given.
    pub given: String,
}

impl ParseError {
    /// `given` is not what `expected` describes.
    pub fn new(expected: impl Into<String>, given: impl Into<String>) -> Self {
        Self { expected: expected.into(), given: given.into() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}", self.given, self.expected)
    }
}

impl std::error::Error for ParseError {}

/// Implements serde and the schema of a type through its `FromStr` and `Display`. Parsing happens
/// inside the visitor, so a YAML error points at the value.
macro_rules! text_value {
    ($type:ty, $name:literal, $description:literal) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($description)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "description": $description })
            }
        }
    };
}
pub(crate) use text_value;

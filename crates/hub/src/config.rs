//! Typed configurations of model families, with the keys of `config.json`.

use serde_json::{Map, Value};
use weightloom_errors::{Hint, did_you_mean, nearest};
use weightloom_nn::NnError;

/// An invalid or unsupported configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConfigError {
    #[error("missing key `{key}`")]
    Missing { key: String },
    #[error("invalid `{key}`: expected {expected}, found {found}")]
    Value { key: String, expected: String, found: String },
    #[error("unknown key `{key}`")]
    UnknownKey { key: String, near: Option<String> },
    #[error("expected a map, found {found}")]
    NotAMap { found: String },
    #[error("unsupported `{key}`: {found}")]
    NotSupported { key: String, found: String, supported: String },
    #[error(transparent)]
    Decoder(#[from] weightloom_nn::ConfigError),
    #[error(transparent)]
    Model(Box<NnError>),
}

impl ConfigError {
    /// An error of a model definition.
    pub(crate) fn from_model(error: NnError) -> Self {
        match error {
            NnError::Config(error) => Self::Decoder(error),
            other => Self::Model(Box::new(other)),
        }
    }
}

impl Hint for ConfigError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { near, .. } => did_you_mean(near.as_deref()),
            Self::NotSupported { supported, .. } => Some(format!("use one of: {supported}")),
            Self::Decoder(error) => error.hint(),
            Self::Model(error) => error.hint(),
            _ => None,
        }
    }
}

/// A value in an error message.
fn excerpt(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    let text = match value {
        Value::Object(_) => "a map".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => other.to_string(),
    };
    if text.chars().count() <= MAX_CHARS {
        text
    } else {
        text.chars().take(MAX_CHARS).chain(['…']).collect()
    }
}

/// A type of configuration values.
pub trait ConfigValue: Sized {
    /// The expected value, for messages.
    const EXPECTED: &'static str;

    /// Reads a value; `None` if it has another type.
    fn from_json(value: &Value) -> Option<Self>;

    /// Writes a value.
    fn to_json(&self) -> Value;
}

macro_rules! plain_values {
    ($($type:ty: $expected:literal, $read:expr;)*) => {$(
        impl ConfigValue for $type {
            const EXPECTED: &'static str = $expected;

            fn from_json(value: &Value) -> Option<Self> {
                let read: fn(&Value) -> Option<Self> = $read;
                read(value)
            }

            fn to_json(&self) -> Value {
                Value::from(self.clone())
            }
        }
    )*};
}

plain_values! {
    usize: "an integer", |value| value.as_u64().and_then(|value| usize::try_from(value).ok());
    f64: "a number", Value::as_f64;
    bool: "true or false", Value::as_bool;
    String: "a string", |value| value.as_str().map(str::to_owned);
    Vec<usize>: "a list of integers", |value| value.as_array()?.iter().map(usize::from_json).collect();
    Vec<f64>: "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect();
    Vec<String>: "a list of strings", |value| value.as_array()?.iter().map(String::from_json).collect();
    Map<String, Value>: "a map", |value| value.as_object().cloned();
}

impl<T: ConfigValue> ConfigValue for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn from_json(value: &Value) -> Option<Self> {
        if value.is_null() { Some(None) } else { T::from_json(value).map(Some) }
    }

    fn to_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::to_json)
    }
}

/// Reads values of a configuration by key.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Key of the enclosing map.
    inside: &'a str,
}

impl<'a> Fields<'a> {
    /// Reads a top-level map.
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, inside: "" }
    }

    /// Reads a nested map.
    pub fn inside(map: &'a Map<String, Value>, key: &'a str) -> Self {
        Self { map, inside: key }
    }

    fn full_key(&self, key: &str) -> String {
        if self.inside.is_empty() { key.to_owned() } else { format!("{}.{key}", self.inside) }
    }

    /// A required value.
    pub fn get<T: ConfigValue>(&self, key: &str) -> Result<T, ConfigError> {
        match self.map.get(key) {
            Some(value) => self.read(key, value),
            None => {
                T::from_json(&Value::Null).ok_or_else(|| ConfigError::Missing { key: self.full_key(key) })
            }
        }
    }

    /// A value, or a default if it is missing.
    pub fn get_or<T: ConfigValue>(&self, key: &str, default: T) -> Result<T, ConfigError> {
        match self.map.get(key) {
            // `null` counts as missing unless the type has it as a value.
            None => Ok(default),
            Some(Value::Null) if T::from_json(&Value::Null).is_none() => Ok(default),
            Some(value) => self.read(key, value),
        }
    }

    fn read<T: ConfigValue>(&self, key: &str, value: &Value) -> Result<T, ConfigError> {
        T::from_json(value).ok_or_else(|| ConfigError::Value {
            key: self.full_key(key),
            expected: T::EXPECTED.to_owned(),
            found: excerpt(value),
        })
    }

    /// The error for a value that the decoder does not support.
    pub fn not_supported(&self, key: &str, supported: &[&str]) -> ConfigError {
        let found = self.map.get(key).map_or_else(|| "missing".to_owned(), excerpt);
        ConfigError::NotSupported { key: self.full_key(key), found, supported: supported.join(", ") }
    }
}

/// The configuration of a family.
pub trait FamilyConfig: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static {
    /// Reads the configuration; ignores unknown keys.
    fn read(fields: Fields<'_>) -> Result<Self, ConfigError>;

    /// Writes all keys.
    fn write(&self, map: &mut Map<String, Value>);

    /// All keys as a map.
    fn to_map(&self) -> Map<String, Value> {
        let mut map = Map::new();
        self.write(&mut map);
        map
    }
}

/// An untyped map, for families described in YAML.
impl FamilyConfig for Map<String, Value> {
    fn read(fields: Fields<'_>) -> Result<Self, ConfigError> {
        Ok(fields.map.clone())
    }

    fn write(&self, map: &mut Map<String, Value>) {
        map.extend(self.clone());
    }
}

/// Declares the configuration of a family: a struct whose fields are keys of a
/// `config.json`, with defaults for optional ones. Fields after `..` are
/// configurations whose keys are flattened into the map.
#[macro_export]
macro_rules! family_config {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[$about_field:meta])* $field:ident: $type:ty $(= $default:expr)?,)*
            $(.. $(#[$about_shared:meta])* $shared:ident: $shared_type:ty,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$about_shared])* pub $shared: $shared_type,)*
            $($(#[$about_field])* pub $field: $type,)*
        }

        impl $crate::FamilyConfig for $name {
            fn read(fields: $crate::Fields<'_>) -> Result<Self, $crate::ConfigError> {
                Ok(Self {
                    $($shared: <$shared_type as $crate::FamilyConfig>::read(fields)?,)*
                    $($field: $crate::family_config!(@read fields, $field $(, $default)?),)*
                })
            }

            fn write(&self, map: &mut $crate::json::Map<String, $crate::json::Value>) {
                $($crate::FamilyConfig::write(&self.$shared, map);)*
                $(map.insert(
                    stringify!($field).to_owned(),
                    $crate::ConfigValue::to_json(&self.$field),
                );)*
            }
        }
    };
    (@read $fields:ident, $field:ident, $default:expr) => {
        $fields.get_or(stringify!($field), $default)?
    };
    (@read $fields:ident, $field:ident) => {
        $fields.get(stringify!($field))?
    };
}

/// Applies overrides to a configuration: maps are merged, other values replaced.
/// Unknown keys are an error.
pub fn apply_overrides(
    config: &Map<String, Value>,
    overrides: &Map<String, Value>,
) -> Result<Map<String, Value>, ConfigError> {
    let mut result = config.clone();
    for (key, value) in overrides {
        let Some(old) = result.get_mut(key) else {
            let near = nearest(key, config.keys().map(String::as_str)).map(str::to_owned);
            return Err(ConfigError::UnknownKey { key: key.clone(), near });
        };
        merge(old, value);
    }
    Ok(result)
}

fn merge(old: &mut Value, new: &Value) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in new {
                merge(old.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (old, new) => *old = new.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use serde_json::json;

    use super::*;

    family_config! {
        /// A part.
        pub struct Shared {
            /// Number of layers.
            layers: usize,
        }
    }

    family_config! {
        /// A whole.
        pub struct Example {
            /// Whether.
            tied: bool = true,
            /// Window size.
            window: Option<usize> = Some(7),
            ..
            /// The part.
            shared: Shared,
        }
    }

    fn read(value: Value) -> Result<Example, ConfigError> {
        Example::read(Fields::new(value.as_object().unwrap()))
    }

    #[test]
    fn errors_name_the_key() {
        let good = read(json!({"layers": 2, "tied": null, "more": 1})).unwrap();
        assert_eq!(good, Example { shared: Shared { layers: 2 }, tied: true, window: Some(7) });
        assert_eq!(read(json!({"layers": 2, "window": null})).unwrap().window, None);
        assert_eq!(good.to_map(), *json!({"layers": 2, "tied": true, "window": 7}).as_object().unwrap());
        assert_eq!(read(json!({})).unwrap_err().to_string(), "missing key `layers`");
        assert_eq!(
            read(json!({"layers": -1})).unwrap_err().to_string(),
            "invalid `layers`: expected an integer, found -1"
        );
        assert_eq!(
            read(json!({"layers": 2, "tied": "yes"})).unwrap_err().to_string(),
            "invalid `tied`: expected true or false, found \"yes\""
        );
    }

    #[test]
    fn overrides_merge_maps_and_must_be_known() {
        let config = json!({"a": 1, "rope": {"theta": 2, "kind": "x"}}).as_object().unwrap().clone();
        let over = |value: Value| apply_overrides(&config, value.as_object().unwrap());
        let merged = over(json!({"a": 3, "rope": {"theta": 4}})).unwrap();
        assert_eq!(Value::Object(merged), json!({"a": 3, "rope": {"theta": 4, "kind": "x"}}));
        let error = over(json!({"ropee": {}})).unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("did you mean `rope`?"));
    }
}

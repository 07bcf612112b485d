//! How a model wants to be sampled.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::companions::{ReadFile, object};
use super::error::TextError;
use super::facts::Facts;
use super::folder;

/// What `generation_config.json` says. What it does not say is absent; keys
/// that we do not know are passed over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Whether tokens are drawn at random.
    pub do_sample: Option<bool>,
    /// Divides scores before they become probabilities.
    pub temperature: Option<f64>,
    /// Of how many best tokens one is drawn.
    pub top_k: Option<u64>,
    /// The share of probability that the drawn tokens have together.
    pub top_p: Option<f64>,
    /// The least probability, as a share of the best one's.
    pub min_p: Option<f64>,
    /// Divides scores of tokens that are there already.
    pub repetition_penalty: Option<f64>,
    /// Tokens that end generation.
    pub eos: Vec<u32>,
    /// The token that fills up short texts.
    pub pad: Option<u32>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// How many tokens are generated at most.
    pub max_new_tokens: Option<u64>,
    /// How many tokens there are at most, with those given.
    pub max_length: Option<u64>,
}

impl GenerationDefaults {
    /// From the bytes of a `generation_config.json`.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TextError> {
        let map = serde_json::from_slice(bytes)
            .map_err(|error| TextError::invalid("generation_config.json", &error))?;
        Self::from_map(&map)
    }

    /// From a folder; nothing is said if it has no such file.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        Self::from_files(&folder::reader(folder))
    }

    /// From files that are somewhere else: `read` gives the bytes of a file,
    /// or none if there is no such file.
    pub fn from_files(read: ReadFile<'_>) -> Result<Self, TextError> {
        Self::from_map(&object(read, "generation_config.json")?)
    }

    /// From the metadata of a GGUF file.
    pub fn from_gguf(metadata: &BTreeMap<String, GgufValue>) -> Result<Self, TextError> {
        let facts = Facts(metadata);
        let id = |name: &str| {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let id = facts.count(&key)?;
            id.map(|id| u32::try_from(id).map_err(|_| TextError::value(key, "a token", &id))).transpose()
        };
        let number = |name: &str| facts.number(&format!("general.sampling.{name}"));
        let mut eos: Vec<u32> = id("eos")?.into_iter().collect();
        eos.extend(id("eot")?.filter(|eot| !eos.contains(eot)));
        Ok(Self {
            temperature: number("temp")?,
            top_k: facts.count("general.sampling.top_k")?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("penalty_repeat")?,
            eos,
            pad: id("padding")?,
            bos: id("bos")?,
            ..Self::default()
        })
    }

    pub(super) fn from_map(map: &Map<String, Value>) -> Result<Self, TextError> {
        let fields = Fields(map);
        let positive = |number: f64| number > 0.0;
        let share = |number: f64| (0.0..=1.0).contains(&number);
        Ok(Self {
            do_sample: fields.get("do_sample", "true or false", Value::as_bool)?,
            temperature: fields
                .number("temperature", "a number that is not negative", |number| number >= 0.0)?,
            top_k: fields.count("top_k")?,
            top_p: fields.number("top_p", "a number from 0 to 1", share)?,
            min_p: fields.number("min_p", "a number from 0 to 1", share)?,
            repetition_penalty: fields.number("repetition_penalty", "a positive number", positive)?,
            eos: fields.tokens("eos_token_id")?,
            pad: fields.get("pad_token_id", "a token", token)?,
            bos: fields.get("bos_token_id", "a token", token)?,
            max_new_tokens: fields.count("max_new_tokens")?,
            max_length: fields.count("max_length")?,
        })
    }
}

/// Values by key; `null` is as good as none.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, TextError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| TextError::value(key, expected, value)),
        }
    }

    fn number(
        &self,
        key: &str,
        expected: &'static str,
        right: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, TextError> {
        self.get(key, expected, |value| value.as_f64().filter(|&number| right(number)))
    }

    fn count(&self, key: &str) -> Result<Option<u64>, TextError> {
        self.get(key, "a whole number", Value::as_u64)
    }

    fn tokens(&self, key: &str) -> Result<Vec<u32>, TextError> {
        let tokens = self.get(key, "a token or a list of tokens", |value| match value {
            Value::Array(list) => list.iter().map(token).collect(),
            one => token(one).map(|token| vec![token]),
        })?;
        Ok(tokens.unwrap_or_default())
    }
}

fn token(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GenerationDefaults, TextError> {
        GenerationDefaults::from_json(text.as_bytes())
    }

    #[test]
    fn one_end_or_several_are_read() {
        assert_eq!(read(r#"{"eos_token_id": 2}"#).unwrap().eos, [2]);
        assert_eq!(read(r#"{"eos_token_id": [2, 7]}"#).unwrap().eos, [2, 7]);
        assert_eq!(
            read(r#"{"eos_token_id": null, "new_in_2031": {}}"#).unwrap(),
            GenerationDefaults::default()
        );
    }

    #[test]
    fn all_settings_are_read() {
        let text = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 1, "min_p": 0.05,
            "repetition_penalty": 1.1, "pad_token_id": 3, "bos_token_id": 1, "max_new_tokens": 9, "max_length": 10}"#;
        let expected = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(1.0),
            min_p: Some(0.05),
            repetition_penalty: Some(1.1),
            eos: vec![],
            pad: Some(3),
            bos: Some(1),
            max_new_tokens: Some(9),
            max_length: Some(10),
        };
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn bad_values_are_named_by_their_key() {
        for (key, value) in [
            ("temperature", "-1"),
            ("temperature", "\"hot\""),
            ("top_p", "1.5"),
            ("min_p", "-0.1"),
            ("top_k", "0.5"),
            ("repetition_penalty", "0"),
            ("eos_token_id", "[1, -1]"),
            ("bos_token_id", "4294967296"),
            ("do_sample", "1"),
        ] {
            match read(&format!(r#"{{"{key}": {value}}}"#)) {
                Err(TextError::Value { key: named, .. }) => assert_eq!(named, key),
                other => panic!("{key}: {value} gives {other:?}"),
            }
        }
        assert!(matches!(read("[]"), Err(TextError::Invalid { .. })));
    }

    #[test]
    fn a_gguf_file_may_say_how_to_sample() {
        let metadata = [
            ("tokenizer.ggml.eos_token_id".to_owned(), GgufValue::U32(2)),
            ("tokenizer.ggml.eot_token_id".to_owned(), GgufValue::U32(5)),
            ("general.sampling.temp".to_owned(), GgufValue::F32(0.6)),
        ];
        let defaults = GenerationDefaults::from_gguf(&metadata.into()).unwrap();
        assert_eq!((defaults.eos, defaults.temperature), (vec![2, 5], Some(0.6)));
    }
}

//! Default sampling parameters of a model.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::error::TextError;
use super::folder_tokenizer;
use super::gguf_metadata::GgufMetadata;
use super::tokenizer_config::{ReadFile, read_object};

/// Contents of `generation_config.json`. Unknown keys are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Whether to sample rather than decode greedily.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// Number of most likely tokens to sample from.
    pub top_k: Option<u64>,
    /// Total probability of the tokens to sample from.
    pub top_p: Option<f64>,
    /// Least probability, relative to the most likely token.
    pub min_p: Option<f64>,
    /// Divides the logits of tokens that have occurred.
    pub repetition_penalty: Option<f64>,
    /// EOS tokens.
    pub eos: Vec<u32>,
    /// Padding token.
    pub pad: Option<u32>,
    /// BOS token.
    pub bos: Option<u32>,
    /// Limit for generated tokens.
    pub max_new_tokens: Option<u64>,
    /// Limit for all tokens, including the prompt.
    pub max_length: Option<u64>,
}

impl GenerationDefaults {
    /// Parses a `generation_config.json`.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TextError> {
        let map = serde_json::from_slice(bytes)
            .map_err(|error| TextError::invalid("generation_config.json", &error))?;
        Self::from_map(&map)
    }

    /// Reads a folder; empty if it has no such file.
    pub fn from_folder(folder: &Path) -> Result<Self, TextError> {
        Self::from_files(&folder_tokenizer::file_reader(folder))
    }

    /// Reads files through a function.
    pub fn from_files(read: ReadFile<'_>) -> Result<Self, TextError> {
        Self::from_map(&read_object(read, "generation_config.json")?)
    }

    /// Reads the metadata of a GGUF file.
    pub fn from_gguf(metadata: &BTreeMap<String, GgufValue>) -> Result<Self, TextError> {
        let gguf = GgufMetadata(metadata);
        let id = |name: &str| {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let id = gguf.count(&key)?;
            id.map(|id| u32::try_from(id).map_err(|_| TextError::value(key, "a token", &id))).transpose()
        };
        let number = |name: &str| gguf.number(&format!("general.sampling.{name}"));
        let mut eos: Vec<u32> = id("eos")?.into_iter().collect();
        eos.extend(id("eot")?.filter(|eot| !eos.contains(eot)));
        Ok(Self {
            temperature: number("temp")?,
            top_k: gguf.count("general.sampling.top_k")?,
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
            temperature: fields.number("temperature", "a non-negative number", |number| number >= 0.0)?,
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

/// Values by key; `null` counts as absent.
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
        is_valid: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, TextError> {
        self.get(key, expected, |value| value.as_f64().filter(|&number| is_valid(number)))
    }

    fn count(&self, key: &str) -> Result<Option<u64>, TextError> {
        self.get(key, "an integer", Value::as_u64)
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
    fn one_or_several_eos_tokens_are_read() {
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
    fn errors_name_the_key() {
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
    fn a_gguf_file_has_sampling_parameters() {
        let metadata = [
            ("tokenizer.ggml.eos_token_id".to_owned(), GgufValue::U32(2)),
            ("tokenizer.ggml.eot_token_id".to_owned(), GgufValue::U32(5)),
            ("general.sampling.temp".to_owned(), GgufValue::F32(0.6)),
        ];
        let defaults = GenerationDefaults::from_gguf(&metadata.into()).unwrap();
        assert_eq!((defaults.eos, defaults.temperature), (vec![2, 5], Some(0.6)));
    }
}

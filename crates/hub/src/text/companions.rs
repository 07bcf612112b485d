//! The files beside a `tokenizer.json` that say what its tokens are for.

use serde_json::{Map, Value};

use super::error::TextError;

/// Gives the bytes of a file, or none if there is no such file.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> Result<Option<Vec<u8>>, TextError>;

/// What those files say; all are empty if they are not there.
#[derive(Default)]
pub(super) struct Companions {
    /// `tokenizer_config.json`.
    pub(super) config: Map<String, Value>,
    /// `special_tokens_map.json`.
    special: Map<String, Value>,
    /// `generation_config.json`.
    pub(super) generation: Map<String, Value>,
}

impl Companions {
    pub(super) fn read(read: ReadFile<'_>) -> Result<Self, TextError> {
        Ok(Self {
            config: object(read, "tokenizer_config.json")?,
            special: object(read, "special_tokens_map.json")?,
            generation: object(read, "generation_config.json")?,
        })
    }

    /// The text of a special token, such as `bos_token`.
    pub(super) fn token(&self, key: &str) -> Result<Option<&str>, TextError> {
        for map in [&self.config, &self.special] {
            match map.get(key) {
                None | Some(Value::Null) => {}
                Some(value) => {
                    let text = value.as_str().or_else(|| value.get("content")?.as_str());
                    return text.map(Some).ok_or_else(|| TextError::value(key, "a token", value));
                }
            }
        }
        Ok(None)
    }

    /// All special tokens by what they are for.
    pub(super) fn tokens(&self) -> Result<Vec<(&'static str, String)>, TextError> {
        let keys =
            ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
        let texts = keys.into_iter().map(|key| Ok(self.token(key)?.map(|text| (key, text.to_owned()))));
        texts.filter_map(Result::transpose).collect()
    }
}

/// A JSON object in a file; empty if there is no such file.
pub(super) fn object(read: ReadFile<'_>, file: &str) -> Result<Map<String, Value>, TextError> {
    let Some(bytes) = read(file)? else { return Ok(Map::new()) };
    serde_json::from_slice(&bytes).map_err(|error| TextError::invalid(file, &error))
}

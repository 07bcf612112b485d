//! Configuration files beside a `tokenizer.json`.

use serde_json::{Map, Value};

use super::error::TextError;

/// Reads a file; `None` if it does not exist.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> Result<Option<Vec<u8>>, TextError>;

/// Contents of those files; empty if they do not exist.
#[derive(Default)]
pub(super) struct TokenizerFiles {
    /// `tokenizer_config.json`.
    pub(super) config: Map<String, Value>,
    /// `special_tokens_map.json`.
    special: Map<String, Value>,
    /// `generation_config.json`.
    pub(super) generation: Map<String, Value>,
}

impl TokenizerFiles {
    pub(super) fn read(read: ReadFile<'_>) -> Result<Self, TextError> {
        Ok(Self {
            config: read_object(read, "tokenizer_config.json")?,
            special: read_object(read, "special_tokens_map.json")?,
            generation: read_object(read, "generation_config.json")?,
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

    /// All special tokens, by role.
    pub(super) fn tokens(&self) -> Result<Vec<(&'static str, String)>, TextError> {
        let keys =
            ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
        let texts = keys.into_iter().map(|key| Ok(self.token(key)?.map(|text| (key, text.to_owned()))));
        texts.filter_map(Result::transpose).collect()
    }
}

/// Reads a JSON object; empty if the file does not exist.
pub(super) fn read_object(read: ReadFile<'_>, file: &str) -> Result<Map<String, Value>, TextError> {
    let Some(bytes) = read(file)? else { return Ok(Map::new()) };
    serde_json::from_slice(&bytes).map_err(|error| TextError::invalid(file, &error))
}

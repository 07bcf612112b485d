//! What turns texts into tokens, and where generations end.

use std::path::Path;

use serde_json::{Map, Value};
use weightloom_hub::HubError;
use weightloom_hub::text::{ChatContext, ChatTemplate, ChatTemplates, GenerationDefaults, Tokenizer};

/// The tokenizer of a model, its chat templates and the tokens that end a
/// generation.
pub struct LiveText {
    pub(super) tokenizer: Tokenizer,
    templates: ChatTemplates,
    /// Tokens that end a generation.
    pub(super) stop: Vec<u32>,
    /// Tokens that end an answer in a chat.
    pub(super) turn_stop: Vec<u32>,
    /// All tokens that some file says end a text.
    every_eos: Vec<u32>,
    pub(super) repetition_penalty: f64,
}

impl LiveText {
    /// Reads the files of a folder that say so: those of a tokenizer,
    /// `generation_config.json` and `config.json`.
    pub fn from_folder(folder: &Path) -> Result<Self, HubError> {
        let tokenizer = Tokenizer::from_folder(folder)?;
        let defaults = GenerationDefaults::from_folder(folder)?;
        // A broken template is not an obstacle to plain text.
        let templates = ChatTemplates::from_folder(folder).unwrap_or_default();
        let sources = [defaults.eos, config_eos(folder), tokenizer.eos().to_vec()];
        let every_eos = sources.concat();
        let stop = sources.into_iter().find(|eos| !eos.is_empty()).unwrap_or_default();
        let mut turn_stop = stop.clone();
        if let Some(template) = templates.pick(&ChatContext::default()) {
            turn_stop.extend(template.end_of_turn_token(&tokenizer)?);
        }
        let repetition_penalty = defaults.repetition_penalty.unwrap_or(1.0);
        Ok(Self { tokenizer, templates, stop, turn_stop, every_eos, repetition_penalty })
    }

    /// The template that messages are rendered with.
    pub(super) fn template(&self) -> Option<&ChatTemplate> {
        self.templates.pick(&ChatContext::default())
    }

    /// Whether the model was trained to converse, as
    /// [`Model::is_instruct`](weightloom_hub::Model::is_instruct) decides.
    pub(super) fn is_instruct(&self) -> Result<bool, HubError> {
        let Some(template) = self.template() else { return Ok(false) };
        let end = template.end_of_turn_token(&self.tokenizer)?;
        Ok(end.is_some_and(|token| self.every_eos.contains(&token)))
    }
}

/// `eos_token_id` of `config.json`; none without one.
fn config_eos(folder: &Path) -> Vec<u32> {
    let config = std::fs::read(folder.join("config.json")).ok();
    let config: Option<Map<String, Value>> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let number = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    match config.as_ref().and_then(|config| config.get("eos_token_id")) {
        Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
        Some(one) => number(one).into_iter().collect(),
        None => Vec::new(),
    }
}

//! Models that were found by name, with the adapter to apply to them.

use std::path::PathBuf;

use weightloom_checkpoint::{Observer, Source};
use weightloom_hub::text::ChatTemplates;
use weightloom_hub::{HubError, LoadedModel, Model, ModelLoadOptions, TextGenerator, TrainingData};

use crate::facade::LoadedGenerator;
use crate::prompt_format::PromptFormat;

/// A model with the adapter to apply to it. Only headers were read so far.
#[derive(Debug)]
pub struct OpenedModel {
    /// The model, or the base of the adapter.
    pub model: Model,
    /// The folder of the adapter.
    pub adapter: Option<PathBuf>,
}

/// How an adapter is applied, with its strength from 0 (off) to 1 (as trained).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AdapterMode {
    /// Beside the weights.
    Separate(f64),
    /// Added to the weights, each rounded once.
    Merged(f64),
}

impl Default for AdapterMode {
    fn default() -> Self {
        Self::Separate(1.0)
    }
}

impl OpenedModel {
    /// The adapter's chat templates, or else the model's.
    pub fn templates(&self) -> Result<ChatTemplates, HubError> {
        if let Some(folder) = &self.adapter {
            let own = ChatTemplates::from_folder(folder)?;
            if !own.is_empty() {
                return Ok(own);
            }
        }
        self.model.chat_templates()
    }

    /// How the data of the adapter, or of the model, were formatted; none if it
    /// is not recorded. The record of an adapter is the later one.
    pub fn training_data(&self) -> Result<Option<TrainingData>, HubError> {
        match &self.adapter {
            Some(folder) => Ok(TrainingData::from_folder(folder)?),
            None => self.model.training_data(),
        }
    }

    /// The format of prompts for which none was chosen: that of the training data.
    pub fn prompt_format(&self) -> Result<PromptFormat, HubError> {
        if !self.training_data()?.is_some_and(|record| record.has_chats()) {
            return Ok(PromptFormat::Text);
        }
        Ok(match self.templates()?.is_empty() {
            true => PromptFormat::TextForLackOfTemplate,
            false => PromptFormat::ChatAsInTraining,
        })
    }

    /// Loads the model with its tokenizer on this rank.
    pub fn load(
        &self,
        options: &ModelLoadOptions,
        mode: AdapterMode,
        observer: &dyn Observer,
    ) -> Result<LoadedGenerator, HubError> {
        let Self { model, adapter: folder } = self;
        // In parallel, since loading a large vocabulary takes time.
        let (loaded, tokenizer) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| model.tokenizer());
            let loaded = model.load(options, observer);
            (loaded, tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let LoadedModel { model: mut loaded, mismatch, .. } = loaded?;
        let tokenizer = tokenizer?;
        let mut adapter = None;
        if let Some(folder) = folder {
            let made = model.adapter(&*loaded, &Source::open(folder)?, observer)?;
            match mode {
                AdapterMode::Separate(scale) => adapter = Some((made, scale)),
                AdapterMode::Merged(scale) => {
                    loaded = loaded.merged(&made, scale).map_err(HubError::from)?;
                }
            }
        }
        let (templates, defaults) = (self.templates()?, model.generation_defaults()?);
        let generator = TextGenerator { model: loaded, adapter, tokenizer, templates, defaults };
        Ok(LoadedGenerator { generator, mismatch })
    }
}

//! Generates a suite, with comments, from a document or from training data.
//!
//! The probes depend on what there is: questions, preferences, prose. Of chats,
//! messages of the user become prompts, and answers of the assistant become the
//! answers to score. Equal inputs give equal suites, so that a suite can be
//! committed beside its document.

mod material;
mod paraphrase;
pub(crate) mod text;

#[cfg(test)]
mod tests;

use std::path::Path;

use thiserror::Error;
use weightloom_errors::Hint;
use weightloom_hub::{TrainedOn, TrainingData, TrainingDataError};

use self::material::Material;
use self::text::Yaml;
use crate::sections::{Document, is_data};

/// The models and paths of a generated suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The base model.
    pub base: String,
    /// Folder of the adapter, as written to the file.
    pub adapter: Option<String>,
    /// Path of the document, as written to the file.
    pub source: String,
    /// What the document is.
    pub provenance: Provenance,
}

/// What a suite is generated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// A document for people.
    Document,
    /// Training data that the adapter was trained on.
    Trained,
    /// Training data that the adapter was not trained on.
    HeldOut,
    /// Training data; nothing says whether the adapter was trained on them.
    Unrecorded,
}

impl Provenance {
    /// What a file is, by its name and the training record of the adapter.
    pub fn of(file: &Path, adapter: Option<&Path>) -> Result<Self, TrainingDataError> {
        if !is_data(file) {
            return Ok(Self::Document);
        }
        let record = adapter.map(TrainingData::from_folder).transpose()?.flatten();
        let bytes = std::fs::metadata(file).map(|data| data.len()).unwrap_or_default();
        Ok(match record.map(|record| record.trained_on(file, bytes)) {
            Some(TrainedOn::Yes) => Self::Trained,
            Some(TrainedOn::No) => Self::HeldOut,
            Some(TrainedOn::Unknown) | None => Self::Unrecorded,
        })
    }

    /// What the generated file says about it.
    fn sentence(self) -> Option<&'static str> {
        Some(match self {
            Self::Document => return None,
            Self::Trained => {
                "The training record of the adapter names this file: its questions are also asked in other words."
            }
            Self::HeldOut => {
                "The training record of the adapter does not name this file, so it was not trained on: a quarter \
                 of its questions is held out for `held_out`, and asked by no entry but that and `sections`."
            }
            Self::Unrecorded => {
                "No training record names this file for certain: its questions count as trained on, and are \
                 also asked in other words."
            }
        })
    }
}

/// Why a suite cannot be generated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum AutogenError {
    #[error("cannot find an adapter for `{source_name}`")]
    NoAdapter { source_name: String },
    #[error("`{source_name}` does not name its base model")]
    NoBase { source_name: String },
    #[error("`{source_name}` has no sections")]
    Empty { source_name: String },
}

impl Hint for AutogenError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoAdapter { .. } => "train one, or name its folder with --adapter".to_owned(),
            Self::NoBase { .. } => "name it with --base".to_owned(),
            Self::Empty { .. } => "add text to it".to_owned(),
        })
    }
}

/// Generates the text of a `sway.yaml` for a document or training data.
pub fn autogen(document: &Document, subject: &Subject) -> Result<String, AutogenError> {
    let source_name = || subject.source.clone();
    let Some(adapter) = &subject.adapter else {
        return Err(AutogenError::NoAdapter { source_name: source_name() });
    };
    if subject.base.trim().is_empty() {
        return Err(AutogenError::NoBase { source_name: source_name() });
    }
    if document.sections.is_empty() {
        return Err(AutogenError::Empty { source_name: source_name() });
    }
    let material = Material::of(document, subject.provenance);
    let mut probes = Yaml::default();
    let omitted = material.write(&mut probes);
    let mut file = Yaml::default();
    file.comment(&format!("Generated from {} by weightloom {}.", subject.source, env!("CARGO_PKG_VERSION")));
    if let Some(id) = &document.id {
        file.comment(&format!("Document: {id}."));
    }
    if let Some(sentence) = subject.provenance.sentence() {
        file.comment(sentence);
        file.comment(
            "Prompts are messages of the user, answers those of the assistant; `line N` is where they are.",
        );
    }
    file.comment("Edit freely: the document is not changed by this file.");
    for (kind, why) in &omitted {
        file.comment(&format!("Omitted: {kind}, because {why}."));
    }
    file.line("version: 1");
    file.line("models:");
    file.line("  base:");
    file.key(4, "base", &subject.base);
    file.line("  ft:");
    file.key(4, "base", &subject.base);
    file.key(4, "adapter", adapter);
    file.key(0, "dlm_source", &subject.source);
    file.line("defaults:");
    file.line("  seed: 0");
    file.line("  differential: true");
    if subject.provenance != Provenance::Document {
        file.line("  chat: auto");
    }
    if let Some(system) = &material.system {
        file.key(2, "system", system);
    }
    file.line("suite:");
    Ok(file.finish() + &probes.finish())
}

//! Models by name: cards, downloads, families, tokenizers, loading and export.
//!
//! [`Hub`] is the entry point: it resolves a name to a card, a folder or a
//! repository on Hugging Face, downloads the files, and loads the model sharded
//! over the ranks.
//!
//! This crate does not read the environment; the program passes settings in.

#![forbid(unsafe_code)]

pub mod cards;
pub mod fetch;
pub mod text;

mod adapter;
mod added_arch;
mod config;
mod decoder_parts;
mod error;
mod export;
mod families;
mod family;
mod hub;
mod load;
mod locate;
mod model;
mod model_hub;
mod sentence_encoder;
mod strictness;
mod text_generator;
mod training_data;
mod yaml_family;

#[doc(hidden)]
pub use adapter::check_adapter_config;
// For `family_config!`.
pub use adapter::{AdapterError, load_adapter};
pub use config::{ConfigError, ConfigValue, FamilyConfig, Fields, apply_overrides};
pub use decoder_parts::{DecoderPart, decoder_parts};
pub use error::{CheckpointMismatch, HubError};
pub use export::{
    ExportOptions, config_file, config_file_from, export, folder_files, save_model, text_files,
    text_files_of_folder,
};
pub use families::{Families, FamilyError, arch_config};
pub use family::{AnyFamily, Family, FamilyTypes, SharedFamily};
pub use hub::{FetchedModel, Hub, ModelLocation, ResolvedModel};
pub use load::{LoadedModel, ModelLoadOptions, iter_parameters, load_model, meta_model, new_model};
pub use locate::{
    LocateError, LocateStep, LocatedCheckpoint, LocatedModel, adapter_folder, newest_checkpoint,
};
pub use model::Model;
pub use model_hub::ModelHub;
pub use sentence_encoder::{SentenceEncoder, SentenceEncoderError};
#[doc(hidden)]
pub use serde_json as json;
pub use strictness::Strictness;
pub use text_generator::{
    EosHandling, GeneratedText, StopCriteria, StreamedToken, TextGenerator, default_sampling,
};
pub use training_data::{
    DataFile, DataKind, SystemPrompt, TemplateRecord, TemplateSource, TrainedOn, TrainingData,
    TrainingDataError,
};
pub use yaml_family::{FAMILY_FILE, FamilyDescription, YamlFamily, YamlFamilyError};

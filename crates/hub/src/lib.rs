//! Models by name: cards and the stores they come from, downloads, families
//! and archs, tokenizers, and the way from a card to a model that is sharded
//! as the machines need it.
//!
//! This crate reads no environment: whoever starts it says what is where.

pub mod cards;
pub mod fetch;
pub mod text;
mod text_generator;

mod adapter;
mod config;
mod describe;
mod error;
mod export;
mod families;
mod family;
mod hub;
mod load;
mod model;
mod model_hub;
mod sentence;

pub use adapter::{AdapterError, load_adapter};
pub use config::{ConfigError, ConfigValue, FamilyConfig, Fields, overridden};
pub use describe::{DESCRIPTION_FILE, DescribeError, Described, Description};
pub use error::{HubError, Misfit};
pub use export::{ExportOptions, config_file, export, save_decoder, text_files, text_files_of_folder};
pub use families::{Families, FamilyError, arch_config};
pub use family::{AnyFamily, Family, SharedFamily};
pub use hub::{Fetched, Found, Hub, Place};
pub use load::{LoadOptions, Loaded, iter_parameters, load_decoder, meta_decoder, new_decoder};
pub use model::Model;
pub use model_hub::ModelHub;
pub use sentence::{SentenceEncoder, SentenceError};
pub use text_generator::{
    EosHandling, GeneratedText, StopCriteria, StreamedToken, TextGenerator, default_sampling,
};

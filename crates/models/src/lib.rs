//! Model families, as configurations of one decoder.
//!
//! A family maps a published `config.json` to a
//! [`DecoderConfig`](weightloom_nn::DecoderConfig) and the tensor names of
//! published checkpoints to ours. Each family is a folder of this crate with
//! three files: `family.rs`, the presets of published models in `archs.yaml`, and
//! their cards in `cards.yaml`. The build script registers all folders, so a new
//! family edits no existing file.
//!
//! ```
//! use weightloom_hub::Families;
//!
//! let mut families = Families::new();
//! weightloom_models::register(&mut families)?;
//! let llama = families.get("llama").expect("a built-in family");
//! assert!(llama.archs().contains(&"llama3_8b".to_owned()));
//! # Ok::<(), weightloom_hub::FamilyError>(())
//! ```

#![forbid(unsafe_code)]

mod archs;
mod deepseek;
mod gemma_transformer;
mod rope;
mod transformer;

pub use transformer::TransformerConfig;

// A module for each folder, `register`, and `CARDS`.
include!(concat!(env!("OUT_DIR"), "/families.rs"));

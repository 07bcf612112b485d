//! Families of models, as data over one decoder.
//!
//! A family says how a published `config.json` is read, how the names in its
//! checkpoints translate, and which sizes were published. Each is one folder
//! here with everything that belongs to it: `family.rs`, the published sizes in
//! `archs.yaml`, how many parameters they have in `parameters.yaml`, and the
//! published models in `cards.yaml`. The build lists the folders; nothing else
//! has to be told of a new one.

mod archs;
mod rope;
mod transformer;

pub use transformer::TransformerConfig;

// A module for each folder, `register`, and `CARDS`.
include!(concat!(env!("OUT_DIR"), "/families.rs"));

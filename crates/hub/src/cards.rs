//! Cards, the stores they come from, and names of models.
//!
//! A card is a YAML document that describes a model under a name: family, arch,
//! checkpoint, tokenizer. A card can inherit from another one (`base:`), and
//! every field of the result records the file and line of its origin.
//!
//! ```yaml
//! name: small
//! model_family: llama
//! model_arch: 1b
//! checkpoint: hf://org/small@v1
//! model_config:
//!   rope: {theta: 10000.0, scale: 8}
//! ---
//! name: small_long
//! base: small
//! model_config:
//!   max_seq_len: 131072
//!   rope: {_del_: [scale], theta: 500000.0}
//! ```
//!
//! # Inheritance
//!
//! A field of a card replaces that of its base. The config maps
//! (`model_config`, `tokenizer_config`, `dataset_config`) are merged by
//! [`Patch`] instead. `_del_` lists fields not to inherit; `_set_` sets fields
//! without a merge.
//!
//! A card with its own `checkpoint` does not inherit `checkpoint_path`,
//! `revision`, `sha256` and `size`, which describe the bytes of the base's
//! checkpoint. Cards with the same name before the `@` are the same model and do
//! inherit them. The same holds for `tokenizer` and `tokenizer_path`.
//!
//! # Names
//!
//! `name@env` is the card of a name for one environment. For `name`, a store
//! tries its environments in order and then the plain card; `name@` is the plain
//! card, `name@env` exactly that one. Bases are looked up the same way, except
//! that a base with the card's own name is the plain card or, in the plain card
//! itself, the card of an earlier source that it overrides.
//!
//! # Adapters and datasets
//!
//! The checkpoint of a card with `base_model` is an adapter of that model. A card
//! with `dataset_config` is a dataset, which training configs name; see
//! [`DatasetCard`].

mod address;
mod card;
mod dataset;
mod document;
mod draft;
mod error;
mod fields;
mod merge;
mod name;
mod run;
mod settings;
mod source;
mod store;
mod value;

pub use address::{AddressError, ModelAddress};
pub use card::{Card, Sums};
pub use dataset::DatasetCard;
pub use draft::CardDraft;
pub use error::{CardError, SourceProblem};
pub use merge::Patch;
pub use name::CardName;
pub use run::{RunCards, RunError};
pub use settings::StoreSettings;
pub use source::{CardSource, SourceKind};
pub use store::{CardStore, Override};
pub use value::{CardLocation, Field, Kind, Origin, Value};

//! Cards, the stores they come from, and names of models.
//!
//! A card is a YAML document that says what a name means: which family and
//! arch a model has, where its checkpoint lies, which tokenizer belongs to
//! it. A card may build on another (`base:`), and every field of the result
//! knows which line of which file it came from.
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
//! # What is inherited
//!
//! A field of the nearer card replaces that of its base. The config maps
//! (`model_config`, `tokenizer_config`, `dataset_config`) are merged instead,
//! as [`Patch`] says. A card lists under `_del_` the fields that it does not
//! want to inherit, and under `_set_` those that it wants exactly so, without
//! a merge.
//!
//! What describes the bytes behind a `checkpoint` (`checkpoint_path`,
//! `revision`, `sha256`, `size`) is not inherited by a card that writes a
//! `checkpoint` of its own: a derived model would be checked against the sums
//! of another. Cards of the same name before the `@` are the same model and
//! inherit it all the same. `tokenizer_path` goes with `tokenizer` likewise.
//!
//! # Names
//!
//! `name@env` is what the name means in one environment. Asked for `name`, a
//! store tries its environments in order and then the plain card; `name@`
//! means the plain card, `name@env` that one and no other. Bases are looked up
//! in the same way, but a base of the card's own name means the plain card,
//! or, in the plain card itself, the one of an earlier source that it
//! overrides.

mod address;
mod card;
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
pub use draft::CardDraft;
pub use error::{CardError, SourceProblem};
pub use merge::Patch;
pub use name::CardName;
pub use run::{RunCards, RunError};
pub use settings::StoreSettings;
pub use source::{CardSource, SourceKind};
pub use store::{CardStore, Override};
pub use value::{CardLocation, Field, Kind, Origin, Value};

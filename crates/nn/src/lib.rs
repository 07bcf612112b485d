//! One configurable decoder, and what runs it.
//!
//! A [`DecoderConfig`] says what a language model is made of; a [`Decoder`]
//! is one with its parameters, distributed as a [`Plan`] says. Families of
//! models are data over it: nothing here knows their names.
//!
//! - [`parameters`] lists what a decoder holds, before anything is allocated.
//! - A [`Cache`] keeps keys and values between calls.
//! - An [`Adapter`] changes a decoder without touching its parameters.
//! - [`Generation`] writes on, greedily or by chance.
//!
//! Parameters have the names that Llama models have on Hugging Face.

mod adapter;
mod attention;
mod branches;
mod cache;
mod changes;
mod config;
mod decoder;
mod error;
mod experts;
mod forest;
mod generate;
mod linear;
mod loss;
mod merge;
mod mlp;
mod norm;
mod parameter;
mod plan;
mod remake;
mod rope;
mod sample;
mod score;
mod stage;

pub use adapter::{Adapter, LowRank, Replacement};
pub use cache::Cache;
pub use changes::{Change, ChangedRows, Changes, grouped};
pub use config::{
    Activation, AttentionConfig, ConfigError, DecoderConfig, ExpertWeights, ExpertsConfig, Gating,
    HeadConfig, LayerChoice, MlpConfig, NormConfig, NormKind, PositionConfig, QkNorm, ResidualForm,
    RopeConfig, RopeScaling, WindowConfig,
};
pub use decoder::{Decoder, Dropout, Input, Kept, Pass};
pub use error::NnError;
pub use forest::{Reading, Text};
pub use generate::{Finish, Generated, Generation, Request, Token};
pub use loss::IGNORED;
pub use merge::merged;
pub use parameter::{EMBEDDING, Initial, ParameterSpec, initial_values, parameters};
pub use plan::{Parallel, Plan, PlanError, Positions, Usage};
pub use remake::{Part, Piece};
pub use sample::{Sampler, Sampling, SamplingError};
pub use score::Likeliest;
pub use stage::Stage;

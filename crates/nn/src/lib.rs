//! Language models over distributed tensors: one trait, one configurable decoder,
//! and the code that runs them.
//!
//! A [`ModelDefinition`] describes a model; a [`Model`] is one with its parameters,
//! sharded by a [`Plan`]. A [`DecoderConfig`] and a [`Decoder`] are ours. Model
//! families are configurations of it: nothing in this crate depends on one.
//!
//! - [`parameters`] lists the parameters before anything is allocated.
//! - [`Decoder::forward`] and [`Decoder::loss`] train; [`Generation`] generates.
//! - A [`Cache`] keeps keys and values between calls.
//! - An [`Adapter`] updates a decoder without modifying its parameters.
//!
//! Parameters have the names that Llama models have on Hugging Face. See
//! [`Decoder`] for an example.

#![forbid(unsafe_code)]

mod adapter;
mod attention;
mod batch_adapters;
mod cache;
mod cached_decoding;
mod config;
mod context;
mod decoder;
mod decoding;
mod definition;
mod error;
mod experts;
mod generate;
mod latent_attention;
mod linear;
mod loss;
mod mlp;
mod model;
mod norm;
mod packing;
mod parameter;
mod plan;
mod prefill;
mod prefix_tree;
mod rope;
mod sampling;
mod score;
mod sequence;
mod shard;
mod stage;

pub use adapter::{Adapter, AdapterTensor, AdapterTensorKind, LowRank, Replacement};
pub use batch_adapters::{AdapterRows, AdapterSpec, BatchAdapters, group_by_adapter};
pub use cache::Cache;
pub use config::{
    Activation, AttentionConfig, ConfigError, DecoderConfig, ExpertGroups, ExpertScores, ExpertWeighting,
    ExpertWeights, ExpertsConfig, Gating, HeadConfig, LatentConfig, LayerChoice, MlpConfig, NormConfig,
    NormKind, PositionConfig, QkNorm, ResidualForm, RopeConfig, RopePairs, RopeScaling, TemperatureConfig,
    WindowConfig, WindowKind,
};
pub use decoder::{ActivationCheckpointing, Decoder, Dropout, ForwardArgs, Input};
pub use decoding::Decoding;
pub use definition::{ModelDefinition, SharedDefinition};
pub use error::NnError;
pub use generate::{FinishReason, GenerateRequest, GeneratedSequence, GeneratedToken, Generation};
pub use loss::IGNORED;
pub use model::{AsModel, Check, Model};
pub use parameter::{EMBEDDING, Initial, InitialValues, ParameterKind, ParameterSpec, parameters};
pub use plan::{Parallel, Plan, PlanError, SequenceParallelism, Usage};
pub use sampling::{Sampler, Sampling, SamplingError};
pub use score::TokenLogprobs;
pub use sequence::{Sequence, SequenceOutput};
pub use shard::ModelShard;
pub use stage::Stage;

//! One configurable decoder, and the code that runs it.
//!
//! A [`DecoderConfig`] describes a language model; a [`Decoder`] is a model with
//! its parameters, sharded by a [`Plan`]. Model families are configurations of
//! it: nothing in this crate depends on one.
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
mod config;
mod context;
mod decoder;
mod error;
mod experts;
mod generate;
mod latent_attention;
mod linear;
mod loss;
mod mlp;
mod norm;
mod packing;
mod parameter;
mod plan;
mod prefill;
mod prefix_tree;
mod rope;
mod sampling;
mod score;
mod stage;

pub use adapter::{Adapter, AdapterTensor, AdapterTensorKind, LowRank, Replacement, merge_adapter};
pub use batch_adapters::{AdapterRows, AdapterSpec, BatchAdapters, group_by_adapter};
pub use cache::Cache;
pub use config::{
    Activation, AttentionConfig, ConfigError, DecoderConfig, ExpertGroups, ExpertScores, ExpertWeighting,
    ExpertWeights, ExpertsConfig, Gating, HeadConfig, LatentConfig, LayerChoice, MlpConfig, NormConfig,
    NormKind, PositionConfig, QkNorm, ResidualForm, RopeConfig, RopePairs, RopeScaling, TemperatureConfig,
    WindowConfig, WindowKind,
};
pub use decoder::{ActivationCheckpointing, Decoder, Dropout, ForwardArgs, Input};
pub use error::NnError;
pub use generate::{FinishReason, GenerateRequest, GeneratedSequence, GeneratedToken, Generation};
pub use loss::IGNORED;
pub use parameter::{EMBEDDING, Initial, ParameterSpec, initial_values, is_buffer, parameters};
pub use plan::{Parallel, Plan, PlanError, SequenceParallelism, Usage};
pub use prefix_tree::{PrefixTreeOutput, Sequence};
pub use sampling::{Sampler, Sampling, SamplingError};
pub use score::TokenLogprobs;
pub use stage::Stage;

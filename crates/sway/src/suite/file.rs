//! The keys of a suite file, as types.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::chat::ChatMode;
use crate::statistics::Statistics;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Version of the format: 1.
    #[serde(default = "one")]
    pub version: i64,
    /// The models to compare.
    pub models: Models,
    /// Settings of all probes.
    #[serde(default)]
    pub defaults: Defaults,
    /// The probes, in order.
    #[serde(default)]
    pub suite: Vec<Map<String, Value>>,
    /// Document that the model was fine-tuned on: `.dlm` or Markdown.
    #[serde(default)]
    pub dlm_source: Option<String>,
}

fn one() -> i64 {
    1
}

/// The two models.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Models {
    /// The base model.
    pub base: ModelSpec,
    /// The fine-tuned model.
    pub ft: ModelSpec,
}

/// A model and its backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// The kind of backend.
    #[serde(default)]
    pub kind: ModelKind,
    /// Folder or name of the model; for `api` the name on the server.
    pub base: String,
    /// Folder of the adapter.
    #[serde(default)]
    pub adapter: Option<String>,
    /// Precision of the weights.
    #[serde(default)]
    pub dtype: Precision,
    /// Device to compute on.
    #[serde(default = "auto")]
    pub device: String,
    /// Accepted for compatibility with dlm-sway; code of a model is never run.
    #[serde(default)]
    pub trust_remote_code: bool,
    /// For `custom`: `package.module:Class`, or a program that starts with `./`
    /// or `/`.
    #[serde(default)]
    pub entry_point: Option<String>,
    /// For `api`: URL of the server.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// For `api` and `custom`: seconds before an answer times out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Options of a registered kind of backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Map<String, Value>>,
}

fn auto() -> String {
    "auto".to_owned()
}

/// The kind of backend of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = one_of)]
pub enum ModelKind {
    /// This program loads a Hugging Face folder or a GGUF file.
    #[default]
    Hf,
    /// This program loads an MLX folder.
    Mlx,
    /// A server.
    Api,
    /// Canned answers, for tests; not available in files.
    Dummy,
    /// A program or Python class of the user.
    Custom,
    /// A kind that the program has registered with
    /// [`Backends`](crate::backend::Backends).
    #[serde(untagged)]
    #[schemars(skip)]
    Registered(String),
}

/// Without the registered names, which the schema does not know, the others are
/// exclusive.
fn one_of(schema: &mut schemars::Schema) {
    if let Some(choices) = schema.remove("anyOf") {
        schema.insert("oneOf".to_owned(), choices);
    }
}

impl ModelKind {
    /// Whether this program loads the model itself.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Hf | Self::Mlx)
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hf => "hf",
            Self::Mlx => "mlx",
            Self::Api => "api",
            Self::Dummy => "dummy",
            Self::Custom => "custom",
            Self::Registered(name) => name,
        })
    }
}

/// The precision of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// The best for the device.
    #[default]
    Auto,
    /// Half precision.
    Fp16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    Fp32,
}

/// Settings of all probes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// Seed of random draws.
    pub seed: i64,
    /// How many of the most likely tokens to compare.
    pub top_k: u64,
    /// Load one model for both sides if possible.
    pub differential: bool,
    /// Lowest score that passes a gate.
    pub coverage_threshold: f64,
    /// Accepted for compatibility with dlm-sway; questions of all probes are
    /// asked together.
    pub concurrent_probes: u64,
    /// Weights of categories that replace the defaults.
    pub score_weights: Option<BTreeMap<String, f64>>,
    /// How verdicts are reached.
    pub statistics: Statistics,
    /// JSON file with text packs that replace the built-in ones.
    pub packs: Option<String>,
    /// Folder of a sentence-embedding model that replaces the base model.
    pub embedding: Option<String>,
    /// When prompts are rendered with the model's chat template.
    pub chat: ChatMode,
    /// System prompt of chats that have none.
    pub system: Option<String>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            seed: 0,
            top_k: 256,
            differential: true,
            coverage_threshold: 0.6,
            concurrent_probes: 1,
            score_weights: None,
            statistics: Statistics::Paired,
            packs: None,
            embedding: None,
            chat: ChatMode::Auto,
            system: None,
        }
    }
}

/// Keys of every entry.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    /// Name of the entry.
    pub name: String,
    /// Kind of the probe.
    pub kind: String,
    /// Whether the entry runs.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Weight within its category.
    #[serde(default = "full")]
    pub weight: f64,
    /// When prompts are rendered with the model's chat template; by default as
    /// `defaults.chat` says.
    #[serde(default)]
    pub chat: Option<ChatMode>,
}

/// The keys of [`Head`].
pub(super) const HEAD: [&str; 5] = ["name", "kind", "enabled", "weight", "chat"];

fn yes() -> bool {
    true
}

fn full() -> f64 {
    1.0
}

//! The keys of `sway.yaml`, as types.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::statistics::Statistics;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// The version of the format, which is 1.
    #[serde(default = "one")]
    pub version: i64,
    /// The models that are compared.
    pub models: Models,
    /// What holds for all probes.
    #[serde(default)]
    pub defaults: Defaults,
    /// The probes, in order.
    #[serde(default)]
    pub suite: Vec<Map<String, Value>>,
    /// The document that the model was tuned on: `.dlm` or Markdown.
    #[serde(default)]
    pub dlm_source: Option<String>,
}

fn one() -> i64 {
    1
}

/// The two sides.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Models {
    /// The model before.
    pub base: ModelSpec,
    /// The model after.
    pub ft: ModelSpec,
}

/// A model, and what answers for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// What answers for it.
    #[serde(default)]
    pub kind: ModelKind,
    /// A folder, or a model's name; for `api` the name that the server knows.
    pub base: String,
    /// A folder with an adapter.
    #[serde(default)]
    pub adapter: Option<String>,
    /// The precision of the weights.
    #[serde(default)]
    pub dtype: Precision,
    /// Where it computes.
    #[serde(default = "auto")]
    pub device: String,
    /// Taken for the sake of old files. Nothing that comes with a model is run.
    #[serde(default)]
    pub trust_remote_code: bool,
    /// For `custom`: `package.module:Class`, or a program that starts with `./`
    /// or `/`.
    #[serde(default)]
    pub entry_point: Option<String>,
    /// For `api`: the root of the server.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// For `api` and `custom`: how many seconds an answer may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
}

fn auto() -> String {
    "auto".to_owned()
}

/// What answers for a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// This program, from a Hugging Face folder or a GGUF file.
    #[default]
    Hf,
    /// This program, from an MLX folder.
    Mlx,
    /// A server.
    Api,
    /// Made-up answers, for tests. No file can ask for them.
    Dummy,
    /// A program or a Python class of the user.
    Custom,
}

impl ModelKind {
    /// Whether this program loads the model itself.
    pub fn is_local(self) -> bool {
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
        })
    }
}

/// The precision of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// What suits the device.
    #[default]
    Auto,
    /// Half.
    Fp16,
    /// Brain float.
    Bf16,
    /// Single.
    Fp32,
}

/// What holds for all probes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// What random draws begin with.
    pub seed: i64,
    /// How many of the likeliest tokens are compared.
    pub top_k: u64,
    /// Whether one loaded model stands for both sides where that is possible.
    pub differential: bool,
    /// The score that a gate asks for.
    pub coverage_threshold: f64,
    /// Taken for the sake of old files: questions of all probes go together.
    pub concurrent_probes: u64,
    /// What counts for each category, instead of the usual.
    pub score_weights: Option<BTreeMap<String, f64>>,
    /// How verdicts are reached.
    pub statistics: Statistics,
    /// A JSON file with the texts of probes, instead of those that are built in.
    pub packs: Option<String>,
    /// A folder with a sentence-embedding model, instead of the base model.
    pub embedding: Option<String>,
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
        }
    }
}

/// What every entry says, whatever its kind.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    /// What the entry is called.
    pub name: String,
    /// The kind of the probe.
    pub kind: String,
    /// Whether it is run.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// How much it counts among others of its category.
    #[serde(default = "full")]
    pub weight: f64,
}

/// The keys of [`Head`].
pub(super) const HEAD: [&str; 4] = ["name", "kind", "enabled", "weight"];

fn yes() -> bool {
    true
}

fn full() -> f64 {
    1.0
}

//! The `model` section: the model to train.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use weightloom_hub::Strictness;

/// The model to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Model spec: a built-in family (`llama`), or the dotted name of a
    /// registered spec or of a family described in a file (`my_org.my_moe`).
    pub name: String,
    /// Preset of the model config, such as `llama3_2_1b`. Defaults to the
    /// config of the weights.
    #[serde(default)]
    pub arch: Option<String>,
    /// Initial weights: a card, a folder, a file, `org/name` on Hugging Face,
    /// or a URL. Without it, weights are initialized randomly.
    #[serde(default)]
    pub weights_path: Option<String>,
    /// What to do if the tensors of the weights do not match the model. All that
    /// is initialized or ignored is listed at the start and the end of the run.
    #[serde(default)]
    pub strictness: LoadStrictness,
    /// Tokenizer: a folder, or anything that `weights_path` accepts. Defaults
    /// to the tokenizer of the weights.
    #[serde(default)]
    pub tokenizer_path: Option<String>,
    /// Parameters to freeze, as patterns. `*` matches any part of a name, and a
    /// pattern that names a module matches all of its parameters.
    #[serde(default)]
    pub freeze_modules: Vec<String>,
    /// Overrides of the model's tensor-parallel plan: the dim on which each
    /// parameter is sharded. `*` matches one component of a name.
    #[serde(default)]
    pub tp_plan: BTreeMap<String, usize>,
    /// Overrides of keys in the model config.
    #[serde(default)]
    pub config_overrides: Map<String, Value>,
    /// Train a LoRA adapter instead of all weights.
    #[serde(default)]
    pub lora: Option<LoraConfig>,
}

/// How strictly the tensors of the weights must match those of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadStrictness {
    /// Any difference is an error.
    #[default]
    Strict,
    /// Initialize missing tensors, and ignore unexpected ones. A tensor with
    /// another shape is an error.
    NonStrict,
    /// Like `non_strict`, and initialize tensors with another shape.
    IgnoreMismatchedSizes,
}

impl From<LoadStrictness> for Strictness {
    fn from(strictness: LoadStrictness) -> Self {
        match strictness {
            LoadStrictness::Strict => Self::Strict,
            LoadStrictness::NonStrict => Self::NonStrict,
            LoadStrictness::IgnoreMismatchedSizes => Self::IgnoreMismatchedSizes,
        }
    }
}

/// A LoRA adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoraConfig {
    /// Rank of the update matrices.
    pub rank: usize,
    /// Scale of the updates, which are multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Dropout probability of the adapter's inputs.
    pub dropout: f64,
    /// Modules to adapt, by the last components of their names, or `all-linear`
    /// for every linear layer but the output head.
    #[serde(deserialize_with = "one_or_many")]
    #[schemars(with = "OneOrMany")]
    pub target_modules: Vec<String>,
    /// Multiply updates by `alpha / sqrt(rank)` instead (rank-stabilized LoRA).
    pub use_rslora: bool,
    /// Existing adapter to continue training. Its rank, alpha and target
    /// modules take precedence.
    pub adapter_path: Option<String>,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.0,
            dropout: 0.0,
            target_modules: ["q_proj", "k_proj", "v_proj", "o_proj"].map(str::to_owned).to_vec(),
            use_rslora: false,
            adapter_path: None,
        }
    }
}

/// The target that means every linear layer but the output head.
const ALL_LINEAR: &str = "all-linear";

/// The output head, which `all-linear` leaves out as PEFT does.
const HEAD: &str = "lm_head";

/// A list that may be written as one string, as in PEFT's
/// `target_modules: all-linear`.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(name) => vec![name],
        OneOrMany::Many(names) => names,
    })
}

impl LoraConfig {
    /// Whether a linear module of the model is adapted.
    pub(crate) fn adapts(&self, module: &str) -> bool {
        self.target_modules.iter().any(|target| is_target(module, target))
    }
}

/// Whether a linear module is meant by a target.
pub(crate) fn is_target(module: &str, target: &str) -> bool {
    match target {
        ALL_LINEAR => module != HEAD,
        _ => is_named(module, target),
    }
}

/// Whether a name ends with these components.
pub(crate) fn is_named(module: &str, target: &str) -> bool {
    module == target || module.strip_suffix(target).is_some_and(|rest| rest.ends_with('.'))
}

//! What is trained.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The spec: a built-in one (`llama`), or the dotted name of one that was
    /// registered or is described in a file (`my_org.my_moe`).
    pub name: String,
    /// A preset of the model's configuration. Without it, the configuration is
    /// what the weights say of themselves.
    #[serde(default)]
    pub arch: Option<String>,
    /// Where weights come from: a card, a folder, a file, `org/name` on Hugging
    /// Face, or a URL. Without it, weights are random.
    #[serde(default)]
    pub weights_path: Option<String>,
    /// Where the tokenizer comes from, if not from the weights: a folder, or
    /// anything that weights can be.
    #[serde(default)]
    pub tokenizer_path: Option<String>,
    /// Parameters that stay as they are; `*` stands for any part of a name, and
    /// a pattern holds for everything below what it names.
    #[serde(default)]
    pub freeze_modules: Vec<String>,
    /// Which dim of which parameters tensor parallelism shares, where it is not
    /// what the model says. `*` stands for one part of a name.
    #[serde(default)]
    pub tp_plan: BTreeMap<String, usize>,
    /// Keys of the model's configuration with other values.
    #[serde(default)]
    pub config_overrides: Map<String, Value>,
    /// Trains a low-rank adapter instead of the weights.
    #[serde(default)]
    pub lora: Option<LoraConfig>,
}

/// A low-rank adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoraConfig {
    /// The rank of the change of each module.
    pub rank: usize,
    /// The change is multiplied by this over the rank.
    pub alpha: f64,
    /// The share of a module's inputs that the adapter does not see in a step.
    pub dropout: f64,
    /// Modules that are changed, by the ends of their names.
    pub target_modules: Vec<String>,
    /// Divides by the root of the rank instead.
    pub use_rslora: bool,
    /// An adapter to go on with. Its rank, strength and modules stay its own.
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

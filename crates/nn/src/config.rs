//! Architecture of a decoder.
//!
//! The options cover the differences between recent model families. A family
//! translates its own configuration into these.

mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use check::ConfigError;
use check::MAX_LAYERS;

/// Architecture of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecoderConfig {
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Maximum sequence length.
    pub max_positions: usize,
    /// Self-attention.
    pub attention: AttentionConfig,
    /// Position embeddings.
    pub positions: PositionConfig,
    /// Normalization.
    pub norm: NormConfig,
    /// Placement of the norms.
    #[serde(default)]
    pub residual: ResidualForm,
    /// Feed-forward block.
    pub mlp: MlpConfig,
    /// Mixture of experts, in layers that have one.
    #[serde(default)]
    pub experts: Option<ExpertsConfig>,
    /// Factor of the token embeddings.
    #[serde(default)]
    pub embedding_scale: Option<f64>,
    /// Language-model head.
    #[serde(default)]
    pub head: HeadConfig,
    /// Standard deviation of initial weights.
    #[serde(default = "initializer")]
    pub initializer: f64,
}

fn initializer() -> f64 {
    0.02
}

/// Self-attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttentionConfig {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key-value heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub width: usize,
    /// Factor of the scores; by default `1 / sqrt(width)`.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Whether the query, key and value projections have biases.
    #[serde(default)]
    pub input_bias: bool,
    /// Whether the output projection has a bias.
    #[serde(default)]
    pub output_bias: bool,
    /// Normalization of queries and keys.
    #[serde(default)]
    pub qk_norm: Option<QkNorm>,
    /// Sliding-window attention.
    #[serde(default)]
    pub window: Option<WindowConfig>,
    /// Soft cap of the scores: `cap · tanh(score / cap)`.
    #[serde(default)]
    pub soft_cap: Option<f64>,
    /// Multi-head latent attention.
    #[serde(default)]
    pub latent: Option<LatentConfig>,
    /// Scaling of queries by position, in layers without rotary embeddings.
    #[serde(default)]
    pub temperature: Option<TemperatureConfig>,
}

/// Multi-head latent attention: keys and values are projected up from a small
/// vector per token. `attention.width` is the size of a query, of which the last
/// `rope_width` elements are rotated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentConfig {
    /// Size of the vector that queries are projected up from; by default they
    /// are projected from the hidden state.
    #[serde(default)]
    pub query_rank: Option<usize>,
    /// Size of the vector that keys and values are projected up from.
    pub kv_rank: usize,
    /// Size of the rotated part of queries and keys. All heads share that of keys.
    pub rope_width: usize,
    /// Size of a value.
    pub value_width: usize,
    /// Epsilon of the norms of the small vectors.
    pub eps: f64,
}

/// Scaling of queries by position: `1 + scale · ln(1 + ⌊(position + 1) / floor⌋)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TemperatureConfig {
    /// Positions with the same factor.
    pub floor: f64,
    /// Growth of the factor.
    pub scale: f64,
}

/// Normalization of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Per head.
    Head,
    /// Over all heads together.
    Whole,
    /// Per head, without weights, after the rotation, and only in layers that
    /// rotate.
    Rotated,
}

/// Attention to a part of the positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowConfig {
    /// Number of visible positions, including the current one.
    pub size: usize,
    /// Where the window begins.
    #[serde(default)]
    pub kind: WindowKind,
    /// Layers that use it.
    #[serde(default)]
    pub layers: LayerChoice,
}

/// Where an attention window begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// It ends with the current position.
    #[default]
    Sliding,
    /// At a multiple of its size.
    Chunked,
}

/// A subset of the layers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerChoice {
    /// Every layer.
    #[default]
    All,
    /// The listed layers.
    Only(Vec<usize>),
    /// Every `step`-th layer from `first` on.
    Every {
        /// Distance between the layers.
        step: usize,
        /// First layer.
        first: usize,
    },
}

impl WindowConfig {
    /// The first position that a position sees.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        match self.kind {
            WindowKind::Sliding => (position + 1).saturating_sub(self.size),
            WindowKind::Chunked => position / self.size * self.size,
        }
    }
}

impl LayerChoice {
    /// Whether a layer is in the subset.
    pub fn has(&self, layer: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(layers) => layers.contains(&layer),
            Self::Every { step, first } => {
                layer.checked_sub(*first).is_some_and(|distance| distance.is_multiple_of(*step))
            }
        }
    }

    /// The layers that satisfy a predicate. A number of layers that
    /// [`DecoderConfig::check`] rejects gives all.
    pub fn matching(layers: usize, predicate: impl Fn(usize) -> bool) -> Self {
        if layers > MAX_LAYERS {
            return Self::All;
        }
        let matching: Vec<usize> = (0..layers).filter(|&layer| predicate(layer)).collect();
        if matching.len() == layers { Self::All } else { Self::Only(matching) }
    }
}

/// Position embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PositionConfig {
    /// Rotary embeddings of queries and keys.
    Rope(RopeConfig),
    /// A learned embedding per position.
    Learned,
}

/// Rotary position embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RopeConfig {
    /// Base of the wavelengths.
    pub theta: f64,
    /// Number of rotated elements of a head; by default all.
    #[serde(default)]
    pub turned: Option<usize>,
    /// Scaling for longer contexts.
    #[serde(default)]
    pub scaling: RopeScaling,
    /// The elements that are rotated together.
    #[serde(default)]
    pub pairs: RopePairs,
    /// Layers that rotate.
    #[serde(default)]
    pub layers: LayerChoice,
    /// Rotation in layers with an attention window, if it differs.
    #[serde(default)]
    pub window: Option<Box<RopeConfig>>,
}

impl Default for RopeConfig {
    fn default() -> Self {
        Self {
            theta: 10_000.0,
            turned: None,
            scaling: RopeScaling::None,
            pairs: RopePairs::default(),
            layers: LayerChoice::All,
            window: None,
        }
    }
}

/// The elements of a head that are rotated together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RopePairs {
    /// The i-th of the first half and the i-th of the second.
    #[default]
    Halves,
    /// Neighbours.
    Interleaved,
}

/// Scaling of rotary embeddings for longer contexts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    None,
    /// Divides positions.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: stretches long wavelengths, and keeps short ones.
    Llama3 {
        /// Stretch factor.
        factor: f64,
        /// Wavelengths above `original_positions / low_frequency` are stretched.
        low_frequency: f64,
        /// Wavelengths below `original_positions / high_frequency` are kept.
        high_frequency: f64,
        /// Maximum sequence length before scaling.
        original_positions: usize,
    },
    /// YaRN: stretches by the number of turns within the original length.
    Yarn {
        /// Stretch factor of long wavelengths.
        factor: f64,
        /// Wavelengths with more turns than this are kept.
        beta_fast: f64,
        /// Wavelengths with fewer turns than this are stretched in full.
        beta_slow: f64,
        /// Maximum sequence length before scaling.
        original_positions: usize,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// Whether the bounds of the ramp are rounded to whole pairs.
        #[serde(default = "rounded")]
        rounded: bool,
    },
    /// LongRoPE: divides each frequency by a separate factor. Longer sequences
    /// would need other factors for all positions, so they are an error.
    LongRope {
        /// Factors of sequences up to `original_positions`, by pair.
        short: Vec<f64>,
        /// Maximum sequence length before scaling.
        original_positions: usize,
        /// Factor of cosines and sines.
        attention_factor: f64,
    },
}

fn rounded() -> bool {
    true
}

/// Normalization.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NormConfig {
    /// Kind of norm.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f64,
    /// Added to the weights before use.
    #[serde(default)]
    pub offset: f64,
}

/// Kinds of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// RMS norm with weights.
    Rms,
    /// Layer norm with weights and biases.
    Layer,
    /// Layer norm without weights and biases.
    LayerPlain,
}

/// Placement of the norms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResidualForm {
    /// Pre-norm: before attention and before the feed-forward block.
    #[default]
    Before,
    /// Post-norm: after each block, before the residual is added.
    After,
    /// Before and after each block.
    Around,
    /// One norm before both blocks, which run in parallel.
    Parallel,
}

/// Feed-forward block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MlpConfig {
    /// Inner size.
    pub inner: usize,
    /// Activation function.
    pub activation: Activation,
    /// Whether the activation gates a second projection.
    #[serde(default)]
    pub gating: Gating,
    /// Whether the projections have biases.
    #[serde(default)]
    pub bias: bool,
}

/// Activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU.
    Gelu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// Whether the activation gates a second projection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// `activation(gate · x) * (up · x)`.
    #[default]
    Gated,
    /// `activation(up · x)`.
    Plain,
}

/// Mixture of experts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpertsConfig {
    /// Number of experts.
    pub count: usize,
    /// Number of experts per token.
    pub chosen: usize,
    /// Inner size of an expert.
    pub inner: usize,
    /// Scores from the router's logits.
    #[serde(default)]
    pub scores: ExpertScores,
    /// Weights of the chosen experts.
    #[serde(default)]
    pub weights: ExpertWeights,
    /// Factor of the weights.
    #[serde(default)]
    pub scale: Option<f64>,
    /// What the weights multiply.
    #[serde(default)]
    pub weighting: ExpertWeighting,
    /// Whether a bias is added to the scores by which experts are chosen, and
    /// only to those. Gradients do not reach it.
    #[serde(default)]
    pub correction_bias: bool,
    /// Groups of experts, of which a token uses some.
    #[serde(default)]
    pub groups: Option<ExpertGroups>,
    /// Inner size of an expert that every token uses.
    #[serde(default)]
    pub shared: Option<usize>,
    /// Layers that have experts.
    #[serde(default)]
    pub layers: LayerChoice,
}

/// Scores from the router's logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpertScores {
    /// Softmax over all experts.
    #[default]
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// What the weights of experts multiply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpertWeighting {
    /// The outputs of experts.
    #[default]
    Output,
    /// Their inputs.
    Input,
}

/// Groups of experts: only the experts of the best groups can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups per token.
    pub chosen: usize,
    /// Number of experts whose scores add up to that of their group.
    #[serde(default = "one")]
    pub best: usize,
}

fn one() -> usize {
    1
}

/// Weights of the chosen experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpertWeights {
    /// Normalized over the chosen experts.
    #[default]
    Normalised,
    /// Normalized over all experts.
    OfAll,
}

/// Language-model head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadConfig {
    /// Whether it shares the token embedding.
    #[serde(default)]
    pub tied: bool,
    /// Whether it has a bias.
    #[serde(default)]
    pub bias: bool,
    /// Soft cap of the logits: `cap · tanh(logit / cap)`.
    #[serde(default)]
    pub soft_cap: Option<f64>,
}

impl DecoderConfig {
    /// The number of elements of a head that are rotated.
    pub(crate) fn rotated_width(&self, rope: &RopeConfig) -> usize {
        let all = self.attention.latent.as_ref().map_or(self.attention.width, |latent| latent.rope_width);
        rope.turned.unwrap_or(all)
    }

    /// The most positions of a sequence, if there is a limit.
    pub fn position_limit(&self) -> Option<usize> {
        match &self.positions {
            PositionConfig::Learned => Some(self.max_positions),
            PositionConfig::Rope(RopeConfig {
                scaling: RopeScaling::LongRope { original_positions, .. },
                ..
            }) => Some(*original_positions),
            PositionConfig::Rope(_) => None,
        }
    }

    /// The attention window of a layer.
    pub(crate) fn window(&self, layer: usize) -> Option<&WindowConfig> {
        self.attention.window.as_ref().filter(|window| window.layers.has(layer))
    }

    /// The rotary embeddings of a layer.
    pub(crate) fn rope(&self, layer: usize) -> Option<&RopeConfig> {
        match &self.positions {
            PositionConfig::Rope(rope) => Some(rope).filter(|rope| rope.layers.has(layer)),
            PositionConfig::Learned => None,
        }
    }

    /// The experts of a layer.
    pub(crate) fn experts(&self, layer: usize) -> Option<&ExpertsConfig> {
        self.experts.as_ref().filter(|experts| experts.layers.has(layer))
    }

    /// The number of parameters that each token is multiplied with: without
    /// embedding tables, and with the chosen experts only.
    pub fn active_parameters(&self) -> u64 {
        let specs = crate::parameters(self, &crate::Stage::whole(self.layers));
        let used = |spec: &crate::ParameterSpec| {
            let all = spec.shape.volume() as u64;
            match &self.experts {
                _ if spec.name == crate::parameter::EMBEDDING && !self.head.tied => 0,
                _ if spec.name == crate::parameter::POSITIONS => 0,
                Some(experts) if spec.name.contains(".mlp.experts.") => {
                    all * experts.chosen as u64 / (experts.count as u64).max(1)
                }
                _ => all,
            }
        };
        specs.iter().map(used).sum()
    }

    /// The number of parameters.
    pub fn parameter_count(&self) -> u64 {
        let specs = crate::parameters(self, &crate::Stage::whole(self.layers));
        specs.iter().map(|spec| spec.shape.volume() as u64).sum()
    }
}

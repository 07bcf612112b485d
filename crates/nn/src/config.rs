//! Architecture of a decoder.
//!
//! The options cover the differences between recent model families. A family
//! translates its own configuration into these.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_errors::Hint;

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
}

/// Normalization of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Per head.
    Head,
    /// Over all heads together.
    Whole,
}

/// Sliding-window attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowConfig {
    /// Number of visible positions, including the current one.
    pub size: usize,
    /// Layers that use it.
    #[serde(default)]
    pub layers: LayerChoice,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpertsConfig {
    /// Number of experts.
    pub count: usize,
    /// Number of experts per token.
    pub chosen: usize,
    /// Inner size of an expert.
    pub inner: usize,
    /// Weights of the chosen experts.
    #[serde(default)]
    pub weights: ExpertWeights,
    /// Layers that have experts.
    #[serde(default)]
    pub layers: LayerChoice,
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

/// An invalid architecture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConfigError {
    #[error("`{key}` must not be 0")]
    Zero { key: &'static str },
    #[error("`{key}` of {value} does not divide `{of}` of {whole}")]
    Divides { key: &'static str, value: usize, of: &'static str, whole: usize },
    #[error("`{key}` of {value} exceeds `{of}` of {limit}")]
    Above { key: &'static str, value: usize, limit: usize, of: &'static str },
    #[error("`{key}` of {value} is not even")]
    Odd { key: &'static str, value: usize },
    #[error("`{key}` of {value} is not a positive number")]
    NotPositive { key: &'static str, value: String },
    #[error("`{key}` of {value} exceeds the limit of {limit}")]
    TooLarge { key: &'static str, value: usize, limit: usize },
    #[error("the model would have {parameters} parameters, more than the limit of {limit}")]
    Parameters { parameters: u128, limit: u128 },
    #[error("cannot combine `{key}` with `{other}`")]
    Excludes { key: &'static str, other: &'static str },
}

impl Hint for ConfigError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Divides { key, of, whole, .. } => {
                let fits: Vec<String> =
                    (1..=*whole).filter(|n| whole.is_multiple_of(*n)).map(|n| n.to_string()).collect();
                (fits.len() <= 24)
                    .then(|| format!("with `{of}` = {whole}, `{key}` can be {}", fits.join(", ")))
            }
            Self::TooLarge { .. } | Self::Parameters { .. } => {
                Some("check the numbers in `config.json`, or in the metadata of the GGUF file".to_owned())
            }
            _ => None,
        }
    }
}

/// Limit for layers; published models have up to about 130.
const MAX_LAYERS: usize = 1 << 12;

/// Limits that no real model reaches, so that files cannot ask for more than
/// any machine has, and so that products of sizes do not overflow.
const LIMITS: [(&str, usize); 10] = [
    ("vocabulary", 1 << 28),
    ("hidden", 1 << 22),
    ("layers", MAX_LAYERS),
    ("max_positions", 1 << 40),
    ("attention.heads", 1 << 16),
    ("attention.kv_heads", 1 << 16),
    ("attention.width", 1 << 16),
    ("mlp.inner", 1 << 26),
    ("experts.count", 1 << 16),
    ("experts.inner", 1 << 26),
];

/// Limit for parameters.
const MAX_PARAMETERS: u128 = 1 << 46;

impl DecoderConfig {
    /// Checks that the options are valid and compatible.
    pub fn check(&self) -> Result<(), ConfigError> {
        let attention = &self.attention;
        let sizes = [
            ("vocabulary", self.vocabulary),
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("max_positions", self.max_positions),
            ("attention.heads", attention.heads),
            ("attention.kv_heads", attention.kv_heads),
            ("attention.width", attention.width),
            ("mlp.inner", self.mlp.inner),
            ("attention.window.size", attention.window.as_ref().map_or(1, |window| window.size)),
            ("experts.count", self.experts.as_ref().map_or(1, |experts| experts.count)),
            ("experts.chosen", self.experts.as_ref().map_or(1, |experts| experts.chosen)),
            ("experts.inner", self.experts.as_ref().map_or(1, |experts| experts.inner)),
        ];
        for (key, value) in sizes {
            let limit =
                LIMITS.iter().find(|(limited, _)| *limited == key).map_or(usize::MAX, |limit| limit.1);
            if value > limit {
                return Err(ConfigError::TooLarge { key, value, limit });
            }
        }
        if let Some(&(key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Zero { key });
        }
        let parameters = self.most_parameters();
        if parameters > MAX_PARAMETERS {
            return Err(ConfigError::Parameters { parameters, limit: MAX_PARAMETERS });
        }
        let (heads, kv_heads) = (attention.heads, attention.kv_heads);
        if !heads.is_multiple_of(kv_heads) {
            let (key, of) = ("attention.kv_heads", "attention.heads");
            return Err(ConfigError::Divides { key, value: kv_heads, of, whole: heads });
        }
        if let Some(experts) = &self.experts {
            if experts.chosen > experts.count {
                let (key, of) = ("experts.chosen", "experts.count");
                return Err(ConfigError::Above { key, value: experts.chosen, limit: experts.count, of });
            }
            if self.mlp.bias {
                return Err(ConfigError::Excludes { key: "experts", other: "mlp.bias" });
            }
            if self.mlp.gating == Gating::Plain {
                return Err(ConfigError::Excludes { key: "experts", other: "mlp.gating: plain" });
            }
        }
        self.check_numbers()?;
        self.check_layers()
    }

    /// An upper bound of the number of parameters, without going through them.
    fn most_parameters(&self) -> u128 {
        let wide = |size: usize| size as u128;
        let (hidden, attention) = (wide(self.hidden), &self.attention);
        let heads = wide(attention.heads) + wide(attention.kv_heads);
        let attention = 2 * (heads * wide(attention.width) + 4) * (hidden + 1);
        let experts = self
            .experts
            .as_ref()
            .map_or(0, |experts| wide(experts.count) * (3 * wide(experts.inner) + 1) * (hidden + 1));
        let mlp = 3 * (wide(self.mlp.inner) + 1) * (hidden + 1);
        let positions = match self.positions {
            PositionConfig::Learned => wide(self.max_positions),
            PositionConfig::Rope(_) => 0,
        };
        let embeddings = (2 * wide(self.vocabulary) + positions + 2) * (hidden + 1);
        wide(self.layers) * (attention + experts.max(mlp) + 8 * hidden) + embeddings
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let mut numbers = vec![("norm.eps", self.norm.eps), ("initializer", self.initializer)];
        let optional = [
            ("attention.scale", self.attention.scale),
            ("attention.soft_cap", self.attention.soft_cap),
            ("head.soft_cap", self.head.soft_cap),
            ("embedding_scale", self.embedding_scale),
        ];
        numbers.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?))));
        if let PositionConfig::Rope(rope) = &self.positions {
            numbers.push(("positions.rope.theta", rope.theta));
            let turned = rope.turned.unwrap_or(self.attention.width);
            let key = "positions.rope.turned";
            if turned > self.attention.width {
                let (limit, of) = (self.attention.width, "attention.width");
                return Err(ConfigError::Above { key, value: turned, limit, of });
            }
            if !turned.is_multiple_of(2) {
                return Err(ConfigError::Odd { key, value: turned });
            }
            match rope.scaling {
                RopeScaling::None => {}
                RopeScaling::Linear { factor } => numbers.push(("positions.rope.scaling.factor", factor)),
                RopeScaling::Llama3 { factor, low_frequency, high_frequency, .. } => numbers.extend([
                    ("positions.rope.scaling.factor", factor),
                    ("positions.rope.scaling.low_frequency", low_frequency),
                    ("positions.rope.scaling.high_frequency", high_frequency),
                ]),
                RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, .. } => {
                    numbers.extend([
                        ("positions.rope.scaling.factor", factor),
                        ("positions.rope.scaling.beta_fast", beta_fast),
                        ("positions.rope.scaling.beta_slow", beta_slow),
                        ("positions.rope.scaling.attention_factor", attention_factor),
                    ]);
                }
            }
        }
        match numbers.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            Some((key, value)) => Err(ConfigError::NotPositive { key, value: value.to_string() }),
            None => Ok(()),
        }
    }

    fn check_layers(&self) -> Result<(), ConfigError> {
        let choices = [
            ("attention.window.layers", self.attention.window.as_ref().map(|window| &window.layers)),
            ("experts.layers", self.experts.as_ref().map(|experts| &experts.layers)),
        ];
        for (key, choice) in choices {
            let Some(LayerChoice::Only(layers)) = choice else { continue };
            if layers.len() > self.layers {
                let (value, limit) = (layers.len(), self.layers);
                return Err(ConfigError::Above { key, value, limit, of: "layers" });
            }
            if let Some(&value) = layers.iter().find(|&&layer| layer >= self.layers) {
                return Err(ConfigError::Above { key, value, limit: self.layers - 1, of: "layers - 1" });
            }
        }
        Ok(())
    }

    /// The attention window of a layer.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        self.attention.window.as_ref().filter(|window| window.layers.has(layer)).map(|window| window.size)
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
                Some(experts) if spec.name.contains(".experts.") => {
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

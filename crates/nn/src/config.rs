//! What a decoder is made of.
//!
//! Options are what models of the last years differ in. A family translates its
//! own configuration into these; a decoder knows nothing else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_errors::Hint;

/// A decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecoderConfig {
    /// Tokens that there are.
    pub vocabulary: usize,
    /// Numbers that stand for a token between layers.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Positions that it was made for.
    pub max_positions: usize,
    /// How tokens look at each other.
    pub attention: AttentionConfig,
    /// How positions are told apart.
    pub positions: PositionConfig,
    /// Norms.
    pub norm: NormConfig,
    /// Where norms stand.
    #[serde(default)]
    pub residual: ResidualForm,
    /// What is done with each token.
    pub mlp: MlpConfig,
    /// Layers in which experts do that.
    #[serde(default)]
    pub experts: Option<ExpertsConfig>,
    /// What embeddings are multiplied by.
    #[serde(default)]
    pub embedding_scale: Option<f64>,
    /// The last projection.
    #[serde(default)]
    pub head: HeadConfig,
    /// The deviation of new random weights.
    #[serde(default = "initializer")]
    pub initializer: f64,
}

fn initializer() -> f64 {
    0.02
}

/// How tokens look at each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttentionConfig {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub width: usize,
    /// What scores are multiplied by; `1 / sqrt(width)` if not given.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Whether queries, keys and values have biases.
    #[serde(default)]
    pub input_bias: bool,
    /// Whether the result has a bias.
    #[serde(default)]
    pub output_bias: bool,
    /// Norms of queries and keys.
    #[serde(default)]
    pub qk_norm: Option<QkNorm>,
    /// Layers that see only what is near.
    #[serde(default)]
    pub window: Option<WindowConfig>,
    /// What scores are bent to stay below.
    #[serde(default)]
    pub soft_cap: Option<f64>,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Each head by itself.
    Head,
    /// All heads together.
    Whole,
}

/// Layers that see only what is near.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowConfig {
    /// Positions that are seen, the own one included.
    pub size: usize,
    /// In which layers.
    #[serde(default)]
    pub layers: LayerChoice,
}

/// Some of the layers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerChoice {
    /// All of them.
    #[default]
    All,
    /// These.
    Only(Vec<usize>),
    /// Every so many, beginning with one.
    Every {
        /// How many.
        step: usize,
        /// The first one.
        first: usize,
    },
}

impl LayerChoice {
    /// Whether a layer is among them.
    pub fn has(&self, layer: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(layers) => layers.contains(&layer),
            Self::Every { step, first } => {
                layer.checked_sub(*first).is_some_and(|behind| behind.is_multiple_of(*step))
            }
        }
    }

    /// Those for which a question is answered with yes.
    pub fn where_(layers: usize, chosen: impl Fn(usize) -> bool) -> Self {
        let some: Vec<usize> = (0..layers).filter(|&layer| chosen(layer)).collect();
        if some.len() == layers { Self::All } else { Self::Only(some) }
    }
}

/// How positions are told apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PositionConfig {
    /// Queries and keys are turned by angles.
    Rope(RopeConfig),
    /// Each position has an embedding, which is learned.
    Learned,
}

/// Angles of positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RopeConfig {
    /// The base of the wave lengths.
    pub theta: f64,
    /// The part of a head that is turned; all of it if not given.
    #[serde(default)]
    pub turned: Option<usize>,
    /// How angles are changed for longer texts.
    #[serde(default)]
    pub scaling: RopeScaling,
}

/// How angles are changed for longer texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// Positions are divided.
    Linear {
        /// By this.
        factor: f64,
    },
    /// Long waves are stretched, short ones are not: Llama 3.
    Llama3 {
        /// How far.
        factor: f64,
        /// Waves longer than the original length over this are stretched.
        low_frequency: f64,
        /// Waves shorter than the original length over this are not.
        high_frequency: f64,
        /// Positions before stretching.
        original_positions: usize,
    },
    /// YaRN: waves by how often they turn within the original length.
    Yarn {
        /// How far long waves are stretched.
        factor: f64,
        /// Waves that turn more often than this are not stretched.
        beta_fast: f64,
        /// Waves that turn less often than this are stretched in full.
        beta_slow: f64,
        /// Positions before stretching.
        original_positions: usize,
        /// What cosines and sines are multiplied by.
        attention_factor: f64,
        /// Whether the bounds of the ramp are rounded to whole pairs.
        #[serde(default = "rounded")]
        rounded: bool,
    },
}

fn rounded() -> bool {
    true
}

/// Norms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NormConfig {
    /// Which.
    pub kind: NormKind,
    /// What is added to the variance.
    pub eps: f64,
    /// What is added to the weights before they are used.
    #[serde(default)]
    pub offset: f64,
}

/// Kinds of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// By the root of the mean of squares, with weights.
    Rms,
    /// By mean and variance, with weights and biases.
    Layer,
    /// By mean and variance, without either.
    LayerPlain,
}

/// Where norms stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResidualForm {
    /// Before attention and before the MLP.
    #[default]
    Before,
    /// Behind each of them, before its result is added.
    After,
    /// Before and behind.
    Around,
    /// One norm before both, which work side by side.
    Parallel,
}

/// What is done with each token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MlpConfig {
    /// Numbers inside.
    pub inner: usize,
    /// The bend.
    pub activation: Activation,
    /// Whether a gate is multiplied in.
    #[serde(default)]
    pub gating: Gating,
    /// Whether projections have biases.
    #[serde(default)]
    pub bias: bool,
}

/// The bend in an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// By the normal distribution.
    Gelu,
    /// The same, approximated with a tanh.
    GeluTanh,
    /// Nothing below zero.
    Relu,
}

/// Whether a gate is multiplied in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gating {
    /// A bent projection times another one.
    #[default]
    Gated,
    /// A bent projection.
    Plain,
}

/// Experts, of which each token uses some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpertsConfig {
    /// How many there are.
    pub count: usize,
    /// How many a token uses.
    pub chosen: usize,
    /// Numbers inside each.
    pub inner: usize,
    /// How much each counts.
    #[serde(default)]
    pub weights: ExpertWeights,
    /// Layers that have experts.
    #[serde(default)]
    pub layers: LayerChoice,
}

/// How much each chosen expert counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpertWeights {
    /// Weights of the chosen ones add up to one.
    #[default]
    Normalised,
    /// As they are among all experts.
    OfAll,
}

/// The last projection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadConfig {
    /// Whether it is the embedding itself.
    #[serde(default)]
    pub tied: bool,
    /// Whether it has a bias.
    #[serde(default)]
    pub bias: bool,
    /// What logits are bent to stay below.
    #[serde(default)]
    pub soft_cap: Option<f64>,
}

/// Options that do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConfigError {
    /// A size of 0.
    #[error("`{key}` is 0")]
    Zero { key: &'static str },
    /// A number that must divide another.
    #[error("`{key}` is {value}, which does not divide `{of}`, {whole}")]
    Divides { key: &'static str, value: usize, of: &'static str, whole: usize },
    /// A number beyond a limit.
    #[error("`{key}` is {value}, more than {limit}, which is `{of}`")]
    Above { key: &'static str, value: usize, limit: usize, of: &'static str },
    /// A number that must be even.
    #[error("`{key}` is {value}, which is odd")]
    Odd { key: &'static str, value: usize },
    /// A number that must be positive and finite.
    #[error("`{key}` is {value}, which is not a positive number")]
    NotPositive { key: &'static str, value: String },
    /// Two options that exclude each other.
    #[error("`{key}` does not go together with `{other}`")]
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
            _ => None,
        }
    }
}

impl DecoderConfig {
    /// Checks that the options go together.
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
        if let Some(&(key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Zero { key });
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
            if let Some(&value) = layers.iter().find(|&&layer| layer >= self.layers) {
                return Err(ConfigError::Above { key, value, limit: self.layers - 1, of: "layers - 1" });
            }
        }
        Ok(())
    }

    /// How far a layer sees, if not everything.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        self.attention.window.as_ref().filter(|window| window.layers.has(layer)).map(|window| window.size)
    }

    /// The experts of a layer, if it has some.
    pub(crate) fn experts(&self, layer: usize) -> Option<&ExpertsConfig> {
        self.experts.as_ref().filter(|experts| experts.layers.has(layer))
    }

    /// How many parameters each token is multiplied with: all but what is looked
    /// up, and of experts those that it chooses.
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

    /// How many parameters it has.
    pub fn parameter_count(&self) -> u64 {
        let specs = crate::parameters(self, &crate::Stage::whole(self.layers));
        specs.iter().map(|spec| spec.shape.volume() as u64).sum()
    }
}

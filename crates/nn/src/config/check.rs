//! Checks of an architecture.

use weightloom_errors::Hint;

use super::{
    DecoderConfig, ExpertGroups, ExpertsConfig, Gating, LatentConfig, LayerChoice, PositionConfig,
    RopeConfig, RopeScaling, TemperatureConfig,
};

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
    #[error("`{key}` of {value} differs from `{of}` of {expected}")]
    Differs { key: &'static str, value: usize, of: &'static str, expected: usize },
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
pub(super) const MAX_LAYERS: usize = 1 << 12;

/// Limits that no real model reaches, so that files cannot ask for more than
/// any machine has, and so that products of sizes do not overflow.
const LIMITS: [(&str, usize); 15] = [
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
    ("experts.shared", 1 << 26),
    ("attention.latent.query_rank", 1 << 20),
    ("attention.latent.kv_rank", 1 << 20),
    ("attention.latent.rope_width", 1 << 16),
    ("attention.latent.value_width", 1 << 16),
];

/// Limit for parameters.
const MAX_PARAMETERS: u128 = 1 << 46;

impl DecoderConfig {
    /// Checks that the options are valid and compatible.
    pub fn check(&self) -> Result<(), ConfigError> {
        let attention = &self.attention;
        let experts = |size: fn(&ExpertsConfig) -> usize| self.experts.as_ref().map_or(1, size);
        let latent = |size: fn(&LatentConfig) -> usize| attention.latent.as_ref().map_or(1, size);
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
            ("experts.count", experts(|experts| experts.count)),
            ("experts.chosen", experts(|experts| experts.chosen)),
            ("experts.inner", experts(|experts| experts.inner)),
            ("experts.shared", experts(|experts| experts.shared.unwrap_or(1))),
            ("experts.groups.count", experts(|experts| experts.groups.map_or(1, |groups| groups.count))),
            ("experts.groups.chosen", experts(|experts| experts.groups.map_or(1, |groups| groups.chosen))),
            ("experts.groups.best", experts(|experts| experts.groups.map_or(1, |groups| groups.best))),
            ("attention.latent.query_rank", latent(|latent| latent.query_rank.unwrap_or(1))),
            ("attention.latent.kv_rank", latent(|latent| latent.kv_rank)),
            ("attention.latent.rope_width", latent(|latent| latent.rope_width)),
            ("attention.latent.value_width", latent(|latent| latent.value_width)),
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
        self.check_latent()?;
        if let Some(experts) = &self.experts {
            experts.check()?;
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

    /// Checks the options of multi-head latent attention.
    fn check_latent(&self) -> Result<(), ConfigError> {
        let attention = &self.attention;
        let Some(latent) = &attention.latent else { return Ok(()) };
        let (limit, of) = (attention.width, "attention.width");
        for (key, value) in [
            ("attention.latent.rope_width", latent.rope_width),
            ("attention.latent.value_width", latent.value_width),
        ] {
            if value > limit {
                return Err(ConfigError::Above { key, value, limit, of });
            }
        }
        if attention.kv_heads != attention.heads {
            let (key, value, limit) = ("attention.kv_heads", attention.kv_heads, attention.heads);
            return Err(ConfigError::Differs { key, value, of: "attention.heads", expected: limit });
        }
        let excluded = [
            ("attention.qk_norm", attention.qk_norm.is_some()),
            ("positions: learned", self.positions == PositionConfig::Learned),
        ];
        match excluded.into_iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err(ConfigError::Excludes { key: "attention.latent", other: key }),
            None => Ok(()),
        }
    }

    /// An upper bound of the number of parameters, without going through them.
    fn most_parameters(&self) -> u128 {
        let wide = |size: usize| size as u128;
        let (hidden, attention) = (wide(self.hidden), &self.attention);
        let heads = wide(attention.heads) + wide(attention.kv_heads);
        let latent = attention.latent.as_ref().map_or(0, |latent| {
            let ranks = wide(latent.query_rank.unwrap_or(0)) + wide(latent.kv_rank);
            (ranks + wide(latent.rope_width)) * (hidden + 2 * heads * wide(attention.width) + 1)
        });
        let attention = 2 * (heads * wide(attention.width) + 4) * (hidden + 1) + latent;
        let experts = self.experts.as_ref().map_or(0, |experts| {
            let inner = wide(experts.count) * (3 * wide(experts.inner) + 2);
            (inner + 3 * wide(experts.shared.unwrap_or(0))) * (hidden + 1)
        });
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
        if let Some(latent) = &self.attention.latent {
            numbers.push(("attention.latent.eps", latent.eps));
        }
        if let Some(TemperatureConfig { floor, scale }) = self.attention.temperature {
            numbers.extend([("attention.temperature.floor", floor), ("attention.temperature.scale", scale)]);
        }
        if let Some(scale) = self.experts.as_ref().and_then(|experts| experts.scale) {
            numbers.push(("experts.scale", scale));
        }
        if let PositionConfig::Rope(rope) = &self.positions {
            self.check_rope(rope, &mut numbers)?;
            if let Some(window) = &rope.window {
                self.check_rope(window, &mut numbers)?;
            }
        }
        match numbers.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            Some((key, value)) => Err(ConfigError::NotPositive { key, value: value.to_string() }),
            None => Ok(()),
        }
    }

    /// Checks rotary embeddings, and adds their numbers to those that must be
    /// positive.
    fn check_rope(
        &self,
        rope: &RopeConfig,
        numbers: &mut Vec<(&'static str, f64)>,
    ) -> Result<(), ConfigError> {
        numbers.push(("positions.rope.theta", rope.theta));
        let turned = self.rotated_width(rope);
        let key = "positions.rope.turned";
        let (limit, of) = match &self.attention.latent {
            Some(latent) => (latent.rope_width, "attention.latent.rope_width"),
            None => (self.attention.width, "attention.width"),
        };
        if turned > limit {
            return Err(ConfigError::Above { key, value: turned, limit, of });
        }
        if !turned.is_multiple_of(2) {
            return Err(ConfigError::Odd { key, value: turned });
        }
        match &rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => numbers.push(("positions.rope.scaling.factor", *factor)),
            RopeScaling::Llama3 { factor, low_frequency, high_frequency, .. } => numbers.extend([
                ("positions.rope.scaling.factor", *factor),
                ("positions.rope.scaling.low_frequency", *low_frequency),
                ("positions.rope.scaling.high_frequency", *high_frequency),
            ]),
            RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, .. } => {
                numbers.extend([
                    ("positions.rope.scaling.factor", *factor),
                    ("positions.rope.scaling.beta_fast", *beta_fast),
                    ("positions.rope.scaling.beta_slow", *beta_slow),
                    ("positions.rope.scaling.attention_factor", *attention_factor),
                ]);
            }
            RopeScaling::LongRope { short, attention_factor, .. } => {
                if short.len() != turned / 2 {
                    let (key, of) = ("positions.rope.scaling.short", "positions.rope.turned / 2");
                    return Err(ConfigError::Differs { key, value: short.len(), of, expected: turned / 2 });
                }
                numbers.push(("positions.rope.scaling.attention_factor", *attention_factor));
                numbers.extend(short.iter().map(|factor| ("positions.rope.scaling.short", *factor)));
            }
        }
        Ok(())
    }

    fn check_layers(&self) -> Result<(), ConfigError> {
        let rope_layers = match &self.positions {
            PositionConfig::Rope(rope) => Some(&rope.layers),
            PositionConfig::Learned => None,
        };
        let choices = [
            ("positions.rope.layers", rope_layers),
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
}

impl ExpertsConfig {
    /// Checks that experts and groups can be chosen.
    fn check(&self) -> Result<(), ConfigError> {
        let above = |key, value, limit, of| Err(ConfigError::Above { key, value, limit, of });
        if self.chosen > self.count {
            return above("experts.chosen", self.chosen, self.count, "experts.count");
        }
        let Some(ExpertGroups { count, chosen, best }) = self.groups else { return Ok(()) };
        if !self.count.is_multiple_of(count) {
            let (key, of) = ("experts.groups.count", "experts.count");
            return Err(ConfigError::Divides { key, value: count, of, whole: self.count });
        }
        let size = self.count / count;
        if chosen > count {
            return above("experts.groups.chosen", chosen, count, "experts.groups.count");
        }
        if best > size {
            return above("experts.groups.best", best, size, "experts.count / experts.groups.count");
        }
        if self.chosen > chosen * size {
            return above("experts.chosen", self.chosen, chosen * size, "experts of the chosen groups");
        }
        Ok(())
    }
}

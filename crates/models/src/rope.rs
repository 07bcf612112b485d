//! Rotary position embeddings in Hugging Face configurations: `rope_parameters`,
//! or `rope_theta` and `rope_scaling`.

use serde_json::{Map, Value};
use weightloom_hub::{ConfigError, Fields, family_config};
use weightloom_nn::{RopeConfig, RopeScaling};

const KINDS: &[&str] = &["default", "linear", "llama3", "yarn", "longrope"];

family_config! {
    /// Keys of rotary position embeddings.
    pub struct RopeKeys {
        /// Base of the wavelengths.
        rope_theta: Option<f64> = None,
        /// Scaling for longer contexts.
        rope_scaling: Option<Map<String, Value>> = None,
        /// Both of the above, in newer configurations.
        rope_parameters: Option<Map<String, Value>> = None,
    }
}

impl RopeKeys {
    /// The decoder's configuration for a model with `positions` positions and
    /// `turned` rotated elements per head.
    pub(crate) fn rope(&self, positions: usize, turned: Option<usize>) -> Result<RopeConfig, ConfigError> {
        let (key, map) = match (&self.rope_parameters, &self.rope_scaling) {
            (Some(map), _) => ("rope_parameters", Some(map)),
            (None, map) => ("rope_scaling", map.as_ref()),
        };
        rope_of_map(key, map, self.rope_theta.unwrap_or(10_000.0), positions)
            .map(|rope| RopeConfig { turned, ..rope })
    }

    /// A number that newer configurations have inside of `rope_parameters`.
    pub(crate) fn parameter(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let map = self.rope_parameters.as_ref();
        map.map_or(Ok(None), |map| Fields::inside(map, "rope_parameters").get(key))
    }
}

/// Rotary embeddings by the keys of a map, which may name another base.
pub(crate) fn rope_of_map(
    key: &str,
    map: Option<&Map<String, Value>>,
    theta: f64,
    positions: usize,
) -> Result<RopeConfig, ConfigError> {
    let Some(map) = map else { return Ok(RopeConfig { theta, ..RopeConfig::default() }) };
    let fields = Fields::inside(map, key);
    let theta = fields.get::<Option<f64>>("rope_theta")?.unwrap_or(theta);
    Ok(RopeConfig { theta, scaling: scaling(fields, positions)?, ..RopeConfig::default() })
}

fn scaling(fields: Fields<'_>, positions: usize) -> Result<RopeScaling, ConfigError> {
    let kind_key = if fields.get::<Option<String>>("rope_type")?.is_some() { "rope_type" } else { "type" };
    let kind = fields.get_or(kind_key, "default".to_owned())?;
    match kind.as_str() {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: fields.get("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: fields.get("factor")?,
            low_frequency: fields.get("low_freq_factor")?,
            high_frequency: fields.get("high_freq_factor")?,
            original_positions: fields.get("original_max_position_embeddings")?,
        }),
        "yarn" => {
            let factor: f64 = fields.get("factor")?;
            // YaRN's default attention factor.
            let default_factor = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
            let scales = (fields.get::<Option<f64>>("mscale")?, fields.get::<Option<f64>>("mscale_all_dim")?);
            let attention_factor = match (fields.get::<Option<f64>>("attention_factor")?, scales) {
                (Some(factor), _) => factor,
                (None, (Some(scale), Some(all))) if scale != 0.0 && all != 0.0 => {
                    default_factor(scale) / default_factor(all)
                }
                (None, _) => default_factor(1.0),
            };
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: fields.get_or("beta_fast", 32.0)?,
                beta_slow: fields.get_or("beta_slow", 1.0)?,
                original_positions: fields.get_or("original_max_position_embeddings", positions)?,
                attention_factor,
                rounded: fields.get_or("truncate", true)?,
            })
        }
        "longrope" | "su" => {
            let original: usize = fields.get("original_max_position_embeddings")?;
            let ratio = positions as f64 / original as f64;
            let factor = fields.get::<Option<f64>>("factor")?.unwrap_or(ratio);
            let default_factor =
                if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
            Ok(RopeScaling::LongRope {
                short: fields.get("short_factor")?,
                original_positions: original,
                attention_factor: fields.get_or("attention_factor", default_factor)?,
            })
        }
        _ => Err(fields.not_supported(kind_key, KINDS)),
    }
}

//! Views as models with adapters.

use std::sync::Arc;

use weightloom_nn::{Adapter, Model, NnError};

use crate::backend::adapter_noise::AdapterNoise;
use crate::view::View;

/// The model that a variant runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Base,
    Tuned,
}

/// A model with an optional adapter of some strength.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    pub(super) side: Side,
    adapter: Option<Arc<Adapter>>,
    strength: f64,
}

impl Variant {
    /// A model without an adapter.
    pub(super) fn plain(side: Side) -> Self {
        Self { side, adapter: None, strength: 0.0 }
    }

    /// The base with an adapter; strength 0 is the base itself.
    pub(super) fn adapted(adapter: Arc<Adapter>, strength: f64) -> Self {
        if strength == 0.0 || adapter.is_empty() {
            return Self::plain(Side::Base);
        }
        Self { side: Side::Base, adapter: Some(adapter), strength }
    }

    pub(super) fn adapter(&self) -> Option<(&Adapter, f64)> {
        self.adapter.as_ref().map(|adapter| (&**adapter, self.strength))
    }

    /// Whether two variants have the same weights.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let adapters = match (&self.adapter, &other.adapter) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) && self.strength.to_bits() == other.strength.to_bits(),
            _ => false,
        };
        self.side == other.side && adapters
    }
}

/// The variant of a view, derived from an adapter.
pub(super) fn variant(view: &View, base: &dyn Model, adapter: &Arc<Adapter>) -> Result<Variant, NnError> {
    Ok(match view {
        View::Base => Variant::plain(Side::Base),
        View::Tuned => Variant::adapted(Arc::clone(adapter), 1.0),
        View::Scaled(strength) => Variant::adapted(Arc::clone(adapter), strength.0),
        View::Noise { seed, init_scale, rank_scale } => {
            noise(base, adapter, AdapterNoise::normal(*seed, init_scale.0, rank_scale.0))?
        }
        View::Matched { seed } => noise(base, adapter, AdapterNoise::matched(*seed))?,
        View::Without { modules } => {
            let is_removed = |name: &str| modules.iter().any(|prefix| has_module_prefix(name, prefix));
            Variant::adapted(Arc::new(adapter.without(is_removed)), 1.0)
        }
    })
}

/// Whether a module name starts with a prefix of whole components: `layers.1`
/// is a prefix of `layers.1.mlp` and not of `layers.10`.
fn has_module_prefix(name: &str, prefix: &str) -> bool {
    let rest = name.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || prefix.ends_with('.') || rest.starts_with('.'))
}

/// The base with noise in place of the adapter.
fn noise(base: &dyn Model, adapter: &Adapter, mut noise: AdapterNoise) -> Result<Variant, NnError> {
    let made = adapter.transform(base, |tensor| noise.replace(&tensor))?;
    Ok(Variant::adapted(Arc::new(made), 1.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::path::Path;

    use serde_json::{Map, Value};
    use weightloom_checkpoint::Source;
    use weightloom_dtensor::DTensor;
    use weightloom_hub::{Families, ModelLoadOptions, load_adapter, load_model};

    use super::*;

    fn json(file: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    }

    /// The tiny model, its adapter, and the reference values of its views.
    fn tiny() -> (Box<dyn Model>, Adapter, Value) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny");
        let mut families = Families::new();
        weightloom_models::register(&mut families).unwrap();
        let config: Map<String, Value> =
            serde_json::from_value(json(&folder.join("model/config.json"))).unwrap();
        let family = families.of_config(&config).unwrap().clone();
        let source = Source::open(folder.join("model/model.safetensors")).unwrap();
        let keys = family.keys(&config, &source.index).unwrap();
        let made = family.definition(&config).unwrap();
        let options = ModelLoadOptions::default();
        let loaded = load_model(&source, &*made, &keys, &family.parallel(), &options, &()).unwrap();
        let source = Source::open(folder.join("adapter")).unwrap();
        let adapter = load_adapter(&source, &*loaded.model, &*family, &config, &()).unwrap();
        (loaded.model, adapter, json(&folder.join("views.json")))
    }

    fn replaced(model: &dyn Model, adapter: &Adapter, mut noise: AdapterNoise) -> Adapter {
        adapter.transform(model, |tensor| noise.replace(&tensor)).unwrap()
    }

    fn values(x: &DTensor) -> Vec<f32> {
        x.full_tensor().unwrap().to_vec().unwrap()
    }

    #[test]
    fn random_adapters_match_dlm_sway() {
        let (model, adapter, views) = tiny();
        for seed in [1000, 1001] {
            let made = replaced(&*model, &adapter, AdapterNoise::normal(seed, 0.02, 1.0));
            let expected = views[format!("null_{seed}")]["noise_head"].as_object().unwrap();
            assert_eq!(expected.len(), made.matrices().len());
            for (name, matrix) in made.matrices() {
                let name = format!("base_model.model.{}", name.replace(".weight", ".default.weight"));
                for (found, expected) in values(matrix).iter().zip(expected[&name].as_array().unwrap()) {
                    let apart = f64::from(*found) - expected.as_f64().unwrap();
                    assert!(apart.abs() <= 2.4e-7, "{name} of {seed} is {apart} apart");
                }
            }
        }
    }

    #[test]
    fn matched_adapters_keep_norms_and_change_directions() {
        let (model, adapter, _) = tiny();
        let changes = |adapter: &Adapter| -> Vec<Vec<f32>> {
            let matrices = adapter.matrices();
            matrices.chunks_exact(2).map(|pair| values(&pair[1].1.matmul(pair[0].1).unwrap())).collect()
        };
        let norm = |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        for seed in 0..5 {
            let made = changes(&replaced(&*model, &adapter, AdapterNoise::matched(seed)));
            for (made, own) in made.iter().zip(changes(&adapter)) {
                assert!((norm(made) / norm(&own) - 1.0).abs() < 1e-6);
                let product: f64 = made.iter().zip(&own).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                // Random directions in thousands of dimensions are nearly orthogonal.
                assert!((product / norm(made) / norm(&own)).abs() < 0.5);
                // The values are the same up to order and sign.
                let sorted = |x: &[f32]| {
                    let mut all: Vec<f32> = x.iter().map(|x| x.abs()).collect();
                    all.sort_by(f32::total_cmp);
                    all
                };
                for (a, b) in sorted(made).iter().zip(sorted(&own)) {
                    assert!((a - b).abs() <= 1e-6 * b.abs().max(1e-3));
                }
            }
        }
    }

    #[test]
    fn module_prefixes_end_at_dots() {
        assert!(has_module_prefix("model.layers.1.mlp", "model.layers.1"));
        assert!(has_module_prefix("model.layers.1.mlp", "model.layers.1."));
        assert!(has_module_prefix("lm_head", "lm_head"));
        assert!(!has_module_prefix("lm_head", "lm_head."));
        assert!(!has_module_prefix("model.layers.10.mlp", "model.layers.1"));
    }
}

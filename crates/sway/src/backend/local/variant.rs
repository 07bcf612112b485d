//! What a view is on our own engine: a decoder, and what changes it.

use std::sync::Arc;

use weightloom_nn::{Adapter, Decoder, NnError, Part, Piece};
use weightloom_tensor::Stream;

use super::noise::Noise;
use crate::view::View;

/// Which of two decoders is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Base,
    Tuned,
}

/// A decoder and its change.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    pub(super) side: Side,
    adapter: Option<Arc<Adapter>>,
    strength: f64,
}

impl Variant {
    /// A decoder as it is.
    pub(super) fn plain(side: Side) -> Self {
        Self { side, adapter: None, strength: 0.0 }
    }

    /// The base with some of a change. None of it is the base itself.
    pub(super) fn changed(adapter: Arc<Adapter>, strength: f64) -> Self {
        if strength == 0.0 || adapter.is_empty() {
            return Self::plain(Side::Base);
        }
        Self { side: Side::Base, adapter: Some(adapter), strength }
    }

    pub(super) fn change(&self) -> Option<(&Adapter, f64)> {
        self.adapter.as_ref().map(|adapter| (&**adapter, self.strength))
    }

    /// Whether two are the same, so that one answers for both.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let adapters = match (&self.adapter, &other.adapter) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) && self.strength.to_bits() == other.strength.to_bits(),
            _ => false,
        };
        self.side == other.side && adapters
    }
}

/// The change that a view has, made of an adapter.
pub(super) fn variant(view: &View, base: &Decoder, adapter: &Arc<Adapter>) -> Result<Variant, NnError> {
    Ok(match view {
        View::Base => Variant::plain(Side::Base),
        View::Tuned => Variant::changed(Arc::clone(adapter), 1.0),
        View::Scaled(strength) => Variant::changed(Arc::clone(adapter), strength.0),
        View::Noise { seed, init_scale, rank_scale } => {
            let deviation = init_scale.0 * rank_scale.0.sqrt();
            Variant::changed(Arc::new(noise(base, adapter, *seed, deviation)?), 1.0)
        }
        View::Matched { seed } => Variant::changed(Arc::new(matched(base, adapter, *seed)?), 1.0),
        View::Without { modules } => {
            let is_left_out = |name: &str| modules.iter().any(|start| begins_with(name, start));
            Variant::changed(Arc::new(adapter.without(is_left_out)), 1.0)
        }
    })
}

/// Whether a dotted name begins with another: `layers.1` begins `layers.1.mlp`,
/// not `layers.10`.
fn begins_with(name: &str, start: &str) -> bool {
    let rest = name.strip_prefix(start);
    rest.is_some_and(|rest| rest.is_empty() || start.ends_with('.') || rest.starts_with('.'))
}

/// The adapter with noise in both matrices of each projection, drawn from one
/// sequence. All else stays, as in dlm-sway.
pub(super) fn noise(
    base: &Decoder,
    adapter: &Adapter,
    seed: u64,
    deviation: f64,
) -> Result<Adapter, NnError> {
    let mut noise = Noise::new(seed);
    adapter.remade(base, |piece| {
        matches!(piece.part, Part::A | Part::B).then(|| {
            let normals = noise.normals(piece.values.len());
            normals.into_iter().map(|x| (f64::from(x) * deviation) as f32).collect()
        })
    })
}

/// The adapter turned another way: what it reads and what it writes are
/// permuted, and signs change, by chance. Ranks, norms and singular values of
/// each module's change stay exactly as they are.
pub(super) fn matched(base: &Decoder, adapter: &Adapter, seed: u64) -> Result<Adapter, NnError> {
    let mut pieces = 0;
    adapter.remade(base, |piece| {
        pieces += 1;
        let stream = |side: u64| Stream { seed, number: 2 * pieces + side };
        let (rows, columns) = match piece.shape[..] {
            [] => (1, 1),
            [length] => (length, 1),
            [rows, ..] => (rows, piece.values.len() / rows.max(1)),
        };
        // A's rows and B's columns are those of the rank, and stay together.
        Some(match piece.part {
            Part::A => turned(&piece, [rows, columns], None, Some(stream(0))),
            Part::B | Part::TableA | Part::TableB | Part::Bias => {
                turned(&piece, [rows, columns], Some(stream(0)), None)
            }
            Part::Replacement => turned(&piece, [rows, columns], Some(stream(0)), Some(stream(1))),
        })
    })
}

/// Rows and columns in another order, with other signs.
fn turned(
    piece: &Piece<'_>,
    [rows, columns]: [usize; 2],
    of_rows: Option<Stream>,
    of_columns: Option<Stream>,
) -> Vec<f32> {
    let (row_turns, column_turns) = (turns(rows, of_rows), turns(columns, of_columns));
    let mut values = Vec::with_capacity(piece.values.len());
    for &(row, row_sign) in &row_turns {
        let line = &piece.values[row * columns..(row + 1) * columns];
        values.extend(column_turns.iter().map(|&(column, sign)| line[column] * sign * row_sign));
    }
    values
}

/// For each place, from where it comes and with which sign.
fn turns(count: usize, stream: Option<Stream>) -> Vec<(usize, f32)> {
    let mut turns: Vec<(usize, f32)> = (0..count).map(|place| (place, 1.0)).collect();
    let Some(stream) = stream else { return turns };
    for place in (1..count).rev() {
        let drawn = f64::from(stream.uniform(2 * place as u64)) * (place + 1) as f64;
        turns.swap(place, (drawn as usize).min(place));
    }
    for (place, turn) in turns.iter_mut().enumerate() {
        if stream.uniform(2 * place as u64 + 1) < 0.5 {
            turn.1 = -1.0;
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::path::Path;

    use serde_json::{Map, Value};
    use weightloom_checkpoint::Source;
    use weightloom_dtensor::DTensor;
    use weightloom_hub::{Families, LoadOptions, load_adapter, load_decoder};

    use super::*;

    fn json(file: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    }

    /// The tiny model and its adapter.
    fn tiny() -> (Decoder, Adapter, Value) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny");
        let mut families = Families::new();
        weightloom_models::register(&mut families).unwrap();
        let config: Map<String, Value> =
            serde_json::from_value(json(&folder.join("model/config.json"))).unwrap();
        let family = families.of_config(&config).unwrap().clone();
        let source = Source::open(folder.join("model/model.safetensors")).unwrap();
        let keys = family.keys(&config, &source.index).unwrap();
        let made = family.decoder(&config).unwrap();
        let options = LoadOptions::default();
        let loaded = load_decoder(&source, &made, &keys, &family.parallel(), &options, &()).unwrap();
        let source = Source::open(folder.join("adapter")).unwrap();
        let adapter = load_adapter(&source, &loaded.decoder, &*family, &config, &()).unwrap();
        (loaded.decoder, adapter, json(&folder.join("views.json")))
    }

    fn values(x: &DTensor) -> Vec<f32> {
        x.full_tensor().unwrap().to_vec().unwrap()
    }

    #[test]
    fn noise_is_that_of_the_reference() {
        let (decoder, adapter, views) = tiny();
        for seed in [1000, 1001] {
            let made = noise(&decoder, &adapter, seed, 0.02).unwrap();
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
    fn matched_changes_have_the_norms_of_the_adapter_and_other_directions() {
        let (decoder, adapter, _) = tiny();
        let changes = |adapter: &Adapter| -> Vec<Vec<f32>> {
            let matrices = adapter.matrices();
            matrices.chunks_exact(2).map(|pair| values(&pair[1].1.matmul(pair[0].1).unwrap())).collect()
        };
        let norm = |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        for seed in 0..5 {
            let made = changes(&matched(&decoder, &adapter, seed).unwrap());
            for (made, own) in made.iter().zip(changes(&adapter)) {
                assert!((norm(made) / norm(&own) - 1.0).abs() < 1e-6);
                let product: f64 = made.iter().zip(&own).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                // Random directions of thousands of dims are nearly at right angles.
                assert!((product / norm(made) / norm(&own)).abs() < 0.5);
                // The numbers are the same, in other places and with other signs.
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
    fn names_begin_at_dots() {
        assert!(begins_with("model.layers.1.mlp", "model.layers.1"));
        assert!(begins_with("model.layers.1.mlp", "model.layers.1."));
        assert!(begins_with("lm_head", "lm_head"));
        assert!(!begins_with("lm_head", "lm_head."));
        assert!(!begins_with("model.layers.10.mlp", "model.layers.1"));
    }

    #[test]
    fn turns_are_permutations_with_both_signs() {
        for count in [1, 2, 7, 100] {
            let turns = turns(count, Some(Stream { seed: 5, number: 1 }));
            let mut places: Vec<usize> = turns.iter().map(|turn| turn.0).collect();
            places.sort_unstable();
            assert_eq!(places, (0..count).collect::<Vec<_>>());
        }
        let signs = turns(100, Some(Stream { seed: 5, number: 1 }));
        assert!(signs.iter().any(|turn| turn.1 < 0.0) && signs.iter().any(|turn| turn.1 > 0.0));
        assert!(signs.iter().enumerate().any(|(place, turn)| turn.0 != place));
    }
}

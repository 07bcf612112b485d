//! How gradients are spread over the layers of a model.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use weightloom_checkpoint::plan::{LoadState, MissingKeys, UnexpectedKeys};
use weightloom_checkpoint::{LoadOptions, Sharding, Source, TensorSpec, load};
use weightloom_gang::{GangOptions, solo};
use weightloom_layout::{DType, Region};

/// The name of Adam's second moments in a checkpoint.
const SECOND_MOMENT: &str = "optimizer.exp_avg_sq.";

/// The most bytes that are read: a note is not worth more.
const MAX_BYTES: u64 = 256 << 20;

/// The fewest steps after which the optimizer's state says something.
const LEAST_STEPS: u64 = 50;

/// How many times the median a layer's moment is large.
const LARGE: f64 = 4.0;

/// The mean second moment of the gradients of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerMoment {
    /// The layer.
    pub layer: usize,
    /// The mean of the squared gradients, as Adam averages them.
    pub mean: f64,
    /// Its share of the sum over all layers.
    pub share: f64,
}

/// The second moments of the gradients, by layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GradientSpread {
    /// Steps of training.
    pub steps: u64,
    /// The layers, in order.
    pub layers: Vec<LayerMoment>,
}

/// The part of the trainer's progress that is read.
#[derive(Deserialize)]
struct Progress {
    step: u64,
}

impl GradientSpread {
    /// Reads a checkpoint. `None` if it has no second moments that can be read.
    pub(super) fn read(checkpoint: &Path) -> Option<Self> {
        let source = Source::open(checkpoint).ok()?;
        let progress: Progress = serde_json::from_slice(&source.read_bytes("trainer").ok()??).ok()?;
        let entries: Vec<(&String, usize)> = source
            .index
            .tensors()
            .keys()
            .filter_map(|name| Some((name, layer_of(name.strip_prefix(SECOND_MOMENT)?)?)))
            .collect();
        let tensors = || entries.iter().filter_map(|(name, _)| source.index.tensors().get(*name));
        let elements: u64 = tensors().map(|entry| entry.shape.volume() as u64).sum();
        if entries.is_empty() || elements.checked_mul(4)? > MAX_BYTES {
            return None;
        }
        let mut buffers: Vec<Vec<u8>> = tensors().map(|entry| vec![0; 4 * entry.shape.volume()]).collect();
        let mut state = LoadState::new();
        for ((name, _), (entry, buffer)) in entries.iter().zip(tensors().zip(&mut buffers)) {
            let sharding = Sharding::Region(Region::whole(&entry.shape));
            let spec = TensorSpec { dtype: DType::F32, shape: entry.shape.clone(), sharding };
            state.tensor((*name).clone(), spec, buffer);
        }
        let options = LoadOptions {
            missing: MissingKeys::Error,
            unexpected: UnexpectedKeys::Ignore,
            ..LoadOptions::default()
        };
        load(&source, state, &*solo(GangOptions::default()), &options, &()).ok()?;
        let mut sums: BTreeMap<usize, (f64, usize)> = BTreeMap::new();
        for ((_, layer), buffer) in entries.iter().zip(&buffers) {
            let (sum, count) = sums.entry(*layer).or_default();
            for bytes in buffer.chunks_exact(4) {
                *sum += f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
                *count += 1;
            }
        }
        let means = sums.into_iter().map(|(layer, (sum, count))| (layer, sum / count.max(1) as f64));
        Some(Self::of(progress.step, means.collect()))
    }

    /// The spread of the mean second moments of layers.
    pub fn of(steps: u64, means: Vec<(usize, f64)>) -> Self {
        let total: f64 = means.iter().map(|(_, mean)| mean).sum();
        let share = |mean: f64| if total > 0.0 { mean / total } else { 0.0 };
        let layers = means.into_iter().map(|(layer, mean)| LayerMoment { layer, mean, share: share(mean) });
        Self { steps, layers: layers.collect() }
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.steps < LEAST_STEPS {
            notes.push(format!("only {} steps: the optimizer's averages have hardly settled", self.steps));
        }
        if self.layers.iter().any(|layer| !layer.mean.is_finite()) {
            notes.push("the optimizer's state is not finite".to_owned());
            return notes;
        }
        let mut means: Vec<f64> = self.layers.iter().map(|layer| layer.mean).collect();
        means.sort_by(f64::total_cmp);
        let Some(median) = means.get(means.len() / 2).copied() else { return notes };
        if means.last() == Some(&0.0) {
            notes.push("no gradient reached any layer".to_owned());
            return notes;
        }
        let large: Vec<&LayerMoment> =
            self.layers.iter().filter(|layer| layer.mean > LARGE * median).collect();
        if !large.is_empty() {
            let named: Vec<String> = large
                .iter()
                .map(|layer| format!("layer {} with {:.0} %", layer.layer, 100.0 * layer.share))
                .collect();
            notes.push(format!("squared gradients concentrate in {}", named.join(", ")));
        }
        let idle: Vec<String> = self
            .layers
            .iter()
            .filter(|layer| layer.mean == 0.0)
            .map(|layer| format!("layer {}", layer.layer))
            .collect();
        if !idle.is_empty() {
            notes.push(format!("no gradient reached {}", idle.join(", ")));
        }
        notes
    }
}

/// The layer in the name of a parameter: `model.layers.3.mlp.up_proj.weight`.
fn layer_of(name: &str) -> Option<usize> {
    let mut parts = name.split('.');
    parts.find(|part| *part == "layers")?;
    parts.next()?.parse().ok()
}

//! Rotary position embeddings.

use weightloom_dtensor::DTensor;
use weightloom_layout::DType;
use weightloom_tensor::{Device, RopeStyle, Tensor};

use crate::config::{RopeConfig, RopeScaling};
use crate::error::NnError;

/// Rotation frequencies of the pairs of a head.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    frequencies: Vec<f32>,
    /// Multiplies cosines and sines.
    factor: f64,
}

impl Rope {
    pub(crate) fn new(config: &RopeConfig, width: usize) -> Self {
        let width = config.turned.unwrap_or(width);
        let pairs = width / 2;
        // In f32, as in the implementations that models are trained with.
        let plain: Vec<f32> = (0..pairs)
            .map(|pair| 1.0 / (config.theta as f32).powf((2 * pair) as f32 / width as f32))
            .collect();
        let mut factor = 1.0;
        let frequencies = match config.scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain.iter().map(|f| f / factor as f32).collect(),
            RopeScaling::Llama3 { factor, low_frequency, high_frequency, original_positions } => {
                let long = original_positions as f64 / low_frequency;
                let short = original_positions as f64 / high_frequency;
                let scaled = |&frequency: &f32| {
                    let frequency = f64::from(frequency);
                    let wave = std::f64::consts::TAU / frequency;
                    let stretched = frequency / factor;
                    (if wave < short {
                        frequency
                    } else if wave > long {
                        stretched
                    } else {
                        let share = (original_positions as f64 / wave - low_frequency)
                            / (high_frequency - low_frequency);
                        (1.0 - share) * stretched + share * frequency
                    }) as f32
                };
                plain.iter().map(scaled).collect()
            }
            RopeScaling::Yarn {
                factor: stretch,
                beta_fast,
                beta_slow,
                original_positions,
                attention_factor,
                rounded,
            } => {
                factor = attention_factor;
                // The pair that makes this many turns within the original length.
                let pair_of = |turns: f64| {
                    let waves = original_positions as f64 / (turns * std::f64::consts::TAU);
                    width as f64 * waves.ln() / (2.0 * config.theta.ln())
                };
                let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
                if rounded {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(width as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let scaled = |(pair, &frequency): (usize, &f32)| {
                    let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    let frequency = f64::from(frequency);
                    (frequency / stretch * ramp + frequency * (1.0 - ramp)) as f32
                };
                plain.iter().enumerate().map(scaled).collect()
            }
        };
        Self { frequencies, factor }
    }

    /// Cosines and sines of positions, as `[positions, pairs]`.
    pub(crate) fn tables(
        &self,
        positions: impl ExactSizeIterator<Item = usize>,
        device: Device,
    ) -> Result<[Tensor; 2], NnError> {
        let dims = [positions.len(), self.frequencies.len()];
        if device == Device::Meta {
            let empty = || Tensor::zeros(DType::F32, &dims, Device::Meta);
            return Ok([empty()?, empty()?]);
        }
        let count = dims[0] * dims[1];
        let (mut cos, mut sin) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for position in positions {
            for &frequency in &self.frequencies {
                let angle = f64::from(position as f32 * frequency);
                cos.push((angle.cos() * self.factor) as f32);
                sin.push((angle.sin() * self.factor) as f32);
            }
        }
        Ok([Tensor::from_slice(&cos, &dims)?, Tensor::from_slice(&sin, &dims)?])
    }
}

/// Rotates the first `2 · pairs` elements of each query or key.
pub(crate) fn rotate(x: &DTensor, cos: &DTensor, sin: &DTensor) -> Result<DTensor, NnError> {
    let last = x.shape().ndim() - 1;
    let (width, rotated) = (x.shape()[last], 2 * cos.shape()[cos.shape().ndim() - 1]);
    if rotated == width {
        return Ok(x.rope(cos, sin, RopeStyle::Half)?);
    }
    let first = x.narrow(last, 0, rotated)?.rope(cos, sin, RopeStyle::Half)?;
    Ok(DTensor::cat(&[&first, &x.narrow(last, rotated, width - rotated)?], last)?)
}

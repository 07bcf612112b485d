//! Rotary position embeddings.

use weightloom_dtensor::DTensor;
use weightloom_layout::DType;
use weightloom_tensor::{Device, RopeStyle, Tensor};

use crate::config::{DecoderConfig, RopeConfig, RopePairs, RopeScaling, TemperatureConfig};
use crate::error::NnError;

/// What positions do to queries and keys.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    full: Frequencies,
    /// In layers with an attention window, if they differ.
    window: Option<Frequencies>,
    temperature: Option<TemperatureConfig>,
}

/// Rotation frequencies of the pairs of a head.
#[derive(Clone, Debug)]
struct Frequencies {
    frequencies: Vec<f32>,
    /// Multiplies cosines and sines.
    factor: f64,
}

/// A table of each kind, with a row per position.
#[derive(Clone, Debug)]
pub(crate) struct PositionTables<T> {
    /// Cosines and sines.
    pub(crate) angles: [T; 2],
    /// The same of layers with an attention window, if they differ.
    pub(crate) window_angles: Option<[T; 2]>,
    /// Factors of queries in layers that do not rotate.
    pub(crate) temperature: Option<T>,
}

impl<T> PositionTables<T> {
    pub(crate) fn try_map<U>(
        self,
        mut map: impl FnMut(T) -> Result<U, NnError>,
    ) -> Result<PositionTables<U>, NnError> {
        let mut both = |[cos, sin]: [T; 2]| Ok::<_, NnError>([map(cos)?, map(sin)?]);
        Ok(PositionTables {
            angles: both(self.angles)?,
            window_angles: self.window_angles.map(&mut both).transpose()?,
            temperature: self.temperature.map(&mut map).transpose()?,
        })
    }
}

impl Rope {
    pub(crate) fn new(config: &DecoderConfig, rope: &RopeConfig) -> Self {
        let frequencies = |rope: &RopeConfig| Frequencies::new(rope, config.rotated_width(rope));
        Self {
            full: frequencies(rope),
            window: rope.window.as_deref().map(frequencies),
            temperature: config.attention.temperature,
        }
    }

    /// The tables of positions, `[positions, …]`.
    pub(crate) fn tables(
        &self,
        positions: impl ExactSizeIterator<Item = usize> + Clone,
        device: Device,
    ) -> Result<PositionTables<Tensor>, NnError> {
        let window = self.window.as_ref();
        Ok(PositionTables {
            angles: self.full.tables(positions.clone(), device)?,
            window_angles: window.map(|window| window.tables(positions.clone(), device)).transpose()?,
            temperature: self.temperature.map(|own| temperatures(own, positions, device)).transpose()?,
        })
    }
}

/// Factors of queries, `[positions, 1]`.
fn temperatures(
    config: TemperatureConfig,
    positions: impl ExactSizeIterator<Item = usize>,
    device: Device,
) -> Result<Tensor, NnError> {
    let dims = [positions.len(), 1];
    if device == Device::Meta {
        return Ok(Tensor::zeros(DType::F32, &dims, Device::Meta)?);
    }
    let factor = |position: usize| {
        let steps = ((position as f64 + 1.0) / config.floor).floor();
        (steps.ln_1p() * config.scale + 1.0) as f32
    };
    Ok(Tensor::from_slice(&positions.map(factor).collect::<Vec<_>>(), &dims)?.to(device)?)
}

impl Frequencies {
    fn new(config: &RopeConfig, width: usize) -> Self {
        let pairs = width / 2;
        // In f32, as in the implementations that models are trained with.
        let plain: Vec<f32> = (0..pairs)
            .map(|pair| 1.0 / (config.theta as f32).powf((2 * pair) as f32 / width as f32))
            .collect();
        let mut factor = 1.0;
        let frequencies = match config.scaling {
            RopeScaling::None => plain,
            RopeScaling::LongRope { ref short, attention_factor, .. } => {
                factor = attention_factor;
                plain.iter().zip(short).map(|(frequency, short)| frequency / *short as f32).collect()
            }
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
    fn tables(
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
        Ok([Tensor::from_slice(&cos, &dims)?.to(device)?, Tensor::from_slice(&sin, &dims)?.to(device)?])
    }
}

/// Rotates the first `2 · pairs` elements of each query or key.
pub(crate) fn rotate(x: &DTensor, [cos, sin]: &[DTensor; 2], pairs: RopePairs) -> Result<DTensor, NnError> {
    let style = match pairs {
        RopePairs::Halves => RopeStyle::Half,
        RopePairs::Interleaved => RopeStyle::Interleaved,
    };
    let last = x.shape().ndim() - 1;
    let (width, rotated) = (x.shape()[last], 2 * cos.shape()[cos.shape().ndim() - 1]);
    if rotated == width {
        return Ok(x.rope(cos, sin, style)?);
    }
    let first = x.narrow(last, 0, rotated)?.rope(cos, sin, style)?;
    Ok(DTensor::cat(&[&first, &x.narrow(last, rotated, width - rotated)?], last)?)
}

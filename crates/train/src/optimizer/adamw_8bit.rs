//! AdamW whose states have eight bits for each element.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Device, Tensor, TensorError, threads};

use super::options::{Range, betas, number, problems};
use super::quantized::{BLOCK, QuantMap};
use super::{
    AdamW, Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, StateForm, StateSpec, StateStart,
    StepInfo, exactly,
};
use crate::extensions::OptionProblem;

/// AdamW with states quantized by blocks of 256 elements, as in bitsandbytes. Small
/// parameters, and those whose rows are not whole blocks, have states in `f32`.
#[derive(Clone, Debug)]
pub struct AdamW8bit {
    adamw: AdamW,
    /// Elements from which states are quantized.
    min_size: usize,
    mean_map: QuantMap,
    square_map: QuantMap,
}

impl AdamW8bit {
    /// AdamW whose states have eight bits from `min_size` elements on.
    pub fn new(adamw: AdamW, min_size: usize) -> Self {
        Self { adamw, min_size, mean_map: QuantMap::signed(), square_map: QuantMap::unsigned() }
    }

    /// Blocks are parts of rows, so that ranks can share rows, and rows of several blocks.
    fn is_quantized(&self, shape: &Shape) -> bool {
        let row = shape.last().copied().unwrap_or(0);
        shape.volume() >= self.min_size.max(1) && row.is_multiple_of(BLOCK)
    }

    /// The same step of AdamW for each element, between reading states and writing them.
    fn update_blocks(&self, constants: &Constants, blocks: Blocks<'_>) {
        let Blocks { weights, gradient, mean, square, mean_scale, square_scale } = blocks;
        let parts = weights
            .chunks_mut(BLOCK)
            .zip(gradient.chunks(BLOCK))
            .zip(mean.chunks_mut(BLOCK).zip(square.chunks_mut(BLOCK)))
            .zip(mean_scale.iter_mut().zip(square_scale));
        let (mut means, mut squares) = ([0.0_f32; BLOCK], [0.0_f32; BLOCK]);
        for (((weights, gradient), (mean, square)), (mean_scale, square_scale)) in parts {
            for (at, (weight, gradient)) in weights.iter_mut().zip(gradient).enumerate() {
                let gradient = gradient * constants.scale;
                let [first, second] = constants.betas;
                means[at] = self.mean_map.value(mean[at]) * *mean_scale * first + gradient * (1.0 - first);
                squares[at] = self.square_map.value(square[at]) * *square_scale * second
                    + gradient * gradient * (1.0 - second);
                let root = squares[at].sqrt() / constants.root + constants.eps;
                *weight = *weight * constants.decay - means[at] / root * constants.size;
            }
            *mean_scale = self.mean_map.quantize(&means[..mean.len()], mean);
            *square_scale = self.square_map.quantize(&squares[..square.len()], square);
        }
    }
}

/// The constants of one step.
struct Constants {
    betas: [f32; 2],
    eps: f32,
    /// Factor of the parameter by weight decay.
    decay: f32,
    /// Learning rate with the bias correction of the mean.
    size: f32,
    /// Bias correction of the root of the mean square.
    root: f32,
    scale: f32,
}

/// Some whole blocks of a parameter and its states.
struct Blocks<'a> {
    weights: &'a mut [f32],
    gradient: &'a [f32],
    mean: &'a mut [u8],
    square: &'a mut [u8],
    mean_scale: &'a mut [f32],
    square_scale: &'a mut [f32],
}

/// Blocks that one thread should have at least.
const LEAST_BLOCKS: usize = 256;

impl Optimizer for AdamW8bit {
    fn name(&self) -> &'static str {
        "adamw_8bit"
    }

    fn states(&self) -> &'static [&'static str] {
        &["state1", "state2", "absmax1", "absmax2", "exp_avg", "exp_avg_sq"]
    }

    fn states_of(&self, name: &str, shape: &Shape) -> Vec<StateSpec> {
        if !self.is_quantized(shape) {
            return self.adamw.states_of(name, shape);
        }
        let state = |name, form| StateSpec { name, form, start: StateStart::Zero };
        let scales = StateForm::Blocks(BLOCK);
        vec![
            state("state1", StateForm::Bytes),
            state("state2", StateForm::Bytes),
            state("absmax1", scales),
            state("absmax2", scales),
        ]
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        if states.len() == 2 {
            return self.adamw.step(step, parameter, gradient, states);
        }
        let [mean, square, mean_scale, square_scale] = exactly(self.name(), states)?;
        if parameter.device() == Device::Meta {
            return Ok(());
        }
        let AdamW { betas, eps } = self.adamw;
        let correction = |beta: f64| 1.0 - beta.powf(step.number as f64);
        let constants = Constants {
            betas: betas.map(|beta| beta as f32),
            eps: eps as f32,
            decay: (1.0 - step.learning_rate * step.weight_decay) as f32,
            size: (step.learning_rate / correction(betas[0])) as f32,
            root: correction(betas[1]).sqrt() as f32,
            scale: step.gradient_scale as f32,
        };
        let (is_parameter, device, dtype) = (parameter.is_parameter(), parameter.device(), parameter.dtype());
        let mut weights = parameter.detach().cast(DType::F32)?.to_vec::<f32>()?;
        let gradient = gradient.detach().cast(DType::F32)?.to_vec::<f32>()?;
        let (mut codes, mut scales) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for ((codes, scales), (state, scale)) in
            codes.iter_mut().zip(&mut scales).zip([(&*mean, &*mean_scale), (&*square, &*square_scale)])
        {
            (*codes, *scales) = (state.to_vec::<u8>()?, scale.to_vec::<f32>()?);
        }
        // Blocks do not depend on each other, so neither do bits on the number of threads.
        let blocks = weights.len() / BLOCK;
        let share = blocks.div_ceil(threads::count().max(1)).max(LEAST_BLOCKS);
        let ([means, squares], [mean_scales, square_scales]) = (&mut codes, &mut scales);
        let parts = weights
            .chunks_mut(share * BLOCK)
            .zip(gradient.chunks(share * BLOCK))
            .zip(means.chunks_mut(share * BLOCK).zip(squares.chunks_mut(share * BLOCK)))
            .zip(mean_scales.chunks_mut(share).zip(square_scales.chunks_mut(share)));
        let parts = parts.map(|(((weights, gradient), (mean, square)), (mean_scale, square_scale))| Blocks {
            weights,
            gradient,
            mean,
            square,
            mean_scale,
            square_scale,
        });
        match blocks <= share {
            true => parts.for_each(|blocks| self.update_blocks(&constants, blocks)),
            false => std::thread::scope(|scope| {
                for blocks in parts {
                    scope.spawn(|| self.update_blocks(&constants, blocks));
                }
            }),
        }
        let shape = parameter.shape().to_vec();
        let new = Tensor::from_slice(&weights, &shape)?.cast(dtype)?.to(device)?;
        let [means, squares] = codes;
        let [mean_scales, square_scales] = scales;
        (*mean, *square) = (Tensor::from_slice(&means, &shape)?, Tensor::from_slice(&squares, &shape)?);
        let of_scales = mean_scale.shape().to_vec();
        *mean_scale = Tensor::from_slice(&mean_scales, &of_scales)?;
        *square_scale = Tensor::from_slice(&square_scales, &of_scales)?;
        *parameter = if is_parameter { new.requires_grad() } else { new };
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct AdamW8bitFactory;

/// Options of `adamw_8bit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AdamW8bitOptions {
    /// Decay rates of the running averages of the gradient and its square.
    betas: [f64; 2],
    /// Term added to the denominator for numerical stability.
    eps: f64,
    /// Elements from which a parameter has states of eight bits; smaller ones have `f32`.
    min_8bit_size: usize,
}

/// The defaults of bitsandbytes.
impl Default for AdamW8bitOptions {
    fn default() -> Self {
        Self { betas: [0.9, 0.999], eps: 1e-8, min_8bit_size: 4096 }
    }
}

impl OptimizerFactory for AdamW8bitFactory {
    type Options = AdamW8bitOptions;

    fn name(&self) -> &'static str {
        "adamw_8bit"
    }

    fn summary(&self) -> &'static str {
        "AdamW whose states have eight bits for each element, in host memory."
    }

    fn problems(&self, options: &AdamW8bitOptions) -> Vec<OptionProblem> {
        problems(betas(options.betas).into_iter().chain([number("eps", options.eps, Range::Positive)]))
    }

    fn build(
        &self,
        _: &OptimizerConfig,
        options: AdamW8bitOptions,
    ) -> Result<Box<dyn Optimizer>, OptimizerError> {
        let adamw = AdamW { betas: options.betas, eps: options.eps };
        Ok(Box::new(AdamW8bit::new(adamw, options.min_8bit_size)))
    }
}

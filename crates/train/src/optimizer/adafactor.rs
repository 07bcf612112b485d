//! Adafactor: a second moment that is kept as the means of rows and of columns.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_layout::Shape;
use weightloom_tensor::{Tensor, TensorError, no_grad};

use super::options::{Range, number, problems};
use super::solo::step_alone;
use super::{
    DistributedUpdate, Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, StateForm, StateSpec,
    StateStart, StepInfo,
};
use crate::extensions::OptionProblem;

/// Adafactor (Shazeer and Stern 2018) as in transformers. Parameters with two or more
/// dims keep means of rows and columns instead of a second moment of every element.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Adafactor {
    /// Terms added to squared gradients, and the least size of a parameter for
    /// `scale_parameter`.
    pub eps: [f64; 2],
    /// The largest root mean square of an update, before the learning rate.
    pub clip_threshold: f64,
    /// Power of the step number that is the share of a step in the second moment.
    pub decay_rate: f64,
    /// Decay rate of a running average of updates; without one, none is kept.
    pub beta1: Option<f64>,
    pub scale_parameter: bool,
    pub relative_step: RelativeStep,
}

/// A factor of the learning rate that falls with the root of the step number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelativeStep {
    /// The factor is 1.
    #[default]
    Off,
    /// At most 0.01.
    On,
    /// From a millionth of the step number.
    Warmup,
}

impl RelativeStep {
    fn factor(self, number: u64) -> f64 {
        let number = number.max(1) as f64;
        let most = match self {
            Self::Off => return 1.0,
            Self::On => 1e-2,
            Self::Warmup => 1e-6 * number,
        };
        most.min(1.0 / number.sqrt())
    }
}

/// Whether the second moment of a parameter is kept by rows and columns.
fn is_factored(shape: &Shape) -> bool {
    shape.ndim() >= 2
}

/// The root mean square of all elements, as a scalar on every rank.
fn rms(x: &DTensor) -> Result<DTensor, DTensorError> {
    let count = x.shape().volume().max(1) as f64;
    x.mul(x)?.sum_all()?.scale(1.0 / count)?.sqrt()
}

/// A dim of size 1 inserted at the end or before the last one.
fn with_dim(x: &DTensor, at: usize) -> Result<DTensor, DTensorError> {
    let mut dims = x.shape().to_vec();
    dims.insert(at, 1);
    x.reshape(&Shape::new(&dims).map_err(TensorError::from)?)
}

impl Adafactor {
    /// Blends new means into a state, and returns it.
    fn blend(
        state: &mut Tensor,
        form: StateForm,
        (old, new): (f64, &DTensor),
        like: &DTensor,
    ) -> Result<DTensor, DTensorError> {
        let new = new.redistribute(form.layout(like.layout())?)?;
        *state = state.scale(old)?.add(&new.to_local().scale(1.0 - old)?)?;
        DTensor::from_local(like.dist(), state.clone(), new.layout(), new.shape())
    }

    /// The gradient divided by the root of its second moment, which is updated.
    fn direction(
        &self,
        step: &StepInfo,
        gradient: &DTensor,
        states: &mut [Tensor],
    ) -> Result<DTensor, DTensorError> {
        let old = 1.0 - (step.number.max(1) as f64).powf(self.decay_rate);
        let eps =
            Tensor::full(self.eps[0], gradient.dtype(), gradient.to_local().shape(), gradient.device())?;
        let eps = DTensor::from_local(gradient.dist(), eps, gradient.layout(), gradient.shape())?;
        let squares = gradient.mul(gradient)?.add(&eps)?;
        let ndim = gradient.shape().ndim();
        match states {
            [rows, columns] if is_factored(gradient.shape()) => {
                let (of_row, of_column) = (StateForm::Without(ndim - 1), StateForm::Without(ndim - 2));
                let rows = Self::blend(rows, of_row, (old, &squares.mean(&[ndim - 1])?), gradient)?;
                let columns = Self::blend(columns, of_column, (old, &squares.mean(&[ndim - 2])?), gradient)?;
                let mean = with_dim(&rows.mean(&[ndim - 2])?, ndim - 2)?;
                let of_rows = with_dim(&rows.div(&mean)?.rsqrt()?, ndim - 1)?;
                let of_columns = with_dim(&columns.rsqrt()?, ndim - 2)?;
                gradient.mul(&of_rows)?.mul(&of_columns)
            }
            [square] => {
                Self::blend(square, StateForm::Elementwise, (old, &squares), gradient)?.rsqrt()?.mul(gradient)
            }
            _ => Err(self.wrong_states(states.len(), 1)),
        }
    }

    fn wrong_states(&self, found: usize, expected: usize) -> DTensorError {
        TensorError::StateCount { op: self.name(), expected, found }.into()
    }

    fn update_all(
        &self,
        step: &StepInfo,
        parameter: &mut DTensor,
        gradient: &DTensor,
        states: &mut [Tensor],
    ) -> Result<(), DTensorError> {
        let held = parameter.detach();
        let gradient = gradient.detach().cast(held.dtype())?.scale(step.gradient_scale)?;
        let count = states.len();
        let (average, moments) = match (self.beta1, states) {
            (None, states) => (None, states),
            (Some(beta1), [average, rest @ ..]) => (Some((beta1, average)), rest),
            (Some(_), []) => return Err(self.wrong_states(count, 2)),
        };
        let size = match self.scale_parameter {
            true => Some(rms(&held)?.clamp(self.eps[1], f64::INFINITY)?),
            false => None,
        };
        let rate = step.learning_rate * self.relative_step.factor(step.number);
        let scaled = |x: &DTensor| match &size {
            Some(size) => x.mul(size)?.scale(rate),
            None => x.scale(rate),
        };
        let direction = self.direction(step, &gradient, moments)?;
        let excess = rms(&direction)?.scale(1.0 / self.clip_threshold)?.clamp(1.0, f64::INFINITY)?;
        let mut change = scaled(&direction.div(&excess)?)?.redistribute(held.layout())?;
        if let Some((beta1, average)) = average {
            *average = average.scale(beta1)?.add(&change.to_local().scale(1.0 - beta1)?)?;
            change = DTensor::from_local(held.dist(), average.clone(), held.layout(), held.shape())?;
        }
        if step.weight_decay != 0.0 {
            change = change.add(&scaled(&held)?.scale(step.weight_decay)?)?.redistribute(held.layout())?;
        }
        let change = change.to_local().neg()?;
        // Nothing else may hold the memory that changes in place.
        drop(held);
        parameter.change_local(|local| local.add_assign(&change))
    }
}

impl Optimizer for Adafactor {
    fn name(&self) -> &'static str {
        "adafactor"
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"]
    }

    fn states_of(&self, _: &str, shape: &Shape) -> Vec<StateSpec> {
        let mean = |name, dim| StateSpec { name, form: StateForm::Without(dim), start: StateStart::Zero };
        let average = self.beta1.map(|_| StateSpec::zeros("exp_avg"));
        let moments = match shape.ndim() {
            0 | 1 => vec![StateSpec::zeros("exp_avg_sq")],
            ndim => vec![mean("exp_avg_sq_row", ndim - 1), mean("exp_avg_sq_col", ndim - 2)],
        };
        average.into_iter().chain(moments).collect()
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        step_alone(self.name(), self, step, parameter, gradient, states)
    }

    fn distributed(&self) -> Option<&dyn DistributedUpdate> {
        Some(self)
    }
}

impl DistributedUpdate for Adafactor {
    fn update(
        &self,
        step: &StepInfo,
        parameter: &mut DTensor,
        gradient: &DTensor,
        states: &mut [Tensor],
    ) -> Result<(), DTensorError> {
        no_grad(|| self.update_all(step, parameter, gradient, states))
    }
}

#[derive(Debug)]
pub(super) struct AdafactorFactory;

/// Options of `adafactor`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AdafactorOptions {
    /// Term added to squared gradients, and the least root mean square of a parameter
    /// for `scale_parameter`.
    eps: [f64; 2],
    /// The largest root mean square of an update of a parameter, before the learning
    /// rate.
    clip_threshold: f64,
    /// Power of the step number that is the share of a step in the second moment.
    decay_rate: f64,
    /// Decay rate of a running average of the updates. Without it, none is kept.
    beta1: Option<f64>,
    /// Multiply the learning rate by the root mean square of the parameter.
    scale_parameter: bool,
    /// Multiply the learning rate by the inverse root of the step number, or by 0.01 if
    /// that is less. For the schedule of the paper, set `lr: 1` and
    /// `schedule: {kind: constant}`.
    relative_step: bool,
    /// Multiply by a millionth of the step number in place of 0.01. Requires
    /// `relative_step`.
    warmup_init: bool,
}

impl Default for AdafactorOptions {
    fn default() -> Self {
        Self {
            eps: [1e-30, 1e-3],
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta1: None,
            scale_parameter: true,
            relative_step: false,
            warmup_init: false,
        }
    }
}

impl OptimizerFactory for AdafactorFactory {
    type Options = AdafactorOptions;

    fn name(&self) -> &'static str {
        "adafactor"
    }

    fn summary(&self) -> &'static str {
        "Adafactor: keeps means of rows and columns of squared gradients, so that matrices need almost no \
         memory for states."
    }

    fn problems(&self, options: &AdafactorOptions) -> Vec<OptionProblem> {
        let mut found = problems([
            number("eps.0", options.eps[0], Range::Positive),
            number("eps.1", options.eps[1], Range::NotNegative),
            number("clip_threshold", options.clip_threshold, Range::Positive),
            number("decay_rate", options.decay_rate, Range::Negative),
            number("beta1", options.beta1.unwrap_or(0.0), Range::Share),
        ]);
        if options.warmup_init && !options.relative_step {
            found.push(OptionProblem::new("warmup_init", "requires `relative_step: true`"));
        }
        found
    }

    fn build(
        &self,
        _: &OptimizerConfig,
        options: AdafactorOptions,
    ) -> Result<Box<dyn Optimizer>, OptimizerError> {
        Ok(Box::new(Adafactor {
            eps: options.eps,
            clip_threshold: options.clip_threshold,
            decay_rate: options.decay_rate,
            beta1: options.beta1,
            scale_parameter: options.scale_parameter,
            relative_step: match (options.relative_step, options.warmup_init) {
                (false, _) => RelativeStep::Off,
                (true, false) => RelativeStep::On,
                (true, true) => RelativeStep::Warmup,
            },
        }))
    }
}

//! Going through the tape backwards.

use std::collections::BinaryHeap;
use std::sync::{Arc, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};
use weightloom_layout::{DType, Shape};

use super::{Note, Off, Origin, Parameter};
use crate::error::TensorError;
use crate::tensor::Tensor;

/// The gradients of parameters.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    by_parameter: FxHashMap<u64, Tensor>,
}

impl Gradients {
    /// The gradient of a parameter, or `None` if the outputs do not depend on
    /// it.
    pub fn of(&self, parameter: &Tensor) -> Option<&Tensor> {
        match parameter.origin() {
            Origin::Parameter(parameter) => self.by_parameter.get(&parameter.number),
            Origin::Constant | Origin::Remade(_) | Origin::Output { .. } => None,
        }
    }

    /// The same by number, taken out.
    pub(super) fn take(&mut self, parameter: u64) -> Option<Tensor> {
        self.by_parameter.remove(&parameter)
    }

    fn add(&mut self, parameter: u64, gradient: Tensor) -> Result<(), TensorError> {
        let sum = match self.by_parameter.remove(&parameter) {
            // Many small additions lose what half types cannot hold.
            Some(sum) if matches!(gradient.dtype(), DType::Bf16 | DType::F16) => {
                added(sum.cast(DType::F32)?, &gradient.cast(DType::F32)?)?
            }
            Some(sum) => added(sum, &gradient)?,
            None => gradient,
        };
        self.by_parameter.insert(parameter, sum);
        Ok(())
    }
}

/// A note that is due, highest number first.
struct Due(Arc<Note>);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.number.cmp(&other.0.number)
    }
}

/// Differentiates outputs with respect to every parameter they depend on. An
/// output without a given gradient counts with ones.
///
/// The tape is used up: differentiating the same functions again is an error.
/// Outputs that nobody else holds are freed before it begins.
pub fn backward(
    outputs: impl IntoIterator<Item = (Tensor, Option<Tensor>)>,
) -> Result<Gradients, TensorError> {
    let _off = Off::new();
    let mut sweep = Sweep::default();
    let mut origins = Vec::new();
    for (output, gradient) in outputs {
        if !output.tracks_gradient() {
            return Err(TensorError::NoGradient { shape: output.shape().clone() });
        }
        let gradient = match gradient {
            Some(gradient) => gradient.detach(),
            // One number for all elements.
            None => Tensor::full(1.0, output.dtype(), &[], output.device())?.expand(output.shape())?,
        };
        check_gradient("backward", &gradient, output.shape(), output.dtype())?;
        sweep.give(output.origin(), gradient)?;
        origins.push(output.origin().clone());
    }
    sweep.expected = Expected::of(origins.iter());
    for origin in &origins {
        sweep.settle(origin)?;
    }
    drop(origins);
    while let Some(Due(note)) = sweep.due.pop() {
        sweep.run(&note)?;
    }
    sweep.settle_rest()?;
    Ok(sweep.gradients)
}

/// A sum, in the memory of the first operand where nobody else uses it.
fn added(mut sum: Tensor, gradient: &Tensor) -> Result<Tensor, TensorError> {
    sum.add_assign(gradient)?;
    Ok(sum)
}

/// For each parameter with hooks, the uses that gradients may still come from.
#[derive(Default)]
struct Expected {
    uses: FxHashMap<u64, (Arc<Parameter>, usize)>,
}

impl Expected {
    fn of<'a>(outputs: impl Iterator<Item = &'a Origin>) -> Self {
        let mut expected = Self::default();
        let mut seen = FxHashSet::default();
        let mut waiting: Vec<Arc<Note>> = Vec::new();
        let mut visit = |origin: &Origin, waiting: &mut Vec<Arc<Note>>| match origin {
            Origin::Constant | Origin::Remade(_) => {}
            Origin::Parameter(parameter) if parameter.hooks.is_empty() => {}
            Origin::Parameter(parameter) => {
                expected.uses.entry(parameter.number).or_insert_with(|| (Arc::clone(parameter), 0)).1 += 1;
            }
            Origin::Output { note, .. } => {
                if seen.insert(note.number) {
                    waiting.push(Arc::clone(note));
                }
            }
        };
        outputs.for_each(|origin| visit(origin, &mut waiting));
        while let Some(note) = waiting.pop() {
            note.inputs.iter().for_each(|origin| visit(origin, &mut waiting));
        }
        expected
    }
}

#[derive(Default)]
struct Sweep {
    due: BinaryHeap<Due>,
    /// Gradients of the outputs of notes that are due.
    arrived: FxHashMap<u64, Vec<Option<Tensor>>>,
    gradients: Gradients,
    expected: Expected,
}

impl Sweep {
    fn give(&mut self, origin: &Origin, gradient: Tensor) -> Result<(), TensorError> {
        match origin {
            Origin::Constant | Origin::Remade(_) => Ok(()),
            Origin::Parameter(parameter) => self.gradients.add(parameter.number, gradient),
            Origin::Output { note, index } => {
                let arrived = self.arrived.entry(note.number).or_insert_with(|| {
                    self.due.push(Due(Arc::clone(note)));
                    vec![None; note.outputs]
                });
                arrived[*index] = Some(match arrived[*index].take() {
                    Some(sum) => added(sum, &gradient)?,
                    None => gradient,
                });
                Ok(())
            }
        }
    }

    fn run(&mut self, note: &Note) -> Result<(), TensorError> {
        let function = note.function.name();
        let context = note.context.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut context = context.ok_or(TensorError::Consumed { function })?;
        context.restore()?;
        let arrived = self.arrived.remove(&note.number).unwrap_or_default();
        let gradients = note.function.backward(context, arrived)?;
        if gradients.len() != note.inputs.len() {
            let (inputs, found) = (note.inputs.len(), gradients.len());
            return Err(TensorError::GradientCount { function, inputs, found });
        }
        for ((origin, gradient), (shape, dtype)) in note.inputs.iter().zip(gradients).zip(&note.input_kinds) {
            if let Some(gradient) = gradient {
                check_gradient(function, &gradient, shape, *dtype)?;
                self.give(origin, gradient)?;
            }
            self.settle(origin)?;
        }
        Ok(())
    }

    /// Counts one use of a parameter as done; after the last, its gradient is
    /// whole and its hooks run.
    fn settle(&mut self, origin: &Origin) -> Result<(), TensorError> {
        let Origin::Parameter(parameter) = origin else { return Ok(()) };
        let Some((_, uses)) = self.expected.uses.get_mut(&parameter.number) else { return Ok(()) };
        *uses -= 1;
        if *uses > 0 {
            return Ok(());
        }
        self.expected.uses.remove(&parameter.number);
        self.run_hooks(parameter)
    }

    /// Parameters whose last uses had no gradient to pass on.
    fn settle_rest(&mut self) -> Result<(), TensorError> {
        let mut rest: Vec<_> = std::mem::take(&mut self.expected.uses).into_values().collect();
        rest.sort_unstable_by_key(|(parameter, _)| parameter.number);
        rest.iter().try_for_each(|(parameter, _)| self.run_hooks(parameter))
    }

    fn run_hooks(&mut self, parameter: &Parameter) -> Result<(), TensorError> {
        let Some(gradient) = self.gradients.by_parameter.remove(&parameter.number) else { return Ok(()) };
        let (shape, dtype) = (gradient.shape().clone(), gradient.dtype());
        let gradient = parameter.hooks.run(gradient)?;
        check_gradient("register_parameter_hook", &gradient, &shape, dtype)?;
        self.gradients.by_parameter.insert(parameter.number, gradient);
        Ok(())
    }
}

fn check_gradient(
    function: &'static str,
    gradient: &Tensor,
    shape: &Shape,
    dtype: DType,
) -> Result<(), TensorError> {
    if gradient.shape() == shape && gradient.dtype() == dtype {
        return Ok(());
    }
    Err(TensorError::GradientShape {
        function,
        expected: shape.clone(),
        dtype,
        found: gradient.shape().clone(),
        found_dtype: gradient.dtype(),
    })
}

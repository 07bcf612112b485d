//! The backward pass.

use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use weightloom_layout::{DType, Shape};

use super::double_backward::record_gradients;
use super::{GradDisabled, Node, Origin, Parameter, with_grad};
use crate::backend::on;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// The gradients of parameters.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    by_parameter: FxHashMap<u64, Tensor>,
}

impl Gradients {
    /// The gradient of a parameter, or `None` if no output depends on it.
    pub fn of(&self, parameter: &Tensor) -> Option<&Tensor> {
        match parameter.origin() {
            Origin::Parameter(parameter) => self.by_parameter.get(&parameter.number),
            Origin::Constant | Origin::Recomputed(_) | Origin::Output { .. } => None,
        }
    }

    /// Takes a gradient by parameter number.
    pub(super) fn take(&mut self, parameter: u64) -> Option<Tensor> {
        self.by_parameter.remove(&parameter)
    }

    fn add(&mut self, parameter: u64, gradient: Tensor) -> Result<()> {
        let sum = match self.by_parameter.remove(&parameter) {
            // Half types would lose small additions.
            Some(sum) if are_constant_halves(&sum, &gradient) => {
                on(sum.device()).add_halves(&sum, &gradient)?
            }
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

/// A node whose output gradients are complete, highest number first.
struct ReadyNode(Arc<Node>);

impl PartialEq for ReadyNode {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for ReadyNode {}

impl PartialOrd for ReadyNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ReadyNode {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.number.cmp(&other.0.number)
    }
}

/// What a backward pass leaves of the tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tape {
    /// Saved tensors are freed as soon as they are used; differentiating the same
    /// functions again is an error.
    #[default]
    Free,
    /// The tape stays for another pass, as with PyTorch's `retain_graph`.
    Retain,
    /// The tape stays, and the gradients are on it too, as with PyTorch's
    /// `create_graph`. Differentiating them runs [`Function::double_backward`], which
    /// is an error for functions without that rule.
    ///
    /// [`Function::double_backward`]: super::Function::double_backward
    Record,
}

/// Computes the gradients of outputs with respect to every parameter they depend
/// on. The gradient of an output defaults to ones.
///
/// The pass consumes the tape: differentiating the same functions again is an
/// error; see [`backward_with`]. Outputs without other references are freed before
/// it starts.
pub fn backward(outputs: impl IntoIterator<Item = (Tensor, Option<Tensor>)>) -> Result<Gradients> {
    backward_with(outputs, Tape::Free)
}

/// As [`backward`], and says what stays of the tape.
///
/// ```
/// use weightloom_tensor::{Tape, Tensor, TensorError, backward, backward_with};
///
/// let x = Tensor::from_slice(&[1.0, 2.0], &[2])?.requires_grad();
/// let y = x.mul(&x)?;
/// let first = backward_with([(y.clone(), None)], Tape::Retain)?;
/// let second = backward([(y, None)])?;
/// assert_eq!(first.of(&x).unwrap().to_vec::<f64>()?, second.of(&x).unwrap().to_vec::<f64>()?);
/// # Ok::<(), TensorError>(())
/// ```
pub fn backward_with(
    outputs: impl IntoIterator<Item = (Tensor, Option<Tensor>)>,
    tape: Tape,
) -> Result<Gradients> {
    let _disabled = GradDisabled::new();
    let mut pass = BackwardPass { tape, ..BackwardPass::default() };
    let mut origins = Vec::new();
    for (output, gradient) in outputs {
        if !output.tracks_gradient() {
            return Err(TensorError::NoGradient { shape: output.shape().clone() });
        }
        let gradient = match gradient {
            Some(gradient) if tape == Tape::Record => gradient,
            Some(gradient) => gradient.detach(),
            // One element, expanded.
            None => Tensor::full(1.0, output.dtype(), &[], output.device())?.expand(output.shape())?,
        };
        check_gradient("backward", &gradient, output.shape(), output.dtype())?;
        pass.give(output.origin(), gradient)?;
        origins.push(output.origin().clone());
    }
    pass.expected = PendingUses::of(origins.iter());
    for origin in &origins {
        pass.settle(origin)?;
    }
    drop(origins);
    while let Some(ReadyNode(node)) = pass.due.pop() {
        pass.run(&node)?;
    }
    pass.settle_rest()?;
    Ok(pass.gradients)
}

/// Whether both are halves of one dtype, and off the tape.
fn are_constant_halves(a: &Tensor, b: &Tensor) -> bool {
    let half = |x: &Tensor| matches!(x.dtype(), DType::Bf16 | DType::F16) && !x.tracks_gradient();
    a.dtype() == b.dtype() && half(a) && half(b)
}

/// Adds in the memory of the first operand, unless that is shared.
fn added(mut sum: Tensor, gradient: &Tensor) -> Result<Tensor> {
    sum.add_assign(gradient)?;
    Ok(sum)
}

/// For each parameter with hooks, the uses that have not passed a gradient yet.
#[derive(Default)]
struct PendingUses {
    uses: FxHashMap<u64, (Arc<Parameter>, usize)>,
}

impl PendingUses {
    fn of<'a>(outputs: impl Iterator<Item = &'a Origin>) -> Self {
        let mut expected = Self::default();
        let mut seen = FxHashSet::default();
        let mut waiting: Vec<Arc<Node>> = Vec::new();
        let mut visit = |origin: &Origin, waiting: &mut Vec<Arc<Node>>| match origin {
            Origin::Constant | Origin::Recomputed(_) => {}
            Origin::Parameter(parameter) if parameter.hooks.is_empty() => {}
            Origin::Parameter(parameter) => {
                expected.uses.entry(parameter.number).or_insert_with(|| (Arc::clone(parameter), 0)).1 += 1;
            }
            Origin::Output { node, .. } => {
                if seen.insert(node.number) {
                    waiting.push(Arc::clone(node));
                }
            }
        };
        outputs.for_each(|origin| visit(origin, &mut waiting));
        while let Some(node) = waiting.pop() {
            node.inputs.iter().for_each(|origin| visit(origin, &mut waiting));
        }
        expected
    }
}

#[derive(Default)]
struct BackwardPass {
    tape: Tape,
    due: BinaryHeap<ReadyNode>,
    /// Gradients of the outputs of nodes in the queue.
    arrived: FxHashMap<u64, Vec<Option<Tensor>>>,
    gradients: Gradients,
    expected: PendingUses,
}

impl BackwardPass {
    fn give(&mut self, origin: &Origin, gradient: Tensor) -> Result<()> {
        match self.tape {
            Tape::Free | Tape::Retain => self.add(origin, gradient),
            // Sums of gradients are on the tape as well.
            Tape::Record => with_grad(|| self.add(origin, gradient)),
        }
    }

    fn add(&mut self, origin: &Origin, gradient: Tensor) -> Result<()> {
        match origin {
            Origin::Constant | Origin::Recomputed(_) => Ok(()),
            Origin::Parameter(parameter) => self.gradients.add(parameter.number, gradient),
            Origin::Output { node, index } => {
                let arrived = self.arrived.entry(node.number).or_insert_with(|| {
                    self.due.push(ReadyNode(Arc::clone(node)));
                    vec![None; node.outputs]
                });
                arrived[*index] = Some(match arrived[*index].take() {
                    Some(sum) => added(sum, &gradient)?,
                    None => gradient,
                });
                Ok(())
            }
        }
    }

    fn run(&mut self, node: &Arc<Node>) -> Result<()> {
        let function = node.function.name();
        let context = node.take_context(self.tape)?;
        let arrived = self.arrived.remove(&node.number).unwrap_or_default();
        let gradients = match self.tape {
            Tape::Free | Tape::Retain => node.function.backward(context, arrived)?,
            Tape::Record => {
                let given = arrived.iter().map(|gradient| gradient.as_ref().map(Tensor::detach)).collect();
                record_gradients(node, &arrived, node.function.backward(context, given)?)?
            }
        };
        if gradients.len() != node.inputs.len() {
            let (inputs, found) = (node.inputs.len(), gradients.len());
            return Err(TensorError::GradientCount { function, inputs, found });
        }
        for ((origin, gradient), (shape, dtype)) in node.inputs.iter().zip(gradients).zip(&node.input_kinds) {
            if let Some(gradient) = gradient {
                check_gradient(function, &gradient, shape, *dtype)?;
                self.give(origin, gradient)?;
            }
            self.settle(origin)?;
        }
        Ok(())
    }

    /// Counts one use of a parameter as done. After the last, its gradient is
    /// complete and its hooks run.
    fn settle(&mut self, origin: &Origin) -> Result<()> {
        let Origin::Parameter(parameter) = origin else { return Ok(()) };
        let Some((_, uses)) = self.expected.uses.get_mut(&parameter.number) else { return Ok(()) };
        *uses -= 1;
        if *uses > 0 {
            return Ok(());
        }
        self.expected.uses.remove(&parameter.number);
        self.run_hooks(parameter)
    }

    /// Runs the hooks of parameters whose last uses had no gradient.
    fn settle_rest(&mut self) -> Result<()> {
        let mut rest: Vec<_> = std::mem::take(&mut self.expected.uses).into_values().collect();
        rest.sort_unstable_by_key(|(parameter, _)| parameter.number);
        rest.iter().try_for_each(|(parameter, _)| self.run_hooks(parameter))
    }

    fn run_hooks(&mut self, parameter: &Parameter) -> Result<()> {
        let Some(gradient) = self.gradients.by_parameter.remove(&parameter.number) else { return Ok(()) };
        let (shape, dtype) = (gradient.shape().clone(), gradient.dtype());
        let gradient = parameter.hooks.run(gradient)?;
        check_gradient("register_parameter_hook", &gradient, &shape, dtype)?;
        self.gradients.by_parameter.insert(parameter.number, gradient);
        Ok(())
    }
}

fn check_gradient(function: &'static str, gradient: &Tensor, shape: &Shape, dtype: DType) -> Result<()> {
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

//! What a function saves for its backward rule.

use std::any::{Any, type_name};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::{Node, Origin};
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// Tensors and other values that a function saves for its backward rule, and what
/// it says about its outputs.
#[derive(Default)]
pub struct Context {
    kept: Vec<SavedTensor>,
    /// The saved tensors, once backward starts.
    saved: Vec<Tensor>,
    values: Vec<Arc<dyn Any + Send + Sync>>,
    needed: SmallVec<[bool; 4]>,
    non_differentiable: SmallVec<[usize; 2]>,
}

/// A saved tensor, or how to recompute it.
#[derive(Clone)]
enum SavedTensor {
    Tensor(Tensor),
    /// The output of a cheap function on the tape.
    Output(Arc<CheapOutput>),
    /// A constant that its owner recomputes.
    Recomputed(Arc<Recompute>),
}

/// Recomputes a tensor.
pub(crate) type Recompute = dyn Fn() -> Result<Tensor> + Send + Sync;

impl SavedTensor {
    fn new(tensor: &Tensor) -> Self {
        match tensor.origin() {
            Origin::Output { node, index: 0 } if node.function.is_cheap() => {
                Self::Output(node.cheap_output())
            }
            Origin::Recomputed(recompute) => Self::Recomputed(Arc::clone(recompute)),
            _ => Self::Tensor(tensor.detach()),
        }
    }

    fn tensor(&self) -> Result<Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor.clone()),
            Self::Recomputed(recompute) => Ok(recompute()?.detach()),
            Self::Output(output) => output.tensor(),
        }
    }
}

/// The output of a cheap function, shared by the functions that save it. The first of
/// them to need it recomputes it, and the last takes it.
pub(super) struct CheapOutput {
    node: Arc<Node>,
    recomputed: Mutex<Option<Tensor>>,
}

impl CheapOutput {
    fn tensor(self: &Arc<Self>) -> Result<Tensor> {
        let mut recomputed = self.recomputed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = Arc::strong_count(self) == 1;
        if let Some(tensor) = &*recomputed {
            let tensor = tensor.clone();
            if is_last {
                // Its memory may then be used for something else.
                *recomputed = None;
            }
            return Ok(tensor);
        }
        let inputs = self.node.with_context(|context| {
            context.kept.iter().map(SavedTensor::tensor).collect::<Result<Vec<_>, _>>()
        })??;
        let mut outputs = self.node.function.forward(&mut Context::default(), &inputs)?;
        let tensor = outputs.swap_remove(0);
        if !is_last {
            *recomputed = Some(tensor.clone());
        }
        Ok(tensor)
    }
}

impl Node {
    /// The output of a cheap function, the same for all that save it.
    fn cheap_output(self: &Arc<Self>) -> Arc<CheapOutput> {
        let mut shared = self.cheap_output.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let output = Arc::new(CheapOutput { node: Arc::clone(self), recomputed: Mutex::new(None) });
            *shared = Arc::downgrade(&output);
            output
        })
    }
}

impl Context {
    pub(super) fn new(needed: SmallVec<[bool; 4]>) -> Self {
        Self { needed, ..Self::default() }
    }

    /// Saves tensors for the backward rule. Saves nothing if no input needs a
    /// gradient. Outputs of [cheap](super::Function::is_cheap) functions are
    /// recomputed instead.
    pub fn save(&mut self, tensors: &[&Tensor]) {
        if self.needed.contains(&true) {
            self.kept.extend(tensors.iter().map(|tensor| SavedTensor::new(tensor)));
        }
    }

    /// Saves each tensor if the input with the given index needs a gradient, and
    /// only its shape otherwise.
    pub(crate) fn save_for(&mut self, tensors: &[(&Tensor, usize)]) {
        for (tensor, input) in tensors {
            match self.needs(*input) {
                true => self.save(&[tensor]),
                false => self.save(&[&tensor.shape_only()]),
            }
        }
    }

    /// Saves a value that is not a tensor, such as what `forward` found in the data.
    /// Saves nothing if no input needs a gradient.
    pub fn save_value<T: Send + Sync + 'static>(&mut self, value: T) {
        if self.needed.contains(&true) {
            self.values.push(Arc::new(value));
        }
    }

    /// Marks outputs, by index, that have no gradient, such as indices and counts:
    /// they are constants for what follows, and `backward` gets `None` for them.
    pub fn mark_non_differentiable(&mut self, outputs: &[usize]) {
        self.non_differentiable.extend_from_slice(outputs);
    }

    pub(super) fn take_non_differentiable(
        &mut self,
        function: &'static str,
        outputs: usize,
    ) -> Result<SmallVec<[usize; 2]>> {
        let marked = std::mem::take(&mut self.non_differentiable);
        match marked.iter().find(|&&output| output >= outputs) {
            Some(&output) => Err(TensorError::NoSuchOutput { function, output, outputs }),
            None => Ok(marked),
        }
    }

    /// The same saved tensors and values, for a pass that retains the tape.
    pub(super) fn share(&self) -> Self {
        Self {
            kept: self.kept.clone(),
            saved: Vec::new(),
            values: self.values.clone(),
            needed: self.needed.clone(),
            non_differentiable: SmallVec::new(),
        }
    }

    /// Restores the saved tensors.
    pub(super) fn restore(&mut self) -> Result<()> {
        self.saved = self.kept.iter().map(SavedTensor::tensor).collect::<Result<_, _>>()?;
        self.kept.clear();
        Ok(())
    }

    /// The saved tensors, in order.
    pub fn saved(&self) -> &[Tensor] {
        &self.saved
    }

    /// The saved tensors by value, to reuse their memory.
    pub fn into_saved(self) -> Vec<Tensor> {
        self.saved
    }

    /// The first saved value of a type.
    pub fn saved_value<T: Send + Sync + 'static>(&self) -> Result<&T> {
        let found = self.values.iter().find_map(|value| value.downcast_ref());
        found.ok_or(TensorError::NoSavedValue { value: type_name::<T>() })
    }

    /// Whether an input needs a gradient.
    pub fn needs(&self, input: usize) -> bool {
        self.needed.get(input).copied().unwrap_or(false)
    }
}

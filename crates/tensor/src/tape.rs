//! Reverse-mode differentiation.
//!
//! Applying a [`Function`] to tensors that track gradients records a node on the
//! tape: the function, its inputs, and the tensors it saved. Nodes are numbered in
//! the order of recording, so visiting them by falling number visits every
//! function after all that used its outputs. Saved tensors are freed as soon as
//! the backward rule has run. A tape without references to its end frees itself.

mod backward;
mod hook;
mod recompute;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use weightloom_layout::{DType, Shape};

pub use backward::{Gradients, backward};
pub use recompute::{recompute, recompute_over};

use hook::Hooks;

use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// A differentiable operation. Arguments that are not tensors are fields of the
/// implementing type.
///
/// ```
/// use weightloom_tensor::{Context, Function, Tensor, TensorError, apply, backward};
///
/// /// `x · factor`.
/// struct Scale {
///     factor: f64,
/// }
///
/// impl Function for Scale {
///     fn name(&self) -> &'static str {
///         "scale"
///     }
///
///     fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
///         Ok(vec![inputs[0].mul(&Tensor::scalar(self.factor)?)?])
///     }
///
///     fn backward(&self, _: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>, TensorError> {
///         let gradient = gradients[0].as_ref().map(|g| g.mul(&Tensor::scalar(self.factor)?));
///         Ok(vec![gradient.transpose()?])
///     }
/// }
///
/// let x = Tensor::from_slice(&[1.0, 2.0], &[2])?.requires_grad();
/// let y = apply(Scale { factor: 3.0 }, &[x.clone()])?.remove(0).sum(&[0])?;
/// let gradients = backward([(y, None)])?;
/// assert_eq!(gradients.of(&x).unwrap().to_vec::<f64>()?, [3.0, 3.0]);
/// # Ok::<(), TensorError>(())
/// ```
pub trait Function: Send + Sync + 'static {
    /// The name used in errors.
    fn name(&self) -> &'static str;

    /// Computes the outputs. Operations inside are not recorded.
    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// Whether the tape recomputes the output instead of keeping it, because that
    /// takes only one pass over the inputs. Such a function has one output and
    /// saves exactly its inputs, in order; saving its output for another backward
    /// rule then takes no memory.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Computes the gradients of the inputs from those of the outputs; `None`
    /// means zero. The rule owns the saved tensors and the gradients, and may reuse
    /// their memory. The default is an error: the function is not differentiable.
    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let _ = (context, gradients);
        Err(TensorError::NotDifferentiable { function: self.name() })
    }
}

/// Tensors that a function saves for its backward rule.
#[derive(Default)]
pub struct Context {
    kept: Vec<SavedTensor>,
    /// The saved tensors, once backward starts.
    saved: Vec<Tensor>,
    needed: SmallVec<[bool; 4]>,
}

/// A saved tensor, or how to recompute it.
enum SavedTensor {
    Tensor(Tensor),
    /// The output of a cheap function on the tape.
    Output(Arc<Node>),
    /// A constant that its owner recomputes.
    Recomputed(Arc<Recompute>),
}

/// Recomputes a tensor.
pub(crate) type Recompute = dyn Fn() -> Result<Tensor> + Send + Sync;

impl SavedTensor {
    fn new(tensor: &Tensor) -> Self {
        match tensor.origin() {
            Origin::Output { node, index: 0 } if node.function.is_cheap() => Self::Output(Arc::clone(node)),
            Origin::Recomputed(recompute) => Self::Recomputed(Arc::clone(recompute)),
            _ => Self::Tensor(tensor.detach()),
        }
    }

    fn tensor(&self) -> Result<Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor.clone()),
            Self::Recomputed(recompute) => Ok(recompute()?.detach()),
            Self::Output(node) => {
                let inputs = node.with_context(|context| {
                    context.kept.iter().map(Self::tensor).collect::<Result<Vec<_>, _>>()
                })??;
                let mut outputs = node.function.forward(&mut Context::default(), &inputs)?;
                Ok(outputs.swap_remove(0))
            }
        }
    }
}

impl Context {
    /// Saves tensors for the backward rule. Saves nothing if no input needs a
    /// gradient. Outputs of [cheap](Function::is_cheap) functions are recomputed
    /// instead.
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

    /// Restores the saved tensors.
    fn restore(&mut self) -> Result<()> {
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

    /// Whether an input needs a gradient.
    pub fn needs(&self, input: usize) -> bool {
        self.needed.get(input).copied().unwrap_or(false)
    }
}

/// The place of a tensor on the tape.
#[derive(Clone)]
pub(crate) enum Origin {
    Constant,
    /// A constant that is recomputed instead of saved.
    Recomputed(Arc<Recompute>),
    Parameter(Arc<Parameter>),
    Output {
        node: Arc<Node>,
        index: usize,
    },
}

/// A leaf whose gradient is wanted.
pub(crate) struct Parameter {
    number: u64,
    hooks: Hooks,
}

/// One applied function.
pub(crate) struct Node {
    number: u64,
    function: Box<dyn Function>,
    /// Taken when backward runs, so that saved tensors are freed.
    context: Mutex<Option<Context>>,
    inputs: Vec<Origin>,
    input_kinds: Vec<(Shape, DType)>,
    outputs: usize,
}

impl Node {
    /// Reads the saved tensors, while they exist.
    fn with_context<T>(&self, look: impl FnOnce(&Context) -> T) -> Result<T> {
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let consumed = TensorError::Consumed { function: self.function.name() };
        context.as_ref().map(look).ok_or(consumed)
    }
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn next_number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl Origin {
    pub(crate) fn parameter() -> Self {
        Self::Parameter(Arc::new(Parameter { number: next_number(), hooks: Hooks::default() }))
    }
}

thread_local! {
    static GRAD_DISABLED: Cell<usize> = const { Cell::new(0) };
}

/// Disables recording on this thread while it lives.
struct GradDisabled;

impl GradDisabled {
    fn new() -> Self {
        GRAD_DISABLED.with(|off| off.set(off.get() + 1));
        Self
    }
}

impl Drop for GradDisabled {
    fn drop(&mut self) {
        GRAD_DISABLED.with(|off| off.set(off.get() - 1));
    }
}

/// Whether functions are recorded on this thread.
pub(crate) fn is_grad_enabled() -> bool {
    GRAD_DISABLED.get() == 0
}

/// Runs `work` with recording enabled.
fn with_grad<T>(work: impl FnOnce() -> T) -> T {
    struct Back(usize);
    impl Drop for Back {
        fn drop(&mut self) {
            GRAD_DISABLED.set(self.0);
        }
    }
    let _back = Back(GRAD_DISABLED.replace(0));
    work()
}

/// Runs `work` without recording: results do not track gradients.
pub fn no_grad<T>(work: impl FnOnce() -> T) -> T {
    let _disabled = GradDisabled::new();
    work()
}

thread_local! {
    /// Inside a recomputed region, the parameters that it may capture.
    static ALLOWED_PARAMETERS: RefCell<Option<Arc<[u64]>>> = const { RefCell::new(None) };
}

/// Makes it an error to use a tensor that tracks gradients, except some
/// parameters, on this thread while it lives.
struct RegionGuard {
    before: Option<Arc<[u64]>>,
}

impl RegionGuard {
    fn new(open: Arc<[u64]>) -> Self {
        Self { before: ALLOWED_PARAMETERS.replace(Some(open)) }
    }

    /// Whether the gradient of a tensor would be lost.
    fn loses(tensor: &Tensor) -> bool {
        ALLOWED_PARAMETERS.with_borrow(|closed| match (closed, tensor.origin()) {
            (None, _) | (_, Origin::Constant | Origin::Recomputed(_)) => false,
            (Some(open), Origin::Parameter(parameter)) => !open.contains(&parameter.number),
            (Some(_), Origin::Output { .. }) => true,
        })
    }
}

impl Drop for RegionGuard {
    fn drop(&mut self) {
        ALLOWED_PARAMETERS.replace(self.before.take());
    }
}

/// Applies a function and, if an input tracks gradients, records it on the tape.
pub fn apply(function: impl Function, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let recording = is_grad_enabled();
    if inputs.iter().any(RegionGuard::loses) {
        return Err(TensorError::Captured { function: function.name() });
    }
    let needed: SmallVec<[bool; 4]> =
        inputs.iter().map(|input| recording && input.tracks_gradient()).collect();
    let tracked = needed.contains(&true);
    let mut context = Context { needed, ..Context::default() };
    let outputs = {
        let _disabled = GradDisabled::new();
        function.forward(&mut context, inputs)?
    };
    if !tracked {
        return Ok(outputs);
    }
    let node = Arc::new(Node {
        number: next_number(),
        function: Box::new(function),
        context: Mutex::new(Some(context)),
        inputs: inputs.iter().map(|input| input.origin().clone()).collect(),
        input_kinds: inputs.iter().map(|input| (input.shape().clone(), input.dtype())).collect(),
        outputs: outputs.len(),
    });
    Ok(outputs
        .iter()
        .enumerate()
        .map(|(index, output)| output.with_origin(Origin::Output { node: Arc::clone(&node), index }))
        .collect())
}

/// Applies a function that has one output.
pub(crate) fn apply_one(function: impl Function, inputs: &[Tensor]) -> Result<Tensor> {
    let name = function.name();
    let mut outputs = apply(function, inputs)?;
    let found = outputs.len();
    outputs.pop().filter(|_| found == 1).ok_or(TensorError::GradientCount {
        function: name,
        inputs: 1,
        found,
    })
}

//! Reverse-mode differentiation.
//!
//! Applying a [`Function`] to tensors that track gradients records a node on the
//! tape: the function, its inputs, and the tensors it saved. Nodes are numbered in
//! the order of recording, so visiting them by falling number visits every
//! function after all that used its outputs. Saved tensors are freed as soon as
//! the backward rule has run. A tape without references to its end frees itself.

mod backward;
mod context;
mod double_backward;
mod hook;
mod panic_guard;
mod recompute;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use smallvec::SmallVec;
use weightloom_layout::{DType, Shape};

pub use backward::{Gradients, Tape, backward, backward_with};
pub use context::Context;
pub use double_backward::DoubleGradients;
pub use panic_guard::catch_panic;
pub use recompute::{recompute, recompute_over};

pub(crate) use context::Recompute;

use context::CheapOutput;
use hook::Hooks;
use panic_guard::PanicGuard;

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

    /// Whether the gradients that [`backward`](Self::backward) returns do not depend
    /// on the inputs that need a gradient, so that gradients of gradients pass by
    /// this function.
    fn is_linear(&self, context: &Context) -> bool {
        let _ = context;
        false
    }

    /// Differentiates [`backward`](Self::backward). `of_outputs` are the gradients
    /// that it received, `gradients` those of the gradients that it returned. The
    /// default is an error that names the function.
    fn double_backward(
        &self,
        context: Context,
        of_outputs: Vec<Option<Tensor>>,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<DoubleGradients> {
        let _ = (context, of_outputs, gradients);
        Err(TensorError::NotTwiceDifferentiable { function: self.name() })
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
    /// Taken when backward runs, so that saved tensors are freed, unless the pass
    /// retains the tape.
    context: Mutex<Option<Context>>,
    inputs: Vec<Origin>,
    input_kinds: Vec<(Shape, DType)>,
    outputs: usize,
    /// Of a cheap function: its output, while others have saved it.
    cheap_output: Mutex<Weak<CheapOutput>>,
}

impl Node {
    /// Reads the saved tensors, while they exist.
    fn with_context<T>(&self, look: impl FnOnce(&Context) -> T) -> Result<T> {
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let consumed = TensorError::Consumed { function: self.function.name() };
        context.as_ref().map(look).ok_or(consumed)
    }

    /// The context for a backward rule, with its saved tensors restored.
    fn take_context(&self, tape: Tape) -> Result<Context> {
        let mut context = match tape {
            Tape::Retain | Tape::Record => self.with_context(Context::share)?,
            Tape::Free => {
                let context = self.context.lock().unwrap_or_else(PoisonError::into_inner).take();
                context.ok_or(TensorError::Consumed { function: self.function.name() })?
            }
        };
        context.restore()?;
        Ok(context)
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
/// A panic of the function is an error that names it.
pub fn apply(function: impl Function, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    record(PanicGuard(function), inputs)
}

/// Applies a function of this crate.
pub(crate) fn record(function: impl Function, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let recording = is_grad_enabled();
    if inputs.iter().any(RegionGuard::loses) {
        return Err(TensorError::Captured { function: function.name() });
    }
    let needed: SmallVec<[bool; 4]> =
        inputs.iter().map(|input| recording && input.tracks_gradient()).collect();
    let tracked = needed.contains(&true);
    let mut context = Context::new(needed);
    let outputs = {
        let _disabled = GradDisabled::new();
        function.forward(&mut context, inputs)?
    };
    if !tracked {
        return Ok(outputs);
    }
    let constants = context.take_non_differentiable(function.name(), outputs.len())?;
    let node = Arc::new(Node {
        number: next_number(),
        function: Box::new(function),
        context: Mutex::new(Some(context)),
        inputs: inputs.iter().map(|input| input.origin().clone()).collect(),
        input_kinds: inputs.iter().map(|input| (input.shape().clone(), input.dtype())).collect(),
        outputs: outputs.len(),
        cheap_output: Mutex::default(),
    });
    Ok(outputs
        .iter()
        .enumerate()
        .map(|(index, output)| match constants.contains(&index) {
            true => output.detach(),
            false => output.with_origin(Origin::Output { node: Arc::clone(&node), index }),
        })
        .collect())
}

/// Applies a function of this crate that has one output.
pub(crate) fn apply_one(function: impl Function, inputs: &[Tensor]) -> Result<Tensor> {
    let name = function.name();
    let mut outputs = record(function, inputs)?;
    let found = outputs.len();
    outputs.pop().filter(|_| found == 1).ok_or(TensorError::GradientCount {
        function: name,
        inputs: 1,
        found,
    })
}

//! Reverse-mode differentiation.
//!
//! Applying a [`Function`] to tensors that track gradients notes it on the
//! tape: its inputs, and what it saved. Notes are numbered in the order they
//! are made, so going through them backwards by number visits every function
//! after all that used its results. What a function saved is freed as soon as
//! its backward rule has run. A tape nobody holds the end of frees itself.

mod hook;
mod recompute;
mod sweep;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use weightloom_layout::{DType, Shape};

pub use recompute::{recompute, recompute_over};
pub use sweep::{Gradients, backward};

use hook::Hooks;

use crate::error::TensorError;
use crate::tensor::Tensor;

/// An operation with its derivative. The value itself carries what is not a
/// tensor, so such arguments always arrive.
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
    /// The name, for errors.
    fn name(&self) -> &'static str;

    /// Computes the outputs. Runs off the tape: operations inside are not
    /// differentiated on their own.
    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError>;

    /// Whether computing the result again costs less than keeping it would:
    /// one pass over its inputs. Such a function saves exactly its inputs, in
    /// order, and has one output; whoever saves that output for a backward rule
    /// then saves no memory of its own.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Computes the gradients of the inputs from those of the outputs; `None`
    /// stands for zero. What was saved and the gradients belong to the rule,
    /// which may use their memory for its results. The default says that there
    /// is no derivative.
    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let _ = (context, gradients);
        Err(TensorError::NotDifferentiable { function: self.name() })
    }
}

/// What a function keeps from forward to backward.
#[derive(Default)]
pub struct Context {
    kept: Vec<Kept>,
    /// What was kept, once backward begins.
    saved: Vec<Tensor>,
    needed: SmallVec<[bool; 4]>,
}

/// One tensor, or how to get it again.
enum Kept {
    Tensor(Tensor),
    /// The result of a cheap function that is itself on the tape.
    Again(Arc<Note>),
    /// What its owner makes again.
    Remade(Arc<Maker>),
}

/// Makes a tensor again.
pub(crate) type Maker = dyn Fn() -> Result<Tensor, TensorError> + Send + Sync;

impl Kept {
    fn new(tensor: &Tensor) -> Self {
        match tensor.origin() {
            Origin::Output { note, index: 0 } if note.function.is_cheap() => Self::Again(Arc::clone(note)),
            Origin::Remade(maker) => Self::Remade(Arc::clone(maker)),
            _ => Self::Tensor(tensor.detach()),
        }
    }

    fn tensor(&self) -> Result<Tensor, TensorError> {
        match self {
            Self::Tensor(tensor) => Ok(tensor.clone()),
            Self::Remade(maker) => Ok(maker()?.detach()),
            Self::Again(note) => {
                let inputs = note.with_context(|context| {
                    context.kept.iter().map(Self::tensor).collect::<Result<Vec<_>, _>>()
                })??;
                let mut outputs = note.function.forward(&mut Context::default(), &inputs)?;
                Ok(outputs.swap_remove(0))
            }
        }
    }
}

impl Context {
    /// Keeps tensors for the backward rule. Where no gradient will be asked
    /// for, nothing is kept. Results of [cheap](Function::is_cheap) functions
    /// are not kept either but computed again.
    pub fn save(&mut self, tensors: &[&Tensor]) {
        if self.needed.contains(&true) {
            self.kept.extend(tensors.iter().map(|tensor| Kept::new(tensor)));
        }
    }

    /// Keeps each tensor if the gradient of an input, given by its place, is
    /// wanted, and its shape alone if not.
    pub(crate) fn save_for(&mut self, tensors: &[(&Tensor, usize)]) {
        for (tensor, input) in tensors {
            match self.needs(*input) {
                true => self.save(&[tensor]),
                false => self.save(&[&tensor.shape_only()]),
            }
        }
    }

    /// Gets back what was kept.
    fn restore(&mut self) -> Result<(), TensorError> {
        self.saved = self.kept.iter().map(Kept::tensor).collect::<Result<_, _>>()?;
        self.kept.clear();
        Ok(())
    }

    /// What was kept, in order.
    pub fn saved(&self) -> &[Tensor] {
        &self.saved
    }

    /// What was kept, to be used up.
    pub fn into_saved(self) -> Vec<Tensor> {
        self.saved
    }

    /// Whether the gradient of an input is wanted.
    pub fn needs(&self, input: usize) -> bool {
        self.needed.get(input).copied().unwrap_or(false)
    }
}

/// Where a tensor comes from.
#[derive(Clone)]
pub(crate) enum Origin {
    Constant,
    /// A constant that need not be kept.
    Remade(Arc<Maker>),
    Parameter(Arc<Parameter>),
    Output {
        note: Arc<Note>,
        index: usize,
    },
}

/// A tensor whose gradient is wanted.
pub(crate) struct Parameter {
    number: u64,
    hooks: Hooks,
}

/// One application of a function.
pub(crate) struct Note {
    number: u64,
    function: Box<dyn Function>,
    /// Taken when backward runs, so that what was saved is freed.
    context: Mutex<Option<Context>>,
    inputs: Vec<Origin>,
    input_kinds: Vec<(Shape, DType)>,
    outputs: usize,
}

impl Note {
    /// Looks at what the function saved, while it is there.
    fn with_context<T>(&self, look: impl FnOnce(&Context) -> T) -> Result<T, TensorError> {
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
    static OFF: Cell<usize> = const { Cell::new(0) };
}

/// Turns the tape off for this thread while it lives.
struct Off;

impl Off {
    fn new() -> Self {
        OFF.with(|off| off.set(off.get() + 1));
        Self
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        OFF.with(|off| off.set(off.get() - 1));
    }
}

/// Whether functions are noted on this thread.
pub(crate) fn is_recording() -> bool {
    OFF.get() == 0
}

/// Runs `work` with a tape, even where it is off.
fn with_tape<T>(work: impl FnOnce() -> T) -> T {
    struct Back(usize);
    impl Drop for Back {
        fn drop(&mut self) {
            OFF.set(self.0);
        }
    }
    let _back = Back(OFF.replace(0));
    work()
}

/// Runs `work` without a tape: nothing inside is noted.
pub fn no_grad<T>(work: impl FnOnce() -> T) -> T {
    let _off = Off::new();
    work()
}

thread_local! {
    /// Inside a closed region, the parameters that it may use.
    static CLOSED: RefCell<Option<Arc<[u64]>>> = const { RefCell::new(None) };
}

/// Makes the use of a tensor that tracks gradients an error on this thread
/// while it lives, but for some parameters.
struct Closed {
    before: Option<Arc<[u64]>>,
}

impl Closed {
    fn new(open: Arc<[u64]>) -> Self {
        Self { before: CLOSED.replace(Some(open)) }
    }

    /// Whether a tensor's gradient would be lost.
    fn loses(tensor: &Tensor) -> bool {
        CLOSED.with_borrow(|closed| match (closed, tensor.origin()) {
            (None, _) | (_, Origin::Constant | Origin::Remade(_)) => false,
            (Some(open), Origin::Parameter(parameter)) => !open.contains(&parameter.number),
            (Some(_), Origin::Output { .. }) => true,
        })
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        CLOSED.replace(self.before.take());
    }
}

/// Applies a function and, if an input tracks gradients, notes it on the tape.
pub fn apply(function: impl Function, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
    let recording = is_recording();
    if inputs.iter().any(Closed::loses) {
        return Err(TensorError::Captured { function: function.name() });
    }
    let needed: SmallVec<[bool; 4]> =
        inputs.iter().map(|input| recording && input.tracks_gradient()).collect();
    let tracked = needed.contains(&true);
    let mut context = Context { needed, ..Context::default() };
    let outputs = {
        let _off = Off::new();
        function.forward(&mut context, inputs)?
    };
    if !tracked {
        return Ok(outputs);
    }
    let note = Arc::new(Note {
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
        .map(|(index, output)| output.with_origin(Origin::Output { note: Arc::clone(&note), index }))
        .collect())
}

/// Applies a function that has one output.
pub(crate) fn apply_one(function: impl Function, inputs: &[Tensor]) -> Result<Tensor, TensorError> {
    let name = function.name();
    let mut outputs = apply(function, inputs)?;
    let found = outputs.len();
    outputs.pop().filter(|_| found == 1).ok_or(TensorError::GradientCount {
        function: name,
        inputs: 1,
        found,
    })
}

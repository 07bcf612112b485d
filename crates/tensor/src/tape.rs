//! Reverse-mode differentiation.
//!
//! Applying a [`Function`] to tensors that track gradients notes it on the
//! tape: its inputs, and what it saved. Notes are numbered in the order they
//! are made, so going through them backwards by number visits every function
//! after all that used its results. What a function saved is freed as soon as
//! its backward rule has run. A tape nobody holds the end of frees itself.

use std::cell::Cell;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use shardloom_layout::{DType, Shape};
use smallvec::SmallVec;

use crate::error::TensorError;
use crate::tensor::Tensor;

/// An operation with its derivative. The value itself carries what is not a
/// tensor, so such arguments always arrive.
///
/// ```
/// use shardloom_tensor::{Context, Function, Tensor, TensorError, apply, backward};
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
///     fn backward(&self, _: &Context, gradients: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>, TensorError> {
///         let gradient = gradients[0].as_ref().map(|g| g.mul(&Tensor::scalar(self.factor)?));
///         Ok(vec![gradient.transpose()?])
///     }
/// }
///
/// let x = Tensor::from_slice(&[1.0, 2.0], &[2])?.requires_grad();
/// let y = apply(Scale { factor: 3.0 }, &[x.clone()])?.remove(0).sum(&[0])?;
/// let gradients = backward(&[(y, None)])?;
/// assert_eq!(gradients.of(&x).unwrap().to_vec::<f64>()?, [3.0, 3.0]);
/// # Ok::<(), TensorError>(())
/// ```
pub trait Function: Send + Sync + 'static {
    /// The name, for errors.
    fn name(&self) -> &'static str;

    /// Computes the outputs. Runs off the tape: operations inside are not
    /// differentiated on their own.
    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError>;

    /// Computes the gradients of the inputs from those of the outputs; `None`
    /// stands for zero. The default says that there is no derivative.
    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let _ = (context, gradients);
        Err(TensorError::NotDifferentiable { function: self.name() })
    }
}

/// What a function keeps from forward to backward.
#[derive(Default)]
pub struct Context {
    saved: Vec<Tensor>,
    needed: SmallVec<[bool; 4]>,
}

impl Context {
    /// Keeps tensors for the backward rule. Where no gradient will be asked
    /// for, nothing is kept.
    pub fn save(&mut self, tensors: &[&Tensor]) {
        if self.needed.contains(&true) {
            self.saved.extend(tensors.iter().map(|tensor| tensor.detach()));
        }
    }

    /// What was kept, in order.
    pub fn saved(&self) -> &[Tensor] {
        &self.saved
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
    Parameter(u64),
    Output { note: Arc<Note>, index: usize },
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

static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn next_number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl Origin {
    pub(crate) fn parameter() -> Self {
        Self::Parameter(next_number())
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

/// Runs `work` without a tape: nothing inside is noted.
pub fn no_grad<T>(work: impl FnOnce() -> T) -> T {
    let _off = Off::new();
    work()
}

/// Applies a function and, if an input tracks gradients, notes it on the tape.
pub fn apply(function: impl Function, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
    let recording = OFF.with(|off| off.get() == 0);
    let needed: SmallVec<[bool; 4]> =
        inputs.iter().map(|input| recording && input.tracks_gradient()).collect();
    let tracked = needed.contains(&true);
    let mut context = Context { saved: Vec::new(), needed };
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
            Origin::Parameter(number) => self.by_parameter.get(number),
            Origin::Constant | Origin::Output { .. } => None,
        }
    }

    fn add(&mut self, parameter: u64, gradient: Tensor) -> Result<(), TensorError> {
        let sum = match self.by_parameter.remove(&parameter) {
            // Many small additions lose what half types cannot hold.
            Some(sum) if matches!(gradient.dtype(), DType::Bf16 | DType::F16) => {
                sum.cast(DType::F32)?.add(&gradient.cast(DType::F32)?)?
            }
            Some(sum) => sum.add(&gradient.cast(sum.dtype())?)?,
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
pub fn backward(outputs: &[(Tensor, Option<Tensor>)]) -> Result<Gradients, TensorError> {
    let _off = Off::new();
    let mut sweep = Sweep::default();
    for (output, gradient) in outputs {
        if !output.tracks_gradient() {
            return Err(TensorError::NoGradient { shape: output.shape().clone() });
        }
        let gradient = match gradient {
            Some(gradient) => gradient.detach(),
            None => output.ones_like()?,
        };
        check_gradient("backward", &gradient, output.shape(), output.dtype())?;
        sweep.give(output.origin(), gradient)?;
    }
    while let Some(Due(note)) = sweep.due.pop() {
        sweep.run(&note)?;
    }
    Ok(sweep.gradients)
}

#[derive(Default)]
struct Sweep {
    due: BinaryHeap<Due>,
    /// Gradients of the outputs of notes that are due.
    arrived: FxHashMap<u64, Vec<Option<Tensor>>>,
    gradients: Gradients,
}

impl Sweep {
    fn give(&mut self, origin: &Origin, gradient: Tensor) -> Result<(), TensorError> {
        match origin {
            Origin::Constant => Ok(()),
            Origin::Parameter(number) => self.gradients.add(*number, gradient),
            Origin::Output { note, index } => {
                let arrived = self.arrived.entry(note.number).or_insert_with(|| {
                    self.due.push(Due(Arc::clone(note)));
                    vec![None; note.outputs]
                });
                arrived[*index] = Some(match arrived[*index].take() {
                    Some(sum) => sum.add(&gradient)?,
                    None => gradient,
                });
                Ok(())
            }
        }
    }

    fn run(&mut self, note: &Note) -> Result<(), TensorError> {
        let function = note.function.name();
        let context = note.context.lock().unwrap_or_else(PoisonError::into_inner).take();
        let context = context.ok_or(TensorError::Consumed { function })?;
        let arrived = self.arrived.remove(&note.number).unwrap_or_default();
        let gradients = note.function.backward(&context, &arrived)?;
        if gradients.len() != note.inputs.len() {
            let (inputs, found) = (note.inputs.len(), gradients.len());
            return Err(TensorError::GradientCount { function, inputs, found });
        }
        for ((origin, gradient), (shape, dtype)) in note.inputs.iter().zip(gradients).zip(&note.input_kinds) {
            if let Some(gradient) = gradient {
                check_gradient(function, &gradient, shape, *dtype)?;
                self.give(origin, gradient)?;
            }
        }
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

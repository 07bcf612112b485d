//! What can be wrong with an operation.

use std::ops::Deref;
use std::sync::Arc;

use weightloom_errors::Hint;
use weightloom_layout::{DType, RegionError, Shape, ShapeError};

use crate::device::Device;
use crate::threads;

/// The result of an operation on tensors.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// Why an operation was refused. Every variant names the operation and its
/// operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TensorError {
    /// Shapes that the operation cannot combine.
    #[error("{op} cannot combine shapes {}", joined(shapes))]
    Shapes { op: &'static str, shapes: Vec<Shape> },
    /// Operands of different dtypes.
    #[error("{op} cannot combine dtypes {}", joined(dtypes))]
    DTypes { op: &'static str, dtypes: Vec<DType> },
    /// A dtype that the operation does not compute in.
    #[error("{op} does not take {dtype}")]
    DType { op: &'static str, dtype: DType },
    /// Operands on different devices.
    #[error("{op} cannot combine tensors on {}", joined(devices))]
    Devices { op: &'static str, devices: Vec<Device> },
    /// A dim that the tensor does not have.
    #[error("{op}: a tensor of shape {shape} has no dim {dim}")]
    Dim { op: &'static str, dim: usize, shape: Shape },
    /// A range outside a dim.
    #[error("{op}: {start}..{end} is outside dim {dim} of a tensor of shape {shape}")]
    Range { op: &'static str, dim: usize, start: usize, end: usize, shape: Shape },
    /// An index outside the rows that it chooses from.
    #[error("{op}: index {index} at position {position} is outside 0..{rows}")]
    Index { op: &'static str, index: i64, position: usize, rows: usize },
    /// Nothing to choose from.
    #[error("{op}: a tensor of shape {shape} has nothing to choose from")]
    Empty { op: &'static str, shape: Shape },
    /// The elements given are not as many as the shape has.
    #[error("a tensor of shape {shape} has {} elements, not {found}", shape.volume())]
    ElementCount { shape: Shape, found: usize },
    /// Elements of another type were asked for.
    #[error("a {dtype} tensor cannot be read as {asked}")]
    ReadAs { dtype: DType, asked: DType },
    /// Data was asked of a tensor that has none.
    #[error("{op}: a meta tensor of shape {shape} has no data")]
    NoData { op: &'static str, shape: Shape },
    /// A tensor that does not fit into the bytes it is to be in.
    #[error("a {shape} {dtype} tensor from byte {offset} on does not fit in {found} bytes")]
    Shared { shape: Shape, dtype: DType, offset: usize, found: usize },
    /// Bytes at an address where elements of a dtype cannot be.
    #[error("byte {offset} is at address {address:#x}, where no {dtype} element can begin")]
    Misaligned { dtype: DType, offset: usize, address: usize },
    /// An optimizer was given more or fewer tensors than it keeps.
    #[error("{op} keeps {expected} tensors for each parameter, but {found} were given")]
    StateCount { op: &'static str, expected: usize, found: usize },
    /// A tensor that is written to while the tape needs it.
    #[error("{op}: a tensor of shape {shape} tracks gradients, which writing in place would lose")]
    TracksGradient { op: &'static str, shape: Shape },
    /// A probability outside [0, 1].
    #[error("{op}: {probability} is not a probability")]
    Probability { op: &'static str, probability: String },
    /// The allocator's budget is used up.
    #[error("{asked} bytes do not fit in the memory budget of {budget}, of which {in_use} are in use")]
    OutOfMemory { asked: usize, in_use: usize, budget: usize },
    /// The system has no more memory.
    #[error("the system does not give {asked} bytes of memory")]
    NoMemory { asked: usize },
    #[error("{function} failed")]
    Function { function: &'static str, source: SharedError },
    /// A function on the way has no backward rule.
    #[error("{function} has no backward rule, but its result is differentiated")]
    NotDifferentiable { function: &'static str },
    /// Backward was run over the same function twice.
    #[error("{function} was differentiated before, and what it had saved is gone")]
    Consumed { function: &'static str },
    /// A backward rule did not do its part.
    #[error("{function} returned {found} gradients for {inputs} inputs")]
    GradientCount { function: &'static str, inputs: usize, found: usize },
    /// A gradient that does not fit its tensor.
    #[error("{function}: the gradient of a {expected} {dtype} tensor is {found} {found_dtype}")]
    GradientShape { function: &'static str, expected: Shape, dtype: DType, found: Shape, found_dtype: DType },
    /// Nothing to differentiate.
    #[error("backward from a {shape} tensor that depends on no parameter")]
    NoGradient { shape: Shape },
    /// A recomputed region used a tensor whose gradient would be lost.
    #[error("{function} inside a recomputed region uses a tensor that is not among the region's inputs")]
    Captured { function: &'static str },
    /// A hook for a tensor that has no gradient of its own.
    #[error("a tensor of shape {shape} is not a parameter, so it has no gradient to hook")]
    NotAParameter { shape: Shape },
    /// The pool of threads was made before its size was set.
    #[error("the pool runs with {running} threads already, so it cannot be made with {asked}")]
    ThreadsStarted { asked: usize, running: usize },
    /// Sizes that no tensor can have.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A region that is none.
    #[error(transparent)]
    Region(#[from] RegionError),
}

impl TensorError {
    /// The error of a user's function, hook or collective, of any type.
    ///
    /// ```
    /// use weightloom_tensor::TensorError;
    ///
    /// let error = TensorError::from_function("load", std::fmt::Error);
    /// assert!(error.function_source::<std::fmt::Error>().is_some());
    /// ```
    pub fn from_function(
        function: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Function { function, source: SharedError(Arc::from(source.into())) }
    }

    /// The error that a function returned, if it is of this type.
    pub fn function_source<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Function { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }
}

/// An error of any type that clones share. It equals only its clones.
#[derive(Clone, Debug)]
pub struct SharedError(Arc<dyn std::error::Error + Send + Sync>);

impl Deref for SharedError {
    type Target = dyn std::error::Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for SharedError {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedError {}

impl Hint for TensorError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::DTypes { .. } => "cast the operands to one dtype".to_owned(),
            Self::NotDifferentiable { .. } => "detach its inputs, or give it a backward rule".to_owned(),
            Self::Consumed { .. } => "run the forward pass again before differentiating again".to_owned(),
            Self::OutOfMemory { .. } => "free tensors, or raise the budget".to_owned(),
            Self::NoMemory { .. } => "use smaller tensors, or a machine with more memory".to_owned(),
            Self::Captured { .. } => "pass it to the region as an input, or detach it".to_owned(),
            Self::NotAParameter { .. } => "use `register_hook` for tensors that are computed".to_owned(),
            Self::ThreadsStarted { asked, .. } => {
                format!(
                    "set it before the first tensor is computed, or start with {}={asked}",
                    threads::VARIABLE
                )
            }
            Self::Misaligned { dtype, .. } => {
                format!("copy the bytes, or let them begin at a multiple of {}", dtype.size())
            }
            Self::StateCount { .. } => "give it one tensor for each name in its `states`".to_owned(),
            Self::TracksGradient { .. } => "detach it, or write inside `no_grad`".to_owned(),
            Self::ReadAs { dtype, .. } => format!("cast it first, or read it as {dtype}"),
            _ => return None,
        })
    }
}

fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

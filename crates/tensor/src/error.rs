//! Errors of operations on local tensors.

use std::ops::Deref;
use std::sync::Arc;

use weightloom_cuda::CudaError;
use weightloom_errors::Hint;
use weightloom_layout::{DType, RegionError, Shape, ShapeError};

use crate::device::Device;
use crate::threads;

/// The result of an operation on tensors.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TensorError {
    #[error("{op} cannot combine shapes {}", joined(shapes))]
    Shapes { op: &'static str, shapes: Vec<Shape> },
    #[error("{op} cannot combine dtypes {}", joined(dtypes))]
    DTypes { op: &'static str, dtypes: Vec<DType> },
    #[error("{op} does not support {dtype}")]
    DType { op: &'static str, dtype: DType },
    #[error("{op} cannot combine tensors on {}", joined(devices))]
    Devices { op: &'static str, devices: Vec<Device> },
    #[error("{op}: a tensor of shape {shape} has no dim {dim}")]
    Dim { op: &'static str, dim: usize, shape: Shape },
    #[error("{op}: {start}..{end} is out of range for dim {dim} of a tensor of shape {shape}")]
    Range { op: &'static str, dim: usize, start: usize, end: usize, shape: Shape },
    #[error("{op}: bytes {start}..{end} are out of range for a tensor of shape {shape}, which has {bytes}")]
    ByteRange { op: &'static str, start: usize, end: usize, bytes: usize, shape: Shape },
    #[error("{op}: index {index} at position {position} is out of range for {rows} rows")]
    Index { op: &'static str, index: i64, position: usize, rows: usize },
    #[error("{op}: cannot reduce an empty dim of a tensor of shape {shape}")]
    Empty { op: &'static str, shape: Shape },
    #[error("a tensor of shape {shape} has {} elements, not {found}", shape.volume())]
    ElementCount { shape: Shape, found: usize },
    #[error("cannot read a {dtype} tensor as {asked}")]
    ReadAs { dtype: DType, asked: DType },
    #[error("{op}: a meta tensor of shape {shape} has no data")]
    NoData { op: &'static str, shape: Shape },
    #[error("a {shape} {dtype} tensor at byte {offset} does not fit in {found} bytes")]
    Shared { shape: Shape, dtype: DType, offset: usize, found: usize },
    #[error("byte {offset} is at address {address:#x}, which is not aligned for {dtype}")]
    Misaligned { dtype: DType, offset: usize, address: usize },
    #[error("{op} keeps {expected} tensors for each parameter, but {found} were given")]
    StateCount { op: &'static str, expected: usize, found: usize },
    #[error("{op}: cannot write in place to a tensor of shape {shape} that tracks gradients")]
    TracksGradient { op: &'static str, shape: Shape },
    #[error("{op}: {probability} is not a probability")]
    Probability { op: &'static str, probability: String },
    #[error("{asked} bytes do not fit in the memory budget of {budget}, of which {in_use} are in use")]
    OutOfMemory { asked: usize, in_use: usize, budget: usize },
    #[error("the system cannot allocate {asked} bytes")]
    NoMemory { asked: usize },
    #[error("{function} failed")]
    Function { function: &'static str, source: SharedError },
    #[error("cannot differentiate {function}: it has no backward rule")]
    NotDifferentiable { function: &'static str },
    #[error("cannot differentiate {function} twice: its saved tensors are freed")]
    Consumed { function: &'static str },
    #[error("cannot differentiate the gradient of {function}: it has no second-order rule")]
    NotTwiceDifferentiable { function: &'static str },
    #[error("{function} panicked in `{method}`: {message}")]
    Panicked { function: &'static str, method: &'static str, message: String },
    #[error("{function} marks output {output} as non-differentiable, but has {outputs} outputs")]
    NoSuchOutput { function: &'static str, output: usize, outputs: usize },
    #[error("no value of type `{value}` was saved for backward")]
    NoSavedValue { value: &'static str },
    #[error("{function} returned {found} gradients for {inputs} inputs")]
    GradientCount { function: &'static str, inputs: usize, found: usize },
    #[error("{function}: the gradient of a {expected} {dtype} tensor is {found} {found_dtype}")]
    GradientShape { function: &'static str, expected: Shape, dtype: DType, found: Shape, found_dtype: DType },
    #[error("backward from a {shape} tensor that depends on no parameter")]
    NoGradient { shape: Shape },
    #[error("{function} inside a recomputed region uses a tensor that is not among the region's inputs")]
    Captured { function: &'static str },
    #[error("cannot register a parameter hook: a tensor of shape {shape} is not a parameter")]
    NotAParameter { shape: Shape },
    #[error("cannot set the thread count to {asked}: the pool already runs with {running} threads")]
    ThreadsStarted { asked: usize, running: usize },
    #[error(transparent)]
    Cuda(CudaError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
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

    /// Whether there was too little memory, on any device.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Self::OutOfMemory { .. }
                | Self::NoMemory { .. }
                | Self::Cuda(
                    CudaError::OutOfMemory { .. } | CudaError::OverBudget { .. } | CudaError::NoRoom { .. }
                )
        )
    }

    /// Whether a device other than the CPU failed.
    pub fn is_of_device(&self) -> bool {
        matches!(self, Self::Cuda(_))
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
            Self::NotDifferentiable { .. } => {
                "detach its inputs, or implement `Function::backward`".to_owned()
            }
            Self::NotTwiceDifferentiable { .. } => {
                "detach the gradient, or implement `Function::double_backward`".to_owned()
            }
            Self::NoSavedValue { .. } => "save it in `forward` with `Context::save_value`".to_owned(),
            Self::Consumed { .. } => {
                "retain the tape with `Tape::Retain`, or run the forward pass again".to_owned()
            }
            Self::OutOfMemory { .. } => "free tensors, or raise the budget".to_owned(),
            Self::NoMemory { .. } => "use smaller tensors, or a machine with more memory".to_owned(),
            Self::Captured { .. } => "pass it to the region as an input, or detach it".to_owned(),
            Self::NotAParameter { .. } => "use `register_hook` for computed tensors".to_owned(),
            Self::ThreadsStarted { asked, .. } => {
                format!("set it before the first computation, or start with {}={asked}", threads::VARIABLE)
            }
            Self::Misaligned { dtype, .. } => {
                format!("copy the bytes, or start them at a multiple of {}", dtype.size())
            }
            Self::StateCount { .. } => "pass one tensor for each name in `states`".to_owned(),
            Self::TracksGradient { .. } => "detach it, or write inside `no_grad`".to_owned(),
            Self::Cuda(error) => return error.hint(),
            Self::Devices { .. } => "move the operands to one device with `to`".to_owned(),
            Self::ReadAs { dtype, .. } => format!("cast it first, or read it as {dtype}"),
            _ => return None,
        })
    }
}

fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

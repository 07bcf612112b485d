//! What can be wrong with a distributed operation.

use weightloom_errors::Hint;
use weightloom_gang::GangError;
use weightloom_layout::{DType, Layout, LayoutError, MeshError, PlanError, Shape};
use weightloom_tensor::TensorError;

use crate::comm_log::Pass;
use crate::dist_context::DistContext;

/// Why something was not done with distributed tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DTensorError {
    /// A function without an operation's name was given distributed tensors.
    #[error("{function} was given distributed tensors, but names no operation whose rule applies to it")]
    Unnamed { function: &'static str },
    /// No rule is registered under a name.
    #[error("no rule is registered for operation `{name}`")]
    UnknownOp {
        name: String,
        /// The registered name that it most likely means.
        near: Option<String>,
    },
    /// Two rules under one name.
    #[error("operation `{name}` has a rule already")]
    DuplicateOp { name: String },
    /// Operands on different meshes.
    #[error("{op} cannot combine tensors on different meshes: {first} and {other}")]
    Meshes { op: &'static str, first: Layout, other: Layout },
    /// Operands of different worlds.
    #[error("{op} cannot combine tensors of different groups of ranks")]
    Worlds { op: &'static str },
    /// A local tensor that is not the part its layout says.
    #[error("{op}: rank {rank} holds {found}, but of {shape} as {layout} its part is {expected}")]
    Local { op: &'static str, rank: usize, found: Shape, expected: Shape, shape: Shape, layout: Layout },
    /// A local tensor of another dtype than its operation's rule was told.
    #[error("{op}: the local part is {found}, but {expected} was expected")]
    DTypes { op: &'static str, found: DType, expected: DType },
    /// A gradient for something of another shape.
    #[error("{op}: a gradient of {found} {found_dtype} is no gradient of {expected} {expected_dtype}")]
    Gradient { op: &'static str, found: Shape, found_dtype: DType, expected: Shape, expected_dtype: DType },
    /// Gradients asked of a pending maximum, minimum or product.
    #[error("the gradient of an output that is pending as {layout} is not defined")]
    Unsettled { layout: Layout },
    /// An operation gave another number of results than its rule.
    #[error("{op} gave {found} results, but its rule names {expected}")]
    Results { op: &'static str, found: usize, expected: usize },
    /// A rule that does not describe the call.
    #[error("the rule of {op} does not fit its operands: {reason}")]
    Rule { op: &'static str, reason: String },
    /// A name in a plan that is nothing's.
    #[error("the plan names `{pattern}`, which the model does not have")]
    UnknownName { pattern: String, near: Option<String> },
    /// A hidden collective where none is allowed.
    #[error("{op} needs data to move: {}", moves.join("; "))]
    Hidden { op: &'static str, moves: Vec<String> },
    /// Infinity or NaN where only finite numbers are allowed.
    #[error("{op} gave infinity or NaN in its {pass} pass, in {local} {dtype} of rank {rank}")]
    NotFinite { op: &'static str, pass: Pass, rank: usize, local: Shape, dtype: DType },
    /// A move that has no gradient.
    #[error("values that differ by rank and are pending {layout} cannot be made so with a gradient")]
    NotDifferentiable { layout: Layout },
    /// Something that needs data or ranks, asked of a dry run.
    #[error("{what} needs ranks that run, but this is a dry run")]
    Dry { what: &'static str },
    /// The local computation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The thread that communicates beside the computation is gone.
    #[error("communication beside the computation has ended: a job of it panicked")]
    Background,
    /// The layouts do not fit.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The mesh does not fit.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// No way from one layout to another.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Ranks could not act together.
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl Hint for DTensorError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unnamed { function } => {
                Some(format!("return a name from `op_name` of {function}, and register a rule under it"))
            }
            Self::UnknownOp { near: Some(near), .. } => {
                Some(format!("write `{near}`, or register a rule before the registry is frozen"))
            }
            Self::UnknownOp { .. } => Some("register a rule before the registry is frozen".to_owned()),
            Self::UnknownName { near, .. } => near.as_ref().map(|near| format!("write `{near}`")),
            Self::DuplicateOp { .. } => Some("give one of them another name".to_owned()),
            Self::Unsettled { .. } => Some("redistribute the output first".to_owned()),
            Self::Meshes { .. } => Some("redistribute one of them first".to_owned()),
            Self::Hidden { .. } => {
                Some("redistribute the operands first, or allow it with the implicit mode".to_owned())
            }
            Self::NotFinite { dtype: DType::F16, .. } => {
                Some("use bf16 or f32, or scale the loss".to_owned())
            }
            Self::NotDifferentiable { .. } => Some("detach the tensor, or ask for a pending sum".to_owned()),
            Self::Tensor(error) => error.hint(),
            Self::Layout(error) => error.hint(),
            Self::Mesh(error) => error.hint(),
            Self::Plan(error) => error.hint(),
            Self::Gang(error) => error.hint(),
            _ => None,
        }
    }
}

impl DTensorError {
    /// As it passes through the tape, which knows local errors alone. The error
    /// itself waits with the ranks; see [`Ranks::unpark`].
    pub(crate) fn inside(self, function: &'static str, dist: &DistContext) -> TensorError {
        match self {
            Self::Tensor(error) => error,
            other => {
                let reason = other.to_string();
                dist.park(other);
                TensorError::Outside { function, reason }
            }
        }
    }
}

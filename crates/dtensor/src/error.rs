//! Errors of distributed operations.

use weightloom_errors::Hint;
use weightloom_gang::GangError;
use weightloom_layout::{DType, Layout, LayoutError, MeshError, PlanError, Shape};
use weightloom_tensor::TensorError;

use crate::comm_log::Pass;

/// The result of an operation on distributed tensors.
pub type Result<T, E = DTensorError> = std::result::Result<T, E>;

/// Why an operation on distributed tensors failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DTensorError {
    #[error("cannot apply `{function}` to distributed tensors: it names no operation with a sharding rule")]
    UnnamedOp { function: &'static str },
    #[error("no sharding rule is registered for operation `{name}`")]
    UnknownOp {
        name: String,
        /// The registered name nearest to it.
        near: Option<String>,
    },
    #[error("operation `{name}` already has a sharding rule")]
    DuplicateOp { name: String },
    #[error("{op} cannot combine tensors on different meshes: {first} and {other}")]
    Meshes { op: &'static str, first: Layout, other: Layout },
    #[error("{op} cannot go from {from} to {to}: rank {rank} is in only one of the meshes")]
    MeshRanks { op: &'static str, rank: usize, from: Layout, to: Layout },
    #[error("{op} cannot combine tensors of different contexts")]
    Contexts { op: &'static str },
    #[error(
        "{op}: the local tensor of rank {rank} is {found}, but the shard of {shape} as {layout} is {expected}"
    )]
    LocalShape { op: &'static str, rank: usize, found: Shape, expected: Shape, shape: Shape, layout: Layout },
    #[error("{op}: the local tensor is {found}, expected {expected}")]
    LocalDType { op: &'static str, found: DType, expected: DType },
    #[error("{op}: a gradient of {found} {found_dtype} does not fit a tensor of {expected} {expected_dtype}")]
    Gradient { op: &'static str, found: Shape, found_dtype: DType, expected: Shape, expected_dtype: DType },
    #[error("cannot differentiate an output with the pending reduction {layout}")]
    PendingOutput { layout: Layout },
    #[error("{op} returned {found} results, but its sharding rule has {expected}")]
    ResultCount { op: &'static str, found: usize, expected: usize },
    #[error("the sharding rule of {op} does not fit its operands: {reason}")]
    Rule { op: &'static str, reason: String },
    #[error("the sharding rule of {op} is wrong: with operands in {layouts}, {problem}")]
    WrongRule { op: &'static str, layouts: String, problem: String },
    #[error("the sharding plan names `{pattern}`, which matches nothing in the model")]
    UnknownName { pattern: String, near: Option<String> },
    #[error("{op} needs an implicit redistribution: {}", redistributions.join("; "))]
    ImplicitRedistribution { op: &'static str, redistributions: Vec<String> },
    #[error("{op} gave infinity or NaN in its {pass} pass, in {local} {dtype} of rank {rank}")]
    NotFinite { op: &'static str, pass: Pass, rank: usize, local: Shape, dtype: DType },
    #[error("cannot redistribute to {layout} with a gradient: the new pending reduction is not linear")]
    NotDifferentiable { layout: Layout },
    #[error("cannot {what} in a dry run")]
    DryRun { what: &'static str },
    #[error("the background communication thread panicked")]
    BackgroundPanic,
    #[error(transparent)]
    Tensor(TensorError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl Hint for DTensorError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::UnnamedOp { function } => {
                Some(format!("return a name from `op_name` of `{function}`, and register a rule for it"))
            }
            Self::UnknownOp { near: Some(near), .. } => {
                Some(format!("write `{near}`, or register a rule before the registry is frozen"))
            }
            Self::UnknownOp { .. } => Some("register a rule before the registry is frozen".to_owned()),
            Self::UnknownName { near, .. } => near.as_ref().map(|near| format!("write `{near}`")),
            Self::DuplicateOp { .. } => Some("rename one of the two operations".to_owned()),
            Self::PendingOutput { .. } => Some("redistribute the output first".to_owned()),
            Self::Meshes { .. } => Some("redistribute one of them first".to_owned()),
            Self::MeshRanks { .. } => Some("use a mesh of the same ranks, in any order".to_owned()),
            Self::LocalShape { op: "from_local", .. } | Self::LocalDType { op: "from_local", .. } => None,
            Self::LocalShape { op, .. } | Self::LocalDType { op, .. } | Self::ResultCount { op, .. } => {
                Some(format!("make `forward`, `meta` and the sharding rule of `{op}` agree"))
            }
            Self::ImplicitRedistribution { .. } => {
                Some("redistribute the operands first, or use `RedistributeMode::Implicit`".to_owned())
            }
            Self::NotFinite { dtype: DType::F16, .. } => {
                Some("use bf16 or f32, or scale the loss".to_owned())
            }
            Self::WrongRule { .. } => {
                Some("label only dims along which the function works on each part alone".to_owned())
            }
            Self::NotDifferentiable { .. } => {
                Some("detach the tensor, or redistribute to a pending sum".to_owned())
            }
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
    /// This error as it passes through the tape, which returns local errors.
    /// Converting back recovers it.
    pub(crate) fn into_tensor_error(self, function: &'static str) -> TensorError {
        match self {
            Self::Tensor(error) => error,
            other => TensorError::from_function(function, other),
        }
    }
}

impl From<TensorError> for DTensorError {
    /// The distributed error that a function on the tape returned, or the local
    /// error.
    fn from(error: TensorError) -> Self {
        match error.function_source::<Self>() {
            Some(distributed) => distributed.clone(),
            None => Self::Tensor(error),
        }
    }
}

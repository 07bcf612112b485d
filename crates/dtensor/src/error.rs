//! What can be wrong with a distributed operation.

use shardloom_gang::GangError;
use shardloom_layout::{DType, Hint, Layout, LayoutError, MeshError, PlanError, Shape};
use shardloom_tensor::TensorError;

use crate::bill::Pass;
use crate::ranks::Ranks;

/// Why something was not done with distributed tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DTensorError {
    /// A function without an operation's name was given distributed tensors.
    #[error("{function} was given distributed tensors, but names no operation whose rule applies to it")]
    Unnamed {
        /// The function.
        function: &'static str,
    },
    /// No rule is registered under a name.
    #[error("no rule is registered for operation `{name}`")]
    UnknownOp {
        /// The name.
        name: String,
        /// The registered name that it most likely means.
        near: Option<String>,
    },
    /// Two rules under one name.
    #[error("operation `{name}` has a rule already")]
    DuplicateOp {
        /// The name.
        name: String,
    },
    /// Operands on different meshes.
    #[error("{op} cannot combine tensors on different meshes: {first} and {other}")]
    Meshes {
        /// The operation.
        op: &'static str,
        /// The first operand's layout.
        first: Layout,
        /// Another's.
        other: Layout,
    },
    /// Operands of different worlds.
    #[error("{op} cannot combine tensors of different groups of ranks")]
    Worlds {
        /// The operation.
        op: &'static str,
    },
    /// A local tensor that is not the part its layout says.
    #[error("{op}: rank {rank} holds {found}, but of {shape} as {layout} its part is {expected}")]
    Local {
        /// The operation.
        op: &'static str,
        /// The rank.
        rank: usize,
        /// The local shape found.
        found: Shape,
        /// The local shape that fits.
        expected: Shape,
        /// The global shape.
        shape: Shape,
        /// The layout.
        layout: Layout,
    },
    /// A local tensor of another dtype than its operation's rule was told.
    #[error("{op}: the local part is {found}, but {expected} was expected")]
    DTypes {
        /// The operation.
        op: &'static str,
        /// The dtype found.
        found: DType,
        /// The dtype that fits.
        expected: DType,
    },
    /// A gradient for something of another shape.
    #[error("{op}: a gradient of {found} {found_dtype} is no gradient of {expected} {expected_dtype}")]
    Gradient {
        /// The operation.
        op: &'static str,
        /// The gradient's shape.
        found: Shape,
        /// Its dtype.
        found_dtype: DType,
        /// The tensor's shape.
        expected: Shape,
        /// Its dtype.
        expected_dtype: DType,
    },
    /// Gradients asked of a pending maximum, minimum or product.
    #[error("the gradient of an output that is pending as {layout} is not defined")]
    Unsettled {
        /// The output's layout.
        layout: Layout,
    },
    /// An operation gave another number of results than its rule.
    #[error("{op} gave {found} results, but its rule names {expected}")]
    Results {
        /// The operation.
        op: &'static str,
        /// Results found.
        found: usize,
        /// Results that the rule names.
        expected: usize,
    },
    /// A rule that does not describe the call.
    #[error("the rule of {op} does not fit its operands: {reason}")]
    Rule {
        /// The operation.
        op: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// A name in a plan that is nothing's.
    #[error("the plan names `{pattern}`, which the model does not have")]
    UnknownName {
        /// The name or pattern.
        pattern: String,
        /// The name that it most likely means.
        near: Option<String>,
    },
    /// A hidden collective where none is allowed.
    #[error("{op} needs data to move: {}", moves.join("; "))]
    Hidden {
        /// The operation.
        op: &'static str,
        /// Each move, as operand, from, to.
        moves: Vec<String>,
    },
    /// Infinity or NaN where only finite numbers are allowed.
    #[error("{op} gave infinity or NaN in its {pass} pass, in {local} {dtype} of rank {rank}")]
    NotFinite {
        /// The operation.
        op: &'static str,
        /// In which pass.
        pass: Pass,
        /// The rank that has it.
        rank: usize,
        /// The shape of its part.
        local: Shape,
        /// The dtype.
        dtype: DType,
    },
    /// A move that has no gradient.
    #[error("values that differ by rank and are pending {layout} cannot be made so with a gradient")]
    NotDifferentiable {
        /// The layout asked for.
        layout: Layout,
    },
    /// Something that needs data or ranks, asked of a dry run.
    #[error("{what} needs ranks that run, but this is a dry run")]
    Dry {
        /// What was asked.
        what: &'static str,
    },
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
    pub(crate) fn inside(self, function: &'static str, ranks: &Ranks) -> TensorError {
        match self {
            Self::Tensor(error) => error,
            other => {
                let reason = other.to_string();
                ranks.park(other);
                TensorError::Outside { function, reason }
            }
        }
    }
}

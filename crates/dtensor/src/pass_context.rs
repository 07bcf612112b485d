//! What the caller of a training pass asks for beside its results.

use std::sync::Arc;

use crate::nan_check::NanCheck;

/// When the gradients of trained parameters are summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientReduction {
    /// At the end of the step, because more passes will add to them.
    #[default]
    Deferred,
    /// Layer by layer during this backward pass, the last one of the step.
    DuringBackward,
}

/// Options of one forward pass and its backward pass, passed by the caller.
#[derive(Clone, Debug, Default)]
pub struct PassContext {
    /// When gradients are summed over ranks.
    pub gradient_reduction: GradientReduction,
    /// Checks the results of the pass.
    pub nan_check: Option<Arc<NanCheck>>,
}

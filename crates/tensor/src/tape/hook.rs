//! Looking at gradients, and changing them, as they pass.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Context, Function, Origin, apply_one};
use crate::error::TensorError;
use crate::tensor::Tensor;

type Hook = Arc<dyn Fn(Tensor) -> Result<Tensor, TensorError> + Send + Sync>;

/// What is called with a parameter's gradient when it is whole.
#[derive(Default)]
pub(super) struct Hooks(Mutex<Vec<Hook>>);

impl Hooks {
    fn list(&self) -> MutexGuard<'_, Vec<Hook>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    pub(super) fn run(&self, gradient: Tensor) -> Result<Tensor, TensorError> {
        // A hook may add hooks, so the list is not held while they run.
        let hooks = self.list().clone();
        hooks.iter().try_fold(gradient, |gradient, hook| hook(gradient))
    }
}

struct Hooked {
    hook: Hook,
}

impl Function for Hooked {
    fn name(&self) -> &'static str {
        "register_hook"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![inputs[0].detach()])
    }

    fn backward(
        &self,
        _: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        gradients
            .into_iter()
            .map(|gradient| gradient.map(|gradient| (self.hook)(gradient)).transpose())
            .collect()
    }
}

impl Tensor {
    /// The same tensor, whose gradient goes through `hook` on its way back. The
    /// hook returns the gradient as it shall go on.
    pub fn register_hook(
        &self,
        hook: impl Fn(Tensor) -> Result<Tensor, TensorError> + Send + Sync + 'static,
    ) -> Result<Self, TensorError> {
        apply_one(Hooked { hook: Arc::new(hook) }, std::slice::from_ref(self))
    }

    /// Has `hook` called with the gradient of this parameter in every backward
    /// pass, as soon as all its uses have added to it and while the pass goes
    /// on. The hook returns the gradient as it shall be. It belongs to the
    /// parameter, whichever of its clones it was given to.
    pub fn register_parameter_hook(
        &self,
        hook: impl Fn(Tensor) -> Result<Tensor, TensorError> + Send + Sync + 'static,
    ) -> Result<(), TensorError> {
        let Origin::Parameter(parameter) = self.origin() else {
            return Err(TensorError::NotAParameter { shape: self.shape().clone() });
        };
        parameter.hooks.list().push(Arc::new(hook));
        Ok(())
    }
}

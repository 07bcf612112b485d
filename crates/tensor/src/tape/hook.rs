//! Hooks on gradients.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Context, Function, Origin, apply_one};
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

type Hook = Arc<dyn Fn(Tensor) -> Result<Tensor> + Send + Sync>;

/// Hooks that run when the gradient of a parameter is complete.
#[derive(Default)]
pub(super) struct Hooks(Mutex<Vec<Hook>>);

impl Hooks {
    fn list(&self) -> MutexGuard<'_, Vec<Hook>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    pub(super) fn run(&self, gradient: Tensor) -> Result<Tensor> {
        // Release the lock: a hook may register hooks.
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

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![inputs[0].detach()])
    }

    fn backward(&self, _: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        gradients
            .into_iter()
            .map(|gradient| gradient.map(|gradient| (self.hook)(gradient)).transpose())
            .collect()
    }
}

impl Tensor {
    /// Returns the same tensor with a hook: in the backward pass, `hook` receives
    /// the gradient of the returned tensor and returns the gradient to continue
    /// with.
    pub fn register_hook(
        &self,
        hook: impl Fn(Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Self> {
        apply_one(Hooked { hook: Arc::new(hook) }, std::slice::from_ref(self))
    }

    /// Registers a hook on a parameter. Every backward pass calls it with the
    /// gradient as soon as all uses of the parameter have added to it, and
    /// continues with the gradient it returns. Clones of a parameter share hooks.
    pub fn register_parameter_hook(
        &self,
        hook: impl Fn(Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<()> {
        let Origin::Parameter(parameter) = self.origin() else {
            return Err(TensorError::NotAParameter { shape: self.shape().clone() });
        };
        parameter.hooks.list().push(Arc::new(hook));
        Ok(())
    }
}

//! Trading time for memory: a region that is computed again instead of kept.

use std::sync::Arc;

use weightloom_layout::DType;

use super::{Closed, Context, Function, Origin, apply, backward};
use crate::error::TensorError;
use crate::tensor::Tensor;

struct Region<F> {
    region: F,
    /// How many of the inputs go into the region; parameters follow.
    given: usize,
    /// Parameters that the region uses by itself.
    parameters: Arc<[u64]>,
    /// What their gradients are to be.
    dtypes: Vec<DType>,
}

/// Computes a region of which only the inputs are kept; whatever else it needs
/// for its gradient is computed again when that is asked for. The result is the
/// same, bit for bit: randomness belongs to elements, not to the order of
/// drawing.
///
/// Everything that is differentiated goes through `inputs`. A region that uses
/// another tensor that tracks gradients is an error, because that gradient
/// would be lost; see [`recompute_over`] for parameters.
///
/// ```
/// use weightloom_tensor::{Tensor, TensorError, backward, recompute};
///
/// let x = Tensor::from_slice(&[0.5, -1.0], &[2])?.requires_grad();
/// let y = recompute(&[x.clone()], |x| Ok(vec![x[0].exp()?.tanh()?]))?;
/// let gradients = backward([(y[0].clone(), None)])?;
/// assert!(gradients.of(&x).is_some());
/// # Ok::<(), TensorError>(())
/// ```
pub fn recompute(
    inputs: &[Tensor],
    region: impl Fn(&[Tensor]) -> Result<Vec<Tensor>, TensorError> + Send + Sync + 'static,
) -> Result<Vec<Tensor>, TensorError> {
    recompute_over(inputs, &[], region)
}

/// The same for a region that uses some parameters by itself. It is given the
/// inputs alone. Parameters that are not trained need not be named, but may be.
pub fn recompute_over(
    inputs: &[Tensor],
    parameters: &[Tensor],
    region: impl Fn(&[Tensor]) -> Result<Vec<Tensor>, TensorError> + Send + Sync + 'static,
) -> Result<Vec<Tensor>, TensorError> {
    let trained = parameters.iter().filter_map(|parameter| match parameter.origin() {
        Origin::Parameter(origin) => Some((origin.number, parameter)),
        _ => None,
    });
    let (numbers, parameters): (Vec<u64>, Vec<&Tensor>) = trained.unzip();
    let dtypes = parameters.iter().map(|parameter| parameter.dtype()).collect();
    let function = Region { region, given: inputs.len(), parameters: numbers.into(), dtypes };
    let all: Vec<Tensor> = inputs.iter().chain(parameters).cloned().collect();
    apply(function, &all)
}

impl<F> Function for Region<F>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>, TensorError> + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let given = &inputs[..self.given];
        context.save(&given.iter().collect::<Vec<_>>());
        let detached: Vec<Tensor> = given.iter().map(Tensor::detach).collect();
        let _closed = Closed::new(Arc::clone(&self.parameters));
        (self.region)(&detached)
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let inputs: Vec<Tensor> = (context.saved().iter().enumerate())
            .map(|(place, input)| if context.needs(place) { input.requires_grad() } else { input.clone() })
            .collect();
        let outputs = super::with_tape(|| (self.region)(&inputs))?;
        let asked: Vec<(Tensor, Option<Tensor>)> = outputs
            .into_iter()
            .zip(gradients)
            .filter_map(|(output, gradient)| Some((output, Some(gradient?))))
            .filter(|(output, _)| output.tracks_gradient())
            .collect();
        if asked.is_empty() {
            return Ok(vec![None; inputs.len() + self.parameters.len()]);
        }
        let mut found = backward(asked)?;
        let mut all = Vec::with_capacity(inputs.len() + self.parameters.len());
        for input in &inputs {
            all.push(found.of(input).map(|gradient| gradient.cast(input.dtype())).transpose()?);
        }
        for (number, dtype) in self.parameters.iter().zip(&self.dtypes) {
            // Several uses of half types are summed in more digits.
            all.push(found.take(*number).map(|gradient| gradient.cast(*dtype)).transpose()?);
        }
        Ok(all)
    }
}

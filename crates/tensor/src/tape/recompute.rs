//! Activation checkpointing.

use std::sync::Arc;

use weightloom_layout::DType;

use super::{Context, Function, Origin, RegionGuard, backward, record};
use crate::error::Result;
use crate::tensor::Tensor;

struct Region<F> {
    region: F,
    /// The number of inputs of the region; captured parameters follow.
    given: usize,
    /// Parameters that the region captures.
    parameters: Arc<[u64]>,
    /// The dtypes of their gradients.
    dtypes: Vec<DType>,
}

/// Activation checkpointing: runs a region of which the tape keeps only the
/// inputs. The backward pass runs the region again for the rest. Results keep
/// their bits, because random numbers depend on the element and not on the order
/// of drawing.
///
/// All tensors to differentiate must be among `inputs`. A region that captures
/// another tensor that tracks gradients is an error, because that gradient would
/// be lost; see [`recompute_over`] for parameters.
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
    region: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    recompute_over(inputs, &[], region)
}

/// As [`recompute`], for a region that captures some `parameters`. The region
/// receives only the inputs. Frozen parameters may be left out.
pub fn recompute_over(
    inputs: &[Tensor],
    parameters: &[Tensor],
    region: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    let trained = parameters.iter().filter_map(|parameter| match parameter.origin() {
        Origin::Parameter(origin) => Some((origin.number, parameter)),
        _ => None,
    });
    let (numbers, parameters): (Vec<u64>, Vec<&Tensor>) = trained.unzip();
    let dtypes = parameters.iter().map(|parameter| parameter.dtype()).collect();
    let function = Region { region, given: inputs.len(), parameters: numbers.into(), dtypes };
    let all: Vec<Tensor> = inputs.iter().chain(parameters).cloned().collect();
    record(function, &all)
}

impl<F> Function for Region<F>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let given = &inputs[..self.given];
        context.save(&given.iter().collect::<Vec<_>>());
        let detached: Vec<Tensor> = given.iter().map(Tensor::detach).collect();
        let _closed = RegionGuard::new(Arc::clone(&self.parameters));
        (self.region)(&detached)
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let inputs: Vec<Tensor> = (context.saved().iter().enumerate())
            .map(|(place, input)| if context.needs(place) { input.requires_grad() } else { input.clone() })
            .collect();
        let outputs = super::with_grad(|| (self.region)(&inputs))?;
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
            // Several uses of half types are summed in f32.
            all.push(found.take(*number).map(|gradient| gradient.cast(*dtype)).transpose()?);
        }
        Ok(all)
    }
}

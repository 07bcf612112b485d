//! Regions of distributed tensors that are computed again instead of kept.

use std::sync::{Arc, Mutex};

use weightloom_tensor::{Tensor, TensorError, recompute_over};

use crate::dist_context::locked;
use crate::dtensor::DTensor;
use crate::error::DTensorError;
use crate::spec::DTensorSpec;

/// As [`recompute_over`] for distributed tensors: of a region only the inputs
/// are kept. Parameters that it uses by itself are given by name, so to speak.
/// All ranks compute it again at the same point of the backward pass.
pub fn recompute(
    inputs: &[DTensor],
    parameters: &[DTensor],
    region: impl Fn(&[DTensor]) -> Result<Vec<DTensor>, DTensorError> + Send + Sync + 'static,
) -> Result<Vec<DTensor>, DTensorError> {
    let Some(first) = inputs.first() else {
        return Err(DTensorError::Rule { op: "recompute", reason: "there are no operands".to_owned() });
    };
    let dist = Arc::clone(first.dist());
    let specs: Vec<Arc<DTensorSpec>> = inputs.iter().map(|input| Arc::clone(input.spec())).collect();
    let made: Arc<Mutex<Vec<Arc<DTensorSpec>>>> = Arc::default();
    let (of_region, seen) = (Arc::clone(&dist), Arc::clone(&made));
    let locals: Vec<Tensor> = inputs.iter().map(|input| input.to_local().clone()).collect();
    let of_parameters: Vec<Tensor> = parameters.iter().map(|input| input.to_local().clone()).collect();
    let outputs = recompute_over(&locals, &of_parameters, move |locals| {
        let work = || {
            let wrap = |(local, spec): (&Tensor, &Arc<DTensorSpec>)| {
                DTensor::wrapped("recompute", &of_region, local.clone(), Arc::clone(spec))
            };
            let inputs = locals.iter().zip(&specs).map(wrap).collect::<Result<Vec<_>, _>>()?;
            region(&inputs)
        };
        let outputs =
            work().map_err(|error: DTensorError| -> TensorError { error.inside("recompute", &of_region) })?;
        *locked(&seen) = outputs.iter().map(|output| Arc::clone(output.spec())).collect();
        Ok(outputs.iter().map(|output| output.to_local().clone()).collect())
    });
    let outputs = outputs.map_err(|error| dist.unpark(error))?;
    let specs = locked(&made).clone();
    let wrap = |(local, spec)| DTensor::wrapped("recompute", &dist, local, spec);
    outputs.into_iter().zip(specs).map(wrap).collect()
}

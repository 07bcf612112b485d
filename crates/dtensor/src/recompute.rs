//! Activation checkpointing of distributed tensors.

use std::sync::{Arc, Mutex};

use weightloom_tensor::{Tensor, recompute_over};

use crate::dist_context::locked;
use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::spec::DTensorSpec;

/// Activation checkpointing, as [`recompute_over`]: the tape keeps only the inputs
/// of a region. `parameters` are the trained parameters that the region captures.
/// All ranks recompute it at the same point of the backward pass.
pub fn recompute(
    inputs: &[DTensor],
    parameters: &[DTensor],
    region: impl Fn(&[DTensor]) -> Result<Vec<DTensor>> + Send + Sync + 'static,
) -> Result<Vec<DTensor>> {
    let Some(first) = inputs.first() else {
        return Err(DTensorError::Rule { op: "recompute", reason: "there are no operands".to_owned() });
    };
    let dist = Arc::clone(first.dist());
    let nan_check = inputs.iter().find_map(|input| input.nan_check()).cloned();
    let specs: Vec<Arc<DTensorSpec>> = inputs.iter().map(|input| Arc::clone(input.spec())).collect();
    let output_specs: Arc<Mutex<Vec<Arc<DTensorSpec>>>> = Arc::default();
    let wrap = {
        let dist = Arc::clone(&dist);
        move |(local, spec): (&Tensor, &Arc<DTensorSpec>)| {
            let wrapped = DTensor::wrapped("recompute", &dist, local.clone(), Arc::clone(spec))?;
            Ok::<_, DTensorError>(wrapped.checked_by(nan_check.as_ref()))
        }
    };
    let (wrap_input, found) = (wrap.clone(), Arc::clone(&output_specs));
    let locals: Vec<Tensor> = inputs.iter().map(|input| input.to_local().clone()).collect();
    let of_parameters: Vec<Tensor> = parameters.iter().map(|input| input.to_local().clone()).collect();
    let outputs = recompute_over(&locals, &of_parameters, move |locals| {
        let run = || region(&locals.iter().zip(&specs).map(&wrap_input).collect::<Result<Vec<_>, _>>()?);
        let outputs = run().map_err(|error: DTensorError| error.into_tensor_error("recompute"))?;
        *locked(&found) = outputs.iter().map(|output| Arc::clone(output.spec())).collect();
        Ok(outputs.iter().map(|output| output.to_local().clone()).collect())
    })?;
    let specs = locked(&output_specs).clone();
    outputs.iter().zip(&specs).map(wrap).collect()
}

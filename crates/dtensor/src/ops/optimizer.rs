//! Optimizer steps and norms of distributed tensors.

use std::collections::BTreeMap;

use weightloom_layout::{Mesh, ReduceOp};
use weightloom_tensor::{AdamW, Moments, Tensor};

use crate::comm_log::{Cause, Pass};
use crate::dtensor::DTensor;
use crate::error::DTensorError;
use crate::redistribute::local::combined;

/// The moments of a distributed parameter, distributed as it is.
pub struct DMoments(Moments);

impl DMoments {
    /// Those of a parameter that has not been changed yet.
    pub fn zero(parameter: &DTensor) -> Result<Self, DTensorError> {
        Ok(Self(Moments::zero(parameter.to_local())?))
    }

    /// The moments of this rank's part.
    pub fn local(&self) -> &Moments {
        &self.0
    }
}

impl DTensor {
    /// One step of AdamW. Each rank changes its part in place, if nobody else
    /// holds the parameter. The gradient is moved to where the parameter is.
    pub fn adamw_step(
        &mut self,
        optimizer: &AdamW,
        number: u64,
        gradient: &Self,
        moments: &mut DMoments,
    ) -> Result<(), DTensorError> {
        gradient.check_gradient_of("adamw", self)?;
        let gradient = gradient.moved("adamw", self.layout())?;
        self.change_local(|local| optimizer.step(number, local, gradient.to_local(), &mut moments.0))
    }
}

/// The square root of the sum of the squares of all elements of all tensors,
/// each counted once.
pub fn global_norm(tensors: &[&DTensor]) -> Result<f64, DTensorError> {
    let mut sums: BTreeMap<(u32, Vec<usize>), (Mesh, f64)> = BTreeMap::new();
    for tensor in tensors {
        let settled = tensor.moved(
            "global_norm",
            crate::redistribute::gradient_layout(tensor.layout(), Default::default())?,
        )?;
        let layout = settled.layout();
        let mut axes: Vec<usize> = layout.splits().iter().flat_map(|split| split.axes.to_vec()).collect();
        axes.sort_unstable();
        let norm = weightloom_tensor::global_norm(&[settled.to_local()])?;
        let place = sums.entry((layout.mesh().id(), axes)).or_insert((layout.mesh(), 0.0));
        place.1 += norm * norm;
    }
    let cause = Cause { op: "global_norm", pass: Pass::Backward };
    let mut total = 0.0;
    for ((_, axes), (mesh, sum)) in sums {
        let mut sum = Tensor::scalar(sum)?;
        for axis in axes {
            sum = combined(tensors[0].dist(), (mesh, axis), &sum, ReduceOp::Sum, cause)?;
        }
        total += sum.item::<f64>()?;
    }
    Ok(total.sqrt())
}

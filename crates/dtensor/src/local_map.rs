//! Functions of local tensors, applied to distributed tensors.

use std::sync::Arc;

use weightloom_layout::{Layout, Placement, Shape};
use weightloom_tensor::{Tensor, TensorError, catch_panic};

use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::redistribute::Axes;

/// Redistributes operands to the given layouts, calls `work` with the local
/// tensors, and wraps its results with the given layouts and shapes.
///
/// Gradients flow back through `work`. Where results are sharded or pending along
/// an axis, each rank counts as having used replicated operands for its part of
/// the work, so that their gradients are summed. So along one axis either all
/// results are replicated or none is. A panic in `work` is an error that names `op`.
pub fn local_map(
    op: &'static str,
    operands: &[(&DTensor, Layout)],
    results: &[(Layout, Shape)],
    work: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>, TensorError>,
) -> Result<Vec<DTensor>> {
    let Some((first, layout)) = operands.first() else {
        return Err(DTensorError::Rule { op, reason: "there are no operands".to_owned() });
    };
    let (dist, mesh) = (first.dist(), layout.mesh());
    let layouts = operands.iter().map(|(_, layout)| *layout).chain(results.iter().map(|(layout, _)| *layout));
    if let Some(other) = layouts.into_iter().find(|other| other.mesh() != mesh) {
        return Err(DTensorError::Meshes { op, first: *layout, other });
    }
    if operands.iter().any(|(operand, _)| !Arc::ptr_eq(operand.dist(), dist)) {
        return Err(DTensorError::Contexts { op });
    }
    for axis in (0..mesh.ndim()).filter(|&axis| mesh.axis_size(axis) > 1) {
        let replicated =
            results.iter().filter(|(layout, _)| layout.placements()[axis] == Placement::Replicate);
        if ![0, results.len()].contains(&replicated.count()) {
            let axis = mesh.axis_name(axis);
            let reason = format!("along `{axis}` some results are replicated and others are not");
            return Err(DTensorError::Rule { op, reason });
        }
    }
    let nan_check = operands.iter().find_map(|(operand, _)| operand.nan_check());
    let mut locals = Vec::with_capacity(operands.len());
    for (operand, layout) in operands {
        let mut lifted = Axes::default();
        for axis in (0..mesh.ndim()).filter(|&axis| mesh.axis_size(axis) > 1) {
            let parts = results.iter().any(|(layout, _)| layout.placements()[axis] != Placement::Replicate);
            if parts && layout.placements()[axis] == Placement::Replicate {
                lifted.insert(axis);
            }
        }
        locals.push(operand.redistribute_for(op, *layout, nan_check)?.lifted(op, lifted, nan_check)?);
    }
    let made = catch_panic(op, "local_map", || work(&locals))??;
    if made.len() != results.len() {
        return Err(DTensorError::ResultCount { op, found: made.len(), expected: results.len() });
    }
    let wrap = |(local, (layout, shape)): (Tensor, &(Layout, Shape))| {
        let spec = dist.spec(*layout, shape, local.dtype())?;
        Ok(DTensor::wrapped(op, dist, local, spec)?.checked_by(nan_check))
    };
    made.into_iter().zip(results).map(wrap).collect()
}

//! Writing into distributed tensors in place.

use std::sync::Arc;

use weightloom_layout::{Layout, Placement, Placements, Region};
use weightloom_tensor::{Device, Tensor, TensorError, uncounted};

use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::redistribute::local::with_placements;

const OP: &str = "assign";

/// The dim of `[batch, heads, capacity, width]` along which rows are written.
const CAPACITY: usize = 2;

impl DTensor {
    /// As [`Tensor::assign`]. The source is redistributed to the layout of this
    /// tensor. If the written dim is sharded, every rank gathers the source along it
    /// and writes its own part.
    pub fn assign(&mut self, dim: usize, start: usize, source: &Self) -> Result<()> {
        self.check_whole(source, |into, source| into.assign(dim, start, source))?;
        let source = source.redistribute_like(self, dim)?;
        let region = self.spec().region().clone();
        let range = start..start + source.shape()[dim];
        self.change_local(|local| {
            let written = region.with_range(dim, range);
            write(local, &region, &written, source.to_local(), dim)
        })
    }

    /// As [`Tensor::assign_at`]; every rank passes the starts of the whole batch.
    pub fn assign_at(&mut self, starts: &[usize], source: &Self) -> Result<()> {
        self.check_whole(source, |into, source| into.assign_at(starts, source))?;
        let source = source.redistribute_like(self, CAPACITY)?;
        let (region, length) = (self.spec().region().clone(), source.shape()[CAPACITY]);
        let starts = &starts[region.range(0)];
        if region.range(CAPACITY) == (0..self.shape()[CAPACITY]) {
            return self.change_local(|local| local.assign_at(starts, source.to_local()));
        }
        self.change_local(|local| {
            for (row, &start) in starts.iter().enumerate() {
                let global_row = region.start()[0] + row;
                let written = region
                    .with_range(0, global_row..global_row + 1)
                    .with_range(CAPACITY, start..start + length);
                write(local, &region, &written, &source.to_local().narrow(0, row, 1)?, CAPACITY)?;
            }
            Ok(())
        })
    }

    /// Runs the write on meta tensors of the global shapes, so that all ranks return
    /// the same error.
    fn check_whole(
        &self,
        source: &Self,
        work: impl FnOnce(&mut Tensor, &Tensor) -> Result<(), TensorError>,
    ) -> Result<()> {
        if !Arc::ptr_eq(self.dist(), source.dist()) {
            return Err(DTensorError::Contexts { op: OP });
        }
        uncounted(|| {
            let whole = |x: &Self| Tensor::zeros(x.dtype(), x.shape(), Device::Meta);
            Ok(work(&mut whole(self)?, &whole(source)?)?)
        })
    }

    /// Redistributes this source to the layout of `into`, replicated along the
    /// written dim.
    fn redistribute_like(&self, into: &Self, dim: usize) -> Result<Self> {
        let layout = whole_along(into.layout(), dim)?;
        if layout == self.layout() {
            return Ok(self.clone());
        }
        if layout.mesh() == self.layout().mesh()
            && self.dist().plan(self.layout(), layout, self.shape(), self.dtype())?.collectives() > 0
        {
            let (shape, dtype, from) = (self.shape(), self.dtype(), self.layout());
            let implicit = format!("operand 1, {shape} {dtype}, from {from} to {layout}");
            self.dist().check_implicit(OP, &[implicit])?;
        }
        self.redistribute_for(OP, layout, self.nan_check())
    }
}

/// The same layout with one dim not sharded.
fn whole_along(layout: Layout, dim: usize) -> Result<Layout> {
    let whole = |placement: &Placement| match *placement {
        Placement::Shard(sharded) if sharded == dim => Placement::Replicate,
        other => other,
    };
    let placements: Placements = layout.placements().iter().map(whole).collect();
    Ok(with_placements(layout, &placements)?)
}

/// Writes the part of the `written` region that a rank with `region` holds; the
/// source covers all of it.
fn write(
    local: &mut Tensor,
    region: &Region,
    written: &Region,
    source: &Tensor,
    dim: usize,
) -> Result<(), TensorError> {
    let Some(here) = region.intersect(written) else { return Ok(()) };
    let from = here.start()[dim] - written.start()[dim];
    let source = source.narrow(dim, from, here.size()[dim])?;
    match here.relative_to(region) {
        Some(target) => local.assign_region(&target, &source),
        None => Ok(()),
    }
}

//! Writing into a tensor in place, as key-value caches do.

use weightloom_layout::{Dims, Region, Shape};

use super::{common, shape_mismatch};
use crate::backend::on;
use crate::error::{Result, TensorError};
use crate::tape::is_grad_enabled;
use crate::tensor::Tensor;
use crate::view::View;

const OP: &str = "assign";

impl Tensor {
    /// Writes `source` along a dim from `start` on, in place unless the memory is
    /// shared. Clones keep the old elements.
    pub fn assign(&mut self, dim: usize, start: usize, source: &Self) -> Result<()> {
        self.check_dim(OP, dim)?;
        if source.shape().ndim() != self.shape().ndim() {
            return Err(shape_mismatch(OP, &[self, source]));
        }
        let mut starts = Dims::from_elem(0, self.shape().ndim());
        starts[dim] = start;
        self.check_place(dim, start, source.shape()[dim])?;
        self.assign_region(&Region::new(&starts, source.shape())?, source)
    }

    /// Writes `source` into a region of its shape, as [`assign`](Self::assign)
    /// does.
    pub fn assign_region(&mut self, region: &Region, source: &Self) -> Result<()> {
        self.check_source(source)?;
        if region.size() != &source.shape()[..] {
            return Err(shape_mismatch(OP, &[self, source]));
        }
        region.check_inside(self.shape())?;
        let window = (0..region.ndim()).fold(View::contiguous(self.shape().clone()), |window, dim| {
            window.narrow(dim, region.start()[dim], region.size()[dim])
        });
        on(self.device()).assign(self, &window, source)
    }

    /// Writes each row of a batch from its own start: of a tensor
    /// `[batch, heads, capacity, width]` and a source `[batch, heads, t, width]`,
    /// row `b` goes to `starts[b]..starts[b] + t`. In place as
    /// [`assign`](Self::assign) is.
    pub fn assign_at(&mut self, starts: &[usize], source: &Self) -> Result<()> {
        self.check_source(source)?;
        let (&[batch, heads, _, width], &[of_batch, of_heads, length, of_width]) =
            (&self.shape()[..], &source.shape()[..])
        else {
            return Err(shape_mismatch(OP, &[self, source]));
        };
        if (batch, heads, width) != (of_batch, of_heads, of_width) {
            return Err(shape_mismatch(OP, &[self, source]));
        }
        if starts.len() != batch {
            return Err(TensorError::ElementCount { shape: Shape::new(&[batch])?, found: starts.len() });
        }
        // Check all starts before writing any row.
        starts.iter().try_for_each(|&start| self.check_place(2, start, length))?;
        for (row, &start) in starts.iter().enumerate() {
            let window = View::contiguous(self.shape().clone()).narrow(0, row, 1).narrow(2, start, length);
            let part = source.with_view(source.view().narrow(0, row, 1));
            on(self.device()).assign(self, &window, &part)?;
        }
        Ok(())
    }

    fn check_source(&self, source: &Self) -> Result<()> {
        common(OP, &[self, source])?;
        match [self, source].into_iter().find(|x| is_grad_enabled() && x.tracks_gradient()) {
            Some(x) => Err(TensorError::TracksGradient { op: OP, shape: x.shape().clone() }),
            None => Ok(()),
        }
    }

    fn check_place(&self, dim: usize, start: usize, length: usize) -> Result<()> {
        match start.checked_add(length) {
            Some(end) if end <= self.shape()[dim] => Ok(()),
            end => Err(TensorError::Range {
                op: OP,
                dim,
                start,
                end: end.unwrap_or(usize::MAX),
                shape: self.shape().clone(),
            }),
        }
    }
}

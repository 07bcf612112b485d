//! Iteration over strided operands, row by row.

use weightloom_layout::Dims;

/// Dims and strides of several operands of one shape, with neighbouring dims
/// merged where the strides of all operands allow it.
pub(crate) struct Walk<const N: usize> {
    /// Sizes, innermost last; never empty.
    pub(crate) dims: Dims,
    strides: [Dims; N],
}

impl<const N: usize> Walk<N> {
    pub(crate) fn new(shape: &[usize], strides: [&[usize]; N]) -> Self {
        let mut dims = Dims::new();
        let mut joined: [Dims; N] = std::array::from_fn(|_| Dims::new());
        for dim in 0..shape.len() {
            if shape[dim] == 1 {
                continue;
            }
            let extends = dims.last().is_some()
                && (0..N).all(|n| joined[n].last().copied() == Some(strides[n][dim] * shape[dim]));
            if extends {
                if let Some(last) = dims.last_mut() {
                    *last *= shape[dim];
                }
                for n in 0..N {
                    if let Some(last) = joined[n].last_mut() {
                        *last = strides[n][dim];
                    }
                }
            } else {
                dims.push(shape[dim]);
                (0..N).for_each(|n| joined[n].push(strides[n][dim]));
            }
        }
        if dims.is_empty() {
            dims.push(1);
            joined.iter_mut().for_each(|strides| strides.push(0));
        }
        Self { dims, strides: joined }
    }

    /// The strides of an operand along the merged dims.
    pub(crate) fn strides_of(&self, operand: usize) -> &[usize] {
        &self.strides[operand]
    }

    /// Elements in a row.
    pub(crate) fn row(&self) -> usize {
        self.dims[self.dims.len() - 1]
    }

    /// The stride of each operand along a row.
    pub(crate) fn row_strides(&self) -> [usize; N] {
        std::array::from_fn(|n| self.strides[n][self.dims.len() - 1])
    }

    /// Calls `visit` with the offsets of each operand at the start of each row.
    #[inline(always)]
    pub(crate) fn rows(&self, rows: std::ops::Range<usize>, mut visit: impl FnMut([usize; N])) {
        let outer = self.dims.len() - 1;
        let mut index = Dims::from_elem(0, outer);
        let mut rest = rows.start;
        let mut offsets = [0; N];
        for dim in (0..outer).rev() {
            index[dim] = rest % self.dims[dim];
            rest /= self.dims[dim];
            (0..N).for_each(|n| offsets[n] += index[dim] * self.strides[n][dim]);
        }
        for _ in rows {
            visit(offsets);
            for dim in (0..outer).rev() {
                index[dim] += 1;
                (0..N).for_each(|n| offsets[n] += self.strides[n][dim]);
                if index[dim] < self.dims[dim] {
                    break;
                }
                (0..N).for_each(|n| offsets[n] -= self.dims[dim] * self.strides[n][dim]);
                index[dim] = 0;
            }
        }
    }
}

//! The innermost loop: a few rows times two vectors of columns.
//!
//! Every sum runs over the depth from its first element to its last, in one
//! chain, whatever the sizes of tiles and blocks. So an element of a product
//! depends on its row and its column alone: the same bits in any batch, for any
//! number of threads, and on every CPU that fuses multiply and add.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use super::scheme::Vectors;

/// Rows of a tile.
pub(super) const ROWS: usize = 8;

/// Rows and columns to be multiplied, and the sums to be added to.
pub(super) struct Panels<'a, P, W> {
    /// Panels of [`ROWS`] rows, the last with what remains; each by depth. A
    /// panel begins every `panel_size` values, of which some depth is used.
    pub(super) rows: &'a [P],
    pub(super) panel_size: usize,
    pub(super) depth: std::ops::Range<usize>,
    pub(super) count: usize,
    /// One panel of columns, by depth, of this depth alone.
    pub(super) columns: &'a [P],
    /// Row-major sums; this panel begins at `first` in each row.
    pub(super) sums: &'a mut [W],
    pub(super) first: usize,
    pub(super) stride: usize,
}

pub(super) fn tiles<W: Vectors>(panels: Panels<'_, W, W>) -> Tiles<'_, W> {
    Tiles { panels, element: PhantomData }
}

pub(super) struct Tiles<'a, W> {
    panels: Panels<'a, W, W>,
    element: PhantomData<W>,
}

/// Calls `$body` with `$R` as the constant number of rows.
macro_rules! with_rows {
    ($rows:expr, $R:ident => $body:expr) => {
        match $rows {
            1 => with_rows!(@ 1, $R => $body),
            2 => with_rows!(@ 2, $R => $body),
            3 => with_rows!(@ 3, $R => $body),
            4 => with_rows!(@ 4, $R => $body),
            5 => with_rows!(@ 5, $R => $body),
            6 => with_rows!(@ 6, $R => $body),
            7 => with_rows!(@ 7, $R => $body),
            _ => with_rows!(@ 8, $R => $body),
        }
    };
    (@ $number:expr, $R:ident => $body:expr) => {{
        const $R: usize = $number;
        $body
    }};
}

pub(super) use with_rows;

impl<P, W> Panels<'_, P, W> {
    /// Calls `visit` with the packed rows, the number of rows and the sums of
    /// each tile.
    #[inline(always)]
    pub(super) fn each(self, mut visit: impl FnMut(&[P], usize, &mut [W])) {
        let Self { rows, panel_size, depth, count, sums, first, stride, .. } = self;
        for (panel, rows) in rows.chunks(panel_size).enumerate() {
            let here = ROWS.min(count - panel * ROWS);
            let rows = &rows[depth.start * here..depth.end * here];
            visit(rows, here, &mut sums[panel * ROWS * stride + first..]);
        }
    }
}

impl<W: Vectors> WithSimd for Tiles<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, width: S) {
        let stride = self.panels.stride / W::lanes::<S>();
        let columns: &[W::Vector<S>] = bytemuck::cast_slice(self.panels.columns);
        self.panels.each(|rows, count, sums| {
            let whole = sums.len() / W::lanes::<S>() * W::lanes::<S>();
            let sums: &mut [W::Vector<S>] = bytemuck::cast_slice_mut(&mut sums[..whole]);
            with_rows!(count, R => tile::<S, W, R>(width, rows, columns, sums, stride));
        });
    }
}

/// `R` rows times two vectors of columns.
#[inline(always)]
fn tile<S: Simd, W: Vectors, const R: usize>(
    width: S,
    rows: &[W],
    columns: &[W::Vector<S>],
    sums: &mut [W::Vector<S>],
    stride: usize,
) {
    let mut held: [[W::Vector<S>; 2]; R] =
        std::array::from_fn(|row| [sums[row * stride], sums[row * stride + 1]]);
    let (rows, _) = rows.as_chunks::<R>();
    let (columns, _) = columns.as_chunks::<2>();
    for (row, column) in rows.iter().zip(columns) {
        for (held, &x) in held.iter_mut().zip(row) {
            let x = W::splat(width, x);
            held[0] = W::multiply_add(width, x, column[0], held[0]);
            held[1] = W::multiply_add(width, x, column[1], held[1]);
        }
    }
    for (row, held) in held.into_iter().enumerate() {
        [sums[row * stride], sums[row * stride + 1]] = held;
    }
}

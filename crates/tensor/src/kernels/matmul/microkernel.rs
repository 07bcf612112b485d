//! The microkernel: up to eight rows times two vectors of columns.
//!
//! Every sum is one chain over the depth, from the first element to the last,
//! whatever the sizes of tiles and blocks. So an element of a product depends only
//! on its row and its column: it has the same bits in any batch, for any number of
//! threads, and on every CPU with fused multiply-add.

use pulp::{Simd, WithSimd};

use super::pack_format::Vectors;

/// Rows of a tile.
pub(super) const ROWS: usize = 8;

/// Rows and columns to multiply, and the sums to add to.
pub(super) struct Panels<'a, 'r, P, W> {
    /// Panels of [`ROWS`] rows, the last with what remains; each by depth. A
    /// panel begins every `panel_size` values, of which some depth is used.
    pub(super) rows: &'a [P],
    pub(super) panel_size: usize,
    pub(super) depth: std::ops::Range<usize>,
    /// One panel of columns, by depth, of this depth alone.
    pub(super) columns: &'a [P],
    /// Sums, row by row; this panel begins at `first` in each.
    pub(super) sums: &'a mut [&'r mut [W]],
    pub(super) first: usize,
    pub(super) begin: Begin,
}

/// The initial value of sums.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// Zero.
    Zero,
    /// The current value.
    Accumulate,
}

/// Panels of wide numbers, multiplied with vectors of any width.
pub(super) struct Tiles<'a, 'r, W>(pub(super) Panels<'a, 'r, W, W>);

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

impl<'r, P, W> Panels<'_, 'r, P, W> {
    /// Calls `visit` with the packed rows and the sums of each tile.
    #[inline(always)]
    pub(super) fn each(self, mut visit: impl FnMut(&[P], &mut [&'r mut [W]])) {
        let Self { rows, panel_size, depth, sums, .. } = self;
        for (rows, sums) in rows.chunks(panel_size).zip(sums.chunks_mut(ROWS)) {
            let here = sums.len();
            visit(&rows[depth.start * here..depth.end * here], sums);
        }
    }
}

impl<W: Vectors> WithSimd for Tiles<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, width: S) {
        let (first, begin, columns) = (self.0.first, self.0.begin, bytemuck::cast_slice(self.0.columns));
        self.0.each(|rows, sums| {
            with_rows!(sums.len(), R => tile::<S, W, R>(width, rows, columns, sums, first, begin));
        });
    }
}

/// `R` rows times two vectors of columns.
#[inline(always)]
fn tile<S: Simd, W: Vectors, const R: usize>(
    width: S,
    rows: &[W],
    columns: &[W::Vector<S>],
    sums: &mut [&mut [W]],
    first: usize,
    begin: Begin,
) {
    let mut held: [[W::Vector<S>; 2]; R] = std::array::from_fn(|row| match begin {
        Begin::Zero => [W::splat(width, W::ZERO); 2],
        Begin::Accumulate => *pair::<S, W>(sums[row], first),
    });
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
        *pair::<S, W>(sums[row], first) = held;
    }
}

/// Two vectors of a row.
#[inline(always)]
fn pair<S: Simd, W: Vectors>(row: &mut [W], first: usize) -> &mut [W::Vector<S>; 2] {
    bytemuck::from_bytes_mut(bytemuck::cast_slice_mut(&mut row[first..first + 2 * W::lanes::<S>()]))
}

//! Packing: operands in the order in which the microkernel reads them.

use bytemuck::Pod;
use pulp::{Simd, WithSimd};

use super::Matrix;
use super::pack_format::{PackFormat, Vectors, Widened};
use crate::element::Float;
use crate::vectors::dispatch;

/// Lines of a matrix: for each depth, one element of every line. The lines of a
/// left operand are its rows, those of a right operand its columns.
#[derive(Clone, Copy)]
pub(super) struct Strip<'a, T> {
    elements: &'a [T],
    start: usize,
    line_stride: usize,
    depth_stride: usize,
    lines: usize,
    depth: usize,
}

impl<'a, T> Strip<'a, T> {
    pub(super) fn of_rows(matrix: Matrix<'a, T>) -> Self {
        Self {
            elements: matrix.elements,
            start: matrix.start,
            line_stride: matrix.row_stride,
            depth_stride: matrix.column_stride,
            lines: matrix.rows,
            depth: matrix.columns,
        }
    }

    pub(super) fn of_columns(matrix: Matrix<'a, T>) -> Self {
        Self::of_rows(matrix.transposed())
    }

    /// Whether lines are contiguous along the depth.
    pub(super) fn lies_along_depth(&self) -> bool {
        self.depth_stride == 1
    }

    /// The number of lines.
    pub(super) fn count(&self) -> usize {
        self.lines
    }

    /// The depth.
    pub(super) fn size(&self) -> usize {
        self.depth
    }

    /// The stride between lines, in elements.
    pub(super) fn line_stride(&self) -> usize {
        self.line_stride
    }

    /// The elements from the first line on.
    pub(super) fn elements(&self) -> &'a [T] {
        &self.elements[self.start..]
    }

    /// The elements after the last line.
    pub(super) fn ahead(&self) -> &'a [T] {
        self.elements.get(self.start + self.lines * self.line_stride..).unwrap_or_default()
    }

    /// Some of the lines.
    pub(super) fn lines(mut self, from: usize, count: usize) -> Self {
        self.start += from * self.line_stride;
        self.lines = count.min(self.lines - from);
        self
    }

    /// Some of the depth.
    pub(super) fn depth(mut self, from: usize, count: usize) -> Self {
        self.start += from * self.depth_stride;
        self.depth = count.min(self.depth - from);
        self
    }
}

/// Packs a strip of at most `width` lines; pads missing lines and a partial last
/// value with zeros.
#[inline(always)]
pub(super) fn pack<S: PackFormat>(strip: Strip<'_, S::Source>, width: usize, out: &mut [S::Packed]) {
    let Strip { elements, start, line_stride, depth_stride, lines, depth } = strip;
    if lines == 0 || depth == 0 {
        out.fill(S::ZERO);
        return;
    }
    let whole = depth / S::DEPTH;
    let elements = &elements[start..];
    if lines < width {
        out.fill(S::ZERO);
    }
    let rows = out.chunks_exact_mut(width);
    if line_stride == 1 {
        for (at, out) in rows.take(whole).enumerate() {
            S::pack_rows(&elements[at * S::DEPTH * depth_stride..], depth_stride, &mut out[..lines]);
        }
    } else if depth_stride == 1 {
        pack_along_depth::<S>(elements, line_stride, lines, whole, width, out);
    } else {
        for line in 0..lines {
            for at in 0..whole {
                let place = line * line_stride + at * S::DEPTH * depth_stride;
                out[at * width + line] = S::pack_one(elements, place, depth_stride);
            }
        }
    }
    if whole * S::DEPTH < depth {
        for (line, out) in out[whole * width..].iter_mut().enumerate().take(lines) {
            *out = S::pack_last(elements[line * line_stride + (depth - 1) * depth_stride]);
        }
    }
}

/// Transposes and scales the rows of a matrix: for each column `width` elements,
/// padded with zeros.
pub(crate) fn as_columns<T: Float<Wide: Vectors>>(
    rows: Matrix<'_, T>,
    width: usize,
    factor: T::Wide,
    out: &mut [T::Wide],
) {
    dispatch(ScaledColumns { strip: Strip::of_rows(rows), width, factor, out });
}

struct ScaledColumns<'a, T: Float> {
    strip: Strip<'a, T>,
    width: usize,
    factor: T::Wide,
    out: &'a mut [T::Wide],
}

impl<T: Float<Wide: Vectors>> WithSimd for ScaledColumns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        pack::<Widened<T>>(self.strip, self.width, self.out);
        self.out.iter_mut().for_each(|x| *x = *x * self.factor);
    }
}

/// The side of a block that is transposed at a time.
const SIDE: usize = 4;

/// Transposes a block.
#[inline(always)]
fn transpose<P: Pod>(square: [[P; SIDE]; SIDE]) -> [[P; SIDE]; SIDE] {
    #[cfg(target_arch = "x86_64")]
    if size_of::<P>() == 4 {
        return bytemuck::cast(super::transpose::transpose_words(bytemuck::cast(square)));
    }
    std::array::from_fn(|row| std::array::from_fn(|column| square[column][row]))
}

/// Packs lines that are contiguous along the depth, block by block, so that memory
/// is read and written in runs.
#[inline(always)]
fn pack_along_depth<S: PackFormat>(
    elements: &[S::Source],
    line_stride: usize,
    lines: usize,
    depth: usize,
    width: usize,
    out: &mut [S::Packed],
) {
    #[cfg(target_arch = "x86_64")]
    let begun = super::small_m::pack_lines::<S>(elements, line_stride, [lines, depth], width, out);
    #[cfg(not(target_arch = "x86_64"))]
    let begun = 0;
    let (square_lines, square_depth) = (lines / SIDE * SIDE, depth / SIDE * SIDE);
    for line in (begun..square_lines).step_by(SIDE) {
        let sources: [&[S::Source]; SIDE] = std::array::from_fn(|here| {
            let start = (line + here) * line_stride;
            &elements[start..start + square_depth * S::DEPTH]
        });
        for (number, out) in out.chunks_exact_mut(SIDE * width).take(square_depth / SIDE).enumerate() {
            let from = number * SIDE * S::DEPTH;
            let square = sources.map(|source| {
                let mut row = [S::ZERO; SIDE];
                S::pack_line(&source[from..from + SIDE * S::DEPTH], &mut row);
                row
            });
            for (row, out) in transpose(square).into_iter().zip(out.chunks_exact_mut(width)) {
                if let Some(out) = out[line..].first_chunk_mut::<SIDE>() {
                    *out = row;
                }
            }
        }
    }
    for line in begun..lines {
        let from = if line < square_lines { square_depth } else { 0 };
        for at in from..depth {
            out[at * width + line] = S::pack_one(elements, line * line_stride + at * S::DEPTH, 1);
        }
    }
}

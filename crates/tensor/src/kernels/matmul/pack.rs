//! Parts of a matrix laid out in the order in which a product reads them.

use bytemuck::Pod;
use pulp::{Simd, WithSimd};

use super::Matrix;
use super::scheme::{Scheme, Vectors, Widened};
use crate::element::Float;
use crate::vectors::dispatch;

/// Lines of a matrix side by side: for each depth, one element of every line.
/// The lines of a left operand are its rows, those of a right one its columns.
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

    /// Whether neighbours in memory are neighbours in depth.
    pub(super) fn lies_along_depth(&self) -> bool {
        self.depth_stride == 1
    }

    /// How many lines there are.
    pub(super) fn count(&self) -> usize {
        self.lines
    }

    /// How deep they are.
    pub(super) fn size(&self) -> usize {
        self.depth
    }

    /// Elements from one line to the next.
    pub(super) fn line_stride(&self) -> usize {
        self.line_stride
    }

    /// The elements from the first line on.
    pub(super) fn elements(&self) -> &'a [T] {
        &self.elements[self.start..]
    }

    /// The elements behind the last line.
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

/// Packs a strip of at most `width` lines; missing lines and a missing last
/// part of the depth become zeros.
#[inline(always)]
pub(super) fn pack<S: Scheme>(strip: Strip<'_, S::Source>, width: usize, out: &mut [S::Packed]) {
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
            S::join_rows(&elements[at * S::DEPTH * depth_stride..], depth_stride, &mut out[..lines]);
        }
    } else if depth_stride == 1 {
        turn::<S>(elements, line_stride, lines, whole, width, out);
    } else {
        for line in 0..lines {
            for at in 0..whole {
                let place = line * line_stride + at * S::DEPTH * depth_stride;
                out[at * width + line] = S::join(elements, place, depth_stride);
            }
        }
    }
    if whole * S::DEPTH < depth {
        for (line, out) in out[whole * width..].iter_mut().enumerate().take(lines) {
            *out = S::join_last(elements[line * line_stride + (depth - 1) * depth_stride]);
        }
    }
}

/// Rows of a matrix as columns, times a factor: for each column `width`
/// elements, of which those behind the last row are zeros.
pub(crate) fn as_columns<T: Float<Wide: Vectors>>(
    rows: Matrix<'_, T>,
    width: usize,
    factor: T::Wide,
    out: &mut [T::Wide],
) {
    dispatch(Turned { strip: Strip::of_rows(rows), width, factor, out });
}

struct Turned<'a, T: Float> {
    strip: Strip<'a, T>,
    width: usize,
    factor: T::Wide,
    out: &'a mut [T::Wide],
}

impl<T: Float<Wide: Vectors>> WithSimd for Turned<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        pack::<Widened<T>>(self.strip, self.width, self.out);
        self.out.iter_mut().for_each(|x| *x = *x * self.factor);
    }
}

/// The side of a square that is turned at a time.
const SIDE: usize = 4;

/// Rows and columns of a square exchanged.
#[inline(always)]
fn turned<P: Pod>(square: [[P; SIDE]; SIDE]) -> [[P; SIDE]; SIDE] {
    #[cfg(target_arch = "x86_64")]
    if size_of::<P>() == 4 {
        return bytemuck::cast(super::turn::turned_words(bytemuck::cast(square)));
    }
    std::array::from_fn(|row| std::array::from_fn(|column| square[column][row]))
}

/// Packs lines that lie along the depth: squares at a time, so that both sides
/// are read and written in runs.
#[inline(always)]
fn turn<S: Scheme>(
    elements: &[S::Source],
    line_stride: usize,
    lines: usize,
    depth: usize,
    width: usize,
    out: &mut [S::Packed],
) {
    #[cfg(target_arch = "x86_64")]
    let begun = super::few::turn::<S>(elements, line_stride, [lines, depth], width, out);
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
                S::join_line(&source[from..from + SIDE * S::DEPTH], &mut row);
                row
            });
            for (row, out) in turned(square).into_iter().zip(out.chunks_exact_mut(width)) {
                if let Some(out) = out[line..].first_chunk_mut::<SIDE>() {
                    *out = row;
                }
            }
        }
    }
    for line in begun..lines {
        let from = if line < square_lines { square_depth } else { 0 };
        for at in from..depth {
            out[at * width + line] = S::join(elements, line * line_stride + at * S::DEPTH, 1);
        }
    }
}

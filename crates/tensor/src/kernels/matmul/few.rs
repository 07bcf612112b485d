//! A few rows times a matrix whose columns lie along the depth, as weights do:
//! what a language model does for each next token.
//!
//! All of the weight is read for little arithmetic, so that memory decides. It
//! is read once, where it lies: of as many neighbouring columns as a vector has
//! lanes, four packed values each are turned in registers, which makes vectors
//! across columns. So every sum is the chain that [`tile`](super::tile) has,
//! from the first term to the last, and has the same bits.

use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};

use pulp::x86::{V3, V4};
use pulp::{Simd, WithSimd};

use super::pack::Strip;
use super::scheme::{Scheme, Vectors, Widened};
use super::tile::{ROWS, with_rows};
use super::turn::fetch;
use crate::element::Float;
use crate::vectors::Level;

/// The most rows: those of a tile.
pub(super) const FEW: usize = ROWS;

/// Packed values of a column that are turned at a time.
const SIDE: usize = 4;

/// Rows and columns to be multiplied, and where their products go.
pub(super) struct Lines<'a, 'r, T, P, W> {
    /// Rows, packed by depth.
    pub(super) rows: &'a [P],
    /// Columns, which lie along the depth.
    pub(super) columns: Strip<'a, T>,
    /// The sums of each row, as many as columns or more.
    pub(super) sums: &'a mut [&'r mut [W]],
}

/// Vectors that four-byte words can be turned in.
pub(super) trait Turning: Simd {
    /// Of four vectors, four lanes at a time, rows and columns exchanged.
    fn turned(self, square: [Self::f32s; SIDE]) -> [Self::f32s; SIDE];
}

impl Turning for V4 {
    #[inline(always)]
    fn turned(self, [a, b, c, d]: [Self::f32s; SIDE]) -> [Self::f32s; SIDE] {
        let it = self.avx512f;
        let [a, b, c, d]: [__m512; SIDE] = bytemuck::cast([a, b, c, d]);
        let low = [it._mm512_unpacklo_ps(a, b), it._mm512_unpacklo_ps(c, d)];
        let high = [it._mm512_unpackhi_ps(a, b), it._mm512_unpackhi_ps(c, d)];
        let ([low_ab, low_cd], [high_ab, high_cd]): ([__m512d; 2], [__m512d; 2]) =
            (bytemuck::cast(low), bytemuck::cast(high));
        bytemuck::cast([
            it._mm512_unpacklo_pd(low_ab, low_cd),
            it._mm512_unpackhi_pd(low_ab, low_cd),
            it._mm512_unpacklo_pd(high_ab, high_cd),
            it._mm512_unpackhi_pd(high_ab, high_cd),
        ])
    }
}

impl Turning for V3 {
    #[inline(always)]
    fn turned(self, [a, b, c, d]: [Self::f32s; SIDE]) -> [Self::f32s; SIDE] {
        let it = self.avx;
        let [a, b, c, d]: [__m256; SIDE] = bytemuck::cast([a, b, c, d]);
        let low = [it._mm256_unpacklo_ps(a, b), it._mm256_unpacklo_ps(c, d)];
        let high = [it._mm256_unpackhi_ps(a, b), it._mm256_unpackhi_ps(c, d)];
        let ([low_ab, low_cd], [high_ab, high_cd]): ([__m256d; 2], [__m256d; 2]) =
            (bytemuck::cast(low), bytemuck::cast(high));
        bytemuck::cast([
            it._mm256_unpacklo_pd(low_ab, low_cd),
            it._mm256_unpackhi_pd(low_ab, low_cd),
            it._mm256_unpacklo_pd(high_ab, high_cd),
            it._mm256_unpackhi_pd(high_ab, high_cd),
        ])
    }
}

/// Whether rows of such elements can be multiplied here.
pub(super) fn widened<T: Float>() -> bool {
    size_of::<T::Wide>() == size_of::<f32>() && Level::current() >= Level::Avx2
}

/// Multiplies rows and columns as wide numbers, where [`widened`] says so.
pub(super) fn multiply<T: Float<Wide: Vectors>>(lines: Lines<'_, '_, T, T::Wide, T::Wide>) {
    let lines = OfWidened::<T>(lines);
    match (Level::current(), V4::try_new(), V3::try_new()) {
        (Level::Avx512 | Level::Avx512Bf16, Some(v4), _) => Simd::vectorize(v4, On(v4, lines)),
        (_, _, Some(v3)) => Simd::vectorize(v3, On(v3, lines)),
        _ => {}
    }
}

struct OfWidened<'a, 'r, T: Float>(Lines<'a, 'r, T, T::Wide, T::Wide>);

/// Work on vectors of one width.
struct On<S, L>(S, L);

impl<S: Turning, T: Float<Wide: Vectors>> WithSimd for On<S, OfWidened<'_, '_, T>> {
    type Output = ();

    #[inline(always)]
    fn with_simd<A: Simd>(self, _: A) {
        let Self(width, OfWidened(lines)) = self;
        stream::<S, Widened<T>>(width, lines, |x, column, sum| {
            let x = T::Wide::splat(width, x);
            bytemuck::cast(T::Wide::multiply_add(width, x, bytemuck::cast(column), bytemuck::cast(sum)))
        });
    }
}

/// Multiplies rows and columns with vectors of a width. `add` adds the product
/// of a packed value and a vector of columns to a sum.
#[inline(always)]
pub(super) fn stream<S: Turning, K: Scheme>(
    width: S,
    lines: Lines<'_, '_, K::Source, K::Packed, K::Sum>,
    add: impl Fn(K::Packed, S::f32s, S::f32s) -> S::f32s,
) {
    let Lines { rows, columns, sums } = lines;
    let lanes = S::F32_LANES;
    for first in (0..columns.count()).step_by(lanes) {
        let here = columns.lines(first, lanes);
        with_rows!(sums.len(), R => {
            let held = vector::<S, K, R>(width, rows, here, &add);
            for (held, sums) in held.iter().zip(sums.iter_mut()) {
                let held: &[K::Sum] = bytemuck::cast_slice(std::slice::from_ref(held));
                sums[first..first + here.count()].copy_from_slice(&held[..here.count()]);
            }
        });
    }
}

/// `R` rows times one vector of columns, of which some may be missing.
#[inline(always)]
fn vector<S: Turning, K: Scheme, const R: usize>(
    width: S,
    rows: &[K::Packed],
    columns: Strip<'_, K::Source>,
    add: &impl Fn(K::Packed, S::f32s, S::f32s) -> S::f32s,
) -> [S::f32s; R] {
    let mut held = [width.splat_f32s(0.0); R];
    let (rows, _) = rows.as_chunks::<R>();
    let (squares, rest) = rows.as_chunks::<SIDE>();
    let (stride, ahead) = (columns.line_stride(), columns.ahead());
    let elements = columns.elements();
    // Columns that are missing are read as the last that is there.
    let missing = columns.count() - 1;
    let start = |line: usize| line.min(missing) * stride;
    for (number, square) in squares.iter().enumerate() {
        let from = number * SIDE * K::DEPTH;
        // As much of the next columns as is read here, in the order of memory.
        let next = number * SIDE * K::DEPTH * S::F32_LANES;
        for line in (0..SIDE * K::DEPTH * S::F32_LANES).step_by(LINE / size_of::<K::Source>()) {
            fetch(ahead, next + line);
        }
        let words: [S::f32s; SIDE] = std::array::from_fn(|place| {
            let mut vector = width.splat_f32s(0.0);
            let quads: &mut [[K::Packed; SIDE]] = quads::<S, K>(&mut vector);
            for (quad, out) in quads.iter_mut().enumerate() {
                let at = start(quad * SIDE + place) + from;
                K::join_line(&elements[at..at + SIDE * K::DEPTH], out);
            }
            vector
        });
        for (row, column) in square.iter().zip(width.turned(words)) {
            for (held, &x) in held.iter_mut().zip(row) {
                *held = add(x, column, *held);
            }
        }
    }
    for (number, row) in rest.iter().enumerate() {
        let from = (squares.len() * SIDE + number) * K::DEPTH;
        let mut column = width.splat_f32s(0.0);
        let packed: &mut [K::Packed] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut column));
        for (line, out) in packed.iter_mut().enumerate() {
            let at = start(line) + from;
            let whole = from + K::DEPTH <= columns.size();
            *out = if whole { K::join(elements, at, 1) } else { K::join_last(elements[at]) };
        }
        for (held, &x) in held.iter_mut().zip(row) {
            *held = add(x, column, *held);
        }
    }
    held
}

/// Bytes that memory is fetched by.
const LINE: usize = 64;

/// A vector as groups of packed values.
#[inline(always)]
fn quads<S: Simd, K: Scheme>(vector: &mut S::f32s) -> &mut [[K::Packed; SIDE]] {
    let packed: &mut [K::Packed] = bytemuck::cast_slice_mut(std::slice::from_mut(vector));
    packed.as_chunks_mut().0
}

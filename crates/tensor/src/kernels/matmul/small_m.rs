//! Skinny GEMM: up to eight rows times a weight stored as `[outputs, inputs]`, as
//! in decoding.
//!
//! Reading the weight bounds the speed, so it is read once and not packed: blocks
//! of as many neighbouring columns as a vector has lanes are transposed in
//! registers. So every sum is the same chain as in the
//! [`microkernel`](super::microkernel), from the first term to the last, with the
//! same bits.

use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};
use std::hint::black_box;

use pulp::x86::{V3, V4};
use pulp::{Simd, WithSimd};

use super::microkernel::{ROWS, with_rows};
use super::pack::Strip;
use super::pack_format::{PackFormat, Vectors, Widened};
use super::transpose::prefetch;
use crate::element::Float;
use crate::vectors::Level;

/// The most rows: those of a microkernel tile.
pub(super) const MAX_ROWS: usize = ROWS;

/// Packed values of a column that are transposed at a time.
const SIDE: usize = 4;

/// Packed values of a column that are read at a time: a cache line.
const RUN: usize = 16;

/// Columns with a stride that is a multiple of this many bytes share a set of the
/// L1 cache and evict each other, so they are copied first.
const ALIASING: usize = 4096;

/// Lanes of the widest vector.
const MOST_LANES: usize = 16;

/// Rows and columns to multiply, and their sums.
pub(super) struct Lines<'a, 'r, T, P, W> {
    /// Rows, packed by depth.
    pub(super) rows: &'a [P],
    /// Columns, contiguous along the depth.
    pub(super) columns: Strip<'a, T>,
    /// The sums of each row, as many as columns or more.
    pub(super) sums: &'a mut [&'r mut [W]],
}

/// Vectors in which blocks of four-byte words can be transposed.
pub(super) trait TransposeVectors: Simd {
    /// Concatenates groups of four words, by number.
    fn concat_groups(self, group: impl Fn(usize) -> [f32; SIDE]) -> Self::f32s;

    /// Transposes 4×4 blocks of four vectors.
    fn transpose(self, square: [Self::f32s; SIDE]) -> [Self::f32s; SIDE];
}

impl TransposeVectors for V4 {
    #[inline(always)]
    fn concat_groups(self, group: impl Fn(usize) -> [f32; SIDE]) -> Self::f32s {
        let it = self.avx512f;
        let vector = it._mm512_castps128_ps512(bytemuck::cast(group(0)));
        let vector = it._mm512_insertf32x4::<1>(vector, bytemuck::cast(group(1)));
        let vector = it._mm512_insertf32x4::<2>(vector, bytemuck::cast(group(2)));
        bytemuck::cast(it._mm512_insertf32x4::<3>(vector, bytemuck::cast(group(3))))
    }

    #[inline(always)]
    fn transpose(self, [a, b, c, d]: [Self::f32s; SIDE]) -> [Self::f32s; SIDE] {
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

impl TransposeVectors for V3 {
    #[inline(always)]
    fn concat_groups(self, group: impl Fn(usize) -> [f32; SIDE]) -> Self::f32s {
        let vector = self.avx._mm256_castps128_ps256(bytemuck::cast(group(0)));
        bytemuck::cast(self.avx._mm256_insertf128_ps::<1>(vector, bytemuck::cast(group(1))))
    }

    #[inline(always)]
    fn transpose(self, [a, b, c, d]: [Self::f32s; SIDE]) -> [Self::f32s; SIDE] {
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

/// Whether this path supports an element type on this CPU.
pub(super) fn widened<T: Float>() -> bool {
    size_of::<T::Wide>() == size_of::<f32>() && Level::current() >= Level::Avx2
}

/// Multiplies rows and columns as wide numbers, if [`widened`] allows it.
pub(super) fn multiply<T: Float<Wide: Vectors>>(lines: Lines<'_, '_, T, T::Wide, T::Wide>) {
    let lines = OfWidened::<T>(lines);
    match (Level::current(), V4::try_new(), V3::try_new()) {
        (Level::Avx512 | Level::Avx512Bf16, Some(v4), _) => Simd::vectorize(v4, On(v4, lines)),
        (_, _, Some(v3)) => Simd::vectorize(v3, On(v3, lines)),
        _ => {}
    }
}

struct OfWidened<'a, 'r, T: Float>(Lines<'a, 'r, T, T::Wide, T::Wide>);

/// Work with vectors of one width.
struct On<S, L>(S, L);

impl<S: TransposeVectors, T: Float<Wide: Vectors>> WithSimd for On<S, OfWidened<'_, '_, T>> {
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

/// Multiplies rows and columns with vectors of one width. `add` adds the product of
/// a packed value and a vector of columns to a sum.
#[inline(always)]
pub(super) fn stream<S: TransposeVectors, K: PackFormat>(
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
fn vector<S: TransposeVectors, K: PackFormat, const R: usize>(
    width: S,
    rows: &[K::Packed],
    columns: Strip<'_, K::Source>,
    add: &impl Fn(K::Packed, S::f32s, S::f32s) -> S::f32s,
) -> [S::f32s; R] {
    let mut held = [width.splat_f32s(0.0); R];
    let (rows, _) = rows.as_chunks::<R>();
    let (blocks, rest) = rows.as_chunks::<RUN>();
    let (elements, ahead) = (columns.elements(), columns.ahead());
    // Missing columns read the last one instead.
    let start = |line: usize| line.min(columns.count() - 1) * columns.line_stride();
    let aliases = (columns.line_stride() * size_of::<K::Source>()).is_multiple_of(ALIASING);
    let mut staged = [[K::ZERO; RUN]; MOST_LANES];
    for (number, block) in blocks.iter().enumerate() {
        let from = number * RUN * K::DEPTH;
        for line in 0..S::F32_LANES {
            // Prefetch as much of the next columns as is read here.
            prefetch(ahead, (number * S::F32_LANES + line) * RUN * K::DEPTH);
        }
        if aliases {
            for (line, staged) in staged[..S::F32_LANES].iter_mut().enumerate() {
                let at = start(line) + from;
                K::pack_line(&elements[at..at + RUN * K::DEPTH], staged);
            }
        }
        // Read back from memory: extracting from registers costs more.
        let staged = black_box(&staged);
        for (square, rows) in block.as_chunks::<SIDE>().0.iter().enumerate() {
            let columns = if aliases {
                transposed_square::<S, K>(width, |line| staged[line].as_chunks::<SIDE>().0[square])
            } else {
                transposed_square::<S, K>(width, |line| {
                    let (at, mut words) = (start(line) + from + square * SIDE * K::DEPTH, [K::ZERO; SIDE]);
                    K::pack_line(&elements[at..at + SIDE * K::DEPTH], &mut words);
                    words
                })
            };
            for (row, column) in rows.iter().zip(columns) {
                for (held, &x) in held.iter_mut().zip(row) {
                    *held = add(x, column, *held);
                }
            }
        }
    }
    for (number, row) in rest.iter().enumerate() {
        let from = (blocks.len() * RUN + number) * K::DEPTH;
        let whole = from + K::DEPTH <= columns.size();
        let mut column = width.splat_f32s(0.0);
        let packed: &mut [K::Packed] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut column));
        for (line, out) in packed.iter_mut().enumerate() {
            let at = start(line) + from;
            *out = if whole { K::pack_one(elements, at, 1) } else { K::pack_last(elements[at]) };
        }
        for (held, &x) in held.iter_mut().zip(row) {
            *held = add(x, column, *held);
        }
    }
    held
}

/// Four vectors across columns, from four packed values of each.
#[inline(always)]
fn transposed_square<S: TransposeVectors, K: PackFormat>(
    width: S,
    of_column: impl Fn(usize) -> [K::Packed; SIDE],
) -> [S::f32s; SIDE] {
    let words = |column: usize| bytemuck::cast(of_column(column));
    // Unrolled: a closure would be compiled without the vector instructions.
    width.transpose([
        width.concat_groups(|group| words(group * SIDE)),
        width.concat_groups(|group| words(group * SIDE + 1)),
        width.concat_groups(|group| words(group * SIDE + 2)),
        width.concat_groups(|group| words(group * SIDE + 3)),
    ])
}

/// Packs as many lines as fill whole vectors, and returns their number. The rest is
/// left to 4×4 blocks.
pub(super) fn pack_lines<K: PackFormat>(
    elements: &[K::Source],
    line_stride: usize,
    [lines, depth]: [usize; 2],
    width: usize,
    out: &mut [K::Packed],
) -> usize {
    let lines = lines / MOST_LANES * MOST_LANES;
    let fits = lines > 0 && size_of::<K::Packed>() == size_of::<f32>() && Level::current() >= Level::Avx512;
    match V4::try_new() {
        Some(v4) if fits => {
            Simd::vectorize(v4, On(v4, Whole::<K> { elements, line_stride, lines, depth, width, out }));
            lines
        }
        _ => 0,
    }
}

/// Whole vectors of lines to pack.
struct Whole<'a, K: PackFormat> {
    elements: &'a [K::Source],
    line_stride: usize,
    lines: usize,
    depth: usize,
    width: usize,
    out: &'a mut [K::Packed],
}

impl<S: TransposeVectors, K: PackFormat> WithSimd for On<S, Whole<'_, K>> {
    type Output = ();

    #[inline(always)]
    fn with_simd<A: Simd>(self, _: A) {
        let Self(vectors, Whole { elements, line_stride, lines, depth, width, out }) = self;
        let mut staged = [[K::ZERO; RUN]; MOST_LANES];
        let whole = depth / RUN * RUN;
        for first in (0..lines).step_by(MOST_LANES) {
            for from in (0..whole).step_by(RUN) {
                for (line, staged) in staged.iter_mut().enumerate() {
                    let at = (first + line) * line_stride + from * K::DEPTH;
                    prefetch(elements, at + MOST_LANES * line_stride);
                    K::pack_line(&elements[at..at + RUN * K::DEPTH], staged);
                }
                let staged = black_box(&staged);
                for square in 0..RUN / SIDE {
                    let run = |line: usize| staged[line].as_chunks::<SIDE>().0[square];
                    let columns = transposed_square::<S, K>(vectors, run);
                    let packed: &[K::Packed] = bytemuck::cast_slice(&columns);
                    let rows = out[(from + square * SIDE) * width..].chunks_exact_mut(width);
                    for (out, packed) in rows.zip(packed.chunks_exact(MOST_LANES)) {
                        out[first..first + MOST_LANES].copy_from_slice(packed);
                    }
                }
            }
            for line in first..first + MOST_LANES {
                for at in whole..depth {
                    out[at * width + line] = K::pack_one(elements, line * line_stride + at * K::DEPTH, 1);
                }
            }
        }
    }
}

//! bf16 dot products with AVX-512-BF16.
//!
//! `unsafe` has one reason: instructions that not every CPU has may run only where
//! they were detected. All memory is accessed through slices.

use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps, _mm512_set1_epi32, _mm512_setzero_ps};

use half::bf16;
use pulp::x86::V4;

use super::microkernel::{Begin, Panels, with_rows};
use super::pack_format::Bf16Pairs;
use super::small_m::{self, Lines};
use crate::vectors::Level;

/// Lanes of f32 in a vector.
const LANES: usize = 16;

/// Columns of a tile: two vectors.
pub(super) const COLUMNS: usize = 2 * LANES;

/// Adds the products of rows and one panel of columns to sums.
pub(super) fn add(panels: Panels<'_, '_, [bf16; 2], f32>) {
    assert!(Level::current() >= Level::Avx512Bf16, "chosen only where the CPU has it");
    // SAFETY: the assertion above: the level is never higher than what was
    // found on this CPU, which includes both features.
    unsafe { add_with_bf16(panels) }
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn add_with_bf16(panels: Panels<'_, '_, [bf16; 2], f32>) {
    let (first, begin, columns) = (panels.first, panels.begin, bytemuck::cast_slice(panels.columns));
    panels.each(|rows, sums| with_rows!(sums.len(), R => tile::<R>(rows, columns, sums, first, begin)));
}

/// Multiplies a few rows with unpacked columns.
pub(super) fn stream(lines: Lines<'_, '_, bf16, [bf16; 2], f32>) {
    assert!(Level::current() >= Level::Avx512Bf16, "chosen only where the CPU has it");
    let v4 = V4::try_new().expect("the level above includes it");
    // SAFETY: as in `add`.
    unsafe { stream_with_bf16(v4, lines) }
}

#[target_feature(enable = "avx512f,avx512bf16,avx512bw,avx512cd,avx512dq,avx512vl")]
fn stream_with_bf16(v4: V4, lines: Lines<'_, '_, bf16, [bf16; 2], f32>) {
    small_m::stream::<V4, Bf16Pairs>(v4, lines, |x, column, sum| {
        let x = pairs(bytemuck::cast(_mm512_set1_epi32(bytemuck::cast(x))));
        bytemuck::cast(_mm512_dpbf16_ps(bytemuck::cast(sum), x, pairs(bytemuck::cast(column))))
    });
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn tile<const R: usize>(
    rows: &[[bf16; 2]],
    columns: &[__m512],
    sums: &mut [&mut [f32]],
    first: usize,
    begin: Begin,
) {
    let mut held: [[__m512; 2]; R] = std::array::from_fn(|row| match begin {
        Begin::Zero => [_mm512_setzero_ps(); 2],
        Begin::Accumulate => *pair(sums[row], first),
    });
    let (rows, _) = rows.as_chunks::<R>();
    let (columns, _) = columns.as_chunks::<2>();
    for (row, &[left, right]) in rows.iter().zip(columns) {
        let (left, right) = (pairs(left), pairs(right));
        for (held, &x) in held.iter_mut().zip(row) {
            let x = pairs(bytemuck::cast(_mm512_set1_epi32(bytemuck::cast(x))));
            held[0] = _mm512_dpbf16_ps(held[0], x, left);
            held[1] = _mm512_dpbf16_ps(held[1], x, right);
        }
    }
    for (row, held) in held.into_iter().enumerate() {
        *pair(sums[row], first) = held;
    }
}

/// Two vectors of a row.
#[inline(always)]
fn pair(row: &mut [f32], first: usize) -> &mut [__m512; 2] {
    bytemuck::from_bytes_mut(bytemuck::cast_slice_mut(&mut row[first..first + COLUMNS]))
}

/// Reinterprets bits as pairs of bf16.
#[inline(always)]
fn pairs(bits: __m512) -> __m512bh {
    // SAFETY: both are 512 bits without padding, and any bits are valid.
    unsafe { std::mem::transmute(bits) }
}

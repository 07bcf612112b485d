//! Products of bf16 pairs with AVX-512-BF16.
//!
//! `unsafe` is here for one reason: code for instructions that not every CPU
//! has may only be called where they were found. Everything it reads and writes
//! goes through slices.

use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps, _mm512_set1_epi32};

use half::bf16;

use super::tile::{Panels, with_rows};
use crate::vectors::Level;

/// Lanes of f32 in a vector.
const LANES: usize = 16;

/// Columns of a tile: two vectors.
pub(super) const COLUMNS: usize = 2 * LANES;

/// Adds the products of rows with one panel of columns to sums.
pub(super) fn add(panels: Panels<'_, [bf16; 2], f32>) {
    assert!(Level::current() >= Level::Avx512Bf16, "chosen only where the CPU has it");
    // SAFETY: the assertion above: the level is never higher than what was
    // found on this CPU, which includes both features.
    unsafe { add_with_bf16(panels) }
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn add_with_bf16(panels: Panels<'_, [bf16; 2], f32>) {
    let stride = panels.stride / LANES;
    let columns: &[__m512] = bytemuck::cast_slice(panels.columns);
    panels.each(|rows, count, sums| {
        let whole = sums.len() / LANES * LANES;
        let sums: &mut [__m512] = bytemuck::cast_slice_mut(&mut sums[..whole]);
        with_rows!(count, R => tile::<R>(rows, columns, sums, stride));
    });
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn tile<const R: usize>(rows: &[[bf16; 2]], columns: &[__m512], sums: &mut [__m512], stride: usize) {
    let mut held: [[__m512; 2]; R] =
        std::array::from_fn(|row| [sums[row * stride], sums[row * stride + 1]]);
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
        [sums[row * stride], sums[row * stride + 1]] = held;
    }
}

/// The same bits as pairs of bf16.
#[inline(always)]
fn pairs(bits: __m512) -> __m512bh {
    // SAFETY: both are 512 bits without padding, and any bits are valid.
    unsafe { std::mem::transmute(bits) }
}

//! Transposing 4×4 blocks of four-byte elements, and prefetching memory, with
//! instructions that every x86-64 CPU has but compilers do not find by themselves.
//!
//! `unsafe` only calls these intrinsics. They take values, or the address of a
//! reference.

use std::arch::x86_64::{
    __m128i, _MM_HINT_T1, _mm_prefetch, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32,
    _mm_unpacklo_epi64,
};

/// Prefetches the cache line of an element, if there is one.
#[inline(always)]
pub(super) fn prefetch<T>(elements: &[T], place: usize) {
    if let Some(element) = elements.get(place) {
        // SAFETY: SSE is part of x86-64, and the address is that of a reference.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(element).cast()) }
    }
}

/// Transposes a 4×4 block.
#[inline(always)]
pub(super) fn transpose_words(square: [__m128i; 4]) -> [__m128i; 4] {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { transpose_with_sse2(square) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn transpose_with_sse2([a, b, c, d]: [__m128i; 4]) -> [__m128i; 4] {
    let (ab_low, ab_high) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
    [
        _mm_unpacklo_epi64(ab_low, cd_low),
        _mm_unpackhi_epi64(ab_low, cd_low),
        _mm_unpacklo_epi64(ab_high, cd_high),
        _mm_unpackhi_epi64(ab_high, cd_high),
    ]
}

//! A square of four-byte elements turned, with instructions that every CPU of
//! this architecture has and compilers do not find by themselves.

use std::arch::x86_64::{
    __m128i, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
};

/// Rows and columns exchanged.
#[inline(always)]
pub(super) fn turned_words(square: [__m128i; 4]) -> [__m128i; 4] {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { turned_with_sse2(square) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn turned_with_sse2([a, b, c, d]: [__m128i; 4]) -> [__m128i; 4] {
    let (ab_low, ab_high) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
    [
        _mm_unpacklo_epi64(ab_low, cd_low),
        _mm_unpackhi_epi64(ab_low, cd_low),
        _mm_unpacklo_epi64(ab_high, cd_high),
        _mm_unpackhi_epi64(ab_high, cd_high),
    ]
}

//! What compilers do not find by themselves, with instructions that every CPU of
//! this architecture has: turning a square of four-byte elements, and asking for
//! memory before it is read.

use std::arch::x86_64::{
    __m128i, _MM_HINT_T1, _mm_prefetch, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32,
    _mm_unpacklo_epi64,
};

/// Asks for the memory of an element, if there is one, to be read soon.
#[inline(always)]
pub(super) fn fetch<T>(elements: &[T], place: usize) {
    if let Some(element) = elements.get(place) {
        // SAFETY: SSE is part of x86-64, and the address is that of a reference.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(element).cast()) }
    }
}

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

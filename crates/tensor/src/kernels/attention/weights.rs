//! From scores to weights.

use pulp::{Simd, WithSimd};

use super::{BLOCK, Geometry, Range};
use crate::element::Wide;
use crate::kernels::lanes;
use crate::vectors::dispatch;

/// Where a block of scores stands.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) queries: &'a Range,
    pub(super) keys: &'a Range,
    pub(super) mask: Option<&'a [u8]>,
}

impl Place<'_> {
    /// Caps the scores of one query, and hides those of keys that it does not
    /// see behind `-∞`. Returns whether any is left.
    #[inline(always)]
    fn hide<S: Simd, W: Wide>(&self, query: usize, scores: &mut [W]) -> bool {
        let seen = self.geometry.seen(query);
        let start = seen.start.clamp(self.keys.start, self.keys.end) - self.keys.start;
        let end = seen.end.clamp(self.keys.start, self.keys.end) - self.keys.start;
        if let Some(cap) = self.geometry.soft_cap {
            let cap = W::from_f64(cap).unwrap_or_else(W::infinity);
            for score in scores[start..end.max(start)].iter_mut() {
                *score = cap * (*score / cap).hyperbolic_tangent::<S>();
            }
        }
        scores[..start].fill(W::neg_infinity());
        scores[end.max(start)..].fill(W::neg_infinity());
        if let Some(mask) = self.mask {
            for (score, &seen) in scores.iter_mut().zip(mask) {
                *score = if seen == 0 { W::neg_infinity() } else { *score };
            }
        }
        start < end
    }
}

/// What is known of the rows of a block of queries so far.
pub(super) struct Running<W> {
    pub(super) most: [W; BLOCK],
    pub(super) sums: [W; BLOCK],
    /// What earlier results are to be multiplied by.
    pub(super) shrink: [W; BLOCK],
}

impl<W: Wide> Running<W> {
    pub(super) fn new() -> Self {
        Self { most: [W::neg_infinity(); BLOCK], sums: [W::zero(); BLOCK], shrink: [W::one(); BLOCK] }
    }
}

/// Turns scores into `exp(score - most)` and keeps maxima and sums.
pub(super) fn soften<W: Wide>(place: Place<'_>, scores: &mut [W], running: &mut Running<W>) {
    dispatch(Soften { place, scores, running });
}

struct Soften<'a, W> {
    place: Place<'a>,
    scores: &'a mut [W],
    running: &'a mut Running<W>,
}

impl<W: Wide> WithSimd for Soften<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Running { most, sums, shrink } = self.running;
        let rows = self.scores.chunks_exact_mut(BLOCK).zip(self.place.queries.clone());
        for (row, (scores, query)) in rows.enumerate() {
            self.place.hide::<S, W>(query, scores);
            let largest = lanes::largest(scores);
            let here = if largest > most[row] { largest } else { most[row] };
            if here == W::neg_infinity() {
                // A score that is no number is not one that nobody sees.
                if scores.iter().any(|score| score.is_nan()) {
                    sums[row] = W::nan();
                }
                scores.fill(W::zero());
                shrink[row] = W::one();
                continue;
            }
            for score in scores.iter_mut() {
                *score = (*score - here).decay::<S>();
            }
            shrink[row] = (most[row] - here).decay::<S>();
            sums[row] = sums[row] * shrink[row] + lanes::sum(scores, |weight| weight);
            most[row] = here;
        }
    }
}

/// Turns scores into the weights they had in the forward pass, and gradients
/// of weights, `slopes`, into gradients of scores.
pub(super) fn slope<W: Wide>(place: Place<'_>, scores: &mut [W], slopes: &mut [W], logs: &[W], dots: &[W]) {
    dispatch(Slope { place, scores, slopes, logs, dots });
}

struct Slope<'a, W> {
    place: Place<'a>,
    scores: &'a mut [W],
    slopes: &'a mut [W],
    logs: &'a [W],
    dots: &'a [W],
}

impl<W: Wide> WithSimd for Slope<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let geometry = self.place.geometry;
        let scale = W::from_f64(geometry.scale).unwrap_or_else(W::nan);
        let rows = self.scores.chunks_exact_mut(BLOCK).zip(self.slopes.chunks_exact_mut(BLOCK));
        let known = self.logs.iter().zip(self.dots).zip(self.place.queries.clone());
        for ((scores, slopes), ((&log, &dot), query)) in rows.zip(known) {
            self.place.hide::<S, W>(query, scores);
            match geometry.soft_cap {
                None => {
                    for (score, slope) in scores.iter_mut().zip(slopes) {
                        let weight = (*score - log).decay::<S>();
                        *slope = weight * (*slope - dot) * scale;
                        *score = weight;
                    }
                }
                Some(cap) => {
                    let cap = W::from_f64(cap).unwrap_or_else(W::infinity);
                    for (score, slope) in scores.iter_mut().zip(slopes) {
                        let weight = (*score - log).decay::<S>();
                        let share = *score / cap;
                        let steep = if weight > W::zero() { W::one() - share * share } else { W::zero() };
                        *slope = weight * (*slope - dot) * scale * steep;
                        *score = weight;
                    }
                }
            }
        }
    }
}

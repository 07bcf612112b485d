//! Masking and softmax of scores.

use pulp::{Simd, WithSimd};

use super::{BLOCK, Geometry, Range};
use crate::element::Wide;
use crate::kernels::lanes;
use crate::vectors::dispatch;

/// A block of scores.
#[derive(Clone, Copy)]
pub(super) struct ScoreBlock<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) queries: &'a Range,
    pub(super) keys: &'a Range,
    pub(super) mask: Option<&'a [u8]>,
}

impl ScoreBlock<'_> {
    /// Caps the scores of one query and masks them with `-∞`. Returns whether any is
    /// left.
    #[inline(always)]
    fn apply_mask<S: Simd, W: Wide>(&self, query: usize, scores: &mut [W]) -> bool {
        let seen = self.geometry.seen(query);
        let start = seen.start.clamp(self.keys.start, self.keys.end) - self.keys.start;
        let end = seen.end.clamp(self.keys.start, self.keys.end) - self.keys.start;
        if let Some(cap) = self.geometry.soft_cap {
            let cap = W::from_f64(cap).unwrap_or_else(W::infinity);
            for score in scores[start..end.max(start)].iter_mut() {
                *score = cap * (*score / cap).tanh_simd::<S>();
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

/// The state of the online softmax of a block of queries.
pub(super) struct SoftmaxState<W> {
    pub(super) most: [W; BLOCK],
    pub(super) sums: [W; BLOCK],
    /// The factors that rescale earlier results.
    pub(super) shrink: [W; BLOCK],
}

impl<W: Wide> SoftmaxState<W> {
    pub(super) fn new() -> Self {
        Self { most: [W::neg_infinity(); BLOCK], sums: [W::zero(); BLOCK], shrink: [W::one(); BLOCK] }
    }
}

/// Replaces scores by `exp(score - max)` and updates maxima and sums.
pub(super) fn online_softmax<W: Wide>(
    block: ScoreBlock<'_>,
    scores: &mut [W],
    running: &mut SoftmaxState<W>,
) {
    dispatch(OnlineSoftmax { block, scores, running });
}

struct OnlineSoftmax<'a, W> {
    block: ScoreBlock<'a>,
    scores: &'a mut [W],
    running: &'a mut SoftmaxState<W>,
}

impl<W: Wide> WithSimd for OnlineSoftmax<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let SoftmaxState { most, sums, shrink } = self.running;
        let rows = self.scores.chunks_exact_mut(BLOCK).zip(self.block.queries.clone());
        for (row, (scores, query)) in rows.enumerate() {
            self.block.apply_mask::<S, W>(query, scores);
            let largest = lanes::largest(scores);
            let here = if largest > most[row] { largest } else { most[row] };
            if here == W::neg_infinity() {
                // A NaN score is not a masked score.
                if scores.iter().any(|score| score.is_nan()) {
                    sums[row] = W::nan();
                }
                scores.fill(W::zero());
                shrink[row] = W::one();
                continue;
            }
            for score in scores.iter_mut() {
                *score = (*score - here).exp_negative::<S>();
            }
            shrink[row] = (most[row] - here).exp_negative::<S>();
            sums[row] = sums[row] * shrink[row] + lanes::sum(scores, |weight| weight);
            most[row] = here;
        }
    }
}

/// Replaces scores by the weights of the forward pass, and the gradients of
/// weights, `slopes`, by gradients of scores.
pub(super) fn score_gradients<W: Wide>(
    block: ScoreBlock<'_>,
    scores: &mut [W],
    slopes: &mut [W],
    logs: &[W],
    dots: &[W],
) {
    dispatch(ScoreGradients { block, scores, slopes, logs, dots });
}

struct ScoreGradients<'a, W> {
    block: ScoreBlock<'a>,
    scores: &'a mut [W],
    slopes: &'a mut [W],
    logs: &'a [W],
    dots: &'a [W],
}

impl<W: Wide> WithSimd for ScoreGradients<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let geometry = self.block.geometry;
        let scale = W::from_f64(geometry.scale).unwrap_or_else(W::nan);
        let rows = self.scores.chunks_exact_mut(BLOCK).zip(self.slopes.chunks_exact_mut(BLOCK));
        let known = self.logs.iter().zip(self.dots).zip(self.block.queries.clone());
        for ((scores, slopes), ((&log, &dot), query)) in rows.zip(known) {
            self.block.apply_mask::<S, W>(query, scores);
            match geometry.soft_cap {
                None => {
                    for (score, slope) in scores.iter_mut().zip(slopes) {
                        let weight = (*score - log).exp_negative::<S>();
                        *slope = weight * (*slope - dot) * scale;
                        *score = weight;
                    }
                }
                Some(cap) => {
                    let cap = W::from_f64(cap).unwrap_or_else(W::infinity);
                    for (score, slope) in scores.iter_mut().zip(slopes) {
                        let weight = (*score - log).exp_negative::<S>();
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

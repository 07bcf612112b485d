//! Affine quantisation, as MLX stores it.

use shardloom_layout::DType;

use crate::codec::Affine;

/// Decodes elements behind `affine.lead`. `words` begins with the word that
/// holds the first of them, `scales` and `biases` with the first one's group.
pub(crate) fn decode(
    affine: &Affine,
    words: &[u8],
    dtype: DType,
    scales: &[u8],
    biases: &[u8],
    into: &mut [f32],
) {
    let _ = (affine, words, dtype, scales, biases, into);
}

//! A part of a decoder: some of its layers, and what stands before and behind.

use std::ops::Range;

use crate::error::NnError;

/// Layers that one stage of a pipeline has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The layers.
    pub layers: Range<usize>,
    /// Layers of the whole decoder.
    pub of: usize,
}

impl Stage {
    /// The whole decoder.
    pub fn whole(layers: usize) -> Self {
        Self { layers: 0..layers, of: layers }
    }

    /// One of several stages, which differ by at most one layer. The first
    /// ones have fewer where they are not equal: the last one has the most to
    /// do besides, but the first one's embedding weighs most.
    pub fn one_of(layers: usize, stage: usize, stages: usize) -> Result<Self, NnError> {
        if stages == 0 || stage >= stages || stages > layers {
            return Err(NnError::Stages { stage, stages, layers });
        }
        let at = |stage: usize| stage * layers / stages;
        Ok(Self { layers: at(stage)..at(stage + 1), of: layers })
    }

    /// Whether it begins with tokens.
    pub fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    /// Whether it ends with logits.
    pub fn is_last(&self) -> bool {
        self.layers.end == self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_cover_all_layers_once() {
        for layers in 1..40 {
            for stages in 1..=layers {
                let mut next = 0;
                for stage in 0..stages {
                    let stage = Stage::one_of(layers, stage, stages).expect("fits");
                    assert_eq!(stage.layers.start, next);
                    assert!(!stage.layers.is_empty());
                    next = stage.layers.end;
                }
                assert_eq!(next, layers);
            }
        }
        assert!(
            Stage::one_of(4, 0, 5).is_err()
                && Stage::one_of(4, 4, 4).is_err()
                && Stage::one_of(4, 0, 0).is_err()
        );
    }
}

//! Pipeline stages.

use std::ops::Range;

use crate::error::NnError;

/// The layers of a pipeline stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its layers.
    pub layers: Range<usize>,
    /// The number of layers of the whole decoder.
    pub of: usize,
}

impl Stage {
    /// The only stage.
    pub fn whole(layers: usize) -> Self {
        Self { layers: 0..layers, of: layers }
    }

    /// One of `stages` stages, whose sizes differ by at most one layer.
    pub fn one_of(layers: usize, stage: usize, stages: usize) -> Result<Self, NnError> {
        if stages == 0 || stage >= stages || stages > layers {
            return Err(NnError::Stages { stage, stages, layers });
        }
        let at = |stage: usize| stage * layers / stages;
        Ok(Self { layers: at(stage)..at(stage + 1), of: layers })
    }

    /// Whether its input is tokens.
    pub fn is_first(&self) -> bool {
        self.layers.start == 0
    }

    /// Whether its output is logits.
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

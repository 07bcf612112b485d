//! Splitting layers into pipeline stages.

use weightloom_nn::Stage;

use super::error::SpecError;

/// Splits layers into `count` pipeline stages, evenly or by `layer_split`.
pub fn stages(layers: usize, count: usize, layer_split: Option<&[usize]>) -> Result<Vec<Stage>, SpecError> {
    let impossible = || SpecError::Stages { layers, stages: count };
    if count == 0 || count > layers {
        return Err(impossible());
    }
    let Some(split) = layer_split else {
        return (0..count)
            .map(|stage| Stage::one_of(layers, stage, count).map_err(|_| impossible()))
            .collect();
    };
    if split.len() != count {
        return Err(SpecError::SplitLength { found: split.len(), stages: count });
    }
    if let Some(stage) = split.iter().position(|layers| *layers == 0) {
        return Err(SpecError::EmptyStage { stage });
    }
    let found = split.iter().fold(0usize, |sum, layers| sum.saturating_add(*layers));
    if found != layers {
        return Err(SpecError::SplitSum { found, layers });
    }
    let mut start = 0;
    let stage = |own: &usize| {
        let begin = start;
        start += own;
        Stage { layers: begin..start, of: layers }
    };
    Ok(split.iter().map(stage).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_accepted_exactly_if_they_cover_all_layers() {
        for layers in 0..6 {
            for count in 0..5usize {
                let even = stages(layers, count, None);
                assert_eq!(even.is_ok(), (1..=layers).contains(&count));
                // Every list of `count` numbers below five.
                for code in 0..5usize.pow(count as u32) {
                    let split: Vec<usize> =
                        (0..count).map(|place| code / 5usize.pow(place as u32) % 5).collect();
                    let fits = count > 0 && split.iter().sum::<usize>() == layers && !split.contains(&0);
                    match stages(layers, count, Some(&split)) {
                        Err(_) => assert!(!fits, "{layers} {split:?}"),
                        Ok(found) => {
                            assert!(fits, "{layers} {split:?}");
                            let sizes: Vec<usize> = found.iter().map(|stage| stage.layers.len()).collect();
                            assert_eq!(sizes, split);
                            assert!(found[0].is_first() && found[count - 1].is_last());
                            assert!(found.windows(2).all(|pair| pair[0].layers.end == pair[1].layers.start));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_splits_are_errors() {
        assert_eq!(stages(4, 5, None), Err(SpecError::Stages { layers: 4, stages: 5 }));
        assert_eq!(stages(4, 2, Some(&[4])), Err(SpecError::SplitLength { found: 1, stages: 2 }));
        assert_eq!(stages(4, 2, Some(&[4, 0])), Err(SpecError::EmptyStage { stage: 1 }));
        assert_eq!(stages(4, 2, Some(&[4, 1])), Err(SpecError::SplitSum { found: 5, layers: 4 }));
        let most = usize::MAX;
        assert_eq!(stages(4, 2, Some(&[most, 2])), Err(SpecError::SplitSum { found: most, layers: 4 }));
    }
}

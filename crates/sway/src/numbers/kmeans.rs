//! Points in groups: Lloyd's k-means from starts by k-means++.
//!
//! As scikit-learn's defaults: ten starts, of which the tightest groups are
//! kept, 300 rounds, a tolerance of 1e-4 of the mean variance, and several
//! candidates for each next centre. The random numbers are our own, so groups
//! that are not clear may differ from scikit-learn's; the same seed always
//! gives the same groups.

use super::pcg64::Pcg64;

const STARTS: usize = 10;
const ROUNDS: usize = 300;
const TOLERANCE: f64 = 1e-4;

/// The group of each point, numbered from 0. With fewer points than groups
/// every point is its own group.
pub fn group(points: &[Vec<f64>], groups: usize, seed: u64) -> Vec<usize> {
    if points.len() <= groups {
        return (0..points.len()).collect();
    }
    let mut generator = Pcg64::new(seed);
    let tolerance = TOLERANCE * mean_variance(points);
    let mut best: Option<(f64, Vec<usize>)> = None;
    for _ in 0..STARTS {
        let centres = spread_centres(points, groups, &mut generator);
        let (inertia, labels) = settle(points, centres, tolerance);
        if best.as_ref().is_none_or(|(least, _)| inertia < *least) {
            best = Some((inertia, labels));
        }
    }
    best.map_or_else(Vec::new, |(_, labels)| labels)
}

fn distance(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| (left - right) * (left - right)).sum()
}

fn mean_variance(points: &[Vec<f64>]) -> f64 {
    let count = points.len() as f64;
    let dims = points.first().map_or(0, Vec::len);
    let total: f64 = (0..dims)
        .map(|dim| {
            let mean = points.iter().map(|point| point[dim]).sum::<f64>() / count;
            points.iter().map(|point| (point[dim] - mean) * (point[dim] - mean)).sum::<f64>() / count
        })
        .sum();
    total / dims.max(1) as f64
}

/// First centres far apart: each is drawn by its squared distance from those
/// before, the best of a few draws.
fn spread_centres(points: &[Vec<f64>], groups: usize, generator: &mut Pcg64) -> Vec<Vec<f64>> {
    let trials = 2 + (groups as f64).ln() as usize;
    let first = (generator.unit() * points.len() as f64) as usize;
    let mut centres = vec![points[first.min(points.len() - 1)].clone()];
    let mut nearest: Vec<f64> = points.iter().map(|point| distance(point, &centres[0])).collect();
    while centres.len() < groups {
        let total: f64 = nearest.iter().sum();
        let mut best: Option<(f64, usize, Vec<f64>)> = None;
        for _ in 0..trials {
            let wanted = generator.unit() * total;
            let mut passed = 0.0;
            let drawn = nearest
                .iter()
                .position(|part| {
                    passed += part;
                    passed > wanted
                })
                .unwrap_or(points.len() - 1);
            let after: Vec<f64> = points
                .iter()
                .zip(&nearest)
                .map(|(point, nearest)| nearest.min(distance(point, &points[drawn])))
                .collect();
            let left: f64 = after.iter().sum();
            if best.as_ref().is_none_or(|(least, ..)| left < *least) {
                best = Some((left, drawn, after));
            }
        }
        let Some((_, drawn, after)) = best else { break };
        centres.push(points[drawn].clone());
        nearest = after;
    }
    centres
}

fn settle(points: &[Vec<f64>], mut centres: Vec<Vec<f64>>, tolerance: f64) -> (f64, Vec<usize>) {
    let mut labels = assign(points, &centres);
    for _ in 0..ROUNDS {
        let moved = recentre(points, &labels, &mut centres);
        let next = assign(points, &centres);
        let same = next == labels;
        labels = next;
        if same || moved <= tolerance {
            break;
        }
    }
    let inertia = points.iter().zip(&labels).map(|(point, label)| distance(point, &centres[*label])).sum();
    (inertia, labels)
}

fn assign(points: &[Vec<f64>], centres: &[Vec<f64>]) -> Vec<usize> {
    points
        .iter()
        .map(|point| {
            let mut nearest = (f64::INFINITY, 0);
            for (label, centre) in centres.iter().enumerate() {
                let distance = distance(point, centre);
                if distance < nearest.0 {
                    nearest = (distance, label);
                }
            }
            nearest.1
        })
        .collect()
}

/// Moves centres to the middle of their points, and tells how far. A centre
/// without points goes to the point that is farthest from its own.
fn recentre(points: &[Vec<f64>], labels: &[usize], centres: &mut [Vec<f64>]) -> f64 {
    let before = centres.to_vec();
    let mut counts = vec![0usize; centres.len()];
    for centre in centres.iter_mut() {
        centre.fill(0.0);
    }
    for (point, label) in points.iter().zip(labels) {
        counts[*label] += 1;
        for (sum, value) in centres[*label].iter_mut().zip(point) {
            *sum += value;
        }
    }
    let mut taken = vec![false; points.len()];
    for label in 0..centres.len() {
        if counts[label] > 0 {
            for value in &mut centres[label] {
                *value /= counts[label] as f64;
            }
            continue;
        }
        let mut farthest: Option<(f64, usize)> = None;
        for (place, point) in points.iter().enumerate() {
            let away = distance(point, &before[labels[place]]);
            if !taken[place] && farthest.is_none_or(|(most, _)| away > most) {
                farthest = Some((away, place));
            }
        }
        if let Some((_, place)) = farthest {
            taken[place] = true;
            centres[label].clone_from(&points[place]);
        }
    }
    centres.iter().zip(&before).map(|(now, before)| distance(now, before)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn clear_groups_are_found() {
        let points: Vec<Vec<f64>> = (0..12)
            .map(|i| {
                let centre = [[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]][i % 3];
                vec![centre[0] + 0.01 * i as f64, centre[1] - 0.02 * i as f64]
            })
            .collect();
        for seed in 0..20 {
            let labels = group(&points, 3, seed);
            for (i, label) in labels.iter().enumerate() {
                assert_eq!(*label, labels[i % 3], "seed {seed}");
            }
            assert!(labels[0] != labels[1] && labels[1] != labels[2] && labels[0] != labels[2]);
        }
    }

    #[test]
    fn equal_points_are_no_trouble() {
        let labels = group(&vec![vec![1.0, 1.0]; 6], 3, 0);
        assert!(labels.iter().all(|label| *label < 3));
        assert_eq!(group(&[vec![1.0], vec![2.0]], 3, 0), [0, 1]);
    }

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_groups(
            points in prop::collection::vec(prop::collection::vec(-1f64..1.0, 3), 1..30),
            groups in 2usize..6,
            seed: u64,
        ) {
            let labels = group(&points, groups, seed);
            prop_assert_eq!(labels.len(), points.len());
            prop_assert!(labels.iter().all(|label| *label < groups.max(points.len())));
            prop_assert_eq!(labels, group(&points, groups, seed));
        }
    }
}

//! k-means clustering: Lloyd's algorithm initialized with k-means++.
//!
//! Follows scikit-learn's defaults: the best of ten initializations, at most
//! 300 iterations, a tolerance of 1e-4 of the mean variance, and greedy
//! k-means++. The random numbers differ from scikit-learn's, so clusters that
//! are not well separated may differ too; the same seed always gives the same
//! clusters.

use super::pcg64::Pcg64;

const INITIALIZATIONS: usize = 10;
const ITERATIONS: usize = 300;
const TOLERANCE: f64 = 1e-4;

/// Assigns each point to one of `clusters` clusters, numbered from 0. Up to
/// `clusters` points are each their own cluster.
pub fn cluster(points: &[Vec<f64>], clusters: usize, seed: u64) -> Vec<usize> {
    if points.len() <= clusters {
        return (0..points.len()).collect();
    }
    let mut generator = Pcg64::new(seed);
    let tolerance = TOLERANCE * mean_variance(points);
    let mut best: Option<(f64, Vec<usize>)> = None;
    for _ in 0..INITIALIZATIONS {
        let centres = plus_plus_centres(points, clusters, &mut generator);
        let (inertia, labels) = lloyd(points, centres, tolerance);
        if best.as_ref().is_none_or(|(least, _)| inertia < *least) {
            best = Some((inertia, labels));
        }
    }
    best.map_or_else(Vec::new, |(_, labels)| labels)
}

fn squared_distance(left: &[f64], right: &[f64]) -> f64 {
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

/// Greedy k-means++: each centre is drawn in proportion to the squared distance
/// from those before it, and the best of a few draws is kept.
fn plus_plus_centres(points: &[Vec<f64>], clusters: usize, generator: &mut Pcg64) -> Vec<Vec<f64>> {
    let trials = 2 + (clusters as f64).ln() as usize;
    let first = (generator.unit() * points.len() as f64) as usize;
    let mut centres = vec![points[first.min(points.len() - 1)].clone()];
    let mut nearest: Vec<f64> = points.iter().map(|point| squared_distance(point, &centres[0])).collect();
    while centres.len() < clusters {
        let total: f64 = nearest.iter().sum();
        let mut best: Option<(f64, usize, Vec<f64>)> = None;
        for _ in 0..trials {
            let wanted = generator.unit() * total;
            let mut passed = 0.0;
            let drawn = nearest
                .iter()
                .position(|weight| {
                    passed += weight;
                    passed > wanted
                })
                .unwrap_or(points.len() - 1);
            let after: Vec<f64> = points
                .iter()
                .zip(&nearest)
                .map(|(point, nearest)| nearest.min(squared_distance(point, &points[drawn])))
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

fn lloyd(points: &[Vec<f64>], mut centres: Vec<Vec<f64>>, tolerance: f64) -> (f64, Vec<usize>) {
    let mut labels = assign(points, &centres);
    for _ in 0..ITERATIONS {
        let moved = recentre(points, &labels, &mut centres);
        let next = assign(points, &centres);
        let same = next == labels;
        labels = next;
        if same || moved <= tolerance {
            break;
        }
    }
    let inertia =
        points.iter().zip(&labels).map(|(point, label)| squared_distance(point, &centres[*label])).sum();
    (inertia, labels)
}

fn assign(points: &[Vec<f64>], centres: &[Vec<f64>]) -> Vec<usize> {
    points
        .iter()
        .map(|point| {
            let mut nearest = (f64::INFINITY, 0);
            for (label, centre) in centres.iter().enumerate() {
                let distance = squared_distance(point, centre);
                if distance < nearest.0 {
                    nearest = (distance, label);
                }
            }
            nearest.1
        })
        .collect()
}

/// Moves each centre to the mean of its points and returns the total squared
/// distance moved. An empty cluster takes the point farthest from its centre.
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
        for (index, point) in points.iter().enumerate() {
            let away = squared_distance(point, &before[labels[index]]);
            if !taken[index] && farthest.is_none_or(|(most, _)| away > most) {
                farthest = Some((away, index));
            }
        }
        if let Some((_, index)) = farthest {
            taken[index] = true;
            centres[label].clone_from(&points[index]);
        }
    }
    centres.iter().zip(&before).map(|(now, before)| squared_distance(now, before)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn well_separated_clusters_are_found() {
        let points: Vec<Vec<f64>> = (0..12)
            .map(|i| {
                let centre = [[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]][i % 3];
                vec![centre[0] + 0.01 * i as f64, centre[1] - 0.02 * i as f64]
            })
            .collect();
        for seed in 0..20 {
            let labels = cluster(&points, 3, seed);
            for (i, label) in labels.iter().enumerate() {
                assert_eq!(*label, labels[i % 3], "seed {seed}");
            }
            assert!(labels[0] != labels[1] && labels[1] != labels[2] && labels[0] != labels[2]);
        }
    }

    #[test]
    fn equal_points_do_not_panic() {
        let labels = cluster(&vec![vec![1.0, 1.0]; 6], 3, 0);
        assert!(labels.iter().all(|label| *label < 3));
        assert_eq!(cluster(&[vec![1.0], vec![2.0]], 3, 0), [0, 1]);
    }

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_clusters(
            points in prop::collection::vec(prop::collection::vec(-1f64..1.0, 3), 1..30),
            clusters in 2usize..6,
            seed: u64,
        ) {
            let labels = cluster(&points, clusters, seed);
            prop_assert_eq!(labels.len(), points.len());
            prop_assert!(labels.iter().all(|label| *label < clusters.max(points.len())));
            prop_assert_eq!(labels, cluster(&points, clusters, seed));
        }
    }
}

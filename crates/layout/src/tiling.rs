//! Proof that regions cover a tensor exactly once.
//!
//! # How it works
//!
//! Let `f(p)` be the number of regions that contain element `p`, minus one.
//! The regions tile the tensor exactly when `f` is zero everywhere. Take the
//! difference of `f` along every dim: each region leaves only its 2^d corners,
//! with alternating signs, and the tensor itself leaves its own corners with
//! the signs flipped. Differencing loses nothing (summing undoes it), so `f` is
//! zero exactly when the positive and the negative corners are the same
//! multiset. That is decided by two sorts, for any number of dims.
//!
//! If they differ, take the first corner in row-major order where the counts
//! do. No corner before it in every dim is left over, so summing back gives
//! `f` at that very element: positive means covered twice, negative not at
//! all. The proof thus names its own counterexample.
//!
//! Dims that no region cuts need no corners, so `d` counts only cut dims.

use crate::region::{Region, RegionError};
use crate::shape::{Dims, Shape};

/// A violation of a tiling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TilingError {
    #[error("region {index} is invalid")]
    Outside { index: usize, source: RegionError },
    #[error("no region covers {hole} of a tensor of shape {shape}")]
    Hole {
        /// A box of uncovered elements, as large as it can be from its first
        /// corner.
        hole: Region,
        shape: Shape,
    },
    #[error("regions {first} and {second} both cover {overlap}")]
    Overlap { first: usize, second: usize, overlap: Region },
}

/// Checks that every element of a tensor is in exactly one region.
///
/// Takes `O(n log n)` time for `n` regions with a fixed number of cut dims.
/// Empty regions cover nothing and are allowed anywhere inside the tensor.
pub fn check_tiling(shape: &Shape, regions: &[Region]) -> Result<(), TilingError> {
    for (index, region) in regions.iter().enumerate() {
        region.check_inside(shape).map_err(|source| TilingError::Outside { index, source })?;
    }
    let cut: Vec<usize> = (0..shape.ndim())
        .filter(|&dim| regions.iter().any(|r| !r.is_empty() && r.size()[dim] != shape[dim]))
        .collect();
    // Row-major number of a corner among all corners of the cut dims. A corner
    // may lie one past the last element, hence the + 1.
    let corner_count = cut.iter().try_fold(1u64, |count, &dim| count.checked_mul(shape[dim] as u64 + 1));
    let witness = match corner_count {
        Some(_) => first_leftover::<u64>(shape, regions, &cut),
        None => first_leftover::<u128>(shape, regions, &cut),
    };
    match witness {
        None => Ok(()),
        Some(Leftover { element, sign: Sign::Covered }) => Err(overlap_at(&element, regions)),
        Some(Leftover { element, sign: Sign::Uncovered }) => Err(hole_at(&element, shape, regions)),
    }
}

enum Sign {
    Covered,
    Uncovered,
}

struct Leftover {
    element: Dims,
    sign: Sign,
}

/// A number wide enough to distinguish all corners.
trait CornerNumber: Copy + Ord {
    const ZERO: Self;
    fn advance(self, width: usize, index: usize) -> Self;
    fn split_last(self, width: usize) -> (Self, usize);
}

macro_rules! corner_number {
    ($t:ty) => {
        impl CornerNumber for $t {
            const ZERO: Self = 0;

            fn advance(self, width: usize, index: usize) -> Self {
                self * width as Self + index as Self
            }

            fn split_last(self, width: usize) -> (Self, usize) {
                (self / width as Self, (self % width as Self) as usize)
            }
        }
    };
}

corner_number!(u64);
corner_number!(u128);

fn first_leftover<N: CornerNumber>(shape: &Shape, regions: &[Region], cut: &[usize]) -> Option<Leftover> {
    let half = 1usize << cut.len().saturating_sub(1);
    let mut positive: Vec<N> = Vec::with_capacity(regions.len() * half + 1);
    let mut negative: Vec<N> = Vec::with_capacity(regions.len() * half + 1);
    for region in regions.iter().filter(|region| !region.is_empty()) {
        push_corners(region, shape, cut, &mut positive, &mut negative);
    }
    let whole = Region::whole(shape);
    if !whole.is_empty() {
        push_corners(&whole, shape, cut, &mut negative, &mut positive);
    }
    positive.sort_unstable();
    negative.sort_unstable();
    let differs = positive.iter().zip(&negative).position(|(a, b)| a != b);
    let at = differs.unwrap_or(positive.len().min(negative.len()));
    let (number, sign) = match (positive.get(at), negative.get(at)) {
        (None, None) => return None,
        (Some(&number), None) => (number, Sign::Covered),
        (None, Some(&number)) => (number, Sign::Uncovered),
        (Some(&covered), Some(&uncovered)) if covered < uncovered => (covered, Sign::Covered),
        (Some(_), Some(&uncovered)) => (uncovered, Sign::Uncovered),
    };
    let mut element = Dims::from_elem(0, shape.ndim());
    let mut rest = number;
    for &dim in cut.iter().rev() {
        (rest, element[dim]) = rest.split_last(shape[dim] + 1);
    }
    Some(Leftover { element, sign })
}

/// Adds the corners of one box: those with an even number of far ends to
/// `even`, the others to `odd`.
fn push_corners<N: CornerNumber>(
    region: &Region,
    shape: &Shape,
    cut: &[usize],
    even: &mut Vec<N>,
    odd: &mut Vec<N>,
) {
    for corner in 0..1usize << cut.len() {
        let mut number = N::ZERO;
        for (bit, &dim) in cut.iter().enumerate() {
            let range = region.range(dim);
            let end = if corner >> bit & 1 == 0 { range.start } else { range.end };
            number = number.advance(shape[dim] + 1, end);
        }
        let far_ends = corner.count_ones();
        if far_ends % 2 == 0 { even.push(number) } else { odd.push(number) }
    }
}

fn overlap_at(element: &Dims, regions: &[Region]) -> TilingError {
    let mut covering = regions.iter().enumerate().filter(|(_, region)| region.contains_index(element));
    let (Some((first, a)), Some((second, b))) = (covering.next(), covering.next()) else {
        unreachable!("the corner sum says that two regions contain {element:?}");
    };
    let overlap = a.intersect(b).unwrap_or_else(|| a.clone());
    TilingError::Overlap { first, second, overlap }
}

/// Grows a hole from its first element to the far end of the tensor, then cuts
/// away whatever a region covers, each time along the dim that keeps the most.
fn hole_at(element: &Dims, shape: &Shape, regions: &[Region]) -> TilingError {
    let mut hole = Region::whole(shape);
    for dim in 0..shape.ndim() {
        hole = hole.with_range(dim, element[dim]..shape[dim]);
    }
    for region in regions {
        if hole.intersect(region).is_none() {
            continue;
        }
        let kept = (0..shape.ndim())
            .filter(|&dim| region.range(dim).start > element[dim])
            .map(|dim| hole.with_range(dim, element[dim]..region.range(dim).start))
            .max_by_key(Region::volume);
        // A region that intersects the hole without containing its first
        // element starts after it in some dim.
        hole = kept.expect("the corner sum says that no region contains the first element");
    }
    TilingError::Hole { hole, shape: shape.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    fn region(start: &[usize], size: &[usize]) -> Region {
        Region::new(start, size).unwrap()
    }

    #[test]
    fn a_pinwheel_tiles_though_no_cut_spans_it() {
        let blades = [
            region(&[0, 0], &[1, 2]),
            region(&[0, 2], &[2, 1]),
            region(&[2, 1], &[1, 2]),
            region(&[1, 0], &[2, 1]),
        ];
        let hub = region(&[1, 1], &[1, 1]);
        let error = check_tiling(&shape(&[3, 3]), &blades).unwrap_err();
        assert_eq!(error.to_string(), "no region covers [1:2, 1:2] of a tensor of shape 3x3");
        let all: Vec<Region> = blades.into_iter().chain([hub]).collect();
        assert_eq!(check_tiling(&shape(&[3, 3]), &all), Ok(()));
    }

    #[test]
    fn equal_volume_does_not_hide_a_hole() {
        let error = check_tiling(&shape(&[4]), &[region(&[0], &[2]), region(&[1], &[2])]).unwrap_err();
        assert_eq!(error.to_string(), "regions 0 and 1 both cover [1:2]");
        let gap = check_tiling(&shape(&[4]), &[region(&[0], &[1]), region(&[2], &[2])]).unwrap_err();
        assert_eq!(gap.to_string(), "no region covers [1:2] of a tensor of shape 4");
    }

    #[test]
    fn edges_of_the_definition() {
        assert_eq!(check_tiling(&shape(&[]), &[region(&[], &[])]), Ok(()));
        assert!(matches!(check_tiling(&shape(&[]), &[]), Err(TilingError::Hole { .. })));
        let twice = vec![region(&[], &[]); 2];
        assert!(matches!(check_tiling(&shape(&[]), &twice), Err(TilingError::Overlap { .. })));
        assert_eq!(check_tiling(&shape(&[0, 3]), &[]), Ok(()));
        assert_eq!(check_tiling(&shape(&[2]), &[region(&[2], &[0]), region(&[0], &[2])]), Ok(()));
        assert!(matches!(
            check_tiling(&shape(&[2]), &[region(&[1], &[2])]),
            Err(TilingError::Outside { index: 0, .. })
        ));
        let triple = vec![region(&[0], &[2]); 3];
        assert!(matches!(check_tiling(&shape(&[2]), &triple), Err(TilingError::Overlap { .. })));
    }

    #[test]
    fn corner_numbers_beyond_64_bits_are_distinguished() {
        let long = 1usize << 19;
        let huge = shape(&[long, long, long]);
        let halves = |dim: usize, which: usize| {
            let start = which * (long / 2);
            Region::whole(&huge).with_range(dim, start..start + long / 2)
        };
        let mut octants = Vec::new();
        for corner in 0..8usize {
            let octant = (0..3)
                .fold(Region::whole(&huge), |r, dim| r.intersect(&halves(dim, corner >> dim & 1)).unwrap());
            octants.push(octant);
        }
        assert_eq!(check_tiling(&huge, &octants), Ok(()));
        // The same through 128-bit numbers.
        assert!(first_leftover::<u128>(&huge, &octants, &[0, 1, 2]).is_none());
        octants.pop();
        assert!(matches!(check_tiling(&huge, &octants), Err(TilingError::Hole { .. })));
    }
}

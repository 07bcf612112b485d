//! Regions: boxes inside a tensor.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::shape::{Dims, Shape};

/// An n-dimensional box inside a tensor: its start and its size.
///
/// A region does not know its tensor. Methods that take a second region or a
/// shape require the same number of dims.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(Vec<usize>, Vec<usize>)", into = "(Vec<usize>, Vec<usize>)")]
pub struct Region {
    start: Dims,
    size: Dims,
}

impl TryFrom<(Vec<usize>, Vec<usize>)> for Region {
    type Error = RegionError;

    fn try_from((start, size): (Vec<usize>, Vec<usize>)) -> Result<Self, RegionError> {
        Self::new(&start, &size)
    }
}

impl From<Region> for (Vec<usize>, Vec<usize>) {
    fn from(region: Region) -> Self {
        (region.start.to_vec(), region.size.to_vec())
    }
}

/// An invalid region, or one outside its tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RegionError {
    #[error("a region starts in {starts} dims but has sizes for {sizes}")]
    DimCount { starts: usize, sizes: usize },
    #[error("dim {dim} of a region starts at {start} and cannot hold {size} more elements")]
    TooLarge { dim: usize, start: usize, size: usize },
    #[error("region {region} is outside a tensor of shape {shape}")]
    Outside { region: Region, shape: Shape },
}

impl Region {
    /// Creates the region that starts at `start` and extends `size` elements in
    /// each dim.
    pub fn new(start: &[usize], size: &[usize]) -> Result<Self, RegionError> {
        if start.len() != size.len() {
            return Err(RegionError::DimCount { starts: start.len(), sizes: size.len() });
        }
        for (dim, (&start, &size)) in start.iter().zip(size).enumerate() {
            if start.checked_add(size).is_none() {
                return Err(RegionError::TooLarge { dim, start, size });
            }
        }
        Ok(Self { start: Dims::from_slice(start), size: Dims::from_slice(size) })
    }

    /// The region of a whole tensor.
    pub fn whole(shape: &Shape) -> Self {
        Self { start: Dims::from_elem(0, shape.ndim()), size: Dims::from_slice(shape) }
    }

    pub(crate) fn from_parts(start: Dims, size: Dims) -> Self {
        debug_assert_eq!(start.len(), size.len());
        Self { start, size }
    }

    /// First index in each dim.
    pub fn start(&self) -> &[usize] {
        &self.start
    }

    /// Number of indices in each dim.
    pub fn size(&self) -> &[usize] {
        &self.size
    }

    /// Half-open range of indices in one dim.
    pub fn range(&self, dim: usize) -> Range<usize> {
        self.start[dim]..self.start[dim] + self.size[dim]
    }

    /// The number of dims.
    pub fn ndim(&self) -> usize {
        self.start.len()
    }

    /// Number of elements.
    pub fn volume(&self) -> usize {
        self.size.iter().product()
    }

    /// Whether the region has no elements.
    pub fn is_empty(&self) -> bool {
        self.size.contains(&0)
    }

    /// The shape of a tensor that holds just this region.
    pub fn shape(&self) -> Shape {
        Shape::within_checked(self.size.clone())
    }

    /// Whether every element of `other` is in this region. An empty region is
    /// contained everywhere.
    pub fn contains(&self, other: &Self) -> bool {
        other.is_empty()
            || self.ndim() == other.ndim()
                && (0..self.ndim()).all(|dim| {
                    let (outer, inner) = (self.range(dim), other.range(dim));
                    outer.start <= inner.start && inner.end <= outer.end
                })
    }

    /// Whether the element at `index` is in this region.
    pub fn contains_index(&self, index: &[usize]) -> bool {
        index.len() == self.ndim() && (0..self.ndim()).all(|dim| self.range(dim).contains(&index[dim]))
    }

    /// Checks that the region lies inside a tensor of this shape.
    pub fn check_inside(&self, shape: &Shape) -> Result<(), RegionError> {
        let inside =
            self.ndim() == shape.ndim() && (0..self.ndim()).all(|dim| self.range(dim).end <= shape[dim]);
        if inside { Ok(()) } else { Err(RegionError::Outside { region: self.clone(), shape: shape.clone() }) }
    }

    /// The intersection, or `None` if it is empty.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.ndim() != other.ndim() {
            return None;
        }
        let mut start = Dims::new();
        let mut size = Dims::new();
        for dim in 0..self.ndim() {
            let (a, b) = (self.range(dim), other.range(dim));
            let low = a.start.max(b.start);
            let high = a.end.min(b.end);
            if low >= high {
                return None;
            }
            start.push(low);
            size.push(high - low);
        }
        Some(Self { start, size })
    }

    /// The intersection, possibly an empty region of the same dims.
    pub fn common(&self, other: &Self) -> Self {
        self.intersect(other).unwrap_or_else(|| match self.start().first() {
            Some(&start) => self.with_range(0, start..start),
            None => self.clone(),
        })
    }

    /// This region with another range in one dim.
    pub fn with_range(&self, dim: usize, range: Range<usize>) -> Self {
        let mut changed = self.clone();
        changed.start[dim] = range.start;
        changed.size[dim] = range.end - range.start;
        changed
    }

    /// This region in the coordinates of a buffer that holds just `outer`, or
    /// `None` if it does not lie inside.
    pub fn relative_to(&self, outer: &Self) -> Option<Self> {
        let inside = self.ndim() == outer.ndim()
            && (0..self.ndim()).all(|dim| {
                outer.start[dim] <= self.start[dim] && self.range(dim).end <= outer.range(dim).end
            });
        inside.then(|| Self {
            start: self.start.iter().zip(&outer.start).map(|(a, b)| a - b).collect(),
            size: self.size.clone(),
        })
    }

    /// The element offsets of this region in a row-major tensor: the fewest
    /// contiguous runs, in ascending order.
    pub fn runs(&self, shape: &Shape) -> Result<Runs, RegionError> {
        self.check_inside(shape)?;
        Ok(Runs::new(self, shape))
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> =
            (0..self.ndim()).map(|dim| self.range(dim)).map(|r| format!("{}:{}", r.start, r.end)).collect();
        f.pad(&format!("[{}]", ranges.join(", ")))
    }
}

/// Iterator over the contiguous runs of a region; see [`Region::runs`].
#[derive(Clone, Debug)]
pub struct Runs {
    next_start: usize,
    run: usize,
    remaining: usize,
    /// Index within `counts`, innermost last.
    index: Dims,
    counts: Dims,
    strides: Dims,
}

impl Runs {
    fn new(region: &Region, shape: &Shape) -> Self {
        let strides = shape.strides();
        let next_start = region.start.iter().zip(&strides).map(|(a, b)| a * b).sum();
        if region.is_empty() {
            let none = Dims::new();
            return Self {
                next_start,
                run: 0,
                remaining: 0,
                index: none.clone(),
                counts: none.clone(),
                strides: none,
            };
        }
        // Dims after the last partial one are whole, so they form one run with
        // it.
        let cut = (0..region.ndim()).rev().find(|&dim| region.size[dim] != shape[dim]);
        let (run, outer) = match cut {
            Some(dim) => (region.size[dim] * strides[dim], dim),
            None => (shape.volume(), 0),
        };
        let counts = Dims::from_slice(&region.size[..outer]);
        Self {
            next_start,
            run,
            remaining: counts.iter().product(),
            index: Dims::from_elem(0, outer),
            counts,
            strides: Dims::from_slice(&strides[..outer]),
        }
    }
}

impl Iterator for Runs {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.remaining == 0 {
            return None;
        }
        self.remaining -= 1;
        let found = self.next_start..self.next_start + self.run;
        for dim in (0..self.counts.len()).rev() {
            self.index[dim] += 1;
            self.next_start += self.strides[dim];
            if self.index[dim] < self.counts[dim] {
                break;
            }
            self.next_start -= self.counts[dim] * self.strides[dim];
            self.index[dim] = 0;
        }
        Some(found)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for Runs {}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: &[usize], size: &[usize]) -> Region {
        Region::new(start, size).unwrap()
    }

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn runs_are_coalesced() {
        let runs = |r: Region, s: &[usize]| r.runs(&shape(s)).unwrap().collect::<Vec<_>>();
        assert_eq!(runs(region(&[1, 0], &[2, 4]), &[5, 4]), [4..12]);
        assert_eq!(runs(region(&[1, 1], &[2, 2]), &[5, 4]), [5..7, 9..11]);
        assert_eq!(runs(region(&[0, 1, 0], &[2, 1, 3]), &[2, 2, 3]), [3..6, 9..12]);
        assert_eq!(runs(region(&[], &[]), &[]), [0..1]);
        assert!(runs(region(&[0, 2], &[5, 0]), &[5, 4]).is_empty());
    }

    #[test]
    fn invalid_regions_are_typed_errors() {
        assert!(matches!(Region::new(&[0], &[1, 2]), Err(RegionError::DimCount { starts: 1, sizes: 2 })));
        assert!(matches!(Region::new(&[usize::MAX], &[1]), Err(RegionError::TooLarge { dim: 0, .. })));
        let error = region(&[3], &[2]).runs(&shape(&[4])).unwrap_err();
        assert_eq!(error.to_string(), "region [3:5] is outside a tensor of shape 4");
        assert!(region(&[0], &[1]).runs(&shape(&[4, 4])).is_err());
    }

    #[test]
    fn regions_of_different_ndim_never_intersect() {
        assert_eq!(region(&[0], &[4]).intersect(&region(&[0, 0], &[4, 4])), None);
        assert!(!region(&[0], &[4]).contains(&region(&[0, 0], &[4, 4])));
    }
}

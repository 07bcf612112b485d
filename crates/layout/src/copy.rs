//! Copies of regions between row-major buffers.

use crate::region::Region;
use crate::shape::Dims;

/// A region of a tensor, stored row-major.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Tile<'a> {
    /// In global indices.
    pub region: &'a Region,
    pub bytes: &'a [u8],
}

/// A writable region of a tensor, stored row-major.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct TileMut<'a> {
    /// In global indices.
    pub region: &'a Region,
    pub bytes: &'a mut [u8],
}

/// An error of copying a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CopyError {
    #[error("the {side} buffer holds {held}, which does not contain {wanted}")]
    NotHeld { wanted: Region, held: Region, side: &'static str },
    #[error("the {side} buffer for region {held} has {found} bytes, not {expected}")]
    Length { held: Region, expected: usize, found: usize, side: &'static str },
}

/// Copies `wanted` from one tile into another. Elements are `width` bytes wide.
pub fn copy_region(
    wanted: &Region,
    width: usize,
    source: Tile<'_>,
    target: &mut TileMut<'_>,
) -> Result<(), CopyError> {
    let from = window(wanted, width, source.region, source.bytes.len(), "source")?;
    let to = window(wanted, width, target.region, target.bytes.len(), "destination")?;
    if wanted.is_empty() {
        return Ok(());
    }
    let source_shape = source.region.shape();
    let target_shape = target.region.shape();
    let (source_strides, target_strides) = (source_shape.strides(), target_shape.strides());

    // Trailing dims that are whole in both buffers join the run.
    let mut outer = wanted.ndim();
    let mut run = width;
    while outer > 0 {
        outer -= 1;
        run *= wanted.size()[outer];
        let whole =
            wanted.size()[outer] == source_shape[outer] && wanted.size()[outer] == target_shape[outer];
        if !whole {
            break;
        }
    }
    let offset = |start: &Region, strides: &Dims| -> usize {
        start.start().iter().zip(strides).map(|(a, b)| a * b * width).sum()
    };
    let (mut read, mut write) = (offset(&from, &source_strides), offset(&to, &target_strides));
    let mut index = Dims::from_elem(0, outer);
    loop {
        target.bytes[write..write + run].copy_from_slice(&source.bytes[read..read + run]);
        let mut dim = outer;
        loop {
            if dim == 0 {
                return Ok(());
            }
            dim -= 1;
            index[dim] += 1;
            read += source_strides[dim] * width;
            write += target_strides[dim] * width;
            if index[dim] < wanted.size()[dim] {
                break;
            }
            read -= wanted.size()[dim] * source_strides[dim] * width;
            write -= wanted.size()[dim] * target_strides[dim] * width;
            index[dim] = 0;
        }
    }
}

fn window(
    wanted: &Region,
    width: usize,
    held: &Region,
    found: usize,
    side: &'static str,
) -> Result<Region, CopyError> {
    let expected = held.volume() * width;
    if expected != found {
        return Err(CopyError::Length { held: held.clone(), expected, found, side });
    }
    wanted.relative_to(held).ok_or_else(|| CopyError::NotHeld {
        wanted: wanted.clone(),
        held: held.clone(),
        side,
    })
}

//! Metadata of a distributed tensor.

use weightloom_layout::{DType, Layout, LayoutError, Region, Shape};

/// Layout, global shape and dtype of a distributed tensor, and the shard of this
/// rank. Specs are interned, so equal ones have one address.
#[derive(Debug)]
pub struct DTensorSpec {
    layout: Layout,
    shape: Shape,
    dtype: DType,
    region: Region,
    local_shape: Shape,
}

impl DTensorSpec {
    pub(crate) fn new(layout: Layout, shape: &Shape, dtype: DType, rank: usize) -> Result<Self, LayoutError> {
        let region = layout.region_of(shape, rank)?;
        Ok(Self { layout, shape: shape.clone(), dtype, local_shape: region.shape(), region })
    }

    /// Mesh and placements.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The global shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The region of the tensor that this rank holds.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The shape of that region.
    pub fn local_shape(&self) -> &Shape {
        &self.local_shape
    }
}

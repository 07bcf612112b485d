//! What is known of a distributed tensor without its data.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use weightloom_layout::{DType, Layout, LayoutError, Region, Shape};

/// Layout, global shape and dtype, and what they mean for this rank. Kinds are
/// interned, so that equal ones have one address.
#[derive(Debug)]
pub struct DTensorSpec {
    layout: Layout,
    shape: Shape,
    dtype: DType,
    region: Region,
    local: Shape,
}

impl DTensorSpec {
    /// Who holds what.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The shape of the whole tensor.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The part of the tensor that this rank holds.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The shape of that part.
    pub fn local_shape(&self) -> &Shape {
        &self.local
    }
}

/// All kinds that a rank has met.
#[derive(Default)]
pub(crate) struct SpecTable(FxHashMap<(Layout, Shape, DType), Arc<DTensorSpec>>);

impl SpecTable {
    pub(crate) fn of(
        &mut self,
        layout: Layout,
        shape: &Shape,
        dtype: DType,
        rank: usize,
    ) -> Result<Arc<DTensorSpec>, LayoutError> {
        let key = (layout, shape.clone(), dtype);
        if let Some(spec) = self.0.get(&key) {
            return Ok(Arc::clone(spec));
        }
        let region = layout.region_of(shape, rank)?;
        let spec =
            Arc::new(DTensorSpec { layout, shape: shape.clone(), dtype, local: region.shape(), region });
        self.0.insert(key, Arc::clone(&spec));
        Ok(spec)
    }
}

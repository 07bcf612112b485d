//! Several regions of a tensor on one rank.

use weightloom_layout::{Region, Shape, TilingError, check_tiling};

/// Regions of a tensor that one rank holds in one piece of memory, such as what FSDP
/// leaves of a tensor that tensor parallelism has split unevenly before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    local: Shape,
    parts: Vec<Part>,
}

/// A region of a tensor, and the region of a rank's memory that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it lies in the whole tensor.
    pub whole: Region,
    /// Where it lies in the rank's memory, which is row-major.
    pub local: Region,
}

impl Parts {
    /// Regions of the whole tensor, each with its offset in memory of a shape that they
    /// fill, each element once. A rank without parts holds no bytes, whatever the shape.
    pub fn new(
        local: Shape,
        parts: impl IntoIterator<Item = (Vec<usize>, Region)>,
    ) -> Result<Self, TilingError> {
        let placed = parts.into_iter().enumerate().map(|(index, (offset, whole))| {
            let local = Region::new(&offset, whole.size());
            let local = local.map_err(|source| TilingError::Outside { index, source })?;
            Ok(Part { whole, local })
        });
        let parts: Vec<Part> = placed.collect::<Result<_, TilingError>>()?;
        if !parts.is_empty() {
            let regions: Vec<Region> = parts.iter().map(|part| part.local.clone()).collect();
            check_tiling(&local, &regions)?;
        }
        Ok(Self { local, parts })
    }

    /// The shape of the memory.
    pub fn local_shape(&self) -> &Shape {
        &self.local
    }

    /// The parts.
    pub fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }

    /// Number of elements of all parts.
    pub fn volume(&self) -> usize {
        self.parts.iter().map(|part| part.whole.volume()).sum()
    }
}

//! The items of plans.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weightloom_layout::{DType, Layout, Region, Shape};

use super::data::{PlanData, StorageData, storage_data_pairs};
use crate::fingerprint::Fingerprint;
use crate::state::Section;

/// Identifies an entry of a checkpoint, or a region of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MetadataIndex {
    /// The name.
    pub name: String,
    /// Where the region begins; `None` for entries that are not tensors.
    pub offset: Option<Vec<usize>>,
    /// The number of the stored tile, once it is known.
    pub ordinal: Option<usize>,
}

impl MetadataIndex {
    /// A whole entry.
    pub fn whole(name: impl Into<String>) -> Self {
        Self { name: name.into(), offset: None, ordinal: None }
    }

    /// A region of a tensor.
    pub fn part(name: impl Into<String>, region: &Region) -> Self {
        Self { name: name.into(), offset: Some(region.start().to_vec()), ordinal: None }
    }
}

/// One write of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteItem {
    /// The entry.
    pub index: MetadataIndex,
    /// The section that it belongs to.
    pub section: Section,
    /// The data.
    pub data: WriteData,
}

/// Data of a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteData {
    /// A region of a tensor.
    Tensor {
        /// The tensor's dtype.
        dtype: DType,
        /// The tensor's global shape.
        shape: Shape,
        /// The region.
        region: Region,
    },
    /// Bytes.
    Bytes {
        /// Number of bytes.
        length: u64,
        /// A hash of the bytes, by which ranks compare them.
        digest: Fingerprint,
    },
}

impl WriteItem {
    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        match &self.data {
            WriteData::Tensor { dtype, region, .. } => region.volume() as u64 * dtype.size() as u64,
            WriteData::Bytes { length, .. } => *length,
        }
    }
}

/// One read of one rank: a box of a stored tile, and its place in a
/// destination.
///
/// Items say what is read: a destination is filled from exactly the boxes that
/// its items name. Together they must fill it, each element once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadItem {
    /// The destination.
    pub destination: MetadataIndex,
    /// The offset in the destination.
    pub destination_offsets: Vec<usize>,
    /// The stored tile, by its offset, its number or both; the whole tensor if it
    /// has neither.
    pub storage: MetadataIndex,
    /// The offset in the stored tile.
    pub storage_offsets: Vec<usize>,
    /// The sizes of the box.
    pub lengths: Vec<usize>,
}

/// Redistribution of a tensor before it is written.
///
/// A tensor whose shards would be written in tiny runs is redistributed first,
/// so that each rank holds whole rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redistribution {
    /// The tensor.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// The layout that the ranks hold it in.
    #[serde(with = "layout_text")]
    pub from: Layout,
    /// The layout that it is written from.
    #[serde(with = "layout_text")]
    pub to: Layout,
    /// Bytes of one run in the layout `from`.
    pub run: u64,
    /// Bytes of one run in the layout `to`.
    pub run_after: u64,
}

/// The writes of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavePlan {
    /// Redistributions before the writes, in this order on all ranks.
    pub redistributions: Vec<Redistribution>,
    /// The writes.
    pub items: Vec<WriteItem>,
    /// Data of the planner. A local plan's data reach
    /// [`global_plan`](super::SavePlanner::global_plan) on every rank.
    pub planner_data: Option<PlanData>,
    /// Data of single items.
    #[serde(with = "storage_data_pairs")]
    pub storage_data: StorageData,
}

impl SavePlan {
    /// Bytes that the rank writes.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(WriteItem::bytes).sum()
    }
}

/// The reads of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadPlan {
    /// Reads of tensors.
    pub tensors: Vec<ReadItem>,
    /// Entries that are not tensors: name in the checkpoint, name in the state.
    pub bytes: Vec<(String, String)>,
    /// Data of the planner. A local plan's data reach
    /// [`global_plan`](super::LoadPlanner::global_plan) on every rank.
    pub planner_data: Option<PlanData>,
    /// Data of single items.
    #[serde(with = "storage_data_pairs")]
    pub storage_data: StorageData,
}

/// Everything that a checkpoint will hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The tensors.
    pub tensors: BTreeMap<String, TensorMetadata>,
    /// Lengths of entries that are not tensors.
    pub bytes: BTreeMap<String, u64>,
    /// Data of the planner. They are stored in native checkpoints, where load
    /// planners find them in [`Index::planner_data`](crate::Index::planner_data).
    pub planner_data: Option<PlanData>,
    /// Data of single items, stored likewise.
    #[serde(with = "storage_data_pairs")]
    pub storage_data: StorageData,
}

/// Metadata of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMetadata {
    /// The section that it belongs to.
    pub section: Section,
    /// Its dtype.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// The layout that it is written from, if it has one.
    #[serde(with = "optional_layout_text")]
    pub layout: Option<Layout>,
    /// The regions that are written, where they do not follow from a layout.
    pub chunks: Vec<Region>,
}

/// Layouts as text, for plans that ranks send to one another.
mod layout_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};
    use weightloom_layout::Layout;

    pub(super) fn serialize<S: Serializer>(layout: &Layout, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(layout)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Layout, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// As [`layout_text`], for tensors that may have no layout.
mod optional_layout_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
    use weightloom_layout::Layout;

    pub(super) fn serialize<S: Serializer>(
        layout: &Option<Layout>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        layout.map(|layout| layout.to_string()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Layout>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

//! What plans are made of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weightloom_layout::{DType, Layout, Region, Shape};

use crate::fingerprint::Fingerprint;
use crate::state::Section;

/// Names a thing in a checkpoint, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MetadataIndex {
    /// The name.
    pub name: String,
    /// Where the part begins; `None` for what has no parts.
    pub offset: Option<Vec<usize>>,
    /// Which of the parts it is, once that is decided.
    pub ordinal: Option<usize>,
}

impl MetadataIndex {
    /// A thing as a whole.
    pub fn whole(name: impl Into<String>) -> Self {
        Self { name: name.into(), offset: None, ordinal: None }
    }

    /// The part that begins at an offset.
    pub fn part(name: impl Into<String>, region: &Region) -> Self {
        Self { name: name.into(), offset: Some(region.start().to_vec()), ordinal: None }
    }
}

/// One thing that one rank writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteItem {
    /// What it is called.
    pub index: MetadataIndex,
    /// To which half of the checkpoint it belongs.
    pub section: Section,
    /// What it is.
    pub data: WriteData,
}

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteData {
    /// A part of a tensor.
    Tensor {
        /// The type of its elements.
        dtype: DType,
        /// The tensor's global shape.
        shape: Shape,
        /// Which part.
        region: Region,
    },
    /// Bytes.
    Bytes {
        /// How many.
        length: u64,
        /// A hash of them, by which ranks see that they have the same.
        digest: Fingerprint,
    },
}

impl WriteItem {
    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        match &self.data {
            WriteData::Tensor { dtype, region, .. } => region.volume() as u64 * dtype.size() as u64,
            WriteData::Bytes { length, .. } => *length,
        }
    }
}

/// One box that one rank reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadItem {
    /// What it is called where it goes.
    pub destination: MetadataIndex,
    /// Where in the destination it goes.
    pub destination_offsets: Vec<usize>,
    /// What it is called in the checkpoint.
    pub storage: MetadataIndex,
    /// Where in the stored part it is.
    pub storage_offsets: Vec<usize>,
    /// How large the box is.
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
    /// The type of its elements.
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

/// What one rank writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavePlan {
    /// Redistributions that come first, in this order, on all ranks.
    pub redistributions: Vec<Redistribution>,
    /// What is then written.
    pub items: Vec<WriteItem>,
}

impl SavePlan {
    /// Bytes that the rank writes.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(WriteItem::bytes).sum()
    }
}

/// What one rank reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadPlan {
    /// Boxes of tensors.
    pub tensors: Vec<ReadItem>,
    /// Names of bytes, in the checkpoint and where they go.
    pub bytes: Vec<(String, String)>,
}

/// What a checkpoint holds as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The tensors.
    pub tensors: BTreeMap<String, TensorMetadata>,
    /// Bytes by name: how many.
    pub bytes: BTreeMap<String, u64>,
}

/// What a checkpoint says of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMetadata {
    /// To which half it belongs.
    pub section: Section,
    /// The type of its elements.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// The layout that it is written from, if it has one.
    #[serde(with = "optional_layout_text")]
    pub layout: Option<Layout>,
    /// The parts that are written, where they do not follow from a layout.
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

//! The state that a rank saves, by name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weightloom_layout::{DType, Layout, LayoutError, Region, Shape};

use crate::parts::Parts;

/// The state of one rank.
///
/// Names are unique over both sections. The model's tensors become a plain
/// Hugging Face model; the training state is stored beside it.
#[derive(Clone, Debug, Default)]
pub struct State<'a> {
    leaves: BTreeMap<String, Leaf<'a>>,
}

/// Section of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// The model's tensors.
    Model,
    /// Everything else that a resume needs: optimizer, data position, counters.
    Training,
}

/// An entry of a state.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    /// The section that it belongs to.
    pub section: Section,
    /// Its value.
    pub value: LeafValue<'a>,
}

/// Value of a leaf.
#[derive(Clone, Debug)]
pub enum LeafValue<'a> {
    /// This rank's shard of a tensor.
    Tensor(LocalTensor<'a>),
    /// Bytes, equal on every rank that has them.
    Bytes(Bytes<'a>),
}

/// One rank's shard of a tensor.
#[derive(Clone, Debug)]
pub struct LocalTensor<'a> {
    /// The whole tensor and its sharding.
    pub spec: TensorSpec,
    /// This rank's elements, row-major.
    pub bytes: Bytes<'a>,
}

/// Bytes to save.
#[derive(Clone)]
pub enum Bytes<'a> {
    /// The caller's bytes. A background save copies them first.
    Borrowed(&'a [u8]),
    /// Owned bytes.
    Owned(Vec<u8>),
    /// Bytes that do not change while they are shared. A background save keeps
    /// a reference instead of a copy.
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>),
    /// Bytes in the memory of a device. They are copied to the host piece by piece
    /// while they are written; a background save copies them first, as far as its
    /// budget allows.
    Device(Arc<dyn DeviceBytes>),
}

/// Contiguous bytes in the memory of a device, which do not change while they are
/// shared.
pub trait DeviceBytes: Send + Sync {
    /// The number of bytes.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `offset` on.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceReadError>;
}

/// Why bytes of a device cannot be copied to the host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot copy a tensor to the host: {message}")]
#[allow(missing_docs)]
pub struct DeviceReadError {
    pub message: String,
}

/// A part of the bytes of a device.
struct DevicePart {
    whole: Arc<dyn DeviceBytes>,
    start: usize,
    length: usize,
}

impl DeviceBytes for DevicePart {
    fn len(&self) -> usize {
        self.length
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceReadError> {
        self.whole.read(self.start + offset, into)
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Borrowed(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Bytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Borrowed(bytes)
    }
}

impl From<Vec<u8>> for Bytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}

impl Bytes<'_> {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self.on_host() {
            Ok(bytes) => bytes.len(),
            Err(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, copied if they are on a device.
    pub fn to_host(&self) -> Result<Cow<'_, [u8]>, DeviceReadError> {
        match self.on_host() {
            Ok(bytes) => Ok(Cow::Borrowed(bytes)),
            Err(device) => {
                let mut bytes = vec![0; device.len()];
                device.read(0, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    /// Copies bytes from `offset` on, which are inside.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceReadError> {
        match self.on_host() {
            Ok(bytes) => into.copy_from_slice(&bytes[offset..offset + into.len()]),
            Err(device) => device.read(offset, into)?,
        }
        Ok(())
    }

    /// The bytes if they are in host memory, else those of the device.
    pub(crate) fn on_host(&self) -> Result<&[u8], &dyn DeviceBytes> {
        match self {
            Self::Borrowed(bytes) => Ok(bytes),
            Self::Owned(bytes) => Ok(bytes),
            Self::Shared(bytes) => Ok((**bytes).as_ref()),
            Self::Device(bytes) => Err(&**bytes),
        }
    }

    /// The same bytes, without copying them.
    pub(crate) fn reborrow(&self) -> Bytes<'_> {
        match self {
            Self::Borrowed(bytes) => Bytes::Borrowed(bytes),
            Self::Owned(bytes) => Bytes::Borrowed(bytes),
            Self::Shared(bytes) => Bytes::Shared(Arc::clone(bytes)),
            Self::Device(bytes) => Bytes::Device(Arc::clone(bytes)),
        }
    }

    /// Bytes from `start` on, which are inside, without copying them.
    pub(crate) fn part(&self, start: usize, length: usize) -> Bytes<'_> {
        match self {
            Self::Device(bytes) => {
                Bytes::Device(Arc::new(DevicePart { whole: Arc::clone(bytes), start, length }))
            }
            Self::Borrowed(bytes) => Bytes::Borrowed(&bytes[start..start + length]),
            Self::Owned(bytes) => Bytes::Borrowed(&bytes[start..start + length]),
            Self::Shared(bytes) => Bytes::Borrowed(&(**bytes).as_ref()[start..start + length]),
        }
    }

    /// The bytes that a background save copies.
    pub(crate) fn to_copy(&self) -> u64 {
        match self {
            Self::Borrowed(_) | Self::Device(_) => self.len() as u64,
            Self::Owned(_) | Self::Shared(_) => 0,
        }
    }

    /// The bytes that are a copy already.
    pub(crate) fn owned(&self) -> u64 {
        match self {
            Self::Owned(bytes) => bytes.len() as u64,
            Self::Borrowed(_) | Self::Shared(_) | Self::Device(_) => 0,
        }
    }
}

/// Dtype, shape and sharding of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its dtype.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// The region that each rank holds.
    pub sharding: Sharding,
}

/// How a tensor is divided among ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// By a layout. Every rank knows the region of every rank, so that planning
    /// needs no communication.
    Layout(Layout),
    /// This rank holds a region; the others report theirs.
    Region(Region),
    /// This rank holds several regions, or none; the others report theirs.
    Parts(Parts),
}

impl TensorSpec {
    /// The region that a rank holds; `None` if the rank is outside the mesh, or holds
    /// [`Parts`].
    pub fn region(&self, rank: usize) -> Result<Option<Region>, LayoutError> {
        match &self.sharding {
            Sharding::Region(region) => Ok(Some(region.clone())),
            Sharding::Parts(_) => Ok(None),
            Sharding::Layout(layout) if layout.mesh().position(rank).is_err() => Ok(None),
            Sharding::Layout(layout) => layout.region_of(&self.shape, rank).map(Some),
        }
    }

    /// Number of elements that a rank holds.
    pub fn volume(&self, rank: usize) -> Result<usize, LayoutError> {
        match &self.sharding {
            Sharding::Parts(parts) => Ok(parts.volume()),
            _ => Ok(self.region(rank)?.as_ref().map_or(0, Region::volume)),
        }
    }
}

impl<'a> State<'a> {
    /// An empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of the model, or replaces the entry of that name.
    pub fn model(&mut self, name: impl Into<String>, tensor: LocalTensor<'a>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Model, value: LeafValue::Tensor(tensor) })
    }

    /// Adds a tensor of the training state.
    pub fn training(&mut self, name: impl Into<String>, tensor: LocalTensor<'a>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Training, value: LeafValue::Tensor(tensor) })
    }

    /// Adds bytes to the training state.
    pub fn bytes(&mut self, name: impl Into<String>, bytes: impl Into<Bytes<'a>>) -> &mut Self {
        self.insert(name, Leaf { section: Section::Training, value: LeafValue::Bytes(bytes.into()) })
    }

    /// Adds a serializable value, as JSON.
    pub fn value<T: Serialize + ?Sized>(
        &mut self,
        name: impl Into<String>,
        value: &T,
    ) -> Result<&mut Self, SerializeError> {
        let name = name.into();
        // With the keys in order, as they are read from formats that store values.
        let json = serde_json::to_value(value)
            .map_err(|error| SerializeError { name: name.clone(), message: error.to_string() })?;
        Ok(self.bytes(name, json.to_string().into_bytes()))
    }

    /// Adds a leaf.
    pub fn insert(&mut self, name: impl Into<String>, leaf: Leaf<'a>) -> &mut Self {
        self.leaves.insert(name.into(), leaf);
        self
    }

    /// All leaves, by name.
    pub fn leaves(&self) -> &BTreeMap<String, Leaf<'a>> {
        &self.leaves
    }
}

/// A value that cannot be serialized as JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot serialize `{name}` as JSON: {message}")]
#[allow(missing_docs)]
pub struct SerializeError {
    pub name: String,
    pub message: String,
}

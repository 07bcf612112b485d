//! Reference-counted memory of tensors.

use std::ops::Range;
use std::sync::Arc;

use weightloom_cuda::DeviceBlock;

use crate::device::Device;
use crate::memory::Block;
use crate::meter::Phantom;

/// Memory that tensors share. Read-only once written, unless a single tensor
/// holds it.
#[derive(Clone)]
pub(crate) struct Storage(Arc<Buffer>);

/// The owner of bytes that do not change.
pub(crate) type Owner = Arc<dyn AsRef<[u8]> + Send + Sync>;

pub(crate) enum Buffer {
    Cpu(Block),
    /// A range of the bytes of an owner, read-only.
    Shared(Owner, Range<usize>),
    /// Memory of a GPU, with its number.
    Cuda(u8, DeviceBlock),
    /// No bytes; counted by a meter, if one is active.
    Meta(#[expect(dead_code, reason = "it is counted until it is dropped")] Option<Phantom>),
}

impl Storage {
    pub(crate) fn cpu(block: Block) -> Self {
        Self(Arc::new(Buffer::Cpu(block)))
    }

    pub(crate) fn cuda(ordinal: u8, block: DeviceBlock) -> Self {
        Self(Arc::new(Buffer::Cuda(ordinal, block)))
    }

    /// Bytes of an owner; the range is inside them.
    pub(crate) fn shared(owner: Owner, range: Range<usize>) -> Self {
        Self(Arc::new(Buffer::Shared(owner, range)))
    }

    /// No data, counted as this many bytes.
    pub(crate) fn meta(bytes: u64) -> Self {
        Self(Arc::new(Buffer::Meta(Phantom::new(bytes))))
    }

    /// No data, and not counted.
    pub(crate) fn without_memory() -> Self {
        Self(Arc::new(Buffer::Meta(None)))
    }

    pub(crate) fn device(&self) -> Device {
        match *self.0 {
            Buffer::Cpu(_) | Buffer::Shared(..) => Device::Cpu,
            Buffer::Cuda(ordinal, _) => Device::Cuda(ordinal),
            Buffer::Meta(_) => Device::Meta,
        }
    }

    /// Whether this is the only reference.
    pub(crate) fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    /// The bytes, if they are in host memory.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &*self.0 {
            Buffer::Cpu(block) => Some(block.bytes()),
            Buffer::Shared(owner, range) => Some(&(**owner).as_ref()[range.clone()]),
            Buffer::Cuda(..) | Buffer::Meta(_) => None,
        }
    }

    /// The memory, if it is a GPU's.
    pub(crate) fn device_block(&self) -> Option<&DeviceBlock> {
        match &*self.0 {
            Buffer::Cuda(_, block) => Some(block),
            Buffer::Cpu(_) | Buffer::Shared(..) | Buffer::Meta(_) => None,
        }
    }

    /// Whether the elements may be changed in place: this is the only reference, and
    /// they are not another owner's.
    pub(crate) fn is_writable(&mut self) -> bool {
        matches!(Arc::get_mut(&mut self.0), Some(Buffer::Cpu(_) | Buffer::Cuda(..)))
    }

    /// The bytes, mutable, if they are in host memory and neither shared nor
    /// another owner's.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match Arc::get_mut(&mut self.0)? {
            Buffer::Cpu(block) => Some(block.bytes_mut()),
            Buffer::Shared(..) | Buffer::Cuda(..) | Buffer::Meta(_) => None,
        }
    }
}

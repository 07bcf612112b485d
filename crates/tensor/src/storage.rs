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
    Cuda(GpuMemory),
    /// No bytes; counted by a meter, if one is active.
    Meta(#[expect(dead_code, reason = "it is counted until it is dropped")] Option<Phantom>),
}

/// Memory of a GPU.
pub(crate) struct GpuMemory {
    pub(crate) ordinal: u8,
    pub(crate) block: DeviceBlock,
    pub(crate) host: Option<HostCopy>,
}

/// Host memory with the same elements as a GPU's, for what the host reads as well,
/// such as indices: reading the device would wait for it. Neither is ever changed.
pub(crate) struct HostCopy {
    pub(crate) storage: Storage,
    /// The element that is the first one on the GPU.
    pub(crate) first: usize,
}

impl Storage {
    pub(crate) fn cpu(block: Block) -> Self {
        Self(Arc::new(Buffer::Cpu(block)))
    }

    pub(crate) fn cuda(memory: GpuMemory) -> Self {
        Self(Arc::new(Buffer::Cuda(memory)))
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
            Buffer::Cuda(ref memory) => Device::Cuda(memory.ordinal),
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
            Buffer::Cuda(memory) => Some(&memory.block),
            Buffer::Cpu(_) | Buffer::Shared(..) | Buffer::Meta(_) => None,
        }
    }

    /// The host's copy of a GPU's memory, if it has one.
    pub(crate) fn host_copy(&self) -> Option<&HostCopy> {
        match &*self.0 {
            Buffer::Cuda(memory) => memory.host.as_ref(),
            Buffer::Cpu(_) | Buffer::Shared(..) | Buffer::Meta(_) => None,
        }
    }

    /// Whether the elements may be changed in place: this is the only reference, and
    /// they are not another owner's.
    pub(crate) fn is_writable(&mut self) -> bool {
        matches!(Arc::get_mut(&mut self.0), Some(Buffer::Cpu(_) | Buffer::Cuda(GpuMemory { host: None, .. })))
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

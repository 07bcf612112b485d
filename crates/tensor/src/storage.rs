//! Memory that tensors share.

use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::memory::Block;
use crate::meter::Phantom;

/// Memory that tensors share. Written once, when it is made; afterwards read
/// only, unless a single tensor holds it.
#[derive(Clone)]
pub(crate) struct Storage(Arc<Buffer>);

/// Bytes that belong to somebody else, who does not change them.
pub(crate) type Owner = Arc<dyn AsRef<[u8]> + Send + Sync>;

pub(crate) enum Buffer {
    Cpu(Block),
    /// A part of what an owner has, never changed.
    Shared(Owner, Range<usize>),
    /// No bytes; they count if somebody does.
    Meta(#[expect(dead_code, reason = "it counts as long as it is there")] Option<Phantom>),
}

impl Storage {
    pub(crate) fn cpu(block: Block) -> Self {
        Self(Arc::new(Buffer::Cpu(block)))
    }

    /// Bytes of an owner; the range is inside them.
    pub(crate) fn shared(owner: Owner, range: Range<usize>) -> Self {
        Self(Arc::new(Buffer::Shared(owner, range)))
    }

    /// No data, but as much memory as this would take.
    pub(crate) fn meta(bytes: u64) -> Self {
        Self(Arc::new(Buffer::Meta(Phantom::new(bytes))))
    }

    /// No data and no memory, for a shape.
    pub(crate) fn nothing() -> Self {
        Self(Arc::new(Buffer::Meta(None)))
    }

    pub(crate) fn device(&self) -> Device {
        match *self.0 {
            Buffer::Cpu(_) | Buffer::Shared(..) => Device::Cpu,
            Buffer::Meta(_) => Device::Meta,
        }
    }

    /// Whether nobody else uses it.
    pub(crate) fn is_alone(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    /// The bytes, if they are in this process.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &*self.0 {
            Buffer::Cpu(block) => Some(block.bytes()),
            Buffer::Shared(owner, range) => Some(&(**owner).as_ref()[range.clone()]),
            Buffer::Meta(_) => None,
        }
    }

    /// The bytes, to be changed, if they are in this process and nobody else
    /// uses or owns them.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match Arc::get_mut(&mut self.0)? {
            Buffer::Cpu(block) => Some(block.bytes_mut()),
            Buffer::Shared(..) | Buffer::Meta(_) => None,
        }
    }
}

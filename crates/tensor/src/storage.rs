//! Memory that tensors share.

use std::sync::Arc;

use crate::device::Device;
use crate::memory::Block;

/// Memory that tensors share. Written once, when it is made; afterwards read
/// only, unless a single tensor holds it.
#[derive(Clone)]
pub(crate) struct Storage(Arc<Buffer>);

pub(crate) enum Buffer {
    Cpu(Block),
    Meta,
}

impl Storage {
    pub(crate) fn cpu(block: Block) -> Self {
        Self(Arc::new(Buffer::Cpu(block)))
    }

    pub(crate) fn meta() -> Self {
        Self(Arc::new(Buffer::Meta))
    }

    pub(crate) fn device(&self) -> Device {
        match *self.0 {
            Buffer::Cpu(_) => Device::Cpu,
            Buffer::Meta => Device::Meta,
        }
    }

    /// The bytes, if they are in this process.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &*self.0 {
            Buffer::Cpu(block) => Some(block.bytes()),
            Buffer::Meta => None,
        }
    }

    /// The bytes, to be changed, if they are in this process and nobody else
    /// uses them.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match Arc::get_mut(&mut self.0)? {
            Buffer::Cpu(block) => Some(block.bytes_mut()),
            Buffer::Meta => None,
        }
    }
}

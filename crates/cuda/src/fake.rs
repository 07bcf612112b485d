//! A driver that computes nothing, records calls and checks addresses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::{Arg, DeviceInfo, Driver, Grid};
use crate::error::CudaError;
use crate::kernels::exists;

/// A call that a [`FakeDriver`] recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Memory was taken: its bytes.
    Allocate(usize),
    /// Memory was returned.
    Free,
    /// Bytes were copied to the device.
    Upload(usize),
    /// Bytes were copied from the device, which waits for it.
    Download(usize),
    /// Bytes were set or copied within the device.
    Copy(usize),
    /// A kernel was queued.
    Launch(String),
    /// The host waited for the device.
    Synchronize,
}

/// A driver without a device. Its memory is host memory, so that bytes come back as
/// they were uploaded; kernels do nothing. An address that is not in allocated memory,
/// and a kernel that does not exist, are errors.
#[derive(Debug)]
pub struct FakeDriver {
    info: DeviceInfo,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By address.
    blocks: BTreeMap<u64, Vec<u8>>,
    next: u64,
    in_use: usize,
    calls: Vec<Recorded>,
    /// The launch that fails, counted from now.
    trap_after: Option<usize>,
    lost: bool,
}

impl FakeDriver {
    /// A device with 1 GiB of memory.
    pub fn new() -> Arc<Self> {
        Self::with_memory(1 << 30)
    }

    /// A device with this many bytes of memory.
    pub fn with_memory(memory: usize) -> Arc<Self> {
        let info = DeviceInfo {
            name: "fake".to_owned(),
            capability: (9, 0),
            memory,
            multiprocessors: 1,
            driver_version: 13_000,
        };
        Arc::new(Self { info, state: Mutex::new(State { next: 1 << 20, ..State::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls since the last time, in order.
    pub fn take_calls(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.state().calls)
    }

    /// Blocks that were taken and not returned.
    pub fn blocks(&self) -> usize {
        self.state().blocks.len()
    }

    /// Makes a later launch end the device's work, as a kernel that traps does: 0 is
    /// the next one.
    pub fn trap_after(&self, launches: usize) {
        self.state().trap_after = Some(launches);
    }
}

impl State {
    fn check(&self, call: &'static str) -> Result<(), CudaError> {
        match self.lost {
            true => Err(CudaError::Lost { call, name: "CUDA_ERROR_LAUNCH_FAILED".to_owned() }),
            false => Ok(()),
        }
    }

    /// The bytes from an address.
    fn bytes(&mut self, call: &str, address: u64, count: usize) -> Result<&mut [u8], CudaError> {
        let found = self.blocks.range_mut(..=address).next_back();
        let bytes = found.and_then(|(start, block)| {
            let from = usize::try_from(address - start).ok()?;
            block.get_mut(from..from.checked_add(count)?)
        });
        bytes.ok_or_else(|| CudaError::BadAddress { call: call.to_owned(), address })
    }
}

impl Driver for FakeDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<(usize, usize), CudaError> {
        Ok((self.info.memory - self.state().in_use, self.info.memory))
    }

    fn allocate(&self, bytes: usize) -> Result<Option<u64>, CudaError> {
        let mut state = self.state();
        state.check("allocate")?;
        if state.in_use + bytes > self.info.memory {
            return Ok(None);
        }
        let address = state.next;
        // A gap, so that an address past the end of a block is in no other.
        state.next += bytes as u64 + 4096;
        state.in_use += bytes;
        state.blocks.insert(address, vec![0; bytes]);
        state.calls.push(Recorded::Allocate(bytes));
        Ok(Some(address))
    }

    fn free(&self, address: u64) {
        let mut state = self.state();
        if let Some(block) = state.blocks.remove(&address) {
            state.in_use -= block.len();
        }
        state.calls.push(Recorded::Free);
    }

    fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("upload")?;
        state.bytes("upload", to, bytes.len())?.copy_from_slice(bytes);
        state.calls.push(Recorded::Upload(bytes.len()));
        Ok(())
    }

    fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("download")?;
        bytes.copy_from_slice(state.bytes("download", from, bytes.len())?);
        state.calls.push(Recorded::Download(bytes.len()));
        Ok(())
    }

    fn set(&self, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("set")?;
        state.bytes("set", to, bytes)?.fill(byte);
        state.calls.push(Recorded::Copy(bytes));
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("copy")?;
        let source = state.bytes("copy", from, bytes)?.to_vec();
        state.bytes("copy", to, bytes)?.copy_from_slice(&source);
        state.calls.push(Recorded::Copy(bytes));
        Ok(())
    }

    fn launch(&self, kernel: &str, grid: Grid, args: &[Arg<'_>]) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("launch")?;
        if !exists(kernel) {
            return Err(CudaError::UnknownKernel { name: kernel.to_owned() });
        }
        let empty = grid.threads == 0 || grid.blocks.contains(&0);
        if empty || grid.threads > 1024 || grid.blocks[1] > 65_535 || grid.blocks[2] > 65_535 {
            let name = format!("CUDA_ERROR_INVALID_VALUE ({kernel}: {grid:?})");
            return Err(CudaError::Driver { call: "launch", name });
        }
        for arg in args {
            if let Arg::Address(address) = *arg {
                state.bytes(kernel, address, 0)?;
            }
        }
        state.calls.push(Recorded::Launch(kernel.to_owned()));
        state.lost = state.trap_after == Some(0);
        state.trap_after = state.trap_after.and_then(|left| left.checked_sub(1));
        Ok(())
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        let mut state = self.state();
        state.calls.push(Recorded::Synchronize);
        state.check("synchronize")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gpu;

    #[test]
    fn blocks_are_reused_and_returned() {
        let fake = FakeDriver::new();
        let gpu = Gpu::with_driver(fake.clone());
        let first = gpu.allocate(1000).unwrap();
        let address = first.address();
        drop(first);
        assert_eq!(gpu.allocate(900).unwrap().address(), address);
        gpu.release();
        assert_eq!(fake.blocks(), 0);
        assert_eq!(fake.take_calls(), [Recorded::Allocate(1024), Recorded::Free]);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_and_the_cache_is_emptied_first() {
        let fake = FakeDriver::with_memory(1 << 20);
        let gpu = Gpu::with_driver(fake);
        drop(gpu.allocate(600 << 10).unwrap());
        // Fits only without the cached block.
        let block = gpu.allocate(700 << 10).unwrap();
        let error = gpu.allocate(700 << 10).unwrap_err();
        assert!(matches!(error, CudaError::OutOfMemory { asked: 716_800, total: 1_048_576, .. }), "{error}");
        drop(block);
        gpu.allocate(700 << 10).unwrap();
    }

    #[test]
    fn a_budget_holds() {
        let gpu = Gpu::with_driver(FakeDriver::new());
        gpu.set_budget(1 << 20);
        let _block = gpu.allocate(1 << 19).unwrap();
        assert!(matches!(gpu.allocate(1 << 20), Err(CudaError::OverBudget { in_use: 524_288, .. })));
    }

    #[test]
    fn a_freed_address_and_an_unknown_kernel_are_errors() {
        let fake = FakeDriver::new();
        let gpu = Gpu::with_driver(fake.clone());
        let address = gpu.allocate(64).unwrap().address();
        let grid = Grid { blocks: [1; 3], threads: 32 };
        gpu.launch("fill_b4", grid, &[Arg::Address(address)]).unwrap();
        gpu.release();
        let error = gpu.launch("fill_b4", grid, &[Arg::Address(address)]).unwrap_err();
        assert_eq!(error, CudaError::BadAddress { call: "fill_b4".to_owned(), address });
        assert!(matches!(gpu.launch("nothing", grid, &[]), Err(CudaError::UnknownKernel { .. })));
    }

    #[test]
    fn a_trap_is_reported_by_everything_after_it() {
        let fake = FakeDriver::new();
        let gpu = Gpu::with_driver(fake.clone());
        let block = gpu.allocate(64).unwrap();
        fake.trap_after(0);
        gpu.launch("fill_b4", Grid { blocks: [1; 3], threads: 32 }, &[Arg::Address(block.address())])
            .unwrap();
        assert!(matches!(
            gpu.download(&block, 0, &mut [0; 4]),
            Err(CudaError::Lost { call: "download", .. })
        ));
        assert!(matches!(gpu.synchronize(), Err(CudaError::Lost { .. })));
    }

    #[test]
    fn bytes_outside_a_block_are_not_copied() {
        let gpu = Gpu::with_driver(FakeDriver::new());
        let mut block = gpu.allocate(512).unwrap();
        assert!(matches!(gpu.upload(&mut block, &[0; 513]), Err(CudaError::OutsideBlock { .. })));
        assert!(gpu.download(&block, 510, &mut [0; 4]).is_err());
    }
}

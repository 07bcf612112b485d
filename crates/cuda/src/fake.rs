//! A driver that computes nothing, records calls and checks addresses.

mod streams;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::streams::{Access, Streams};
use crate::driver::{Arg, DeviceInfo, Driver, Grid, LibraryInfo, MatrixProduct, Slot, Stream};
use crate::error::CudaError;
use crate::kernels::exists;

/// A call that a [`FakeDriver`] recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Memory was taken: its bytes.
    Allocate(usize),
    /// Memory was returned.
    Free,
    /// A copy of bytes to the device was queued.
    Upload(usize),
    /// A copy of bytes from the device was queued.
    Download(usize),
    /// Bytes were set or copied within the device.
    Copy(usize),
    /// A kernel was queued.
    Launch(String),
    /// A product of the library was queued.
    Product(MatrixProduct),
    /// The host waited for the device.
    Synchronize,
}

/// The library of products of a [`FakeDriver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeLibrary {
    /// Its results are those of the kernels: nothing is computed.
    OurBits,
    /// Its results differ from those of the kernels.
    OtherBits,
}

/// A driver without a device. Its memory is host memory, so that bytes come back as
/// they were uploaded; kernels do nothing. Errors are: an address that is not in
/// allocated memory, a kernel that does not exist, and memory that both streams, or
/// the host and a copy, use without an order between them. Of the addresses that a
/// kernel is given, the first is taken as written, the others as read.
#[derive(Debug)]
pub struct FakeDriver {
    info: DeviceInfo,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: Streams,
    next: u64,
    in_use: usize,
    /// Bytes that other processes use.
    others: usize,
    calls: Vec<Recorded>,
    /// The launch that fails, counted from now.
    trap_after: Option<usize>,
    lost: bool,
    library: Option<FakeLibrary>,
    stamps: u64,
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
            shared: 227 << 10,
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
        self.state().streams.blocks()
    }

    /// Makes this a machine with a library of products.
    pub fn install_library(&self, library: FakeLibrary) {
        self.state().library = Some(library);
    }

    /// Leaves this many bytes of the device's memory to other processes.
    pub fn leave_to_others(&self, bytes: usize) {
        self.state().others = bytes;
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
}

impl Driver for FakeDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<(usize, usize), CudaError> {
        let state = self.state();
        Ok((self.info.memory.saturating_sub(state.in_use + state.others), self.info.memory))
    }

    fn allocate(&self, bytes: usize) -> Result<Option<u64>, CudaError> {
        let mut state = self.state();
        state.check("allocate")?;
        if state.in_use + state.others + bytes > self.info.memory {
            return Ok(None);
        }
        let address = state.next;
        // A gap, so that an address past the end of a block is in no other.
        state.next += bytes as u64 + 4096;
        state.in_use += bytes;
        state.streams.add(address, bytes);
        state.calls.push(Recorded::Allocate(bytes));
        Ok(Some(address))
    }

    fn free(&self, address: u64) {
        let mut state = self.state();
        state.in_use -= state.streams.remove(address);
        state.calls.push(Recorded::Free);
    }

    fn stage(&self, slot: Slot, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.state().streams.slot("stage", slot, at, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn unstage(&self, slot: Slot, bytes: &mut [u8]) -> Result<(), CudaError> {
        bytes.copy_from_slice(self.state().streams.slot("unstage", slot, 0, bytes.len())?);
        Ok(())
    }

    fn upload(&self, to: u64, slot: Slot, at: usize, bytes: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("upload")?;
        state.streams.upload(to, slot, at, bytes)?;
        state.calls.push(Recorded::Upload(bytes));
        Ok(())
    }

    fn download(&self, from: u64, slot: Slot, bytes: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("download")?;
        state.streams.download(from, slot, bytes)?;
        state.calls.push(Recorded::Download(bytes));
        Ok(())
    }

    fn mark(&self, slot: Slot) -> Result<(), CudaError> {
        let mut state = self.state();
        state.streams.mark(slot);
        state.check("mark")
    }

    fn wait(&self, slot: Slot) -> Result<(), CudaError> {
        let mut state = self.state();
        if state.streams.wait(slot) {
            state.calls.push(Recorded::Synchronize);
        }
        state.check("wait")
    }

    fn follow(&self) -> Result<(), CudaError> {
        let mut state = self.state();
        state.streams.follow();
        state.check("follow")
    }

    fn set(&self, to: u64, byte: u8, bytes: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("set")?;
        state.streams.set(to, byte, bytes)?;
        state.calls.push(Recorded::Copy(bytes));
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        state.check("copy")?;
        state.streams.copy(to, from, bytes)?;
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
        let addresses = args.iter().filter_map(|arg| match arg {
            Arg::Address(address) => Some(*address),
            _ => None,
        });
        for (number, address) in addresses.enumerate() {
            let access = if number == 0 { Access::Write } else { Access::Read };
            state.streams.access(kernel, Stream::Compute, access, (address, 0))?;
        }
        state.streams.kernel();
        state.calls.push(Recorded::Launch(kernel.to_owned()));
        state.lost = state.trap_after == Some(0);
        state.trap_after = state.trap_after.and_then(|left| left.checked_sub(1));
        Ok(())
    }

    fn library(&self) -> Result<LibraryInfo, CudaError> {
        match self.state().library {
            Some(_) => Ok(LibraryInfo { path: "fake".into(), version: "13.0.0".to_owned() }),
            None => {
                Err(CudaError::NoLibrary { name: "cuBLASLt", reason: "a fake device has none".to_owned() })
            }
        }
    }

    fn product(&self, product: &MatrixProduct, addresses: [u64; 4]) -> Result<bool, CudaError> {
        let mut state = self.state();
        state.check("product")?;
        let Some(library) = state.library else { return Ok(false) };
        for (number, address) in addresses.into_iter().enumerate().filter(|(_, address)| *address != 0) {
            let access = if number == 0 { Access::Write } else { Access::Read };
            state.streams.access("product", Stream::Compute, access, (address, 0))?;
        }
        state.streams.kernel();
        if library == FakeLibrary::OtherBits {
            state.streams.set(addresses[0], 1, 1)?;
        }
        state.calls.push(Recorded::Product(*product));
        Ok(true)
    }

    /// A stamp takes a microsecond.
    fn stamp(&self) -> Result<u64, CudaError> {
        let mut state = self.state();
        state.check("stamp")?;
        state.stamps += 1;
        Ok(state.stamps)
    }

    fn restart_stamps(&self) -> Result<u64, CudaError> {
        self.state().stamps = 0;
        self.stamp()
    }

    fn seconds_between(&self, first: u64, second: u64) -> Result<f64, CudaError> {
        Ok((second - first) as f64 * 1e-6)
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        let mut state = self.state();
        state.streams.finish(Stream::Compute);
        state.calls.push(Recorded::Synchronize);
        state.check("synchronize")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_errors::Hint as _;

    use super::*;
    use crate::Gpu;
    use crate::driver::{Lane, SLOT_BYTES};

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
    fn memory_that_another_process_uses_is_in_the_error() {
        let fake = FakeDriver::with_memory(1 << 20);
        let gpu = Gpu::with_driver(fake.clone());
        let _block = gpu.allocate(1 << 18).unwrap();
        fake.leave_to_others(1 << 19);
        let error = gpu.allocate(1 << 19).unwrap_err();
        let text = error.to_string();
        assert!(
            text.ends_with("256.0 KiB are in use by tensors, and 256.0 KiB of 1.0 MiB are free"),
            "{text}"
        );
        assert!(error.hint().unwrap().ends_with("or end other programs on the GPU"));
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
        let grid = Grid::new([1; 3], 32);
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
        gpu.launch("fill_b4", Grid::new([1; 3], 32), &[Arg::Address(block.address())]).unwrap();
        assert!(matches!(
            gpu.download(&block, 0, &mut [0; 4]),
            Err(CudaError::Lost { call: "download", .. })
        ));
        assert!(matches!(gpu.synchronize(), Err(CudaError::Lost { .. })));
    }

    fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn many_copies_of_all_sizes_arrive_whole_and_rarely_wait() {
        let fake = FakeDriver::new();
        let gpu = Gpu::with_driver(fake.clone());
        let sizes = [1, 63, 64, 65, 5000, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 9 * SLOT_BYTES + 17];
        let mut blocks = Vec::new();
        for (seed, bytes) in sizes.into_iter().enumerate() {
            let mut block = gpu.allocate(bytes).unwrap();
            let mut source = pattern(bytes, seed);
            gpu.upload(&mut block, &source).unwrap();
            // The source is free at once.
            source.fill(0);
            blocks.push(block);
        }
        for (seed, (bytes, block)) in sizes.into_iter().zip(&blocks).enumerate() {
            let mut found = vec![0; bytes];
            gpu.download(block, 0, &mut found).unwrap();
            assert_eq!(found, pattern(bytes, seed), "{bytes}");
            found.fill(0);
            gpu.download_in_background(block, 0, &mut found).unwrap();
            assert_eq!(found, pattern(bytes, seed), "{bytes} in the background");
        }
        fake.take_calls();
        let mut small = gpu.allocate(64).unwrap();
        (0..1000).for_each(|_| gpu.upload(&mut small, &[1; 64]).unwrap());
        let waits = fake.take_calls().into_iter().filter(|call| *call == Recorded::Synchronize).count();
        assert!(waits <= 1, "{waits}");
    }

    #[test]
    fn a_slot_that_a_copy_still_reads_must_not_be_written() {
        let fake = FakeDriver::new();
        let address = fake.allocate(512).unwrap().unwrap();
        let slot = Slot { lane: Lane::Upload, number: 0 };
        fake.stage(slot, 0, &[1; 100]).unwrap();
        fake.upload(address, slot, 0, 100).unwrap();
        fake.stage(slot, 100, &[2; 100]).unwrap();
        assert!(matches!(fake.stage(slot, 99, &[2]), Err(CudaError::Unordered { .. })));
        fake.mark(slot).unwrap();
        fake.wait(slot).unwrap();
        fake.stage(slot, 0, &[2; 100]).unwrap();
    }

    #[test]
    fn memory_of_both_streams_needs_an_order() {
        let fake = FakeDriver::new();
        let address = fake.allocate(512).unwrap().unwrap();
        let slot = Slot { lane: Lane::Background, number: 0 };
        fake.set(address, 7, 512).unwrap();
        let error = fake.download(address, slot, 512).unwrap_err();
        assert!(matches!(error, CudaError::Unordered { .. }), "read without waiting for the writer: {error}");
        fake.follow().unwrap();
        fake.download(address, slot, 512).unwrap();
        let grid = Grid::new([1; 3], 32);
        // A second reader is no conflict; a writer is, until the host has waited.
        let other = fake.allocate(512).unwrap().unwrap();
        fake.launch("fill_b4", grid, &[Arg::Address(other), Arg::Address(address)]).unwrap();
        let error = fake.launch("fill_b4", grid, &[Arg::Address(address)]).unwrap_err();
        assert!(matches!(error, CudaError::Unordered { .. }), "written under a reader: {error}");
        fake.mark(slot).unwrap();
        fake.wait(slot).unwrap();
        fake.launch("fill_b4", grid, &[Arg::Address(address)]).unwrap();
        let mut bytes = [0; 512];
        fake.unstage(slot, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 512]);
    }

    #[test]
    fn bytes_outside_a_block_are_not_copied() {
        let gpu = Gpu::with_driver(FakeDriver::new());
        let mut block = gpu.allocate(512).unwrap();
        assert!(matches!(gpu.upload(&mut block, &[0; 513]), Err(CudaError::OutsideBlock { .. })));
        assert!(gpu.download(&block, 510, &mut [0; 4]).is_err());
    }
}

//! A GPU: memory, copies and launches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::driver::{Arg, DeviceInfo, Driver, Grid, LibraryInfo, MatrixProduct};
use crate::error::CudaError;
use crate::memory::{Cache, DeviceBlock, Statistics, class};
use crate::nvidia::NvidiaDriver;
use crate::profile::Profile;
use crate::staging::Staging;

/// The number of GPUs.
pub fn count() -> Result<usize, CudaError> {
    NvidiaDriver::count()
}

/// A device with a cache of its memory.
#[derive(Debug)]
pub struct Gpu {
    driver: Arc<dyn Driver>,
    cache: Mutex<Cache>,
    staging: Staging,
    profile: Profile,
    poison: AtomicBool,
    own_products: AtomicBool,
    /// Held while cached blocks are returned to make room for a new one.
    making_room: Mutex<()>,
}

/// Whether new memory is filled with bytes that read as NaN, so that results that a
/// kernel forgets to write are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Memory is not cleared.
    Off,
    /// Memory is filled with 0xff.
    On,
}

/// Who computes large products of bf16 and f16. The bits are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// The library, where there is one.
    Library,
    /// Our own kernels.
    Kernels,
}

/// The devices that are in use. A device is opened once.
static DEVICES: Mutex<Option<FxHashMap<u8, Arc<Gpu>>>> = Mutex::new(None);

fn devices() -> MutexGuard<'static, Option<FxHashMap<u8, Arc<Gpu>>>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// The GPU with this number, opened at the first call.
    pub fn get(ordinal: u8) -> Result<Arc<Self>, CudaError> {
        let mut devices = devices();
        let devices = devices.get_or_insert_with(FxHashMap::default);
        if let Some(gpu) = devices.get(&ordinal) {
            return Ok(Arc::clone(gpu));
        }
        let gpu = Self::with_driver(Arc::new(NvidiaDriver::open(ordinal)?));
        devices.insert(ordinal, Arc::clone(&gpu));
        Ok(gpu)
    }

    /// A GPU with another driver, such as a fake one.
    pub fn with_driver(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            driver,
            cache: Mutex::new(Cache::new()),
            staging: Staging::default(),
            profile: Profile::default(),
            poison: AtomicBool::new(false),
            own_products: AtomicBool::new(false),
            making_room: Mutex::new(()),
        })
    }

    /// Makes [`get`](Self::get) return this GPU for a number that is not open yet.
    /// Returns whether it was not.
    pub fn install(self: &Arc<Self>, ordinal: u8) -> bool {
        let mut devices = devices();
        let devices = devices.get_or_insert_with(FxHashMap::default);
        if devices.contains_key(&ordinal) {
            return false;
        }
        devices.insert(ordinal, Arc::clone(self));
        true
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Facts about the device.
    pub fn info(&self) -> &DeviceInfo {
        self.driver.info()
    }

    /// Bytes that are free on the device, and all bytes.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.driver.memory()
    }

    /// The figures of the memory cache.
    pub fn statistics(&self) -> Statistics {
        self.cache().statistics
    }

    /// Resets the high-water mark to the bytes in use.
    pub fn reset_high_water(&self) {
        let mut cache = self.cache();
        cache.statistics.high_water = cache.statistics.in_use;
    }

    /// Sets the most bytes that blocks in use may hold.
    pub fn set_budget(&self, bytes: usize) {
        self.cache().budget = bytes;
    }

    /// Sets whether new memory is poisoned.
    pub fn set_poison(&self, poison: Poison) {
        self.poison.store(poison == Poison::On, Ordering::Relaxed);
    }

    /// Sets who computes large products.
    pub fn set_products(&self, products: Products) {
        self.own_products.store(products == Products::Kernels, Ordering::Relaxed);
    }

    /// Who should compute large products.
    pub fn products(&self) -> Products {
        if self.own_products.load(Ordering::Relaxed) { Products::Kernels } else { Products::Library }
    }

    /// The library of products, or why there is none.
    pub fn library(&self) -> Result<LibraryInfo, CudaError> {
        self.with_room(|| self.driver.library())
    }

    /// Queues a product of the library: result, both operands, and a matrix that is
    /// added (0 for none). Returns whether it did: there may be no library, or no
    /// algorithm for this product.
    pub fn product(&self, product: &MatrixProduct, addresses: [u64; 4]) -> Result<bool, CudaError> {
        self.profile
            .around(&*self.driver, "product", || self.with_room(|| self.driver.product(product, addresses)))
    }

    /// Returns all cached blocks to the driver.
    pub fn release(&self) {
        let addresses = self.cache().drain();
        addresses.into_iter().for_each(|address| self.driver.free(address));
    }

    /// Memory of at least this many bytes, not cleared. If the device has too little,
    /// cached blocks are returned to it first.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<DeviceBlock, CudaError> {
        let size = class(bytes);
        let kept = {
            let mut cache = self.cache();
            let Statistics { in_use, .. } = cache.statistics;
            if in_use.saturating_add(size) > cache.budget {
                return Err(CudaError::OverBudget { asked: bytes, in_use, budget: cache.budget });
            }
            // Before the lock is let go, so that two threads cannot both take the rest.
            cache.statistics.in_use += size;
            cache.take(size)
        };
        let address = match kept {
            Some(address) => address,
            None => self.fresh(bytes, size).inspect_err(|_| self.cache().statistics.in_use -= size)?,
        };
        self.cache().raise_high_water();
        let block = DeviceBlock::new(Arc::clone(self), address, size, bytes);
        if self.poison.load(Ordering::Relaxed) {
            self.driver.set(address, 0xff, size)?;
        }
        Ok(block)
    }

    fn fresh(&self, bytes: usize, size: usize) -> Result<u64, CudaError> {
        let mut address = self.driver.allocate(size)?;
        if address.is_none() {
            // Another thread may have made room, or be about to.
            let _held = self.making_room.lock().unwrap_or_else(PoisonError::into_inner);
            address = self.driver.allocate(size)?;
            if address.is_none() {
                self.release();
                address = self.driver.allocate(size)?;
            }
        }
        let Some(address) = address else { return Err(self.out_of_memory(bytes, size)?) };
        self.cache().statistics.fresh += 1;
        Ok(address)
    }

    /// The error of a request of this many bytes, already counted as `counted`.
    fn out_of_memory(&self, asked: usize, counted: usize) -> Result<CudaError, CudaError> {
        let (free, total) = self.driver.memory()?;
        Ok(CudaError::OutOfMemory { asked, in_use: self.statistics().in_use - counted, free, total })
    }

    /// Runs a call for which the driver may allocate memory. If there is none, runs it
    /// again without the cache.
    fn with_room<T>(&self, call: impl Fn() -> Result<T, CudaError>) -> Result<T, CudaError> {
        match call() {
            Err(CudaError::NoRoom { .. }) => {
                let _held = self.making_room.lock().unwrap_or_else(PoisonError::into_inner);
                self.release();
                call()
            }
            result => result,
        }
    }

    pub(crate) fn give_back(&self, address: u64, size: usize) {
        let mut cache = self.cache();
        cache.statistics.in_use -= size;
        cache.statistics.cached += size;
        cache.free.entry(size).or_default().push(address);
    }

    /// Queues a copy of bytes to the start of a block.
    pub fn upload(&self, block: &mut DeviceBlock, bytes: &[u8]) -> Result<(), CudaError> {
        inside("upload", block, 0, bytes.len())?;
        self.staging.upload(&*self.driver, block.address(), bytes)
    }

    /// Copies bytes from a block, from `offset`. Waits for all queued work.
    pub fn download(&self, block: &DeviceBlock, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        inside("download", block, offset, bytes.len())?;
        self.staging.download(&*self.driver, block.address() + offset as u64, bytes)
    }

    /// The same beside work that other threads queue meanwhile: waits only for what is
    /// queued before. Nothing may change the block until this returns.
    pub fn download_in_background(
        &self,
        block: &DeviceBlock,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), CudaError> {
        inside("download", block, offset, bytes.len())?;
        self.staging.download_in_background(&*self.driver, block.address() + offset as u64, bytes)
    }

    /// Copies the first bytes of a block to another.
    pub fn copy(&self, to: &mut DeviceBlock, from: &DeviceBlock, bytes: usize) -> Result<(), CudaError> {
        inside("copy", to, 0, bytes)?;
        inside("copy", from, 0, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.profile.around(&*self.driver, "copy", || self.driver.copy(to.address(), from.address(), bytes))
    }

    /// Sets the bytes of a block to zero.
    pub fn clear(&self, block: &DeviceBlock) -> Result<(), CudaError> {
        if block.is_empty() {
            Ok(())
        } else {
            self.profile.around(&*self.driver, "memset", || self.driver.set(block.address(), 0, block.len()))
        }
    }

    /// Queues a kernel.
    pub fn launch(&self, kernel: &str, grid: Grid, args: &[Arg<'_>]) -> Result<(), CudaError> {
        self.profile
            .around(&*self.driver, kernel, || self.with_room(|| self.driver.launch(kernel, grid, args)))
    }

    /// Waits for all queued work, and returns its errors.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver.synchronize()
    }
}

fn inside(call: &'static str, block: &DeviceBlock, offset: usize, bytes: usize) -> Result<(), CudaError> {
    match offset.checked_add(bytes).is_some_and(|end| end <= block.size) {
        true => Ok(()),
        false => Err(CudaError::OutsideBlock { call, offset, bytes, size: block.size }),
    }
}

//! Copies between host and device through pinned memory.
//!
//! A device copies at full speed, and while it computes, only from and to pinned
//! memory. Bytes pass through its slots: the host fills or empties one slot while the
//! device copies others.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::{Driver, Lane, SLOT_BYTES, SLOTS, Slot};
use crate::error::CudaError;

/// Where the pieces of uploads start in a slot.
const ALIGNMENT: usize = 64;

/// The slots of a device.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    uploads: Mutex<Fill>,
    downloads: Mutex<()>,
    background: Mutex<()>,
}

/// The slot that uploads are written to, and its bytes in use. Small uploads share a
/// slot, so that the host waits only when it is a whole round ahead of the device.
#[derive(Debug, Default)]
struct Fill {
    number: usize,
    used: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Staging {
    /// Queues a copy to the device. The bytes may change as soon as this returns.
    pub(crate) fn upload(&self, driver: &dyn Driver, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let mut fill = lock(&self.uploads);
        let mut done = 0;
        while done < bytes.len() {
            if fill.used == SLOT_BYTES {
                driver.mark(Slot { lane: Lane::Upload, number: fill.number })?;
                let number = (fill.number + 1) % SLOTS;
                driver.wait(Slot { lane: Lane::Upload, number })?;
                *fill = Fill { number, used: 0 };
            }
            let slot = Slot { lane: Lane::Upload, number: fill.number };
            let count = (bytes.len() - done).min(SLOT_BYTES - fill.used);
            driver.stage(slot, fill.used, &bytes[done..done + count])?;
            driver.upload(to + done as u64, slot, fill.used, count)?;
            fill.used = (fill.used + count).next_multiple_of(ALIGNMENT).min(SLOT_BYTES);
            done += count;
        }
        Ok(())
    }

    /// Copies from the device, after the work queued so far, and waits.
    pub(crate) fn download(&self, driver: &dyn Driver, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        let _held = lock(&self.downloads);
        receive(driver, Lane::Download, from, bytes)
    }

    /// The same beside the work that is queued later.
    pub(crate) fn download_in_background(
        &self,
        driver: &dyn Driver,
        from: u64,
        bytes: &mut [u8],
    ) -> Result<(), CudaError> {
        let _held = lock(&self.background);
        driver.follow()?;
        receive(driver, Lane::Background, from, bytes)
    }
}

fn receive(driver: &dyn Driver, lane: Lane, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
    let slot = |piece: usize| Slot { lane, number: piece % SLOTS };
    let sizes: Vec<usize> = bytes.chunks(SLOT_BYTES).map(<[u8]>::len).collect();
    let mut queued = 0;
    for (number, piece) in bytes.chunks_mut(SLOT_BYTES).enumerate() {
        while queued < sizes.len().min(number + SLOTS) {
            driver.download(from + (queued * SLOT_BYTES) as u64, slot(queued), sizes[queued])?;
            driver.mark(slot(queued))?;
            queued += 1;
        }
        driver.wait(slot(number))?;
        driver.unstage(slot(number), piece)?;
    }
    Ok(())
}

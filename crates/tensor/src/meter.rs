//! Counting the memory of meta tensors.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the memory that meta tensors would take with data, as the
/// [allocator](crate::memory) does, but without rounding up.
///
/// Counts tensors created inside [`watch`](Self::watch) until their last view is
/// dropped. Shapes that a tape saves without elements do not count, nor do
/// computations inside [`uncounted`](crate::uncounted).
///
/// ```
/// use weightloom_layout::DType;
/// use weightloom_tensor::{Device, Meter, Tensor, TensorError};
///
/// let meter = Meter::new();
/// let x = meter.watch(|| {
///     let x = Tensor::zeros(DType::F32, &[1000], Device::Meta)?.requires_grad();
///     x.exp()?.tanh()
/// })?;
/// // The result, and what both functions keep for their gradients.
/// assert_eq!(meter.in_use(), 3 * 4000);
/// assert_eq!(meter.high_water(), 3 * 4000);
/// drop(x);
/// assert_eq!(meter.in_use(), 0);
/// # Ok::<(), TensorError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Levels>);

#[derive(Debug, Default)]
struct Levels {
    in_use: AtomicU64,
    high_water: AtomicU64,
    counts_for: CountedFor,
}

/// The device whose kernels are counted: some need other memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CountedFor {
    #[default]
    Cpu,
    Gpu,
}

thread_local! {
    static WATCHING: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

/// Restores the previous meter when dropped.
struct Before(Option<Meter>);

impl Drop for Before {
    fn drop(&mut self) {
        WATCHING.replace(self.0.take());
    }
}

impl Meter {
    /// A meter at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for what a GPU would need.
    pub fn of_gpu() -> Self {
        Self(Arc::new(Levels { counts_for: CountedFor::Gpu, ..Levels::default() }))
    }

    /// Runs `work` and counts the tensors it creates on this thread. An outer meter
    /// does not count them.
    pub fn watch<T>(&self, work: impl FnOnce() -> T) -> T {
        let _before = Before(WATCHING.replace(Some(self.clone())));
        work()
    }

    /// Bytes of live tensors.
    pub fn in_use(&self) -> u64 {
        self.0.in_use.load(Ordering::Relaxed)
    }

    /// The most bytes that were live at a time.
    pub fn high_water(&self) -> u64 {
        self.0.high_water.load(Ordering::Relaxed)
    }

    /// Resets the high-water mark to the bytes in use.
    pub fn reset_high_water(&self) {
        self.0.high_water.store(self.in_use(), Ordering::Relaxed);
    }
}

/// Runs `work` without a meter.
pub(crate) fn unwatched<T>(work: impl FnOnce() -> T) -> T {
    let _before = Before(WATCHING.replace(None));
    work()
}

/// Whether the active meter counts what a GPU would need.
pub(crate) fn counts_for_gpu() -> bool {
    WATCHING.with_borrow(|meter| meter.as_ref().is_some_and(|meter| meter.0.counts_for == CountedFor::Gpu))
}

/// Bytes that are counted until dropped.
pub(crate) struct Phantom {
    bytes: u64,
    meter: Meter,
}

impl Phantom {
    /// Counts bytes, if a meter is active.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let meter = WATCHING.with_borrow(Clone::clone)?;
        let in_use = meter.0.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        meter.0.high_water.fetch_max(in_use, Ordering::Relaxed);
        Some(Self { bytes, meter })
    }
}

impl Drop for Phantom {
    fn drop(&mut self) {
        self.meter.0.in_use.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use weightloom_layout::DType;

    use super::*;
    use crate::device::Device;
    use crate::tensor::Tensor;

    fn meta(count: usize) -> Tensor {
        Tensor::zeros(DType::F32, &[count], Device::Meta).unwrap()
    }

    #[test]
    fn views_share_and_the_last_one_frees() {
        let meter = Meter::new();
        let (x, part) = meter.watch(|| {
            let x = meta(10);
            let part = x.narrow(0, 2, 3).unwrap().detach();
            (x, part)
        });
        assert_eq!(meter.in_use(), 40);
        drop(x);
        assert_eq!(meter.in_use(), 40);
        drop(part);
        assert_eq!((meter.in_use(), meter.high_water()), (0, 40));
    }

    #[test]
    fn a_meter_counts_only_inside_its_own_watch() {
        let (outer, inner) = (Meter::new(), Meter::new());
        let _unseen = meta(1);
        let kept = outer.watch(|| [meta(2), inner.watch(|| meta(3)), meta(4)]);
        let _unseen = meta(5);
        assert_eq!((outer.in_use(), inner.in_use()), (24, 12));
        drop(kept);
        outer.reset_high_water();
        assert_eq!((outer.in_use(), outer.high_water(), inner.high_water()), (0, 0, 12));
    }

    #[test]
    fn a_panic_restores_the_previous_meter() {
        let meter = Meter::new();
        let caught = std::panic::catch_unwind(|| Meter::new().watch(|| panic!("on purpose")));
        assert!(caught.is_err());
        let _unseen = meta(1);
        assert_eq!(meter.in_use(), 0);
    }

    #[test]
    fn shapes_alone_take_nothing_and_gradients_take_memory_over() {
        let meter = Meter::new();
        meter.watch(|| {
            let x = meta(100).requires_grad();
            let sum = x.add(&x).unwrap();
            // The parameter and the sum; the tape saves only shapes.
            assert_eq!(meter.in_use(), 800);
            let y = sum.tanh().unwrap();
            meter.reset_high_water();
            let gradients = crate::backward([(y, Some(meta(100)))]).unwrap();
            assert!(gradients.of(&x).is_some());
            // The tensors above and the given gradient; tanh reuses its memory.
            assert!(meter.high_water() <= 800 + 3 * 400, "{}", meter.high_water());
        });
    }
}

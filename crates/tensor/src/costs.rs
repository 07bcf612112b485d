//! Counting the costs of computations on meta tensors.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::meter::unwatched;

/// Launches, arithmetic and memory traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Kernel launches.
    pub launches: u64,
    /// Additions, multiplications and the like; an exponential counts as one.
    pub flops: u64,
    /// Bytes read and written, without caches.
    pub bytes: u64,
}

/// Costs by kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    by_kernel: BTreeMap<&'static str, Cost>,
}

impl Costs {
    /// The cost of each kernel, by name.
    pub fn by_kernel(&self) -> impl Iterator<Item = (&'static str, Cost)> + '_ {
        self.by_kernel.iter().map(|(name, cost)| (*name, *cost))
    }

    /// The sum over all kernels.
    pub fn total(&self) -> Cost {
        self.by_kernel.values().fold(Cost::default(), |sum, cost| Cost {
            launches: sum.launches + cost.launches,
            flops: sum.flops + cost.flops,
            bytes: sum.bytes + cost.bytes,
        })
    }
}

thread_local! {
    static COUNTED: RefCell<Option<Costs>> = const { RefCell::new(None) };
}

/// Runs `work` and counts the costs of its kernels on meta tensors, on this
/// thread.
///
/// ```
/// use weightloom_layout::DType;
/// use weightloom_tensor::{Device, Tensor, TensorError, counted};
///
/// let (result, costs) = counted(|| {
///     let x = Tensor::zeros(DType::Bf16, &[4096, 8192], Device::Meta)?;
///     x.matmul(&x.transpose(0, 1)?)
/// });
/// assert_eq!(&result?.shape()[..], [4096, 4096]);
/// assert_eq!(costs.total().flops, 2 * 4096 * 8192 * 4096);
/// # Ok::<(), TensorError>(())
/// ```
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, Costs) {
    let before = COUNTED.replace(Some(Costs::default()));
    let result = work();
    let costs = COUNTED.replace(before).unwrap_or_default();
    // Costs inside count outside too.
    for (kernel, cost) in costs.by_kernel() {
        add(kernel, cost);
    }
    (result, costs)
}

/// Runs `work` without counting its costs or its memory, to find output shapes.
pub fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let before = COUNTED.replace(None);
    let result = unwatched(work);
    COUNTED.replace(before);
    result
}

pub(crate) fn add(kernel: &'static str, cost: Cost) {
    COUNTED.with_borrow_mut(|counted| {
        if let Some(costs) = counted {
            let sum = costs.by_kernel.entry(kernel).or_default();
            sum.launches += cost.launches;
            sum.flops += cost.flops;
            sum.bytes += cost.bytes;
        }
    });
}

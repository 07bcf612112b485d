//! When the work of a device began, and how long it took.

use std::sync::{Mutex, PoisonError};

use crate::device::Gpu;
use crate::driver::Driver;
use crate::error::CudaError;

/// A kernel, product or copy that a device executed.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Span {
    pub name: String,
    /// Seconds since the profile began.
    pub start: f64,
    pub seconds: f64,
}

/// Stamps before and after queued work. Nothing is recorded unless a profile began.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    recorded: Mutex<Option<Recording>>,
}

#[derive(Debug)]
struct Recording {
    begin: u64,
    /// Names, and stamps before and after.
    work: Vec<(String, [u64; 2])>,
}

impl Profile {
    /// Queues some work, between two stamps if a profile began.
    pub(crate) fn around<T>(
        &self,
        driver: &dyn Driver,
        name: &str,
        queue: impl FnOnce() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(recording) = recorded.as_mut() else {
            drop(recorded);
            return queue();
        };
        let before = driver.stamp()?;
        let result = queue()?;
        recording.work.push((name.to_owned(), [before, driver.stamp()?]));
        Ok(result)
    }
}

impl Gpu {
    /// Begins to record all work of the compute stream. What was recorded before is
    /// dropped.
    pub fn begin_profile(&self) -> Result<(), CudaError> {
        let begin = self.driver().restart_stamps()?;
        let mut recorded = self.profile().recorded.lock().unwrap_or_else(PoisonError::into_inner);
        *recorded = Some(Recording { begin, work: Vec::new() });
        Ok(())
    }

    /// Ends the profile, waits for all queued work, and returns what was executed, in
    /// order.
    pub fn end_profile(&self) -> Result<Vec<Span>, CudaError> {
        let ended = self.profile().recorded.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Recording { begin, work }) = ended else { return Ok(Vec::new()) };
        self.synchronize()?;
        let spans = work.into_iter().map(|(name, [before, after])| {
            let start = self.driver().seconds_between(begin, before)?;
            Ok(Span { name, start, seconds: self.driver().seconds_between(before, after)? })
        });
        spans.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arg, FakeDriver, Grid};

    #[test]
    fn work_of_a_profile_is_named_in_order_and_other_work_is_not() {
        let gpu = Gpu::with_driver(FakeDriver::new());
        let block = gpu.allocate(512).unwrap();
        let launch = |kernel| gpu.launch(kernel, Grid::new([1; 3], 32), &[Arg::Address(block.address())]);
        launch("fill_b1").unwrap();
        assert_eq!(gpu.end_profile().unwrap(), []);
        gpu.begin_profile().unwrap();
        launch("fill_b4").unwrap();
        launch("fill_b2").unwrap();
        gpu.clear(&block).unwrap();
        let spans = gpu.end_profile().unwrap();
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, ["fill_b4", "fill_b2", "memset"]);
        assert!(spans.windows(2).all(|pair| pair[0].start + pair[0].seconds <= pair[1].start));
        launch("fill_b1").unwrap();
        assert_eq!(gpu.end_profile().unwrap(), []);
    }
}

//! Where a device's time goes.

use weightloom_cuda::Gpu;

use crate::device::Device;
use crate::error::Result;

/// A kernel, product or copy that a GPU executed.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct WorkSpan {
    pub name: String,
    /// Seconds since the profile began.
    pub start: f64,
    pub seconds: f64,
}

/// Begins to record what a GPU executes. On other devices nothing is recorded.
pub fn begin_profile(device: Device) -> Result<()> {
    if let Device::Cuda(ordinal) = device {
        Gpu::get(ordinal)?.begin_profile()?;
    }
    Ok(())
}

/// Ends the recording, waits for all queued work, and returns what was executed, in
/// order.
pub fn end_profile(device: Device) -> Result<Vec<WorkSpan>> {
    let Device::Cuda(ordinal) = device else { return Ok(Vec::new()) };
    let spans = Gpu::get(ordinal)?.end_profile()?.into_iter();
    Ok(spans.map(|span| WorkSpan { name: span.name, start: span.start, seconds: span.seconds }).collect())
}

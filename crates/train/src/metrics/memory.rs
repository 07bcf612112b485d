//! Peak memory of a process.

use std::fs;

use weightloom_tensor::{Device, memory};

/// Peak memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes in tensors on the device.
    pub tensors: u64,
    /// Resident bytes, where the operating system reports them.
    pub process: Option<u64>,
}

/// Peak memory of this process so far, of tensors on a device and in all.
pub fn peak_memory(device: Device) -> Memory {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // A device that is lost has no figures.
    let tensors = memory::statistics_of(device).map_or(0, |statistics| statistics.high_water);
    Memory { tensors: tensors as u64, process: high_water(&status) }
}

impl Memory {
    /// The figure to watch: on the CPU that of the process, which the system ends if it
    /// is too large; on a GPU that of tensors.
    pub fn of_device(self, device: Device) -> Option<u64> {
        match device {
            Device::Cuda(_) => Some(self.tensors),
            _ => self.process,
        }
    }
}

/// The peak resident size in `/proc/self/status`.
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_layout::DType;
    use weightloom_tensor::Tensor;

    use super::*;

    #[test]
    fn parses_proc_status() {
        let status = "Name:\tx\nVmPeak:\t  999 kB\nVmHWM:\t   12345 kB\nVmRSS:\t 7 kB\n";
        assert_eq!(high_water(status), Some(12345 * 1024));
        for other in ["", "VmHWM:", "VmHWM:\t12 MB", "VmHWM:\t-1 kB", "VmHWM:\t99999999999999999999 kB"] {
            assert_eq!(high_water(other), None);
        }
    }

    #[test]
    fn a_large_tensor_is_counted() {
        let bytes = 32 << 20;
        let tensor = Tensor::full(1.0, DType::F32, &[bytes / 4], Device::Cpu).unwrap();
        let memory = peak_memory(Device::Cpu);
        assert!(memory.tensors >= bytes as u64);
        assert!(memory.process.is_none_or(|process| process >= bytes as u64), "{memory:?}");
        drop(tensor);
        assert!(peak_memory(Device::Cpu).tensors >= bytes as u64);
    }
}

//! The device that a user asks for.

use std::fmt;
use std::str::FromStr;

use weightloom_cuda::{CudaError, Gpu, count};

use crate::device::{Device, UnknownDevice};
use crate::error::Result;

/// The device that a user asks for, by name or as the best there is.
///
/// ```
/// use weightloom_tensor::{Device, DeviceChoice};
///
/// assert_eq!("cpu".parse(), Ok(DeviceChoice::Cpu));
/// assert_eq!("cuda:1".parse(), Ok(DeviceChoice::Cuda(Some(1))));
/// assert_eq!(DeviceChoice::default().to_string(), "auto");
/// assert_eq!(DeviceChoice::Cpu.resolve(0).map(|chosen| chosen.device), Ok(Device::Cpu));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    /// A GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this number; without one, ranks share out the GPUs.
    Cuda(Option<u8>),
}

/// A device, and why it is not a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenDevice {
    /// The device.
    pub device: Device,
    /// Why [`DeviceChoice::Auto`] leaves the GPU of this machine unused.
    pub unused_gpu: Option<CudaError>,
}

impl DeviceChoice {
    /// The device of a rank, opened. Ranks of one machine have consecutive numbers.
    pub fn resolve(self, rank: usize) -> Result<ChosenDevice> {
        let chosen = |device| ChosenDevice { device, unused_gpu: None };
        match self {
            Self::Cpu => Ok(chosen(Device::Cpu)),
            Self::Cuda(ordinal) => {
                let ordinal = ordinal.map_or_else(|| shared_out(rank), Ok)?;
                Gpu::get(ordinal)?;
                Ok(chosen(Device::Cuda(ordinal)))
            }
            Self::Auto => match shared_out(rank).and_then(|ordinal| Gpu::get(ordinal).map(|_| ordinal)) {
                Ok(ordinal) => Ok(chosen(Device::Cuda(ordinal))),
                Err(CudaError::NoDriver | CudaError::NoDevice { .. }) => Ok(chosen(Device::Cpu)),
                Err(error @ (CudaError::OldDriver { .. } | CudaError::Capability { .. })) => {
                    Ok(ChosenDevice { device: Device::Cpu, unused_gpu: Some(error) })
                }
                // A GPU that ought to work: a run on the CPU would surprise.
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// The number of a rank's GPU if ranks take GPUs in turn.
fn shared_out(rank: usize) -> Result<u8, CudaError> {
    let found = count()?.min(usize::from(u8::MAX));
    match rank.checked_rem(found) {
        Some(ordinal) => Ok(ordinal as u8),
        None => Err(CudaError::NoDevice { ordinal: 0, found }),
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Cpu => f.pad("cpu"),
            Self::Cuda(None) => f.pad("cuda"),
            Self::Cuda(Some(ordinal)) => f.pad(&format!("cuda:{ordinal}")),
        }
    }
}

/// `auto`, `cpu`, `cuda` or `cuda:N`.
impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "auto" => return Ok(Self::Auto),
            "cuda" => return Ok(Self::Cuda(None)),
            _ => {}
        }
        match text.parse()? {
            Device::Cpu => Ok(Self::Cpu),
            Device::Cuda(ordinal) => Ok(Self::Cuda(Some(ordinal))),
            Device::Meta => Err(UnknownDevice { text: text.to_owned() }),
        }
    }
}

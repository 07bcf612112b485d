//! Devices.

use std::fmt;
use std::str::FromStr;

use weightloom_errors::Hint;

/// The device that holds the memory of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// No memory: shapes and dtypes only.
    Meta,
    /// Memory of the NVIDIA GPU with this number.
    Cuda(u8),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::Meta => f.pad("meta"),
            Self::Cuda(ordinal) => f.pad(&format!("cuda:{ordinal}")),
        }
    }
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown device `{text}`")]
#[allow(missing_docs)]
pub struct UnknownDevice {
    pub text: String,
}

impl Hint for UnknownDevice {
    fn hint(&self) -> Option<String> {
        Some("use auto, cpu, cuda or cuda:N".to_owned())
    }
}

/// `cpu`, `meta`, `cuda` or `cuda:N`.
///
/// ```
/// use weightloom_tensor::Device;
///
/// assert_eq!("cuda:1".parse(), Ok(Device::Cuda(1)));
/// assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
/// assert!("gpu".parse::<Device>().is_err());
/// ```
impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        let unknown = || UnknownDevice { text: text.to_owned() };
        match text {
            "cpu" => Ok(Self::Cpu),
            "meta" => Ok(Self::Meta),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                number.parse().map(Self::Cuda).map_err(|_| unknown())
            }
        }
    }
}

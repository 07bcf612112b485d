//! Errors of CUDA devices.

use std::fmt;

use weightloom_errors::Hint;

/// Why a CUDA device cannot be used, or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CudaError {
    #[error("cannot use CUDA: there is no NVIDIA driver on this machine")]
    NoDriver,
    #[error("cannot use CUDA: the NVIDIA driver supports CUDA {found}, but {needed} is required")]
    OldDriver { found: String, needed: String },
    #[error("there is no GPU `cuda:{ordinal}`: this machine has {found}")]
    NoDevice { ordinal: u8, found: usize },
    #[error("cannot use the GPU `cuda:{ordinal}`: permission denied, or in use exclusively ({name})")]
    NotAllowed { ordinal: u8, name: String },
    #[error(
        "cannot allocate {} on the GPU: {} are in use by tensors, and {} of {} are free",
        Size(*asked), Size(*in_use), Size(*free), Size(*total)
    )]
    OutOfMemory { asked: usize, in_use: usize, free: usize, total: usize },
    #[error(
        "cannot allocate {} on the GPU: of its memory budget of {}, {} are in use",
        Size(*asked), Size(*budget), Size(*in_use)
    )]
    OverBudget { asked: usize, in_use: usize, budget: usize },
    #[error("{call} failed: the driver has no memory on the GPU ({name})")]
    NoRoom { call: &'static str, name: String },
    #[error("no kernels for this GPU: its compute capability is {major}.{minor}, and 8.0 is required")]
    Capability { major: u32, minor: u32 },
    #[error("cannot use {name}: {reason}")]
    NoLibrary { name: &'static str, reason: String },
    #[error("unknown kernel `{name}`")]
    UnknownKernel { name: String },
    #[error("the GPU stopped during {call}: {name}")]
    Lost { call: &'static str, name: String },
    #[error("{call} failed: {name}")]
    Driver { call: &'static str, name: String },
    #[error("{call}: {bytes} bytes at {offset} are outside a block of {size}")]
    OutsideBlock { call: &'static str, offset: usize, bytes: usize, size: usize },
    #[error("{call}: the address {address:#x} is not in allocated memory")]
    BadAddress { call: String, address: u64 },
    #[error("{call}: the memory at {address:#x} is still in use by the other stream or by a copy")]
    Unordered { call: String, address: u64 },
}

/// A number of bytes, with a unit.
struct Size(usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(usize, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.into_iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{:.1} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl Hint for CudaError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoDriver => "install NVIDIA's driver, or use `--device cpu`",
            Self::OldDriver { .. } => "update NVIDIA's driver to 580 or later",
            Self::NoDevice { .. } => "use a lower number, or check CUDA_VISIBLE_DEVICES",
            Self::NotAllowed { .. } => {
                "check the permissions of /dev/nvidia*, and whether another process uses the GPU exclusively"
            }
            Self::OutOfMemory { .. } | Self::NoRoom { .. } => {
                "use a smaller batch, shorter sequences or gradient checkpointing, or end other programs on the GPU"
            }
            Self::OverBudget { .. } => "free tensors, or raise the budget",
            Self::Capability { .. } => "use a GPU of the Ampere generation or later",
            Self::Lost { .. } => "restart the program; its last checkpoint is intact",
            Self::NoLibrary { .. } => {
                "install it with `pip install nvidia-cublas`, or name its file in WEIGHTLOOM_CUBLASLT"
            }
            Self::UnknownKernel { .. } => "rebuild the kernels with scripts/kernels",
            Self::Driver { .. }
            | Self::OutsideBlock { .. }
            | Self::BadAddress { .. }
            | Self::Unordered { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

//! The device under test.

use std::path::PathBuf;
use std::sync::OnceLock;

use weightloom_tensor::{Device, Element, Tensor, TensorError};

/// The device that `WEIGHTLOOM_TEST_DEVICE` names, or the CPU.
pub fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        std::env::var("WEIGHTLOOM_TEST_DEVICE").map_or(Device::Cpu, |name| name.parse().unwrap())
    })
}

/// A tensor of these elements on the device under test.
pub fn from_slice<T: Element>(elements: &[T], dims: &[usize]) -> Result<Tensor, TensorError> {
    Tensor::from_slice(elements, dims)?.to(device())
}

/// A tensor of bools on the device under test.
pub fn from_bools(elements: &[bool], dims: &[usize]) -> Result<Tensor, TensorError> {
    Tensor::from_bools(elements, dims)?.to(device())
}

/// A 0-dimensional tensor on the device under test.
pub fn scalar<T: Element>(element: T) -> Result<Tensor, TensorError> {
    Tensor::scalar(element)?.to(device())
}

/// The folder of the package whose tests run: that of the build, unless Cargo or the
/// script that runs the tests elsewhere names another.
pub fn package_folder(of_build: &str) -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| of_build.into(), PathBuf::from)
}

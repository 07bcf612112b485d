//! Memory of a GPU.

use weightloom_cuda::{FakeDriver, Gpu};
use weightloom_layout::DType;
use weightloom_tensor::{AdamW, CrossEntropy, Device, Moments, Stream, Tensor, backward};

use crate::serial;

/// The GPU under test: a real one if a variable names it, else a fake one.
fn gpu() -> u8 {
    match std::env::var("WEIGHTLOOM_TEST_DEVICE").map(|name| name.parse()) {
        Ok(Ok(Device::Cuda(ordinal))) => ordinal,
        _ => {
            Gpu::with_driver(FakeDriver::new()).install(200);
            200
        }
    }
}

/// One step of a two-layer classifier.
fn step(device: Device) {
    let normal = |dims: &[usize], number| {
        Tensor::normal(DType::F32, dims, Stream { seed: 3, number }, 0).unwrap().to(device).unwrap()
    };
    let x = normal(&[32, 16], 0);
    let mut weights = [normal(&[64, 16], 1), normal(&[10, 64], 2)];
    let mut moments = weights.clone().map(|weight| Moments::zero(&weight).unwrap());
    let targets = Tensor::from_slice(&[0i64; 32], &[32]).unwrap().to(device).unwrap();
    for number in 1..4 {
        let leaves = weights.clone().map(|weight| weight.requires_grad());
        let hidden = x.linear(&leaves[0], None, None).unwrap().gelu().unwrap();
        let logits = hidden.linear(&leaves[1], None, None).unwrap();
        let loss = logits.cross_entropy(&targets, CrossEntropy::default()).unwrap();
        let gradients = backward([(loss, None)]).unwrap();
        for ((weight, leaf), moments) in weights.iter_mut().zip(&leaves).zip(&mut moments) {
            let gradient = gradients.of(leaf).unwrap();
            AdamW::default().step(number, weight, gradient, moments).unwrap();
        }
    }
}

#[test]
fn training_steps_return_all_memory_of_the_gpu() {
    let _serial = serial();
    let ordinal = gpu();
    let gpu = Gpu::get(ordinal).unwrap();
    step(Device::Cuda(ordinal));
    assert_eq!(gpu.statistics().in_use, 0);
    let fresh = gpu.statistics().fresh;
    step(Device::Cuda(ordinal));
    assert_eq!(gpu.statistics().fresh, fresh, "the cache serves the second time");
    gpu.release();
    assert_eq!(gpu.statistics().cached, 0);
}

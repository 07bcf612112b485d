//! Every operation on a GPU against the CPU, and rows against batches.
//!
//! Without a GPU the same operations run on a fake driver, which checks that every
//! kernel exists, that addresses are of live memory, and that nothing leaks.

mod attention;
mod catalogue;
mod rows;

use std::sync::{Arc, OnceLock};

use weightloom_cuda::{FakeDriver, FakeLibrary, Gpu, Poison, Recorded};
use weightloom_layout::DType;
use weightloom_tensor::{
    AdamW, Device, Moments, ProductLibrary, Tensor, TensorError, backward, product_library,
};

use crate::device::device;
use catalogue::{OPERATIONS, Operation};

/// The floats that kernels compute with.
const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::Bf16, DType::F16];

/// The fake GPU that stands in for a real one.
fn fake() -> (&'static Arc<FakeDriver>, Device) {
    static FAKE: OnceLock<Arc<FakeDriver>> = OnceLock::new();
    let fake = FAKE.get_or_init(|| {
        let fake = FakeDriver::new();
        assert!(Gpu::with_driver(fake.clone()).install(200));
        fake
    });
    (fake, Device::Cuda(200))
}

/// Numbers around zero, the same on every device.
fn values(dims: &[usize], dtype: DType, seed: usize) -> Tensor {
    let count: usize = dims.iter().product();
    let values: Vec<f64> =
        (0..count).map(|i| ((i * 37 + seed * 101 + 11) % 193) as f64 / 100.0 - 0.965).collect();
    Tensor::from_slice(&values, dims).unwrap().cast(dtype).unwrap()
}

/// The results of an operation on a device, as f64 on the host: its output, and the
/// gradients of its inputs if it has any.
fn run(operation: &Operation, dtype: DType, device: Device) -> Result<Vec<Vec<f64>>, TensorError> {
    let inputs: Vec<Tensor> = operation
        .inputs
        .iter()
        .enumerate()
        .map(|(number, dims)| Ok(values(dims, dtype, number + 1).to(device)?.requires_grad()))
        .collect::<Result<_, TensorError>>()?;
    let output = (operation.run)(&inputs)?;
    let numbers = |x: &Tensor| x.cast(DType::F64)?.to_vec::<f64>();
    let mut results = vec![numbers(&output)?];
    if output.tracks_gradient() {
        let weights = values(output.shape(), output.dtype(), 9).to(device)?;
        let gradients = backward([(output, Some(weights))])?;
        for input in &inputs {
            if let Some(gradient) = gradients.of(input) {
                results.push(numbers(gradient)?);
            }
        }
    }
    Ok(results)
}

/// The error that one rounding to a dtype makes, times some steps of a computation.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-11,
        DType::F32 => 2e-5,
        // Results of both devices are rounded once; inner values may differ by a
        // rounding as well.
        DType::F16 => 4e-3,
        _ => 3e-2,
    }
}

#[test]
fn every_operation_agrees_with_the_cpu() {
    let Device::Cuda(ordinal) = device() else { return launches_are_valid() };
    Gpu::get(ordinal).unwrap().set_poison(Poison::On);
    for operation in OPERATIONS {
        for dtype in FLOATS {
            let expected = run(operation, dtype, Device::Cpu).unwrap();
            let found = run(operation, dtype, device())
                .unwrap_or_else(|error| panic!("{} in {dtype}: {error}", operation.name));
            assert_eq!(expected.len(), found.len(), "{}", operation.name);
            for (which, (expected, found)) in expected.iter().zip(&found).enumerate() {
                assert_eq!(expected.len(), found.len(), "{}", operation.name);
                let scale = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                for (place, (a, b)) in expected.iter().zip(found).enumerate() {
                    let close =
                        (a - b).abs() <= tolerance(dtype) * scale || a == b || a.is_nan() && b.is_nan();
                    assert!(
                        close,
                        "{} in {dtype}: result {which} at {place}: {a} on the CPU, {b}",
                        operation.name
                    );
                }
            }
            // The same bits again.
            assert_eq!(format!("{found:?}"), format!("{:?}", run(operation, dtype, device()).unwrap()));
        }
    }
}

/// Without a GPU: every kernel exists, and gets addresses of live memory.
fn launches_are_valid() {
    // One of its own, so that other tests do not count.
    let (fake, device) = (FakeDriver::new(), Device::Cuda(201));
    let gpu = Gpu::with_driver(fake.clone());
    assert!(gpu.install(201));
    for operation in OPERATIONS {
        for dtype in FLOATS {
            // Memory is zero: results mean nothing, and some operations reject them.
            match run(operation, dtype, device) {
                Ok(_) | Err(TensorError::Index { .. } | TensorError::NoGradient { .. }) => (),
                Err(error) => panic!("{} in {dtype}: {error}", operation.name),
            }
        }
    }
    let launches = fake.take_calls().into_iter().filter(|call| matches!(call, Recorded::Launch(_)));
    assert!(launches.count() > 1000);
    assert_eq!(gpu.statistics().in_use, 0, "memory leaks");
}

#[test]
fn casts_agree_with_the_cpu_bit_for_bit() {
    let on = match device() {
        Device::Cuda(_) => device(),
        _ => fake().1,
    };
    let odd: Vec<f64> = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        127.0,
        128.0,
        255.0,
        256.0,
        -129.0,
        3e4,
        7e4,
        447.9,
        448.1,
        6e4,
        1e6,
        3e9,
        -3e9,
        1e19,
        -1e19,
        1e30,
        1e-3,
        1e-8,
        1e-40,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ]
    .into();
    for from in DType::ALL {
        let host = Tensor::from_slice(&odd, &[odd.len()]).unwrap().cast(from).unwrap();
        let moved = host.to(on).unwrap();
        for to in DType::ALL {
            let (expected, found) = (host.cast(to).unwrap(), moved.cast(to).unwrap());
            if matches!(device(), Device::Cuda(_)) {
                let bytes = |x: &Tensor| x.read_host(<[u8]>::to_vec).unwrap();
                let nan_free = |x: &Tensor| x.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
                // NaN has many bits.
                let equal = bytes(&expected) == bytes(&found)
                    || nan_free(&expected)
                        .iter()
                        .zip(nan_free(&found.to(Device::Cpu).unwrap()))
                        .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
                assert!(equal, "{from} to {to}: {:?} {:?}", nan_free(&expected), nan_free(&found));
            }
        }
    }
}

#[test]
fn elements_come_back_as_they_were_moved() {
    let on = match device() {
        Device::Cuda(_) => device(),
        _ => fake().1,
    };
    for dtype in DType::ALL {
        let x = values(&[3, 5], DType::F32, 1).scale(50.0).unwrap().cast(dtype).unwrap();
        let bytes = |x: &Tensor| x.read_host(<[u8]>::to_vec).unwrap();
        assert_eq!(bytes(&x), bytes(&x.to(on).unwrap()));
        assert_eq!(x.to(on).unwrap().device(), on);
        assert!(x.to(on).unwrap().host_bytes().is_none());
    }
    let x = Tensor::from_slice(&[1.0, 2.0], &[2]).unwrap().requires_grad();
    let y = x.to(on).unwrap();
    assert!(matches!(x.add(&y), Err(TensorError::Devices { op: "add", .. })));
    let gradients =
        backward([(y, Some(Tensor::from_slice(&[3.0, 4.0], &[2]).unwrap().to(on).unwrap()))]).unwrap();
    let gradient = gradients.of(&x).unwrap();
    assert_eq!((gradient.device(), gradient.to_vec::<f64>().unwrap()), (Device::Cpu, vec![3.0, 4.0]));
}

#[test]
fn a_step_of_adamw_is_one_launch_in_place() {
    // Not the one of the other tests, which allocate at the same time.
    let gpu = Gpu::with_driver(FakeDriver::new());
    assert!(gpu.install(204));
    let device = Device::Cuda(204);
    let mut parameter = values(&[100], DType::F32, 1).to(device).unwrap();
    let gradient = values(&[100], DType::Bf16, 2).to(device).unwrap();
    let mut moments = Moments::zero(&parameter).unwrap();
    AdamW::default().step(1, &mut parameter, &gradient, &mut moments).unwrap();
    let before = gpu.statistics();
    AdamW::default().step(2, &mut parameter, &gradient, &mut moments).unwrap();
    let after = gpu.statistics();
    assert_eq!((before.fresh, before.reused), (after.fresh, after.reused), "memory was allocated");
}

/// A fake GPU of its own, with a library of products.
fn fake_with_library(ordinal: u8, library: FakeLibrary) -> (Arc<FakeDriver>, Device) {
    let fake = FakeDriver::new();
    fake.install_library(library);
    assert!(Gpu::with_driver(fake.clone()).install(ordinal));
    (fake, Device::Cuda(ordinal))
}

fn products_by_the_library(fake: &FakeDriver) -> usize {
    fake.take_calls().iter().filter(|call| matches!(call, Recorded::Product(_))).count()
}

#[test]
fn the_library_computes_large_products_of_halves() {
    let (fake, device) = fake_with_library(202, FakeLibrary::OurBits);
    assert!(matches!(product_library(device), Ok(Some(ProductLibrary::Used { .. }))));
    assert!(products_by_the_library(&fake) > 0, "it was tested");
    let linear = |dtype, rows, columns, depth| {
        let x = values(&[rows, depth], dtype, 1).to(device).unwrap();
        let weight = values(&[columns, depth], dtype, 2).to(device).unwrap();
        x.linear(&weight, None, None).unwrap();
        products_by_the_library(&fake)
    };
    assert_eq!(linear(DType::Bf16, 64, 8, 16), 1);
    assert_eq!(linear(DType::F16, 1000, 64, 256), 1);
    // Too few rows, odd columns or depth, and wider dtypes.
    assert_eq!(linear(DType::Bf16, 63, 8, 16), 0);
    assert_eq!(linear(DType::Bf16, 64, 9, 16), 0);
    assert_eq!(linear(DType::Bf16, 64, 8, 24), 0);
    assert_eq!(linear(DType::F32, 64, 8, 16), 0);
    assert_eq!(linear(DType::F64, 64, 8, 16), 0);
}

#[test]
fn a_library_with_other_bits_is_not_used() {
    let (fake, device) = fake_with_library(203, FakeLibrary::OtherBits);
    assert!(matches!(product_library(device), Ok(Some(ProductLibrary::OtherBits { .. }))));
    fake.take_calls();
    let x = values(&[64, 64], DType::Bf16, 1).to(device).unwrap();
    x.matmul(&x).unwrap();
    assert_eq!(products_by_the_library(&fake), 0);
}

#[test]
fn without_a_library_products_are_computed_all_the_same() {
    let (fake, device) = fake();
    assert!(matches!(product_library(device), Ok(Some(ProductLibrary::Missing(_)))));
    let x = values(&[64, 64], DType::Bf16, 1).to(device).unwrap();
    x.matmul(&x).unwrap();
    assert_eq!(products_by_the_library(fake), 0);
}

#[test]
fn a_gpu_that_is_not_there_is_a_typed_error() {
    let error = values(&[2], DType::F32, 1).to(Device::Cuda(99)).unwrap_err();
    assert!(matches!(error, TensorError::Cuda(_)), "{error}");
}

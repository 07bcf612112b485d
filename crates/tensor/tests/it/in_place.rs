//! Memory from elsewhere, and writing into tensors in place.

use std::sync::Arc;

use proptest::prelude::*;
use weightloom_errors::Hint as _;
use weightloom_layout::{DType, Region, Shape};
use weightloom_tensor::{Device, HostMemory, Tensor, TensorError, counted, no_grad};

fn counting(dims: &[usize]) -> Tensor {
    let count = dims.iter().product::<usize>();
    Tensor::from_slice(&(0..count).map(|i| i as f32).collect::<Vec<_>>(), dims).unwrap()
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

#[test]
fn host_memory_becomes_a_tensor_where_it_is() {
    let mut memory = HostMemory::new(DType::I32, &shape(&[2, 3])).unwrap();
    assert_eq!((memory.dtype(), memory.shape(), memory.bytes().len()), (DType::I32, &shape(&[2, 3]), 24));
    for (number, bytes) in memory.bytes_mut().chunks_exact_mut(4).enumerate() {
        bytes.copy_from_slice(&(number as i32 * 7).to_ne_bytes());
    }
    let before = memory.bytes().as_ptr().addr();
    let mut x = memory.into_tensor();
    assert_eq!(x.read_host(|bytes| bytes.as_ptr().addr()).unwrap(), before);
    assert_eq!(x.to_vec::<i32>().unwrap(), [0, 7, 14, 21, 28, 35]);
    // It is held alone, so that it is written in place.
    x.assign(1, 2, &Tensor::from_slice(&[1, 2], &[2, 1]).unwrap()).unwrap();
    assert_eq!(x.to_vec::<i32>().unwrap(), [0, 7, 1, 21, 28, 2]);
    assert_eq!(x.read_host(|bytes| bytes.as_ptr().addr()).unwrap(), before);
}

#[test]
fn memory_that_there_is_not_is_an_error() {
    let most = shape(&[1 << 58]);
    assert!(matches!(HostMemory::new(DType::F32, &most), Err(TensorError::NoMemory { .. })));
}

/// Words, so that the bytes begin where any element may.
struct Words(Vec<u64>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[test]
fn a_tensor_over_shared_bytes_copies_nothing_until_it_is_changed() {
    let words = Arc::new(Words(vec![0x0004_0003_0002_0001, 0x0008_0007_0006_0005]));
    let address = (*words).as_ref().as_ptr().addr();
    let mut x = Tensor::from_shared(DType::I16, &shape(&[2, 3]), words.clone(), 2).unwrap();
    assert_eq!(x.to_vec::<i16>().unwrap(), [2, 3, 4, 5, 6, 7]);
    assert_eq!(x.read_host(|bytes| bytes.as_ptr().addr()).unwrap(), address + 2);
    assert_eq!((x.device(), x.is_contiguous()), (Device::Cpu, true));
    assert_eq!(x.narrow(1, 1, 2).unwrap().to_vec::<i16>().unwrap(), [3, 4, 6, 7]);
    x.assign(0, 0, &Tensor::from_slice(&[9i16, 9, 9], &[1, 3]).unwrap()).unwrap();
    assert_eq!(x.to_vec::<i16>().unwrap(), [9, 9, 9, 5, 6, 7]);
    assert_eq!(words.0, [0x0004_0003_0002_0001, 0x0008_0007_0006_0005]);
    // The copy let go of the bytes.
    assert_eq!(Arc::strong_count(&words), 1);

    let floats = Arc::new(Words(vec![u64::from(1.5f32.to_bits()); 2]));
    let mut x = Tensor::from_shared(DType::F32, &shape(&[3]), floats.clone(), 4).unwrap();
    let one = Tensor::from_slice(&[1.0f32; 3], &[3]).unwrap();
    x.add_assign(&one).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.5, 1.0]);
    assert_eq!(floats.0, [u64::from(1.5f32.to_bits()); 2]);
}

#[test]
fn shared_bytes_that_do_not_fit_are_refused() {
    let words = || Arc::new(Words(vec![0; 3]));
    let asked = |dtype, dims: &[usize], offset| Tensor::from_shared(dtype, &shape(dims), words(), offset);
    assert!(asked(DType::F32, &[6], 0).is_ok() && asked(DType::F32, &[0], 24).is_ok());
    assert!(asked(DType::U8, &[23], 1).is_ok() && asked(DType::F64, &[2], 8).is_ok());
    for (dims, offset) in [(&[6][..], 4), (&[7], 0), (&[1], 24), (&[0], 28), (&[1], usize::MAX - 3)] {
        let error = asked(DType::F32, dims, offset).unwrap_err();
        assert!(matches!(error, TensorError::Shared { found: 24, .. }), "{error}");
    }
    for (dtype, offset) in [(DType::F32, 2), (DType::F64, 4), (DType::Bf16, 1)] {
        let error = asked(dtype, &[1], offset).unwrap_err();
        assert!(matches!(error, TensorError::Misaligned { .. }), "{error}");
        assert!(error.hint().unwrap().contains("multiple"));
    }
}

#[test]
fn writing_in_place_keeps_what_others_hold() {
    let mut cache = counting(&[2, 3, 2]);
    let (address, old) =
        (cache.read_host(|bytes| bytes.as_ptr().addr()).unwrap(), cache.to_vec::<f32>().unwrap());
    let before = cache.narrow(1, 0, 2).unwrap();
    let row = Tensor::from_slice(&[-1.0f32, -2.0, -3.0, -4.0], &[2, 1, 2]).unwrap();
    cache.assign(1, 2, &row).unwrap();
    assert_eq!(cache.to_vec::<f32>().unwrap(), [0., 1., 2., 3., -1., -2., 6., 7., 8., 9., -3., -4.]);
    assert_eq!(before.to_vec::<f32>().unwrap(), [0., 1., 2., 3., 6., 7., 8., 9.]);
    assert_ne!(cache.read_host(|bytes| bytes.as_ptr().addr()).unwrap(), address);

    // From a view of itself, which keeps the old elements while it is read.
    let mut x = counting(&[2, 3, 2]);
    let turned = x.narrow(1, 0, 2).unwrap();
    x.assign(1, 1, &turned).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [0., 1., 0., 1., 2., 3., 6., 7., 6., 7., 8., 9.]);
    drop(turned);
    let (mut whole, address) = (x.clone(), x.read_host(|bytes| bytes.as_ptr().addr()).unwrap());
    drop(x);
    whole.assign(1, 0, &row).unwrap();
    assert_eq!(whole.read_host(|bytes| bytes.as_ptr().addr()).unwrap(), address);
    assert_eq!(old, counting(&[2, 3, 2]).to_vec::<f32>().unwrap());
}

#[test]
fn rows_of_a_batch_are_written_where_each_stands() {
    let mut cache = Tensor::zeros(DType::F32, &[3, 2, 4, 1], Device::Cpu).unwrap();
    let source = counting(&[3, 2, 2, 1]);
    cache.assign_at(&[0, 2, 1], &source).unwrap();
    let expected = [
        [0., 1., 0., 0.],
        [2., 3., 0., 0.],
        [0., 0., 4., 5.],
        [0., 0., 6., 7.],
        [0., 8., 9., 0.],
        [0., 10., 11., 0.],
    ];
    assert_eq!(cache.to_vec::<f32>().unwrap(), expected.concat());
    // Nothing is written if one row does not fit.
    let error = cache.assign_at(&[1, 3, 0], &source).unwrap_err();
    assert!(matches!(error, TensorError::Range { dim: 2, start: 3, end: 5, .. }), "{error}");
    assert_eq!(cache.to_vec::<f32>().unwrap(), expected.concat());
    assert!(matches!(cache.assign_at(&[0, 1], &source), Err(TensorError::ElementCount { .. })));
    assert!(matches!(cache.assign_at(&[usize::MAX; 3], &source), Err(TensorError::Range { .. })));
    assert!(matches!(cache.assign_at(&[0; 3], &counting(&[3, 2, 2, 2])), Err(TensorError::Shapes { .. })));
    assert!(matches!(cache.assign_at(&[0; 3], &counting(&[3, 2, 2])), Err(TensorError::Shapes { .. })));
}

#[test]
fn what_cannot_be_written_is_refused() {
    let mut x = counting(&[2, 3]);
    let row = counting(&[1, 3]);
    assert!(matches!(x.assign(2, 0, &row), Err(TensorError::Dim { .. })));
    assert!(matches!(x.assign(0, 2, &row), Err(TensorError::Range { .. })));
    assert!(matches!(x.assign(0, usize::MAX, &row), Err(TensorError::Range { .. })));
    assert!(matches!(x.assign(0, 0, &counting(&[3])), Err(TensorError::Shapes { .. })));
    let integers = Tensor::from_slice(&[1, 2, 3], &[1, 3]).unwrap();
    assert!(matches!(x.assign(0, 0, &integers), Err(TensorError::DTypes { .. })));
    let nowhere = Tensor::zeros(DType::F32, &[1, 3], Device::Meta).unwrap();
    assert!(matches!(x.assign(0, 0, &nowhere), Err(TensorError::Devices { .. })));
    let tracked = row.requires_grad();
    let error = x.assign(0, 0, &tracked).unwrap_err();
    assert!(matches!(error, TensorError::TracksGradient { .. }) && error.hint().is_some());
    assert!(no_grad(|| x.assign(0, 0, &tracked)).is_ok());
    let mut parameter = counting(&[2, 3]).requires_grad();
    assert!(matches!(parameter.assign(0, 0, &row), Err(TensorError::TracksGradient { .. })));
}

#[test]
fn writing_without_data_costs_what_is_written() {
    let mut cache = Tensor::zeros(DType::Bf16, &[2, 3, 8, 4], Device::Meta).unwrap();
    let source = Tensor::zeros(DType::Bf16, &[2, 3, 1, 4], Device::Meta).unwrap();
    let (result, costs) = counted(|| {
        cache.assign(2, 7, &source)?;
        cache.assign_at(&[0, 7], &source)
    });
    result.unwrap();
    assert_eq!((costs.total().flops, costs.total().bytes), (0, 2 * 2 * 24 * 2));
    assert!(cache.assign(2, 8, &source).is_err() && cache.assign_at(&[0, 8], &source).is_err());
}

proptest! {
    /// A region of a tensor, in place or not, from a source with any strides.
    #[test]
    fn a_region_is_written_and_nothing_else(
        sizes in prop::collection::vec((0usize..4, 0usize..4, 0usize..3), 1..4),
        turned in any::<bool>(),
    ) {
        let dims: Vec<usize> = sizes.iter().map(|(before, size, after)| before + size + after).collect();
        let starts: Vec<usize> = sizes.iter().map(|(before, ..)| *before).collect();
        let lengths: Vec<usize> = sizes.iter().map(|(_, size, _)| *size).collect();
        let region = Region::new(&starts, &lengths).unwrap();
        let source = if turned {
            let order: Vec<usize> = (0..lengths.len()).rev().collect();
            counting(&lengths.iter().rev().copied().collect::<Vec<_>>()).permute(&order).unwrap()
        } else {
            counting(&lengths)
        };
        let mut x = Tensor::full(-1.0, DType::F32, &dims, Device::Cpu).unwrap();
        x.assign_region(&region, &source).unwrap();
        let mut read = x.clone();
        for (dim, (&start, &length)) in starts.iter().zip(&lengths).enumerate() {
            read = read.narrow(dim, start, length).unwrap();
        }
        prop_assert_eq!(read.to_vec::<f32>().unwrap(), source.to_vec::<f32>().unwrap());
        let others = x.to_vec::<f32>().unwrap().iter().filter(|&&element| element == -1.0).count();
        prop_assert_eq!(others, x.shape().volume() - region.volume());
    }
}

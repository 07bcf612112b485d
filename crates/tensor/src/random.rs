//! Counter-based random numbers.
//!
//! The Philox 4×32-10 generator maps a counter and a key to random bits. With
//! the element's index as the counter and the seed as the key, every element
//! has its own value: the same for any number of threads, any sharding, and any
//! part of the tensor that is created.

use weightloom_layout::{DType, Dims, Region, Shape};

use crate::backend::on;
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// A sequence of random numbers, one for every index.
///
/// Streams of one seed are independent: give each use (a layer's dropout, a
/// parameter's initial values) its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The seed of the whole run.
    pub seed: u64,
    /// The number of the stream.
    pub number: u64,
}

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One block of Philox 4×32-10.
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(a);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(c);
        (a, b, c, d) =
            ((second >> 32) as u32 ^ b ^ k, second as u32, (first >> 32) as u32 ^ d ^ l, first as u32);
        k = k.wrapping_add(KEY_STEPS[0]);
        l = l.wrapping_add(KEY_STEPS[1]);
    }
    [a, b, c, d]
}

impl Stream {
    /// Four random words for each block of four indices.
    fn block(self, block: u64) -> [u32; 4] {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        let ([low, high], [stream_low, stream_high]) = (halves(block), halves(self.number));
        philox([low, high, stream_low, stream_high], halves(self.seed))
    }

    fn word(self, index: u64) -> u32 {
        self.block(index / 4)[(index % 4) as usize]
    }

    /// The uniform number in [0, 1) of an index, a multiple of 2⁻²⁴.
    pub fn uniform(self, index: u64) -> f32 {
        (self.word(index) >> 8) as f32 / (1u32 << 24) as f32
    }

    /// The standard normal number of an index.
    pub fn normal(self, index: u64) -> f32 {
        // Neighbours of even and odd index share a pair of words, and take the
        // two coordinates of one random point.
        let words = self.block(index / 4);
        let pair = (index % 4 / 2 * 2) as usize;
        // (0, 1], so that the logarithm is finite.
        let radius = (-2.0 * ((f64::from(words[pair]) + 1.0) / 4_294_967_296.0).ln()).sqrt();
        let angle = std::f64::consts::TAU * f64::from(words[pair + 1]) / 4_294_967_296.0;
        (radius * if index.is_multiple_of(2) { angle.cos() } else { angle.sin() }) as f32
    }
}

/// The random-number indices of the elements of a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Indices {
    /// Consecutive, from this index.
    From(u64),
    /// Those of a region of a larger tensor.
    In { strides: Dims, start: u64, size: Dims },
}

impl Indices {
    fn of(whole: &Shape, region: &Region) -> Result<Self> {
        region.check_inside(whole)?;
        let strides = whole.strides();
        let start = region.start().iter().zip(&strides).map(|(start, stride)| (start * stride) as u64).sum();
        Ok(Self::In { strides, start, size: Dims::from_slice(region.size()) })
    }

    /// The number of consecutive indices in a row.
    pub(crate) fn run(&self) -> usize {
        match self {
            Self::From(_) => usize::MAX,
            Self::In { size, .. } => size.last().copied().unwrap_or(1).max(1),
        }
    }

    /// The index of an element of the tensor.
    pub(crate) fn of_element(&self, element: usize) -> u64 {
        match self {
            Self::From(first) => first.wrapping_add(element as u64),
            Self::In { strides, start, size } => {
                let (mut rest, mut index) = (element, *start);
                for (stride, size) in strides.iter().zip(size).rev() {
                    index += (rest % size * stride) as u64;
                    rest /= size;
                }
                index
            }
        }
    }
}

impl Tensor {
    /// Uniform numbers in [0, 1). `first` is the index of the first element, for
    /// a part of a larger tensor.
    pub fn uniform(dtype: DType, dims: &[usize], stream: Stream, first: u64) -> Result<Self> {
        on(Device::Cpu).draw(Draw::Uniform(stream), &Indices::From(first), dtype, &Shape::new(dims)?)
    }

    /// The uniform numbers of a region of a larger tensor, equal to those of the
    /// whole tensor there.
    pub fn uniform_in(dtype: DType, stream: Stream, whole: &Shape, region: &Region) -> Result<Self> {
        let indices = Indices::of(whole, region)?;
        on(Device::Cpu).draw(Draw::Uniform(stream), &indices, dtype, &region.shape())
    }

    /// The standard normal numbers of a region of a larger tensor, equal to those
    /// of the whole tensor there.
    pub fn normal_in(dtype: DType, stream: Stream, whole: &Shape, region: &Region) -> Result<Self> {
        let indices = Indices::of(whole, region)?;
        on(Device::Cpu).draw(Draw::Normal(stream), &indices, dtype, &region.shape())
    }

    /// Standard normal numbers. `first` is the index of the first element, for
    /// a part of a larger tensor.
    pub fn normal(dtype: DType, dims: &[usize], stream: Stream, first: u64) -> Result<Self> {
        on(Device::Cpu).draw(Draw::Normal(stream), &Indices::From(first), dtype, &Shape::new(dims)?)
    }

    /// Sets elements to zero with this probability and scales the others up, so
    /// that the mean stays. `first` is the index of the first element, for a
    /// part of a larger tensor.
    pub fn dropout(&self, probability: f64, stream: Stream, first: u64) -> Result<Self> {
        self.dropped(probability, stream, Indices::From(first))
    }

    /// [`dropout`](Self::dropout) of a tensor that is a region of a larger one.
    pub fn dropout_in(
        &self,
        probability: f64,
        stream: Stream,
        whole: &Shape,
        region: &Region,
    ) -> Result<Self> {
        if region.shape() != *self.shape() {
            let shapes = vec![self.shape().clone(), region.shape()];
            return Err(TensorError::Shapes { op: "dropout", shapes });
        }
        self.dropped(probability, stream, Indices::of(whole, region)?)
    }

    fn dropped(&self, probability: f64, stream: Stream, indices: Indices) -> Result<Self> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(TensorError::Probability { op: "dropout", probability: probability.to_string() });
        }
        apply_one(Dropout { probability, stream, indices }, std::slice::from_ref(self))
    }
}

/// The distribution of each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Draw {
    /// Uniform in [0, 1).
    Uniform(Stream),
    /// Standard normal.
    Normal(Stream),
}

impl Draw {
    pub(crate) fn number(self, index: u64) -> f32 {
        match self {
            Self::Uniform(stream) => stream.uniform(index),
            Self::Normal(stream) => stream.normal(index),
        }
    }
}

struct Dropout {
    probability: f64,
    stream: Stream,
    indices: Indices,
}

impl Dropout {
    /// Applies the mask; the backward rule draws it again instead of saving it.
    fn masked(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.contiguous("dropout")?;
        on(x.device()).dropout(&x, self.probability, Draw::Uniform(self.stream), &self.indices)
    }
}

impl Function for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.masked(&inputs[0])?])
    }

    fn backward(&self, _: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![gradients[0].as_ref().map(|gradient| self.masked(gradient)).transpose()?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let digits = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let key = [0xa409_3822, 0x299f_31d0];
        assert_eq!(philox(digits, key), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn a_part_has_the_values_of_the_whole() {
        let stream = Stream { seed: 7, number: 3 };
        for draw in [Tensor::uniform, Tensor::normal] {
            let whole = draw(DType::F32, &[40_000], stream, 0).unwrap().to_vec::<f32>().unwrap();
            let part = draw(DType::F32, &[1_001], stream, 16_383).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(part, whole[16_383..17_384]);
            let other = draw(DType::F32, &[1_001], Stream { number: 4, ..stream }, 0).unwrap();
            assert_ne!(other.to_vec::<f32>().unwrap(), whole[..1_001]);
        }
    }

    #[test]
    fn a_region_has_the_values_of_the_whole() {
        let (stream, whole) = (Stream { seed: 7, number: 3 }, Shape::new(&[5, 6, 7]).unwrap());
        let all = Tensor::normal(DType::F32, &whole, stream, 0).unwrap();
        let dropped = all.dropout(0.5, stream, 0).unwrap();
        for (start, size) in
            [([0, 0, 0], [5, 6, 7]), ([1, 2, 3], [3, 4, 2]), ([4, 0, 6], [1, 6, 1]), ([2, 6, 0], [3, 0, 7])]
        {
            let region = Region::new(&start, &size).unwrap();
            let cut =
                |x: &Tensor| (0..3).fold(x.clone(), |x, dim| x.narrow(dim, start[dim], size[dim]).unwrap());
            let drawn = Tensor::normal_in(DType::F32, stream, &whole, &region).unwrap();
            assert_eq!(drawn.to_vec::<f32>().unwrap(), cut(&all).to_vec::<f32>().unwrap());
            let part = cut(&all).dropout_in(0.5, stream, &whole, &region).unwrap();
            assert_eq!(part.to_vec::<f32>().unwrap(), cut(&dropped).to_vec::<f32>().unwrap());
        }
        let outside = Region::new(&[3, 0, 0], &[3, 6, 7]).unwrap();
        assert!(Tensor::uniform_in(DType::F32, stream, &whole, &outside).is_err());
        assert!(all.dropout_in(0.5, stream, &whole, &outside).is_err());
    }

    /// Moments of many draws are within five standard errors of the truth.
    #[test]
    fn draws_have_the_moments_they_should() {
        let (stream, n) = (Stream { seed: 1, number: 0 }, 200_000u64);
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        let error = 5.0 / (n as f64).sqrt();
        let uniform = |i| f64::from(stream.uniform(i));
        assert!((mean(&uniform) - 0.5).abs() < error * (1.0f64 / 12.0).sqrt());
        let normal = |i| f64::from(stream.normal(i));
        assert!(mean(&normal).abs() < error);
        assert!((mean(&|i| normal(i).powi(2)) - 1.0).abs() < error * 2f64.sqrt());
        assert!((mean(&|i| normal(i).powi(4)) - 3.0).abs() < error * 96f64.sqrt());
        // Neighbours do not go together.
        assert!(mean(&|i| normal(2 * i) * normal(2 * i + 1)).abs() < error);
    }

    #[test]
    fn dropout_keeps_the_mean_and_masks_the_gradient_alike() {
        let stream = Stream { seed: 5, number: 9 };
        let x = Tensor::from_slice(&vec![1f32; 50_000], &[50_000]).unwrap().requires_grad();
        let y = x.dropout(0.25, stream, 0).unwrap();
        let values = y.to_vec::<f32>().unwrap();
        let mean = values.iter().sum::<f32>() / 50_000.0;
        assert!((mean - 1.0).abs() < 5.0 * (0.25f32 / 0.75 / 50_000.0).sqrt(), "{mean}");
        let gradients = crate::backward([(y, None)]).unwrap();
        assert_eq!(gradients.of(&x).unwrap().to_vec::<f32>().unwrap(), values);
        assert_eq!(x.dropout(1.0, stream, 0).unwrap().to_vec::<f32>().unwrap(), vec![0.0; 50_000]);
        assert!(x.dropout(1.5, stream, 0).is_err());
        assert!(x.dropout(f64::NAN, stream, 0).is_err());
    }
}

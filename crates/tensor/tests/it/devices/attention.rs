//! Attention of halves, which has kernels of its own, against the CPU in f32.

use weightloom_layout::DType;
use weightloom_tensor::{Attention, Device, Tensor, TensorError, backward};

use super::values;
use crate::device::device;

/// What limits keys besides positions.
#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    /// Hides every fifth key, and the last ones.
    Padding,
    /// Documents of uneven lengths.
    Documents,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    heads: [usize; 2],
    queries: usize,
    keys: usize,
    width: usize,
    options: Attention,
    limit: Limit,
}

const CAUSAL: Attention = Attention { scale: None, causal: true, window: None, soft_cap: None };

/// One sequence with two heads that share keys.
const fn case(queries: usize, keys: usize, width: usize) -> Case {
    Case { batch: 1, heads: [2, 1], queries, keys, width, options: CAUSAL, limit: Limit::None }
}

impl Case {
    const fn with(self, options: Attention) -> Self {
        Self { options, ..self }
    }

    const fn limited(self, limit: Limit) -> Self {
        Self { limit, ..self }
    }
}

const CASES: [Case; 27] = [
    case(1, 1, 64),
    case(5, 5, 64),
    case(64, 64, 64),
    case(129, 129, 64),
    case(200, 200, 8),
    case(130, 130, 40),
    case(70, 70, 80),
    case(66, 66, 96),
    case(100, 100, 128),
    case(65, 65, 256),
    // Queries after a cache, and more queries than keys.
    case(3, 150, 64),
    case(40, 200, 128),
    case(90, 20, 64),
    case(90, 20, 64).with(Attention { causal: false, ..CAUSAL }),
    // Segments are merged.
    case(20, 1100, 64),
    case(1, 2100, 64),
    case(8, 1090, 256),
    Case { batch: 2, heads: [6, 2], ..case(140, 140, 64) },
    case(150, 150, 64).with(Attention { causal: false, ..CAUSAL }),
    case(150, 150, 64).with(Attention { window: Some(20), ..CAUSAL }),
    case(10, 1200, 64).with(Attention { window: Some(1100), ..CAUSAL }),
    case(140, 140, 128).with(Attention { causal: false, window: Some(100), ..CAUSAL }),
    case(100, 100, 64).with(Attention { soft_cap: Some(0.7), scale: Some(0.3), ..CAUSAL }),
    case(100, 100, 64).with(Attention { scale: Some(-0.2), ..CAUSAL }),
    case(130, 130, 64).with(Attention { causal: false, ..CAUSAL }).limited(Limit::Padding),
    case(300, 300, 64).limited(Limit::Documents),
    case(200, 200, 128)
        .with(Attention { causal: false, window: Some(30), ..CAUSAL })
        .limited(Limit::Documents),
];

/// The result and all gradients, as f64 on the host.
fn run(case: &Case, dtype: DType, device: Device) -> Result<Vec<Vec<f64>>, TensorError> {
    let Case { batch, heads: [heads, kv_heads], queries, keys, width, .. } = *case;
    // The same rounded inputs for all dtypes; stored as projections write them.
    let input = |heads: usize, rows: usize, seed| -> Result<Tensor, TensorError> {
        let stored = values(&[batch, rows, heads, width], DType::Bf16, seed).cast(dtype)?;
        Ok(stored.to(device)?.transpose(1, 2)?.requires_grad())
    };
    let inputs = [input(heads, queries, 1)?, input(kv_heads, keys, 2)?, input(kv_heads, keys, 3)?];
    let [q, k, v] = &inputs;
    let out = match case.limit {
        Limit::None => q.attention(k, v, case.options)?,
        Limit::Padding => {
            let visible: Vec<bool> = (0..batch * keys).map(|i| i % 5 != 3 && i % keys < keys - 9).collect();
            let mask = Tensor::from_bools(&visible, &[batch, keys])?.to(device)?;
            q.masked_attention(k, v, &mask, case.options)?
        }
        Limit::Documents => {
            let mut starts = vec![0i64; batch * keys];
            for (place, start) in starts.iter_mut().enumerate() {
                let position = place % keys;
                let ends = [1, 8, 75, 203, keys];
                *start = ends.iter().rev().find(|end| **end <= position).map_or(0, |end| *end as i64);
            }
            let starts = Tensor::from_slice(&starts, &[batch, keys])?.to(device)?;
            q.document_attention(k, v, &starts, case.options)?
        }
    };
    let numbers = |x: &Tensor| x.cast(DType::F64)?.to_vec::<f64>();
    let mut results = vec![numbers(&out)?];
    let weights = values(&[batch, queries, heads, width], DType::Bf16, 9).cast(dtype)?;
    let gradients = backward([(out, Some(weights.to(device)?.transpose(1, 2)?))])?;
    for input in &inputs {
        results.push(numbers(gradients.of(input).unwrap())?);
    }
    Ok(results)
}

#[test]
fn of_halves_agrees_with_the_cpu() {
    if device() == Device::Cpu {
        return;
    }
    for case in &CASES {
        let expected = run(case, DType::F32, Device::Cpu).unwrap();
        for dtype in [DType::Bf16, DType::F16] {
            let found = run(case, dtype, device()).unwrap();
            for (which, (expected, found)) in expected.iter().zip(&found).enumerate() {
                // Weights and slopes are rounded to the dtype before they are summed, and results again.
                let rounding = if dtype == DType::Bf16 { 1.0 / 256.0 } else { 1.0 / 2048.0 };
                let scale = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                for (place, (a, b)) in expected.iter().zip(found).enumerate() {
                    let close = (a - b).abs() <= 3.0 * rounding * scale + 1e-5;
                    assert!(close, "{case:?} in {dtype}: result {which} at {place}: {a} on the CPU, {b}");
                }
            }
            assert!(found == run(case, dtype, device()).unwrap(), "{case:?}: other bits the second time");
        }
    }
}

/// Documents packed into a row, and alone: the same bits, gradients included.
#[test]
fn of_packed_documents_has_the_bits_that_they_have_alone() {
    if device() == Device::Cpu {
        return;
    }
    for (dtype, width) in [(DType::Bf16, 64), (DType::F16, 128), (DType::Bf16, 24)] {
        let lengths = [3, 70, 130, 64];
        let total: usize = lengths.iter().sum();
        let input = |seed| values(&[1, total, 2, width], dtype, seed).to(device()).unwrap();
        let stored = [input(1), input(2), input(3), input(4)];
        let mut starts = Vec::new();
        for length in lengths {
            starts.extend(vec![starts.len() as i64; length]);
        }
        let starts = Tensor::from_slice(&starts, &[1, total]).unwrap().to(device()).unwrap();
        let all = |first: usize, count: usize, packed: bool| -> Vec<Vec<f64>> {
            let part = |x: &Tensor| x.narrow(1, first, count).unwrap().transpose(1, 2).unwrap();
            let inputs = [0, 1, 2].map(|which: usize| part(&stored[which]).detach().requires_grad());
            let [q, k, v] = &inputs;
            let out = match packed {
                true => q.document_attention(k, v, &starts, CAUSAL).unwrap(),
                false => q.attention(k, v, CAUSAL).unwrap(),
            };
            let gradients = backward([(out.clone(), Some(part(&stored[3])))]).unwrap();
            let mut results = vec![out];
            results.extend(inputs.iter().map(|input| gradients.of(input).unwrap().clone()));
            let by_position = |x: &Tensor| x.transpose(1, 2).unwrap().cast(DType::F64).unwrap();
            results.iter().map(|x| by_position(x).to_vec::<f64>().unwrap()).collect()
        };
        let together = all(0, total, true);
        let mut first = 0;
        for length in lengths {
            let row = 2 * width;
            for (packed, alone) in together.iter().zip(all(first, length, false)) {
                assert!(packed[first * row..(first + length) * row] == alone, "{dtype}, {width}, {length}");
            }
            first += length;
        }
    }
}

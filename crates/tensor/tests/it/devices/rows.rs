//! A row's bits do not depend on its batch, nor on who computes it.

use weightloom_cuda::{Gpu, Products};
use weightloom_layout::DType;
use weightloom_tensor::{Attention, CrossEntropy, Device, GpuFacts, Tensor, backward, gpus};

use super::{FLOATS, values};
use crate::device::device;

const MOST: usize = 4096;

/// Batches around the sizes of tiles, blocks and warps.
const EDGES: [usize; 22] =
    [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 1000, 1025, 2049, 4095];

/// Depths and columns of products: of models, of tiles, and odd ones.
const PRODUCTS: [(usize, usize); 20] = [
    (64, 64),
    (65, 33),
    (300, 128),
    (2048, 96),
    (16, 1000),
    (7, 8),
    (1, 1),
    (32, 24),
    (576, 1536),
    (1536, 576),
    (576, 192),
    (1024, 1024),
    (896, 128),
    (2048, 512),
    (4096, 64),
    (48, 4864),
    (1000, 1000),
    (80, 72),
    (15, 17),
    (513, 8),
];

/// Widths of norms, softmax and cross-entropy.
const WIDTHS: [usize; 20] =
    [1, 2, 5, 7, 8, 16, 31, 32, 33, 64, 96, 127, 128, 129, 200, 256, 300, 512, 576, 1000];

/// The batches of one of twenty shapes: together, the shapes have all up to [`MOST`].
fn batches(number: usize) -> Vec<usize> {
    EDGES.into_iter().chain((1..=MOST).filter(|batch| batch % 20 == number)).collect()
}

fn bytes(x: &Tensor) -> Vec<u8> {
    x.read_host(<[u8]>::to_vec).unwrap()
}

/// Compares the first rows of a function of a large batch with those of smaller ones.
fn check(name: &str, (number, width): (usize, usize), dtype: DType, f: impl Fn(&Tensor) -> Tensor) {
    let all = values(&[MOST, width], dtype, 3).to(device()).unwrap();
    let whole = bytes(&f(&all));
    let row = whole.len() / MOST;
    for batch in batches(number) {
        let part = bytes(&f(&all.narrow(0, 0, batch).unwrap()));
        assert!(part == whole[..batch * row], "{name} in {dtype}: {batch} rows of width {width} differ");
    }
}

#[test]
fn of_products() {
    // On the CPU other tests do this.
    let Device::Cuda(_) = device() else { return };
    for dtype in FLOATS {
        for (number, (depth, columns)) in PRODUCTS.into_iter().enumerate() {
            let weight = values(&[columns, depth], dtype, 5).to(device()).unwrap();
            check("linear", (number, depth), dtype, |x| x.linear(&weight, None, None).unwrap());
        }
    }
}

/// The library's products have the bits of our own kernels, whatever the operands'
/// strides.
#[test]
fn of_products_by_the_library() {
    let Device::Cuda(ordinal) = device() else { return };
    let gpu = Gpu::get(ordinal).unwrap();
    for dtype in [DType::Bf16, DType::F16] {
        for (depth, columns) in PRODUCTS {
            for rows in [64, 65, 200, 1024] {
                let x = values(&[rows, depth], dtype, 3).to(device()).unwrap();
                let weight = values(&[columns, depth], dtype, 5).to(device()).unwrap();
                let residual = values(&[rows, columns], dtype, 6).to(device()).unwrap();
                let gradient = values(&[rows, columns], dtype, 7).to(device()).unwrap();
                let all = || {
                    let of_weight = gradient.transpose(0, 1).unwrap().matmul(&x).unwrap();
                    [
                        x.linear(&weight, None, None).unwrap(),
                        x.linear(&weight, None, Some(&residual)).unwrap(),
                        gradient.matmul(&weight).unwrap(),
                        of_weight,
                    ]
                    .map(|x| bytes(&x))
                };
                let by_library = all();
                gpu.set_products(Products::Kernels);
                let by_kernels = all();
                gpu.set_products(Products::Library);
                assert!(by_library == by_kernels, "{dtype}: {rows} × {columns} × {depth}");
            }
        }
    }
}

#[test]
fn of_norms_and_softmax() {
    let Device::Cuda(_) = device() else { return };
    for dtype in FLOATS {
        for shape in WIDTHS.into_iter().enumerate() {
            let weight = values(&[shape.1], dtype, 5).to(device()).unwrap();
            check("rms_norm", shape, dtype, |x| x.rms_norm(&weight, 1e-5).unwrap());
            check("layer_norm", shape, dtype, |x| x.layer_norm(&weight, &weight, 1e-5).unwrap());
            check("softmax", shape, dtype, |x| x.softmax(1).unwrap());
            check("log_softmax", shape, dtype, |x| x.log_softmax(1).unwrap());
        }
    }
}

/// The gradients of all rows; and the loss of one row, if the others are ignored.
#[test]
fn of_cross_entropy() {
    let Device::Cuda(_) = device() else { return };
    let options = CrossEntropy { ignore_index: Some(-100), divisor: Some(1.0), ..CrossEntropy::default() };
    for dtype in FLOATS {
        for (number, width) in WIDTHS.into_iter().enumerate() {
            let targets = |rows: usize, only: Option<usize>| {
                let all: Vec<i64> =
                    (0..rows)
                        .map(|row| {
                            if only.is_none_or(|only| only == row) { (row * 7 % width) as i64 } else { -100 }
                        })
                        .collect();
                Tensor::from_slice(&all, &[rows]).unwrap().to(device()).unwrap()
            };
            check("the gradient of cross_entropy", (number, width), dtype, |x| {
                let x = x.detach().requires_grad();
                let loss = x.cross_entropy(&targets(x.shape()[0], None), options).unwrap();
                backward([(loss, None)]).unwrap().of(&x).unwrap().clone()
            });
            let all = values(&[MOST, width], dtype, 3).to(device()).unwrap();
            for (batch, row) in [(1, 0), (64, 0), (64, 63), (65, 64), (1000, 500), (MOST, 0), (MOST, 4000)] {
                let alone = all.narrow(0, row, 1).unwrap();
                let only = Tensor::from_slice(&[(row * 7 % width) as i64], &[1]).unwrap();
                let expected = alone.cross_entropy(&only.to(device()).unwrap(), options).unwrap();
                let found = all
                    .narrow(0, 0, batch)
                    .unwrap()
                    .cross_entropy(&targets(batch, Some(row)), options)
                    .unwrap();
                assert_eq!(bytes(&expected), bytes(&found), "{dtype}: row {row} of {batch}, width {width}");
            }
        }
    }
}

/// More logits than exist at a time: rows have the gradients that they have in smaller
/// batches, and those of the head add up.
#[test]
fn of_cross_entropy_in_chunks() {
    const ROWS: usize = 4300;
    const CLASSES: usize = 1 << 17;
    // An emulated GPU would take hours.
    let is_real = |gpu: &GpuFacts| gpu.name != "emulated";
    if device() == Device::Cpu || !gpus().unwrap().iter().all(is_real) {
        return;
    }
    let hidden = values(&[ROWS, 16], DType::Bf16, 3).to(device()).unwrap();
    let head = values(&[CLASSES, 16], DType::Bf16, 5).to(device()).unwrap();
    let targets: Vec<i64> = (0..ROWS).map(|row| (row * 7919 % CLASSES) as i64).collect();
    let options = CrossEntropy { divisor: Some(ROWS as f64), ..CrossEntropy::default() };
    let part = |first: usize, count: usize| -> (f64, Vec<f64>, Tensor) {
        let hidden = hidden.narrow(0, first, count).unwrap().detach().requires_grad();
        let head = head.detach().requires_grad();
        let targets = Tensor::from_slice(&targets[first..first + count], &[count]).unwrap();
        let targets = targets.to(device()).unwrap();
        let loss = hidden.projected_cross_entropy(&head, &targets, options).unwrap();
        let gradients = backward([(loss.clone(), None)]).unwrap();
        let numbers = |x: &Tensor| x.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
        let of_head = gradients.of(&head).unwrap().cast(DType::F32).unwrap();
        (numbers(&loss)[0], numbers(gradients.of(&hidden).unwrap()), of_head)
    };
    let (loss, of_hidden, of_head) = part(0, ROWS);
    let (mut losses, mut of_rows, mut sum) = (0.0, Vec::new(), None);
    for first in [0, 1500, 3000] {
        let (loss, of_hidden, of_head) = part(first, 1500.min(ROWS - first));
        losses += loss;
        of_rows.extend(of_hidden);
        sum = Some(match sum {
            None => of_head,
            Some(sum) => of_head.add(&sum).unwrap(),
        });
    }
    assert!((loss - losses).abs() < 1e-5 * loss, "{loss} {losses}");
    assert!(of_hidden == of_rows);
    let (a, b) = (of_head.to_vec::<f32>().unwrap(), sum.unwrap().to_vec::<f32>().unwrap());
    let scale = a.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    // Parts are rounded to bf16 each.
    let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(scale > 0.0 && apart <= scale / 64.0, "{apart} of {scale}");
}

/// Of the first queries, with as many keys; and of single queries, as a model that
/// generates computes them. Heads share keys, or not.
#[test]
fn of_attention() {
    let Device::Cuda(_) = device() else { return };
    let widths = [8, 16, 24, 32, 40, 64, 80, 96, 128, 256];
    let shapes = widths.into_iter().flat_map(|width| [(width, 1, None), (width, 2, Some(40))]);
    for dtype in FLOATS {
        for (width, kv_heads, window) in shapes.clone() {
            let options = Attention { causal: true, window, ..Attention::default() };
            let most = if matches!((width, dtype), (64, DType::Bf16)) { MOST } else { 600 };
            let new = |heads, seed| values(&[1, heads, most, width], dtype, seed).to(device()).unwrap();
            let (q, k, v) = (new(2, 1), new(kv_heads, 2), new(kv_heads, 3));
            let prefill = q.attention(&k, &v, options).unwrap();
            let first = |x: &Tensor, count| x.narrow(2, 0, count).unwrap();
            for queries in EDGES.into_iter().chain([200, 599]).filter(|queries| *queries <= most) {
                let (keys, values) = (first(&k, queries), first(&v, queries));
                let part = first(&q, queries).attention(&keys, &values, options).unwrap();
                let case = format!("{dtype}, {kv_heads} heads of {width}, {queries} queries");
                assert_eq!(bytes(&part), bytes(&first(&prefill, queries)), "{case}");
                let last = |x: &Tensor| x.narrow(2, queries - 1, 1).unwrap();
                let decoded = last(&q).attention(&keys, &values, options).unwrap();
                assert_eq!(bytes(&decoded), bytes(&last(&prefill)), "{case}");
            }
        }
    }
}

//! Results do not depend on the number of threads, and memory is reused.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use shardloom_layout::DType;
use shardloom_tensor::{CrossEntropy, Tensor, backward, memory};

fn values(dims: &[usize], seed: usize) -> Tensor {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 31) % 1999) as f32 / 500.0 - 2.0).collect();
    Tensor::from_slice(&values, dims).unwrap()
}

/// Bits of everything that a thread count could change.
fn everything() -> Vec<Vec<u32>> {
    let bits = |x: &Tensor| -> Vec<u32> {
        x.cast(DType::F32).unwrap().to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect()
    };
    let x = values(&[300, 257], 1).requires_grad();
    let w = values(&[257, 129], 2).requires_grad();
    let norm = values(&[257], 3).requires_grad();
    let targets: Vec<i64> = (0..300).map(|i| i % 129).collect();
    let targets = Tensor::from_slice(&targets, &[300]).unwrap();
    let hidden = x.rms_norm(&norm, 1e-6).unwrap().gelu().unwrap();
    let logits = hidden.matmul(&w).unwrap();
    let loss = logits.cross_entropy(&targets, CrossEntropy::default()).unwrap();
    let mut all = vec![
        bits(&loss),
        bits(&x.sum_all().unwrap()),
        bits(&x.sum(&[0]).unwrap()),
        bits(&x.softmax(0).unwrap()),
        bits(&x.transpose(0, 1).unwrap().add(&values(&[300], 4)).unwrap()),
        bits(&x.cast(DType::Bf16).unwrap().exp().unwrap()),
    ];
    let gradients = backward(&[(loss, None)]).unwrap();
    all.extend([&x, &w, &norm].map(|parameter| bits(gradients.of(parameter).unwrap())));
    all
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(everything)
    };
    let one = with(1);
    for threads in [2, 3, 5] {
        let many = with(threads);
        for (which, (one, many)) in one.iter().zip(&many).enumerate() {
            assert!(one == many, "result {which} differs between 1 and {threads} threads");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let x = values(&[64, 96], 1);
    let (weight, norm) = (values(&[96, 40], 2), values(&[96], 3));
    let row = |x: &Tensor, r: usize| -> Vec<f32> { x.narrow(0, r, 1).unwrap().to_vec().unwrap() };
    let normed = x.rms_norm(&norm, 1e-6).unwrap();
    let soft = x.softmax(1).unwrap();
    for r in [0, 13, 63] {
        let alone = x.narrow(0, r, 1).unwrap();
        assert_eq!(alone.rms_norm(&norm, 1e-6).unwrap().to_vec::<f32>().unwrap(), row(&normed, r));
        assert_eq!(alone.softmax(1).unwrap().to_vec::<f32>().unwrap(), row(&soft, r));
    }
    // Matrix products come from `gemm`, which makes no such promise yet; here
    // they agree to rounding.
    let product = x.matmul(&weight).unwrap();
    let alone = x.narrow(0, 13, 1).unwrap().matmul(&weight).unwrap().to_vec::<f32>().unwrap();
    for (a, b) in alone.iter().zip(row(&product, 13)) {
        assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{a} {b}");
    }
}

#[test]
fn freed_memory_is_used_again() {
    // Sizes no other test in this process uses.
    let dims = [701, 1009];
    drop(values(&dims, 1));
    let before = memory::statistics();
    for seed in 0..5 {
        drop(values(&dims, seed));
    }
    let after = memory::statistics();
    assert!(after.reused >= before.reused + 5, "{before:?} {after:?}");
    assert!(after.high_water >= 701 * 1009 * 4);
}

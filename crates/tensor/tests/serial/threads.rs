//! Results do not depend on the number of threads, and memory is reused.

use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Attention, CrossEntropy, Tensor, backward, memory, threads};

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
    let gradients = backward([(loss, None)]).unwrap();
    all.extend([&x, &w, &norm].map(|parameter| bits(gradients.of(parameter).unwrap())));
    all
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let _serial = crate::serial();
    let one = threads::at_most(1, everything);
    for threads in [2, 3, 5] {
        let many = threads::at_most(threads, everything);
        for (which, (one, many)) in one.iter().zip(&many).enumerate() {
            assert!(one == many, "result {which} differs between 1 and {threads} threads");
        }
    }
}

/// Bits, so that even zeros of different sign differ.
fn bits(x: &Tensor) -> Vec<u64> {
    x.cast(DType::F64).unwrap().to_vec::<f64>().unwrap().iter().map(|x| x.to_bits()).collect()
}

/// Every row of a result, when its row of the input is alone, with some others,
/// and with all: the same bits.
fn rows_stand_alone(name: &str, x: &Tensor, work: impl Fn(&Tensor) -> Tensor) {
    let whole = work(x);
    let rows = x.shape()[0];
    for row in 0..rows {
        for count in [1, 2, 5, 9, 40] {
            let start = row.min(rows.saturating_sub(count));
            let count = count.min(rows);
            let part = work(&x.narrow(0, start, count).unwrap());
            let (found, expected) =
                (part.narrow(0, row - start, 1).unwrap(), whole.narrow(0, row, 1).unwrap());
            assert!(bits(&found) == bits(&expected), "{name}: row {row} among {count}");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let _serial = crate::serial();
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
        let made = |dims: &[usize], seed| values(dims, seed).cast(dtype).unwrap();
        // More rows than a task and more depth than a block, sizes that divide
        // by nothing, and columns that fill whole vectors.
        for columns in [40, 64, 531] {
            let (x, weight) = (made(&[71, 301], 1), made(&[301, columns], 2));
            let turned = made(&[columns, 301], 3).transpose(0, 1).unwrap();
            rows_stand_alone("matmul", &x, |x| x.matmul(&weight).unwrap());
            rows_stand_alone("matmul with a transposed matrix", &x, |x| x.matmul(&turned).unwrap());
        }
        let (x, norm) = (made(&[20, 97], 1), made(&[97], 3));
        rows_stand_alone("rms_norm", &x, |x| x.rms_norm(&norm, 1e-6).unwrap());
        rows_stand_alone("layer_norm", &x, |x| x.layer_norm(&norm, &norm, 1e-6).unwrap());
        rows_stand_alone("softmax", &x, |x| x.softmax(1).unwrap());
        // The loss of a row, by itself and as one of those it is a part of: the
        // others are left out of the mean, so what is left is the row's.
        let loss = |x: &Tensor, row: usize| {
            let mut targets = vec![-1i64; x.shape()[0]];
            targets[row] = 13;
            let targets = Tensor::from_slice(&targets, &[targets.len()]).unwrap();
            let options =
                CrossEntropy { ignore_index: Some(-1), label_smoothing: 0.1, ..CrossEntropy::default() };
            bits(&x.cross_entropy(&targets, options).unwrap())
        };
        for row in 0..20 {
            assert_eq!(loss(&x, row), loss(&x.narrow(0, row, 1).unwrap(), 0), "cross_entropy: row {row}");
        }
    }
}

/// A few rows read a weight where it lies, many rows pack it first: sizes that
/// divide by nothing, weights at odd places, and what is added on the way.
#[test]
fn a_few_rows_are_rows_of_many() {
    let _serial = crate::serial();
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
        for (n, k) in
            [(1, 1), (3, 2), (16, 16), (17, 15), (31, 33), (40, 64), (65, 97), (192, 80), (33, 1025)]
        {
            let (x, all) =
                (values(&[80, k], 1).cast(dtype).unwrap(), values(&[n * k + 1], 2).cast(dtype).unwrap());
            // One element past an aligned address.
            let weight = all.narrow(0, 1, n * k).unwrap().reshape(&Shape::new(&[n, k]).unwrap()).unwrap();
            let (bias, residual) =
                (values(&[n], 3).cast(dtype).unwrap(), values(&[80, n], 4).cast(dtype).unwrap());
            let whole = x.linear(&weight, Some(&bias), Some(&residual)).unwrap();
            let plain = x.linear(&weight, None, None).unwrap();
            for count in 1..=9 {
                let rows = |x: &Tensor| x.narrow(0, 7, count).unwrap();
                let found = rows(&x).linear(&weight, Some(&bias), Some(&rows(&residual))).unwrap();
                assert!(bits(&found) == bits(&rows(&whole)), "{count} rows of {dtype} through {n} × {k}");
                let found = rows(&x).linear(&weight, None, None).unwrap();
                assert!(bits(&found) == bits(&rows(&plain)), "{count} rows of {dtype} through {n} × {k}");
            }
        }
    }
}

/// A sequence in a batch, and a query among others, get what they get alone.
#[test]
fn attention_does_not_depend_on_the_batch() {
    let _serial = crate::serial();
    for dtype in [DType::F32, DType::Bf16] {
        for width in [32, 20] {
            let made = |heads, time, seed| values(&[3, heads, time, width], seed).cast(dtype).unwrap();
            let (q, k, v) = (made(4, 150, 1), made(2, 150, 2), made(2, 150, 3));
            let causal = Attention { causal: true, ..Attention::default() };
            let whole = q.attention(&k, &v, causal).unwrap();
            for batch in 0..3 {
                let [q, k, v, expected] = [&q, &k, &v, &whole].map(|x| x.narrow(0, batch, 1).unwrap());
                assert!(bits(&q.attention(&k, &v, causal).unwrap()) == bits(&expected), "batch {batch}");
                // The last queries alone, as with a cache; earlier ones with the keys they see.
                for time in [1, 64, 70, 150] {
                    let [q, k, v, expected] = [&q, &k, &v, &expected].map(|x| x.narrow(2, 0, time).unwrap());
                    let [last, expected] = [&q, &expected].map(|x| x.narrow(2, time - 1, 1).unwrap());
                    let found = last.attention(&k, &v, causal).unwrap();
                    assert!(bits(&found) == bits(&expected), "query {time} of batch {batch}");
                }
            }
        }
    }
}

/// A document in a packed row gets what it gets alone, and so do its gradients.
#[test]
fn packed_documents_attend_as_alone() {
    let _serial = crate::serial();
    // Within a block, at its edges, over several blocks and tasks.
    let lengths = [3, 64, 1, 70, 600, 130];
    let time: usize = lengths.iter().sum();
    let mut starts: Vec<i64> = Vec::new();
    for length in lengths {
        starts.extend(vec![starts.len() as i64; length]);
    }
    let starts = Tensor::from_slice(&starts, &[1, time]).unwrap();
    for (dtype, window) in [(DType::F32, None), (DType::F32, Some(50)), (DType::Bf16, None)] {
        let made = |heads, seed| values(&[1, heads, time, 20], seed).cast(dtype).unwrap();
        let inputs = [made(4, 1), made(2, 2), made(2, 3)];
        let weights = made(4, 4);
        let options = Attention { causal: true, window, ..Attention::default() };
        let run = |inputs: &[Tensor; 3], weights: &Tensor, starts: Option<&Tensor>| {
            let [q, k, v] = inputs.each_ref().map(Tensor::requires_grad);
            let out = match starts {
                Some(starts) => q.document_attention(&k, &v, starts, options),
                None => q.attention(&k, &v, options),
            };
            let out = out.unwrap();
            let gradients = backward([(out.clone(), Some(weights.clone()))]).unwrap();
            let of = |x: &Tensor| gradients.of(x).unwrap().clone();
            [out.detach(), of(&q), of(&k), of(&v)]
        };
        let packed = run(&inputs, &weights, Some(&starts));
        let mut first = 0;
        for length in lengths {
            let part = |x: &Tensor| x.narrow(2, first, length).unwrap();
            let alone = run(&inputs.each_ref().map(part), &part(&weights), None);
            for (name, (packed, alone)) in ["out", "dq", "dk", "dv"].iter().zip(packed.iter().zip(&alone)) {
                assert!(bits(&part(packed)) == bits(alone), "{name} of {length} at {first}, {dtype}");
            }
            first += length;
        }
    }
}

#[test]
fn freed_memory_is_used_again() {
    let _serial = crate::serial();
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

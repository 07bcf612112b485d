//! A row's bits do not depend on its batch.

use weightloom_layout::DType;
use weightloom_tensor::{Attention, Device, Tensor};

use super::{FLOATS, values};
use crate::device::device;

/// Batches around the sizes of tiles and blocks.
const BATCHES: [usize; 9] = [1, 2, 15, 16, 17, 64, 65, 1000, 4096];

fn bytes(x: &Tensor) -> Vec<u8> {
    x.read_host(<[u8]>::to_vec).unwrap()
}

/// Compares the first rows of a function of a large batch with those of smaller ones.
fn check(name: &str, dtype: DType, width: usize, f: impl Fn(&Tensor) -> Tensor) {
    let all = values(&[4096, width], dtype, 3).to(device()).unwrap();
    let whole = bytes(&f(&all));
    let row = whole.len() / 4096;
    for batch in BATCHES {
        let part = bytes(&f(&all.narrow(0, 0, batch).unwrap()));
        assert!(part == whole[..batch * row], "{name} in {dtype}: {batch} rows of width {width} differ");
    }
}

#[test]
fn of_products_norms_and_softmax() {
    // On the CPU other tests do this.
    let Device::Cuda(_) = device() else { return };
    for dtype in FLOATS {
        for (depth, columns) in [(64, 64), (65, 33), (300, 128), (2048, 96), (16, 1000), (7, 8)] {
            let weight = values(&[columns, depth], dtype, 5).to(device()).unwrap();
            check("linear", dtype, depth, |x| x.linear(&weight, None, None).unwrap());
        }
        for width in [1, 31, 256, 1000] {
            let weight = values(&[width], dtype, 5).to(device()).unwrap();
            check("rms_norm", dtype, width, |x| x.rms_norm(&weight, 1e-5).unwrap());
            check("layer_norm", dtype, width, |x| x.layer_norm(&weight, &weight, 1e-5).unwrap());
            check("softmax", dtype, width, |x| x.softmax(1).unwrap());
            check("log_softmax", dtype, width, |x| x.log_softmax(1).unwrap());
            check("silu", dtype, width, |x| x.silu().unwrap());
        }
    }
}

#[test]
fn of_attention_one_query_at_a_time() {
    let Device::Cuda(_) = device() else { return };
    for dtype in FLOATS {
        for window in [None, Some(40)] {
            let options = Attention { causal: true, window, ..Attention::default() };
            let new = |seed| values(&[1, 2, 200, 64], dtype, seed).to(device()).unwrap();
            let (q, k, v) = (new(1), new(2), new(3));
            let prefill = q.attention(&k, &v, options).unwrap();
            for query in [0, 1, 31, 32, 63, 64, 100, 199] {
                let keys = |x: &Tensor| x.narrow(2, 0, query + 1).unwrap();
                let decoded =
                    q.narrow(2, query, 1).unwrap().attention(&keys(&k), &keys(&v), options).unwrap();
                assert_eq!(bytes(&decoded), bytes(&prefill.narrow(2, query, 1).unwrap()), "{dtype} {query}");
            }
        }
    }
}

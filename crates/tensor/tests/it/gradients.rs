//! Every backward rule against finite differences in f64.

use crate::device::{from_bools, from_slice, scalar};
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Attention, CrossEntropy, Order, RopeStyle, Stream, Tensor, TensorError, backward};

type Case = Result<Tensor, TensorError>;

/// Awkward but smooth values, none near a kink.
fn values(dims: &[usize], seed: usize) -> Tensor {
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count)
        .map(|i| {
            let mixed = (i * 37 + seed * 101 + 11) % 97;
            let value = mixed as f64 / 50.0 - 0.97;
            if value.abs() < 0.05 { 0.3 } else { value }
        })
        .collect();
    from_slice(&values, dims).unwrap()
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

/// Compares the gradient of a weighted sum of the output with central
/// differences, for every element of every input.
fn check(name: &str, inputs: &[Tensor], function: impl Fn(&[Tensor]) -> Case) {
    const STEP: f64 = 1e-5;
    let output = function(inputs).unwrap();
    let weights = values(output.shape(), 7);
    let loss = |inputs: &[Tensor]| -> f64 {
        function(inputs).unwrap().mul(&weights).unwrap().sum_all().unwrap().item().unwrap()
    };
    let parameters: Vec<Tensor> = inputs.iter().map(Tensor::requires_grad).collect();
    let gradients = backward([(function(&parameters).unwrap(), Some(weights.clone()))]).unwrap();
    for (which, parameter) in parameters.iter().enumerate() {
        let gradient = match gradients.of(parameter) {
            Some(gradient) => gradient.to_vec::<f64>().unwrap(),
            None => vec![0.0; parameter.shape().volume()],
        };
        let base = inputs[which].to_vec::<f64>().unwrap();
        for element in 0..base.len() {
            let moved = |by: f64| {
                let mut elements = base.clone();
                elements[element] += by;
                let mut all = inputs.to_vec();
                all[which] = from_slice(&elements, inputs[which].shape()).unwrap();
                loss(&all)
            };
            let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let error = (difference - gradient[element]).abs();
            // Central differences of smooth functions are good to STEP², and
            // subtraction costs about 1e-16 / STEP.
            assert!(
                error < 1e-7 * (1.0 + difference.abs()),
                "{name}: input {which} element {element}: {} by rule, {difference} by difference",
                gradient[element]
            );
        }
    }
}

#[test]
fn unary_rules() {
    let x = values(&[3, 5], 1);
    let half = scalar(0.5f64).unwrap();
    let positive = x.mul(&x).unwrap().add(&half).unwrap();
    for (name, function) in [
        ("neg", Tensor::neg as fn(&Tensor) -> Case),
        ("exp", Tensor::exp),
        ("abs", Tensor::abs),
        ("relu", Tensor::relu),
        ("sigmoid", Tensor::sigmoid),
        ("tanh", Tensor::tanh),
        ("silu", Tensor::silu),
        ("gelu", Tensor::gelu),
        ("gelu_tanh", Tensor::gelu_tanh),
    ] {
        check(name, std::slice::from_ref(&x), |x| function(&x[0]));
        // The same on a strided view.
        check(name, std::slice::from_ref(&x), |x| function(&x[0].transpose(0, 1)?.narrow(0, 1, 3)?));
    }
    for (name, function) in
        [("log", Tensor::log as fn(&Tensor) -> Case), ("sqrt", Tensor::sqrt), ("rsqrt", Tensor::rsqrt)]
    {
        check(name, std::slice::from_ref(&positive), |x| function(&x[0]));
    }
}

#[test]
fn binary_rules_with_broadcasting() {
    let operands = [
        (vec![3, 5], vec![3, 5]),
        (vec![3, 5], vec![5]),
        (vec![3, 1], vec![1, 5]),
        (vec![], vec![2, 2]),
        (vec![2, 1, 3], vec![4, 1]),
        (vec![1], vec![1]),
    ];
    for (a, b) in operands {
        let inputs = [values(&a, 2), values(&b, 3)];
        check("add", &inputs, |x| x[0].add(&x[1]));
        check("sub", &inputs, |x| x[0].sub(&x[1]));
        check("mul", &inputs, |x| x[0].mul(&x[1]));
        check("div", &inputs, |x| x[0].div(&x[1]));
    }
    // One tensor used twice.
    check("square", &[values(&[4], 1)], |x| x[0].mul(&x[0]));
}

#[test]
fn matmul_rules() {
    for (a, b) in [
        (vec![3, 4], vec![4, 2]),
        (vec![1, 1], vec![1, 1]),
        (vec![2, 3, 4], vec![4, 5]),
        (vec![2, 1, 3, 2], vec![3, 2, 4]),
        (vec![3, 0], vec![0, 2]),
    ] {
        let inputs = [values(&a, 4), values(&b, 5)];
        check("matmul", &inputs, |x| x[0].matmul(&x[1]));
    }
    check("transposed", &[values(&[4, 3], 1), values(&[2, 4], 2)], |x| {
        x[0].transpose(0, 1)?.matmul(&x[1].transpose(0, 1)?)
    });
}

#[test]
fn reduction_rules() {
    let x = values(&[2, 3, 4], 6);
    for dims in [vec![], vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
        check("sum", std::slice::from_ref(&x), |x| x[0].sum(&dims));
        check("mean", std::slice::from_ref(&x), |x| x[0].mean(&dims));
    }
}

#[test]
fn row_rules() {
    let x = values(&[3, 4], 8);
    for dim in [0, 1] {
        check("softmax", std::slice::from_ref(&x), |x| x[0].softmax(dim));
        check("log_softmax", std::slice::from_ref(&x), |x| x[0].log_softmax(dim));
    }
    check("rms_norm", &[values(&[2, 3, 5], 1), values(&[5], 2)], |x| x[0].rms_norm(&x[1], 1e-5));
    let indices = from_slice(&[2i64, 0, 2, 3], &[2, 2]).unwrap();
    check("embedding", &[values(&[4, 3], 1)], |x| x[0].embedding(&indices));
    let targets = from_slice(&[1i64, -100, 3], &[3]).unwrap();
    let options = CrossEntropy { ignore_index: Some(-100), ..CrossEntropy::default() };
    check("cross_entropy", std::slice::from_ref(&x), |x| x[0].cross_entropy(&targets, options));
    let smooth = CrossEntropy { label_smoothing: 0.3, ..options };
    check("smooth cross_entropy", std::slice::from_ref(&x), |x| x[0].cross_entropy(&targets, smooth));
    let inputs = [values(&[3, 5], 1), values(&[4, 5], 2)];
    check("projected_cross_entropy", &inputs, |x| x[0].projected_cross_entropy(&x[1], &targets, smooth));
}

#[test]
fn power_clamp_and_gate_rules() {
    let x = values(&[3, 5], 1);
    let positive = x.mul(&x).unwrap().add(&scalar(0.5f64).unwrap()).unwrap();
    check("powf", std::slice::from_ref(&positive), |x| x[0].powf(-1.3));
    check("powf to 0", std::slice::from_ref(&positive), |x| x[0].powf(0.0));
    check("clamp", std::slice::from_ref(&x), |x| x[0].clamp(-0.513, 0.627));
    check("cos", std::slice::from_ref(&x), |x| x[0].cos());
    check("sin", std::slice::from_ref(&x), |x| x[0].sin());
    check("pow", &[positive, values(&[5], 3)], |x| x[0].pow(&x[1]));
    for (name, gate) in
        [("geglu", Tensor::geglu as fn(&Tensor, &Tensor) -> Case), ("geglu_tanh", Tensor::geglu_tanh)]
    {
        check(name, &[values(&[3, 4], 1), values(&[3, 4], 2)], |x| gate(&x[0], &x[1]));
    }
    check("cast", std::slice::from_ref(&x), |x| x[0].cast(DType::F64));
    let stream = Stream { seed: 3, number: 1 };
    check("dropout", std::slice::from_ref(&x), |x| x[0].dropout(0.4, stream, 11));
}

#[test]
fn linear_and_grouped_rules() {
    let inputs = [values(&[2, 3, 4], 1), values(&[5, 4], 2), values(&[5], 3), values(&[2, 3, 5], 4)];
    check("linear", &inputs[..2], |x| x[0].linear(&x[1], None, None));
    check("linear with bias", &inputs[..3], |x| x[0].linear(&x[1], Some(&x[2]), None));
    check("linear with all", &inputs, |x| x[0].linear(&x[1], Some(&x[2]), Some(&x[3])));
    // Experts without tokens, and experts seen transposed.
    let inputs = [values(&[6, 4], 1), values(&[4, 4, 3], 2)];
    check("grouped_matmul", &inputs, |x| x[0].grouped_matmul(&x[1], &[0, 4, 0, 2]));
    check("grouped_matmul", &[values(&[6, 4], 1), values(&[2, 3, 4], 2)], |x| {
        x[0].grouped_matmul(&x[1].transpose(1, 2)?, &[1, 5])
    });
}

#[test]
fn more_reduction_rules() {
    // All different, so that the largest stays the largest.
    let distinct: Vec<f64> = (0..24).map(|i| ((i * 7) % 24) as f64 / 12.0 - 0.97).collect();
    let x = from_slice(&distinct, &[2, 3, 4]).unwrap();
    for dims in [vec![], vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
        let of = std::slice::from_ref(&x);
        check("max", of, |x| x[0].max(&dims));
        check("min", of, |x| x[0].min(&dims));
        check("prod", of, |x| x[0].prod(&dims));
        check("norm", of, |x| x[0].norm(&dims));
        check("logsumexp", of, |x| x[0].logsumexp(&dims));
    }
    let zeros = from_slice(&[0.0, 2.0, 0.0, 3.0, 0.0, 5.0], &[2, 3]).unwrap();
    check("prod with zeros", &[zeros], |x| x[0].prod(&[1]));
}

#[test]
fn joining_and_indexing_rules() {
    let pair = [values(&[2, 3], 1), values(&[2, 3], 2)];
    let x = values(&[4, 3], 5);
    let of = std::slice::from_ref(&x);
    for dim in [0, 1] {
        check("cat", &pair, |x| Tensor::cat(&[&x[0], &x[1], &x[0]], dim));
        check("cumsum", of, |x| x[0].cumsum(dim));
        check("sort", of, |x| Ok(x[0].sort(dim, Order::Descending)?.0));
        check("topk", of, |x| Ok(x[0].topk(2, dim)?.0));
        check("pad", of, |x| x[0].pad(dim, 2, 1, 0.7));
        let chosen = from_slice(&[2i64, 0, 2], &[3]).unwrap();
        check("index_select", of, |x| x[0].index_select(dim, &chosen));
        // Several for one place.
        let picks = from_slice(&[0i64, 1, 1, 2, 0, 1], &[2, 3]).unwrap();
        check("gather", of, |x| x[0].gather(dim, &picks));
        check("scatter_add", &[x.clone(), pair[0].clone()], |x| x[0].scatter_add(dim, &picks, &x[1]));
        check("scatter", &[x.clone(), pair[0].clone()], |x| x[0].scatter(dim, &picks, &x[1]));
    }
    for dim in [0, 1, 2] {
        check("stack", &pair, |x| Tensor::stack(&[&x[0], &x[1]], dim));
    }
    check("split", of, |x| {
        let parts = x[0].split(&[1, 3], 0)?;
        parts[0].add(&parts[1].narrow(0, 1, 1)?)
    });
    check("repeat", of, |x| x[0].repeat(&[2, 1, 3]));
    check("tril", of, |x| x[0].tril(-1));
    check("triu", of, |x| x[0].triu(1));
    let mask = from_bools(&[true, false, true], &[3]).unwrap();
    check("select", &[x.clone(), values(&[3], 2)], |x| mask.select(&x[0], &x[1]));
    check("masked_fill", of, |x| x[0].masked_fill(&mask, 4.0));
}

#[test]
fn attention_with_padding_and_a_soft_cap() {
    let inputs = [values(&[2, 2, 3, 4], 1), values(&[2, 1, 5, 4], 2), values(&[2, 1, 5, 4], 3)];
    // A second batch of which the first query sees nothing.
    let mask: Vec<bool> = [1, 0, 1, 1, 1, 0, 0, 0, 1, 1].map(|seen| seen == 1).into();
    let mask = from_bools(&mask, &[2, 5]).unwrap();
    for (causal, soft_cap) in [(false, None), (true, None), (true, Some(0.7))] {
        let options = Attention { causal, soft_cap, ..Attention::default() };
        check("masked attention", &inputs, |x| x[0].masked_attention(&x[1], &x[2], &mask, options));
    }
}

#[test]
fn attention_within_documents() {
    let inputs = [values(&[2, 2, 5, 4], 1), values(&[2, 1, 5, 4], 2), values(&[2, 1, 5, 4], 3)];
    let starts = from_slice(&[0i64, 0, 2, 2, 2, 0, 1, 1, 1, 4], &[2, 5]).unwrap();
    let causal = Attention { causal: true, ..Attention::default() };
    for options in
        [causal, Attention::default(), Attention { window: Some(2), soft_cap: Some(0.7), ..causal }]
    {
        check("document attention", &inputs, |x| x[0].document_attention(&x[1], &x[2], &starts, options));
    }
}

#[test]
fn attention_within_documents_refuses_other_starts() {
    let x = values(&[1, 1, 3, 4], 1);
    let causal = Attention { causal: true, ..Attention::default() };
    let attend = |starts: Tensor| x.document_attention(&x, &x, &starts, causal);
    let error = attend(from_slice(&[0i64, 2, 2], &[1, 3]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "attention: index 2 at position 1 is out of range for 3 rows");
    assert!(attend(from_bools(&[true; 3], &[1, 3]).unwrap()).is_err(), "a padding mask");
    assert!(attend(from_slice(&[0i64, 0], &[1, 2]).unwrap()).is_err(), "too few positions");
    // A query without a key of its document.
    let last = x.narrow(2, 2, 1).unwrap();
    let starts = from_slice(&[0i64, 0, 0], &[1, 3]).unwrap();
    assert!(last.document_attention(&x, &x, &starts, causal).is_err());
}

#[test]
fn gate_norm_and_rope_rules() {
    check("swiglu", &[values(&[3, 4], 1), values(&[3, 4], 2)], |x| x[0].swiglu(&x[1]));
    check("layer_norm", &[values(&[2, 3, 5], 1), values(&[5], 2), values(&[5], 3)], |x| {
        x[0].layer_norm(&x[1], &x[2], 1e-5)
    });
    let angles = values(&[3, 2], 4).scale(2.0).unwrap();
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
        check("rope", &[values(&[2, 2, 3, 4], 5)], |x| x[0].rope(&cos, &sin, style));
        // Heads inside positions, as projections leave them.
        check("rope", &[values(&[2, 3, 2, 4], 5)], |x| x[0].transpose(1, 2)?.rope(&cos, &sin, style));
    }
    // Other angles in each row.
    let angles = values(&[2, 3, 2], 4).scale(2.0).unwrap();
    let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
    let x = values(&[2, 2, 3, 4], 5);
    for x in [x.clone(), values(&[2, 3, 2, 4], 5).transpose(1, 2).unwrap()] {
        let all = x.rope(&cos, &sin, RopeStyle::Half).unwrap();
        for row in 0..2 {
            let [cos, sin] =
                [&cos, &sin].map(|x| x.narrow(0, row, 1).unwrap().reshape(&shape(&[3, 2])).unwrap());
            let alone = x.narrow(0, row, 1).unwrap().rope(&cos, &sin, RopeStyle::Half).unwrap();
            let found: Vec<f64> = all.narrow(0, row, 1).unwrap().to_vec().unwrap();
            assert_eq!(found, alone.to_vec::<f64>().unwrap(), "row {row}");
        }
    }
    check("rope", &[x], |x| x[0].rope(&cos, &sin, RopeStyle::Half));
}

#[test]
fn attention_rules() {
    let causal = Attention { causal: true, ..Attention::default() };
    let options = [
        Attention::default(),
        causal,
        Attention { window: Some(2), ..causal },
        Attention { scale: Some(0.3), ..Attention::default() },
    ];
    // Heads, key-value heads, queries, keys.
    for (heads, kv_heads, queries, keys) in
        [(2, 2, 3, 3), (4, 2, 3, 3), (2, 1, 2, 5), (1, 1, 1, 1), (1, 1, 3, 2)]
    {
        let inputs = [
            values(&[2, heads, queries, 4], 1),
            values(&[2, kv_heads, keys, 4], 2),
            values(&[2, kv_heads, keys, 4], 3),
        ];
        for options in options {
            check(&format!("attention {options:?}"), &inputs, |x| x[0].attention(&x[1], &x[2], options));
        }
    }
}

/// NaN scores stay NaN; they are not taken for masked keys.
#[test]
fn attention_to_what_is_no_number_is_no_number() {
    let (k, v) = (values(&[1, 1, 3, 4], 2), values(&[1, 1, 3, 4], 3));
    let mut queries = vec![0.5; 3 * 4];
    queries[4] = f64::NAN;
    let q = from_slice(&queries, &[1, 1, 3, 4]).unwrap();
    for causal in [false, true] {
        let options = Attention { causal, ..Attention::default() };
        let seen: Vec<f64> = q.attention(&k, &v, options).unwrap().to_vec().unwrap();
        for (row, seen) in seen.chunks_exact(4).enumerate() {
            assert!(seen.iter().all(|x| x.is_nan() == (row == 1)), "row {row}: {seen:?}");
        }
    }
}

/// Blocks are invisible: long sequences give what whole rows of scores give.
#[test]
fn attention_over_several_blocks_is_attention() {
    let (queries, keys, width) = (130, 150, 8);
    let (q, k, v) = (
        values(&[1, 2, queries, width], 1),
        values(&[1, 1, keys, width], 2),
        values(&[1, 1, keys, width], 3),
    );
    for (causal, window) in [(false, None), (true, None), (true, Some(70))] {
        let found = q.attention(&k, &v, Attention { causal, window, ..Attention::default() }).unwrap();
        let scores =
            q.matmul(&k.transpose(2, 3).unwrap()).unwrap().scale(1.0 / (width as f64).sqrt()).unwrap();
        let mask: Vec<f64> = (0..queries)
            .flat_map(|i| {
                let position = i + keys - queries;
                (0..keys).map(move |j| {
                    let hidden = causal && j > position || window.is_some_and(|w| j + w <= position);
                    if hidden { f64::NEG_INFINITY } else { 0.0 }
                })
            })
            .collect();
        let mask = from_slice(&mask, &[queries, keys]).unwrap();
        let expected = scores.add(&mask).unwrap().softmax(3).unwrap().matmul(&v).unwrap();
        let (found, expected) = (found.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-13, "{found} {expected}");
        }
    }
}

#[test]
fn view_rules() {
    let x = values(&[2, 3, 4], 9);
    let of = std::slice::from_ref(&x);
    check("reshape", of, |x| x[0].reshape(&shape(&[6, 4])));
    check("reshape of a permutation", of, |x| x[0].permute(&[2, 0, 1])?.reshape(&shape(&[8, 3])));
    check("permute", of, |x| x[0].permute(&[1, 2, 0]));
    check("narrow", of, |x| x[0].narrow(1, 1, 2));
    check("narrow to nothing", of, |x| x[0].narrow(2, 4, 0)?.add(&x[0].narrow(2, 0, 0)?));
    check("expand", &[values(&[3, 1], 2)], |x| x[0].expand(&shape(&[2, 3, 4])));
}

#[test]
fn a_small_network() {
    let indices = from_slice(&[1i64, 4, 2, 0], &[4]).unwrap();
    let targets = from_slice(&[4i64, 2, 0, 3], &[4]).unwrap();
    let inputs = [values(&[5, 6], 1), values(&[6], 2), values(&[6, 8], 3), values(&[8, 5], 4)];
    check("network", &inputs, |p| {
        let x = p[0].embedding(&indices)?;
        let hidden = x.rms_norm(&p[1], 1e-6)?.matmul(&p[2])?.silu()?;
        hidden.matmul(&p[3])?.cross_entropy(&targets, CrossEntropy::default())
    });
}

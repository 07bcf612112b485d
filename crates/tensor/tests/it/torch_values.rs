//! Forward and backward values of real PyTorch.
//!
//! `torch/make_values.py` wrote the record.

use std::collections::HashMap;

use crate::device::{from_bools, from_slice, scalar};
use serde::Deserialize;
use weightloom_layout::DType;
use weightloom_tensor::{
    AdamW, Attention, CrossEntropy, Level, Moments, Order, RopeStyle, Tensor, TensorError, backward,
    global_norm,
};

#[derive(Deserialize)]
struct Record {
    cases: Vec<Case>,
    adamw: Steps,
    float8: HashMap<DType, Eight>,
}

/// What torch has for each code of an 8-bit float, and what it rounds numbers
/// to. NaN is null, infinities are ±1e30.
#[derive(Deserialize)]
struct Eight {
    codes: Vec<Option<f64>>,
    near: Vec<f32>,
    rounded: Vec<Option<f64>>,
}

#[derive(Deserialize)]
struct Steps {
    start: Vec<f64>,
    gradients: Vec<Vec<f64>>,
    end: Vec<f64>,
    norm: f64,
}

#[derive(Deserialize)]
struct Case {
    op: String,
    dtype: DType,
    arguments: Arguments,
    inputs: Vec<Values>,
    gradient: Vec<f64>,
    output: Values,
    gradients: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
struct Values {
    shape: Vec<usize>,
    values: Vec<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    dims: Vec<usize>,
    dim: usize,
    eps: f64,
    indices: Vec<i64>,
    targets: Vec<i64>,
    angles: Vec<f64>,
    causal: bool,
    window: Option<usize>,
    cap: Option<f64>,
    offset: i64,
}

fn tensor(values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    from_slice(values, shape).unwrap().cast(dtype).unwrap()
}

fn run(case: &Case, x: &[Tensor]) -> Result<Tensor, TensorError> {
    let Arguments { dims, dim, eps, indices, targets, angles, causal, window, cap, offset } = &case.arguments;
    let (dim, counted) = (*dim, |flat: &[i64]| from_slice(flat, &[flat.len()]));
    let picks = || from_slice(indices, &[2, 3]);
    let mask = || {
        let bools: Vec<bool> = indices.iter().map(|&flag| flag != 0).collect();
        from_bools(&bools, &[2, bools.len() / 2])
    };
    let ignoring = CrossEntropy { ignore_index: Some(-100), ..CrossEntropy::default() };
    let rope = |style| {
        let (positions, width) = (case.inputs[0].shape[1], case.inputs[0].shape[2]);
        let angles = from_slice(angles, &[positions, width / 2])?;
        x[0].rope(&angles.cos()?, &angles.sin()?, style)
    };
    match case.op.as_str() {
        "neg" => x[0].neg(),
        "exp" => x[0].exp(),
        "log" => x[0].log(),
        "sqrt" => x[0].sqrt(),
        "rsqrt" => x[0].rsqrt(),
        "abs" => x[0].abs(),
        "relu" => x[0].relu(),
        "sigmoid" => x[0].sigmoid(),
        "tanh" => x[0].tanh(),
        "silu" => x[0].silu(),
        "gelu" => x[0].gelu(),
        "gelu_tanh" => x[0].gelu_tanh(),
        "add" => x[0].add(&x[1]),
        "sub" => x[0].sub(&x[1]),
        "mul" => x[0].mul(&x[1]),
        "div" => x[0].div(&x[1]),
        "matmul" => x[0].matmul(&x[1]),
        "sum" => x[0].sum(dims),
        "mean" => x[0].mean(dims),
        "cos" => x[0].cos(),
        "sin" => x[0].sin(),
        "clamp" => x[0].clamp(-0.5, 0.75),
        "powf" => x[0].powf(1.7),
        // There and back, so that the result is compared in the case's dtype.
        "cast" => x[0].cast(DType::F64)?.cast(case.dtype),
        "pow" => x[0].pow(&x[1]),
        "geglu" => x[0].geglu(&x[1]),
        "geglu_tanh" => x[0].geglu_tanh(&x[1]),
        "linear" => x[0].linear(&x[1], Some(&x[2]), Some(&x[3])),
        "grouped_matmul" => {
            x[0].grouped_matmul(&x[1], &indices.iter().map(|&rows| rows as usize).collect::<Vec<_>>())
        }
        "max" => x[0].max(dims),
        "min" => x[0].min(dims),
        "prod" => x[0].prod(dims),
        "norm" => x[0].norm(dims),
        "logsumexp" => x[0].logsumexp(dims),
        "cat" => Tensor::cat(&[&x[0], &x[1]], dim),
        "stack" => Tensor::stack(&[&x[0], &x[1]], dim),
        "split" => Ok(x[0].split(&[2, 3], 1)?.remove(1)),
        "pad" => x[0].pad(1, 1, 2, 0.5),
        "repeat" => x[0].repeat(&[2, 1, 3]),
        "cumsum" => x[0].cumsum(dim),
        "topk" => Ok(x[0].topk(3, dim)?.0),
        "sort" => Ok(x[0].sort(dim, Order::Ascending)?.0),
        "index_select" => x[0].index_select(dim, &counted(indices)?),
        "gather" => x[0].gather(dim, &picks()?),
        "scatter" => x[0].scatter(dim, &picks()?, &x[1]),
        "scatter_add" => x[0].scatter_add(dim, &picks()?, &x[1]),
        "tril" => x[0].tril(*offset),
        "triu" => x[0].triu(*offset),
        "select" => mask()?.select(&x[0], &x[1]),
        "masked_fill" => x[0].masked_fill(&mask()?, -2.0),
        "smooth_cross_entropy" => {
            x[0].cross_entropy(&counted(targets)?, CrossEntropy { label_smoothing: 0.2, ..ignoring })
        }
        "projected_cross_entropy" => x[0].projected_cross_entropy(&x[1], &counted(targets)?, ignoring),
        "softmax" => x[0].softmax(dim),
        "log_softmax" => x[0].log_softmax(dim),
        "rms_norm" => x[0].rms_norm(&x[1], *eps),
        "layer_norm" => x[0].layer_norm(&x[1], &x[2], *eps),
        "swiglu" => x[0].swiglu(&x[1]),
        "rope_half" => rope(RopeStyle::Half),
        "rope_interleaved" => rope(RopeStyle::Interleaved),
        "attention" => {
            let options =
                Attention { causal: *causal, window: *window, soft_cap: *cap, ..Attention::default() };
            if indices.is_empty() {
                x[0].attention(&x[1], &x[2], options)
            } else {
                x[0].masked_attention(&x[1], &x[2], &mask()?, options)
            }
        }
        "embedding" => x[0].embedding(&counted(indices)?),
        "cross_entropy" => x[0].cross_entropy(&counted(targets)?, ignoring),
        op => panic!("the record has `{op}`, which this test does not know"),
    }
}

/// How far results may be from torch's: some units in the last place of what is
/// computed in, for sums of a few dozen terms of size 1; and half a unit of the
/// half types, whose results are rounded once (torch's are not). Gradients of
/// half types pass through one rounded intermediate more.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        DType::Bf16 => 2f64.powi(-7),
        _ => 2f64.powi(-10),
    }
}

fn compare(what: &str, found: &Tensor, expected: &[f64], scale: f64) {
    let tolerance = tolerance(found.dtype());
    let found = found.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let allowed = tolerance * expected.abs().max(scale);
        assert!(
            (found - expected).abs() <= allowed,
            "{what}, element {place}: {found}, torch has {expected}"
        );
    }
}

/// The same values with other strides: the last two dims exchanged in memory.
fn strided(x: &Tensor) -> Tensor {
    let ndim = x.shape().ndim();
    if ndim < 2 {
        return x.clone();
    }
    let turned = x.transpose(ndim - 2, ndim - 1).unwrap();
    // Adding zero makes a new contiguous tensor.
    let apart = turned.scale(1.0).unwrap();
    apart.transpose(ndim - 2, ndim - 1).unwrap()
}

#[test]
fn values_agree_with_torch() {
    let record: Record = serde_json::from_str(include_str!("torch/values.json")).unwrap();
    for (case, form) in record.cases.iter().flat_map(|case| [(case, "whole"), (case, "strided")]) {
        let what = format!("{} of {} {:?}, {form}", case.op, case.dtype, case.inputs[0].shape);
        let inputs: Vec<Tensor> = case
            .inputs
            .iter()
            .map(|x| tensor(&x.values, &x.shape, case.dtype))
            .map(|x| if form == "strided" { strided(&x) } else { x })
            .map(|x| x.requires_grad())
            .collect();
        let output = run(case, &inputs).unwrap();
        assert_eq!(&output.shape()[..], case.output.shape, "{what}");
        // Sums cancel, so small results are judged by the size of the terms.
        // A loss of half inputs is wider than what it was computed from.
        compare(&what, &output.cast(case.dtype).unwrap(), &case.output.values, 1.0);
        let given = tensor(&case.gradient, &case.output.shape, case.dtype).cast(output.dtype()).unwrap();
        let given = if form == "strided" { strided(&given) } else { given };
        let gradients = backward([(output, Some(given))]).unwrap();
        for (which, (input, expected)) in inputs.iter().zip(&case.gradients).enumerate() {
            let found = gradients.of(input).unwrap_or_else(|| panic!("{what}: no gradient of input {which}"));
            compare(&format!("{what}, gradient of input {which}"), found, expected, 2.0);
        }
    }
    assert!(record.cases.len() > 200, "{}", record.cases.len());
}

#[test]
fn adamw_and_the_global_norm_agree_with_torch() {
    let record: Record = serde_json::from_str(include_str!("torch/values.json")).unwrap();
    let Steps { start, gradients, end, norm } = record.adamw;
    let options = AdamW {
        learning_rate: 0.02,
        beta1: 0.8,
        beta2: 0.95,
        eps: 1e-6,
        weight_decay: 0.1,
        gradient_scale: 1.0,
    };
    for dtype in [DType::F64, DType::F32] {
        let mut parameter = tensor(&start, &[start.len()], dtype);
        let mut moments = Moments::zero(&parameter).unwrap();
        let steps: Vec<Tensor> = gradients.iter().map(|g| tensor(g, &[g.len()], dtype)).collect();
        for (number, gradient) in steps.iter().enumerate() {
            options.step(number as u64 + 1, &mut parameter, gradient, &mut moments).unwrap();
        }
        compare("adamw", &parameter, &end, 1.0);
        let found = global_norm(&steps.iter().collect::<Vec<_>>()).unwrap();
        assert!((found - norm).abs() < tolerance(dtype) * norm, "{found} {norm}");
    }
}

#[test]
fn eight_bit_floats_agree_with_torch() {
    let record: Record = serde_json::from_str(include_str!("torch/values.json")).unwrap();
    assert_eq!(record.float8.len(), 2);
    let same = |found: f64, expected: Option<f64>| match expected {
        None => found.is_nan(),
        Some(expected) if expected.abs() == 1e30 => {
            found.is_infinite() && found.signum() == expected.signum()
        }
        Some(expected) => found == expected,
    };
    for (dtype, eight) in record.float8 {
        let rounded = from_slice(&eight.near, &[eight.near.len()]).unwrap().cast(dtype).unwrap();
        let rounded = rounded.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
        for ((near, found), expected) in eight.near.iter().zip(rounded).zip(eight.rounded) {
            assert!(same(found, expected), "{near} becomes {dtype} {found}, in torch {expected:?}");
        }
        // Every code, by way of the number that torch has for it.
        for expected in eight.codes.into_iter().flatten().filter(|code| code.abs() < 1e30) {
            let there = scalar(expected).unwrap().cast(dtype).unwrap();
            assert_eq!(there.cast(DType::F64).unwrap().item::<f64>().unwrap(), expected);
        }
    }
}

/// All of the above at every SIMD level of this CPU, each in another process.
#[test]
fn values_agree_at_every_level() {
    let levels = [("scalar", Level::Scalar), ("avx2", Level::Avx2), ("avx512", Level::Avx512)];
    for (name, level) in levels.into_iter().filter(|(_, level)| *level <= Level::highest()) {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "torch_values::values_agree_with_torch",
                "torch_values::adamw_and_the_global_norm_agree_with_torch",
            ])
            .env("WEIGHTLOOM_VECTORS", name)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && text.contains("2 passed"), "{level:?}: {text}");
    }
}

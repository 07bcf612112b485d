//! Forward and backward values of real PyTorch.
//!
//! `torch/make_values.py` wrote the record.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use serde::Deserialize;
use shardloom_layout::DType;
use shardloom_tensor::{
    AdamW, Attention, CrossEntropy, Moments, RopeStyle, Tensor, TensorError, backward, global_norm,
};

#[derive(Deserialize)]
struct Record {
    cases: Vec<Case>,
    adamw: Steps,
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
}

fn tensor(values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    Tensor::from_slice(values, shape).unwrap().cast(dtype).unwrap()
}

fn run(case: &Case, x: &[Tensor]) -> Result<Tensor, TensorError> {
    let Arguments { dims, dim, eps, indices, targets, angles, causal } = &case.arguments;
    let rope = |style| {
        let (positions, width) = (case.inputs[0].shape[1], case.inputs[0].shape[2]);
        let angles = Tensor::from_slice(angles, &[positions, width / 2])?;
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
        "softmax" => x[0].softmax(*dim),
        "log_softmax" => x[0].log_softmax(*dim),
        "rms_norm" => x[0].rms_norm(&x[1], *eps),
        "layer_norm" => x[0].layer_norm(&x[1], &x[2], *eps),
        "swiglu" => x[0].swiglu(&x[1]),
        "rope_half" => rope(RopeStyle::Half),
        "rope_interleaved" => rope(RopeStyle::Interleaved),
        "attention" => x[0].attention(&x[1], &x[2], Attention { causal: *causal, ..Attention::default() }),
        "embedding" => x[0].embedding(&Tensor::from_slice(indices, &[indices.len()])?),
        "cross_entropy" => {
            let options = CrossEntropy { ignore_index: Some(-100), ..CrossEntropy::default() };
            x[0].cross_entropy(&Tensor::from_slice(targets, &[targets.len()])?, options)
        }
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

#[test]
fn values_agree_with_torch() {
    let record: Record = serde_json::from_str(include_str!("torch/values.json")).unwrap();
    for case in &record.cases {
        let what = format!("{} of {} {:?}", case.op, case.dtype, case.inputs[0].shape);
        let inputs: Vec<Tensor> =
            case.inputs.iter().map(|x| tensor(&x.values, &x.shape, case.dtype).requires_grad()).collect();
        let output = run(case, &inputs).unwrap();
        assert_eq!(&output.shape()[..], case.output.shape, "{what}");
        // Sums cancel, so small results are judged by the size of the terms.
        compare(&what, &output, &case.output.values, 1.0);
        let given = tensor(&case.gradient, &case.output.shape, case.dtype);
        let gradients = backward(&[(output, Some(given))]).unwrap();
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
    let options = AdamW { learning_rate: 0.02, beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.1 };
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

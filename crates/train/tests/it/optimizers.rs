//! Optimizers compared with PyTorch's, step by step.

use std::collections::BTreeMap;

use serde::Deserialize;
use weightloom_layout::DType;
use weightloom_tensor::{Tensor, global_norm};
use weightloom_train::config::{OptimizerConfig, OptimizerKind};
use weightloom_train::optimizer::{StepInfo, from_config, initial_states};
use weightloom_train::spec::clip_factor;

#[derive(Deserialize)]
struct Record {
    torch: String,
    rates: Vec<f64>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    kind: OptimizerKind,
    dtype: String,
    weight_decay: f64,
    max_grad_norm: f64,
    momentum: f64,
    betas: [f64; 2],
    eps: f64,
    start: Vec<f64>,
    gradients: Vec<Vec<f64>>,
    norms: Vec<f64>,
    end: Vec<f64>,
    states: BTreeMap<String, Vec<f64>>,
}

fn near(what: &str, found: &Tensor, expected: &[f64], tolerance: f64) {
    let found = found.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance * (1.0 + expected.abs()), "{what}: {found} {expected}");
    }
}

#[test]
fn weights_and_states_are_those_of_torch() {
    let record: Record = serde_json::from_str(include_str!("../fixtures/optimizers.json")).unwrap();
    assert!(record.torch.starts_with("2.15"), "{}", record.torch);
    assert_eq!(record.cases.len(), 32);
    for (number, case) in record.cases.iter().enumerate() {
        let what = format!("case {number}, {:?} {}", case.kind, case.dtype);
        // Five steps of a few roundings each.
        let (dtype, tolerance) = if case.dtype == "f64" { (DType::F64, 4e-15) } else { (DType::F32, 2e-6) };
        let optimizer = from_config(&OptimizerConfig {
            kind: case.kind.clone(),
            betas: case.betas,
            eps: case.eps,
            momentum: case.momentum,
            ..OptimizerConfig::default()
        })
        .unwrap();
        let tensor = |x: &[f64]| Tensor::from_slice(x, &[x.len()]).unwrap().cast(dtype).unwrap();
        let mut weight = tensor(&case.start);
        let mut states = initial_states(optimizer.as_ref(), &weight).unwrap();
        let steps = record.rates.iter().zip(&case.gradients).zip(&case.norms);
        for (number, ((rate, gradient), norm)) in (1..).zip(steps) {
            let gradient = tensor(gradient);
            let mut gradient_scale = 1.0;
            if case.max_grad_norm > 0.0 {
                let found = global_norm(&[&gradient]).unwrap();
                assert!((found - norm).abs() < tolerance * (1.0 + norm), "{what}: norm {found} {norm}");
                gradient_scale = clip_factor(found, case.max_grad_norm);
                assert!(gradient_scale < 1.0, "{what}: nothing is clipped");
            }
            let step =
                StepInfo { number, learning_rate: *rate, weight_decay: case.weight_decay, gradient_scale };
            optimizer.step(&step, &mut weight, &gradient, &mut states).unwrap();
        }
        near(&what, &weight, &case.end, tolerance);
        assert_eq!(states.len(), case.states.len());
        for (name, state) in optimizer.states().iter().zip(&states) {
            near(&format!("{what}, {name}"), state, &case.states[*name], tolerance);
        }
    }
}

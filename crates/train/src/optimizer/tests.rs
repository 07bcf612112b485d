//! Tests of the optimizers.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use proptest::prelude::*;
use weightloom_errors::Hint as _;
use weightloom_layout::DType;
use weightloom_tensor::{Device, counted};

use super::*;

fn zeros(count: usize) -> Tensor {
    Tensor::zeros(DType::F32, &[count], Device::Cpu).unwrap()
}

fn step() -> StepInfo {
    StepInfo { number: 1, learning_rate: 0.1, weight_decay: 0.0, gradient_scale: 1.0 }
}

#[test]
fn config_selects_the_optimizer_and_its_states() {
    let adamw = from_config(&OptimizerConfig::default()).unwrap();
    assert_eq!((adamw.name(), adamw.states()), ("adamw", &["exp_avg", "exp_avg_sq"][..]));
    let sgd = OptimizerConfig { kind: OptimizerKind::Sgd, ..OptimizerConfig::default() };
    let heavy = from_config(&sgd).unwrap();
    assert_eq!((heavy.name(), heavy.states()), ("sgd", &["momentum_buffer"][..]));
    let plain = from_config(&OptimizerConfig { momentum: 0.0, ..sgd }).unwrap();
    assert_eq!((plain.name(), plain.states().len()), ("sgd", 0));
    let states = initial_states(adamw.as_ref(), &zeros(3)).unwrap();
    assert_eq!(states.iter().map(|x| x.to_vec::<f32>().unwrap()).collect::<Vec<_>>(), [[0.0; 3]; 2]);
}

#[test]
fn a_wrong_number_of_states_is_an_error() {
    for (config, expected) in [(OptimizerKind::Adamw, 2), (OptimizerKind::Sgd, 1)] {
        let config = OptimizerConfig { kind: config, ..OptimizerConfig::default() };
        let optimizer = from_config(&config).unwrap();
        for found in (0..4).filter(|found| *found != expected) {
            let mut states: Vec<Tensor> = (0..found).map(|_| zeros(2)).collect();
            let error = optimizer.step(&step(), &mut zeros(2), &zeros(2), &mut states).unwrap_err();
            let op = optimizer.name();
            assert_eq!(error, TensorError::StateCount { op, expected, found });
            assert_eq!(error.hint().unwrap(), "pass one tensor for each name in `states`");
        }
    }
    let plain = Sgd { momentum: 0.0 };
    let error = plain.step(&step(), &mut zeros(2), &zeros(2), &mut [zeros(2)]).unwrap_err();
    assert_eq!(error.to_string(), "sgd keeps 0 tensors for each parameter, but 1 were given");
}

#[test]
fn gradients_of_another_shape_or_dtype_are_rejected() {
    let optimizer = Sgd { momentum: 0.9 };
    let error = optimizer.step(&step(), &mut zeros(2), &zeros(3), &mut [zeros(2)]).unwrap_err();
    assert!(matches!(error, TensorError::Shapes { op: "sgd", .. }), "{error}");
    let error = optimizer.step(&step(), &mut zeros(2), &zeros(2), &mut [zeros(5)]).unwrap_err();
    assert!(matches!(error, TensorError::Shapes { op: "sgd", .. }), "{error}");
    let narrow = Tensor::zeros(DType::Bf16, &[2], Device::Cpu).unwrap();
    assert!(optimizer.step(&step(), &mut zeros(2), &narrow, &mut [zeros(2)]).is_ok());
    let other = Tensor::zeros(DType::F64, &[2], Device::Cpu).unwrap();
    let error = optimizer.step(&step(), &mut zeros(2), &other, &mut [zeros(2)]).unwrap_err();
    assert!(matches!(error, TensorError::DTypes { op: "sgd", .. }), "{error}");
    let whole = || Tensor::zeros(DType::I64, &[2], Device::Cpu).unwrap();
    let error = optimizer.step(&step(), &mut whole(), &whole(), &mut [whole()]).unwrap_err();
    assert!(matches!(error, TensorError::DType { op: "sgd", dtype: DType::I64 }), "{error}");
}

#[test]
fn steps_update_in_place_and_keep_requires_grad() {
    for kind in [OptimizerKind::Adamw, OptimizerKind::Sgd] {
        let optimizer = from_config(&OptimizerConfig { kind, ..OptimizerConfig::default() }).unwrap();
        let mut parameter = Tensor::full(1.0, DType::F32, &[5], Device::Cpu).unwrap().requires_grad();
        let mut states = initial_states(optimizer.as_ref(), &parameter).unwrap();
        let gradient = Tensor::full(0.5, DType::F32, &[5], Device::Cpu).unwrap();
        let address = |x: &Tensor| x.read_host(|bytes| bytes.as_ptr().addr()).unwrap();
        let before: Vec<usize> = states.iter().chain([&parameter]).map(address).collect();
        for number in 1..4 {
            optimizer.step(&StepInfo { number, ..step() }, &mut parameter, &gradient, &mut states).unwrap();
        }
        assert_eq!(states.iter().chain([&parameter]).map(address).collect::<Vec<_>>(), before);
        assert!(parameter.is_parameter());
        assert!(parameter.to_vec::<f32>().unwrap().iter().all(|x| *x < 1.0));
    }
}

#[test]
fn gradient_scale_equals_scaling_the_gradient_bit_for_bit() {
    let x: Vec<f32> = (0..97).map(|i| (i as f32 * 0.37).sin()).collect();
    let gradient = Tensor::from_slice(&x, &[97]).unwrap();
    for kind in [OptimizerKind::Adamw, OptimizerKind::Sgd] {
        let optimizer = from_config(&OptimizerConfig { kind, ..OptimizerConfig::default() }).unwrap();
        let after = |gradient: &Tensor, gradient_scale| {
            let mut parameter = Tensor::full(1.0, DType::F32, &[97], Device::Cpu).unwrap();
            let mut states = initial_states(optimizer.as_ref(), &parameter).unwrap();
            let step = StepInfo { gradient_scale, weight_decay: 0.1, ..step() };
            optimizer.step(&step, &mut parameter, gradient, &mut states).unwrap();
            parameter.to_vec::<f32>().unwrap()
        };
        assert_eq!(after(&gradient, 0.3), after(&gradient.scale(0.3).unwrap(), 1.0));
        assert_ne!(after(&gradient, 0.3), after(&gradient, 1.0));
    }
}

#[test]
fn a_step_on_meta_tensors_counts_its_cost() {
    let meta = || Tensor::zeros(DType::F32, &[1000], Device::Meta).unwrap();
    let (done, costs) = counted(|| {
        Sgd { momentum: 0.9 }.step(&step(), &mut meta(), &meta(), &mut [meta()])?;
        Sgd { momentum: 0.0 }.step(&step(), &mut meta(), &meta(), &mut [])
    });
    done.unwrap();
    // Reads gradient, parameter and buffer, writes parameter and buffer;
    // without momentum there is no buffer.
    let sgd = costs.by_kernel().find(|(kernel, _)| *kernel == "sgd").unwrap().1;
    assert_eq!((sgd.launches, sgd.bytes), (2, 4000 * (5 + 3)));
}

#[test]
fn clones_of_the_parameter_keep_the_old_values() {
    let mut parameter = Tensor::full(1.0, DType::F32, &[5], Device::Cpu).unwrap();
    let held = parameter.clone();
    let gradient = Tensor::full(0.5, DType::F32, &[5], Device::Cpu).unwrap();
    Sgd { momentum: 0.0 }.step(&step(), &mut parameter, &gradient, &mut []).unwrap();
    assert_eq!(held.to_vec::<f32>().unwrap(), [1.0; 5]);
    assert_eq!(parameter.to_vec::<f32>().unwrap(), [0.95; 5]);
}

proptest! {
    /// Scalar reference in f64, written from the papers.
    #[test]
    fn steps_match_the_formulas(
        start in -2.0..2.0f64,
        gradients in prop::collection::vec(-3.0..3.0f64, 1..8),
        lr in 0.0..0.2f64,
        decay in 0.0..0.5f64,
        scale in 0.1..1.0f64,
        momentum in 0.0..0.99f64,
        betas in [0.0..0.99f64, 0.5..0.999f64],
    ) {
        let adamw = AdamW { betas, eps: 1e-8 };
        let sgd = Sgd { momentum };
        let (mut p, mut mean, mut square) = (start, 0.0, 0.0);
        let (mut q, mut sum) = (start, 0.0);
        let scalar = |x: f64| Tensor::scalar(x).unwrap();
        let (mut of_adamw, mut of_sgd) = (scalar(start), scalar(start));
        let mut adamw_states = initial_states(&adamw, &of_adamw).unwrap();
        let mut sgd_states = initial_states(&sgd, &of_sgd).unwrap();
        for (number, gradient) in (1..).zip(&gradients) {
            let g = gradient * scale;
            mean = betas[0] * mean + (1.0 - betas[0]) * g;
            square = betas[1] * square + (1.0 - betas[1]) * g * g;
            let corrected = mean / (1.0 - betas[0].powi(number));
            let root = (square / (1.0 - betas[1].powi(number))).sqrt();
            p = p - lr * decay * p - lr * corrected / (root + 1e-8);
            sum = momentum * sum + g + decay * q;
            q -= lr * sum;

            let info = StepInfo {
                number: number as u64, learning_rate: lr, weight_decay: decay, gradient_scale: scale,
            };
            adamw.step(&info, &mut of_adamw, &scalar(*gradient), &mut adamw_states).unwrap();
            sgd.step(&info, &mut of_sgd, &scalar(*gradient), &mut sgd_states).unwrap();
            // Only the order of operations differs. AdamW divides by a root
            // that can be close to zero, so its tolerance is larger.
            prop_assert!((of_adamw.item::<f64>().unwrap() - p).abs() < 1e-9);
            prop_assert!((of_sgd.item::<f64>().unwrap() - q).abs() < 1e-12 * (1.0 + q.abs() + sum.abs()));
        }
    }
}

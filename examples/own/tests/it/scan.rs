//! The scan: its gradient, and its sharding rule.

use own::scan::{Scan, ScanRule};
use weightloom::dtensor::check::check_function;
use weightloom::dtensor::{DistContext, DistOptions, Registry};
use weightloom::gang::{GangOptions, threads};
use weightloom::layout::DType;
use weightloom::tensor::{Stream, Tensor, apply, backward};

const DIMS: [usize; 3] = [3, 5, 4];

fn normal(number: u64) -> Tensor {
    Tensor::normal(DType::F64, &DIMS, Stream { seed: 3, number }, 0).unwrap()
}

/// Decays, values, and the weights of the states in the loss.
fn operands() -> [Tensor; 3] {
    [normal(1).sigmoid().unwrap(), normal(2), normal(3)]
}

fn states(decay: &Tensor, value: &Tensor) -> Tensor {
    apply(Scan, &[decay.clone(), value.clone()]).unwrap().remove(0)
}

#[test]
fn states_decay_and_take_in_values() {
    let tensor = |values: &[f64]| Tensor::from_slice(values, &[1, 3, 1]).unwrap();
    let found = states(&tensor(&[9.0, 0.5, 0.25]), &tensor(&[1.0, 2.0, 4.0]));
    assert_eq!(found.to_vec::<f64>().unwrap(), [1.0, 2.5, 4.625]);
}

#[test]
fn its_gradient_is_that_of_finite_differences() {
    let [decay, value, weights] = operands();
    let loss = |decay: &Tensor, value: &Tensor| -> f64 {
        states(decay, value).mul(&weights).unwrap().sum_all().unwrap().item().unwrap()
    };
    let differences = |at: &Tensor, loss: &dyn Fn(&Tensor) -> f64| -> Vec<f64> {
        let (all, step) = (at.to_vec::<f64>().unwrap(), 1e-6);
        let moved = |place: usize, by: f64| {
            let mut all = all.clone();
            all[place] += by;
            loss(&Tensor::from_slice(&all, &DIMS).unwrap())
        };
        (0..all.len()).map(|place| (moved(place, step) - moved(place, -step)) / (2.0 * step)).collect()
    };
    let expected = [
        differences(&decay, &|decay| loss(decay, &value)),
        differences(&value, &|value| loss(&decay, value)),
    ];
    let (decay, value) = (decay.requires_grad(), value.requires_grad());
    let total = states(&decay, &value).mul(&weights).unwrap().sum_all().unwrap();
    let gradients = backward([(total, None)]).unwrap();
    for (operand, expected) in [&decay, &value].into_iter().zip(expected) {
        let found = gradients.of(operand).unwrap().to_vec::<f64>().unwrap();
        for (found, expected) in found.iter().zip(expected) {
            // Central differences with steps of 1e-6 round at 1e-10 of a loss of about 10.
            assert!((found - expected).abs() < 1e-8, "{found} {expected}");
        }
    }
}

/// Every layout of both operands, uneven and empty shards and pending sums included.
#[test]
fn its_rule_is_right_for_every_layout() {
    let [decay, value, _] = operands();
    for ranks in [2, 4] {
        let checked = threads::run(ranks, GangOptions::default(), |gang| {
            let registry = Registry::built_in().with(ScanRule).unwrap();
            let dist = DistContext::with_options(gang, DistOptions { registry, ..DistOptions::default() });
            check_function(&dist, &Scan, &[decay.clone(), value.clone()])
        });
        assert_eq!(checked.unwrap()[0], Ok(25));
    }
}

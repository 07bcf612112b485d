//! The tape, and the errors around it.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::sync::{Arc, Mutex};

use half::bf16;
use shardloom_layout::{DType, Hint, Shape};
use shardloom_tensor::{Context, Device, Function, Tensor, TensorError, apply, backward, no_grad};

fn ones(dims: &[usize]) -> Tensor {
    Tensor::from_slice(&vec![1.0f64; dims.iter().product()], dims).unwrap()
}

/// Sum and difference of two tensors, and a note of what backward was given.
struct SumAndDifference {
    seen: Arc<Mutex<Vec<Vec<bool>>>>,
}

impl Function for SumAndDifference {
    fn name(&self) -> &'static str {
        "sum_and_difference"
    }

    fn forward(&self, _: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![x[0].add(&x[1])?, x[0].sub(&x[1])?])
    }

    fn backward(&self, _: Context, g: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>, TensorError> {
        self.seen.lock().unwrap().push(g.iter().map(Option::is_some).collect());
        let zero = ones(&[2]).scale(0.0)?;
        let (sum, difference) = (g[0].as_ref().unwrap_or(&zero), g[1].as_ref().unwrap_or(&zero));
        Ok(vec![Some(sum.add(difference)?), Some(sum.sub(difference)?)])
    }
}

#[test]
fn functions_have_any_number_of_outputs() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (a, b) = (ones(&[2]).requires_grad(), ones(&[2]).requires_grad());
    let outputs = apply(SumAndDifference { seen: Arc::clone(&seen) }, &[a.clone(), b.clone()]).unwrap();
    // Only the second output is used, with a given gradient.
    let given = Tensor::from_slice(&[3.0, 5.0], &[2]).unwrap();
    let gradients = backward(&[(outputs[1].clone(), Some(given))]).unwrap();
    assert_eq!(gradients.of(&a).unwrap().to_vec::<f64>().unwrap(), [3.0, 5.0]);
    assert_eq!(gradients.of(&b).unwrap().to_vec::<f64>().unwrap(), [-3.0, -5.0]);
    assert_eq!(*seen.lock().unwrap(), [[false, true]]);
}

#[test]
fn backward_starts_from_several_outputs() {
    let x = ones(&[2]).requires_grad();
    let (a, b) = (x.scale(2.0).unwrap(), x.mul(&x).unwrap());
    let gradients = backward(&[(a, None), (b, None)]).unwrap();
    assert_eq!(gradients.of(&x).unwrap().to_vec::<f64>().unwrap(), [4.0, 4.0]);
}

#[test]
fn a_missing_rule_is_an_error() {
    struct Round;
    impl Function for Round {
        fn name(&self) -> &'static str {
            "round"
        }
        fn forward(&self, _: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
            Ok(vec![x[0].clone()])
        }
    }
    let x = ones(&[2]).requires_grad();
    let y = apply(Round, std::slice::from_ref(&x)).unwrap().remove(0);
    let error = backward(&[(y, None)]).unwrap_err();
    assert_eq!(error.to_string(), "round has no backward rule, but its result is differentiated");
    assert_eq!(error.hint().unwrap(), "detach its inputs, or give it a backward rule");
    assert!(apply(Round, &[x.detach()]).is_ok());
    let integers = x.cast(DType::I64).unwrap().cast(DType::F64).unwrap();
    assert!(matches!(
        backward(&[(integers, None)]),
        Err(TensorError::NotDifferentiable { function: "cast" })
    ));
}

#[test]
fn a_rule_that_does_not_do_its_part_is_an_error() {
    struct Short;
    impl Function for Short {
        fn name(&self) -> &'static str {
            "short"
        }
        fn forward(&self, _: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
            Ok(vec![x[0].clone()])
        }
        fn backward(&self, _: Context, g: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>, TensorError> {
            Ok(vec![g[0].clone(), None])
        }
    }
    let x = ones(&[2]).requires_grad();
    let y = apply(Short, &[x]).unwrap().remove(0);
    let error = backward(&[(y, None)]).unwrap_err();
    assert_eq!(error.to_string(), "short returned 2 gradients for 1 inputs");
}

#[test]
fn a_tape_is_used_once() {
    let x = ones(&[2]).requires_grad();
    let y = x.exp().unwrap();
    backward(&[(y.clone(), None)]).unwrap();
    assert!(matches!(backward(&[(y, None)]), Err(TensorError::Consumed { function: "exp" })));
}

#[test]
fn nothing_is_noted_where_no_gradient_is_wanted() {
    let x = ones(&[2]).requires_grad();
    let y = no_grad(|| x.exp().unwrap());
    assert!(!y.tracks_gradient());
    assert!(!x.detach().exp().unwrap().tracks_gradient());
    assert!(matches!(backward(&[(y, None)]), Err(TensorError::NoGradient { .. })));
    let z = x.exp().unwrap();
    let wrong = ones(&[3]);
    assert!(matches!(backward(&[(z, Some(wrong))]), Err(TensorError::GradientShape { .. })));
}

#[test]
fn gradients_of_half_parameters_add_up_in_f32() {
    let x = Tensor::from_slice(&[bf16::from_f32(1.0)], &[1]).unwrap().requires_grad();
    // 256 + 1 is not a bf16.
    let outputs: Vec<_> = [256.0, 1.0].map(|factor| (x.scale(factor).unwrap(), None)).into();
    let gradients = backward(&outputs).unwrap();
    assert_eq!(gradients.of(&x).unwrap().to_vec::<f32>().unwrap(), [257.0]);
}

#[test]
fn a_meta_tensor_has_a_shape_and_no_data() {
    let x = Tensor::zeros(DType::F32, &[1 << 20, 1 << 20], Device::Meta).unwrap().requires_grad();
    let w = Tensor::zeros(DType::F32, &[1 << 20, 16], Device::Meta).unwrap();
    let y = x.matmul(&w).unwrap().silu().unwrap().sum(&[0]).unwrap();
    assert_eq!(y.shape(), &Shape::new(&[16]).unwrap());
    let error = y.to_vec::<f32>().unwrap_err();
    assert_eq!(error.to_string(), "to_vec: a meta tensor of shape 16 has no data");
    let cpu = Tensor::zeros(DType::F32, &[16, 2], Device::Cpu).unwrap();
    assert_eq!(x.matmul(&cpu).unwrap_err().to_string(), "matmul cannot combine tensors on meta and cpu");
}

#[test]
fn bad_operands_are_named() {
    let (a, b) = (ones(&[2, 3]), ones(&[2, 4]));
    let text = |result: Result<Tensor, TensorError>| result.unwrap_err().to_string();
    assert_eq!(text(a.add(&b)), "add cannot combine shapes 2x3 and 2x4");
    assert_eq!(text(a.matmul(&b)), "matmul cannot combine shapes 2x3 and 2x4");
    assert_eq!(text(a.add(&a.cast(DType::F32).unwrap())), "add cannot combine dtypes f64 and f32");
    assert_eq!(text(a.sum(&[2])), "sum: a tensor of shape 2x3 has no dim 2");
    assert_eq!(text(a.narrow(1, 2, 2)), "narrow: 2..4 is outside dim 1 of a tensor of shape 2x3");
    assert_eq!(text(a.narrow(1, usize::MAX, 2)).split(':').next(), Some("narrow"));
    assert_eq!(text(a.reshape(&Shape::new(&[5]).unwrap())), "reshape cannot combine shapes 2x3 and 5");
    assert_eq!(text(a.permute(&[0, 0])), "permute cannot combine shapes 2x3");
    let far = Tensor::from_slice(&[5i64], &[1]).unwrap();
    assert_eq!(text(a.embedding(&far)), "embedding: index 5 at position 0 is outside 0..2");
    let negative = Tensor::from_slice(&[-1i64, 0], &[2]).unwrap();
    assert!(a.cross_entropy(&negative, Default::default()).is_err());
    let whole = Tensor::from_slice(&[1i32], &[1]).unwrap();
    assert_eq!(text(whole.exp()), "exp does not take i32");
    assert_eq!(a.to_vec::<f32>().unwrap_err().to_string(), "a f64 tensor cannot be read as f32");
    assert!(Tensor::from_slice(&[1.0], &[2]).is_err());
    assert!(a.item::<f64>().is_err());
}

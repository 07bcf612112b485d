//! Users' functions: what they save and return, second passes, and what they do
//! wrong.

use weightloom_errors::Hint;
use weightloom_layout::DType;
use weightloom_tensor::{
    Context, DoubleGradients, Function, Stream, Tape, Tensor, TensorError, apply, backward, backward_with,
    recompute,
};

type Gradients = Result<Vec<Option<Tensor>>, TensorError>;

fn wave(dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count).map(|i| 0.3 + (i as f64 * 0.7).sin()).collect();
    Tensor::from_slice(&values, dims).unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    x.to_vec().unwrap()
}

/// The largest element, where it is, and the elements divided by it.
struct Normalized;

/// The place of the largest element, found in the data.
struct Largest(usize);

impl Function for Normalized {
    fn name(&self) -> &'static str {
        "normalized"
    }

    fn forward(&self, context: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let all = x[0].to_vec::<f64>()?;
        let place = (0..all.len()).max_by(|&a, &b| all[a].total_cmp(&all[b])).unwrap();
        context.save(&[&x[0]]);
        context.save_value("a value of another type");
        context.save_value(Largest(place));
        context.mark_non_differentiable(&[1]);
        let index = Tensor::scalar(place as i64)?;
        Ok(vec![x[0].scale(1.0 / all[place])?, index])
    }

    fn backward(&self, context: Context, g: Vec<Option<Tensor>>) -> Gradients {
        assert!(g[1].is_none(), "an index has no gradient");
        let Largest(place) = context.saved_value()?;
        let (x, g) = (context.saved()[0].to_vec::<f64>()?, g[0].as_ref().unwrap().to_vec::<f64>()?);
        let most = x[*place];
        let mut of_x: Vec<f64> = g.iter().map(|g| g / most).collect();
        of_x[*place] -= x.iter().zip(&g).map(|(x, g)| x * g).sum::<f64>() / (most * most);
        Ok(vec![Some(Tensor::from_slice(&of_x, &[of_x.len()])?)])
    }
}

#[test]
fn values_that_are_not_tensors_are_saved() {
    let x = wave(&[5]).requires_grad();
    let weights = wave(&[5]).scale(0.4).unwrap();
    let y = apply(Normalized, std::slice::from_ref(&x)).unwrap();
    let gradients = backward([(y[0].clone(), Some(weights.clone()))]).unwrap();
    let loss = |x: &Tensor| -> f64 {
        let y = apply(Normalized, std::slice::from_ref(x)).unwrap();
        y[0].mul(&weights).unwrap().sum_all().unwrap().item().unwrap()
    };
    for (place, found) in values(gradients.of(&x).unwrap()).iter().enumerate() {
        let step = 1e-6;
        let moved = |by: f64| {
            let mut all = values(&x.detach());
            all[place] += by;
            loss(&Tensor::from_slice(&all, &[5]).unwrap())
        };
        let expected = (moved(step) - moved(-step)) / (2.0 * step);
        // Central differences of an f64 function are good to about 1e-9.
        assert!((found - expected).abs() < 1e-7, "{place}: {found} {expected}");
    }
}

#[test]
fn a_value_that_was_not_saved_is_named() {
    struct Forgetful;
    impl Function for Forgetful {
        fn name(&self) -> &'static str {
            "forgetful"
        }
        fn forward(&self, _: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
            Ok(vec![x[0].detach()])
        }
        fn backward(&self, context: Context, _: Vec<Option<Tensor>>) -> Gradients {
            context.saved_value::<u32>().map(|_| vec![None])
        }
    }
    let y = apply(Forgetful, &[wave(&[2]).requires_grad()]).unwrap().remove(0);
    let error = backward([(y, None)]).unwrap_err();
    assert_eq!(error.to_string(), "no value of type `u32` was saved for backward");
    assert_eq!(error.hint().unwrap(), "save it in `forward` with `Context::save_value`");
}

#[test]
fn an_output_without_a_gradient_is_a_constant() {
    let x = wave(&[5]).requires_grad();
    let y = apply(Normalized, &[x]).unwrap();
    assert!(y[0].tracks_gradient() && !y[1].tracks_gradient());
    let as_number = y[1].cast(DType::F64).unwrap();
    let error = backward([(as_number.clone(), None)]).unwrap_err();
    assert!(matches!(error, TensorError::NoGradient { .. }), "{error}");
    // Beside a differentiable output it is a factor like any other.
    assert!(backward([(y[0].mul(&as_number).unwrap(), None)]).is_ok());
}

#[test]
fn an_output_that_does_not_exist_cannot_be_marked() {
    struct Marking;
    impl Function for Marking {
        fn name(&self) -> &'static str {
            "marking"
        }
        fn forward(&self, context: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
            context.mark_non_differentiable(&[1]);
            Ok(vec![x[0].detach()])
        }
    }
    let error = apply(Marking, &[wave(&[2]).requires_grad()]).unwrap_err();
    assert_eq!(error.to_string(), "marking marks output 1 as non-differentiable, but has 1 outputs");
}

/// Second passes over rules that overwrite their memory, results that are computed
/// again and regions that are run again give the same bits.
#[test]
fn a_retained_tape_is_differentiated_again() {
    let x = wave(&[3, 4]).requires_grad();
    let targets = Tensor::from_slice(&[1i64, 0, 3], &[3]).unwrap();
    let stream = Stream { seed: 2, number: 5 };
    let hidden = x.exp().unwrap().mul(&x.tanh().unwrap()).unwrap();
    let hidden =
        recompute(&[hidden], move |x| Ok(vec![x[0].gelu()?.dropout(0.3, stream, 0)?])).unwrap().remove(0);
    let loss = hidden.softmax(1).unwrap().cross_entropy(&targets, Default::default()).unwrap();
    let bits = |tape: Tape| {
        let gradients = backward_with([(loss.clone(), None)], tape)?;
        Ok::<_, TensorError>(
            values(gradients.of(&x).unwrap()).iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        )
    };
    let first = bits(Tape::Retain).unwrap();
    assert!(first.iter().any(|&bits| bits != 0));
    assert_eq!(bits(Tape::Retain).unwrap(), first);
    assert_eq!(bits(Tape::Free).unwrap(), first);
    let error = bits(Tape::Free).unwrap_err();
    assert!(matches!(error, TensorError::Consumed { function: "cross_entropy" }), "{error}");
    assert!(error.hint().unwrap().contains("Tape::Retain"));
}

/// `x³`, with a second-order rule.
struct Cube;

impl Function for Cube {
    fn name(&self) -> &'static str {
        "cube"
    }

    fn forward(&self, context: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        context.save(&[&x[0]]);
        Ok(vec![x[0].powf(3.0)?])
    }

    fn backward(&self, context: Context, g: Vec<Option<Tensor>>) -> Gradients {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(context.saved()[0].powf(2.0)?.scale(3.0)?.mul(g)?)])
    }

    fn double_backward(
        &self,
        context: Context,
        of_outputs: Vec<Option<Tensor>>,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<DoubleGradients, TensorError> {
        let (Some(of_y), Some(g)) = (&of_outputs[0], &gradients[0]) else {
            return Ok(DoubleGradients { of_outputs: vec![None], of_inputs: vec![None] });
        };
        let x = &context.saved()[0];
        let of_of_y = x.powf(2.0)?.scale(3.0)?.mul(g)?;
        let of_x = x.scale(6.0)?.mul(of_y)?.mul(g)?;
        Ok(DoubleGradients { of_outputs: vec![Some(of_of_y)], of_inputs: vec![Some(of_x)] })
    }
}

fn cube(x: &Tensor) -> Tensor {
    apply(Cube, std::slice::from_ref(x)).unwrap().remove(0)
}

/// The gradient of `Σ (d/dx Σ w·(cube(cube(x)) + cube(x)))²`: through a function
/// that was applied twice, sums of gradients, and linear functions around it.
#[test]
fn a_gradient_of_a_gradient_is_that_of_finite_differences() {
    let weights = wave(&[4]);
    let penalty = |x: &Tensor| -> (Tensor, Tensor) {
        let x = x.requires_grad();
        let inner = cube(&x);
        let loss = cube(&inner).add(&inner).unwrap().mul(&weights).unwrap().mean(&[0]).unwrap();
        let gradients = backward_with([(loss, None)], Tape::Record).unwrap();
        let gradient = gradients.of(&x).unwrap().clone();
        (x, gradient.mul(&gradient).unwrap().sum_all().unwrap())
    };
    let x = wave(&[4]);
    let (parameter, value) = penalty(&x);
    let gradients = backward([(value, None)]).unwrap();
    for (place, found) in values(gradients.of(&parameter).unwrap()).iter().enumerate() {
        let step = 1e-5;
        let moved = |by: f64| -> f64 {
            let mut all = values(&x);
            all[place] += by;
            penalty(&Tensor::from_slice(&all, &[4]).unwrap()).1.item().unwrap()
        };
        let expected = (moved(step) - moved(-step)) / (2.0 * step);
        // Central differences with a step of 1e-5 and third derivatives of up to 1e4.
        assert!((found - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{place}: {found} {expected}");
    }
}

#[test]
fn a_gradient_of_a_gradient_without_a_rule_names_the_operation() {
    let x = wave(&[3]).requires_grad();
    let y = x.exp().unwrap().sum_all().unwrap();
    let gradients = backward_with([(y, None)], Tape::Record).unwrap();
    let gradient = gradients.of(&x).unwrap();
    assert!(gradient.tracks_gradient());
    let error = backward([(gradient.sum_all().unwrap(), None)]).unwrap_err();
    assert_eq!(error.to_string(), "cannot differentiate the gradient of exp: it has no second-order rule");
    assert_eq!(error.hint().unwrap(), "detach the gradient, or implement `Function::double_backward`");
    // The gradient of a linear function is a constant.
    let y = x.scale(3.0).unwrap().sum_all().unwrap();
    let gradients = backward_with([(y, None)], Tape::Record).unwrap();
    assert!(!gradients.of(&x).unwrap().tracks_gradient());
}

/// A function that panics in one of its methods.
#[derive(Clone, Copy)]
enum Panicking {
    Forward,
    Backward,
}

impl Function for Panicking {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn forward(&self, _: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        match self {
            Self::Forward => panic!("row {} is bad", 3),
            Self::Backward => Ok(vec![x[0].detach()]),
        }
    }

    fn backward(&self, _: Context, _: Vec<Option<Tensor>>) -> Gradients {
        panic!("no gradient")
    }
}

#[test]
fn a_panic_of_a_function_is_an_error_that_names_it() {
    let x = wave(&[2]).requires_grad();
    let error = apply(Panicking::Forward, std::slice::from_ref(&x)).unwrap_err();
    assert_eq!(error.to_string(), "panicking panicked in `forward`: row 3 is bad");
    let y = apply(Panicking::Backward, std::slice::from_ref(&x)).unwrap().remove(0);
    let error = backward([(y, None)]).unwrap_err();
    assert_eq!(error.to_string(), "panicking panicked in `backward`: no gradient");
    // Recording continues as before.
    assert!(backward([(x.exp().unwrap(), None)]).unwrap().of(&x).is_some());
}

//! The tape, and the errors around it.

use std::sync::{Arc, Mutex};

use half::bf16;
use weightloom_errors::Hint;
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{
    AdamW, Context, Device, Function, Moments, Order, Tensor, TensorError, apply, backward, counted, no_grad,
    recompute, recompute_over,
};

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
    let gradients = backward([(outputs[1].clone(), Some(given))]).unwrap();
    assert_eq!(gradients.of(&a).unwrap().to_vec::<f64>().unwrap(), [3.0, 5.0]);
    assert_eq!(gradients.of(&b).unwrap().to_vec::<f64>().unwrap(), [-3.0, -5.0]);
    assert_eq!(*seen.lock().unwrap(), [[false, true]]);
}

#[test]
fn backward_starts_from_several_outputs() {
    let x = ones(&[2]).requires_grad();
    let (a, b) = (x.scale(2.0).unwrap(), x.mul(&x).unwrap());
    let gradients = backward([(a, None), (b, None)]).unwrap();
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
    let error = backward([(y, None)]).unwrap_err();
    assert_eq!(error.to_string(), "cannot differentiate round: it has no backward rule");
    assert_eq!(error.hint().unwrap(), "detach its inputs, or implement `Function::backward`");
    assert!(apply(Round, &[x.detach()]).is_ok());
    let integers = x.cast(DType::I64).unwrap().cast(DType::F64).unwrap();
    assert!(matches!(backward([(integers, None)]), Err(TensorError::NotDifferentiable { function: "cast" })));
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
    let error = backward([(y, None)]).unwrap_err();
    assert_eq!(error.to_string(), "short returned 2 gradients for 1 inputs");
}

#[test]
fn a_tape_is_used_once() {
    let x = ones(&[2]).requires_grad();
    let y = x.exp().unwrap();
    backward([(y.clone(), None)]).unwrap();
    assert!(matches!(backward([(y, None)]), Err(TensorError::Consumed { function: "exp" })));
}

#[test]
fn nothing_is_noted_where_no_gradient_is_wanted() {
    let x = ones(&[2]).requires_grad();
    let y = no_grad(|| x.exp().unwrap());
    assert!(!y.tracks_gradient());
    assert!(!x.detach().exp().unwrap().tracks_gradient());
    assert!(matches!(backward([(y, None)]), Err(TensorError::NoGradient { .. })));
    let z = x.exp().unwrap();
    let wrong = ones(&[3]);
    assert!(matches!(backward([(z, Some(wrong))]), Err(TensorError::GradientShape { .. })));
}

#[test]
fn gradients_of_half_parameters_add_up_in_f32() {
    let x = Tensor::from_slice(&[bf16::from_f32(1.0)], &[1]).unwrap().requires_grad();
    // 256 + 1 is not a bf16.
    let outputs: Vec<_> = [256.0, 1.0].map(|factor| (x.scale(factor).unwrap(), None)).into();
    let gradients = backward(outputs).unwrap();
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
    assert_eq!(text(a.narrow(1, 2, 2)), "narrow: 2..4 is out of range for dim 1 of a tensor of shape 2x3");
    assert_eq!(text(a.narrow(1, usize::MAX, 2)).split(':').next(), Some("narrow"));
    assert_eq!(text(a.reshape(&Shape::new(&[5]).unwrap())), "reshape cannot combine shapes 2x3 and 5");
    assert_eq!(text(a.permute(&[0, 0])), "permute cannot combine shapes 2x3");
    let far = Tensor::from_slice(&[5i64], &[1]).unwrap();
    assert_eq!(text(a.embedding(&far)), "embedding: index 5 at position 0 is out of range for 2 rows");
    let negative = Tensor::from_slice(&[-1i64, 0], &[2]).unwrap();
    assert!(a.cross_entropy(&negative, Default::default()).is_err());
    let whole = Tensor::from_slice(&[1i32], &[1]).unwrap();
    assert_eq!(text(whole.exp()), "exp does not support i32");
    assert_eq!(a.to_vec::<f32>().unwrap_err().to_string(), "cannot read a f64 tensor as f32");
    assert!(Tensor::from_slice(&[1.0], &[2]).is_err());
    assert!(a.item::<f64>().is_err());
}

#[test]
fn hooks_see_gradients_and_change_them() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str, factor: f64| {
        let seen = Arc::clone(&seen);
        move |gradient: Tensor| {
            seen.lock().unwrap().push((name, gradient.to_vec::<f64>()?));
            gradient.scale(factor)
        }
    };
    let (a, b) = (ones(&[2]).requires_grad(), ones(&[2]).requires_grad());
    a.register_parameter_hook(note("a", 10.0)).unwrap();
    b.register_parameter_hook(note("b", 1.0)).unwrap();
    // Used twice: the hook runs once, with the sum.
    let inner = a.mul(&b).unwrap().register_hook(note("inner", 2.0)).unwrap();
    let outer = inner.add(&a.scale(3.0).unwrap()).unwrap();
    let gradients = backward([(outer, None)]).unwrap();
    assert_eq!(gradients.of(&a).unwrap().to_vec::<f64>().unwrap(), [50.0, 50.0]);
    assert_eq!(gradients.of(&b).unwrap().to_vec::<f64>().unwrap(), [2.0, 2.0]);
    let of = |name: &str| -> Vec<f64> {
        seen.lock().unwrap().iter().filter(|(seen, _)| *seen == name).map(|(_, g)| g[0]).collect()
    };
    assert_eq!((of("inner"), of("a"), of("b")), (vec![1.0], vec![5.0], vec![2.0]));
    let error = a.exp().unwrap().register_parameter_hook(Ok).unwrap_err();
    assert_eq!(error.to_string(), "cannot register a parameter hook: a tensor of shape 2 is not a parameter");
    // A hook that changes the shape is found out, and its error is passed on.
    a.register_parameter_hook(|gradient| gradient.sum(&[0])).unwrap();
    assert!(matches!(backward([(a.exp().unwrap(), None)]), Err(TensorError::GradientShape { .. })));
}

#[test]
fn a_parameters_hook_runs_while_the_pass_goes_on() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let order = Arc::clone(&order);
        move |gradient: Tensor| {
            order.lock().unwrap().push(name);
            Ok(gradient)
        }
    };
    let (first, last) = (ones(&[2]).requires_grad(), ones(&[2]).requires_grad());
    first.register_parameter_hook(note("first layer")).unwrap();
    last.register_parameter_hook(note("last layer")).unwrap();
    let hidden = ones(&[2]).mul(&first).unwrap().register_hook(note("between")).unwrap();
    backward([(hidden.mul(&last).unwrap(), None)]).unwrap();
    assert_eq!(*order.lock().unwrap(), ["last layer", "between", "first layer"]);
}

#[test]
fn a_recomputed_region_gives_the_same_bits() {
    let stream = weightloom_tensor::Stream { seed: 9, number: 4 };
    let region = move |x: &[Tensor]| -> Result<Vec<Tensor>, TensorError> {
        let hidden = x[0].matmul(&x[1])?.gelu()?.dropout(0.3, stream, 0)?;
        Ok(vec![hidden.matmul(&x[2])?, hidden.sum(&[1])?])
    };
    let wave = |dims: &[usize], shift: f64| {
        let count: usize = dims.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i as f64 * 0.7 + shift).sin()).collect();
        Tensor::from_slice(&values, dims).unwrap().requires_grad()
    };
    let inputs = [wave(&[5, 6], 0.0), wave(&[6, 7], 1.0), wave(&[7, 3], 2.0)];
    let bits = |x: &Tensor| x.to_vec::<f64>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let run = |outputs: Vec<Tensor>| {
        let forward: Vec<_> = outputs.iter().map(bits).collect();
        let asked: Vec<_> = outputs.into_iter().map(|output| (output, None)).collect();
        let gradients = backward(asked).unwrap();
        (forward, inputs.iter().map(|input| bits(gradients.of(input).unwrap())).collect::<Vec<_>>())
    };
    assert_eq!(run(region(&inputs).unwrap()), run(recompute(&inputs, region).unwrap()));
    // Inside one another.
    let nested = recompute(&inputs, move |x| recompute(x, region)).unwrap();
    assert_eq!(run(region(&inputs).unwrap()), run(nested));
}

#[test]
fn a_recomputed_region_cannot_lose_a_gradient() {
    let (x, hidden) = (ones(&[2]).requires_grad(), ones(&[2]).requires_grad());
    let captured = hidden.clone();
    let error = recompute(&[x], move |x| Ok(vec![x[0].mul(&captured)?])).unwrap_err();
    assert!(matches!(error, TensorError::Captured { function: "mul" }));
    assert_eq!(error.hint().unwrap(), "pass it to the region as an input, or detach it");
    // Recording continues as before.
    assert!(hidden.exp().unwrap().tracks_gradient());
}

/// A region may use parameters that it names: several times in half precision,
/// whose sums have more digits, and beside some that are not trained.
#[test]
fn a_recomputed_region_has_parameters_of_its_own() {
    let half = |value: f64| Tensor::full(value, DType::Bf16, &[2], Device::Cpu).unwrap();
    let (x, trained, fixed) = (half(3.0).requires_grad(), half(2.0).requires_grad(), half(5.0));
    let named = [fixed.clone(), trained.clone()];
    let (own, constant) = (trained.clone(), fixed);
    let made = recompute_over(std::slice::from_ref(&x), &named, move |x| {
        Ok(vec![x[0].mul(&own)?.mul(&constant)?.add(&own)?])
    });
    let gradients = backward([(made.unwrap().remove(0), None)]).unwrap();
    let gradient_of = |tensor: &Tensor| {
        let gradient = gradients.of(tensor).unwrap();
        (gradient.dtype(), gradient.cast(DType::F64).unwrap().to_vec::<f64>().unwrap())
    };
    assert_eq!(gradient_of(&x), (DType::Bf16, vec![10.0; 2]));
    assert_eq!(gradient_of(&trained), (DType::Bf16, vec![16.0; 2]));
}

#[test]
fn adding_in_place_changes_nobody_else() {
    let mut sum = ones(&[3]);
    let kept = sum.clone();
    sum.add_assign(&ones(&[3])).unwrap();
    sum.add_assign(&ones(&[3])).unwrap();
    assert_eq!(sum.to_vec::<f64>().unwrap(), [3.0; 3]);
    assert_eq!(kept.to_vec::<f64>().unwrap(), [1.0; 3]);
    // On the tape it is an addition like any other.
    let x = ones(&[3]).requires_grad();
    let mut y = x.exp().unwrap();
    y.add_assign(&x).unwrap();
    let gradients = backward([(y, None)]).unwrap();
    assert_eq!(gradients.of(&x).unwrap().to_vec::<f64>().unwrap(), [1.0 + 1f64.exp(); 3]);
    assert!(sum.add_assign(&ones(&[2])).is_err());
}

/// A backward rule overwrites the memory of a saved tensor only if it is not shared.
#[test]
fn rules_overwrite_only_what_is_theirs() {
    let x = Tensor::from_slice(&[0.1, 0.7, -0.3, 0.4, 0.2, 0.9], &[2, 3]).unwrap().requires_grad();
    let targets = Tensor::from_slice(&[2i64, 0], &[2]).unwrap();
    let logits = x.scale(2.0).unwrap();
    let before = logits.to_vec::<f64>().unwrap();
    let loss = logits.cross_entropy(&targets, Default::default()).unwrap();
    let given = Tensor::scalar(1.0).unwrap();
    backward([(loss, Some(given.clone()))]).unwrap();
    assert_eq!(logits.to_vec::<f64>().unwrap(), before);
    assert_eq!(given.item::<f64>().unwrap(), 1.0);
    let gradient = ones(&[2, 3]);
    backward([(x.exp().unwrap().tanh().unwrap().softmax(1).unwrap(), Some(gradient.clone()))]).unwrap();
    assert_eq!(gradient.to_vec::<f64>().unwrap(), [1.0; 6]);
}

#[test]
fn optimizing_keeps_a_parameter_the_same_parameter() {
    let mut x = ones(&[2]).requires_grad();
    let kept = x.detach();
    let mut moments = Moments::zero(&x).unwrap();
    for number in 1..=2 {
        let gradients = backward([(x.mul(&x).unwrap(), None)]).unwrap();
        let gradient = gradients.of(&x).unwrap();
        AdamW::default().step(number, &mut x, gradient, &mut moments).unwrap();
    }
    assert!(x.to_vec::<f64>().unwrap()[0] < 0.999);
    assert_eq!(kept.to_vec::<f64>().unwrap(), [1.0; 2]);
}

#[test]
fn meta_tensors_have_costs_and_gradients() {
    let meta = |dims: &[usize]| Tensor::zeros(DType::Bf16, dims, Device::Meta).unwrap().requires_grad();
    let (x, w, norm) = (meta(&[512, 4096]), meta(&[1024, 4096]), meta(&[4096]));
    let (gradients, costs) = counted(|| {
        let y = x.rms_norm(&norm, 1e-5).unwrap().linear(&w, None, None).unwrap();
        backward([(y, None)]).unwrap()
    });
    for parameter in [&x, &w, &norm] {
        assert_eq!(gradients.of(parameter).unwrap().shape(), parameter.shape());
    }
    let product = costs.by_kernel().find(|(kernel, _)| *kernel == "matmul").unwrap().1;
    assert_eq!((product.launches, product.flops), (3, 3 * 2 * 512 * 4096 * 1024));
    let operands = [512 * 4096, 1024 * 4096, 512 * 1024].iter().sum::<u64>() * 2;
    assert_eq!(product.bytes, 3 * operands);
    assert!(costs.total().flops > product.flops && costs.total().bytes > product.bytes);
    assert_eq!(counted(|| ()).1.total(), Default::default());
}

#[test]
fn integers_bools_and_eight_bits_are_stored_and_moved() {
    let flags = Tensor::from_bools(&[true, false, false, true], &[2, 2]).unwrap();
    let turned = flags.transpose(0, 1).unwrap();
    assert_eq!(turned.to_bools().unwrap(), [true, false, false, true]);
    assert_eq!(flags.cast(DType::I32).unwrap().to_vec::<i32>().unwrap(), [1, 0, 0, 1]);
    let numbers = Tensor::from_slice(&[3i64, -1, 2, 5, 2, 0], &[2, 3]).unwrap();
    let (sorted, places) = numbers.sort(1, Order::Descending).unwrap();
    assert_eq!(sorted.to_vec::<i64>().unwrap(), [3, 2, -1, 5, 2, 0]);
    assert_eq!(places.to_vec::<i64>().unwrap(), [0, 2, 1, 0, 1, 2]);
    assert_eq!(numbers.argmax(0).unwrap().to_vec::<i64>().unwrap(), [1, 1, 0]);
    assert_eq!(
        Tensor::from_slice(&[2i64, 0], &[2]).unwrap().one_hot(3).unwrap().to_vec::<i64>().unwrap(),
        [0, 0, 1, 1, 0, 0]
    );
    assert_eq!(numbers.tril(0).unwrap().to_vec::<i64>().unwrap(), [3, 0, 0, 5, 2, 0]);
    let small = numbers.cast(DType::F32).unwrap().cast(DType::F8E4M3).unwrap();
    let moved = Tensor::cat(&[&small, &small.transpose(0, 1).unwrap().transpose(0, 1).unwrap()], 0).unwrap();
    assert_eq!(
        moved.cast(DType::F32).unwrap().to_vec::<f32>().unwrap()[6..],
        [3.0, -1.0, 2.0, 5.0, 2.0, 0.0]
    );
    assert_eq!(small.exp().unwrap_err().to_string(), "exp does not support f8e4m3");
    let not_numbers = Tensor::from_slice(&[1.0, f64::NAN, 3.0], &[3]).unwrap();
    assert!(not_numbers.max(&[0]).unwrap().item::<f64>().unwrap().is_nan());
    assert_eq!(not_numbers.argmax(0).unwrap().item::<i64>().unwrap(), 1);
    assert!(Tensor::zeros(DType::F32, &[2, 0], Device::Cpu).unwrap().max(&[1]).is_err());
}

/// A product whose operand is a gate does not keep it and still has its gradient.
#[test]
fn results_of_cheap_functions_are_computed_again() {
    let big = |seed: f64| {
        let values: Vec<f64> = (0..200 * 1000).map(|i| (f64::from(i) * 0.37 + seed).sin()).collect();
        Tensor::from_slice(&values, &[200, 1000]).unwrap()
    };
    let (gate, up) = (big(0.0).requires_grad(), big(1.0).requires_grad());
    let down = Tensor::from_slice(&vec![0.01; 3000], &[3, 1000]).unwrap().requires_grad();
    let out = gate.swiglu(&up).unwrap().linear(&down, None, None).unwrap();
    // The same gradients as with a result that is kept.
    let gradients = backward([(out, None)]).unwrap();
    let inner = gate.swiglu(&up).unwrap();
    let kept = inner.detach().requires_grad();
    let by_hand = backward([(kept.linear(&down, None, None).unwrap(), None)]).unwrap();
    let rest = backward([(inner, Some(by_hand.of(&kept).unwrap().clone()))]).unwrap();
    let values = |x: Option<&Tensor>| x.unwrap().to_vec::<f64>().unwrap();
    assert_eq!(values(gradients.of(&down)), values(by_hand.of(&down)));
    assert_eq!(values(gradients.of(&gate)), values(rest.of(&gate)));
    assert_eq!(values(gradients.of(&up)), values(rest.of(&up)));
}

/// A typed error of a user's function comes back through the backward pass.
#[test]
fn the_error_of_a_function_keeps_its_type() {
    #[derive(Debug, PartialEq, thiserror::Error)]
    #[error("row {row} is bad")]
    struct BadRow {
        row: usize,
    }
    struct Failing;
    impl Function for Failing {
        fn name(&self) -> &'static str {
            "failing"
        }

        fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
            Ok(vec![inputs[0].detach()])
        }

        fn backward(&self, _: Context, _: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>, TensorError> {
            Err(TensorError::from_function(self.name(), BadRow { row: 3 }))
        }
    }
    let x = Tensor::from_slice(&[1.0], &[1]).unwrap().requires_grad();
    let y = apply(Failing, &[x]).unwrap().remove(0).exp().unwrap();
    let error = backward([(y, None)]).unwrap_err();
    assert_eq!(error.function_source::<BadRow>(), Some(&BadRow { row: 3 }));
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref::<BadRow>(), Some(&BadRow { row: 3 }));
    assert_eq!(error.to_string(), "failing failed");
    assert_eq!(error.clone(), error);
}

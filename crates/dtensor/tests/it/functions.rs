//! Users' functions: several outputs, arguments, meta tensors, training, second
//! passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weightloom_dtensor::{
    Call, DFunction, DTensor, DTensorError, DistContext, DistOptions, DistributedOp, Meta, Registry, Release,
    Role, Rule, Value, apply, backward, backward_with, recompute,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};
use weightloom_tensor::{
    Context, Device, DoubleGradients, Function, Stream, Tape, Tensor, TensorError, apply as apply_local,
};

use crate::sharding_rules::cases::{Case, Input};
use crate::sharding_rules::{check, layouts};

const R: Placement = Placement::Replicate;

fn s(dim: usize) -> Placement {
    Placement::Shard(dim)
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

fn normal(dims: &[usize], number: u64) -> Tensor {
    Tensor::normal(DType::F64, dims, Stream { seed: 8, number }, 0).unwrap()
}

fn context(gang: Arc<dyn Gang>) -> Arc<DistContext> {
    DistContext::with_options(gang, options())
}

fn options() -> DistOptions {
    DistOptions { registry: registry(), log_comm: true, ..DistOptions::default() }
}

fn registry() -> Registry {
    let builder = Registry::builder().register(EnergyRule).unwrap().register(PickRule::default()).unwrap();
    builder.register(CubeRule).unwrap().freeze()
}

fn on_ranks<T: Send>(ranks: usize, work: impl Fn(Arc<dyn Gang>) -> T + Sync) -> Vec<T> {
    threads::run(ranks, GangOptions::default(), work).unwrap()
}

/// Of `x` of `[rows, k]` and `w` of `[k, n]`: `factor · x²·w`, the sums of rows, and
/// the number of positive elements in each row, which has no gradient.
#[derive(Clone, PartialEq)]
struct Energy {
    factor: f64,
}

/// What `backward` needs beside tensors.
struct Slope(f64);

impl Function for Energy {
    fn name(&self) -> &'static str {
        "Energy"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [x, w] = inputs else { return Err(TensorError::from_function(self.name(), "takes two tensors")) };
        if x.device() == Device::Meta {
            return Err(TensorError::from_function(self.name(), "reads elements"));
        }
        context.save(&[x, w]);
        context.save_value(Slope(2.0 * self.factor));
        context.mark_non_differentiable(&[2]);
        let positive = x.gt(&Tensor::scalar(0.0)?)?.cast(DType::F64)?.sum(&[1])?;
        Ok(vec![x.mul(x)?.matmul(w)?.scale(self.factor)?, x.sum(&[1])?, positive])
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let ([x, w], Slope(slope)) = (context.saved(), context.saved_value()?) else {
            return Ok(vec![None; 2]);
        };
        let (mut of_x, mut of_w) = (Tensor::zeros(x.dtype(), x.shape(), x.device())?, None);
        if let Some(g) = &gradients[0] {
            of_x = of_x.add(&g.matmul(&w.transpose(0, 1)?)?.mul(x)?.scale(*slope)?)?;
            of_w = Some(x.mul(x)?.transpose(0, 1)?.matmul(g)?.scale(self.factor)?);
        }
        if let Some(g) = &gradients[1] {
            of_x = of_x.add(&g.reshape(&Shape::new(&[x.shape()[0], 1])?)?)?;
        }
        Ok(vec![Some(of_x), of_w])
    }
}

impl DFunction for Energy {
    fn op_name(&self) -> Option<&'static str> {
        Some("energy")
    }

    fn meta(&self, inputs: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        let ((x, dtype), (w, _)) = (&inputs[0], &inputs[1]);
        let rows = (Shape::new(&[x[0]])?, *dtype);
        Ok(Meta::Outputs(vec![(Shape::new(&[x[0], w[1]])?, *dtype), rows.clone(), rows]))
    }
}

/// Rows are independent, and all results are sums over `k`.
struct EnergyRule;

impl DistributedOp for EnergyRule {
    fn name(&self) -> &'static str {
        "energy"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let x = call.inputs[0].shape();
        let rule = Rule::new(&[2, 2], &[2, 1, 1]).label(x[0], [(0, 0)], [(0, 0), (1, 0), (2, 0)]);
        Ok(rule.label(x[1], [(0, 1), (1, 0)], []).summed_in(0))
    }
}

/// Shards are uneven on all of these meshes, and some of them are empty.
#[test]
fn a_function_with_several_outputs_is_right_in_every_layout() {
    let meshes: [&[(&str, usize)]; 4] = [&[("a", 2)], &[("a", 3)], &[("a", 4)], &[("a", 2), ("b", 2)]];
    let energy = Energy { factor: 0.7 };
    for axes in meshes {
        let ranks: usize = axes.iter().map(|(_, size)| size).product();
        let runs = on_ranks(ranks, |gang| {
            let (dist, mesh) = (context(gang), Mesh::new(axes).unwrap());
            let (local, distributed) = (energy.clone(), energy.clone());
            let case = Case {
                name: "energy".to_owned(),
                inputs: vec![Input::float(&[5, 3]), Input::float(&[3, 2])],
                local: Box::new(move |x| apply_local(local.clone(), x)),
                distributed: Box::new(move |x| DTensor::apply(&distributed, &x.iter().collect::<Vec<_>>())),
            };
            let mut run = 0;
            for a in layouts(mesh, &case.inputs[0]) {
                for b in layouts(mesh, &case.inputs[1]) {
                    if let Err(wrong) = check(&dist, &case, &[a, b]) {
                        panic!("{a} {b}: {wrong}");
                    }
                    run += 1;
                }
            }
            run
        });
        assert!(runs[0] >= 64, "{runs:?}");
    }
}

/// Gradients of a function on three ranks, against finite differences on one.
#[test]
fn gradients_of_a_function_are_those_of_finite_differences() {
    let energy = Energy { factor: 0.7 };
    let (x, w, weights) = (normal(&[5, 3], 1), normal(&[3, 2], 2), normal(&[5, 2], 3));
    let loss = |x: &Tensor, w: &Tensor| -> f64 {
        let y = apply_local(energy.clone(), &[x.clone(), w.clone()]).unwrap();
        let sums = y[1].mul(&y[1]).unwrap().sum_all().unwrap();
        y[0].mul(&weights).unwrap().sum_all().unwrap().add(&sums).unwrap().item().unwrap()
    };
    let differences = |at: &Tensor, of: &dyn Fn(&Tensor) -> f64| -> Vec<f64> {
        let (all, step) = (at.to_vec::<f64>().unwrap(), 1e-6);
        let moved = |place: usize, by: f64| {
            let mut all = all.clone();
            all[place] += by;
            of(&Tensor::from_slice(&all, at.shape()).unwrap())
        };
        (0..all.len()).map(|place| (moved(place, step) - moved(place, -step)) / (2.0 * step)).collect()
    };
    let expected = [differences(&x, &|x| loss(x, &w)), differences(&w, &|w| loss(&x, w))];
    let found = on_ranks(3, |gang| {
        let (dist, mesh) = (context(gang), Mesh::new(&[("dp", 3)]).unwrap());
        let spread = |x: &Tensor, placement| {
            DTensor::distribute(&dist, x, Layout::new(mesh, &[placement]).unwrap()).unwrap()
        };
        let (x, w) = (spread(&x, s(0)).requires_grad(), spread(&w, R).requires_grad());
        let y = DTensor::apply(&energy, &[&x, &w]).unwrap();
        let sums = y[1].mul(&y[1]).unwrap().sum_all().unwrap();
        let loss = y[0].mul(&spread(&weights, R)).unwrap().sum_all().unwrap().add(&sums).unwrap();
        let gradients = backward([(loss, None)]).unwrap();
        [&x, &w].map(|x| gradients.of(x).unwrap().unwrap().full_tensor().unwrap().to_vec::<f64>().unwrap())
    });
    for found in &found {
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            // Central differences of an f64 function of size 10.
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}

/// The first `count` elements along a dim, which the rule leaves whole.
#[derive(Clone, PartialEq)]
struct Pick {
    dim: usize,
    count: usize,
    /// Changes nothing.
    step: usize,
}

impl Function for Pick {
    fn name(&self) -> &'static str {
        "Pick"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![inputs[0].narrow(self.dim, 0, self.count)?])
    }
}

impl DFunction for Pick {
    fn op_name(&self) -> Option<&'static str> {
        Some("pick")
    }

    fn meta(&self, _: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        Ok(Meta::Forward)
    }
}

#[derive(Default)]
struct PickRule {
    calls: Arc<AtomicUsize>,
}

impl DistributedOp for PickRule {
    fn name(&self) -> &'static str {
        "pick"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let pick = call.function::<Pick>().unwrap();
        let other = 1 - pick.dim;
        Ok(Rule::new(&[2], &[2]).label(call.inputs[0].shape()[other], [(0, other)], [(0, other)]))
    }
}

#[test]
fn layouts_are_chosen_again_for_other_arguments() {
    on_ranks(2, |gang| {
        let calls = Arc::new(AtomicUsize::new(0));
        let rule = PickRule { calls: Arc::clone(&calls) };
        let registry = Registry::builder().register(rule).unwrap().freeze();
        let dist = DistContext::with_options(gang, DistOptions { registry, ..DistOptions::default() });
        let whole = normal(&[4, 6], 1);
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let x = DTensor::distribute(&dist, &whole, Layout::new(mesh, &[s(0)]).unwrap()).unwrap();
        let picks = [(1, 2), (1, 5), (0, 3), (0, 1), (1, 2), (0, 3)];
        for (dim, count) in picks {
            let y = DTensor::apply(&Pick { dim, count, step: 0 }, &[&x]).unwrap().remove(0);
            let expected = whole.narrow(dim, 0, count).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(y.full_tensor().unwrap().to_vec::<f64>().unwrap(), expected, "{dim} {count}");
            assert_eq!(y.layout().placements(), [s(1 - dim)]);
        }
        // And once for each.
        assert_eq!(calls.load(Ordering::Relaxed), 4);
        // What was chosen for an argument that changes in every step is forgotten.
        let at = |step| DTensor::apply(&Pick { dim: 1, count: 2, step }, &[&x]).unwrap();
        (1..=40).for_each(|step| drop(at(step)));
        assert_eq!(calls.load(Ordering::Relaxed), 44);
        at(40);
        assert_eq!(calls.load(Ordering::Relaxed), 44);
        at(1);
        assert_eq!(calls.load(Ordering::Relaxed), 45);
    });
}

/// `forward` of `Energy` refuses meta tensors.
#[test]
fn forward_does_not_see_meta_tensors_unless_it_allows_them() {
    let step = |dist: &Arc<DistContext>, device: Device| {
        let mesh = Mesh::new(&[("dp", 3)]).unwrap();
        let make = |dims: &[usize], placement| {
            let layout = Layout::new(mesh, &[placement]).unwrap();
            let local = layout.local_shape(&shape(dims), dist.rank()).unwrap();
            let local = Tensor::full(0.5, DType::F64, &local, device).unwrap();
            DTensor::from_local(dist, local, layout, &shape(dims)).unwrap().requires_grad()
        };
        let (x, w) = (make(&[5, 3], s(0)), make(&[3, 2], R));
        let y = DTensor::apply(&Energy { factor: 2.0 }, &[&x, &w]).unwrap();
        let kinds: Vec<_> =
            y.iter().map(|y| (y.shape().clone(), y.layout(), y.to_local().shape().clone())).collect();
        let gradients = backward([(y[0].sum_all().unwrap(), None)]).unwrap();
        let of = |x: &DTensor| {
            let gradient = gradients.of(x).unwrap().unwrap();
            (gradient.layout(), gradient.to_local().shape().clone())
        };
        (kinds, [of(&x), of(&w)], dist.take_comm_log())
    };
    let real = on_ranks(3, |gang| step(&context(gang), Device::Cpu));
    for (rank, real) in real.iter().enumerate() {
        assert_eq!(&step(&DistContext::dry_run(rank, options()), Device::Meta), real);
    }
    assert_eq!(real[0].2.len(), 1, "the gradient of w is summed");
    // On local tensors too.
    let meta = |dims: &[usize]| Value::from(Tensor::zeros(DType::F64, dims, Device::Meta).unwrap());
    let y = apply(&Energy { factor: 2.0 }, &[meta(&[5, 3]), meta(&[3, 2])]).unwrap();
    assert_eq!(y[0].clone().local().unwrap().shape(), &shape(&[5, 2]));
    // A function that allows it gives its own shapes.
    let y = apply(&Pick { dim: 0, count: 2, step: 0 }, &[meta(&[5, 3])]).unwrap().remove(0).local().unwrap();
    assert_eq!(y.shape(), &shape(&[2, 3]));
}

/// Three steps of a model around a user's function: parameters that are sharded,
/// gathered ahead and released, a recomputed region, gradients that accumulate.
#[test]
fn a_function_is_part_of_a_training_run() {
    let (data, first, last) = (normal(&[7, 5], 4), normal(&[3, 5], 5), normal(&[3, 2], 6));
    let train = |gang: Arc<dyn Gang>, held: [Placement; 2]| {
        let mesh = Mesh::new(&[("dp", gang.size())]).unwrap();
        let dist = context(gang);
        dist.overlap(mesh).unwrap();
        let spread = |x: &Tensor, placement| {
            DTensor::distribute(&dist, x, Layout::new(mesh, &[placement]).unwrap()).unwrap()
        };
        let x = spread(&data, s(0));
        let mut parameters = [&first, &last].map(|x| spread(x, held[0]).parameter(Role::Trained));
        parameters[1] = spread(&last, held[1]).parameter(Role::Trained);
        let mut losses = Vec::new();
        for _ in 0..3 {
            let whole = Layout::replicated(mesh);
            for parameter in &parameters {
                parameter.prefetch(whole, DType::F64).unwrap();
            }
            let captured = parameters.clone();
            let region = move |x: &[DTensor]| {
                let used = |parameter: &DTensor| parameter.used(whole, DType::F64, Release::AfterUse);
                let hidden = x[0].linear(&used(&captured[0])?, None, None)?;
                DTensor::apply(&Energy { factor: 0.1 }, &[&hidden, &used(&captured[1])?])
            };
            // The input of a region is differentiated, or nothing in it is recorded.
            let y = recompute(&[x.requires_grad()], &parameters, region).unwrap();
            let loss = y[0].mul(&y[0]).unwrap().sum_all().unwrap();
            let loss = loss.add(&y[1].mul(&y[2]).unwrap().sum_all().unwrap()).unwrap();
            losses.push(loss.detach().item::<f64>().unwrap());
            backward([(loss, None)]).unwrap();
            for parameter in &mut parameters {
                let gradient = parameter.take_gradient().unwrap().unwrap();
                let step = gradient.to_local().scale(-1e-3).unwrap();
                parameter
                    .change_local(|local| {
                        *local = local.detach().add(&step)?.requires_grad();
                        Ok(())
                    })
                    .unwrap();
            }
        }
        losses
    };
    let alone = on_ranks(1, |gang| train(gang, [R, R])).remove(0);
    assert!(alone[2] < alone[1] && alone[1] < alone[0], "{alone:?}");
    for ranks in [2, 3] {
        for held in [[s(0), s(1)], [R, s(0)], [s(1), R]] {
            for losses in on_ranks(ranks, |gang| train(gang, held)) {
                // Sums over ranks in another order.
                let near = losses.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-9 * b.abs());
                assert!(near, "{ranks} {held:?}: {losses:?} {alone:?}");
            }
        }
    }
}

#[test]
fn a_retained_tape_is_differentiated_again_on_all_ranks() {
    on_ranks(2, |gang| {
        let (dist, mesh) = (context(gang), Mesh::new(&[("tp", 2)]).unwrap());
        let spread = |x: &Tensor, placement| {
            DTensor::distribute(&dist, x, Layout::new(mesh, &[placement]).unwrap()).unwrap()
        };
        let x = spread(&normal(&[5, 3], 1), s(1)).requires_grad();
        let w = spread(&normal(&[3, 2], 2), s(0)).parameter(Role::Trained);
        let y = DTensor::apply(&Energy { factor: 0.3 }, &[&x, &w]).unwrap();
        let loss = y[0].mul(&y[0]).unwrap().sum_all().unwrap();
        let pass = |tape| {
            let gradient = backward_with([(loss.clone(), None)], tape)?.of(&x).unwrap()?;
            Ok::<_, DTensorError>(gradient.full_tensor()?.to_vec::<f64>()?)
        };
        let first = pass(Tape::Retain).unwrap();
        let once = w.take_gradient().unwrap().unwrap().to_local().to_vec::<f64>().unwrap();
        assert_eq!(pass(Tape::Retain).unwrap(), first);
        assert_eq!(pass(Tape::Free).unwrap(), first);
        // A trained parameter adds up what it gets.
        let twice = w.take_gradient().unwrap().unwrap().to_local().to_vec::<f64>().unwrap();
        assert!(once.iter().zip(&twice).all(|(once, twice)| (2.0 * once - twice).abs() < 1e-12));
        let error = pass(Tape::Free).unwrap_err();
        assert!(matches!(error, DTensorError::Tensor(TensorError::Consumed { .. })), "{error}");
    });
}

/// `x³`, with a second-order rule.
#[derive(Clone, PartialEq)]
struct Cube;

impl Function for Cube {
    fn name(&self) -> &'static str {
        "Cube"
    }

    fn forward(&self, context: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        context.save(&[&x[0]]);
        Ok(vec![x[0].powf(3.0)?])
    }

    fn backward(&self, context: Context, g: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>, TensorError> {
        let slope = context.saved()[0].powf(2.0)?.scale(3.0)?;
        Ok(vec![g[0].as_ref().map(|g| g.mul(&slope)).transpose()?])
    }

    fn double_backward(
        &self,
        context: Context,
        of_outputs: Vec<Option<Tensor>>,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<DoubleGradients, TensorError> {
        let (x, Some(of_y), Some(g)) = (&context.saved()[0], &of_outputs[0], &gradients[0]) else {
            return Ok(DoubleGradients { of_outputs: vec![None], of_inputs: vec![None] });
        };
        let of_of_y = x.powf(2.0)?.scale(3.0)?.mul(g)?;
        let of_x = x.scale(6.0)?.mul(of_y)?.mul(g)?;
        Ok(DoubleGradients { of_outputs: vec![Some(of_of_y)], of_inputs: vec![Some(of_x)] })
    }
}

impl DFunction for Cube {
    fn op_name(&self) -> Option<&'static str> {
        Some("cube")
    }

    fn meta(&self, _: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        Ok(Meta::Forward)
    }
}

struct CubeRule;

impl DistributedOp for CubeRule {
    fn name(&self) -> &'static str {
        "cube"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        Ok(Rule::new(&[1], &[1]).label(call.inputs[0].shape()[0], [(0, 0)], [(0, 0)]))
    }
}

#[test]
fn a_gradient_of_a_gradient_is_right_or_names_the_operation() {
    let whole = normal(&[4], 1);
    // d/dx (3x²)² = 36x³.
    let expected: Vec<f64> = whole.to_vec::<f64>().unwrap().iter().map(|x| 36.0 * x * x * x).collect();
    on_ranks(3, |gang| {
        let (dist, mesh) = (context(gang), Mesh::new(&[("dp", 3)]).unwrap());
        let x = DTensor::distribute(&dist, &whole, Layout::new(mesh, &[s(0)]).unwrap()).unwrap();
        let x = x.requires_grad();
        let recorded = |y: DTensor| {
            let gradients = backward_with([(y.sum_all().unwrap(), None)], Tape::Record).unwrap();
            let gradient = gradients.of(&x).unwrap().unwrap();
            gradient.mul(&gradient).unwrap().sum_all().unwrap()
        };
        let penalty = recorded(DTensor::apply(&Cube, &[&x]).unwrap().remove(0));
        let found = backward([(penalty, None)]).unwrap().of(&x).unwrap().unwrap();
        let found = found.full_tensor().unwrap().to_vec::<f64>().unwrap();
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?} {expected:?}");
        let error = backward([(recorded(x.tanh().unwrap()), None)]).unwrap_err();
        let expected = "cannot differentiate the gradient of tanh: it has no second-order rule";
        assert_eq!(error.to_string(), expected);
    });
}

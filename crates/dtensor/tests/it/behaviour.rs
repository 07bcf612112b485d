//! Implicit redistribution, the comm log, randomness, user operations and errors.

use std::sync::Arc;

use weightloom_dtensor::{
    Call, Cause, DFunction, DTensor, DTensorError, DistContext, DistOptions, DistributedOp, LocalCall, Meta,
    NanCheck, Pass, RedistributeMode, Registry, Rule, Value, apply, backward, check, global_norm, local_map,
    recompute,
};
use weightloom_errors::Hint as _;
use weightloom_gang::{Gang, GangExt as _, GangOptions, solo, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, ReduceOp, Shape};
use weightloom_tensor::{
    AdamW, Context, CrossEntropy, Device, Function, Stream, Tensor, TensorError, counted, no_grad,
};

const R: Placement = Placement::Replicate;
const P: Placement = Placement::Partial(ReduceOp::Sum);
const STREAM: Stream = Stream { seed: 4, number: 2 };

fn s(dim: usize) -> Placement {
    Placement::Shard(dim)
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

fn on_ranks<T: Send>(ranks: usize, work: impl Fn(Arc<dyn Gang>) -> T + Sync) -> Vec<T> {
    threads::run(ranks, GangOptions::default(), work).unwrap()
}

fn explicit(gang: Arc<dyn Gang>) -> Arc<DistContext> {
    let options = DistOptions { redistribution: RedistributeMode::Explicit, ..DistOptions::default() };
    DistContext::with_options(gang, options)
}

fn with_registry(gang: Arc<dyn Gang>, registry: Registry) -> Arc<DistContext> {
    DistContext::with_options(gang, DistOptions { registry, ..DistOptions::default() })
}

fn normal(dist: &Arc<DistContext>, dims: &[usize], layout: Layout) -> DTensor {
    DTensor::normal(dist, DType::F32, &shape(dims), layout, STREAM).unwrap()
}

#[test]
fn implicit_redistribution_is_allowed_warned_about_or_refused() {
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let with_mode = |redistribution| {
            let options = DistOptions { redistribution, ..DistOptions::default() };
            let dist = DistContext::with_options(Arc::clone(&gang), options);
            let x = normal(&dist, &[4, 6], Layout::new(mesh, &[s(1)]).unwrap());
            (dist, x)
        };
        let (dist, x) = with_mode(RedistributeMode::Implicit);
        assert!(x.softmax(1).is_ok() && dist.take_warnings().is_empty());
        let (dist, x) = with_mode(RedistributeMode::Warn);
        assert!(x.softmax(1).is_ok());
        assert_eq!(dist.take_warnings().len(), 1);
        let (_, x) = with_mode(RedistributeMode::Explicit);
        let error = x.softmax(1).unwrap_err();
        let expected = "softmax needs an implicit redistribution: operand 0, 4x6 f32, from mesh(tp=2) [S(1)] to \
                        mesh(tp=2) [S(0)]";
        assert_eq!(error.to_string(), expected);
        assert!(error.hint().unwrap().contains("redistribute"));
        // Operations without communication are allowed, and so is an explicit request.
        assert!(x.exp().is_ok() && x.redistribute(Layout::replicated(mesh)).unwrap().softmax(1).is_ok());
    });
}

/// The comm log of a step on meta tensors is that of the real step.
#[test]
fn a_dry_run_has_the_comm_log_of_the_real_one() {
    let step = |dist: &Arc<DistContext>, device: Device| {
        assert!(dist.take_comm_log().is_empty());
        let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]).unwrap();
        let make = |dims: &[usize], layout: Layout| {
            let local = layout.local_shape(&shape(dims), dist.rank()).unwrap();
            let local = Tensor::zeros(DType::F32, &local, device).unwrap();
            DTensor::from_local(dist, local, layout, &shape(dims)).unwrap().requires_grad()
        };
        let x = make(&[6, 10, 8], Layout::new(mesh, &[s(0), R]).unwrap());
        let twice = Layout::with_split_order(mesh, &[s(0), s(0)], &[(0, &["tp", "dp"])]).unwrap();
        let (up, down) = (make(&[12, 8], twice), make(&[8, 12], Layout::new(mesh, &[R, s(1)]).unwrap()));
        let gathered = up.redistribute(Layout::new(mesh, &[R, s(0)]).unwrap()).unwrap();
        let inner = x.linear(&gathered, None, None).unwrap().silu().unwrap();
        let out = inner.linear(&down, None, None).unwrap();
        let out = out.redistribute(Layout::new(mesh, &[s(0), R]).unwrap()).unwrap();
        let loss = out.mul(&out).unwrap().sum_all().unwrap();
        backward([(loss, None)]).unwrap();
        let log = dist.take_comm_log();
        // Classes that are sharded, and a maximum that is pending.
        let logits = make(&[5, 7], Layout::new(mesh, &[s(0), s(1)]).unwrap());
        let targets = Tensor::zeros(DType::I64, &[5], device).unwrap();
        let targets = DTensor::distribute(dist, &targets, Layout::replicated(mesh)).unwrap();
        let most = make(&[6], Layout::new(mesh, &[Placement::Partial(ReduceOp::Max), R]).unwrap());
        let losses = [logits.cross_entropy(&targets, CrossEntropy::default()), most.exp().unwrap().sum_all()];
        backward(losses.map(|loss| (loss.unwrap(), None))).unwrap();
        (log, dist.take_comm_log())
    };
    let logged = || DistOptions { log_comm: true, ..DistOptions::default() };
    let real = on_ranks(4, |gang| step(&DistContext::with_options(gang, logged()), Device::Cpu));
    for (rank, log) in real.iter().enumerate() {
        assert_eq!(&step(&DistContext::dry_run(rank, logged()), Device::Meta), log);
    }
    assert_eq!(real[0].1.iter().filter(|item| item.cause.op == "cross_entropy").count(), 2);
    let lines: Vec<String> = real[0]
        .0
        .iter()
        .map(|item| {
            let Cause { op, pass } = item.cause;
            format!("{op} {pass}: {} along {}, {} B", item.collective, item.axis, item.bytes)
        })
        .collect();
    assert_eq!(
        lines,
        [
            "redistribute forward: all-gather along dp, 96 B",
            "redistribute forward: all-reduce along tp, 960 B",
            "linear backward: all-reduce along dp, 192 B",
            "linear backward: reduce-scatter along dp, 96 B",
            "linear backward: all-reduce along tp, 960 B",
        ]
    );
}

/// Steps on tensors without data cost the same, the first one too.
#[test]
fn asking_for_shapes_costs_nothing() {
    let dist = DistContext::dry_run(0, DistOptions::default());
    let layout = Layout::new(Mesh::new(&[("dp", 4)]).unwrap(), &[s(0)]).unwrap();
    let local = Tensor::zeros(DType::F32, &[2, 3], Device::Meta).unwrap();
    let x = DTensor::from_local(&dist, local, layout, &shape(&[8, 3])).unwrap();
    let first = counted(|| x.exp().unwrap()).1.total();
    assert_eq!(first, counted(|| x.exp().unwrap()).1.total());
    assert_eq!(first.bytes, 2 * 6 * 4);
}

/// A tensor used by each rank for a part of the work, first while nothing is
/// recorded and then twice: its gradient is the sum of all.
#[test]
fn uses_without_a_tape_do_not_cost_later_ones_their_gradient() {
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let dist = DistContext::new(gang);
        let x = normal(&dist, &[3, 4], Layout::replicated(mesh)).requires_grad();
        let w = normal(&dist, &[6, 4], Layout::new(mesh, &[s(0)]).unwrap());
        let hidden = x.exp().unwrap();
        no_grad(|| hidden.linear(&w, None, None).unwrap());
        let uses = [hidden.linear(&w, None, None).unwrap(), hidden.linear(&w, None, None).unwrap()];
        let gradients = backward(uses.map(|y| (y.sum_all().unwrap(), None))).unwrap();
        let found = gradients.of(&x).unwrap().unwrap();
        let columns = w.sum(&[0]).unwrap().full_tensor().unwrap();
        let expected =
            x.detach().full_tensor().unwrap().exp().unwrap().mul(&columns).unwrap().scale(2.0).unwrap();
        let found = found.full_tensor().unwrap().to_vec::<f32>().unwrap();
        for (a, b) in found.iter().zip(expected.to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
        assert!(gradients.local().of(x.to_local()).is_some());
    });
}

/// Targets may be pending themselves: they are looked up, not counted by share.
#[test]
fn pending_targets_are_settled_before_they_are_counted() {
    let losses = on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let dist = DistContext::new(gang);
        let logits = normal(&dist, &[4, 5], Layout::replicated(mesh));
        let targets = Tensor::from_slice(&[1i64, -100, 3, -100], &[4]).unwrap();
        let options = CrossEntropy { ignore_index: Some(-100), ..CrossEntropy::default() };
        let expected = logits.to_local().cross_entropy(&targets, options).unwrap().item::<f32>().unwrap();
        [R, s(0), P].map(|placement| {
            let layout = Layout::new(mesh, &[placement]).unwrap();
            let targets = DTensor::distribute(&dist, &targets, layout).unwrap();
            let loss = logits.cross_entropy(&targets, options).unwrap().item::<f32>().unwrap();
            assert!((loss - expected).abs() < 1e-6, "{placement}: {loss} {expected}");
            loss
        })
    });
    assert_eq!(losses[0], losses[1]);
}

#[test]
fn many_parts_can_be_joined() {
    on_ranks(2, |gang| {
        let layout = Layout::new(Mesh::new(&[("tp", 2)]).unwrap(), &[s(1)]).unwrap();
        let x = normal(&DistContext::new(gang), &[1, 4], layout);
        let joined = DTensor::cat(&vec![&x; 70], 0).unwrap();
        assert_eq!((joined.layout(), &joined.shape()[..]), (layout, &[70, 4][..]));
    });
}

/// `x + x · y`: one operand in two terms, which a pending sum may not enter.
#[derive(Clone, PartialEq)]
struct Overlapping;

impl Function for Overlapping {
    fn name(&self) -> &'static str {
        "Overlapping"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![inputs[0].add(&inputs[0].mul(&inputs[1])?)?])
    }
}

impl DFunction for Overlapping {
    fn op_name(&self) -> Option<&'static str> {
        Some("overlapping")
    }

    fn meta(&self, _: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        Ok(Meta::Forward)
    }
}

struct OverlappingRule;

impl DistributedOp for OverlappingRule {
    fn name(&self) -> &'static str {
        "overlapping"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let rule = Rule::new(&[1, 1], &[1]).label(call.inputs[0].shape()[0], [(0, 0), (1, 0)], [(0, 0)]);
        Ok(rule.term(&[0]).term(&[0, 1]))
    }
}

#[test]
fn terms_that_share_an_operand_are_right() {
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let dist = with_registry(gang, Registry::builder().register(OverlappingRule).unwrap().freeze());
        let whole = Tensor::normal(DType::F32, &[5], STREAM, 0).unwrap();
        let values = [Value::from(whole.clone()), Value::from(whole)];
        let expected =
            apply(&Overlapping, &values).unwrap().remove(0).local().unwrap().to_vec::<f32>().unwrap();
        for a in [R, s(0), P] {
            for b in [R, s(0), P] {
                let spread =
                    |placement| Value::from(normal(&dist, &[5], Layout::new(mesh, &[placement]).unwrap()));
                let y =
                    apply(&Overlapping, &[spread(a), spread(b)]).unwrap().remove(0).distributed().unwrap();
                let found = y.full_tensor().unwrap().to_vec::<f32>().unwrap();
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{a} {b}");
            }
        }
    });
}

/// A step of the optimizer and the norm of all gradients, for every layout.
#[test]
fn the_optimizer_does_not_depend_on_the_layout() {
    let draw = |number: u64| Tensor::normal(DType::F32, &[5, 3], Stream { seed: 9, number }, 0).unwrap();
    let (mut expected, gradient) = (draw(1), draw(2));
    let mut moments = weightloom_tensor::Moments::zero(&expected).unwrap();
    AdamW::default().step(1, &mut expected, &gradient, &mut moments).unwrap();
    let norm = weightloom_tensor::global_norm(&[&gradient, &gradient]).unwrap();
    on_ranks(3, |gang| {
        let mesh = Mesh::new(&[("dp", 3)]).unwrap();
        let dist = DistContext::new(gang);
        for held in [R, s(0), s(1)] {
            for given in [R, s(0), s(1), P] {
                let spread = |x: &Tensor, placement| {
                    DTensor::distribute(&dist, x, Layout::new(mesh, &[placement]).unwrap()).unwrap()
                };
                let (mut parameter, gradient) = (spread(&draw(1), held), spread(&gradient, given));
                let mut moments = weightloom_tensor::Moments::zero(parameter.to_local()).unwrap();
                let shared = parameter.clone();
                let local = gradient.redistribute(parameter.layout()).unwrap();
                let step = |parameter: &mut Tensor| {
                    AdamW::default().step(1, parameter, local.to_local(), &mut moments)
                };
                parameter.change_local(step).unwrap();
                let found = parameter.full_tensor().unwrap().to_vec::<f32>().unwrap();
                assert_eq!(found, expected.to_vec::<f32>().unwrap());
                // Clones keep the old elements.
                assert_eq!(
                    shared.full_tensor().unwrap().to_vec::<f32>().unwrap(),
                    draw(1).to_vec::<f32>().unwrap()
                );
                let found = global_norm(&[&gradient, &gradient]).unwrap();
                assert!((found - norm).abs() < 1e-6 * norm, "{found} {norm}");
            }
        }
    });
}

/// Errors between ranks keep their type on the way through the tape.
#[test]
fn errors_keep_their_type() {
    let outcomes = on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("dp", 2)]).unwrap();
        let rank = gang.rank();
        let dist = DistContext::new(gang);
        let x = normal(&dist, &[4], Layout::new(mesh, &[s(0)]).unwrap()).requires_grad();
        let whole = x.redistribute(Layout::replicated(mesh)).unwrap();
        let lifted = whole.mul(&normal(&dist, &[4], Layout::new(mesh, &[s(0)]).unwrap())).unwrap();
        // One rank leaves before its gradients are wanted.
        if rank == 1 {
            return None;
        }
        Some(backward([(lifted.scale(2.0).unwrap(), None), (whole.sum_all().unwrap(), None)]).map(drop))
    });
    let error = outcomes[0].clone().unwrap();
    assert!(error.is_ok() || matches!(error, Err(DTensorError::Gang(_))), "{error:?}");
    let outcomes = on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("dp", 2)]).unwrap();
        let rank = gang.rank();
        let dist = DistContext::new(gang);
        let w = normal(&dist, &[4], Layout::replicated(mesh)).requires_grad();
        let y = w.mul(&normal(&dist, &[2, 4], Layout::new(mesh, &[s(0)]).unwrap())).unwrap();
        (rank == 0).then(|| backward([(y, None)]).map(drop))
    });
    assert!(matches!(outcomes[0].clone().unwrap(), Err(DTensorError::Gang(_))), "{:?}", outcomes[0]);
}

#[test]
fn random_numbers_are_the_same_for_every_layout() {
    let dims = [5, 7];
    let expected = Tensor::normal(DType::F32, &dims, STREAM, 0).unwrap();
    let dropped = expected.dropout(0.3, STREAM, 0).unwrap().to_vec::<f32>().unwrap();
    let expected = expected.to_vec::<f32>().unwrap();
    let uniform = Tensor::uniform(DType::F32, &dims, STREAM, 0).unwrap().to_vec::<f32>().unwrap();
    for count in [1, 2, 3, 4] {
        on_ranks(count, |gang| {
            let mesh = Mesh::new(&[("a", count)]).unwrap();
            let dist = DistContext::new(gang);
            for placement in [R, s(0), s(1), P] {
                let layout = Layout::new(mesh, &[placement]).unwrap();
                let even = DTensor::uniform(&dist, DType::F32, &shape(&dims), layout, STREAM).unwrap();
                assert_eq!(even.full_tensor().unwrap().to_vec::<f32>().unwrap(), uniform);
                let x = normal(&dist, &dims, layout);
                assert_eq!(x.full_tensor().unwrap().to_vec::<f32>().unwrap(), expected);
                let y = x.dropout(0.3, STREAM).unwrap();
                assert_eq!(y.full_tensor().unwrap().to_vec::<f32>().unwrap(), dropped);
            }
        });
    }
}

#[test]
fn a_local_function_can_be_mapped() {
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let dist = DistContext::new(gang);
        let rows = Layout::new(mesh, &[s(0)]).unwrap();
        let x = normal(&dist, &[5, 3], Layout::replicated(mesh)).requires_grad();
        let w = normal(&dist, &[3], Layout::replicated(mesh)).requires_grad();
        let results = local_map(
            "scaled",
            &[(&x, rows), (&w, Layout::replicated(mesh))],
            &[(rows, shape(&[5, 3]))],
            |locals| Ok(vec![locals[0].mul(&locals[1])?]),
        );
        let y = results.unwrap().remove(0);
        let expected = x.mul(&w).unwrap().full_tensor().unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y.detach().full_tensor().unwrap().to_vec::<f32>().unwrap(), expected);
        let gradients = backward([(y, None)]).unwrap();
        let of = |x: &DTensor| gradients.of(x).unwrap().unwrap().full_tensor().unwrap();
        let by_hand = x.sum(&[0]).unwrap().full_tensor().unwrap().to_vec::<f32>().unwrap();
        for (a, b) in of(&w).to_vec::<f32>().unwrap().iter().zip(&by_hand) {
            assert!((a - b).abs() < 1e-5);
        }
        assert_eq!(of(&x).shape(), x.shape());
        // A part of another shape is refused.
        let wrong = local_map("cut", &[(&x, rows)], &[(rows, shape(&[5, 3]))], |locals| {
            Ok(vec![locals[0].narrow(1, 0, 2)?])
        });
        assert!(matches!(wrong, Err(DTensorError::LocalShape { op: "cut", .. })));
        let bad = local_map("cut", &[(&x, rows)], &[(rows, shape(&[5, 3]))], |_| panic!("no row {}", 7));
        assert_eq!(bad.unwrap_err().to_string(), "cut panicked in `local_map`: no row 7");
        let results = [(rows, shape(&[5, 3])), (Layout::replicated(mesh), shape(&[5, 3]))];
        let mixed = local_map("mixed", &[(&x, rows)], &results, |locals| Ok(vec![locals[0].clone(); 2]));
        assert!(matches!(mixed, Err(DTensorError::Rule { op: "mixed", .. })));
    });
}

#[derive(Clone, PartialEq)]
struct Doubled {
    op: Option<&'static str>,
}

impl Function for Doubled {
    fn name(&self) -> &'static str {
        "Doubled"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![inputs[0].scale(2.0)?])
    }

    fn backward(
        &self,
        _: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        Ok(vec![gradients[0].as_ref().map(|gradient| gradient.scale(2.0)).transpose()?])
    }
}

impl DFunction for Doubled {
    fn op_name(&self) -> Option<&'static str> {
        self.op
    }

    fn meta(&self, _: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        Ok(Meta::Forward)
    }
}

struct Named(&'static str);

impl DistributedOp for Named {
    fn name(&self) -> &'static str {
        self.0
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        // Wrong on purpose where it is used: too few dims.
        Ok(Rule::new(&[call.inputs[0].shape().ndim() - 1], &[1]))
    }
}

#[test]
fn functions_need_a_name_and_names_a_rule() {
    let dist = DistContext::new(solo(GangOptions::default()));
    let layout = Layout::replicated(Mesh::new(&[("dp", 1)]).unwrap());
    let x = normal(&dist, &[4], layout);
    let run = |op, value: Value| apply(&Doubled { op }, &[value]);
    // Local tensors go straight to the tape, named or not.
    let local = run(None, Value::from(x.to_local().clone())).unwrap().remove(0).local().unwrap();
    assert_eq!(local.shape(), x.shape());
    let error = run(None, Value::from(x.clone())).unwrap_err();
    assert_eq!(error, DTensorError::UnnamedOp { function: "Doubled" });
    assert!(error.hint().unwrap().contains("op_name"));
    let error = run(Some("scael"), Value::from(x.clone())).unwrap_err();
    assert_eq!(error.to_string(), "no sharding rule is registered for operation `scael`");
    assert!(error.hint().unwrap().starts_with("write `scale`"));
    let doubled = run(Some("scale"), Value::from(x.clone())).unwrap().remove(0).distributed().unwrap();
    assert_eq!(doubled.layout(), layout);
    assert!(matches!(
        Registry::builder().register(Named("add")),
        Err(DTensorError::DuplicateOp { name }) if name == "add"
    ));
    let registry = Registry::builder().register(Named("wrong")).unwrap().freeze();
    assert!(registry.names().contains(&"wrong"));
    let dist = with_registry(solo(GangOptions::default()), registry);
    let x = normal(&dist, &[4], layout);
    assert!(matches!(run(Some("wrong"), Value::from(x)), Err(DTensorError::Rule { op: "wrong", .. })));
}

/// How far each element is from the mean of its row.
#[derive(Clone, PartialEq)]
struct Centered;

impl Function for Centered {
    fn name(&self) -> &'static str {
        "Centered"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let x = &inputs[0];
        let mean = x.mean(&[1])?.reshape(&Shape::new(&[x.shape()[0], 1])?)?;
        Ok(vec![x.sub(&mean)?])
    }
}

impl DFunction for Centered {
    fn op_name(&self) -> Option<&'static str> {
        Some("centered")
    }

    fn meta(&self, _: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        Ok(Meta::Forward)
    }
}

struct CenteredRule;

impl DistributedOp for CenteredRule {
    fn name(&self) -> &'static str {
        "centered"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let x = call.inputs[0].shape();
        let rule = Rule::new(&[2], &[2]).label(x[0], [(0, 0)], [(0, 0)]);
        Ok(rule.label(x[1], [(0, 1)], [(0, 1)]))
    }

    /// Where columns are sharded, ranks add up their sums first.
    fn replacement(
        &self,
        call: &LocalCall<'_>,
        locals: &[Tensor],
    ) -> Option<Result<Vec<Tensor>, DTensorError>> {
        let (kind, x) = (call.inputs[0], &locals[0]);
        let &[axis] = kind.layout().split_axes(1) else { return None };
        let centered = || {
            let mut sums = x.sum(&[1])?.to_vec::<f32>()?;
            call.dist.gang_along(kind.layout().mesh(), axis)?.all_reduce(&mut sums, ReduceOp::Sum)?;
            let means = Tensor::from_slice(&sums, &[sums.len(), 1])?.scale(1.0 / kind.shape()[1] as f64)?;
            Ok(vec![x.sub(&means)?])
        };
        Some(centered())
    }
}

#[test]
fn an_operation_can_replace_its_local_computation() {
    for count in [1, 2, 3] {
        on_ranks(count, |gang| {
            let mesh = Mesh::new(&[("tp", count)]).unwrap();
            let registry = Registry::builder().register(CenteredRule).unwrap().freeze();
            let dist = with_registry(gang, registry);
            let expected = Tensor::normal(DType::F32, &[4, 7], STREAM, 0).unwrap();
            let expected = apply(&Centered, &[Value::from(expected)]).unwrap().remove(0).local().unwrap();
            let expected = expected.to_vec::<f32>().unwrap();
            for placement in [R, s(0), s(1), P] {
                let x = normal(&dist, &[4, 7], Layout::new(mesh, &[placement]).unwrap());
                let y = apply(&Centered, &[Value::from(x)]).unwrap().remove(0).distributed().unwrap();
                let found = y.full_tensor().unwrap().to_vec::<f32>().unwrap();
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6));
            }
        });
    }
}

#[test]
fn bad_operands_are_named() {
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let other = Mesh::new(&[("dp", 2)]).unwrap();
        let dist = DistContext::new(Arc::clone(&gang));
        let rows = Layout::new(mesh, &[s(0)]).unwrap();
        let x = normal(&dist, &[4, 6], rows);
        // Ranks that do not fit.
        let error = x.matmul(&normal(&dist, &[5, 2], rows)).unwrap_err();
        assert_eq!(error.to_string(), "matmul cannot combine shapes 4x6 and 5x2");
        let error = x.sum(&[2]).unwrap_err();
        assert!(error.to_string().contains("sum") && error.to_string().contains("4x6"), "{error}");
        assert!(x.transpose(0, 2).is_err() && x.narrow(0, 3, 2).is_err() && x.cat_with_itself(5).is_err());
        // Meshes and groups that do not fit.
        let error = x.add(&normal(&dist, &[4, 6], Layout::new(other, &[s(0)]).unwrap())).unwrap_err();
        assert!(matches!(error, DTensorError::Meshes { op: "add", .. }));
        let second = DistContext::new(gang);
        assert!(matches!(x.add(&normal(&second, &[4, 6], rows)), Err(DTensorError::Contexts { op: "add" })));
        // A local part that is not what the layout says.
        let local = Tensor::zeros(DType::F32, &[4, 6], Device::Cpu).unwrap();
        let error = DTensor::from_local(&dist, local, rows, &shape(&[4, 6])).unwrap_err();
        let rank = dist.rank();
        let expected = format!(
            "from_local: the local tensor of rank {rank} is 4x6, but the shard of 4x6 as mesh(tp=2) [S(0)] is 2x6"
        );
        assert_eq!(error.to_string(), expected);
        // A dim that is not there.
        assert!(x.redistribute(Layout::new(mesh, &[s(2)]).unwrap()).is_err());
        // What has no gradient says so.
        let max = Layout::new(mesh, &[Placement::Partial(ReduceOp::Max)]).unwrap();
        let tracked = normal(&dist, &[4], Layout::replicated(mesh)).requires_grad();
        assert!(matches!(tracked.redistribute(max), Err(DTensorError::NotDifferentiable { .. })));
        // All ranks refuse a gradient of another shape, though some shards fit.
        let y = normal(&dist, &[4], rows).requires_grad().exp().unwrap();
        let gradient = normal(&dist, &[3], Layout::replicated(mesh));
        let error = backward([(y, Some(gradient))]).unwrap_err();
        assert_eq!(error.to_string(), "backward: a gradient of 3 f32 does not fit a tensor of 4 f32");
        // An output that is pending a maximum.
        let pending = normal(&dist, &[4], rows).requires_grad();
        let local = pending.to_local().clone();
        let pending = DTensor::from_local(&dist, local, max, &shape(&[2])).unwrap();
        let error = backward([(pending, None)]).unwrap_err();
        assert_eq!(error.hint().unwrap(), "redistribute the output first");
        // Bools are not added up.
        let bools = Tensor::from_bools(&[true; 4], &[4]).unwrap();
        let pending =
            DTensor::from_local(&dist, bools, Layout::new(mesh, &[P]).unwrap(), &shape(&[4])).unwrap();
        assert!(matches!(pending.full_tensor(), Err(DTensorError::Gang(_))));
    });
}

trait CatWithItself {
    fn cat_with_itself(&self, dim: usize) -> Result<DTensor, DTensorError>;
}

impl CatWithItself for DTensor {
    fn cat_with_itself(&self, dim: usize) -> Result<DTensor, DTensorError> {
        DTensor::cat(&[self, self], dim)
    }
}

/// Gradients that are not contiguous, values that are not numbers, numbers that
/// are too large for f16: they pass through as in local tensors.
#[test]
fn odd_values_pass_through() {
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let dist = DistContext::new(gang);
        let (rows, whole) = (Layout::new(mesh, &[s(0)]).unwrap(), Layout::replicated(mesh));
        let x = normal(&dist, &[4, 6], rows).requires_grad();
        let gradient = normal(&dist, &[6, 4], whole).transpose(0, 1).unwrap();
        let expected = gradient.full_tensor().unwrap().to_vec::<f32>().unwrap();
        let gradients = backward([(x.scale(1.0).unwrap(), Some(gradient))]).unwrap();
        let found = gradients.of(&x).unwrap().unwrap();
        assert_eq!(found.layout(), rows);
        assert_eq!(found.full_tensor().unwrap().to_vec::<f32>().unwrap(), expected);
        let spread = |values: &[f32], layout| {
            DTensor::distribute(&dist, &Tensor::from_slice(values, &[4]).unwrap(), layout).unwrap()
        };
        let nan = spread(&[1.0, f32::NAN, 2.0, 3.0], rows);
        assert!(nan.sum_all().unwrap().item::<f32>().unwrap().is_nan());
        let max = nan.redistribute(whole).unwrap().max(&[0]).unwrap().item::<f32>().unwrap();
        assert!(max.is_nan() || max == 3.0);
        let large = spread(&[60000.0, 60000.0, 1.0, 1.0], rows).cast(DType::F16).unwrap();
        let sum = large.sum_all().unwrap().cast(DType::F32).unwrap().item::<f32>().unwrap();
        assert_eq!(sum, f32::INFINITY);
    });
}

/// Where only finite numbers are allowed, the operation that gives another is
/// named, with its operand's dtype and the fix.
#[test]
fn numbers_that_are_not_finite_can_be_refused() {
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let dist = DistContext::new(gang);
        let x = normal(&dist, &[4, 6], Layout::replicated(mesh)).cast(DType::F16).unwrap();
        assert!(x.scale(1e6).is_ok());
        let check = NanCheck::failing();
        let error = x.with_nan_check(&check).scale(1e6).unwrap_err();
        let rank = dist.rank();
        let expected = format!("scale gave infinity or NaN in its forward pass, in 4x6 f16 of rank {rank}");
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.hint().unwrap(), "use bf16 or f32, or scale the loss");
        let negative = normal(&dist, &[4, 6], Layout::replicated(mesh)).with_nan_check(&check);
        let negative = negative.log().unwrap_err();
        assert!(matches!(negative, DTensorError::NotFinite { op: "log", dtype: DType::F32, .. }));
        // Gradients that ranks send each other are looked at too.
        let zeros = Tensor::zeros(DType::F32, &[4], Device::Cpu).unwrap();
        let zeros = DTensor::distribute(&dist, &zeros, Layout::replicated(mesh)).unwrap().requires_grad();
        let zeros = zeros.with_nan_check(&check);
        let cut = zeros.redistribute(Layout::new(mesh, &[s(0)]).unwrap()).unwrap();
        let error = backward([(cut.sqrt().unwrap(), None)]).unwrap_err();
        assert!(matches!(error, DTensorError::NotFinite { pass: Pass::Backward, .. }), "{error:?}");
    });
}

/// A hook that fails on every rank ends the backward pass with its error.
#[test]
fn the_error_of_a_hook_is_returned() {
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("dp", 2)]).unwrap();
        let dist = DistContext::new(gang);
        let x = normal(&dist, &[4], Layout::new(mesh, &[s(0)]).unwrap()).requires_grad();
        x.to_local().register_parameter_hook(|_| Err(TensorError::from_function("hook", "no room"))).unwrap();
        let error = backward([(x.sum_all().unwrap(), None)]).unwrap_err();
        assert_eq!(error.to_string(), "hook failed");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no room");
    });
}

/// A typed error of a hook or of a recomputed region comes back through the
/// backward pass as that error.
#[test]
fn typed_errors_come_back_through_backward_by_downcast() {
    #[derive(Clone, Debug, PartialEq, thiserror::Error)]
    #[error("the disk is full")]
    struct DiskFull;
    on_ranks(2, |gang| {
        let mesh = Mesh::new(&[("dp", 2)]).unwrap();
        let dist = DistContext::new(gang);
        let x = normal(&dist, &[4], Layout::new(mesh, &[s(0)]).unwrap()).requires_grad();
        let failing = || Err(TensorError::from_function("spill", DiskFull).into());
        let hooked = x.exp().unwrap().register_hook(failing).unwrap();
        let error = backward([(hooked.sum_all().unwrap(), None)]).unwrap_err();
        let DTensorError::Tensor(error) = error else { panic!("{error:?}") };
        assert_eq!(error.function_source::<DiskFull>(), Some(&DiskFull));
        // An error that looks the same but is another type stays what it is.
        let text = TensorError::from_function("spill", DiskFull.to_string());
        assert_eq!(text.function_source::<DiskFull>(), None);
        assert_ne!(text, error);
        let dry = || Err(DTensorError::DryRun { what: "spill" });
        let hooked = x.exp().unwrap().register_hook(dry).unwrap();
        let error = backward([(hooked.sum_all().unwrap(), None)]).unwrap_err();
        assert_eq!(error, DTensorError::DryRun { what: "spill" });
        let once = std::sync::atomic::AtomicBool::new(true);
        let region = move |x: &[DTensor]| match once.swap(false, std::sync::atomic::Ordering::Relaxed) {
            true => Ok(vec![x[0].exp()?]),
            false => Err(DTensorError::DryRun { what: "recompute" }),
        };
        let y = recompute(&[x], &[], region).unwrap().remove(0);
        let error = backward([(y.sum_all().unwrap(), None)]).unwrap_err();
        assert_eq!(error, DTensorError::DryRun { what: "recompute" });
    });
}

/// Training under tensor parallelism moves data only where its plan says so.
#[test]
fn the_transformer_needs_no_implicit_redistribution() {
    for count in [2, 4] {
        on_ranks(count, |gang| {
            let dist = explicit(gang);
            for arrangement in check::Arrangement::all(count).unwrap() {
                // Six rows of a batch do not go into four evenly, so that joining
                // rows and positions must move them.
                let uneven =
                    count == 4 && arrangement.name.contains("dp") && !arrangement.name.contains("tp");
                let trained = check::train(&dist, &arrangement, 1).map(drop);
                match uneven {
                    true => assert!(matches!(
                        trained,
                        Err(DTensorError::ImplicitRedistribution { op: "reshape", .. })
                    )),
                    false => assert_eq!(trained, Ok(()), "{}", arrangement.name),
                }
            }
        });
    }
}

#[test]
fn the_example_runs() {
    let mut example = std::process::Command::new(env!("CARGO"));
    example.args(["run", "-q", "--locked", "-p", "weightloom-dtensor", "--example", "own_operation"]);
    let output = example.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.ends_with("results and gradients are those of one rank\n"), "{text}");
}

/// Caches are written by each rank for its part, whatever the layouts.
#[test]
fn writing_in_place_is_writing_into_the_whole() {
    let (dims, written) = ([4, 2, 6, 3], [4, 2, 2, 3]);
    let normal =
        |dims: &[usize], number| Tensor::normal(DType::F32, dims, Stream { seed: 5, number }, 0).unwrap();
    let (whole, source) = (normal(&dims, 0), normal(&written, 1));
    let starts = [0, 4, 3, 1];
    let expected = |work: &dyn Fn(&mut Tensor) -> Result<(), TensorError>| {
        let mut whole = whole.clone();
        work(&mut whole).unwrap();
        whole.to_vec::<f32>().unwrap()
    };
    let along = expected(&|x| x.assign(2, 3, &source));
    let by_row = expected(&|x| x.assign_at(&starts, &source));
    for (placements, from) in [
        ([s(0), s(1)], [s(0), s(1)]),
        ([s(0), R], [s(1), s(0)]),
        ([s(2), s(0)], [R, R]),
        ([s(2), s(2)], [s(2), s(0)]),
        ([s(3), R], [R, s(3)]),
    ] {
        on_ranks(4, |gang| {
            let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]).unwrap();
            let dist = DistContext::new(Arc::clone(&gang));
            let distribute = |x: &Tensor, placements: &[Placement]| {
                DTensor::distribute(&dist, x, Layout::new(mesh, placements).unwrap()).unwrap()
            };
            let cache = distribute(&whole, &placements);
            let spread = distribute(&source, &from);
            let (mut x, mut y) = (cache.clone(), cache.clone());
            x.assign(2, 3, &spread).unwrap();
            y.assign_at(&starts, &spread).unwrap();
            let values = |x: &DTensor| x.full_tensor().unwrap().to_vec::<f32>().unwrap();
            assert_eq!(values(&x), along, "{placements:?} {from:?}");
            assert_eq!(values(&y), by_row, "{placements:?} {from:?}");
            assert_eq!(values(&cache), whole.to_vec::<f32>().unwrap());
            assert_eq!(x.layout(), cache.layout());
            // What does not fit is refused everywhere, before anything moves.
            assert!(x.assign(2, 5, &spread).is_err() && y.assign_at(&[0, 0, 0, 5], &spread).is_err());
            let dist = explicit(gang);
            let distribute = |x: &Tensor, placements: &[Placement]| {
                DTensor::distribute(&dist, x, Layout::new(mesh, placements).unwrap()).unwrap()
            };
            let (mut x, source) = (distribute(&whole, &placements), distribute(&source, &from));
            let moved = placements != from && from != [R, R];
            assert_eq!(x.assign(2, 3, &source).is_err(), moved, "{placements:?} {from:?}");
        });
    }
}

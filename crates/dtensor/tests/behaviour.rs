//! What users see: modes, the bill, randomness, and errors.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::sync::Arc;

use shardloom_dtensor::{
    Call, Cause, DFunction, DTensor, DTensorError, DistributedOp, Mode, Numbers, Parts, Ranks, Registry,
    Rule, Value, apply, backward, check, local_map,
};
use shardloom_gang::{Gang, GangExt as _, GangOptions, solo, threads};
use shardloom_layout::{DType, Hint as _, Layout, Mesh, Placement, ReduceOp, Shape};
use shardloom_tensor::{Context, Device, Function, Stream, Tensor, TensorError};

const R: Placement = Placement::Replicate;
const P: Placement = Placement::Partial(ReduceOp::Sum);
const STREAM: Stream = Stream { seed: 4, number: 2 };

fn s(dim: usize) -> Placement {
    Placement::Shard(dim)
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

fn on<T: Send>(ranks: usize, work: impl Fn(Arc<dyn Gang>) -> T + Sync) -> Vec<T> {
    threads::run(ranks, GangOptions::default(), work).unwrap()
}

fn normal(ranks: &Arc<Ranks>, dims: &[usize], layout: Layout) -> DTensor {
    DTensor::normal(ranks, DType::F32, &shape(dims), layout, STREAM).unwrap()
}

#[test]
fn modes_allow_tell_of_or_refuse_hidden_collectives() {
    on(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let ranks = Ranks::new(gang);
        let x = normal(&ranks, &[4, 6], Layout::new(mesh, &[s(1)]).unwrap());
        assert!(x.softmax(1).is_ok() && ranks.take_warnings().is_empty());
        ranks.set_mode(Mode::Warn);
        assert!(x.softmax(1).is_ok());
        assert_eq!(ranks.take_warnings().len(), 1);
        ranks.set_mode(Mode::Explicit);
        let error = x.softmax(1).unwrap_err();
        let told =
            "softmax needs data to move: operand 0, 4x6 f32, from mesh(tp=2) [S(1)] to mesh(tp=2) [S(0)]";
        assert_eq!(error.to_string(), told);
        assert!(error.hint().unwrap().contains("redistribute"));
        // What moves nothing is no hidden collective, and asking is allowed.
        assert!(x.exp().is_ok() && x.redistribute(Layout::replicated(mesh)).unwrap().softmax(1).is_ok());
    });
}

/// The bill of the transformer's training, without data or other ranks, is the
/// bill of the real one.
#[test]
fn a_dry_run_has_the_bill_of_the_real_one() {
    let step = |ranks: &Arc<Ranks>, device: Device| {
        let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]).unwrap();
        let make = |dims: &[usize], layout: Layout| {
            let local = layout.local_shape(&shape(dims), ranks.rank()).unwrap();
            let local = Tensor::zeros(DType::F32, &local, device).unwrap();
            DTensor::from_local(ranks, local, layout, &shape(dims)).unwrap().requires_grad()
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
        ranks.take_bill()
    };
    let real = on(4, |gang| step(&Ranks::new(gang), Device::Cpu));
    for (rank, bill) in real.iter().enumerate() {
        assert_eq!(&step(&Ranks::dry(rank, Registry::built_in()), Device::Meta), bill);
    }
    let told: Vec<String> = real[0]
        .iter()
        .map(|item| {
            let Cause { op, pass } = item.cause;
            format!("{op} {pass}: {} along {}, {} B", item.collective, item.axis, item.bytes)
        })
        .collect();
    assert_eq!(
        told,
        [
            "redistribute forward: all-gather along dp, 96 B",
            "redistribute forward: all-reduce along tp, 960 B",
            "linear backward: all-reduce along dp, 192 B",
            "linear backward: reduce-scatter along dp, 96 B",
            "linear backward: all-reduce along tp, 960 B",
        ]
    );
}

#[test]
fn random_numbers_are_the_same_for_every_layout() {
    let dims = [5, 7];
    let expected = Tensor::normal(DType::F32, &dims, STREAM, 0).unwrap();
    let dropped = expected.dropout(0.3, STREAM, 0).unwrap().to_vec::<f32>().unwrap();
    let expected = expected.to_vec::<f32>().unwrap();
    for count in [1, 2, 3, 4] {
        on(count, |gang| {
            let mesh = Mesh::new(&[("a", count)]).unwrap();
            let ranks = Ranks::new(gang);
            for placement in [R, s(0), s(1), P] {
                let x = normal(&ranks, &dims, Layout::new(mesh, &[placement]).unwrap());
                assert_eq!(x.full_tensor().unwrap().to_vec::<f32>().unwrap(), expected);
                let y = x.dropout(0.3, STREAM).unwrap();
                assert_eq!(y.full_tensor().unwrap().to_vec::<f32>().unwrap(), dropped);
            }
        });
    }
}

#[test]
fn a_local_function_can_be_mapped() {
    on(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let ranks = Ranks::new(gang);
        let rows = Layout::new(mesh, &[s(0)]).unwrap();
        let x = normal(&ranks, &[5, 3], Layout::replicated(mesh)).requires_grad();
        let w = normal(&ranks, &[3], Layout::replicated(mesh)).requires_grad();
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
        assert!(matches!(wrong, Err(DTensorError::Local { op: "cut", .. })));
    });
}

#[derive(Clone)]
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
    let ranks = Ranks::new(solo(GangOptions::default()));
    let layout = Layout::replicated(Mesh::new(&[("dp", 1)]).unwrap());
    let x = normal(&ranks, &[4], layout);
    let run = |op, value: Value| apply(&Doubled { op }, &[value]);
    // Local tensors go straight to the tape, named or not.
    let local = run(None, Value::from(x.to_local().clone())).unwrap().remove(0).local().unwrap();
    assert_eq!(local.shape(), x.shape());
    let error = run(None, Value::from(x.clone())).unwrap_err();
    assert_eq!(error, DTensorError::Unnamed { function: "Doubled" });
    assert!(error.hint().unwrap().contains("op_name"));
    let error = run(Some("scael"), Value::from(x.clone())).unwrap_err();
    assert_eq!(error.to_string(), "no rule is registered for operation `scael`");
    assert!(error.hint().unwrap().starts_with("write `scale`"));
    let doubled = run(Some("scale"), Value::from(x.clone())).unwrap().remove(0).distributed().unwrap();
    assert_eq!(doubled.layout(), layout);
    assert!(matches!(
        Registry::builder().register(Named("add")),
        Err(DTensorError::DuplicateOp { name }) if name == "add"
    ));
    let registry = Registry::builder().register(Named("wrong")).unwrap().freeze();
    assert!(registry.names().contains(&"wrong"));
    let ranks = Ranks::with_registry(solo(GangOptions::default()), registry);
    let x = normal(&ranks, &[4], layout);
    assert!(matches!(run(Some("wrong"), Value::from(x)), Err(DTensorError::Rule { op: "wrong", .. })));
}

/// How far each element is from the mean of its row.
#[derive(Clone)]
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
    fn replacement(&self, parts: &Parts<'_>, locals: &[Tensor]) -> Option<Result<Vec<Tensor>, DTensorError>> {
        let (kind, x) = (parts.inputs[0], &locals[0]);
        let &[axis] = kind.layout().split_axes(1) else { return None };
        let centered = || {
            let mut sums = x.sum(&[1])?.to_vec::<f32>()?;
            parts.ranks.gang_along(kind.layout().mesh(), axis)?.all_reduce(&mut sums, ReduceOp::Sum)?;
            let means = Tensor::from_slice(&sums, &[sums.len(), 1])?.scale(1.0 / kind.shape()[1] as f64)?;
            Ok(vec![x.sub(&means)?])
        };
        Some(centered())
    }
}

#[test]
fn an_operation_can_replace_its_local_computation() {
    for count in [1, 2, 3] {
        on(count, |gang| {
            let mesh = Mesh::new(&[("tp", count)]).unwrap();
            let registry = Registry::builder().register(CenteredRule).unwrap().freeze();
            let ranks = Ranks::with_registry(gang, registry);
            let expected = Tensor::normal(DType::F32, &[4, 7], STREAM, 0).unwrap();
            let expected = apply(&Centered, &[Value::from(expected)]).unwrap().remove(0).local().unwrap();
            let expected = expected.to_vec::<f32>().unwrap();
            for placement in [R, s(0), s(1), P] {
                let x = normal(&ranks, &[4, 7], Layout::new(mesh, &[placement]).unwrap());
                let y = apply(&Centered, &[Value::from(x)]).unwrap().remove(0).distributed().unwrap();
                let found = y.full_tensor().unwrap().to_vec::<f32>().unwrap();
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6));
            }
        });
    }
}

#[test]
fn bad_operands_are_named() {
    on(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let other = Mesh::new(&[("dp", 2)]).unwrap();
        let ranks = Ranks::new(Arc::clone(&gang));
        let rows = Layout::new(mesh, &[s(0)]).unwrap();
        let x = normal(&ranks, &[4, 6], rows);
        // Ranks that do not fit.
        let error = x.matmul(&normal(&ranks, &[5, 2], rows)).unwrap_err();
        assert_eq!(error.to_string(), "matmul cannot combine shapes 4x6 and 5x2");
        let error = x.sum(&[2]).unwrap_err();
        assert!(error.to_string().contains("sum") && error.to_string().contains("4x6"), "{error}");
        assert!(x.transpose(0, 2).is_err() && x.narrow(0, 3, 2).is_err() && x.cat_with_itself(5).is_err());
        // Meshes and groups that do not fit.
        let error = x.add(&normal(&ranks, &[4, 6], Layout::new(other, &[s(0)]).unwrap())).unwrap_err();
        assert!(matches!(error, DTensorError::Meshes { op: "add", .. }));
        let second = Ranks::new(gang);
        assert!(matches!(x.add(&normal(&second, &[4, 6], rows)), Err(DTensorError::Worlds { op: "add" })));
        // A local part that is not what the layout says.
        let local = Tensor::zeros(DType::F32, &[4, 6], Device::Cpu).unwrap();
        let error = DTensor::from_local(&ranks, local, rows, &shape(&[4, 6])).unwrap_err();
        let rank = ranks.rank();
        let told =
            format!("from_local: rank {rank} holds 4x6, but of 4x6 as mesh(tp=2) [S(0)] its part is 2x6");
        assert_eq!(error.to_string(), told);
        // A dim that is not there.
        assert!(x.redistribute(Layout::new(mesh, &[s(2)]).unwrap()).is_err());
        // What has no gradient says so.
        let max = Layout::new(mesh, &[Placement::Partial(ReduceOp::Max)]).unwrap();
        let tracked = normal(&ranks, &[4], Layout::replicated(mesh)).requires_grad();
        assert!(matches!(tracked.redistribute(max), Err(DTensorError::NotDifferentiable { .. })));
        // A gradient of another shape.
        let y = tracked.exp().unwrap();
        let gradient = normal(&ranks, &[5], Layout::replicated(mesh));
        assert!(backward([(y, Some(gradient))]).is_err());
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
    on(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let ranks = Ranks::new(gang);
        let (rows, whole) = (Layout::new(mesh, &[s(0)]).unwrap(), Layout::replicated(mesh));
        let x = normal(&ranks, &[4, 6], rows).requires_grad();
        let gradient = normal(&ranks, &[6, 4], whole).transpose(0, 1).unwrap();
        let expected = gradient.full_tensor().unwrap().to_vec::<f32>().unwrap();
        let gradients = backward([(x.scale(1.0).unwrap(), Some(gradient))]).unwrap();
        let found = gradients.of(&x).unwrap().unwrap();
        assert_eq!(found.layout(), rows);
        assert_eq!(found.full_tensor().unwrap().to_vec::<f32>().unwrap(), expected);
        let spread = |values: &[f32], layout| {
            DTensor::distribute(&ranks, &Tensor::from_slice(values, &[4]).unwrap(), layout).unwrap()
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
    on(2, |gang| {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let ranks = Ranks::new(gang);
        let x = normal(&ranks, &[4, 6], Layout::replicated(mesh)).cast(DType::F16).unwrap();
        assert!(x.scale(1e6).is_ok());
        ranks.set_numbers(Numbers::Finite);
        let error = x.scale(1e6).unwrap_err();
        let rank = ranks.rank();
        let told = format!("scale gave infinity or NaN in its forward pass, in 4x6 f16 of rank {rank}");
        assert_eq!(error.to_string(), told);
        assert_eq!(error.hint().unwrap(), "use bf16 or f32, or scale the loss");
        let negative = normal(&ranks, &[4, 6], Layout::replicated(mesh)).log().unwrap_err();
        assert!(matches!(negative, DTensorError::NotFinite { op: "log", dtype: DType::F32, .. }));
        // Gradients that ranks send each other are looked at too.
        let y = normal(&ranks, &[4], Layout::replicated(mesh)).requires_grad();
        let cut = y.redistribute(Layout::new(mesh, &[s(0)]).unwrap()).unwrap();
        let infinite = Tensor::full(f64::INFINITY, DType::F32, &[4], Device::Cpu).unwrap();
        let infinite = DTensor::distribute(&ranks, &infinite, Layout::replicated(mesh)).unwrap();
        let error = backward([(cut, Some(infinite))]).unwrap_err();
        assert!(error.to_string().contains("gave infinity or NaN in its backward pass"), "{error}");
    });
}

/// A hook that fails on every rank ends the backward pass with its error.
#[test]
fn a_hook_that_fails_is_told() {
    on(2, |gang| {
        let mesh = Mesh::new(&[("dp", 2)]).unwrap();
        let ranks = Ranks::new(gang);
        let x = normal(&ranks, &[4], Layout::new(mesh, &[s(0)]).unwrap()).requires_grad();
        x.to_local()
            .on_gradient(|_| Err(TensorError::Outside { function: "hook", reason: "no room".to_owned() }))
            .unwrap();
        let error = backward([(x.sum_all().unwrap(), None)]).unwrap_err();
        assert_eq!(error.to_string(), "hook: no room");
    });
}

/// Training under tensor parallelism moves data only where its plan says so.
#[test]
fn the_transformer_has_no_hidden_collectives() {
    for count in [2, 4] {
        on(count, |gang| {
            let ranks = Ranks::new(gang);
            ranks.set_mode(Mode::Explicit);
            for arrangement in check::Arrangement::all(count).unwrap() {
                // Six rows of a batch do not go into four evenly.
                let even = !arrangement.name.contains("dp") || count == 2 || arrangement.name.contains("tp");
                let trained = check::train(&ranks, &arrangement, 1);
                if even {
                    assert!(trained.is_ok(), "{}: {}", arrangement.name, trained.unwrap_err());
                }
            }
        });
    }
}

#[test]
fn the_example_runs() {
    let mut example = std::process::Command::new(env!("CARGO"));
    example.args(["run", "-q", "--locked", "-p", "shardloom-dtensor", "--example", "own_operation"]);
    let output = example.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.ends_with("results and gradients are those of one rank\n"), "{text}");
}

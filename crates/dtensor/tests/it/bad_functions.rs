//! Users' functions that do something wrong: an error that names them, on every
//! rank, and nothing lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weightloom_dtensor::{
    Call, DFunction, DTensor, DTensorError, DistContext, DistOptions, DistributedOp, Meta, Registry, Rule,
    backward,
};
use weightloom_errors::Hint as _;
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};
use weightloom_tensor::{Context, Function, Tensor, TensorError};

/// What the function does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    /// Its results are whole where its rule says that they are sharded.
    WholeResults,
    /// Its results have another dtype than `meta` says.
    OtherDType,
    /// It returns one result more than its rule has.
    OneMore,
    /// It returns one result less than its rule has.
    OneLess,
    PanicInForward,
    PanicInBackward,
    PanicInRule,
    PanicInMeta,
    /// `meta` has one result more than the rule.
    MetaHasMore,
    /// Its gradient has the shape of one row.
    GradientOfARow,
    /// It returns two gradients for one operand.
    TwoGradients,
}

/// Doubles the rows of a matrix, and sums them.
#[derive(Clone, Copy, PartialEq)]
struct Faulty {
    fault: Fault,
    /// The rank that is wrong, or all.
    only: Option<usize>,
    rank: usize,
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault && self.only.is_none_or(|only| only == self.rank)
    }
}

impl Function for Faulty {
    fn name(&self) -> &'static str {
        "Faulty"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let x = &inputs[0];
        assert!(!self.has(Fault::PanicInForward), "a row is bad");
        if self.has(Fault::WholeResults) {
            let zeros = |dims: &[usize]| Tensor::zeros(DType::F64, dims, x.device());
            return Ok(vec![zeros(&[4, 3])?, zeros(&[4])?]);
        }
        let mut results = vec![x.scale(2.0)?, x.sum(&[1])?];
        if self.has(Fault::OtherDType) {
            results[1] = results[1].cast(DType::F32)?;
        }
        if self.has(Fault::OneLess) {
            results.pop();
        }
        if self.has(Fault::OneMore) {
            results.push(x.clone());
        }
        Ok(results)
    }

    fn backward(
        &self,
        _: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        assert!(!self.has(Fault::PanicInBackward), "a gradient is bad");
        let Some(gradient) = &gradients[0] else { return Ok(vec![None]) };
        let of_x = gradient.scale(2.0)?;
        if self.has(Fault::GradientOfARow) {
            return Ok(vec![Some(of_x.sum(&[0])?)]);
        }
        Ok(vec![Some(of_x); 1 + usize::from(self.has(Fault::TwoGradients))])
    }
}

impl DFunction for Faulty {
    fn op_name(&self) -> Option<&'static str> {
        Some("faulty")
    }

    fn meta(&self, inputs: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        assert!(!self.has(Fault::PanicInMeta), "a shape is bad");
        let (x, dtype) = inputs[0].clone();
        let mut outputs = vec![(x.clone(), dtype), (Shape::new(&[x[0]])?, dtype)];
        if self.has(Fault::MetaHasMore) {
            outputs.push((x, dtype));
        }
        Ok(Meta::Outputs(outputs))
    }
}

struct FaultyRule;

impl DistributedOp for FaultyRule {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let function = call.function::<Faulty>().unwrap();
        assert!(!function.has(Fault::PanicInRule), "a layout is bad");
        let rows = call.inputs[0].shape()[0];
        Ok(Rule::new(&[2], &[2, 1]).label(rows, [(0, 0)], [(0, 0), (1, 0)]))
    }
}

/// Results and gradient, both whole.
type Outcome = Result<[Vec<f64>; 2], DTensorError>;

/// Applies a function to a sharded matrix and differentiates the sum of its results,
/// which all ranks make together.
fn run(dist: &Arc<DistContext>, x: &DTensor, function: Faulty) -> Outcome {
    let results = DTensor::apply(&function, &[x])?;
    let loss = results[0].sum_all()?;
    let whole = results[0].detach().full_tensor()?.to_vec()?;
    // The whole is on every rank, so that its gradient is made by all together.
    let loss = loss.redistribute(Layout::replicated(loss.layout().mesh()))?;
    let gradient = backward([(loss, None)])?.of(x).expect("the loss depends on x")?;
    assert!(Arc::ptr_eq(gradient.dist(), dist));
    Ok([whole, gradient.full_tensor()?.to_vec()?])
}

/// What each rank gets from a faulty function, and what from a right one afterwards
/// if all ranks were wrong alike.
fn outcomes(fault: Fault, only: Option<usize>) -> Vec<DTensorError> {
    let begin = Instant::now();
    // Long enough for a busy machine, much shorter than the time-out of a gang.
    let options = GangOptions { timeout: Duration::from_secs(600) };
    let found = threads::run(2, options, |gang: Arc<dyn Gang>| {
        let rank = gang.rank();
        let registry = Registry::builder().register(FaultyRule).unwrap().freeze();
        let dist = DistContext::with_options(gang, DistOptions { registry, ..DistOptions::default() });
        let whole = Tensor::from_slice(&(0..12).map(f64::from).collect::<Vec<_>>(), &[4, 3]).unwrap();
        let rows = Layout::new(Mesh::new(&[("dp", 2)]).unwrap(), &[Placement::Shard(0)]).unwrap();
        let x = DTensor::distribute(&dist, &whole, rows).unwrap().requires_grad();
        let error = run(&dist, &x, Faulty { fault, only, rank }).unwrap_err();
        // The operands are what they were.
        assert_eq!(x.to_local().to_vec::<f64>().unwrap()[0], 6.0 * rank as f64);
        if only.is_none() {
            let found = run(&dist, &x, Faulty { fault: Fault::Nothing, only, rank }).unwrap();
            let doubled: Vec<f64> = (0..12).map(|x| 2.0 * f64::from(x)).collect();
            assert_eq!(found, [doubled, vec![2.0; 12]]);
        }
        error
    });
    assert!(begin.elapsed() < Duration::from_secs(300), "no rank waits for another");
    found.unwrap()
}

fn text(fault: Fault) -> String {
    let errors = outcomes(fault, None);
    assert!(errors.iter().all(|error| std::mem::discriminant(error) == std::mem::discriminant(&errors[0])));
    errors[0].to_string()
}

#[test]
fn a_rule_that_lies_about_a_layout_is_named() {
    let errors = outcomes(Fault::WholeResults, None);
    let expected =
        "faulty: the local tensor of rank 0 is 4x3, but the shard of 4x3 as mesh(dp=2) [S(0)] is 2x3";
    assert_eq!(errors[0].to_string(), expected);
    assert!(matches!(errors[1], DTensorError::LocalShape { op: "faulty", rank: 1, .. }));
    assert_eq!(errors[0].hint().unwrap(), "make `forward`, `meta` and the sharding rule of `faulty` agree");
    assert_eq!(text(Fault::OtherDType), "faulty: the local tensor is f32, expected f64");
}

#[test]
fn another_number_of_results_is_named() {
    assert_eq!(text(Fault::OneLess), "faulty returned 1 results, but its sharding rule has 2");
    assert_eq!(text(Fault::OneMore), "faulty returned 3 results, but its sharding rule has 2");
    let expected = "the sharding rule of faulty does not fit its operands: it has 1 operands and 2 results, but \
                    the call has 1 and 3";
    assert_eq!(text(Fault::MetaHasMore), expected);
}

#[test]
fn a_panic_is_named() {
    assert_eq!(text(Fault::PanicInForward), "Faulty panicked in `forward`: a row is bad");
    assert_eq!(text(Fault::PanicInBackward), "Faulty panicked in `backward`: a gradient is bad");
    assert_eq!(text(Fault::PanicInRule), "faulty panicked in `rule`: a layout is bad");
    assert_eq!(text(Fault::PanicInMeta), "Faulty panicked in `meta`: a shape is bad");
}

#[test]
fn a_gradient_that_does_not_fit_is_named() {
    assert_eq!(text(Fault::GradientOfARow), "Faulty: the gradient of a 2x3 f64 tensor is 3 f64");
    assert_eq!(text(Fault::TwoGradients), "Faulty returned 2 gradients for 1 inputs");
}

/// The other rank is in a collective, or comes to one.
#[test]
fn a_fault_on_one_rank_ends_the_others() {
    for fault in [
        Fault::WholeResults,
        Fault::OneLess,
        Fault::PanicInForward,
        Fault::PanicInBackward,
        Fault::GradientOfARow,
    ] {
        let errors = outcomes(fault, Some(1));
        assert!(matches!(errors[0], DTensorError::Gang(_)), "{fault:?}: {}", errors[0]);
        assert!(errors[1].to_string().to_lowercase().starts_with("faulty"), "{fault:?}: {}", errors[1]);
    }
}

//! Checks a user's function: its sharding rule against whole tensors.

use std::sync::Arc;

use weightloom_layout::{DType, Layout, Mesh, Placement, ReduceOp};
use weightloom_tensor::{Stream, Tensor, apply as apply_local, backward as backward_local};

use crate::dist_context::DistContext;
use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::function::DFunction;
use crate::gradients::backward;

/// `f64` sums in another order, relative to the largest element.
const TOLERANCE: f64 = 1e-9;

/// Applies a function to operands in every combination of layouts over all ranks, and
/// compares results and gradients with those of whole tensors. Returns the number of
/// combinations.
///
/// A rule that allows layouts in which the function computes something else is an
/// error that names its operation. Shapes cannot show such a mistake, so call this in
/// a test. Every rank calls it, with the same operands; floats are computed in `f64`,
/// where rounding cannot hide a wrong number. Dims that the number of ranks
/// does not divide, or smaller ones, are good choices.
///
/// ```
/// use weightloom_dtensor::check::check_function;
/// use weightloom_dtensor::{
///     Call, DFunction, DTensorError, DistContext, DistOptions, DistributedOp, Meta, Registry, Rule,
/// };
/// use weightloom_gang::{GangOptions, threads};
/// use weightloom_layout::{DType, Shape};
/// use weightloom_tensor::{Context, Function, Tensor, TensorError};
///
/// /// Running sums of each row.
/// #[derive(Clone, PartialEq)]
/// struct RunningSum;
///
/// impl Function for RunningSum {
///     fn name(&self) -> &'static str {
///         "RunningSum"
///     }
///     fn forward(&self, _: &mut Context, x: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
///         Ok(vec![x[0].cumsum(1)?])
///     }
///     fn backward(&self, _: Context, g: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>, TensorError> {
///         let Some(g) = &g[0] else { return Ok(vec![None]) };
///         // The sum of all gradients from each element on.
///         let (total, before) = (g.sum(&[1])?.reshape(&Shape::new(&[g.shape()[0], 1])?)?, g.cumsum(1)?);
///         Ok(vec![Some(total.sub(&before)?.add(g)?)])
///     }
/// }
///
/// impl DFunction for RunningSum {
///     fn op_name(&self) -> Option<&'static str> {
///         Some("running_sum")
///     }
///     fn meta(&self, inputs: &[(Shape, DType)]) -> Result<Meta, TensorError> {
///         Ok(Meta::Outputs(inputs.to_vec()))
///     }
/// }
///
/// /// Which dims the rule says may be sharded.
/// struct RunningSumRule(&'static [usize]);
///
/// impl DistributedOp for RunningSumRule {
///     fn name(&self) -> &'static str {
///         "running_sum"
///     }
///     fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
///         let x = call.inputs[0].shape();
///         let rule = Rule::new(&[2], &[2]);
///         Ok(self.0.iter().fold(rule, |rule, &dim| rule.label(x[dim], [(0, dim)], [(0, dim)])))
///     }
/// }
///
/// let check = |dims: &'static [usize]| {
///     threads::run(2, GangOptions::default(), |gang| -> Result<usize, DTensorError> {
///         let registry = Registry::builder().register(RunningSumRule(dims))?.freeze();
///         let dist = DistContext::with_options(gang, DistOptions { registry, ..DistOptions::default() });
///         let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
///         check_function(&dist, &RunningSum, &[x])
///     })
///     .expect("no rank panics")
///     .remove(0)
/// };
/// assert_eq!(check(&[0]), Ok(4));
/// // The second dim may not be sharded: sums would start again on each rank.
/// let error = check(&[0, 1]).unwrap_err();
/// assert!(error.to_string().starts_with("the sharding rule of running_sum is wrong"));
/// ```
pub fn check_function(
    dist: &Arc<DistContext>,
    function: &impl DFunction,
    operands: &[Tensor],
) -> Result<usize> {
    let ranks = dist.gang().ok_or(DTensorError::DryRun { what: "check a function" })?.size();
    let mesh = Mesh::new(&[("ranks", ranks)])?;
    let operands = operands.iter().map(widened).collect::<Result<Vec<_>>>()?;
    let expected = whole(function, &operands)?;
    let choices: Vec<Vec<Layout>> =
        operands.iter().map(|operand| layouts(mesh, operand)).collect::<Result<_>>()?;
    let combinations: usize = choices.iter().map(Vec::len).product();
    for number in 0..combinations {
        let mut rest = number;
        let next = |list: &Vec<Layout>| {
            let layout = list[rest % list.len()];
            rest /= list.len();
            layout
        };
        let layouts: Vec<Layout> = choices.iter().map(next).collect();
        let found = distributed(dist, function, &operands, &layouts)?;
        compare(function, &layouts, &found, &expected)?;
    }
    Ok(combinations)
}

fn widened(operand: &Tensor) -> Result<Tensor> {
    let operand = operand.detach();
    Ok(if operand.dtype().is_float() { operand.cast(DType::F64)?.requires_grad() } else { operand })
}

/// Every layout on a mesh of one axis.
fn layouts(mesh: Mesh, operand: &Tensor) -> Result<Vec<Layout>> {
    let sharded = (0..operand.shape().ndim()).map(Placement::Shard);
    let pending = operand.dtype().is_float().then_some(Placement::Partial(ReduceOp::Sum));
    let all = [Placement::Replicate].into_iter().chain(sharded).chain(pending);
    all.map(|placement| Ok(Layout::new(mesh, &[placement])?)).collect()
}

/// What is compared: results, and gradients of operands.
type Compared = Vec<(String, Tensor)>;

fn result_name(number: usize) -> String {
    format!("result {number}")
}

fn gradient_name(number: usize) -> String {
    format!("the gradient of operand {number}")
}

/// Random gradients of a result, the same on all ranks.
fn seed(result: &Tensor, number: usize) -> Result<Tensor> {
    let stream = Stream { seed: 41, number: number as u64 };
    Ok(Tensor::normal(result.dtype(), result.shape(), stream, 0)?.to(result.device())?)
}

fn whole(function: &impl DFunction, operands: &[Tensor]) -> Result<Compared> {
    let results = apply_local(function.clone(), operands)?;
    let (mut compared, mut seeds) = (Vec::new(), Vec::new());
    for (number, result) in results.into_iter().enumerate() {
        compared.push((result_name(number), result.detach()));
        if result.tracks_gradient() {
            let gradient = seed(&result, number)?;
            seeds.push((result, Some(gradient)));
        }
    }
    if !seeds.is_empty() {
        let gradients = backward_local(seeds)?;
        for (number, operand) in operands.iter().enumerate() {
            let gradient = gradients.of(operand);
            compared.extend(gradient.map(|gradient| (gradient_name(number), gradient.clone())));
        }
    }
    Ok(compared)
}

fn distributed(
    dist: &Arc<DistContext>,
    function: &impl DFunction,
    operands: &[Tensor],
    layouts: &[Layout],
) -> Result<Compared> {
    let spread = |(operand, &layout): (&Tensor, &Layout)| {
        let spread = DTensor::distribute(dist, &operand.detach(), layout)?;
        Ok(if operand.tracks_gradient() { spread.requires_grad() } else { spread })
    };
    let operands: Vec<DTensor> = operands.iter().zip(layouts).map(spread).collect::<Result<_>>()?;
    let results = DTensor::apply(function, &operands.iter().collect::<Vec<_>>())?;
    let (mut compared, mut seeds) = (Vec::new(), Vec::new());
    for (number, result) in results.into_iter().enumerate() {
        let found = result.detach().full_tensor()?;
        if result.tracks_gradient() {
            let replicated = Layout::replicated(result.layout().mesh());
            let gradient = DTensor::distribute(dist, &seed(&found, number)?, replicated)?;
            seeds.push((result, Some(gradient)));
        }
        compared.push((result_name(number), found));
    }
    if !seeds.is_empty() {
        let gradients = backward(seeds)?;
        for (number, operand) in operands.iter().enumerate() {
            if let Some(gradient) = gradients.of(operand) {
                compared.push((gradient_name(number), gradient?.full_tensor()?));
            }
        }
    }
    Ok(compared)
}

fn compare(
    function: &impl DFunction,
    layouts: &[Layout],
    found: &Compared,
    expected: &Compared,
) -> Result<()> {
    let wrong = |problem: String| {
        let layouts: Vec<String> = layouts.iter().map(ToString::to_string).collect();
        let op = function.op_name().unwrap_or(function.name());
        Err(DTensorError::WrongRule { op, layouts: layouts.join(" and "), problem })
    };
    let names = |all: &Compared| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    if names(found) != names(expected) {
        return wrong(format!("it gives {}, not {}", names(found).join(", "), names(expected).join(", ")));
    }
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        if found.shape() != expected.shape() {
            return wrong(format!("{name} is {}, not {}", found.shape(), expected.shape()));
        }
        let [found, expected] = [found, expected].map(|tensor| tensor.cast(DType::F64)?.to_vec::<f64>());
        let (found, expected) = (found?, expected?);
        let largest = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
        let apart = |(a, b): (&f64, &f64)| (a - b).abs() / largest;
        // A NaN is apart from everything.
        if let Some(most) =
            found.iter().zip(&expected).map(apart).find(|apart| *apart > TOLERANCE || apart.is_nan())
        {
            return wrong(format!("{name} differs by {most:.1e} of its largest element"));
        }
    }
    Ok(())
}

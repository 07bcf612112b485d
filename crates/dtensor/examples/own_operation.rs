//! An operation of one's own: local arithmetic, its gradient, and a rule.
//!
//! `softplus(x) · w`, with a weight for each column. Run it:
//! `cargo run -p weightloom-dtensor --example own_operation`

#![allow(clippy::print_stdout, reason = "it shows what it does")]

use std::error::Error;
use std::sync::Arc;

use weightloom_dtensor::{
    Call, DFunction, DTensor, DTensorError, DistContext, DistOptions, DistributedOp, Meta, Registry, Rule,
    backward,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};
use weightloom_tensor::{Context, Function, Stream, Tensor, TensorError};

/// What happens on one rank. It knows nothing of the others.
#[derive(Clone, PartialEq)]
struct WeightedSoftplus;

impl Function for WeightedSoftplus {
    fn name(&self) -> &'static str {
        "WeightedSoftplus"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [x, weight] = inputs else {
            return Err(TensorError::from_function(self.name(), "takes two tensors"));
        };
        context.save(&[x, weight]);
        let one = Tensor::full(1.0, x.dtype(), &[], x.device())?;
        Ok(vec![x.exp()?.add(&one)?.log()?.mul(weight)?])
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [x, weight]) = (&gradients[0], context.saved()) else {
            return Ok(vec![None, None]);
        };
        let one = Tensor::full(1.0, x.dtype(), &[], x.device())?;
        let softplus = x.exp()?.add(&one)?.log()?;
        let of_x = gradient.mul(weight)?.mul(&x.sigmoid()?)?;
        Ok(vec![Some(of_x), Some(gradient.mul(&softplus)?.sum(&[0])?)])
    }
}

impl DFunction for WeightedSoftplus {
    fn op_name(&self) -> Option<&'static str> {
        Some("weighted_softplus")
    }

    /// The result has the shape of the first operand.
    fn meta(&self, operands: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        Ok(Meta::Outputs(vec![operands[0].clone()]))
    }
}

/// What that means for distributed tensors: rows and columns may be sharded. A
/// pending weight may stay pending, a pending `x` may not.
struct WeightedSoftplusRule;

impl DistributedOp for WeightedSoftplusRule {
    fn name(&self) -> &'static str {
        "weighted_softplus"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let x = call.inputs[0].shape();
        let rule = Rule::new(&[2, 1], &[2]).label(x[0], [(0, 0)], [(0, 0)]);
        Ok(rule.label(x[1], [(0, 1), (1, 0)], [(0, 1)]).term(&[1]))
    }
}

/// The result and the gradients, whole, as one rank computes them.
fn on_rank(gang: Arc<dyn Gang>, rows: Placement) -> Result<[Vec<f64>; 3], DTensorError> {
    let registry = Registry::builder().register(WeightedSoftplusRule)?.freeze();
    let mesh = Mesh::new(&[("dp", gang.size())])?;
    let options = DistOptions { registry, ..DistOptions::default() };
    let dist = DistContext::with_options(gang, options);
    let draw = |dims: &[usize], layout: Layout, number: u64| {
        let shape = Shape::new(dims).map_err(TensorError::from)?;
        DTensor::normal(&dist, DType::F64, &shape, layout, Stream { seed: 1, number })
    };
    let x = draw(&[5, 3], Layout::new(mesh, &[rows])?, 1)?.requires_grad();
    let weight = draw(&[3], Layout::replicated(mesh), 2)?.requires_grad();
    let y = DTensor::apply(&WeightedSoftplus, &[&x, &weight])?.remove(0);
    println!("rank {}: {y:?}, here {}", dist.rank(), y.to_local().shape());
    let whole = y.detach().full_tensor()?.to_vec()?;
    let gradients = backward([(y, None)])?;
    let of = |tensor: &DTensor| -> Result<Vec<f64>, DTensorError> {
        match gradients.of(tensor) {
            Some(gradient) => Ok(gradient?.full_tensor()?.to_vec()?),
            None => Ok(Vec::new()),
        }
    };
    Ok([whole, of(&x)?, of(&weight)?])
}

fn main() -> Result<(), Box<dyn Error>> {
    let on = |ranks: usize, rows: Placement| -> Result<_, Box<dyn Error>> {
        let results = threads::run(ranks, GangOptions::default(), |gang| on_rank(gang, rows))?;
        Ok(results.into_iter().collect::<Result<Vec<_>, _>>()?)
    };
    let alone = on(1, Placement::Replicate)?.remove(0);
    for ranks in [2, 3] {
        for rows in [Placement::Shard(0), Placement::Shard(1), Placement::Replicate] {
            for found in on(ranks, rows)? {
                let same = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
                let same = found.iter().flatten().zip(alone.iter().flatten()).all(same);
                if !same || found[1].is_empty() || found[2].is_empty() {
                    return Err(format!("{ranks} ranks with {rows} do not compute what one does").into());
                }
            }
        }
    }
    println!("results and gradients are those of one rank");
    Ok(())
}

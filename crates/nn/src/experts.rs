//! Mixture of experts.
//!
//! Tokens are sorted by expert, so that each expert is one matrix product.

use weightloom_dtensor::{DTensor, local_map};
use weightloom_layout::{DType, Layout, Placement, ReduceOp, Shape};
use weightloom_tensor::{Device, Tensor, TensorError};

use crate::adapter::Adapter;
use crate::batch_adapters::narrow_rows;
use crate::config::{Activation, ExpertWeights, ExpertsConfig};
use crate::context::ForwardContext;
use crate::error::NnError;

/// Parameter indices of a mixture-of-experts block.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    pub(crate) router: usize,
    pub(crate) gate: usize,
    pub(crate) up: usize,
    pub(crate) down: usize,
}

impl Experts {
    pub(crate) fn forward(
        &self,
        context: &ForwardContext<'_>,
        config: &ExpertsConfig,
        activation: Activation,
        x: &DTensor,
    ) -> Result<DTensor, NnError> {
        let names = [self.router, self.gate, self.up, self.down].map(|index| context.name(index));
        let touches = |adapter: &Adapter| names.iter().any(|name| adapter.replaces(name));
        context.by_group(x.shape()[0], touches, |context, rows| {
            self.forward_group(context, config, activation, &narrow_rows(x, rows)?)
        })
    }

    fn forward_group(
        &self,
        context: &ForwardContext<'_>,
        config: &ExpertsConfig,
        activation: Activation,
        x: &DTensor,
    ) -> Result<DTensor, NnError> {
        let weights = [self.gate, self.up, self.down].map(|index| context.parameter(index));
        let [gate, up, down] = weights;
        let (gate, up, down) = (gate?, up?, down?);
        let router = context.parameter(self.router)?;
        let [batch, time, hidden] = [x.shape()[0], x.shape()[1], x.shape()[2]];
        let rows = x.reshape(&Shape::new(&[batch * time, hidden])?)?;

        // Axes that shard the inner dim of each expert give partial sums; other
        // axes may shard tokens only.
        let mesh = rows.layout().mesh();
        let shards_inner: Vec<bool> =
            gate.layout().placements().iter().map(|placement| *placement == Placement::Shard(1)).collect();
        let layout = |placement: &dyn Fn(usize) -> Placement| -> Result<Layout, NnError> {
            Ok(Layout::new(mesh, &(0..mesh.ndim()).map(placement).collect::<Vec<_>>())?)
        };
        let row_placements = rows.layout().placements();
        let tokens = |axis: usize| match row_placements[axis] {
            Placement::Shard(0) if !shards_inner[axis] => Placement::Shard(0),
            _ => Placement::Replicate,
        };
        let sharded = |dim: usize| {
            layout(&|axis| if shards_inner[axis] { Placement::Shard(dim) } else { Placement::Replicate })
        };
        let result = layout(&|axis| {
            if shards_inner[axis] { Placement::Partial(ReduceOp::Sum) } else { tokens(axis) }
        })?;
        let operands = [
            (&rows, layout(&tokens)?),
            (&router, Layout::replicated(mesh)),
            (&gate, sharded(1)?),
            (&up, sharded(1)?),
            (&down, sharded(2)?),
        ];
        let shape = rows.shape().clone();
        let mixed = local_map("experts", &operands, &[(result, shape)], |local| {
            let [x, router, gate, up, down] = local else { return Ok(Vec::new()) };
            Ok(vec![mix(config, activation, x, router, [gate, up, down])?])
        })?;
        let mixed = mixed
            .into_iter()
            .next()
            .ok_or(TensorError::NoData { op: "experts", shape: rows.shape().clone() })?;
        Ok(mixed.reshape(x.shape())?)
    }
}

/// The weighted sum of the experts that the router chooses for each token.
fn mix(
    config: &ExpertsConfig,
    activation: Activation,
    x: &Tensor,
    router: &Tensor,
    [gate, up, down]: [&Tensor; 3],
) -> Result<Tensor, TensorError> {
    let (rows, hidden, chosen) = (x.shape()[0], x.shape()[1], config.chosen);
    let probabilities = x.linear(router, None, None)?.cast(DType::F32)?.softmax(1)?;
    let (weights, experts) = probabilities.topk(chosen, 1)?;
    let weights = match config.weights {
        ExpertWeights::OfAll => weights,
        ExpertWeights::Normalised => {
            let total = weights.sum(&[1])?.reshape(&Shape::new(&[rows, 1])?)?;
            weights.div(&total.expand(weights.shape())?)?
        }
    };
    let sorted = SortedChoices::new(&experts, config.count)?;
    let tokens = x.index_select(0, &sorted.tokens)?;
    let by_expert =
        |x: &Tensor, weights: &Tensor| x.grouped_matmul(&weights.transpose(1, 2)?, &sorted.groups);
    let (gate, up) = (by_expert(&tokens, gate)?, by_expert(&tokens, up)?);
    let inner = match activation {
        Activation::Silu => gate.swiglu(&up)?,
        Activation::Gelu => gate.geglu(&up)?,
        Activation::GeluTanh => gate.geglu_tanh(&up)?,
        Activation::Relu => gate.relu()?.mul(&up)?,
    };
    let out = by_expert(&inner, down)?.index_select(0, &sorted.order)?;
    let out = out.reshape(&Shape::new(&[rows, chosen, hidden])?)?;
    let weights = weights.cast(x.dtype())?.reshape(&Shape::new(&[rows, chosen, 1])?)?;
    out.mul(&weights.expand(out.shape())?)?.sum(&[1])
}

/// Routing choices sorted by expert.
struct SortedChoices {
    /// The token of each sorted choice.
    tokens: Tensor,
    /// The sorted index of each choice.
    order: Tensor,
    /// The number of choices of each expert.
    groups: Vec<usize>,
}

impl SortedChoices {
    fn new(experts: &Tensor, count: usize) -> Result<Self, TensorError> {
        let (rows, chosen) = (experts.shape()[0], experts.shape()[1]);
        let all = rows * chosen;
        if experts.device() == Device::Meta {
            // Without data, assume that all experts are chosen equally often.
            let index = Tensor::zeros(DType::I64, &[all], Device::Meta)?;
            let groups = (0..count).map(|expert| (expert + 1) * all / count - expert * all / count).collect();
            return Ok(Self { tokens: index.clone(), order: index, groups });
        }
        let experts = experts.to_vec::<i64>()?;
        let mut groups = vec![0; count];
        for &expert in &experts {
            groups[expert as usize] += 1;
        }
        let mut next: Vec<usize> =
            groups.iter().scan(0, |sum, group| Some(std::mem::replace(sum, *sum + group))).collect();
        let (mut tokens, mut order) = (vec![0; all], vec![0; all]);
        for (choice, &expert) in experts.iter().enumerate() {
            let index = &mut next[expert as usize];
            tokens[*index] = (choice / chosen) as i64;
            order[choice] = *index as i64;
            *index += 1;
        }
        Ok(Self {
            tokens: Tensor::from_slice(&tokens, &[all])?,
            order: Tensor::from_slice(&order, &[all])?,
            groups,
        })
    }
}

//! Experts, of which each token uses some.
//!
//! Tokens are sorted by expert, so that each expert's work is one product.

use weightloom_dtensor::{DTensor, local_map};
use weightloom_layout::{DType, Layout, Placement, ReduceOp, Shape};
use weightloom_tensor::{Device, Tensor, TensorError};

use crate::adapter::Adapter;
use crate::changes::part;
use crate::config::{Activation, ExpertWeights, ExpertsConfig};
use crate::decoder::Run;
use crate::error::NnError;

/// Where the parameters of a layer's experts are.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    pub(crate) router: usize,
    pub(crate) gate: usize,
    pub(crate) up: usize,
    pub(crate) down: usize,
}

impl Experts {
    pub(crate) fn apply(
        &self,
        run: &Run<'_>,
        config: &ExpertsConfig,
        activation: Activation,
        x: &DTensor,
    ) -> Result<DTensor, NnError> {
        let names = [self.router, self.gate, self.up, self.down].map(|place| run.name(place));
        let touches = |adapter: &Adapter| names.iter().any(|name| adapter.replaces(name));
        run.by_group(x.shape()[0], touches, |run, rows| {
            self.apply_to(run, config, activation, &part(x, rows)?)
        })
    }

    fn apply_to(
        &self,
        run: &Run<'_>,
        config: &ExpertsConfig,
        activation: Activation,
        x: &DTensor,
    ) -> Result<DTensor, NnError> {
        let weights = [self.gate, self.up, self.down].map(|place| run.parameter(place));
        let [gate, up, down] = weights;
        let (gate, up, down) = (gate?, up?, down?);
        let router = run.parameter(self.router)?;
        let [batch, time, hidden] = [x.shape()[0], x.shape()[1], x.shape()[2]];
        let rows = x.reshape(&Shape::new(&[batch * time, hidden])?)?;

        // Along an axis that shares the inner numbers of each expert, ranks make
        // shares of a sum. Other axes may share tokens, nothing else.
        let mesh = rows.layout().mesh();
        let shares: Vec<bool> =
            gate.layout().placements().iter().map(|placement| *placement == Placement::Shard(1)).collect();
        let placed = |place: &dyn Fn(usize) -> Placement| -> Result<Layout, NnError> {
            Ok(Layout::new(mesh, &(0..mesh.ndim()).map(place).collect::<Vec<_>>())?)
        };
        let of_rows = rows.layout().placements();
        let tokens = |axis: usize| match of_rows[axis] {
            Placement::Shard(0) if !shares[axis] => Placement::Shard(0),
            _ => Placement::Replicate,
        };
        let shared = |dim: usize| {
            placed(&|axis| if shares[axis] { Placement::Shard(dim) } else { Placement::Replicate })
        };
        let result =
            placed(&|axis| if shares[axis] { Placement::Partial(ReduceOp::Sum) } else { tokens(axis) })?;
        let operands = [
            (&rows, placed(&tokens)?),
            (&router, Layout::replicated(mesh)),
            (&gate, shared(1)?),
            (&up, shared(1)?),
            (&down, shared(2)?),
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

/// The mixed results of the experts that each token chooses.
fn mix(
    config: &ExpertsConfig,
    activation: Activation,
    x: &Tensor,
    router: &Tensor,
    [gate, up, down]: [&Tensor; 3],
) -> Result<Tensor, TensorError> {
    let (rows, hidden, chosen) = (x.shape()[0], x.shape()[1], config.chosen);
    let chances = x.linear(router, None, None)?.cast(DType::F32)?.softmax(1)?;
    let (weights, experts) = chances.topk(chosen, 1)?;
    let weights = match config.weights {
        ExpertWeights::OfAll => weights,
        ExpertWeights::Normalised => {
            let total = weights.sum(&[1])?.reshape(&Shape::new(&[rows, 1])?)?;
            weights.div(&total.expand(weights.shape())?)?
        }
    };
    let sorted = Sorted::new(&experts, config.count)?;
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
    let out = by_expert(&inner, down)?.index_select(0, &sorted.places)?;
    let out = out.reshape(&Shape::new(&[rows, chosen, hidden])?)?;
    let weights = weights.cast(x.dtype())?.reshape(&Shape::new(&[rows, chosen, 1])?)?;
    out.mul(&weights.expand(out.shape())?)?.sum(&[1])
}

/// Choices in the order of experts.
struct Sorted {
    /// The token of each place.
    tokens: Tensor,
    /// The place of each choice.
    places: Tensor,
    /// Places of each expert.
    groups: Vec<usize>,
}

impl Sorted {
    fn new(experts: &Tensor, count: usize) -> Result<Self, TensorError> {
        let (rows, chosen) = (experts.shape()[0], experts.shape()[1]);
        let all = rows * chosen;
        if experts.device() == Device::Meta {
            // Nobody knows who chooses what: all experts alike.
            let index = Tensor::zeros(DType::I64, &[all], Device::Meta)?;
            let groups = (0..count).map(|expert| (expert + 1) * all / count - expert * all / count).collect();
            return Ok(Self { tokens: index.clone(), places: index, groups });
        }
        let experts = experts.to_vec::<i64>()?;
        let mut groups = vec![0; count];
        for &expert in &experts {
            groups[expert as usize] += 1;
        }
        let mut next: Vec<usize> =
            groups.iter().scan(0, |sum, group| Some(std::mem::replace(sum, *sum + group))).collect();
        let (mut tokens, mut places) = (vec![0; all], vec![0; all]);
        for (choice, &expert) in experts.iter().enumerate() {
            let place = &mut next[expert as usize];
            tokens[*place] = (choice / chosen) as i64;
            places[choice] = *place as i64;
            *place += 1;
        }
        Ok(Self {
            tokens: Tensor::from_slice(&tokens, &[all])?,
            places: Tensor::from_slice(&places, &[all])?,
            groups,
        })
    }
}

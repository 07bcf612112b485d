//! Mixture of experts.
//!
//! Tokens are sorted by expert, so that each expert is one matrix product.

use weightloom_dtensor::{DTensor, local_map};
use weightloom_layout::{DType, Layout, Placement, ReduceOp, Shape};
use weightloom_tensor::{Device, Tensor, TensorError};

use crate::adapter::Adapter;
use crate::batch_adapters::narrow_rows;
use crate::config::{
    Activation, ExpertGroups, ExpertScores, ExpertWeighting, ExpertWeights, ExpertsConfig, MlpConfig,
};
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::mlp::Mlp;

/// Parameter indices of a mixture-of-experts block.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    pub(crate) router: usize,
    pub(crate) correction_bias: Option<usize>,
    pub(crate) gate: usize,
    pub(crate) up: usize,
    pub(crate) down: usize,
    /// The expert that every token uses.
    pub(crate) shared: Option<Mlp>,
}

impl Experts {
    pub(crate) fn forward(
        &self,
        context: &ForwardContext<'_>,
        config: &ExpertsConfig,
        mlp: &MlpConfig,
        x: &DTensor,
        residual: Option<&DTensor>,
    ) -> Result<DTensor, NnError> {
        let names: Vec<&str> = [self.router, self.gate, self.up, self.down]
            .into_iter()
            .chain(self.correction_bias)
            .map(|index| context.name(index))
            .collect();
        let touches = |adapter: &Adapter| names.iter().any(|name| adapter.replaces(name));
        let mixed = context.by_group(x.shape()[0], touches, |context, rows| {
            self.forward_group(context, config, mlp.activation, &narrow_rows(x, rows)?)
        })?;
        match (&self.shared, residual) {
            (Some(shared), residual) => Ok(mixed.add(&shared.forward(context, mlp, x, residual)?)?),
            (None, Some(residual)) => Ok(mixed.add(residual)?),
            (None, None) => Ok(mixed),
        }
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
        let bias = self.correction_bias.map(|index| context.parameter(index)).transpose()?;
        let mut operands = vec![
            (&rows, layout(&tokens)?),
            (&router, Layout::replicated(mesh)),
            (&gate, sharded(1)?),
            (&up, sharded(1)?),
            (&down, sharded(2)?),
        ];
        operands.extend(bias.as_ref().map(|bias| (bias, Layout::replicated(mesh))));
        let shape = rows.shape().clone();
        let mixed = local_map("experts", &operands, &[(result, shape)], |local| {
            let [x, router, gate, up, down, bias @ ..] = local else { return Ok(Vec::new()) };
            let routes = Routes::new(config, x, router, bias.first())?;
            Ok(vec![mix(config, activation, x, &routes, [gate, up, down])?])
        })?;
        let mixed = mixed
            .into_iter()
            .next()
            .ok_or(TensorError::NoData { op: "experts", shape: rows.shape().clone() })?;
        Ok(mixed.reshape(x.shape())?)
    }
}

/// The experts that the router chooses for each token, and their weights,
/// `[tokens, chosen]`.
struct Routes {
    experts: Tensor,
    weights: Tensor,
}

impl Routes {
    fn new(
        config: &ExpertsConfig,
        x: &Tensor,
        router: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Self, TensorError> {
        // In f32: rounded scores would choose other experts.
        let logits = x.cast(DType::F32)?.linear(&router.cast(DType::F32)?, None, None)?;
        let scores = match config.scores {
            ExpertScores::Softmax => logits.softmax(1)?,
            ExpertScores::Sigmoid => logits.sigmoid()?,
        };
        let (weights, experts) = match (bias, config.groups) {
            (None, None) => scores.topk(config.chosen, 1)?,
            (bias, groups) => {
                let mut ranking = scores.detach();
                if let Some(bias) = bias {
                    ranking = ranking.add(&bias.detach().cast(DType::F32)?.expand(ranking.shape())?)?;
                }
                if let Some(groups) = groups {
                    ranking = within_best_groups(&ranking, groups)?;
                }
                let (_, experts) = ranking.topk(config.chosen, 1)?;
                (scores.gather(1, &experts)?, experts)
            }
        };
        let weights = match config.weights {
            ExpertWeights::OfAll => weights,
            ExpertWeights::Normalised => {
                let total = weights.sum(&[1])?.reshape(&Shape::new(&[x.shape()[0], 1])?)?;
                weights.div(&total.expand(weights.shape())?)?
            }
        };
        let weights = match config.scale {
            Some(scale) => weights.scale(scale)?,
            None => weights,
        };
        Ok(Self { experts, weights })
    }
}

/// Scores of experts, with those outside of the best groups below all others.
fn within_best_groups(scores: &Tensor, groups: ExpertGroups) -> Result<Tensor, TensorError> {
    let (rows, count) = (scores.shape()[0], scores.shape()[1]);
    let by_group = Shape::new(&[rows, groups.count, count / groups.count])?;
    let (best, _) = scores.reshape(&by_group)?.topk(groups.best, 2)?;
    let (_, chosen) = best.sum(&[2])?.reshape(&Shape::new(&[rows, groups.count])?)?.topk(groups.chosen, 1)?;
    // One for each chosen group, `[rows, groups]`.
    let is_chosen = chosen.one_hot(groups.count)?.cast(DType::F32)?.sum(&[1])?;
    let is_chosen = is_chosen.reshape(&Shape::new(&[rows, groups.count, 1])?)?.expand(&by_group)?;
    let is_left_out = is_chosen.reshape(scores.shape())?.eq(&Tensor::zeros(
        DType::F32,
        scores.shape(),
        scores.device(),
    )?)?;
    scores.masked_fill(&is_left_out, f64::NEG_INFINITY)
}

/// The weighted sum of the chosen experts of each token.
fn mix(
    config: &ExpertsConfig,
    activation: Activation,
    x: &Tensor,
    Routes { experts, weights }: &Routes,
    [gate, up, down]: [&Tensor; 3],
) -> Result<Tensor, TensorError> {
    let (rows, hidden, chosen) = (x.shape()[0], x.shape()[1], config.chosen);
    let sorted = SortedChoices::new(experts, config.count)?;
    let weights = weights.cast(x.dtype())?;
    let mut tokens = x.index_select(0, &sorted.tokens)?;
    if config.weighting == ExpertWeighting::Input {
        let choices = weights.reshape(&Shape::new(&[rows * chosen, 1])?)?;
        let of_tokens = choices.index_select(0, &sorted.choices)?;
        tokens = tokens.mul(&of_tokens.expand(tokens.shape())?)?;
    }
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
    match config.weighting {
        ExpertWeighting::Input => out.sum(&[1]),
        ExpertWeighting::Output => {
            let weights = weights.reshape(&Shape::new(&[rows, chosen, 1])?)?;
            out.mul(&weights.expand(out.shape())?)?.sum(&[1])
        }
    }
}

/// Routing choices sorted by expert.
struct SortedChoices {
    /// The token of each sorted choice.
    tokens: Tensor,
    /// The index of each sorted choice.
    choices: Tensor,
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
            return Ok(Self { tokens: index.clone(), choices: index.clone(), order: index, groups });
        }
        let device = experts.device();
        let experts = experts.to_vec::<i64>()?;
        let mut groups = vec![0; count];
        for &expert in &experts {
            groups[expert as usize] += 1;
        }
        let mut next: Vec<usize> =
            groups.iter().scan(0, |sum, group| Some(std::mem::replace(sum, *sum + group))).collect();
        let (mut tokens, mut choices, mut order) = (vec![0; all], vec![0; all], vec![0; all]);
        for (choice, &expert) in experts.iter().enumerate() {
            let index = &mut next[expert as usize];
            tokens[*index] = (choice / chosen) as i64;
            choices[*index] = choice as i64;
            order[choice] = *index as i64;
            *index += 1;
        }
        Ok(Self {
            tokens: Tensor::from_slice(&tokens, &[all])?.to(device)?,
            choices: Tensor::from_slice(&choices, &[all])?.to(device)?,
            order: Tensor::from_slice(&order, &[all])?.to(device)?,
            groups,
        })
    }
}

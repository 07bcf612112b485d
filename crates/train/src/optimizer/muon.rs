//! Muon: momentum of matrices, orthogonalized by a Newton–Schulz iteration.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{Tensor, TensorError, no_grad};

use super::options::{Range, number, problems};
use super::solo::step_alone;
use super::{
    AdamW, DistributedUpdate, Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, PatternError,
    Patterns, StateSpec, StepInfo,
};
use crate::extensions::OptionProblem;

/// Components of names whose matrices have an embedding for each row: AdamW trains
/// them.
const EMBEDDINGS: [&str; 3] = ["embed_tokens", "embed_positions", "lm_head"];

/// Muon (Jordan 2024) as in PyTorch, for the matrices of hidden layers. AdamW trains
/// all other parameters.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Muon {
    pub momentum: f64,
    pub nesterov: bool,
    /// The factors of a matrix, its cube and its fifth power in an iteration.
    pub coefficients: [f64; 3],
    pub iterations: usize,
    /// The least norm that a matrix is divided by.
    pub eps: f64,
    /// The dtype of the iterations.
    pub dtype: DType,
    pub adjust_lr: AdjustLr,
    /// Further parameters that AdamW trains.
    pub others: Patterns,
    pub adamw: AdamW,
}

/// How the learning rate depends on the shape of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdjustLr {
    /// By the root of rows per column, if that is more than 1.
    #[default]
    Original,
    /// To updates with the root mean square of AdamW's, so that rates for AdamW fit:
    /// 0.2 times the root of the larger size.
    MatchRmsAdamw,
    /// By the root of rows per column.
    SpectralUnclamped,
}

impl AdjustLr {
    fn factor(self, rows: usize, columns: usize) -> f64 {
        let (rows, columns) = (rows as f64, columns.max(1) as f64);
        match self {
            Self::Original => (rows / columns).max(1.0).sqrt(),
            Self::MatchRmsAdamw => 0.2 * rows.max(columns).sqrt(),
            Self::SpectralUnclamped => (rows / columns).sqrt(),
        }
    }
}

impl Muon {
    /// Whether the momentum of a parameter is orthogonalized.
    fn is_hidden(&self, name: &str, shape: &Shape) -> bool {
        let is_embedding = name.split('.').any(|component| EMBEDDINGS.contains(&component));
        shape.ndim() == 2 && !is_embedding && !self.others.matches(name)
    }

    /// The nearest matrix with orthonormal rows or columns, roughly.
    fn orthogonalized(&self, matrix: &Tensor) -> Result<Tensor, TensorError> {
        let [a, b, c] = self.coefficients;
        let is_tall = matrix.shape()[0] > matrix.shape()[1];
        let oriented = |x: &Tensor| if is_tall { x.transpose(0, 1) } else { Ok(x.clone()) };
        let mut x = oriented(&matrix.cast(self.dtype)?)?;
        x = x.div(&x.norm(&[0, 1])?.clamp(self.eps, f64::INFINITY)?)?;
        for _ in 0..self.iterations {
            let gram = x.matmul(&x.transpose(0, 1)?)?;
            let step = self.sum([(b, &gram), (c, &gram.matmul(&gram)?)])?;
            x = self.sum([(a, &x), (1.0, &step.matmul(&x)?)])?;
        }
        oriented(&x)
    }

    /// A weighted sum, rounded once.
    fn sum(&self, [(a, x), (b, y)]: [(f64, &Tensor); 2]) -> Result<Tensor, TensorError> {
        let (x, y) = (x.cast(DType::F32)?.scale(a)?, y.cast(DType::F32)?.scale(b)?);
        x.add(&y)?.cast(self.dtype)
    }

    fn update_matrix(
        &self,
        step: &StepInfo,
        parameter: &mut DTensor,
        gradient: &DTensor,
        momentum: &mut Tensor,
    ) -> Result<(), DTensorError> {
        let (layout, shape) = (parameter.layout(), parameter.shape().clone());
        let (&[rows, columns], dtype) = (&shape[..], parameter.dtype()) else {
            return Err(TensorError::Shapes { op: self.name(), shapes: vec![shape.clone()] }.into());
        };
        let gradient_local = gradient.to_local().detach().cast(dtype)?.scale(step.gradient_scale)?;
        *momentum = momentum.scale(self.momentum)?.add(&gradient_local.scale(1.0 - self.momentum)?)?;
        let direction = match self.nesterov {
            true => gradient_local.scale(1.0 - self.momentum)?.add(&momentum.scale(self.momentum)?)?,
            false => momentum.clone(),
        };
        // Every rank iterates on the whole matrix, so that all have the same bits.
        let whole = DTensor::from_local(parameter.dist(), direction, layout, &shape)?.full_tensor()?;
        let whole = self.orthogonalized(&whole)?.cast(dtype)?;
        let own = DTensor::distribute(parameter.dist(), &whole, layout)?;
        let rate = step.learning_rate * self.adjust_lr.factor(rows, columns);
        let mut change = own.to_local().scale(-rate)?;
        if step.weight_decay != 0.0 {
            let decay = parameter.to_local().detach().scale(-step.learning_rate * step.weight_decay)?;
            change = change.add(&decay)?;
        }
        parameter.change_local(|local| local.add_assign(&change))
    }
}

impl Optimizer for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn states(&self) -> &'static [&'static str] {
        &["momentum_buffer", "exp_avg", "exp_avg_sq"]
    }

    fn states_of(&self, name: &str, shape: &Shape) -> Vec<StateSpec> {
        match self.is_hidden(name, shape) {
            true => vec![StateSpec::zeros("momentum_buffer")],
            false => self.adamw.states_of(name, shape),
        }
    }

    fn step(
        &self,
        step: &StepInfo,
        parameter: &mut Tensor,
        gradient: &Tensor,
        states: &mut [Tensor],
    ) -> Result<(), TensorError> {
        match states {
            [_] => step_alone(self.name(), self, step, parameter, gradient, states),
            _ => self.adamw.step(step, parameter, gradient, states),
        }
    }

    fn distributed(&self) -> Option<&dyn DistributedUpdate> {
        Some(self)
    }

    fn check_names(&self, names: &BTreeSet<&str>) -> Result<(), PatternError> {
        self.others.check(names.iter().copied())
    }
}

impl DistributedUpdate for Muon {
    fn update(
        &self,
        step: &StepInfo,
        parameter: &mut DTensor,
        gradient: &DTensor,
        states: &mut [Tensor],
    ) -> Result<(), DTensorError> {
        match states {
            [momentum] => no_grad(|| self.update_matrix(step, parameter, gradient, momentum)),
            _ => parameter.change_local(|local| self.adamw.step(step, local, gradient.to_local(), states)),
        }
    }
}

#[derive(Debug)]
pub(super) struct MuonFactory;

/// Options of `muon`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MuonOptions {
    /// Decay rate of the momentum of matrices.
    momentum: f64,
    /// Use Nesterov momentum.
    nesterov: bool,
    /// Factors of a matrix, its cube and its fifth power in an iteration.
    ns_coefficients: [f64; 3],
    /// Newton–Schulz iterations.
    ns_steps: usize,
    /// The least norm that a momentum is divided by before the iterations.
    eps: f64,
    /// Dtype of the iterations.
    ns_dtype: NsDtype,
    /// How the learning rate depends on the shape of a matrix.
    adjust_lr: AdjustLr,
    /// Parameters that AdamW trains in place of Muon, in addition to embeddings, the
    /// head, and all that are not matrices. Patterns like those of `lr_scale`. AdamW uses
    /// the keys `betas` and `eps` of the optimizer.
    adamw: Vec<String>,
}

/// Dtype of the Newton–Schulz iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum NsDtype {
    /// As PyTorch.
    #[default]
    Bf16,
    /// Exact enough to compare runs on different meshes.
    F32,
}

/// PyTorch's defaults.
impl Default for MuonOptions {
    fn default() -> Self {
        Self {
            momentum: 0.95,
            nesterov: true,
            ns_coefficients: [3.4445, -4.775, 2.0315],
            ns_steps: 5,
            eps: 1e-7,
            ns_dtype: NsDtype::default(),
            adjust_lr: AdjustLr::default(),
            adamw: Vec::new(),
        }
    }
}

/// PyTorch's limit.
const MOST_ITERATIONS: usize = 100;

impl OptimizerFactory for MuonFactory {
    type Options = MuonOptions;

    fn name(&self) -> &'static str {
        "muon"
    }

    fn summary(&self) -> &'static str {
        "Muon for the matrices of hidden layers: momentum, orthogonalized. AdamW for all other parameters."
    }

    fn problems(&self, options: &MuonOptions) -> Vec<OptionProblem> {
        let mut found = problems([
            number("momentum", options.momentum, Range::Share),
            number("eps", options.eps, Range::Positive),
        ]);
        if !(1..MOST_ITERATIONS).contains(&options.ns_steps) {
            let problem = format!("{} is not a number from 1 to {}", options.ns_steps, MOST_ITERATIONS - 1);
            found.push(OptionProblem::new("ns_steps", problem));
        }
        if let Some(at) = options.ns_coefficients.iter().position(|factor| !factor.is_finite()) {
            found.push(OptionProblem::new(&format!("ns_coefficients.{at}"), "is not finite"));
        }
        found
    }

    fn build(
        &self,
        config: &OptimizerConfig,
        options: MuonOptions,
    ) -> Result<Box<dyn Optimizer>, OptimizerError> {
        let others = Patterns::anywhere("train.optimizer.options.adamw", &options.adamw)
            .map_err(OptimizerError::Pattern)?;
        Ok(Box::new(Muon {
            momentum: options.momentum,
            nesterov: options.nesterov,
            coefficients: options.ns_coefficients,
            iterations: options.ns_steps,
            eps: options.eps,
            dtype: match options.ns_dtype {
                NsDtype::Bf16 => DType::Bf16,
                NsDtype::F32 => DType::F32,
            },
            adjust_lr: options.adjust_lr,
            others,
            adamw: AdamW { betas: config.betas, eps: config.eps },
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use serde_json::json;

    use super::*;
    use crate::config::OptimizerKind;
    use crate::optimizer::from_config;

    #[test]
    fn embeddings_heads_norms_and_listed_matrices_are_for_adamw() {
        let options = json!({ "adamw": ["gate_proj", "model.layers.1"] }).as_object().cloned();
        let config = OptimizerConfig { kind: OptimizerKind::Muon, options, ..OptimizerConfig::default() };
        let muon = from_config(&config).unwrap();
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        let states = |name: &str, dims: &[usize]| {
            muon.states_of(name, &shape(dims)).iter().map(|state| state.name).collect::<Vec<_>>()
        };
        let adamw = ["exp_avg", "exp_avg_sq"];
        assert_eq!(states("model.layers.0.self_attn.q_proj.weight", &[4, 4]), ["momentum_buffer"]);
        assert_eq!(states("model.layers.0.q_proj.lora_A.weight", &[2, 4]), ["momentum_buffer"]);
        for name in ["model.embed_tokens.weight", "lm_head.weight", "model.layers.1.q_proj.weight"] {
            assert_eq!(states(name, &[4, 4]), adamw, "{name}");
        }
        assert_eq!(states("model.layers.0.mlp.gate_proj.weight", &[4, 4]), adamw);
        assert_eq!(states("model.norm.weight", &[4]), adamw);
        assert_eq!(states("model.layers.0.mlp.experts.up_proj", &[2, 4, 4]), adamw);
        let names = BTreeSet::from(["model.layers.0.mlp.gate_proj.weight"]);
        let error = muon.check_names(&names).unwrap_err();
        let expected = "`model.layers.1` in `train.optimizer.options.adamw` matches no parameter";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_orthogonalized_matrix_has_singular_values_near_one() {
        let config = OptimizerConfig { kind: OptimizerKind::Muon, ..OptimizerConfig::default() };
        let step = StepInfo { number: 1, learning_rate: 1.0, weight_decay: 0.0, gradient_scale: 1.0 };
        for dims in [[6, 3], [3, 6]] {
            let x: Vec<f32> = (0..18).map(|at| (at as f32 * 1.7).sin()).collect();
            let gradient = Tensor::from_slice(&x, &dims).unwrap();
            let mut parameter = Tensor::zeros(DType::F32, &dims, weightloom_tensor::Device::Cpu).unwrap();
            let muon = from_config(&config).unwrap();
            let mut states = crate::optimizer::initial_states(&*muon, &parameter).unwrap();
            muon.step(&step, &mut parameter, &gradient, &mut states).unwrap();
            let found = match dims[0] > dims[1] {
                true => parameter.transpose(0, 1).unwrap(),
                false => parameter.clone(),
            };
            let gram = found.matmul(&found.transpose(0, 1).unwrap()).unwrap();
            let factor = AdjustLr::Original.factor(dims[0], dims[1]).powi(2);
            for (at, value) in gram.to_vec::<f32>().unwrap().into_iter().enumerate() {
                let value = f64::from(value) / factor;
                // The iteration ends with singular values from 0.7 to 1.2.
                let (least, most) = if at % 4 == 0 { (0.3, 1.6) } else { (-0.5, 0.5) };
                assert!((least..most).contains(&value), "{dims:?}, {at}: {value}");
            }
        }
    }
}

//! Decoder-only transformer: its structure and its parameters.

mod build;
mod embedding;
mod forward;
mod head;
mod hooks;
mod layer;

use std::fmt;
use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext, GradientReduction};
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::Tensor;

use crate::batch_adapters::BatchAdapters;
use crate::config::DecoderConfig;
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::norm::Norm;
use crate::plan::Plan;
use crate::rope::Rope;
use crate::stage::Stage;

pub use forward::{ActivationCheckpointing, Dropout, ForwardArgs, Input};
use layer::Layer;

/// A decoder, or a pipeline stage of one, as one rank holds it.
///
/// ```
/// use weightloom_dtensor::DistContext;
/// use weightloom_gang::{GangOptions, solo};
/// use weightloom_layout::{DType, Mesh};
/// use weightloom_nn::{
///     Decoder, DecoderConfig, ForwardArgs, Input, NnError, Parallel, Plan, Stage, initial_values, parameters,
/// };
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config: DecoderConfig = serde_json::from_value(serde_json::json!({
///     "vocabulary": 32, "hidden": 16, "layers": 2, "max_positions": 64,
///     "attention": {"heads": 4, "kv_heads": 2, "width": 4},
///     "positions": {"rope": {"theta": 10000.0}},
///     "norm": {"kind": "rms", "eps": 1e-5},
///     "mlp": {"inner": 32, "activation": "silu"},
/// }))?;
/// let dist = DistContext::new(solo(GangOptions::default()));
/// let stage = Stage::whole(config.layers);
/// let specs = parameters(&config, &stage);
/// let plan = Plan::new(&Parallel::default(), &specs, Mesh::new(&[("tp", 1)])?)?;
/// let values = specs
///     .iter()
///     .map(|spec| {
///         let layout = plan.layout_of(&spec.name);
///         Ok((spec.name.clone(), initial_values(&config, spec, DType::F32, 0, &dist, layout)?))
///     })
///     .collect::<Result<_, NnError>>()?;
/// let decoder = Decoder::new(config, stage, plan, dist, values)?;
///
/// let tokens = decoder.tokens(&[&[1, 2, 3]])?;
/// let hidden = decoder.forward(Input::Tokens(tokens), ForwardArgs::default())?;
/// let logits = decoder.logits(&hidden, None)?;
/// assert_eq!(logits.shape()[..], [1, 3, 32]);
/// # Ok(())
/// # }
/// ```
pub struct Decoder {
    structure: Arc<Structure>,
    parameters: Vec<(String, DTensor)>,
}

/// A decoder without the values of its parameters.
pub(crate) struct Structure {
    pub(crate) config: DecoderConfig,
    pub(crate) stage: Stage,
    pub(crate) plan: Plan,
    pub(crate) dist: Arc<DistContext>,
    layers: Vec<Layer>,
    last_norm: Option<Norm>,
    rope: Option<Rope>,
    /// The layout in which each parameter is used.
    pub(crate) layouts: Vec<Layout>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stage { layers, of } = &self.structure.stage;
        write!(f, "Decoder(layers {layers:?} of {of}, {} parameters)", self.parameters.len())
    }
}

impl Decoder {
    /// The architecture.
    pub fn config(&self) -> &DecoderConfig {
        &self.structure.config
    }

    /// The pipeline stage that this rank holds.
    pub fn stage(&self) -> &Stage {
        &self.structure.stage
    }

    /// The sharding plan.
    pub fn plan(&self) -> &Plan {
        &self.structure.plan
    }

    /// The distributed context of the ranks that share the stage.
    pub fn dist(&self) -> &Arc<DistContext> {
        &self.structure.dist
    }

    /// The bytes of keys and values that a [`Cache`](crate::Cache) holds per token,
    /// on all ranks together.
    pub fn cache_bytes_per_token(&self) -> usize {
        let Structure { config, stage, plan, .. } = &*self.structure;
        let held = self.parameters.first().map_or(DType::F32, |(_, value)| value.dtype());
        let element = plan.usage().dtype.unwrap_or(held).size();
        let attention = &config.attention;
        2 * stage.layers.len() * attention.kv_heads * attention.width * element
    }

    /// Parameters with their names, in the order of [`parameters`](crate::parameters).
    pub fn parameters(&self) -> &[(String, DTensor)] {
        &self.parameters
    }

    /// Parameters for in-place updates. Shapes and layouts must not change.
    pub fn parameters_mut(&mut self) -> &mut [(String, DTensor)] {
        &mut self.parameters
    }

    /// Looks a parameter up by name.
    pub fn parameter(&self, name: &str) -> Option<&DTensor> {
        self.index_of(name).map(|index| &self.parameters[index].1)
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.parameters.iter().position(|(found, _)| found == name)
    }

    pub(crate) fn context<'a>(&'a self, adapters: BatchAdapters<'a>) -> ForwardContext<'a> {
        ForwardContext {
            structure: &self.structure,
            parameters: &self.parameters,
            first_parameter: 0,
            adapters,
            dropout: None,
            gradient_reduction: GradientReduction::Deferred,
        }
    }

    /// Builds a replicated `[batch, time]` tensor of tokens, right-padding
    /// shorter rows with zeros.
    pub fn tokens(&self, rows: &[&[u32]]) -> Result<DTensor, NnError> {
        let vocabulary = self.structure.config.vocabulary;
        let time = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let mut all = Vec::with_capacity(rows.len() * time);
        for row in rows {
            if let Some(&token) = row.iter().find(|token| **token as usize >= vocabulary) {
                return Err(NnError::UnknownToken { token, vocabulary });
            }
            all.extend(row.iter().map(|&token| i64::from(token)));
            all.extend(std::iter::repeat_n(0, time - row.len()));
        }
        let tokens = Tensor::from_slice(&all, &[rows.len(), time])?;
        Ok(DTensor::distribute(
            &self.structure.dist,
            &tokens,
            Layout::replicated(self.structure.plan.mesh()),
        )?)
    }

    /// Selects hidden states by `(row, position)`, as `[positions, hidden]`.
    pub fn select_positions(
        &self,
        hidden: &DTensor,
        positions: &[(usize, usize)],
    ) -> Result<DTensor, NnError> {
        let [batch, time, width] = [hidden.shape()[0], hidden.shape()[1], hidden.shape()[2]];
        let flat = hidden.reshape(&Shape::new(&[batch * time, width])?)?;
        if positions.len() == batch * time
            && positions.iter().enumerate().all(|(at, (row, position))| row * time + position == at)
        {
            return Ok(flat);
        }
        let indices: Vec<i64> =
            positions.iter().map(|(row, position)| (row * time + position) as i64).collect();
        let indices = Tensor::from_slice(&indices, &[positions.len()])?;
        let replicated = Layout::replicated(self.structure.plan.mesh());
        let indices = DTensor::distribute(&self.structure.dist, &indices, replicated)?;
        Ok(flat.index_select(0, &indices)?)
    }
}

impl Structure {
    fn wrong_stage(&self, action: &'static str) -> NnError {
        let Stage { layers, of } = &self.stage;
        NnError::WrongStage { start: layers.start, end: layers.end, of: *of, action }
    }
}

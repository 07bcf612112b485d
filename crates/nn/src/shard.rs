//! The parameters of a stage as one rank holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext};
use weightloom_errors::nearest;
use weightloom_layout::{Layout, Shape};
use weightloom_tensor::Tensor;

use crate::error::NnError;
use crate::parameter::{ParameterKind, ParameterSpec};
use crate::plan::Plan;
use crate::stage::Stage;

/// The parameters of a stage as one rank holds them, and how ranks share them.
pub struct ModelShard {
    stage: Stage,
    plan: Plan,
    dist: Arc<DistContext>,
    parameters: Vec<(String, DTensor)>,
    /// Parameters that no gradient reaches.
    buffers: BTreeSet<String>,
}

impl fmt::Debug for ModelShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stage { layers, of } = &self.stage;
        write!(f, "layers {layers:?} of {of}, {} parameters", self.parameters.len())
    }
}

impl ModelShard {
    /// Checks that `values` are exactly the parameters of `specs`, and puts them into
    /// that order.
    pub fn new(
        specs: Vec<ParameterSpec>,
        stage: Stage,
        plan: Plan,
        dist: Arc<DistContext>,
        values: Vec<(String, DTensor)>,
    ) -> Result<Self, NnError> {
        let mut given: BTreeMap<String, DTensor> = values.into_iter().collect();
        let buffer = |spec: &ParameterSpec| (spec.kind == ParameterKind::Buffer).then(|| spec.name.clone());
        let buffers = specs.iter().filter_map(buffer).collect();
        let mut parameters = Vec::new();
        for spec in specs {
            let found = given.remove(&spec.name);
            let value = found.ok_or_else(|| NnError::MissingParameter { name: spec.name.clone() })?;
            if *value.shape() != spec.shape {
                let found = value.shape().clone();
                return Err(NnError::ParameterShape { name: spec.name, found, expected: spec.shape });
            }
            parameters.push((spec.name, value));
        }
        if let Some((name, _)) = given.into_iter().next() {
            let near = nearest(&name, parameters.iter().map(|(name, _)| name.as_str())).map(str::to_owned);
            return Err(NnError::UnknownParameter { name, near });
        }
        Ok(Self { stage, plan, dist, parameters, buffers })
    }

    /// The pipeline stage.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// The sharding plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The distributed context of the ranks that share the stage.
    pub fn dist(&self) -> &Arc<DistContext> {
        &self.dist
    }

    /// Parameters with their names, in the order of the definition.
    pub fn parameters(&self) -> &[(String, DTensor)] {
        &self.parameters
    }

    /// Parameters for in-place updates. Shapes and layouts must not change.
    pub fn parameters_mut(&mut self) -> &mut [(String, DTensor)] {
        &mut self.parameters
    }

    /// Whether no gradient reaches a parameter.
    pub fn is_buffer(&self, name: &str) -> bool {
        self.buffers.contains(name)
    }

    /// The index of a parameter.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.parameters.iter().position(|(found, _)| found == name)
    }

    /// Looks a parameter up by name.
    pub fn parameter(&self, name: &str) -> Option<&DTensor> {
        self.index_of(name).map(|index| &self.parameters[index].1)
    }

    /// Gathers a parameter into the layout and dtype in which it is used.
    pub fn gather(&self, name: &str) -> Result<DTensor, NnError> {
        let value = self.parameter(name);
        let value = value.ok_or_else(|| NnError::MissingParameter { name: name.to_owned() })?;
        self.plan.gather(name, value)
    }

    /// Builds a replicated `[batch, time]` tensor of tokens, right-padding shorter
    /// rows with zeros.
    pub fn tokens(&self, rows: &[&[u32]], vocabulary: usize) -> Result<DTensor, NnError> {
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
        Ok(DTensor::distribute(&self.dist, &tokens, Layout::replicated(self.plan.mesh()))?)
    }

    /// Builds the global batch from this rank's `count` rows, concatenated in
    /// `rows`. Every data-parallel rank contributes as many.
    pub fn batch(&self, rows: &[i64], count: usize) -> Result<DTensor, NnError> {
        let time = rows.len() / count.max(1);
        let local = Tensor::from_slice(rows, &[count, time])?.to(self.dist.device())?;
        let shape = Shape::new(&[count * self.plan.data_parallel_size(), time])?;
        Ok(DTensor::from_local(&self.dist, local, self.plan.batch_layout()?, &shape)?)
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
        let indices = DTensor::distribute(&self.dist, &indices, Layout::replicated(self.plan.mesh()))?;
        Ok(flat.index_select(0, &indices)?)
    }
}

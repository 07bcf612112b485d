//! How a decoder is spread over ranks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_dtensor::{DTensor, DTensorError, Release, ShardingPlan, name_matches};
use weightloom_errors::Hint;
use weightloom_layout::{DType, Layout, Mesh, Placement};

use crate::error::NnError;
use crate::parameter::ParameterSpec;

/// Which dim of each parameter is shared by tensor parallelism. A pattern may
/// have `*` for one part of a name; parameters without an entry are whole on
/// every rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Parallel {
    /// Dims by pattern.
    pub dims: BTreeMap<String, usize>,
}

/// Projections are shared by outputs, those behind them by inputs, so that one
/// sum at the end of attention and one at the end of the MLP is all there is to
/// send.
impl Default for Parallel {
    fn default() -> Self {
        let by_outputs = [
            "model.embed_tokens.weight",
            "lm_head.*",
            "model.layers.*.self_attn.q_proj.*",
            "model.layers.*.self_attn.k_proj.*",
            "model.layers.*.self_attn.v_proj.*",
            "model.layers.*.mlp.gate_proj.*",
            "model.layers.*.mlp.up_proj.*",
        ];
        let others = [
            ("model.layers.*.self_attn.o_proj.weight", 1),
            ("model.layers.*.mlp.down_proj.weight", 1),
            ("model.layers.*.mlp.experts.gate_proj.weight", 1),
            ("model.layers.*.mlp.experts.up_proj.weight", 1),
            ("model.layers.*.mlp.experts.down_proj.weight", 2),
        ];
        let dims = by_outputs.map(|pattern| (pattern, 0)).into_iter().chain(others);
        Self { dims: dims.map(|(pattern, dim)| (pattern.to_owned(), dim)).collect() }
    }
}

impl Parallel {
    /// The dim of a parameter that is shared, if one is.
    pub fn dim_of(&self, parameter: &str) -> Option<usize> {
        self.dims.iter().find(|(pattern, _)| name_matches(pattern, parameter)).map(|(_, &dim)| dim)
    }

    /// What of it is about these parameters.
    pub fn about(mut self, specs: &[ParameterSpec]) -> Self {
        self.dims.retain(|pattern, _| specs.iter().any(|spec| name_matches(pattern, &spec.name)));
        self
    }
}

/// A plan that does not fit its model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PlanError {
    /// A dim that a parameter does not have.
    #[error("the plan shares dim {dim} of `{name}`, which has {ndim}")]
    Dim { name: String, dim: usize, ndim: usize },
    /// Tensor parallelism of a model that names nothing to share.
    #[error("tp={tp}, but the model's plan shares no parameter")]
    NothingShared { tp: usize },
    /// Ranks of which most would have nothing.
    #[error("tp={tp}, but the largest dim that is shared has only {most} elements")]
    TooManyRanks { tp: usize, most: usize },
}

impl Hint for PlanError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Dim { .. } => None,
            Self::NothingShared { .. } => {
                Some("use tp=1, or say in the model's plan which dims are shared".to_owned())
            }
            Self::TooManyRanks { most, .. } => Some(format!("tp can be at most {most}")),
        }
    }
}

/// Where everything is on the ranks of one stage.
#[derive(Clone, Debug)]
pub struct Plan {
    sharding: ShardingPlan,
    usage: Usage,
}

/// How parameters are used, and what is between layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What is computed in; as parameters are kept if not given.
    pub dtype: Option<DType>,
    /// What becomes of gathered parameters before the backward pass.
    pub release: Release,
    /// Layers whose parameters are gathered ahead.
    pub ahead: usize,
    /// Who has which positions between layers.
    pub positions: Positions,
}

/// Who has which positions between layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// All ranks have all.
    #[default]
    Whole,
    /// Tensor-parallel ranks share them.
    Shared,
}

impl Plan {
    /// The plan for a mesh. Its axes `tp` and `sdp`, where it has them, share
    /// parameters by the model's dims and, on top of that, by their first dim;
    /// all other axes hold copies.
    pub fn new(parallel: &Parallel, specs: &[ParameterSpec], mesh: Mesh) -> Result<Self, NnError> {
        let axis = |name: &str| mesh.axis(name).ok().filter(|&axis| mesh.axis_size(axis) > 1);
        let (tp, sdp) = (axis("tp"), axis("sdp"));
        let mut sharding = ShardingPlan::new(mesh);
        let mut most = 0;
        for spec in specs {
            let dim = parallel.dim_of(&spec.name);
            if let Some(dim) = dim {
                let ndim = spec.shape.ndim();
                if dim >= ndim {
                    return Err(PlanError::Dim { name: spec.name.clone(), dim, ndim }.into());
                }
                most = most.max(spec.shape[dim]);
            }
            if tp.is_none() && sdp.is_none() {
                continue;
            }
            let mut used = vec![Placement::Replicate; mesh.ndim()];
            if let (Some(axis), Some(dim)) = (tp, dim) {
                used[axis] = Placement::Shard(dim);
            }
            let mut held = used.clone();
            if let Some(axis) = sdp {
                held[axis] = Placement::Shard(0);
            }
            let order: &[(usize, &[&str])] =
                if tp.is_some() && sdp.is_some() && dim == Some(0) { &[(0, &["tp", "sdp"])] } else { &[] };
            sharding = sharding.parameter(&spec.name, Layout::with_split_order(mesh, &held, order)?)?;
            if sdp.is_some() {
                sharding = sharding.used_as(&spec.name, Layout::new(mesh, &used)?)?;
            }
        }
        if let Some(axis) = tp {
            let tp = mesh.axis_size(axis);
            if most == 0 {
                return Err(PlanError::NothingShared { tp }.into());
            }
            if most < tp {
                return Err(PlanError::TooManyRanks { tp, most }.into());
            }
        }
        Ok(Self { sharding, usage: Usage::default() })
    }

    /// The same plan with another way to use parameters.
    pub fn with_usage(self, usage: Usage) -> Self {
        Self { usage, ..self }
    }

    /// How parameters are used.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// How many ranks compute different rows of a batch.
    pub fn sharers(&self) -> usize {
        let mesh = self.mesh();
        let axes = ["rdp", "sdp"].iter().filter_map(|name| mesh.axis(name).ok());
        axes.map(|axis| mesh.axis_size(axis)).product()
    }

    /// The layout of a batch's rows, shared by all data-parallel ranks.
    pub fn batch_layout(&self) -> Result<Layout, NnError> {
        let mesh = self.mesh();
        let placement = |axis: usize| match mesh.axis_name(axis) {
            "rdp" | "sdp" => Placement::Shard(0),
            _ => Placement::Replicate,
        };
        Ok(Layout::new(mesh, &(0..mesh.ndim()).map(placement).collect::<Vec<_>>())?)
    }

    /// The layout of `[batch, time, hidden]` between layers and stages.
    pub fn hidden_layout(&self, batch: Layout) -> Result<Layout, NnError> {
        self.along_tp(batch, self.between_layers())
    }

    /// What tensor-parallel ranks have of `[batch, time, hidden]` between layers.
    fn between_layers(&self) -> Placement {
        match self.usage.positions {
            Positions::Whole => Placement::Replicate,
            Positions::Shared => Placement::Shard(1),
        }
    }

    /// A layout with another placement along the axis that shares layers, if
    /// one does.
    fn along_tp(&self, layout: Layout, placement: Placement) -> Result<Layout, NnError> {
        let mesh = self.mesh();
        let axis = mesh.axis("tp").ok().filter(|&axis| mesh.axis_size(axis) > 1);
        let Some(axis) = axis.filter(|&axis| layout.placements()[axis] != placement) else {
            return Ok(layout);
        };
        let mut placements = layout.placements().to_vec();
        placements[axis] = placement;
        Ok(Layout::new(mesh, &placements)?)
    }

    /// What goes into a part of a layer, with all positions.
    pub(crate) fn entered(&self, x: DTensor) -> Result<DTensor, NnError> {
        Ok(x.redistribute(self.along_tp(x.layout(), Placement::Replicate)?)?)
    }

    /// What comes out of a part of a layer, as it is between them: with all sums
    /// done, and all ranks that share layers with the same part, however the
    /// layer was computed.
    pub(crate) fn left(&self, x: DTensor) -> Result<DTensor, NnError> {
        let settled = settled_layout(x.layout())?;
        Ok(x.redistribute(self.along_tp(settled, self.between_layers())?)?)
    }

    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        self.sharding.mesh()
    }

    /// Where a parameter is held.
    pub fn layout_of(&self, parameter: &str) -> Layout {
        self.sharding.layout_of(parameter)
    }

    /// Where a parameter is when it is used.
    pub fn used_layout_of(&self, parameter: &str) -> Layout {
        self.sharding.used_layout_of(parameter)
    }

    /// A parameter as it is used.
    pub(crate) fn used(&self, name: &str, parameter: &DTensor) -> Result<DTensor, NnError> {
        self.used_in(self.used_layout_of(name), parameter)
    }

    /// The same where the layout is known.
    pub(crate) fn used_in(&self, layout: Layout, parameter: &DTensor) -> Result<DTensor, NnError> {
        Ok(parameter.used(layout, self.dtype_of(parameter), self.usage.release)?)
    }

    /// Begins to gather a parameter.
    pub(crate) fn ahead(&self, layout: Layout, parameter: &DTensor) -> Result<(), DTensorError> {
        parameter.prefetch(layout, self.dtype_of(parameter))
    }

    fn dtype_of(&self, parameter: &DTensor) -> DType {
        self.usage.dtype.unwrap_or_else(|| parameter.dtype())
    }
}

/// What comes out of a part of the model, with all sums done.
pub(crate) fn settled(x: DTensor) -> Result<DTensor, NnError> {
    let layout = settled_layout(x.layout())?;
    Ok(x.redistribute(layout)?)
}

fn settled_layout(layout: Layout) -> Result<Layout, NnError> {
    if layout.pending().next().is_none() {
        return Ok(layout);
    }
    let placements: Vec<Placement> = layout
        .placements()
        .iter()
        .map(|placement| if placement.pending().is_some() { Placement::Replicate } else { *placement })
        .collect();
    Ok(Layout::new(layout.mesh(), &placements)?)
}

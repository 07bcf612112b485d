//! Sharding plan of a decoder.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_dtensor::{DTensor, DTensorError, Release, ShardingPlan, name_matches};
use weightloom_errors::Hint;
use weightloom_layout::{DType, Layout, Mesh, Placement};

use crate::error::NnError;
use crate::parameter::ParameterSpec;

/// The dim of each parameter that tensor parallelism shards. In a pattern, `*`
/// matches one component of a name. Parameters without an entry are replicated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Parallel {
    /// Dims by pattern of names.
    pub dims: BTreeMap<String, usize>,
}

/// Shards the first projections of a block by output and the last by input, so
/// that attention and feed-forward need one all-reduce each.
impl Default for Parallel {
    fn default() -> Self {
        let by_output = [
            "model.embed_tokens.weight",
            "lm_head.*",
            "model.layers.*.self_attn.q_proj.*",
            "model.layers.*.self_attn.k_proj.*",
            "model.layers.*.self_attn.v_proj.*",
            "model.layers.*.self_attn.q_b_proj.*",
            "model.layers.*.self_attn.kv_b_proj.*",
            "model.layers.*.mlp.gate_proj.*",
            "model.layers.*.mlp.up_proj.*",
            "model.layers.*.mlp.shared_experts.gate_proj.*",
            "model.layers.*.mlp.shared_experts.up_proj.*",
        ];
        let others = [
            ("model.layers.*.self_attn.o_proj.weight", 1),
            ("model.layers.*.mlp.down_proj.weight", 1),
            ("model.layers.*.mlp.shared_experts.down_proj.weight", 1),
            ("model.layers.*.mlp.experts.gate_proj.weight", 1),
            ("model.layers.*.mlp.experts.up_proj.weight", 1),
            ("model.layers.*.mlp.experts.down_proj.weight", 2),
        ];
        let dims = by_output.map(|pattern| (pattern, 0)).into_iter().chain(others);
        Self { dims: dims.map(|(pattern, dim)| (pattern.to_owned(), dim)).collect() }
    }
}

impl Parallel {
    /// The sharded dim of a parameter.
    pub fn dim_of(&self, parameter: &str) -> Option<usize> {
        self.dims.iter().find(|(pattern, _)| name_matches(pattern, parameter)).map(|(_, &dim)| dim)
    }

    /// Drops patterns that match none of the parameters.
    pub fn restricted_to(mut self, specs: &[ParameterSpec]) -> Self {
        self.dims.retain(|pattern, _| specs.iter().any(|spec| name_matches(pattern, &spec.name)));
        self
    }
}

/// Why a plan does not fit a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PlanError {
    #[error("cannot shard dim {dim} of `{name}`: it has {ndim} dims")]
    Dim { name: String, dim: usize, ndim: usize },
    #[error("cannot use tp={tp}: the model's plan shards no parameter")]
    NothingSharded { tp: usize },
    #[error("cannot use tp={tp}: the largest sharded dim has {most} elements")]
    TooManyRanks { tp: usize, most: usize },
}

impl Hint for PlanError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Dim { .. } => None,
            Self::NothingSharded { .. } => {
                Some("use tp=1, or name the sharded dims in the model's plan".to_owned())
            }
            Self::TooManyRanks { most, .. } => Some(format!("use tp={most} or less")),
        }
    }
}

/// Layouts of the parameters and activations of one stage.
#[derive(Clone, Debug)]
pub struct Plan {
    sharding: ShardingPlan,
    usage: Usage,
}

/// How parameters are gathered and activations laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The compute dtype; by default that of the parameters.
    pub dtype: Option<DType>,
    /// Whether gathered parameters are freed before the backward pass.
    pub release: Release,
    /// The number of layers whose parameters are gathered ahead of use.
    pub prefetch: usize,
    /// Whether tensor-parallel ranks split positions between layers.
    pub sequence_parallel: SequenceParallelism,
}

/// Whether tensor-parallel ranks split positions between layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SequenceParallelism {
    /// Every rank has all positions.
    #[default]
    Off,
    /// Every rank has a part of the positions.
    On,
}

impl Plan {
    /// The plan for a mesh. The axis `tp` shards parameters as `parallel` says,
    /// `sdp` shards their first dim, and all other axes replicate.
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
                return Err(PlanError::NothingSharded { tp }.into());
            }
            if most < tp {
                return Err(PlanError::TooManyRanks { tp, most }.into());
            }
        }
        Ok(Self { sharding, usage: Usage::default() })
    }

    /// Replaces the usage.
    pub fn with_usage(self, usage: Usage) -> Self {
        Self { usage, ..self }
    }

    /// How parameters are used.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The number of ranks that compute different rows of a batch.
    pub fn data_parallel_size(&self) -> usize {
        let mesh = self.mesh();
        let axes = ["rdp", "sdp"].iter().filter_map(|name| mesh.axis(name).ok());
        axes.map(|axis| mesh.axis_size(axis)).product()
    }

    /// The layout of a batch, sharded by rows over the data-parallel ranks.
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
        self.with_tp_placement(batch, self.tp_placement())
    }

    /// The `tp` placement of `[batch, time, hidden]` between layers.
    fn tp_placement(&self) -> Placement {
        match self.usage.sequence_parallel {
            SequenceParallelism::Off => Placement::Replicate,
            SequenceParallelism::On => Placement::Shard(1),
        }
    }

    /// Replaces the placement of the `tp` axis, if there is one.
    fn with_tp_placement(&self, layout: Layout, placement: Placement) -> Result<Layout, NnError> {
        let mesh = self.mesh();
        let axis = mesh.axis("tp").ok().filter(|&axis| mesh.axis_size(axis) > 1);
        let Some(axis) = axis.filter(|&axis| layout.placements()[axis] != placement) else {
            return Ok(layout);
        };
        let mut placements = layout.placements().to_vec();
        placements[axis] = placement;
        Ok(Layout::new(mesh, &placements)?)
    }

    /// Gathers all positions of the input of attention, feed-forward or another block
    /// whose tensor-parallel ranks share the channels.
    pub fn enter_block(&self, x: DTensor) -> Result<DTensor, NnError> {
        Ok(x.redistribute(self.with_tp_placement(x.layout(), Placement::Replicate)?)?)
    }

    /// Reduces the output of such a block to the layout between layers.
    pub fn leave_block(&self, x: DTensor) -> Result<DTensor, NnError> {
        let reduced = reduced_layout(x.layout())?;
        Ok(x.redistribute(self.with_tp_placement(reduced, self.tp_placement())?)?)
    }

    /// The stage's mesh.
    pub fn mesh(&self) -> Mesh {
        self.sharding.mesh()
    }

    /// The layout in which a parameter is stored.
    pub fn layout_of(&self, parameter: &str) -> Layout {
        self.sharding.layout_of(parameter)
    }

    /// The layout in which a parameter is used.
    pub fn used_layout_of(&self, parameter: &str) -> Layout {
        self.sharding.used_layout_of(parameter)
    }

    /// Gathers a parameter into the layout and dtype in which it is used.
    pub fn gather(&self, name: &str, parameter: &DTensor) -> Result<DTensor, NnError> {
        self.gather_as(self.used_layout_of(name), parameter)
    }

    /// The same with a known layout.
    pub(crate) fn gather_as(&self, layout: Layout, parameter: &DTensor) -> Result<DTensor, NnError> {
        Ok(parameter.used(layout, self.compute_dtype(parameter), self.usage.release)?)
    }

    /// Starts to gather a parameter.
    pub(crate) fn prefetch(&self, layout: Layout, parameter: &DTensor) -> Result<(), DTensorError> {
        parameter.prefetch(layout, self.compute_dtype(parameter))
    }

    fn compute_dtype(&self, parameter: &DTensor) -> DType {
        self.usage.dtype.unwrap_or_else(|| parameter.dtype())
    }
}

/// Sums a partial tensor over ranks.
pub(crate) fn reduce_partial(x: DTensor) -> Result<DTensor, NnError> {
    let layout = reduced_layout(x.layout())?;
    Ok(x.redistribute(layout)?)
}

fn reduced_layout(layout: Layout) -> Result<Layout, NnError> {
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

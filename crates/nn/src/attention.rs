//! Causal self-attention.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext};
use weightloom_layout::{Layout, Shape};
use weightloom_tensor::{Attention as AttentionOptions, Device, Tensor};

use crate::cache::Cache;
use crate::config::QkNorm;
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::packing::PackedDocuments;
use crate::plan::reduce_partial;
use crate::prefix_tree::TreeChunk;
use crate::rope::{Rope, rotate};

/// Projections and norms of self-attention.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) output: Linear,
    pub(crate) norms: Option<[Norm; 2]>,
}

/// Positions of the tokens of one forward pass, shared by all layers.
pub(crate) struct PositionInfo {
    batch: usize,
    time: usize,
    /// The position of the first token of each row.
    pub(crate) starts: Vec<usize>,
    angles: Option<[DTensor; 2]>,
    /// Set if rows are packed: positions restart with each document.
    pub(crate) documents: Option<PackedDocuments>,
    /// Set if rows are the tokens of a prefix tree.
    tree: Option<TreeChunk>,
}

impl PositionInfo {
    pub(crate) fn new(
        dist: &Arc<DistContext>,
        layout: Layout,
        rope: Option<&Rope>,
        [batch, time]: [usize; 2],
        starts: Vec<usize>,
        device: Device,
    ) -> Result<Self, NnError> {
        let mut positions = Self { batch, time, starts, angles: None, documents: None, tree: None };
        if positions.is_uneven() && time > 1 {
            return Err(NnError::UnevenRows { time });
        }
        if let Some(rope) = rope {
            let tables = if positions.is_uneven() {
                rope.tables(positions.starts.iter().copied(), device)?
            } else {
                let start = positions.starts.first().copied().unwrap_or(0);
                rope.tables(start..start + time, device)?
            };
            let replicated = Layout::replicated(layout.mesh());
            let [cos, sin] = tables.map(|table| DTensor::distribute(dist, &table, replicated));
            positions.angles = Some([cos?, sin?]);
        }
        Ok(positions)
    }

    /// The positions of packed rows, which restart with each document.
    pub(crate) fn packed(documents: PackedDocuments, rope: Option<&Rope>) -> Result<Self, NnError> {
        let [batch, time] = [documents.starts.shape()[0], documents.starts.shape()[1]];
        let angles = rope.map(|rope| documents.angles(rope)).transpose()?;
        let starts = vec![0; batch];
        Ok(Self { batch, time, starts, angles, documents: Some(documents), tree: None })
    }

    /// Attends along a tree whose tokens are the rows.
    pub(crate) fn with_tree(self, tree: TreeChunk) -> Self {
        Self { tree: Some(tree), ..self }
    }

    /// Whether rows begin at different positions.
    fn is_uneven(&self) -> bool {
        self.starts.iter().any(|start| *start != self.starts[0])
    }

    /// Rotates `[batch, heads, time, width]` by its positions.
    fn rotate(&self, x: DTensor) -> Result<DTensor, NnError> {
        let Some([cos, sin]) = &self.angles else { return Ok(x) };
        if !self.is_uneven() {
            return rotate(&x, cos, sin);
        }
        // One token per row: swap rows and positions.
        Ok(rotate(&x.transpose(0, 2)?, cos, sin)?.transpose(0, 2)?)
    }

    /// The attention mask `[batch, keys]` of rows that begin at different positions.
    fn mask(
        &self,
        dist: &Arc<DistContext>,
        layout: Layout,
        keys: usize,
        window: Option<usize>,
    ) -> Result<DTensor, NnError> {
        let mut visible = Vec::with_capacity(self.batch * keys);
        for &start in &self.starts {
            let first = window.map_or(0, |window| (start + 1).saturating_sub(window));
            visible.extend((0..keys).map(|key| (first..=start).contains(&key)));
        }
        let mask = Tensor::from_bools(&visible, &[self.batch, keys])?;
        Ok(DTensor::distribute(dist, &mask, Layout::replicated(layout.mesh()))?)
    }
}

impl Attention {
    pub(crate) fn forward(
        &self,
        context: &ForwardContext<'_>,
        layer: usize,
        x: &DTensor,
        positions: &PositionInfo,
        cache: Option<(&mut Cache, usize)>,
        residual: Option<&DTensor>,
    ) -> Result<DTensor, NnError> {
        let config = context.config();
        let options = &config.attention;
        let (batch, time, width) = (positions.batch, positions.time, options.width);
        let project = |linear: &Linear, heads: usize, norm: Option<&Norm>| -> Result<DTensor, NnError> {
            let mut all = linear.forward(context, x, None)?;
            if let (Some(QkNorm::Whole), Some(norm)) = (options.qk_norm, norm) {
                // Tensor-parallel ranks gather all heads for this norm only.
                all = reduce_partial(all)?;
                all = norm.forward(context, &config.norm, &all)?.redistribute(all.layout())?;
            }
            let mut heads = all.reshape(&Shape::new(&[batch, time, heads, width])?)?;
            if let (Some(QkNorm::Head), Some(norm)) = (options.qk_norm, norm) {
                heads = norm.forward(context, &config.norm, &heads)?;
            }
            Ok(heads.transpose(1, 2)?)
        };
        let norm = |index: usize| self.norms.as_ref().map(|norms| &norms[index]);
        let queries = positions.rotate(project(&self.query, options.heads, norm(0))?)?;
        let keys = positions.rotate(project(&self.key, options.kv_heads, norm(1))?)?;
        let values = project(&self.value, options.kv_heads, None)?;
        let window = config.window(layer);
        let attention =
            AttentionOptions { scale: options.scale, causal: true, window, soft_cap: options.soft_cap };
        let merged_heads = Shape::new(&[batch, time, options.heads * width])?;
        if let Some(tree) = &positions.tree {
            let attended = tree.attention([&queries, &keys, &values], attention, cache)?;
            return self.output.forward(context, &attended.reshape(&merged_heads)?, residual);
        }
        let [keys, values] = match cache {
            Some((cache, layer)) => cache.append(layer, [&keys, &values])?,
            None => [keys, values],
        };
        let attended = if let Some(documents) = &positions.documents {
            queries.document_attention(&keys, &values, &documents.starts, attention)?
        } else if positions.is_uneven() {
            let mask = positions.mask(x.dist(), x.layout(), keys.shape()[2], window)?;
            let attention = AttentionOptions { causal: false, window: None, ..attention };
            queries.masked_attention(&keys, &values, &mask, attention)?
        } else {
            queries.attention(&keys, &values, attention)?
        };
        let attended = attended.transpose(1, 2)?.reshape(&merged_heads)?;
        self.output.forward(context, &attended, residual)
    }
}

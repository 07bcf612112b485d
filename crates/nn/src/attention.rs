//! Causal self-attention.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext};
use weightloom_layout::{Layout, Shape};
use weightloom_tensor::{Attention as AttentionOptions, Device, Tensor};

use crate::cache::Cache;
use crate::config::{QkNorm, RopeConfig, WindowConfig, WindowKind};
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::latent_attention::LatentProjections;
use crate::linear::Linear;
use crate::norm::{Norm, plain_rms_norm};
use crate::packing::PackedDocuments;
use crate::plan::reduce_partial;
use crate::prefix_tree::TreeChunk;
use crate::rope::{PositionTables, Rope, rotate};

/// Projections and norms of self-attention.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) projections: Projections,
    pub(crate) output: Linear,
}

/// How queries, keys and values are made.
#[derive(Clone, Debug)]
pub(crate) enum Projections {
    Heads(HeadProjections),
    Latent(LatentProjections),
}

/// Projections of the hidden state to the heads.
#[derive(Clone, Debug)]
pub(crate) struct HeadProjections {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) norms: Option<[Norm; 2]>,
}

/// Positions of the tokens of one forward pass, shared by all layers.
pub(crate) struct PositionInfo {
    pub(crate) batch: usize,
    pub(crate) time: usize,
    /// The position of the first token of each row.
    pub(crate) starts: Vec<usize>,
    tables: Option<PositionTables<DTensor>>,
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
        let mut positions = Self { batch, time, starts, tables: None, documents: None, tree: None };
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
            let tables = tables.try_map(|table| Ok(DTensor::distribute(dist, &table, replicated)?))?;
            positions.tables = Some(tables);
        }
        Ok(positions)
    }

    /// The positions of packed rows, which restart with each document.
    pub(crate) fn packed(documents: PackedDocuments, rope: Option<&Rope>) -> Result<Self, NnError> {
        let [batch, time] = [documents.starts.shape()[0], documents.starts.shape()[1]];
        let tables = rope.map(|rope| documents.tables(rope)).transpose()?;
        let starts = vec![0; batch];
        Ok(Self { batch, time, starts, tables, documents: Some(documents), tree: None })
    }

    /// Attends along a tree whose tokens are the rows.
    pub(crate) fn with_tree(self, tree: TreeChunk) -> Self {
        Self { tree: Some(tree), ..self }
    }

    /// Whether rows begin at different positions.
    fn is_uneven(&self) -> bool {
        self.starts.iter().any(|start| *start != self.starts[0])
    }

    /// Rotates `[batch, heads, time, width]` by its positions, as a layer with or
    /// without an attention window does.
    pub(crate) fn rotate(
        &self,
        x: DTensor,
        rope: &RopeConfig,
        window: Option<&WindowConfig>,
    ) -> Result<DTensor, NnError> {
        let Some(tables) = &self.tables else { return Ok(x) };
        let angles = match (&tables.window_angles, window) {
            (Some(angles), Some(_)) => angles,
            _ => &tables.angles,
        };
        if !self.is_uneven() {
            return rotate(&x, angles, rope.pairs);
        }
        // One token per row: swap rows and positions.
        Ok(rotate(&x.transpose(0, 2)?, angles, rope.pairs)?.transpose(0, 2)?)
    }

    /// Scales the queries `[batch, heads, time, width]` of a layer that does not
    /// rotate them.
    fn scale_queries(&self, queries: DTensor) -> Result<DTensor, NnError> {
        let Some(factors) = self.tables.as_ref().and_then(|tables| tables.temperature.as_ref()) else {
            return Ok(queries);
        };
        let factors = factors.cast(queries.dtype())?;
        if self.is_uneven() {
            // One token per row.
            return Ok(queries.mul(&factors.reshape(&Shape::new(&[self.batch, 1, 1, 1])?)?)?);
        }
        match self.documents {
            Some(_) => Ok(queries.mul(&factors.reshape(&Shape::new(&[self.batch, 1, self.time, 1])?)?)?),
            None => Ok(queries.mul(&factors)?),
        }
    }

    /// The attention mask `[batch, keys]` of rows that begin at different positions.
    fn mask(
        &self,
        dist: &Arc<DistContext>,
        layout: Layout,
        keys: usize,
        window: Option<&WindowConfig>,
    ) -> Result<DTensor, NnError> {
        let mut visible = Vec::with_capacity(self.batch * keys);
        for &start in &self.starts {
            let first = window.map_or(0, |window| window.first_visible(start));
            visible.extend((0..keys).map(|key| (first..=start).contains(&key)));
        }
        let mask = Tensor::from_bools(&visible, &[self.batch, keys])?;
        Ok(DTensor::distribute(dist, &mask, Layout::replicated(layout.mesh()))?)
    }
}

/// What a layer attends to, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerAttention {
    pub(crate) options: AttentionOptions,
    /// The size of chunks that do not see each other.
    pub(crate) chunk: Option<usize>,
}

impl LayerAttention {
    /// Causal attention of queries `[batch, heads, queries, width]`, of which the last
    /// has the position of the last key.
    pub(crate) fn forward(
        &self,
        queries: &DTensor,
        keys: &DTensor,
        values: &DTensor,
    ) -> Result<DTensor, NnError> {
        let (count, end) = (queries.shape()[2], keys.shape()[2]);
        let Some(chunk) = self.chunk.filter(|chunk| end > *chunk) else {
            return Ok(queries.attention(keys, values, self.options)?);
        };
        let mut parts = Vec::new();
        let mut start = end - count;
        while start < end {
            let first = start / chunk * chunk;
            let stop = (first + chunk).min(end);
            let own = queries.narrow(2, start + count - end, stop - start)?;
            let visible = |x: &DTensor| x.narrow(2, first, stop - first);
            parts.push(own.attention(&visible(keys)?, &visible(values)?, self.options)?);
            start = stop;
        }
        match &parts[..] {
            [only] => Ok(only.clone()),
            parts => Ok(DTensor::cat(&parts.iter().collect::<Vec<_>>(), 2)?),
        }
    }
}

impl HeadProjections {
    /// Queries, keys and values, `[batch, heads, time, width]`.
    fn forward(
        &self,
        context: &ForwardContext<'_>,
        layer: usize,
        x: &DTensor,
        positions: &PositionInfo,
    ) -> Result<[DTensor; 3], NnError> {
        let config = context.config();
        let options = &config.attention;
        let (rope, window) = (config.rope(layer), config.window(layer));
        let project = |linear: &Linear, heads: usize, norm: Option<&Norm>| -> Result<DTensor, NnError> {
            let mut all = linear.forward(context, x, None)?;
            if let (Some(QkNorm::Whole), Some(norm)) = (options.qk_norm, norm) {
                // Tensor-parallel ranks gather all heads for this norm only.
                all = reduce_partial(all)?;
                all = norm.forward(context, &config.norm, &all)?.redistribute(all.layout())?;
            }
            let shape = Shape::new(&[positions.batch, positions.time, heads, options.width])?;
            let mut heads = all.reshape(&shape)?;
            if let (Some(QkNorm::Head), Some(norm)) = (options.qk_norm, norm) {
                heads = norm.forward(context, &config.norm, &heads)?;
            }
            Ok(heads.transpose(1, 2)?)
        };
        let rotate = |x: DTensor| -> Result<DTensor, NnError> {
            let Some(rope) = rope else { return Ok(x) };
            let rotated = positions.rotate(x, rope, window)?;
            match options.qk_norm {
                Some(QkNorm::Rotated) => plain_rms_norm(&rotated, config.norm.eps),
                _ => Ok(rotated),
            }
        };
        let norm = |index: usize| self.norms.as_ref().map(|norms| &norms[index]);
        let mut queries = rotate(project(&self.query, options.heads, norm(0))?)?;
        if rope.is_none() {
            queries = positions.scale_queries(queries)?;
        }
        let keys = rotate(project(&self.key, options.kv_heads, norm(1))?)?;
        let values = project(&self.value, options.kv_heads, None)?;
        Ok([queries, keys, values])
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
        let options = &context.config().attention;
        let [queries, keys, values] = match &self.projections {
            Projections::Heads(heads) => heads.forward(context, layer, x, positions)?,
            Projections::Latent(latent) => latent.forward(context, layer, x, positions)?,
        };
        let attended = self.attend(context, layer, [queries, keys, values], positions, cache)?;
        // Values of latent attention are padded to the size of keys.
        let width = options.latent.as_ref().map_or(options.width, |latent| latent.value_width);
        let attended = attended.narrow(3, 0, width)?;
        let merged_heads = Shape::new(&[positions.batch, positions.time, options.heads * width])?;
        self.output.forward(context, &attended.reshape(&merged_heads)?, residual)
    }

    /// Attends, and returns `[batch, time, heads, width]`.
    fn attend(
        &self,
        context: &ForwardContext<'_>,
        layer: usize,
        [queries, keys, values]: [DTensor; 3],
        positions: &PositionInfo,
        cache: Option<(&mut Cache, usize)>,
    ) -> Result<DTensor, NnError> {
        let config = context.config();
        let window = config.window(layer);
        let (sliding, chunk) = match window.map(|window| (window.kind, window.size)) {
            None => (None, None),
            Some((WindowKind::Sliding, size)) => (Some(size), None),
            Some((WindowKind::Chunked, size)) => (None, Some(size)),
        };
        let options = AttentionOptions {
            scale: config.attention.scale,
            causal: true,
            window: sliding,
            soft_cap: config.attention.soft_cap,
        };
        let attention = LayerAttention { options, chunk };
        if let Some(tree) = &positions.tree {
            return tree.attention([&queries, &keys, &values], attention, cache);
        }
        let [keys, values] = match cache {
            Some((cache, layer)) => cache.append(layer, [&keys, &values])?,
            None => [keys, values],
        };
        let attended = if let Some(documents) = &positions.documents {
            let starts = match chunk {
                Some(size) => documents.chunk_starts(size)?,
                None => documents.starts.clone(),
            };
            queries.document_attention(&keys, &values, &starts, options)?
        } else if let Some(chunk) = chunk
            && positions.is_uneven()
            && keys.shape()[2] > chunk
        {
            // Each row by itself, so that its bits are those of a batch of one.
            let rows = positions.starts.iter().enumerate().map(|(row, &start)| {
                let visible = |x: &DTensor| x.narrow(0, row, 1)?.narrow(2, 0, start + 1);
                attention.forward(&queries.narrow(0, row, 1)?, &visible(&keys)?, &visible(&values)?)
            });
            let rows = rows.collect::<Result<Vec<_>, NnError>>()?;
            DTensor::cat(&rows.iter().collect::<Vec<_>>(), 0)?
        } else if positions.is_uneven() {
            let mask = positions.mask(queries.dist(), queries.layout(), keys.shape()[2], window)?;
            let options = AttentionOptions { causal: false, window: None, ..options };
            queries.masked_attention(&keys, &values, &mask, options)?
        } else {
            attention.forward(&queries, &keys, &values)?
        };
        Ok(attended.transpose(1, 2)?)
    }
}

//! How tokens look at each other.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext};
use weightloom_layout::{Layout, Shape};
use weightloom_tensor::{Attention as Options, Device, Tensor};

use crate::branches::Branches;
use crate::cache::Cache;
use crate::config::QkNorm;
use crate::decoder::Run;
use crate::error::NnError;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::plan::settled;
use crate::rope::{Rope, turned};

/// Where the parameters of an attention are.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) output: Linear,
    pub(crate) norms: Option<[Norm; 2]>,
}

/// Where the tokens of one call stand, the same for all layers.
pub(crate) struct Standing {
    batch: usize,
    time: usize,
    /// Where each row begins.
    pub(crate) starts: Vec<usize>,
    angles: Option<[DTensor; 2]>,
    /// Which tokens see which, if rows are the tokens of branches.
    branches: Option<Branches>,
}

impl Standing {
    pub(crate) fn new(
        dist: &Arc<DistContext>,
        layout: Layout,
        rope: Option<&Rope>,
        [batch, time]: [usize; 2],
        starts: Vec<usize>,
        device: Device,
    ) -> Result<Self, NnError> {
        let mut standing = Self { batch, time, starts, angles: None, branches: None };
        if standing.is_uneven() && time > 1 {
            return Err(NnError::UnevenRows { asked: time });
        }
        if let Some(rope) = rope {
            let tables = if standing.is_uneven() {
                rope.tables(standing.starts.iter().copied(), device)?
            } else {
                let start = standing.starts.first().copied().unwrap_or(0);
                rope.tables(start..start + time, device)?
            };
            let replicated = Layout::replicated(layout.mesh());
            let [cos, sin] = tables.map(|table| DTensor::distribute(dist, &table, replicated));
            standing.angles = Some([cos?, sin?]);
        }
        Ok(standing)
    }

    /// The same for rows of one token each that belong to branches.
    pub(crate) fn with_branches(self, branches: Branches) -> Self {
        Self { branches: Some(branches), ..self }
    }

    /// Whether rows differ in length.
    fn is_uneven(&self) -> bool {
        self.starts.iter().any(|start| *start != self.starts[0])
    }

    /// `[batch, heads, time, width]` turned by its positions.
    fn turned(&self, x: DTensor) -> Result<DTensor, NnError> {
        let Some([cos, sin]) = &self.angles else { return Ok(x) };
        if !self.is_uneven() {
            return turned(&x, cos, sin);
        }
        // One token of each row: rows take the place of positions.
        Ok(turned(&x.transpose(0, 2)?, cos, sin)?.transpose(0, 2)?)
    }

    /// For rows that differ in length, what each may see.
    fn mask(
        &self,
        dist: &Arc<DistContext>,
        layout: Layout,
        keys: usize,
        window: Option<usize>,
    ) -> Result<DTensor, NnError> {
        let mut seen = Vec::with_capacity(self.batch * keys);
        for &start in &self.starts {
            let first = window.map_or(0, |window| (start + 1).saturating_sub(window));
            seen.extend((0..keys).map(|key| (first..=start).contains(&key)));
        }
        let mask = Tensor::from_bools(&seen, &[self.batch, keys])?;
        Ok(DTensor::distribute(dist, &mask, Layout::replicated(layout.mesh()))?)
    }
}

impl Attention {
    pub(crate) fn apply(
        &self,
        run: &Run<'_>,
        layer: usize,
        x: &DTensor,
        standing: &Standing,
        cache: Option<(&mut Cache, usize)>,
        residual: Option<&DTensor>,
    ) -> Result<DTensor, NnError> {
        let config = run.config();
        let options = &config.attention;
        let (batch, time, width) = (standing.batch, standing.time, options.width);
        let project = |linear: &Linear, heads: usize, norm: Option<&Norm>| -> Result<DTensor, NnError> {
            let mut all = linear.apply(run, x, None)?;
            if let (Some(QkNorm::Whole), Some(norm)) = (options.qk_norm, norm) {
                // Ranks that share heads see whole rows for the norm alone.
                all = settled(all)?;
                all = norm.apply(run, &config.norm, &all)?.redistribute(all.layout())?;
            }
            let mut heads = all.reshape(&Shape::new(&[batch, time, heads, width])?)?;
            if let (Some(QkNorm::Head), Some(norm)) = (options.qk_norm, norm) {
                heads = norm.apply(run, &config.norm, &heads)?;
            }
            Ok(heads.transpose(1, 2)?)
        };
        let norm = |place: usize| self.norms.as_ref().map(|norms| &norms[place]);
        let queries = standing.turned(project(&self.query, options.heads, norm(0))?)?;
        let keys = standing.turned(project(&self.key, options.kv_heads, norm(1))?)?;
        let values = project(&self.value, options.kv_heads, None)?;
        let window = config.window(layer);
        let how = Options { scale: options.scale, causal: true, window, soft_cap: options.soft_cap };
        let together = Shape::new(&[batch, time, options.heads * width])?;
        if let Some(branches) = &standing.branches {
            let seen = branches.attention([&queries, &keys, &values], how, cache)?;
            return self.output.apply(run, &seen.reshape(&together)?, residual);
        }
        let [keys, values] = match cache {
            Some((cache, place)) => cache.extended(place, [&keys, &values])?,
            None => [keys, values],
        };
        let seen = if standing.is_uneven() {
            let mask = standing.mask(x.dist(), x.layout(), keys.shape()[2], window)?;
            let how = Options { causal: false, window: None, ..how };
            queries.masked_attention(&keys, &values, &mask, how)?
        } else {
            queries.attention(&keys, &values, how)?
        };
        let seen = seen.transpose(1, 2)?.reshape(&together)?;
        self.output.apply(run, &seen, residual)
    }
}

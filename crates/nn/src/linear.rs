//! Linear projection with its LoRA updates.

use weightloom_dtensor::DTensor;

use crate::adapter::Adapter;
use crate::batch_adapters::{AdapterRows, BatchAdapters, concat_rows, narrow_rows};
use crate::context::ForwardContext;
use crate::error::NnError;

/// Parameter indices of a linear projection.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// The module name, by which adapters refer to it.
    pub(crate) module: String,
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
}

impl Linear {
    /// `x · weightᵀ + bias + residual`, with the adapters of the batch.
    pub(crate) fn forward(
        &self,
        context: &ForwardContext<'_>,
        x: &DTensor,
        residual: Option<&DTensor>,
    ) -> Result<DTensor, NnError> {
        if let Some(check) = x.nan_check() {
            check.enter_module(&self.module);
        }
        let dtype = context.compute_dtype(self.weight);
        let names = [Some(self.weight), self.bias].map(|index| index.map(|index| context.name(index)));
        let touches = |adapter: &Adapter| {
            names.iter().flatten().any(|name| adapter.replaces(name))
                || adapter
                    .low_rank(&self.module)
                    .is_some_and(|low_rank| !low_rank.is_additive(context, dtype))
        };
        context.by_group(x.shape()[0], touches, |context, rows| {
            let x = narrow_rows(x, rows)?;
            let residual = residual.map(|residual| narrow_rows(residual, rows)).transpose()?;
            self.forward_group(context, &x, residual.as_ref())
        })
    }

    /// The same for rows that all use the same weight and bias.
    fn forward_group(
        &self,
        context: &ForwardContext<'_>,
        x: &DTensor,
        residual: Option<&DTensor>,
    ) -> Result<DTensor, NnError> {
        let weight = context.parameter(self.weight)?;
        let bias = self.bias.map(|index| context.parameter(index)).transpose()?;
        if let Some((low_rank, strength)) = context.low_rank(&self.module) {
            let parameters = [Some(&weight), bias.as_ref(), residual];
            return low_rank.forward(context, &self.module, x, parameters, strength);
        }
        let base = x.linear(&weight, bias.as_ref(), residual)?;
        match context.adapters() {
            BatchAdapters::Groups(groups) => self.add_updates(context, x, base, groups),
            BatchAdapters::Uniform(_) => Ok(base),
        }
    }

    /// Adds the LoRA update of each group to the base result of all rows.
    fn add_updates(
        &self,
        context: &ForwardContext<'_>,
        x: &DTensor,
        base: DTensor,
        groups: &[AdapterRows<'_>],
    ) -> Result<DTensor, NnError> {
        let mut results = Vec::new();
        // Rows before `done` are already in `results`.
        let (mut done, mut start) = (0, 0);
        for group in groups {
            let rows = start..start + group.rows;
            start = rows.end;
            let update = group.adapter.and_then(|(adapter, strength)| {
                let low_rank = adapter.low_rank(&self.module)?;
                (!rows.is_empty()).then_some((low_rank, strength))
            });
            let Some((low_rank, strength)) = update else { continue };
            if done < rows.start {
                results.push(narrow_rows(&base, &(done..rows.start))?);
            }
            let low = low_rank.down(context, &self.module, &narrow_rows(x, &rows)?)?;
            results.push(low_rank.add_up(context, &low, &narrow_rows(&base, &rows)?, strength)?);
            done = rows.end;
        }
        if results.is_empty() {
            return Ok(base);
        }
        if done < start {
            results.push(narrow_rows(&base, &(done..start))?);
        }
        concat_rows(results)
    }
}

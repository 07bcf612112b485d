//! Projections, with what an adapter adds to them.

use weightloom_dtensor::DTensor;

use crate::adapter::Adapter;
use crate::changes::{ChangedRows, Changes, joined, part};
use crate::decoder::Run;
use crate::error::NnError;

/// Where the parameters of a projection are.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// Its name, by which adapters find it.
    pub(crate) module: String,
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
}

impl Linear {
    /// The projection of `x`, plus a residual.
    pub(crate) fn apply(
        &self,
        run: &Run<'_>,
        x: &DTensor,
        residual: Option<&DTensor>,
    ) -> Result<DTensor, NnError> {
        if let Some(check) = x.nan_check() {
            check.enter_module(&self.module);
        }
        let dtype = run.dtype_of(self.weight);
        let names = [Some(self.weight), self.bias].map(|place| place.map(|place| run.name(place)));
        let touches = |adapter: &Adapter| {
            names.iter().flatten().any(|name| adapter.replaces(name))
                || adapter.low_rank(&self.module).is_some_and(|low_rank| !low_rank.is_added(run, dtype))
        };
        run.by_group(x.shape()[0], touches, |run, rows| {
            let (x, residual) = (part(x, rows)?, residual.map(|residual| part(residual, rows)).transpose()?);
            self.apply_to(run, &x, residual.as_ref())
        })
    }

    /// The same where no group of rows has parameters of its own.
    fn apply_to(&self, run: &Run<'_>, x: &DTensor, residual: Option<&DTensor>) -> Result<DTensor, NnError> {
        let weight = run.parameter(self.weight)?;
        let bias = self.bias.map(|place| run.parameter(place)).transpose()?;
        if let Some((low_rank, strength)) = run.low_rank(&self.module) {
            let parameters = [Some(&weight), bias.as_ref(), residual];
            return low_rank.applied(run, &self.module, x, parameters, strength);
        }
        let plain = x.linear(&weight, bias.as_ref(), residual)?;
        match run.changes() {
            Changes::Groups(groups) => self.changed(run, x, plain, groups),
            Changes::Same(_) => Ok(plain),
        }
    }

    /// What the projection made of all rows, with what groups of them add.
    fn changed(
        &self,
        run: &Run<'_>,
        x: &DTensor,
        plain: DTensor,
        groups: &[ChangedRows<'_>],
    ) -> Result<DTensor, NnError> {
        let mut parts = Vec::new();
        // Rows before this are in parts already.
        let (mut done, mut start) = (0, 0);
        for group in groups {
            let rows = start..start + group.rows;
            start = rows.end;
            let change = group.change.and_then(|(adapter, strength)| {
                let low_rank = adapter.low_rank(&self.module)?;
                (!rows.is_empty()).then_some((low_rank, strength))
            });
            let Some((low_rank, strength)) = change else { continue };
            if done < rows.start {
                parts.push(part(&plain, &(done..rows.start))?);
            }
            let low = low_rank.low(run, &self.module, &part(x, &rows)?)?;
            parts.push(low_rank.added_to(run, &low, &part(&plain, &rows)?, strength)?);
            done = rows.end;
        }
        if parts.is_empty() {
            return Ok(plain);
        }
        if done < start {
            parts.push(part(&plain, &(done..start))?);
        }
        joined(parts)
    }
}

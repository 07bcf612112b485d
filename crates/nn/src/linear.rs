//! Projections, with what an adapter adds to them.

use shardloom_dtensor::DTensor;

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
        x.ranks().set_place(&self.module);
        let weight = run.parameter(self.weight)?;
        let bias = self.bias.map(|place| run.parameter(place)).transpose()?;
        match run.low_rank(&self.module) {
            None => Ok(x.linear(&weight, bias.as_ref(), residual)?),
            Some((low_rank, strength)) => {
                low_rank.applied(run, &self.module, x, [Some(&weight), bias.as_ref(), residual], strength)
            }
        }
    }
}

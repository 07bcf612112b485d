//! Language-model head.

use weightloom_dtensor::DTensor;

use super::Decoder;
use crate::adapter::Adapter;
use crate::batch_adapters::{BatchAdapters, narrow_rows};
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::parameter::{EMBEDDING, HEAD};

impl Decoder {
    /// Projects the result of [`forward`](Self::forward), or some of its rows,
    /// to logits `[…, vocabulary]`.
    pub fn logits<'a>(
        &'a self,
        hidden: &DTensor,
        adapters: impl Into<BatchAdapters<'a>>,
    ) -> Result<DTensor, NnError> {
        let adapters = adapters.into();
        adapters.check(hidden.shape()[0])?;
        let touches =
            |adapter: &Adapter| adapter.changes_head(HEAD) || adapter.replaces(&format!("{HEAD}.bias"));
        self.context(adapters).by_group(hidden.shape()[0], touches, |context, rows| {
            self.logits_of_group(context, &narrow_rows(hidden, rows)?)
        })
    }

    fn logits_of_group(&self, context: &ForwardContext<'_>, hidden: &DTensor) -> Result<DTensor, NnError> {
        let structure = &self.structure;
        let head = if structure.config.head.tied { EMBEDDING } else { "lm_head.weight" };
        let index = structure.stage.is_last().then(|| self.index_of(head)).flatten();
        let index = index.ok_or_else(|| structure.wrong_stage("compute logits"))?;
        if let Some(check) = hidden.nan_check() {
            check.enter_module(HEAD);
        }
        // An adapter that replaces the embedding leaves a tied head as it was.
        let mut weight = structure.plan.gather_as(structure.layouts[index], &self.parameters()[index].1)?;
        if let BatchAdapters::Uniform(Some((adapter, strength))) = context.adapters()
            && let Some(new) = adapter.replacement("lm_head.weight")
        {
            weight = new.interpolate(&weight, strength)?;
        }
        let bias = self.index_of("lm_head.bias").map(|index| context.parameter(index)).transpose()?;
        let mut logits = match context.low_rank(HEAD) {
            None => hidden.linear(&weight, bias.as_ref(), None)?,
            Some((low_rank, strength)) => {
                low_rank.forward(context, HEAD, hidden, [Some(&weight), bias.as_ref(), None], strength)?
            }
        };
        if let Some(cap) = structure.config.head.soft_cap {
            logits = logits.scale(1.0 / cap)?.tanh()?.scale(cap)?;
        }
        Ok(logits)
    }
}

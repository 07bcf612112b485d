//! Token and position embeddings.

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Layout};
use weightloom_tensor::{Device, Tensor};

use super::Decoder;
use crate::adapter::Adapter;
use crate::attention::PositionInfo;
use crate::batch_adapters::narrow_rows;
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::parameter::{EMBEDDING, POSITIONS};
use crate::plan::reduce_partial;

impl Decoder {
    pub(super) fn embed(
        &self,
        context: &ForwardContext<'_>,
        tokens: &DTensor,
        positions: &PositionInfo,
    ) -> Result<DTensor, NnError> {
        let table = self.structure.stage.is_first().then(|| self.index_of(EMBEDDING)).flatten();
        let table = table.ok_or_else(|| self.structure.wrong_stage("start from tokens"))?;
        let position_table = self.index_of(POSITIONS);
        let module = EMBEDDING.trim_end_matches(".weight");
        let touches = |adapter: &Adapter| {
            adapter.replaces(EMBEDDING) || adapter.replaces(POSITIONS) || adapter.low_rank(module).is_some()
        };
        context.by_group(tokens.shape()[0], touches, |context, rows| {
            if let Some(check) = tokens.nan_check() {
                check.enter_module(EMBEDDING);
            }
            let tokens = narrow_rows(tokens, rows)?;
            let mut x = context.parameter(table)?.embedding(&tokens)?;
            if let Some((low_rank, strength)) = context.low_rank(module) {
                x = low_rank.forward_embedding(&x, &tokens, strength)?;
            }
            x = reduce_partial(x)?;
            if let Some(scale) = self.structure.config.embedding_scale {
                x = x.scale(scale)?;
            }
            let Some(position_table) = position_table else { return Ok(x) };
            let positions = match &positions.documents {
                Some(documents) => {
                    let last = self.structure.config.max_positions as i64 - 1;
                    narrow_rows(&documents.position_ids(last)?, rows)?
                }
                None => self.position_ids(&positions.starts[rows.clone()], &tokens)?,
            };
            Ok(x.add(&reduce_partial(context.parameter(position_table)?.embedding(&positions)?)?)?)
        })
    }

    /// Position ids of tokens whose rows begin at `starts`.
    fn position_ids(&self, starts: &[usize], tokens: &DTensor) -> Result<DTensor, NnError> {
        let time = tokens.shape()[1];
        let last = self.structure.config.max_positions as i64 - 1;
        // Padding may lie beyond the last position.
        let positions: Vec<i64> = starts
            .iter()
            .flat_map(|&start| (start..start + time).map(|position| (position as i64).min(last)))
            .collect();
        let positions = match tokens.device() {
            Device::Meta => Tensor::zeros(DType::I64, tokens.shape(), Device::Meta)?,
            _ => Tensor::from_slice(&positions, tokens.shape())?,
        };
        let replicated = Layout::replicated(self.structure.plan.mesh());
        Ok(DTensor::distribute(&self.structure.dist, &positions, replicated)?)
    }
}

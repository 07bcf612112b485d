//! What training makes small.

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Placement, Shape};
use weightloom_tensor::{CrossEntropy, Tensor};

use crate::adapter::Adapter;
use crate::decoder::Decoder;
use crate::error::NnError;
use crate::parameter::{EMBEDDING, HEAD};

/// The target of a token that does not count.
pub const IGNORED: i64 = -100;

impl Decoder {
    /// Rows of this rank, `[rows, time]`, as its part of a batch that all
    /// data-parallel ranks share evenly.
    pub fn batch(&self, rows: &[i64], count: usize) -> Result<DTensor, NnError> {
        let time = rows.len() / count.max(1);
        let local = Tensor::from_slice(rows, &[count, time])?;
        let shape = Shape::new(&[count * self.plan().sharers(), time])?;
        Ok(DTensor::from_local(self.dist(), local, self.plan().batch_layout()?, &shape)?)
    }

    /// The cross-entropy of what [`hidden`](Self::hidden) gave with targets
    /// `[batch, time]`, summed over those that count and divided by `divisor`:
    /// losses of the parts of a batch, each divided by the count of the whole,
    /// add up to that of the whole. A pending sum over the ranks that share the
    /// batch.
    pub fn loss(
        &self,
        hidden: &DTensor,
        targets: &DTensor,
        divisor: f64,
        adapter: Option<(&Adapter, f64)>,
    ) -> Result<DTensor, NnError> {
        let [batch, time, width] = [hidden.shape()[0], hidden.shape()[1], hidden.shape()[2]];
        let rows = hidden.reshape(&Shape::new(&[batch * time, width])?)?;
        let targets = targets.reshape(&Shape::new(&[batch * time])?)?;
        let options =
            CrossEntropy { ignore_index: Some(IGNORED), label_smoothing: 0.0, divisor: Some(divisor) };
        let config = &self.config().head;
        let head = if config.tied { EMBEDDING } else { "lm_head.weight" };
        let plain = !config.bias
            && config.soft_cap.is_none()
            && adapter.is_none_or(|(adapter, _)| !adapter.changes_head(HEAD));
        // Logits never exist together where each rank has all of the head.
        let value = self.parameter(head).filter(|_| self.stage().is_last() && plain);
        if let Some(value) = value {
            let layout = self.plan().used_layout_of(head);
            let mesh = layout.mesh();
            let shared = (0..mesh.ndim()).any(|axis| {
                mesh.axis_size(axis) > 1 && matches!(layout.placements()[axis], Placement::Shard(_))
            });
            if !shared {
                if let Some(check) = hidden.nan_check() {
                    check.enter_module(HEAD);
                }
                let weight = self.plan().used_in(layout, value)?;
                return Ok(rows.projected_cross_entropy(&weight, &targets, options)?);
            }
        }
        Ok(self.logits(&rows, adapter)?.cast(DType::F32)?.cross_entropy(&targets, options)?)
    }
}

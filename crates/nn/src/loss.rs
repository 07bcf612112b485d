//! Cross-entropy loss.

use weightloom_dtensor::DTensor;
use weightloom_layout::{DType, Placement, Shape};
use weightloom_tensor::CrossEntropy;

use crate::batch_adapters::AdapterSpec;
use crate::decoder::Decoder;
use crate::error::NnError;
use crate::parameter::{EMBEDDING, HEAD};

/// The target of a token that is excluded from the loss.
pub const IGNORED: i64 = -100;

impl Decoder {
    /// The cross-entropy of the result of [`forward`](Self::forward) with
    /// targets `[batch, time]`, summed over all targets but [`IGNORED`] and
    /// divided by `divisor`. With the number of targets of a whole batch as the
    /// divisor, the losses of its microbatches add up to the batch's mean. The
    /// result is a partial sum over the data-parallel ranks.
    pub fn loss(
        &self,
        hidden: &DTensor,
        targets: &DTensor,
        divisor: f64,
        adapter: Option<AdapterSpec<'_>>,
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
        // Where each rank has the whole head, the fused kernel never holds all
        // logits at once.
        let value = self.parameter(head).filter(|_| self.stage().is_last() && plain);
        if let Some(value) = value {
            let layout = self.plan().used_layout_of(head);
            let mesh = layout.mesh();
            let sharded = (0..mesh.ndim()).any(|axis| {
                mesh.axis_size(axis) > 1 && matches!(layout.placements()[axis], Placement::Shard(_))
            });
            if !sharded {
                if let Some(check) = hidden.nan_check() {
                    check.enter_module(HEAD);
                }
                let weight = self.plan().gather_as(layout, value)?;
                return Ok(rows.projected_cross_entropy(&weight, &targets, options)?);
            }
        }
        Ok(self.logits(&rows, adapter)?.cast(DType::F32)?.cross_entropy(&targets, options)?)
    }
}

//! Cross-entropy with smoothed targets and a penalty of large logits.

use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_layout::{DType, Layout, Placement, ReduceOp, Shape};
use weightloom_nn::{IGNORED, NnError};
use weightloom_tensor::{CrossEntropy, Device, Tensor, TensorError};

use super::{Loss, LossArgs};

/// Cross-entropy that also keeps logits small. Evaluations compute the plain
/// cross-entropy, so that their losses can be compared.
pub(super) struct RegularizedCrossEntropy {
    /// The share of the probability that is spread evenly over the vocabulary.
    pub(super) label_smoothing: f64,
    /// Factor of the squared log-sum-exp of the logits of a target.
    pub(super) z_loss: f64,
}

impl Loss for RegularizedCrossEntropy {
    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        Ok(self.of_logits(&args.logits()?, &args.row_targets()?, args.divisor)?)
    }

    fn evaluate(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        args.model.loss(args.hidden, args.targets, args.divisor, args.adapter)
    }
}

impl RegularizedCrossEntropy {
    fn of_logits(&self, logits: &DTensor, targets: &DTensor, divisor: f64) -> Result<DTensor, DTensorError> {
        let options = CrossEntropy {
            ignore_index: Some(IGNORED),
            label_smoothing: self.label_smoothing,
            divisor: Some(divisor),
        };
        let loss = logits.cross_entropy(targets, options)?;
        if self.z_loss == 0.0 {
            return Ok(loss);
        }
        let normalizers = log_sum_exp(logits)?;
        let ignored = match targets.device() {
            Device::Meta => Tensor::zeros(DType::I64, &[], Device::Meta)?,
            device => Tensor::scalar(IGNORED)?.to(device)?,
        };
        let everywhere = Layout::replicated(targets.layout().mesh());
        let ignored = DTensor::from_local(targets.dist(), ignored, everywhere, &Shape::default())?;
        let counted = targets.ne(&ignored)?.cast(DType::F32)?;
        let penalty = normalizers.mul(&normalizers)?.mul(&counted)?.sum_all()?;
        loss.add(&penalty.scale(self.z_loss / divisor)?)
    }
}

/// The layout of one number for each row of logits, where classes become `classes`.
fn row_layout(logits: Layout, classes: Placement) -> Result<Layout, DTensorError> {
    let mesh = logits.mesh();
    let placements: Vec<Placement> = logits
        .placements()
        .iter()
        .map(|placement| match *placement {
            Placement::Shard(1) => classes,
            Placement::Partial(_) => Placement::Replicate,
            other => other,
        })
        .collect();
    let rows = logits.split_axes(0).iter().map(|&axis| mesh.axis_name(axis)).collect::<Vec<_>>();
    let orders: &[(usize, &[&str])] = &[(0, &rows)];
    Ok(Layout::with_split_order(mesh, &placements, if rows.is_empty() { &[] } else { orders })?)
}

/// The log of the sum of the exponentials of each row. Where ranks share the classes,
/// they exchange one number for each row, and logits are not gathered.
fn log_sum_exp(logits: &DTensor) -> Result<DTensor, DTensorError> {
    let (layout, shape) = (logits.layout(), logits.shape());
    let is_shared = layout.split_axes(1).iter().any(|&axis| layout.mesh().axis_size(axis) > 1);
    if !is_shared || layout.pending().next().is_some() {
        return logits.logsumexp(&[1]);
    }
    let local = logits.to_local().detach();
    let most = match local.shape()[1] {
        0 => {
            let rows = Shape::new(&[local.shape()[0]]).map_err(TensorError::from)?;
            Tensor::full(f64::NEG_INFINITY, local.dtype(), &rows, local.device())?
        }
        _ => local.max(&[1])?,
    };
    let rows = Shape::new(&[shape[0]]).map_err(TensorError::from)?;
    let column = Shape::new(&[shape[0], 1]).map_err(TensorError::from)?;
    let pending = row_layout(layout, Placement::Partial(ReduceOp::Max))?;
    let most = DTensor::from_local(logits.dist(), most, pending, &rows)?
        .redistribute(row_layout(layout, Placement::Replicate)?)?;
    logits.sub(&most.reshape(&column)?)?.exp()?.sum(&[1])?.log()?.add(&most)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use serde::Deserialize;
    use weightloom_dtensor::{DistContext, backward};
    use weightloom_gang::{GangOptions, threads};
    use weightloom_layout::Mesh;

    use super::*;

    #[derive(Deserialize)]
    struct Record {
        torch: String,
        rows: usize,
        classes: usize,
        logits: Vec<f32>,
        targets: Vec<i64>,
        divisor: f64,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        label_smoothing: f64,
        z_loss: f64,
        loss: f64,
        gradient: Vec<f64>,
    }

    /// Values and gradients, with logits shared by rows, by classes and both.
    #[test]
    fn values_and_gradients_are_those_of_torch_however_logits_are_shared() {
        let text = include_str!("../../tests/fixtures/losses.json");
        let record: Record = serde_json::from_str(text).unwrap();
        assert!(record.torch.starts_with("2.15"), "{}", record.torch);
        assert_eq!(record.cases.len(), 4);
        let mut most = 0.0_f64;
        for (sizes, classes) in [([1, 1], 0), ([1, 2], 1), ([2, 1], 0), ([2, 2], 1), ([1, 3], 1)] {
            let placement = if classes == 1 { Placement::Shard(1) } else { Placement::Replicate };
            let found = threads::run(sizes[0] * sizes[1], GangOptions::default(), |gang| {
                let dist = DistContext::new(gang);
                let mesh = Mesh::new(&[("dp", sizes[0]), ("tp", sizes[1])]).unwrap();
                let layout = |second| Layout::new(mesh, &[Placement::Shard(0), second]).unwrap();
                let logits = Tensor::from_slice(&record.logits, &[record.rows, record.classes]).unwrap();
                let targets = Tensor::from_slice(&record.targets, &[record.rows]).unwrap();
                let targets = DTensor::distribute(&dist, &targets, layout(Placement::Replicate)).unwrap();
                let mut all = Vec::new();
                for case in &record.cases {
                    let loss = RegularizedCrossEntropy {
                        label_smoothing: case.label_smoothing,
                        z_loss: case.z_loss,
                    };
                    let logits = DTensor::distribute(&dist, &logits, layout(placement)).unwrap();
                    let logits = logits.requires_grad();
                    let loss = loss.of_logits(&logits, &targets, record.divisor).unwrap();
                    // Shares of data-parallel ranks are summed.
                    let loss = loss.redistribute(Layout::replicated(mesh)).unwrap();
                    let gradients = backward([(loss.clone(), None)]).unwrap();
                    let gradient = gradients.of(&logits).unwrap().unwrap().full_tensor().unwrap();
                    all.push((loss.item::<f32>().unwrap(), gradient.to_vec::<f32>().unwrap()));
                }
                all
            })
            .unwrap();
            for of_rank in found {
                for (case, (loss, gradient)) in record.cases.iter().zip(of_rank) {
                    let pairs = gradient.iter().zip(&case.gradient).chain([(&loss, &case.loss)]);
                    for (found, expected) in pairs {
                        let apart = (f64::from(*found) - expected).abs() / (0.1 + expected.abs());
                        // A few roundings of f32 on either side.
                        assert!(apart < 2e-6, "{sizes:?}: {found} {expected}");
                        most = most.max(apart);
                    }
                }
            }
        }
        assert!(most > 0.0, "something was compared");
    }
}

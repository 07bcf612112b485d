//! Vocab-parallel cross-entropy: logits whose classes are sharded.

use std::sync::Arc;

use weightloom_layout::{DType, Mesh, ReduceOp, Shape};
use weightloom_tensor::{Context, CrossEntropy, Device, Function, Tensor, TensorError};

use crate::comm_log::{Cause, Pass};
use crate::dist_context::DistContext;
use crate::error::Result;
use crate::redistribute::local::all_reduce;
use crate::spec::DTensorSpec;

pub(super) struct VocabParallelCrossEntropy {
    dist: Arc<DistContext>,
    mesh: Mesh,
    /// Axes that shard the classes.
    axes: Vec<usize>,
    /// The first class of this rank.
    first: usize,
    classes: usize,
    options: CrossEntropy,
}

impl VocabParallelCrossEntropy {
    pub(super) fn new(dist: Arc<DistContext>, logits: &DTensorSpec, options: CrossEntropy) -> Self {
        Self {
            dist,
            mesh: logits.layout().mesh(),
            axes: logits.layout().split_axes(1).to_vec(),
            first: logits.region().start()[1],
            classes: logits.shape()[1],
            options,
        }
    }

    fn all_reduce(&self, x: Tensor, op: ReduceOp) -> Result<Tensor> {
        let cause = Cause { op: "cross_entropy", pass: Pass::Forward };
        self.axes.iter().try_fold(x, |x, &axis| all_reduce(&self.dist, (self.mesh, axis), &x, op, cause))
    }

    /// Logs the collectives of meta tensors.
    pub(super) fn log_collectives(&self, logits: &Tensor) -> Result<()> {
        let rows = logits.shape()[0];
        for (columns, op) in [(1, ReduceOp::Max), (3, ReduceOp::Sum)] {
            let wide = if logits.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            self.all_reduce(Tensor::zeros(wide, &[rows, columns], Device::Meta)?, op)?;
        }
        Ok(())
    }

    /// For each row its local class index (0 if another rank holds the class), 1
    /// where this rank holds it, and 1 where the row is not ignored.
    fn targets(&self, targets: &Tensor, here: usize, dtype: DType) -> Result<[Tensor; 3], TensorError> {
        let device = targets.device();
        let targets = targets.to_vec::<i64>()?;
        let (mut index, mut found, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for (position, &target) in targets.iter().enumerate() {
            let counted = Some(target) != self.options.ignore_index;
            let class = usize::try_from(target).ok().filter(|&class| class < self.classes);
            if counted && class.is_none() {
                let (op, rows) = ("cross_entropy", self.classes);
                return Err(TensorError::Index { op, index: target, position, rows });
            }
            let local_class =
                class.filter(|class| counted && (self.first..self.first + here).contains(class));
            index.push(local_class.map_or(0, |class| (class - self.first) as i64));
            found.push(f32::from(u8::from(local_class.is_some())));
            counts.push(f32::from(u8::from(counted)));
        }
        let rows = [targets.len(), 1];
        Ok([
            Tensor::from_slice(&index, &rows)?.to(device)?,
            Tensor::from_slice(&found, &rows)?.to(device)?.cast(dtype)?,
            Tensor::from_slice(&counts, &rows)?.to(device)?.cast(dtype)?,
        ])
    }

    fn loss(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Tensor> {
        let dtype = inputs[0].dtype();
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let x = inputs[0].detach().cast(wide)?;
        let &[rows, here] = &x.shape()[..] else {
            let shapes = vec![inputs[0].shape().clone(), inputs[1].shape().clone()];
            return Err(TensorError::Shapes { op: "cross_entropy", shapes }.into());
        };
        let column = Shape::new(&[rows, 1]).map_err(TensorError::from)?;
        let [index, found, counts] = self.targets(&inputs[1], here, wide)?;
        let most = match here {
            0 => Tensor::full(f64::NEG_INFINITY, wide, &column, x.device())?,
            _ => x.max(&[1])?.reshape(&column)?,
        };
        let most = self.all_reduce(most, ReduceOp::Max)?;
        let weights = x.sub(&most)?.exp()?;
        let at_target = match here {
            0 => Tensor::zeros(wide, &column, x.device())?,
            _ => found
                .cast(DType::Bool)?
                .select(&x.gather(1, &index)?, &Tensor::zeros(wide, &[], x.device())?)?,
        };
        // All sums over classes in one all-reduce.
        let sums = [weights.sum(&[1])?.reshape(&column)?, at_target, x.sum(&[1])?.reshape(&column)?];
        let sums = self.all_reduce(Tensor::cat(&sums.iter().collect::<Vec<_>>(), 1)?, ReduceOp::Sum)?;
        let [total, at_target, of_all] = [0, 1, 2].map(|column| sums.narrow(1, column, 1));
        let (total, smoothing) = (total?, self.options.label_smoothing);
        let log = most.add(&total.log()?)?;
        let mut losses = log.sub(&at_target?.scale(1.0 - smoothing)?)?;
        if smoothing > 0.0 {
            losses = losses.sub(&of_all?.scale(smoothing / self.classes as f64)?)?;
        }
        let zero = Tensor::zeros(wide, &[], x.device())?;
        let losses = counts.cast(DType::Bool)?.select(&losses, &zero)?;
        let divisor = self.options.divisor.unwrap_or(rows as f64);
        context.save(&[&weights.div(&total)?, &index, &found, &counts]);
        Ok(losses.sum_all()?.scale(1.0 / divisor)?.cast(dtype)?)
    }
}

impl Function for VocabParallelCrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        Ok(vec![self.loss(context, inputs).map_err(|error| error.into_tensor_error("cross_entropy"))?])
    }

    /// `(softmax - target) · gradient / divisor`, for the classes of this rank.
    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [shares, index, found, counts]) = (&gradients[0], context.saved()) else {
            return Ok(vec![None, None]);
        };
        let smoothing = self.options.label_smoothing;
        let mut of_logits = shares.clone();
        if shares.shape()[1] > 0 {
            of_logits = of_logits.scatter_add(1, index, &found.scale(smoothing - 1.0)?)?;
        }
        if smoothing > 0.0 {
            let even = smoothing / self.classes as f64;
            of_logits = of_logits.sub(&Tensor::full(even, shares.dtype(), &[], shares.device())?)?;
        }
        let zero = Tensor::zeros(shares.dtype(), &[], shares.device())?;
        let of_logits = counts.cast(DType::Bool)?.select(&of_logits, &zero)?;
        let divisor = self.options.divisor.unwrap_or(shares.shape()[0] as f64);
        let share = gradient.cast(shares.dtype())?.scale(1.0 / divisor)?;
        Ok(vec![Some(of_logits.mul(&share)?.cast(gradient.dtype())?), None])
    }
}

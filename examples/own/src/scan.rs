//! The scan: a recurrence over time as a differentiable, distributed function.

use weightloom::dtensor::{Call, DFunction, DTensorError, DistributedOp, Meta, Rule};
use weightloom::layout::{DType, Shape};
use weightloom::tensor::{Context, Function, Tensor, TensorError};

/// `state[t] = decay[t] · state[t-1] + value[t]` along the second of three dims,
/// starting from zero. Each row and each channel is on its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan;

/// The elements of `[batch, time, channels]`, computed in `f64` and rounded once.
struct Elements {
    values: Vec<f64>,
    dims: [usize; 3],
}

impl Elements {
    fn of(tensor: &Tensor) -> Result<Self, TensorError> {
        let [batch, time, channels] = tensor.shape()[..] else {
            return Err(TensorError::from_function("Scan", "takes tensors of [batch, time, channels]"));
        };
        Ok(Self { values: tensor.cast(DType::F64)?.to_vec()?, dims: [batch, time, channels] })
    }

    fn like(&self, values: Vec<f64>, dtype: DType) -> Result<Tensor, TensorError> {
        Tensor::from_slice(&values, &self.dims)?.cast(dtype)
    }

    /// The elements of each row that have one before them in time, in order.
    fn later(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let [batch, time, channels] = self.dims;
        (0..batch).flat_map(move |row| (row * time + 1) * channels..(row + 1) * time * channels)
    }
}

impl Function for Scan {
    fn name(&self) -> &'static str {
        "Scan"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let [decay, value] = inputs else {
            return Err(TensorError::from_function("Scan", "takes a decay and a value"));
        };
        if decay.shape() != value.shape() {
            return Err(TensorError::from_function("Scan", "takes a decay of the shape of the value"));
        }
        let (decays, mut states) = (Elements::of(decay)?, Elements::of(value)?);
        let channels = states.dims[2];
        for at in states.later() {
            states.values[at] += decays.values[at] * states.values[at - channels];
        }
        let states = decays.like(states.values, value.dtype())?;
        context.save(&[decay, &states]);
        Ok(vec![states])
    }

    /// The same recurrence from the end: a state affects the next one by the next
    /// decay.
    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let ([decay, states], Some(gradient)) = (context.saved(), &gradients[0]) else {
            return Ok(vec![None, None]);
        };
        let (decays, states) = (Elements::of(decay)?, Elements::of(states)?);
        let mut of_value = Elements::of(gradient)?;
        let mut of_decay = vec![0.0; of_value.values.len()];
        let channels = of_value.dims[2];
        for at in of_value.later().rev() {
            of_decay[at] = of_value.values[at] * states.values[at - channels];
            of_value.values[at - channels] += decays.values[at] * of_value.values[at];
        }
        let of_decay = decays.like(of_decay, decay.dtype())?;
        Ok(vec![Some(of_decay), Some(decays.like(of_value.values, gradient.dtype())?)])
    }
}

impl DFunction for Scan {
    fn op_name(&self) -> Option<&'static str> {
        Some("scan")
    }

    fn meta(&self, inputs: &[(Shape, DType)]) -> Result<Meta, TensorError> {
        Ok(Meta::Outputs(inputs.last().cloned().into_iter().collect()))
    }
}

/// Rows and channels may be sharded, time may not; and the scan is linear in its
/// values.
#[derive(Debug)]
pub struct ScanRule;

impl DistributedOp for ScanRule {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn rule(&self, call: &Call<'_>) -> Result<Rule, DTensorError> {
        let shape = call.inputs[0].shape();
        let both = |dim: usize| [(0, dim), (1, dim)];
        let rule = Rule::new(&[3, 3], &[3]).term(&[1]);
        Ok([0, 2].into_iter().fold(rule, |rule, dim| rule.label(shape[dim], both(dim), [(0, dim)])))
    }
}

//! Moving tensors between devices.

use crate::cuda::Cuda;
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// A copy on another device.
struct To {
    device: Device,
}

fn moved(x: &Tensor, device: Device) -> Result<Tensor> {
    let from = x.device();
    match (from, device) {
        _ if from == device => Ok(x.detach()),
        (_, Device::Meta) => Ok(Tensor::meta(x.shape().clone(), x.dtype())),
        (Device::Meta, _) => Err(TensorError::NoData { op: "to", shape: x.shape().clone() }),
        (_, Device::Cpu) => x.on_host("to"),
        // Between GPUs through the host.
        (_, Device::Cuda(ordinal)) => Cuda(ordinal).receive(x),
    }
}

impl Function for To {
    fn name(&self) -> &'static str {
        "to"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        context.save_value(inputs[0].device());
        Ok(vec![moved(&inputs[0], self.device)?])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let home = *context.saved_value::<Device>()?;
        Ok(vec![gradients[0].as_ref().map(|gradient| moved(gradient, home)).transpose()?])
    }
}

impl Tensor {
    /// The same elements on another device; this tensor if it is there already. The
    /// gradient comes back to this tensor's device.
    ///
    /// ```
    /// use weightloom_tensor::{Device, Tensor, TensorError};
    ///
    /// let x = Tensor::from_slice(&[1.0, 2.0], &[2])?;
    /// assert_eq!(x.to(Device::Cpu)?.to_vec::<f64>()?, [1.0, 2.0]);
    /// // Without a GPU, a typed error says so.
    /// if let Err(error) = x.to(Device::Cuda(0)) {
    ///     assert!(matches!(error, TensorError::Cuda(_)));
    /// }
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn to(&self, device: Device) -> Result<Self> {
        if self.device() == device {
            Ok(self.clone())
        } else {
            apply_one(To { device }, std::slice::from_ref(self))
        }
    }
}

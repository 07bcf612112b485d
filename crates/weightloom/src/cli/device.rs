//! The device that a command computes on.

use clap::{Args, ValueHint};
use weightloom::errors::Hint as _;
use weightloom::tensor::{ChosenDevice, Device, DeviceChoice, gpus};

use super::failure::Failure;
use super::output::{Output, bytes};

fn choice(text: &str) -> Result<DeviceChoice, String> {
    text.parse().map_err(|error: weightloom::tensor::UnknownDevice| {
        error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}"))
    })
}

/// The device of a command.
#[derive(Args, Clone, Copy, Default)]
pub(super) struct DeviceArgs {
    /// Device: auto (a GPU if there is one), cpu, cuda (ranks share out the GPUs) or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value_t, value_parser = choice, value_hint = ValueHint::Other)]
    device: DeviceChoice,
}

impl DeviceArgs {
    pub(super) fn choice(self) -> DeviceChoice {
        self.device
    }

    /// The device of a rank. Says which GPU it is.
    pub(super) fn resolve(self, rank: usize, output: Output) -> Result<Device, Failure> {
        resolve(self.device, rank, output)
    }
}

/// The device of a choice for a rank. Says which GPU it is, or why it is none.
pub(super) fn resolve(choice: DeviceChoice, rank: usize, output: Output) -> Result<Device, Failure> {
    let ChosenDevice { device, unused_gpu } =
        choice.resolve(rank).map_err(|error| Failure::operational_with_hint(&error))?;
    if let Some(reason) = unused_gpu {
        output.warning(&format!("the CPU computes: {reason}"));
    }
    if let Device::Cuda(_) = device {
        let all = gpus().map_err(|error| Failure::operational_with_hint(&error))?;
        if let Some(gpu) = all.iter().find(|gpu| gpu.device == device) {
            let (free, memory) = (bytes(gpu.free as u64), bytes(gpu.memory as u64));
            output.status(&format!("{device}: {}, {free} of {memory} free", gpu.name));
        }
    }
    Ok(device)
}

/// A device instead of the one that a config or suite names.
#[derive(Args, Clone, Copy, Default)]
pub(super) struct DeviceOverride {
    /// Device: auto (a GPU if there is one), cpu, cuda or cuda:N [default: that of the file, else auto].
    #[arg(long, value_name = "DEVICE", value_parser = choice, value_hint = ValueHint::Other)]
    pub(super) device: Option<DeviceChoice>,
}

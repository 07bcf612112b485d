//! `weightloom sway convert-adapter`: PEFT to MLX and back.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum, ValueHint};
use serde_json::json;
use weightloom::Registry;
use weightloom::sway::convert_adapter::{AdapterFormat, ConvertError, Overwrite, convert_adapter};

use super::super::failure::Failure;
use super::super::hub::HubArgs;
use super::super::located::{locate_checkpoint, location_text};
use super::super::output::{Output, bytes, counted};

#[derive(Args)]
pub(in crate::cli) struct ConvertAdapterArgs {
    /// Adapter: folder, the run that trained it, or org/name.
    #[arg(value_hint = ValueHint::DirPath)]
    source: String,

    /// Folder to write.
    #[arg(value_hint = ValueHint::DirPath)]
    target: PathBuf,

    /// Format to convert to.
    #[arg(long, value_enum)]
    to: TargetFormat,

    /// Replace an existing adapter.
    #[arg(long)]
    overwrite: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TargetFormat {
    Peft,
    Mlx,
}

pub(super) fn run(
    args: &ConvertAdapterArgs,
    registry: &Registry,
    output: Output,
) -> Result<ExitCode, Failure> {
    let format = match args.to {
        TargetFormat::Peft => AdapterFormat::Peft,
        TargetFormat::Mlx => AdapterFormat::Mlx,
    };
    let overwrite = if args.overwrite { Overwrite::Replace } else { Overwrite::Refuse };
    let located = locate_checkpoint(&HubArgs::default().hub(registry)?, &args.source, output)?;
    let source = PathBuf::from(location_text(&located));
    let done = convert_adapter(&source, &args.target, format, overwrite).map_err(|error| match error {
        ConvertError::Source(error) => Failure::from(error),
        other => Failure::user(&other),
    })?;
    let weights = done.weights.display().to_string();
    let answer = json!({"weights": weights, "modules": done.modules, "bytes": done.bytes});
    output.show(&answer, |_| {
        format!("wrote {weights}: {}, {}", counted(done.modules, "module"), bytes(done.bytes))
    })
}

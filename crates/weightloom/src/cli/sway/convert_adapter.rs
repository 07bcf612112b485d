//! `weightloom sway convert-adapter`: an adapter in another form.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum, ValueHint};
use serde_json::json;
use weightloom::sway::convert_adapter::{AdapterForm, ConvertError, Overwrite, convert_adapter};

use super::super::failure::Failure;
use super::super::output::{Output, bytes, counted};

#[derive(Args)]
pub(in crate::cli) struct ConvertAdapterArgs {
    /// The folder of the adapter.
    #[arg(value_hint = ValueHint::DirPath)]
    source: PathBuf,

    /// The folder that is written.
    #[arg(value_hint = ValueHint::DirPath)]
    target: PathBuf,

    /// The form.
    #[arg(long, value_enum)]
    to: Form,

    /// Replace an adapter that is there.
    #[arg(long)]
    overwrite: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Peft,
    Mlx,
}

pub(super) fn run(args: &ConvertAdapterArgs, output: Output) -> Result<ExitCode, Failure> {
    let form = match args.to {
        Form::Peft => AdapterForm::Peft,
        Form::Mlx => AdapterForm::Mlx,
    };
    let overwrite = if args.overwrite { Overwrite::Replace } else { Overwrite::Refuse };
    let done = convert_adapter(&args.source, &args.target, form, overwrite).map_err(|error| match error {
        ConvertError::Source(error) => Failure::from(error),
        other => Failure::user(&other),
    })?;
    let weights = done.weights.display().to_string();
    let answer = json!({"weights": weights, "modules": done.modules, "bytes": done.bytes});
    output.show(&answer, |_| {
        format!("{weights} is written: {}, {}", counted(done.modules, "module"), bytes(done.bytes))
    })
}

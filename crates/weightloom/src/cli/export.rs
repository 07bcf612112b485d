//! `weightloom export`: a model as a Hugging Face folder, with everything that
//! it needs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::checkpoint::Fingerprint;
use weightloom::hub::{ExportOptions, export};
use weightloom::layout::DType;

use super::convert::dtype;
use super::failure::Failure;
use super::hub::{ArgumentError, Downloads, HubArgs};
use super::output::{Output, bytes, counted};
use super::progress::Progress;

#[derive(Args)]
pub(super) struct ExportArgs {
    /// The name of a card, a folder, a file, or an address such as hf://org/name.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// The folder to make; it must not exist.
    #[arg(value_hint = ValueHint::DirPath)]
    target: PathBuf,

    /// The type that parameters shall have, such as bf16 [default: as they are].
    #[arg(long, value_parser = dtype, value_hint = ValueHint::Other)]
    dtype: Option<DType>,

    /// An adapter of PEFT or MLX to merge into the model.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    adapter: Option<PathBuf>,

    /// How much of the adapter: 0 is none, 1 is all.
    #[arg(long, value_name = "λ", default_value_t = 1.0, requires = "adapter", value_hint = ValueHint::Other)]
    adapter_scale: f64,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Serialize)]
struct Answer {
    target: String,
    tensors: usize,
    bytes: u64,
    files: Vec<String>,
    fingerprint: Fingerprint,
}

pub(super) fn run(args: &ExportArgs, output: Output) -> Result<ExitCode, Failure> {
    if args.target.exists() {
        let fact = format!("{} exists already", args.target.display());
        let error = ArgumentError { fact, fix: Some("name a folder that does not exist yet".to_owned()) };
        return Err(Failure::user(&error));
    }
    let model = args.hub.hub()?.open(&args.name, &Downloads::new(output))?;
    let options = ExportOptions {
        dtype: args.dtype,
        adapter: args.adapter.as_deref().map(|folder: &Path| (folder.to_owned(), args.adapter_scale)),
    };
    let report = export(&model, &args.target, &options, &Progress::new(output))?;
    let answer = Answer {
        target: args.target.display().to_string(),
        tensors: report.tensors,
        bytes: report.bytes,
        files: report.assets,
        fingerprint: report.fingerprint,
    };
    output.show(&answer, |answer| {
        format!(
            "{}: {}, {}, with {}\nfingerprint {}",
            answer.target,
            counted(answer.tensors, "tensor"),
            bytes(answer.bytes),
            answer.files.join(", "),
            answer.fingerprint
        )
    })
}

//! `weightloom export`.

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
    /// Card, folder, file, or URL such as hf://org/name.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// New folder to write.
    #[arg(value_hint = ValueHint::DirPath)]
    target: PathBuf,

    /// Dtype of the parameters, such as bf16 [default: unchanged].
    #[arg(long, value_parser = dtype, value_hint = ValueHint::Other)]
    dtype: Option<DType>,

    /// Merge a PEFT or MLX adapter.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    adapter: Option<PathBuf>,

    /// Strength of the adapter, from 0 (off) to 1 (as trained).
    #[arg(long, value_name = "λ", default_value_t = 1.0, requires = "adapter", value_hint = ValueHint::Other)]
    adapter_scale: f64,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Serialize)]
struct Exported {
    target: String,
    tensors: usize,
    bytes: u64,
    files: Vec<String>,
    fingerprint: Fingerprint,
}

pub(super) fn run(args: &ExportArgs, output: Output) -> Result<ExitCode, Failure> {
    if args.target.exists() {
        let fact = format!("cannot export to `{}`: it exists", args.target.display());
        let error = ArgumentError { fact, fix: Some("choose a new folder".to_owned()) };
        return Err(Failure::user(&error));
    }
    let model = args.hub.hub()?.open(&args.name, &Downloads::new(output))?;
    let options = ExportOptions {
        dtype: args.dtype,
        adapter: args.adapter.as_deref().map(|folder: &Path| (folder.to_owned(), args.adapter_scale)),
    };
    let report = export(&model, &args.target, &options, &Progress::new(output))?;
    let exported = Exported {
        target: args.target.display().to_string(),
        tensors: report.tensors,
        bytes: report.bytes,
        files: report.assets,
        fingerprint: report.fingerprint,
    };
    output.show(&exported, |exported| {
        format!(
            "{}: {}, {}, with {}\nfingerprint {}",
            exported.target,
            counted(exported.tensors, "tensor"),
            bytes(exported.bytes),
            exported.files.join(", "),
            exported.fingerprint
        )
    })
}

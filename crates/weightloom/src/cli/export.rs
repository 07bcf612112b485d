//! `weightloom export`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::Fingerprint;
use weightloom::hub::{ExportOptions, export};
use weightloom::layout::DType;

use super::convert::dtype;
use super::failure::Failure;
use super::folder_name::check_folder_name;
use super::hub::{ArgumentError, HubArgs};
use super::located::OpenedModel;
use super::output::{Output, bytes, counted};
use super::progress::Progress;

#[derive(Args)]
pub(super) struct ExportArgs {
    /// Model: card, folder, file, run, adapter, org/name or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// New folder to write.
    #[arg(value_hint = ValueHint::DirPath)]
    target: PathBuf,

    /// Dtype of the parameters, such as bf16 [default: unchanged].
    #[arg(long, value_parser = dtype, value_hint = ValueHint::Other)]
    dtype: Option<DType>,

    /// Merge a PEFT or MLX adapter: its folder, the run that trained it, or org/name.
    #[arg(long, value_name = "ADAPTER", value_hint = ValueHint::DirPath)]
    adapter: Option<String>,

    /// Strength of the adapter, from 0 (off) to 1 (as trained) [default: 1].
    #[arg(long, value_name = "λ", value_hint = ValueHint::Other)]
    adapter_scale: Option<f64>,

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

pub(super) fn run(args: &ExportArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    check_folder_name("export to", &args.target)?;
    if args.target.exists() {
        let fact = format!("cannot export to `{}`: it exists", args.target.display());
        let error = ArgumentError { fact, fix: Some("choose a new folder".to_owned()) };
        return Err(Failure::user(&error));
    }
    let OpenedModel { model, adapter } =
        OpenedModel::open(&args.hub.hub(registry)?, &args.name, args.adapter.as_deref(), output)?;
    if adapter.is_none() && args.adapter_scale.is_some() {
        let fact = format!("cannot use `--adapter-scale` with `{}`: it has no adapter", args.name);
        let fix = Some("name an adapter with --adapter".to_owned());
        return Err(Failure::user(&ArgumentError { fact, fix }));
    }
    let scale = args.adapter_scale.unwrap_or(1.0);
    let options = ExportOptions { dtype: args.dtype, adapter: adapter.map(|folder| (folder, scale)) };
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

//! `weightloom verify` and `weightloom fingerprint`.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::checkpoint::{CheckpointError, Source, StorageError, fingerprint, verify};

use super::failure::Failure;
use super::output::{Output, bytes, counted};
use super::progress::Progress;

#[derive(Args)]
pub(super) struct SourceArgs {
    /// File, folder, or URL (s3://, gs://, az://, http://).
    #[arg(value_hint = ValueHint::AnyPath)]
    path: String,
}

#[derive(Serialize)]
struct VerifiedCheckpoint {
    path: String,
    format: String,
    tensors: usize,
    bytes: u64,
    /// Whether the format has checksums.
    checksums: bool,
}

pub(super) fn run_verify(args: &SourceArgs, output: Output) -> Result<ExitCode, Failure> {
    let failed = |error: CheckpointError| {
        // A missing file of an existing checkpoint is damage.
        let lost = matches!(error, CheckpointError::Storage(StorageError::Missing { .. }));
        let there = lost && Path::new(&args.path).exists();
        let failure = if there { Failure::check_with_hint(&error) } else { Failure::from(error) };
        failure.about(&args.path)
    };
    let source = Source::open_url(&args.path).map_err(failed)?;
    let verified = verify(&source, &Progress::new(output)).map_err(failed)?;
    let shown = VerifiedCheckpoint {
        path: args.path.clone(),
        format: source.index.format().to_string(),
        tensors: verified.tensors,
        bytes: verified.bytes,
        checksums: verified.has_checksums,
    };
    output.show(&shown, |shown| {
        let how = match verified.has_checksums {
            true => "all checksums match",
            false => "all tensors are readable; this format has no checksums",
        };
        format!("{}: {}, {}: {how}", shown.format, counted(shown.tensors, "tensor"), bytes(shown.bytes))
    })
}

pub(super) fn run_fingerprint(args: &SourceArgs, output: Output) -> Result<ExitCode, Failure> {
    let source = Source::open_url(&args.path)?;
    let found = fingerprint(&source, &Progress::new(output))?;
    output.show(&found, |found| {
        let tensors = found.tensors.iter().map(|(name, fingerprint)| format!("{fingerprint}  {name}\n"));
        format!("{}{}  (all tensors)", tensors.collect::<String>(), found.fingerprint)
    })
}

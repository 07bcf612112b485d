//! `weightloom verify` and `weightloom fingerprint`: whether a checkpoint is
//! what it was, and a short name for what it is.

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
    /// A file, a folder, or a URL (s3://, gs://, az://, http://).
    #[arg(value_hint = ValueHint::AnyPath)]
    path: String,
}

#[derive(Serialize)]
struct Answer {
    path: String,
    format: String,
    tensors: usize,
    bytes: u64,
    /// Whether there were checksums to compare with.
    checksums: bool,
}

pub(super) fn run_verify(args: &SourceArgs, output: Output) -> Result<ExitCode, Failure> {
    let failed = |error: CheckpointError| {
        // A file that a checkpoint should have and has not is damage to it.
        let lost = matches!(error, CheckpointError::Storage(StorageError::Missing { .. }));
        let there = lost && Path::new(&args.path).exists();
        let failure = if there { Failure::check_with_hint(&error) } else { Failure::from(error) };
        failure.about(&args.path)
    };
    let source = Source::open_url(&args.path).map_err(failed)?;
    let verified = verify(&source, &Progress::new(output)).map_err(failed)?;
    let answer = Answer {
        path: args.path.clone(),
        format: source.index.format().to_string(),
        tensors: verified.tensors,
        bytes: verified.bytes,
        checksums: verified.has_checksums,
    };
    output.show(&answer, |answer| {
        let how = match verified.has_checksums {
            true => "all are as they were saved",
            false => "the files are whole and all can be read; this format has no checksums to compare with",
        };
        format!("{}: {}, {}: {how}", answer.format, counted(answer.tensors, "tensor"), bytes(answer.bytes))
    })
}

pub(super) fn run_fingerprint(args: &SourceArgs, output: Output) -> Result<ExitCode, Failure> {
    let source = Source::open_url(&args.path)?;
    let found = fingerprint(&source, &Progress::new(output))?;
    output.show(&found, |found| {
        let tensors = found.tensors.iter().map(|(name, fingerprint)| format!("{fingerprint}  {name}\n"));
        format!("{}{}  (the whole)", tensors.collect::<String>(), found.fingerprint)
    })
}

//! `weightloom verify` and `weightloom fingerprint`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::{CheckpointError, StorageError, fingerprint, verify, verify_signature};

use super::failure::Failure;
use super::hub::HubArgs;
use super::located::{locate_checkpoint, location_text, open_checkpoint};
use super::output::{Output, bytes, counted};
use super::progress::Progress;
use super::sign::{self, check_is_folder, public_key};

#[derive(Args)]
pub(super) struct VerifyArgs {
    /// Checkpoint: file, folder, run, card, org/name or URL (s3://, gs://, az://, http://).
    #[arg(value_hint = ValueHint::AnyPath)]
    path: String,

    /// Require a signature: PEM file with the Ed25519 public key of the signer.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct FingerprintArgs {
    /// Checkpoint: file, folder, run, card, org/name or URL (s3://, gs://, az://, http://).
    #[arg(value_hint = ValueHint::AnyPath)]
    path: String,

    /// List the fingerprint of every tensor.
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct VerifiedCheckpoint {
    path: String,
    format: String,
    tensors: usize,
    bytes: u64,
    /// Whether the format has checksums.
    checksums: bool,
    /// The key of the signature that was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed_with: Option<String>,
}

pub(super) fn run_verify(
    args: &VerifyArgs,
    registry: &Registry,
    output: Output,
) -> Result<ExitCode, Failure> {
    let located = locate_checkpoint(&HubArgs::default().hub(registry)?, &args.path, output)?;
    let path = location_text(&located);
    let failed = |error: CheckpointError| {
        // A missing file of an existing checkpoint is damage.
        let lost = matches!(error, CheckpointError::Storage(StorageError::Missing { .. }));
        let there = lost && Path::new(&path).exists();
        let failure = if there { Failure::check_with_hint(&error) } else { Failure::from(error) };
        failure.about(&path)
    };
    let source = located.open().map_err(failed)?;
    let signed_with = match &args.key {
        None => None,
        Some(file) => {
            let key = public_key(file)?;
            check_is_folder("verify the signature of", &path, &source)?;
            let signed = verify_signature(&*source.storage, &key, &Progress::new(output));
            Some(signed.map_err(sign::failed(&path))?.key.to_string())
        }
    };
    let verified = verify(&source, &Progress::new(output)).map_err(failed)?;
    let shown = VerifiedCheckpoint {
        path: path.clone(),
        format: source.index.format().to_string(),
        tensors: verified.tensors,
        bytes: verified.bytes,
        checksums: verified.has_checksums,
        signed_with,
    };
    output.show(&shown, |shown| {
        let how = match verified.has_checksums {
            true => "all checksums match",
            false => "all tensors are readable; this format has no checksums",
        };
        let signed =
            shown.signed_with.as_ref().map_or_else(String::new, |key| format!("; signed with the key {key}"));
        let tensors = counted(shown.tensors, "tensor");
        format!("{}: {tensors}, {}: {how}{signed}", shown.format, bytes(shown.bytes))
    })
}

pub(super) fn run_fingerprint(
    args: &FingerprintArgs,
    registry: &Registry,
    output: Output,
) -> Result<ExitCode, Failure> {
    let source = open_checkpoint(registry, &args.path, output)?;
    let found = fingerprint(&source, &Progress::new(output))?;
    output.show(&found, |found| {
        let tensors = found.tensors.iter().map(|(name, fingerprint)| format!("{fingerprint}  {name}\n"));
        let listed: String = if args.all { tensors.collect() } else { String::new() };
        let (count, size) = (counted(found.tensors.len(), "tensor"), bytes(source.index.bytes()));
        format!("{listed}{}  ({count}, {size})", found.fingerprint)
    })
}

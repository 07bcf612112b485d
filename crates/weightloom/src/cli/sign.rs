//! `weightloom sign`.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::{PublicKey, Scope, SignatureError, SigningKey, Source, sign};
use weightloom_files::read_text;

use super::failure::Failure;
use super::hub::ArgumentError;
use super::located::open_checkpoint;
use super::output::{Output, bytes, counted};
use super::progress::Progress;

#[derive(Args)]
pub(super) struct SignArgs {
    /// Checkpoint: folder, run or URL (s3://, gs://, az://).
    #[arg(value_hint = ValueHint::AnyPath)]
    path: String,

    /// PEM file with an Ed25519 private key.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key: PathBuf,
}

#[derive(Serialize)]
struct SignedCheckpoint {
    path: String,
    files: usize,
    bytes: u64,
    key: String,
}

pub(super) fn run(args: &SignArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let key = SigningKey::from_pem(&key_text(&args.key)?).map_err(failed(args.key.display()))?;
    let source = open_checkpoint(registry, &args.path, output)?;
    check_is_folder("sign", &args.path, &source)?;
    let signed = sign(&*source.storage, &key, &Progress::new(output)).map_err(failed(&args.path))?;
    let shown = SignedCheckpoint {
        path: args.path.clone(),
        files: signed.files,
        bytes: signed.bytes,
        key: signed.key.to_string(),
    };
    output.show(&shown, |shown| {
        format!(
            "{}: signed {}, {}, with the key {}",
            shown.path,
            counted(shown.files, "file"),
            bytes(shown.bytes),
            shown.key
        )
    })
}

/// Reads a public key.
pub(super) fn public_key(file: &Path) -> Result<PublicKey, Failure> {
    PublicKey::from_pem(&key_text(file)?).map_err(failed(file.display()))
}

fn key_text(file: &Path) -> Result<String, Failure> {
    /// Keys have some hundred bytes.
    const LIMIT: u64 = 1 << 16;
    read_text(file, LIMIT).map_err(|error| Failure::user(&error))
}

/// Signatures cover folders.
pub(super) fn check_is_folder(action: &str, path: &str, source: &Source) -> Result<(), Failure> {
    match source.scope {
        Scope::Folder => Ok(()),
        Scope::File => {
            let fact = format!("cannot {action} `{path}`: it is a file, and signatures cover folders");
            Err(Failure::user(&ArgumentError { fact, fix: Some("name its folder".to_owned()) }))
        }
    }
}

/// A failure about a file or folder.
pub(super) fn failed(subject: impl Display) -> impl Fn(SignatureError) -> Failure {
    move |error| {
        let failure = match &error {
            SignatureError::Key { .. } | SignatureError::OtherKey { .. } => Failure::user(&error),
            SignatureError::Storage(_) => Failure::operational_with_hint(&error),
            _ => Failure::check_with_hint(&error),
        };
        failure.about(&subject.to_string())
    }
}

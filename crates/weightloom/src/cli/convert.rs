//! `weightloom convert`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, ValueEnum, ValueHint};
use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::{
    CheckpointError, ConvertOptions, Fingerprint, Format, ModelPart, SaveFormat, SaveOptions, Source, Target,
    convert,
};
use weightloom::errors::Hint;
use weightloom::hub::{HubError, folder_files};
use weightloom::layout::{DType, UnknownDType};

use super::byte_size::ByteSize;
use super::failure::Failure;
use super::folder_name::check_folder_name;
use super::hub::HubArgs;
use super::located::open_checkpoint;
use super::output::{Output, bytes, counted};
use super::progress::Progress;

#[derive(Args)]
pub(super) struct ConvertArgs {
    /// Checkpoint: file, folder, run, card, org/name or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    source: String,

    /// New folder to write, or URL such as s3://bucket/name.
    #[arg(value_hint = ValueHint::DirPath)]
    target: String,

    /// Target format.
    #[arg(long, value_enum)]
    to: TargetFormat,

    /// Dtype of floating-point tensors, such as bf16 [default: unchanged].
    #[arg(long, value_parser = dtype)]
    dtype: Option<DType>,

    /// Maximum size of a model file, such as 5GB or 500MiB.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_hint = ValueHint::Other)]
    shard_size: ByteSize,

    /// Convert the tensors below this prefix, and remove it from their names; '' converts
    /// everything [default: for hf and peft, that of the model in a nested training state].
    #[arg(long, value_name = "PREFIX", value_hint = ValueHint::Other)]
    prefix: Option<String>,

    /// Convert only tensors whose names match; repeatable.
    #[arg(long, value_name = "GLOB", value_hint = ValueHint::Other)]
    include: Vec<String>,

    /// Skip tensors whose names match; repeatable.
    #[arg(long, value_name = "GLOB", value_hint = ValueHint::Other)]
    exclude: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TargetFormat {
    /// Hugging Face folder: safetensors, config and tokenizer
    Hf,
    /// Hugging Face folder with a manifest of checksums and training state
    Native,
    /// torch.distributed.checkpoint folder
    Dcp,
    /// PEFT adapter folder
    Peft,
}

/// Parses a dtype, with a suggestion for a misspelled one.
pub(super) fn dtype(text: &str) -> Result<DType, String> {
    text.parse().map_err(|error: UnknownDType| match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    })
}

/// An invalid pattern, or one that matches nothing.
#[derive(Debug, thiserror::Error)]
enum PatternError {
    #[error("invalid pattern `{pattern}`: {reason}")]
    Syntax { pattern: String, reason: String },
    #[error("no tensor matches the patterns")]
    Nothing,
}

impl Hint for PatternError {
    fn hint(&self) -> Option<String> {
        Some("use patterns such as `model.layers.*.weight`; `weightloom inspect` lists names".to_owned())
    }
}

#[derive(Serialize)]
struct Converted {
    target: String,
    tensors: usize,
    bytes: u64,
    left_out: Vec<String>,
    assets: Vec<String>,
    fingerprint: Fingerprint,
}

pub(super) fn run(args: &ConvertArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let target = Target::parse(&args.target).map_err(CheckpointError::from)?;
    if let Target::Folder(folder) = &target {
        check_folder_name("convert to", folder)?;
    }
    let source =
        open_checkpoint(registry, &args.source, output).map_err(|failure| failure.about(&args.source))?;
    let (source, left_out) = model_part(args, source, output)?;
    let format = match args.to {
        TargetFormat::Hf => SaveFormat::HuggingFace,
        TargetFormat::Native => SaveFormat::Native,
        TargetFormat::Dcp => SaveFormat::Dcp,
        TargetFormat::Peft => SaveFormat::Peft,
    };
    let (assets, lacks) = match described(args, &source, registry)? {
        Ok(assets) => (assets, None),
        Err(reason) => (BTreeMap::new(), Some(reason)),
    };
    let mut only = chosen(args, &source).map_err(|error| Failure::user(&error))?;
    if only.is_none() && assets.contains_key("config.json") {
        // RoPE frequencies are in the configuration.
        let names = source.index.tensors().keys().chain(source.index.values());
        only = Some(names.filter(|name| *name != "rope_freqs.weight").cloned().collect());
    }
    let options = ConvertOptions {
        save: SaveOptions { format, shard_size: args.shard_size.0, assets, ..SaveOptions::default() },
        dtype: args.dtype,
        only,
    };
    let report = convert(&source, &target, &options, &Progress::new(output))?;
    if let Some(reason) = lacks {
        output.note(&format!("converted weights only, without config.json and tokenizer: {reason}"));
    }
    let converted = Converted {
        target: args.target.clone(),
        tensors: report.tensors,
        bytes: report.bytes,
        left_out: left_out.into_iter().chain(report.left_out).collect(),
        assets: report.assets,
        fingerprint: report.fingerprint,
    };
    output.show(&converted, |converted| {
        let mut text = format!(
            "{}: {}, {}, fingerprint {}",
            converted.target,
            counted(converted.tensors, "tensor"),
            bytes(converted.bytes),
            converted.fingerprint
        );
        if !converted.assets.is_empty() {
            text += &format!("\nwith {}", converted.assets.join(", "));
        }
        if !converted.left_out.is_empty() {
            let shown: Vec<&str> = converted.left_out.iter().take(8).map(String::as_str).collect();
            let more = match converted.left_out.len().saturating_sub(8) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            text += &format!("\nskipped: {}{more}", shown.join(", "));
        }
        text
    })
}

/// The part of the checkpoint to convert, and the names of the rest.
fn model_part(args: &ConvertArgs, source: Source, output: Output) -> Result<(Source, Vec<String>), Failure> {
    let part = match (&args.prefix, args.to) {
        (Some(prefix), _) => ModelPart::with_prefix(&source, prefix)?,
        // A folder for transformers holds nothing but a model.
        (None, TargetFormat::Hf | TargetFormat::Peft) => ModelPart::find(&source)?,
        (None, TargetFormat::Native | TargetFormat::Dcp) => return Ok((source, Vec::new())),
    };
    if args.prefix.is_none() && !part.prefix.is_empty() {
        output.note(&format!(
            "converting the model below `{}`; --prefix chooses another part",
            part.prefix.trim_end_matches('.')
        ));
    }
    Ok((part.source, part.left_out))
}

/// Configuration and tokenizer of a GGUF file, which has them in its metadata: without
/// them, a folder of weights cannot be loaded. Other formats have files to copy. If the
/// metadata lack something, the reason.
fn described(
    args: &ConvertArgs,
    source: &Source,
    registry: &Registry,
) -> Result<Result<BTreeMap<String, Vec<u8>>, HubError>, Failure> {
    // A part of a model is none that could be loaded.
    let is_whole = args.include.is_empty() && args.exclude.is_empty();
    let is_folder_of_model = is_whole && matches!(args.to, TargetFormat::Hf | TargetFormat::Native);
    if !is_folder_of_model || source.index.format() != Format::Gguf {
        return Ok(Ok(BTreeMap::new()));
    }
    let hub = HubArgs::default().hub(registry)?;
    let located = hub.locate(&args.source, &());
    let model = located.and_then(|located| hub.open(&located.model, &()));
    Ok(model.and_then(|model| folder_files(&model, args.dtype)))
}

fn chosen(args: &ConvertArgs, source: &Source) -> Result<Option<Vec<String>>, PatternError> {
    if args.include.is_empty() && args.exclude.is_empty() {
        return Ok(None);
    }
    let (include, exclude) = (globs(&args.include)?, globs(&args.exclude)?);
    let names = source.index.tensors().keys().chain(source.index.values());
    let kept = |name: &&String| {
        (args.include.is_empty() || include.is_match(name.as_str())) && !exclude.is_match(name.as_str())
    };
    let names: Vec<String> = names.filter(kept).cloned().collect();
    if names.is_empty() { Err(PatternError::Nothing) } else { Ok(Some(names)) }
}

pub(super) fn glob(pattern: &str) -> Result<Glob, globset::Error> {
    Glob::new(pattern)
}

fn globs(patterns: &[String]) -> Result<GlobSet, PatternError> {
    let failed = |pattern: &str, error: &globset::Error| PatternError::Syntax {
        pattern: pattern.to_owned(),
        reason: error.kind().to_string(),
    };
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(glob(pattern).map_err(|error| failed(pattern, &error))?);
    }
    set.build().map_err(|error| failed(&patterns.join(", "), &error))
}

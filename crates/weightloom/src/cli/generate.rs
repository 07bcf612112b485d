//! `weightloom generate`.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::checkpoint::storage::ReadMode;
use weightloom::gang::{Gang, GangSizes, Gangs};
use weightloom::hub::{
    CheckpointMismatch, EosHandling, HubError, ModelLoadOptions, StopCriteria, StreamedToken, Strictness,
};
use weightloom::launch::{Launch, MpiJob};
use weightloom::layout::DType;
use weightloom::nn::{FinishReason, GenerateRequest};
use weightloom::{AdapterMode, LoadedGenerator, PromptFormat, Registry, SamplingOptions};

use super::convert::dtype;
use super::device::DeviceArgs;
use super::escape::escaped;
use super::failure::Failure;
use super::hub::{ArgumentError, HubArgs};
use super::located::OpenedModel;
use super::output::{Format, Output, bytes};
use super::progress::Progress;
use super::timestamp::now;

/// Options of commands that run a model.
#[derive(Args, Clone)]
pub(super) struct RunArgs {
    /// Apply a PEFT or MLX adapter: its folder, the run that trained it, or org/name.
    #[arg(long, value_name = "ADAPTER", value_hint = ValueHint::DirPath)]
    adapter: Option<String>,

    /// Strength of the adapter, from 0 (off) to 1 (as trained) [default: 1].
    #[arg(long, value_name = "λ", value_hint = ValueHint::Other)]
    adapter_scale: Option<f64>,

    /// Merge the adapter into the weights.
    #[arg(long)]
    merge: bool,

    #[command(flatten)]
    device: DeviceArgs,

    /// Compute dtype, such as bf16 [default: that of the checkpoint].
    #[arg(long, value_parser = dtype, value_hint = ValueHint::Other)]
    dtype: Option<DType>,

    /// Memory-map the weights instead of reading them. The files must be on a local
    /// disk and must not change.
    #[arg(long)]
    mmap: bool,

    /// Initialize tensors that the checkpoint lacks, and ignore those that the model lacks.
    #[arg(long)]
    non_strict: bool,

    /// Initialize tensors with another shape, too; implies --non-strict.
    #[arg(long)]
    ignore_mismatched_sizes: bool,

    #[command(flatten)]
    hub: HubArgs,
}

impl RunArgs {
    /// Default options.
    pub(super) fn plain(device: DeviceArgs) -> Self {
        Self {
            adapter: None,
            adapter_scale: None,
            merge: false,
            device,
            dtype: None,
            mmap: false,
            non_strict: false,
            ignore_mismatched_sizes: false,
            hub: HubArgs::default(),
        }
    }

    /// Opens a model, with the adapter of the options or of the name.
    pub(super) fn open(
        &self,
        registry: &Registry,
        name: &str,
        output: Output,
    ) -> Result<OpenedModel, Failure> {
        let opened = OpenedModel::open(&self.hub.hub(registry)?, name, self.adapter.as_deref(), output)?;
        let options = [("--adapter-scale", self.adapter_scale.is_some()), ("--merge", self.merge)];
        match options.into_iter().find(|(_, given)| *given) {
            Some((option, _)) if opened.adapter.is_none() => {
                let fact = format!("cannot use `{option}` with `{name}`: it has no adapter");
                let fix = Some("name an adapter with --adapter".to_owned());
                Err(Failure::user(&ArgumentError { fact, fix }))
            }
            _ => Ok(opened),
        }
    }

    fn strictness(&self) -> Strictness {
        match (self.ignore_mismatched_sizes, self.non_strict) {
            (true, _) => Strictness::IgnoreMismatchedSizes,
            (false, true) => Strictness::NonStrict,
            (false, false) => Strictness::Strict,
        }
    }

    /// Loads the model on this rank. The first rank warns about tensors that do not
    /// match.
    pub(super) fn generator(
        &self,
        opened: &OpenedModel,
        gangs: Option<Gangs>,
        output: Output,
    ) -> Result<LoadedGenerator, Failure> {
        let speaks = gangs.as_ref().is_none_or(|gangs| gangs.root.rank() == 0);
        let rank = gangs.as_ref().map_or(0, |gangs| gangs.root.rank());
        let device = self.device.resolve(rank, if speaks { output } else { output.quiet() })?;
        let options = ModelLoadOptions {
            gangs,
            device,
            dtype: self.dtype,
            read_mode: self.mmap.then_some(ReadMode::Mapped),
            strictness: self.strictness(),
            ..ModelLoadOptions::default()
        };
        let scale = self.adapter_scale.unwrap_or(1.0);
        let mode = if self.merge { AdapterMode::Merged(scale) } else { AdapterMode::Separate(scale) };
        let loaded = opened.load(&options, mode, &Progress::new(output))?;
        if speaks {
            loaded.mismatch.outcomes().iter().for_each(|line| output.warning(&escaped(line)));
        }
        Ok(loaded)
    }
}

#[derive(Args)]
pub(super) struct GenerateArgs {
    /// Model: card, folder, file, run, adapter, org/name or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// Prompt, or - for stdin.
    #[arg(value_hint = ValueHint::Other)]
    prompt: String,

    /// Apply the chat template to the prompt [default: if the adapter or the model was trained on chats].
    #[arg(long)]
    chat: bool,

    /// Use the prompt as plain text.
    #[arg(long, conflicts_with = "chat")]
    no_chat: bool,

    /// System message of the chat; implies --chat.
    #[arg(long, value_name = "TEXT", conflicts_with = "no_chat", value_hint = ValueHint::Other)]
    system: Option<String>,

    /// Maximum number of tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 128, value_hint = ValueHint::Other)]
    max_new_tokens: usize,

    /// Sample with the model's own settings instead of taking the most likely token.
    #[arg(long)]
    sample: bool,

    /// Sample with this temperature.
    #[arg(long, value_name = "T", value_hint = ValueHint::Other)]
    temperature: Option<f64>,

    /// Sample from the N most likely tokens.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    top_k: Option<usize>,

    /// Sample from the most likely tokens with total probability P.
    #[arg(long, value_name = "P", value_hint = ValueHint::Other)]
    top_p: Option<f64>,

    /// Sample from tokens with at least P times the highest probability.
    #[arg(long, value_name = "P", value_hint = ValueHint::Other)]
    min_p: Option<f64>,

    /// Penalize repeated tokens; 1 has no effect.
    #[arg(long, value_name = "X", value_hint = ValueHint::Other)]
    repetition_penalty: Option<f64>,

    /// Seed for sampling.
    #[arg(long, value_name = "N", default_value_t = 0, value_hint = ValueHint::Other)]
    seed: u64,

    /// Stop before this text; repeatable.
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    stop: Vec<String>,

    /// Continue after end-of-text tokens.
    #[arg(long)]
    ignore_eos: bool,

    /// Number of tensor-parallel ranks; under mpirun, its processes are the ranks.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    tp: Option<usize>,

    #[command(flatten)]
    run: RunArgs,
}

/// A prompt and its format.
#[derive(Clone, Copy)]
struct PromptText<'a> {
    text: &'a str,
    format: PromptFormat,
}

#[derive(Serialize)]
struct Generated {
    model: String,
    /// Without the prompt.
    text: String,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    finish: &'static str,
    /// From the start of the command.
    load_seconds: f64,
    /// From the end of loading.
    first_token_seconds: f64,
    tokens_per_second: Option<f64>,
    /// Tensors that were initialized or ignored.
    #[serde(skip_serializing_if = "CheckpointMismatch::is_empty")]
    mismatch: CheckpointMismatch,
}

/// The most text that is read from stdin. No model takes as much, and a pipe may have no end.
const MAX_STDIN: u64 = 64 << 20;

/// The argument, or stdin for `-`.
pub(super) fn prompt_text(argument: &str) -> Result<String, Failure> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    io::stdin()
        .take(MAX_STDIN + 1)
        .read_to_string(&mut text)
        .map_err(|error| Failure::operational(&error).about("cannot read stdin"))?;
    if text.len() as u64 > MAX_STDIN {
        let error = ArgumentError {
            fact: format!("cannot read more than {} from stdin", bytes(MAX_STDIN)),
            fix: Some("pass a shorter text".to_owned()),
        };
        return Err(Failure::user(&error));
    }
    Ok(text)
}

impl GenerateArgs {
    fn sampling(&self) -> SamplingOptions {
        SamplingOptions {
            sample: self.sample,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        }
    }

    fn eos(&self) -> EosHandling {
        if self.ignore_eos { EosHandling::Ignore } else { EosHandling::Stop }
    }

    /// How the prompt is formatted: as asked for, or else as the training data
    /// were.
    fn prompt_format(&self, model: &OpenedModel) -> Result<PromptFormat, HubError> {
        if self.chat || self.system.is_some() {
            return Ok(PromptFormat::Chat);
        }
        if self.no_chat { Ok(PromptFormat::Text) } else { model.prompt_format() }
    }
}

pub(super) fn run(args: &GenerateArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let started = Instant::now();
    if args.tp == Some(0) {
        let error = ArgumentError {
            fact: "cannot use `--tp 0`".to_owned(),
            fix: Some("remove it for one rank".to_owned()),
        };
        return Err(Failure::user(&error));
    }
    // mpirun passes stdin to rank 0 only.
    if args.prompt == "-" && MpiJob::detect().is_some_and(|job| job.size > 1) {
        let error = ArgumentError {
            fact: "cannot read the prompt from stdin under mpirun".to_owned(),
            fix: Some("pass the prompt as an argument".to_owned()),
        };
        return Err(Failure::user(&error));
    }
    let text = prompt_text(&args.prompt)?;
    let model = args.run.open(registry, &args.name, output)?;
    let format = args.prompt_format(&model)?;
    let trained = if model.adapter.is_some() { "adapter" } else { "model" };
    // Under mpirun, one rank speaks for all.
    let speaks = MpiJob::detect().is_none_or(|job| job.rank == 0);
    if let Some(note) = format.note(trained, "--no-chat").filter(|_| speaks) {
        output.note(&note);
    }
    let prompt = PromptText { text: &text, format };
    let generated = match Launch::detect(args.tp, 1)? {
        Launch::Threads { ranks: 1 } => generate(args, &model, None, prompt, started, output)?,
        launch => {
            let work = |root: Arc<dyn Gang>| {
                let sizes = GangSizes { tp: root.size(), ..GangSizes::default() };
                let gangs = Gangs::new(root, &sizes).map_err(HubError::from)?;
                generate(args, &model, Some(gangs), prompt, started, output)
            };
            let generated = launch.run(Default::default(), work, |failure| output.failure(failure))?;
            match generated {
                Some(generated) => generated,
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    };
    if generated.text.is_empty()
        && !format.is_chat()
        && speaks
        && !output.is_quiet()
        && model.model.is_instruct()?
    {
        let note = "note: the text ended at once; this is a chat model: try --chat";
        let _ = writeln!(io::stderr().lock(), "{note}");
    }
    if !output.is_quiet() && io::stderr().is_terminal() {
        let speed =
            generated.tokens_per_second.map_or_else(String::new, |speed| format!(", {speed:.1} tokens/s"));
        let line = format!(
            "{} tokens{speed}; loaded in {:.2} s, first token after {:.2} s",
            generated.tokens.len(),
            generated.load_seconds,
            generated.first_token_seconds
        );
        output.note(&line);
    }
    match output.format {
        Format::Json => output.show(&generated, |_| String::new()),
        // Streamed to stdout already.
        Format::Text => Ok(ExitCode::SUCCESS),
    }
}

/// Generates on this rank. Rank 0 streams the text to stdout.
fn generate(
    args: &GenerateArgs,
    model: &OpenedModel,
    gangs: Option<Gangs>,
    prompt: PromptText<'_>,
    started: Instant,
    output: Output,
) -> Result<Generated, Failure> {
    let first = gangs.as_ref().is_none_or(|gangs| gangs.root.rank() == 0);
    let output_of_rank = if first { output } else { output.quiet() };
    let LoadedGenerator { generator, mismatch } = args.run.generator(model, gangs, output_of_rank)?;
    let format = prompt.format;
    let prompt = format.encode(&generator, prompt.text, args.system.as_deref(), now())?;
    let load_seconds = started.elapsed().as_secs_f64();
    let request = GenerateRequest {
        prompts: vec![prompt.clone()],
        max_new_tokens: args.max_new_tokens,
        sampling: args.sampling().resolve(&generator.defaults),
        stop_tokens: format.stop_tokens(&generator, args.eos())?,
        ..GenerateRequest::default()
    };
    let stop = StopCriteria { strings: args.stop.clone(), eos: args.eos() };
    let generation_started = Instant::now();
    let mut first_token = None;
    let streams = first && !output.is_json();
    // Files get the text as it is; on a terminal, tokens must not act.
    let terminal = streams && io::stdout().is_terminal();
    let on_token = |token: &StreamedToken| {
        first_token.get_or_insert_with(|| generation_started.elapsed());
        if streams && !token.text.is_empty() {
            let text = if terminal { escaped(&token.text) } else { Cow::Borrowed(token.text.as_str()) };
            // A closed or full stdout ends the generation.
            if output.stream(&text).is_err() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    };
    let written = generator.generate(&request, &stop, on_token)?;
    if streams {
        let _ = output.stream("\n");
    }
    let seconds = generation_started.elapsed().as_secs_f64();
    let first_token = first_token.map_or(0.0, |time| time.as_secs_f64());
    let row = written.into_iter().next();
    let (text, tokens, finish) = row.map_or_else(
        || (String::new(), Vec::new(), FinishReason::Length),
        |row| (row.text, row.tokens, row.finish),
    );
    let later = tokens.len().saturating_sub(1);
    Ok(Generated {
        model: args.name.clone(),
        text,
        prompt_tokens: prompt.len(),
        finish: match finish {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        },
        load_seconds,
        first_token_seconds: first_token,
        tokens_per_second: (later > 0 && seconds > first_token)
            .then(|| later as f64 / (seconds - first_token)),
        tokens,
        mismatch,
    })
}

//! `weightloom generate`: a model writes on.

use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::checkpoint::Source;
use weightloom::checkpoint::storage::ReadMode;
use weightloom::gang::{Gang, GangSizes, Gangs};
use weightloom::hub::text::{ChatContext, Message, OrderedJson};
use weightloom::hub::{
    EosHandling, HubError, Model, ModelLoadOptions, StopCriteria, StreamedToken, TextGenerator,
    default_sampling,
};
use weightloom::launch::Launch;
use weightloom::layout::DType;
use weightloom::nn::{FinishReason, GenerateRequest, Sampling, merge_adapter};

use super::convert::dtype;
use super::failure::Failure;
use super::hub::{ArgumentError, Downloads, HubArgs};
use super::moment::now;
use super::output::Output;
use super::progress::Progress;

/// How a model is loaded, for commands that run one.
#[derive(Args, Clone)]
pub(super) struct RunArgs {
    /// An adapter of PEFT or MLX to apply.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    adapter: Option<PathBuf>,

    /// How much of the adapter: 0 is none, 1 is all.
    #[arg(long, value_name = "λ", default_value_t = 1.0, requires = "adapter", value_hint = ValueHint::Other)]
    adapter_scale: f64,

    /// Add the adapter to the weights before running, instead of beside them.
    #[arg(long, requires = "adapter")]
    merge: bool,

    /// The type to compute in, such as bf16 [default: the checkpoint's own].
    #[arg(long, value_parser = dtype, value_hint = ValueHint::Other)]
    dtype: Option<DType>,

    /// Use weights where they lie instead of reading them: quick to start, and
    /// only for files on a local disk that nobody changes.
    #[arg(long)]
    mmap: bool,

    #[command(flatten)]
    hub: HubArgs,
}

impl RunArgs {
    /// As a command without further options has it.
    pub(super) fn with_adapter(folder: Option<&Path>) -> Self {
        Self {
            adapter: folder.map(Path::to_owned),
            adapter_scale: 1.0,
            merge: false,
            dtype: None,
            mmap: false,
            hub: HubArgs::default(),
        }
    }

    pub(super) fn open(&self, name: &str, output: Output) -> Result<Model, Failure> {
        Ok(self.hub.hub()?.open(name, &Downloads::new(output))?)
    }

    /// Loads the model on a rank.
    pub(super) fn generator(
        &self,
        model: &Model,
        gangs: Option<Gangs>,
        output: Output,
    ) -> Result<TextGenerator, Failure> {
        let way = self.mmap.then_some(ReadMode::Mapped);
        let options =
            ModelLoadOptions { gangs, dtype: self.dtype, read_mode: way, ..ModelLoadOptions::default() };
        let progress = Progress::new(output);
        // A large vocabulary takes as long as many weights.
        let (loaded, tokenizer) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| model.tokenizer());
            let loaded = model.load(&options, &progress);
            (loaded, tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (mut decoder, tokenizer) = (loaded?.decoder, tokenizer?);
        let mut adapter = None;
        if let Some(folder) = &self.adapter {
            let source = Source::open(folder)?;
            let loaded = model.adapter(&decoder, &source, &progress)?;
            if self.merge {
                decoder = merge_adapter(&decoder, &loaded, self.adapter_scale).map_err(HubError::from)?;
            } else {
                adapter = Some((loaded, self.adapter_scale));
            }
        }
        Ok(TextGenerator {
            decoder,
            adapter,
            tokenizer,
            templates: model.chat_templates()?,
            defaults: model.generation_defaults()?,
        })
    }
}

#[derive(Args)]
pub(super) struct GenerateArgs {
    /// The name of a card, a folder, a file, or an address such as hf://org/name.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// The prompt, or - to read it from stdin.
    #[arg(value_hint = ValueHint::Other)]
    prompt: String,

    /// Take the prompt as a message in a chat, and write the answer.
    #[arg(long)]
    chat: bool,

    /// What the model is told before the chat.
    #[arg(long, value_name = "TEXT", requires = "chat", value_hint = ValueHint::Other)]
    system: Option<String>,

    /// The most tokens to write.
    #[arg(long, value_name = "N", default_value_t = 128, value_hint = ValueHint::Other)]
    max_new_tokens: usize,

    /// Draw tokens by chance, as the model's own settings say; by default the likeliest is taken.
    #[arg(long)]
    sample: bool,

    /// Draw tokens by chance, with this temperature.
    #[arg(long, value_name = "T", value_hint = ValueHint::Other)]
    temperature: Option<f64>,

    /// Draw from this many of the likeliest tokens.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    top_k: Option<usize>,

    /// Draw from the likeliest tokens that together have this chance.
    #[arg(long, value_name = "P", value_hint = ValueHint::Other)]
    top_p: Option<f64>,

    /// Draw from tokens with at least this share of the likeliest one's chance.
    #[arg(long, value_name = "P", value_hint = ValueHint::Other)]
    min_p: Option<f64>,

    /// Make tokens that occurred less likely; 1 leaves them as they are.
    #[arg(long, value_name = "X", value_hint = ValueHint::Other)]
    repetition_penalty: Option<f64>,

    /// Where chance begins: the same seed gives the same text.
    #[arg(long, value_name = "N", default_value_t = 0, value_hint = ValueHint::Other)]
    seed: u64,

    /// End before this text; may be given several times.
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    stop: Vec<String>,

    /// Go on after tokens that end texts.
    #[arg(long)]
    ignore_eos: bool,

    /// Share the model among this many thread ranks.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    tp: Option<usize>,

    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Answer {
    model: String,
    /// The continuation alone.
    text: String,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    finish: &'static str,
    /// Until the model was loaded, from the start of the command.
    load_seconds: f64,
    /// Until the first token was written, from there.
    first_token_seconds: f64,
    tokens_per_second: Option<f64>,
}

/// A prompt, or what stdin has.
pub(super) fn prompt_text(argument: &str) -> Result<String, Failure> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::operational(&error).about("cannot read stdin"))?;
    Ok(text)
}

impl GenerateArgs {
    fn sampling(&self, generator: &TextGenerator) -> Sampling {
        let drawn = self.sample
            || self.temperature.is_some()
            || self.top_k.is_some()
            || self.top_p.is_some()
            || self.min_p.is_some();
        let mut sampling = if drawn {
            default_sampling(&generator.defaults, self.seed)
        } else {
            Sampling { seed: self.seed, ..Sampling::default() }
        };
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_k = self.top_k.or(sampling.top_k);
        sampling.top_p = self.top_p.or(sampling.top_p);
        sampling.min_p = self.min_p.or(sampling.min_p);
        sampling.repetition_penalty = self.repetition_penalty.unwrap_or(sampling.repetition_penalty);
        sampling
    }

    fn prompt(&self, generator: &TextGenerator, text: &str) -> Result<Vec<u32>, Failure> {
        if !self.chat {
            return Ok(generator.encode_prompt(text)?);
        }
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        let messages: Vec<Message> = system.chain([Message::new("user", OrderedJson::from(text))]).collect();
        let context = ChatContext { now: now(), ..ChatContext::default() };
        Ok(generator.encode_chat(&messages, &context)?)
    }
}

pub(super) fn run(args: &GenerateArgs, output: Output) -> Result<ExitCode, Failure> {
    let begun = Instant::now();
    if args.tp == Some(0) {
        let error =
            ArgumentError { fact: "--tp is 0".to_owned(), fix: Some("leave it out for one rank".to_owned()) };
        return Err(Failure::user(&error));
    }
    let text = prompt_text(&args.prompt)?;
    let model = args.run.open(&args.name, output)?;
    let answer = match args.tp {
        None | Some(1) => write(args, &model, None, &text, begun, output)?,
        Some(ranks) => {
            let launch = Launch::Threads { ranks };
            let work = |root: Arc<dyn Gang>| {
                let sizes = GangSizes { tp: ranks, ..GangSizes::default() };
                let gangs = Gangs::new(root, &sizes).map_err(HubError::from)?;
                write(args, &model, Some(gangs), &text, begun, output)
            };
            let answer = launch.run(Default::default(), work, |failure| output.failure(failure))?;
            match answer {
                Some(answer) => answer,
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    };
    match output {
        Output::Json => output.show(&answer, |_| String::new()),
        Output::Text => {
            if io::stderr().is_terminal() {
                let speed = answer
                    .tokens_per_second
                    .map_or_else(String::new, |speed| format!(", {speed:.1} tokens/s"));
                let line = format!(
                    "{} tokens{speed}; loaded in {:.2} s, first token after {:.2} s",
                    answer.tokens.len(),
                    answer.load_seconds,
                    answer.first_token_seconds
                );
                let _ = writeln!(io::stderr().lock(), "{line}");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes on one rank; only the first tells.
fn write(
    args: &GenerateArgs,
    model: &Model,
    gangs: Option<Gangs>,
    text: &str,
    begun: Instant,
    output: Output,
) -> Result<Answer, Failure> {
    let first = gangs.as_ref().is_none_or(|gangs| gangs.root.rank() == 0);
    let generator = args.run.generator(model, gangs, if first { output } else { Output::Json })?;
    let prompt = args.prompt(&generator, text)?;
    let load_seconds = begun.elapsed().as_secs_f64();
    let request = GenerateRequest {
        prompts: vec![prompt.clone()],
        max_new_tokens: args.max_new_tokens,
        sampling: args.sampling(&generator),
        ..GenerateRequest::default()
    };
    let stop = StopCriteria {
        strings: args.stop.clone(),
        eos: if args.ignore_eos { EosHandling::Ignore } else { EosHandling::Stop },
    };
    let started = Instant::now();
    let mut first_token = None;
    let streams = first && output == Output::Text;
    let on_token = |token: &StreamedToken| {
        first_token.get_or_insert_with(|| started.elapsed());
        if streams && !token.text.is_empty() {
            let mut out = io::stdout().lock();
            let written = out.write_all(token.text.as_bytes()).and_then(|()| out.flush());
            // A reader that has seen enough ends the work.
            if written.is_err() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    };
    let written = generator.generate(&request, &stop, on_token)?;
    if streams {
        let _ = writeln!(io::stdout().lock());
    }
    let seconds = started.elapsed().as_secs_f64();
    let first_token = first_token.map_or(0.0, |time| time.as_secs_f64());
    let row = written.into_iter().next();
    let (text, tokens, finish) = row.map_or_else(
        || (String::new(), Vec::new(), FinishReason::Length),
        |row| (row.text, row.tokens, row.finish),
    );
    let later = tokens.len().saturating_sub(1);
    Ok(Answer {
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
    })
}

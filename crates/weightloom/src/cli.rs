//! The command line: parsing, dispatch, and how things are said.

mod convert;
mod diff;
mod doctor;
mod dry_run;
mod dtensor;
mod export;
mod failure;
mod fetch;
mod gang;
mod generate;
mod hub;
mod inspect;
mod layout;
mod model_plan;
mod models;
mod moment;
mod output;
mod plan;
mod progress;
mod quickstart;
mod score;
mod serve;
mod sway;
mod tokenize;
mod train;
mod verify;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use serde::Serialize;
use weightloom::gang::GangOptions;
use weightloom::launch::ExitStatus;

use failure::Failure;
use output::Output;

const EXIT_CODES: &str = "Exit codes: 0 success, 1 a check failed, 2 user error, 3 operational failure";

/// Find, load, train, run, keep and judge language models, on one process or thousands.
///
/// Begin with `weightloom quickstart`.
#[derive(Parser)]
#[command(name = "weightloom", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Cli {
    /// Print JSON to stdout instead of text, and errors as JSON to stderr.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// See it work: train a small model, load it on other ranks, tune it, ask it, judge it.
    ///
    /// It takes about a minute, brings everything with it, and starts its own ranks as threads.
    #[command(after_help = "Examples:
  weightloom quickstart
  weightloom quickstart --dir /tmp/tour --json | jq .samples")]
    Quickstart(quickstart::QuickstartArgs),

    /// Show versions, CPU, GPU, MPI and folders: what is missing and how to get it.
    #[command(after_help = "Examples:
  weightloom doctor
  weightloom doctor --json | jq '.checks[] | select(.status != \"ok\")'")]
    Doctor,

    /// Look at layouts: who holds what, and the cheapest way from one to another.
    #[command(subcommand)]
    Layout(layout::LayoutCommand),

    /// Check that ranks act together as they must.
    #[command(subcommand)]
    Gang(gang::GangCommand),

    /// Check that distributed tensors compute what whole ones would.
    #[command(subcommand, name = "dtensor")]
    DTensor(dtensor::DTensorCommand),

    /// Show what a checkpoint of any format holds: tensors, dtypes, shapes, bytes, quantisation.
    #[command(after_help = "Examples:
  weightloom inspect models/llama-3.2-1b
  weightloom inspect model-Q4_K_M.gguf --stats
  weightloom inspect s3://bucket/run/step_100 --json | jq '.tensors | length'")]
    Inspect(inspect::InspectArgs),

    /// Read all of a checkpoint and compare it with its checksums.
    ///
    /// Exits with 1 and says where if anything is damaged.
    #[command(after_help = "Examples:
  weightloom verify runs/step_100
  weightloom verify downloads/model.safetensors")]
    Verify(verify::SourceArgs),

    /// Hash all tensors, independently of format, files and layout.
    #[command(after_help = "Examples:
  weightloom fingerprint runs/step_100
  weightloom fingerprint model.safetensors --json | jq -r .fingerprint")]
    Fingerprint(verify::SourceArgs),

    /// Compare two checkpoints of any format: names, shapes, dtypes, values.
    ///
    /// Exits with 1 if they differ.
    #[command(after_help = "Examples:
  weightloom diff runs/step_100 runs/step_200
  weightloom diff model.safetensors dcp-folder --json")]
    Diff(diff::DiffArgs),

    /// Convert a checkpoint of any format into one of four forms.
    #[command(after_help = "Examples:
  weightloom convert checkpoints/dcp model --to hf
  weightloom convert model-Q8_0.gguf model-bf16 --to hf --dtype bf16
  weightloom convert model dcp --to dcp --exclude 'lm_head.*'
  weightloom convert mlx-adapter peft-adapter --to peft")]
    Convert(convert::ConvertArgs),

    /// Show what each rank would hold of a model, or read of a checkpoint.
    #[command(after_help = "Examples:
  weightloom plan llama3_1_70b --tp 8
  weightloom plan qwen3_30b_a3b --tp 4 --pp 2 --context 32768
  weightloom plan model --mesh dp=2,tp=4
  weightloom plan model --mesh tp=8 --rank 3
  weightloom plan model --mesh x=4 --shard '*.weight=S(0)'")]
    Plan(plan::PlanArgs),

    /// List models, show what they are, and check their cards.
    #[command(subcommand)]
    Models(models::ModelsCommand),

    /// Bring a model's files here: resumed where it was left, and checked.
    #[command(after_help = "Examples:
  weightloom fetch smollm2_135m_instruct
  weightloom fetch hf://HuggingFaceTB/SmolLM2-135M@main
  HF_TOKEN=… weightloom fetch llama3_2_1b")]
    Fetch(fetch::FetchArgs),

    /// Let a model write on.
    #[command(after_help = "Examples:
  weightloom generate smollm2_135m_instruct 'The capital of France is'
  weightloom generate ./my-model 'What is a tensor?' --chat --max-new-tokens 200
  weightloom generate model.gguf - --sample --seed 7 < prompt.txt
  weightloom generate ./base 'Hello' --adapter ./my-adapter --adapter-scale 0.5 --json")]
    Generate(generate::GenerateArgs),

    /// Serve a model to programs that speak OpenAI's API.
    ///
    /// Answers /v1/models, /v1/completions and /v1/chat/completions, one request after the other.
    #[command(after_help = "Examples:
  weightloom serve smollm2_135m_instruct
  weightloom serve ./base --adapter ./my-adapter --port 8080 --served-name tuned
  WEIGHTLOOM_API_KEY=… weightloom serve ./my-model --host 0.0.0.0")]
    Serve(serve::ServeArgs),

    /// Train a model as a file says: from nothing, from weights, or an adapter of them.
    ///
    /// A run that was ended goes on where it was, on as many ranks as there are now.
    #[command(after_help = "Examples:
  weightloom train run.yaml
  weightloom train run.yaml --ranks 4 train.accelerator.tp=2 train.optimizer.lr=1e-4
  mpirun -n 4 weightloom train run.yaml       on MPI ranks (build with --features mpi)
  weightloom train run.yaml --dry-run --ranks 1024
  weightloom train run.yaml --dump-config
  weightloom train --reference | less")]
    #[command(mut_arg("ranks", |ranks| ranks.help("Thread ranks to start [default: 1]. Under mpirun, ranks are its processes")))]
    Train(train::TrainArgs),

    /// Judge what a fine-tuning changed.
    #[command(subcommand)]
    Sway(sway::SwayCommand),

    /// Show how likely a model finds a text, token by token.
    #[command(after_help = "Examples:
  weightloom score smollm2_135m 'The cat sat on the mat'
  weightloom score ./base - --adapter ./my-adapter --json < text.txt | jq .perplexity")]
    Score(score::ScoreArgs),

    /// Show a text as a model sees it.
    #[command(after_help = "Examples:
  weightloom tokenize smollm2_135m 'Hello, world'
  weightloom tokenize ./my-model - --json < text.txt | jq '.tokens | length'")]
    Tokenize(tokenize::TokenizeArgs),

    /// Write a model as a Hugging Face folder, from whatever form it has.
    #[command(after_help = "Examples:
  weightloom export model-Q8_0.gguf my-model --dtype bf16
  weightloom export ./base merged-model --adapter ./my-adapter")]
    Export(export::ExportArgs),

    /// Print completions for a shell.
    #[command(after_help = "Examples:
  weightloom completions bash > ~/.local/share/bash-completion/completions/weightloom
  weightloom completions zsh > ~/.zfunc/_weightloom
  weightloom completions fish > ~/.config/fish/completions/weightloom.fish")]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// How a command's ranks are started.
#[derive(Args)]
struct RankArgs {
    /// Thread ranks to start [default: 4]. Under mpirun, ranks are its processes.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_hint = ValueHint::Other)]
    ranks: Option<usize>,

    /// Seconds that ranks wait for one another before they give up.
    #[arg(long, value_name = "SECONDS", default_value_t = 900, allow_negative_numbers = true, value_hint = ValueHint::Other)]
    timeout: u64,
}

impl RankArgs {
    fn options(&self) -> GangOptions {
        GangOptions { timeout: Duration::from_secs(self.timeout) }
    }
}

pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let output = if cli.json { Output::Json } else { Output::Text };
    let outcome = match cli.command {
        Command::Quickstart(args) => quickstart::run(&args, output),
        Command::Doctor => doctor::run(output),
        Command::Layout(command) => layout::run(&command, output),
        Command::Gang(command) => gang::run(&command, output),
        Command::DTensor(command) => dtensor::run(&command, output),
        Command::Inspect(args) => inspect::run(&args, output),
        Command::Verify(args) => verify::run_verify(&args, output),
        Command::Fingerprint(args) => verify::run_fingerprint(&args, output),
        Command::Diff(args) => diff::run(&args, output),
        Command::Convert(args) => convert::run(&args, output),
        Command::Plan(args) => plan::run(&args, output),
        Command::Models(command) => models::run(&command, output),
        Command::Fetch(args) => fetch::run(&args, output),
        Command::Generate(args) => generate::run(&args, output),
        Command::Sway(command) => sway::run(&command, output),
        Command::Score(args) => score::run(&args, output),
        Command::Serve(args) => serve::run(&args, output),
        Command::Tokenize(args) => tokenize::run(&args, output),
        Command::Train(args) => train::run(&args, output),
        Command::Export(args) => export::run(&args, output),
        Command::Completions { shell } => completions(shell, output),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code())
        }
    }
}

/// Help and version are answers; anything else that clap reports is a user
/// error.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|arg| arg == "--json") {
        let failure = Failure::usage(error);
        Output::Json.failure(&failure);
        return ExitCode::from(failure.code());
    }
    // Nothing can be done about a closed stdout.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}

#[derive(Serialize)]
struct Completions {
    shell: String,
    script: String,
}

fn completions(shell: Shell, output: Output) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weightloom", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let name = shell.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    output.show(&Completions { shell: name, script }, |completions| completions.script.trim_end().to_owned())
}

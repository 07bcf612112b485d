//! Command line: parsing and dispatch.

mod byte_size;
mod convert;
mod data;
mod device;
mod diff;
mod doctor;
mod dry_run;
mod dtensor;
mod escape;
mod export;
mod failure;
mod fetch;
mod folder_name;
mod gang;
mod generate;
mod hub;
mod inspect;
mod layout;
mod listener;
mod located;
mod model_plan;
mod models;
mod names;
mod output;
mod plan;
mod progress;
mod quickstart;
mod reference;
mod score;
mod serve;
mod sign;
mod sway;
mod table;
mod timestamp;
mod tokenize;
mod train;
mod verify;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::{Arc, Once};
use std::time::Duration;

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use weightloom::gang::GangOptions;
use weightloom::hub::text::panics_are_caught;
use weightloom::launch::{ExitStatus, LaunchError, MpiJob};
use weightloom::{App, Registry, app};

use failure::Failure;
pub use failure::{CallError, CallErrorKind};
pub use listener::Listener;
use listener::Listening;
use output::{Format, Output, Verbosity};

pub(crate) use names::app_command;
pub use reference::command;

/// The name of our own program.
pub(crate) const PROGRAM: &str = "weightloom";

const EXIT_CODES: &str = "Exit codes: 0 success, 1 a check failed, 2 user error, 3 operational failure,
75 a signal ended the training run, which can be resumed";

/// Find, load, train, run, checkpoint and judge language models, on one process or thousands.
///
/// Start with `weightloom quickstart`.
#[derive(Parser)]
#[command(name = PROGRAM, version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Cli {
    /// Print results as JSON to stdout, and errors as JSON to stderr.
    #[arg(long, global = true)]
    json: bool,

    /// Print no progress and status, only results and errors.
    #[arg(short, long, global = true)]
    quiet: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train, reload, fine-tune, run and judge a small model.
    ///
    /// Takes about a minute and needs no network. Ranks are threads.
    #[command(after_help = "Examples:
  weightloom quickstart
  weightloom quickstart --dir /tmp/tour --json | jq .samples")]
    Quickstart(quickstart::QuickstartArgs),

    /// Check versions, CPU, GPU, MPI and folders.
    #[command(after_help = "Examples:
  weightloom doctor
  weightloom doctor --json | jq '.checks[] | select(.status != \"ok\")'")]
    Doctor,

    /// Inspect layouts, and plan redistributions between them.
    #[command(subcommand)]
    Layout(layout::LayoutCommand),

    /// Check collective communication.
    #[command(subcommand)]
    Gang(gang::GangCommand),

    /// Check distributed tensors against a single rank.
    #[command(subcommand, name = "dtensor")]
    DTensor(dtensor::DTensorCommand),

    /// Show the tensors of a checkpoint in any format.
    #[command(after_help = "Examples:
  weightloom inspect models/llama-3.2-1b
  weightloom inspect model-Q4_K_M.gguf --stats
  weightloom inspect s3://bucket/run/step_100 --json | jq '.tensors | length'")]
    Inspect(inspect::InspectArgs),

    /// Verify the checksums of a checkpoint.
    ///
    /// Exits with 1 and names the tensor if the checkpoint is damaged.
    #[command(after_help = "Examples:
  weightloom verify runs/my-run
  weightloom verify downloads/model.safetensors
  weightloom verify runs/my-run --key public.pem")]
    Verify(verify::VerifyArgs),

    /// Sign a checkpoint with an Ed25519 key.
    ///
    /// `verify --key` checks that no file was changed, added or removed since.
    #[command(after_help = "Examples:
  openssl genpkey -algorithm ed25519 -out key.pem
  openssl pkey -in key.pem -pubout -out public.pem
  weightloom sign runs/my-run --key key.pem
  weightloom verify runs/my-run --key public.pem")]
    Sign(sign::SignArgs),

    /// Hash all tensors, independently of format, files and layout.
    #[command(after_help = "Examples:
  weightloom fingerprint runs/my-run
  weightloom fingerprint model.safetensors --json | jq -r .fingerprint")]
    Fingerprint(verify::FingerprintArgs),

    /// Compare two checkpoints: names, shapes, dtypes and values.
    ///
    /// Exits with 1 if they differ.
    #[command(after_help = "Examples:
  weightloom diff runs/my-run/checkpoints/step_100 runs/my-run
  weightloom diff model.safetensors dcp-folder --json")]
    Diff(diff::DiffArgs),

    /// Convert a checkpoint to another format.
    #[command(after_help = "Examples:
  weightloom convert checkpoints/dcp model --to hf
  weightloom convert state.pt model --to hf --prefix ema
  weightloom convert model-Q8_0.gguf model-bf16 --to hf --dtype bf16
  weightloom convert model dcp --to dcp --exclude 'lm_head.*'
  weightloom convert mlx-adapter peft-adapter --to peft")]
    Convert(convert::ConvertArgs),

    /// Show the memory of each rank for a model, or its reads from a checkpoint.
    #[command(after_help = "Examples:
  weightloom plan llama3_1_70b --tp 8
  weightloom plan qwen3_30b_a3b --tp 4 --pp 2 --context 32768
  weightloom plan model --mesh dp=2,tp=4
  weightloom plan model --mesh tp=8 --rank 3
  weightloom plan model --mesh x=4 --shard '*.weight=S(0)'")]
    Plan(plan::PlanArgs),

    /// List and show models, and check their cards.
    #[command(subcommand)]
    Models(models::ModelsCommand),

    /// Download a model, resuming partial files and verifying hashes.
    #[command(after_help = "Examples:
  weightloom fetch smollm2_135m_instruct
  weightloom fetch HuggingFaceTB/SmolLM2-135M@main
  HF_TOKEN=… weightloom fetch llama3_2_1b")]
    Fetch(fetch::FetchArgs),

    /// Generate text from a prompt.
    #[command(after_help = "Examples:
  weightloom generate smollm2_135m_instruct 'The capital of France is'
  weightloom generate ./my-model 'What is a tensor?' --chat --max-new-tokens 200
  weightloom generate runs/my-adapter 'Hello'
  weightloom generate model.gguf - --sample --seed 7 < prompt.txt
  weightloom generate ./base 'Hello' --adapter ./my-adapter --adapter-scale 0.5 --json
  mpirun -n 4 weightloom generate ./my-model 'Hello'    tensor-parallel (build with --features mpi)")]
    Generate(generate::GenerateArgs),

    /// Serve a model over an OpenAI-compatible API.
    ///
    /// Serves /v1/models, /v1/completions and /v1/chat/completions, one request at a time.
    #[command(after_help = "Examples:
  weightloom serve smollm2_135m_instruct
  weightloom serve ./base --adapter ./my-adapter --port 8080 --served-name tuned
  WEIGHTLOOM_API_KEY=… weightloom serve ./my-model --host 0.0.0.0")]
    Serve(serve::ServeArgs),

    /// Train a model from a YAML config.
    ///
    /// Resumes from the last checkpoint, on any number of ranks. SIGINT, SIGTERM, SIGHUP and SIGUSR1 end the
    /// run after the current step, with a checkpoint and exit code 75; run the same command again to resume.
    #[command(after_help = "Examples:
  weightloom train run.yaml
  weightloom train run.yaml --ranks 4 train.accelerator.tp=2 train.optimizer.lr=1e-4
  mpirun -n 4 weightloom train run.yaml       on MPI ranks (build with --features mpi)
  weightloom train run.yaml --dry-run --ranks 1024
  weightloom train run.yaml --dump-config
  weightloom train run.yaml train.optimizer.lr=1e-4 --force-resume
  weightloom train --reference | less")]
    #[command(mut_arg("ranks", |ranks| ranks.help("Number of thread ranks [default: 1]; under mpirun, its processes are the ranks")))]
    Train(train::TrainArgs),

    /// List datasets, and show training data as a run would use it.
    #[command(subcommand)]
    Data(data::DataCommand),

    /// Judge a fine-tuned model against its base.
    #[command(subcommand)]
    Sway(sway::SwayCommand),

    /// Show the log-probability of each token of a text.
    #[command(after_help = "Examples:
  weightloom score smollm2_135m 'The cat sat on the mat'
  weightloom score ./base - --adapter ./my-adapter --json < text.txt | jq .perplexity")]
    Score(score::ScoreArgs),

    /// Tokenize a text.
    #[command(after_help = "Examples:
  weightloom tokenize smollm2_135m 'Hello, world'
  weightloom tokenize ./my-model - --json < text.txt | jq '.tokens | length'")]
    Tokenize(tokenize::TokenizeArgs),

    /// Export a model to a Hugging Face folder.
    #[command(after_help = "Examples:
  weightloom export model-Q8_0.gguf my-model --dtype bf16
  weightloom export ./base merged-model --adapter ./my-adapter")]
    Export(export::ExportArgs),

    /// Print a shell completion script.
    #[command(after_help = "Examples:
  weightloom completions bash > ~/.local/share/bash-completion/completions/weightloom
  weightloom completions zsh > ~/.zfunc/_weightloom
  weightloom completions fish > ~/.config/fish/completions/weightloom.fish")]
    Completions {
        /// The shell.
        shell: Shell,
    },

    /// Write man pages.
    #[command(hide = true)]
    Man(reference::ManArgs),
}

/// How a command uses the processes of an MPI job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MpiUse {
    /// Each process is a rank.
    Ranks,
    /// It runs in one process.
    OneProcess,
}

impl Command {
    fn mpi_use(&self) -> MpiUse {
        match self {
            Self::Gang(_) | Self::DTensor(_) | Self::Generate(_) => MpiUse::Ranks,
            Self::Train(args) if args.uses_ranks() => MpiUse::Ranks,
            Self::Sway(command) if command.uses_ranks() => MpiUse::Ranks,
            _ => MpiUse::OneProcess,
        }
    }
}

/// The ranks of a command.
#[derive(Args)]
struct RankArgs {
    /// Number of thread ranks [default: 4]; under mpirun, its processes are the ranks.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_hint = ValueHint::Other)]
    ranks: Option<usize>,

    /// Seconds after which a rank stops waiting for the others.
    #[arg(long, value_name = "SECONDS", default_value_t = 900, allow_negative_numbers = true, value_hint = ValueHint::Other)]
    timeout: u64,
}

impl RankArgs {
    fn options(&self) -> GangOptions {
        GangOptions { timeout: Duration::from_secs(self.timeout) }
    }
}

/// Runs the command line with the given arguments, of which the first is the
/// name of the program.
///
/// ```
/// use std::process::ExitCode;
///
/// let code = weightloom::cli::run(["weightloom", "layout", "show", "mesh(tp=2) [S(0)]", "--shape", "4"]);
/// assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
/// ```
pub fn run<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> ExitCode {
    app(Registry::standard()).run(arguments)
}

/// Runs a program with the given arguments.
pub(crate) fn run_app(app: &App, arguments: &[OsString]) -> ExitCode {
    stay_silent_about_caught_panics();
    let mut command = app.command();
    let parsed = command.try_get_matches_from_mut(arguments).and_then(|mut matches| {
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    });
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return usage(&error, arguments),
    };
    let output = Output {
        format: if cli.json { Format::Json } else { Format::Text },
        verbosity: if cli.quiet { Verbosity::Quiet } else { Verbosity::Normal },
        program: app.program(),
        listener: None,
    };
    let registry = app.registry();
    if let Err(errors) = registry.check() {
        let failure = Failure::user(&errors);
        output.failure(&failure);
        return ExitCode::from(failure.code());
    }
    if let Err(code) = check_mpi_job(&cli.command, arguments, output) {
        return code;
    }
    let outcome = dispatch(app, cli.command, arguments, output);
    // Status lines are printed where no error can be returned.
    let lost = Output::lost();
    match (outcome, lost) {
        (Ok(code), None) => code,
        (Ok(code), Some(lost)) => {
            output.failure(&lost);
            if code == ExitCode::SUCCESS { ExitCode::from(lost.code()) } else { code }
        }
        (Err(failure), _) => {
            output.failure(&failure);
            ExitCode::from(failure.code())
        }
    }
}

/// Runs a command.
fn dispatch(
    app: &App,
    command: Command,
    arguments: &[OsString],
    output: Output,
) -> Result<ExitCode, Failure> {
    let (registry, program) = (app.registry(), arguments.first().map_or(OsStr::new(""), OsString::as_os_str));
    match command {
        Command::Quickstart(args) => quickstart::run(&args, registry, output, program),
        Command::Doctor => doctor::run(app, output),
        Command::Layout(command) => layout::run(&command, output),
        Command::Gang(command) => gang::run(&command, output),
        Command::DTensor(command) => dtensor::run(&command, output),
        Command::Inspect(args) => inspect::run(&args, registry, output),
        Command::Verify(args) => verify::run_verify(&args, registry, output),
        Command::Sign(args) => sign::run(&args, registry, output),
        Command::Fingerprint(args) => verify::run_fingerprint(&args, registry, output),
        Command::Diff(args) => diff::run(&args, registry, output),
        Command::Data(command) => data::run(&command, registry, output),
        Command::Convert(args) => convert::run(&args, registry, output),
        Command::Plan(args) => plan::run(&args, registry, output),
        Command::Models(command) => models::run(&command, registry, output),
        Command::Fetch(args) => fetch::run(&args, registry, output),
        Command::Generate(args) => generate::run(&args, registry, output),
        Command::Sway(command) => sway::run(&command, registry, output),
        Command::Score(args) => score::run(&args, registry, output),
        Command::Serve(args) => serve::run(&args, registry, output),
        Command::Tokenize(args) => tokenize::run(&args, registry, output),
        Command::Train(args) => train::run(&args, registry, output),
        Command::Export(args) => export::run(&args, registry, output),
        Command::Completions { shell } => reference::completions(app, shell, output),
        Command::Man(args) => reference::man_pages(app, &args, output),
    }
}

/// Runs a command for the program that calls it: results go to the listener as JSON,
/// and nothing is printed. Returns the exit code of a command that did not fail.
pub(crate) fn call_app(
    app: &App,
    arguments: &[OsString],
    listener: Arc<dyn Listener>,
) -> Result<u8, CallError> {
    stay_silent_about_caught_panics();
    let mut command = app.command();
    let parsed = command.try_get_matches_from_mut(arguments).and_then(|mut matches| {
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    });
    let cli = parsed.map_err(|error| Failure::usage(&error))?;
    app.registry().check().map_err(|errors| Failure::user(&errors))?;
    let listening = Listening::new(listener);
    let output = Output {
        format: Format::Json,
        verbosity: Verbosity::Quiet,
        program: app.program(),
        listener: Some(listening.id()),
    };
    Ok(code_number(dispatch(app, cli.command, arguments, output)?))
}

/// The number of an exit code, which does not say it.
pub(crate) fn code_number(code: ExitCode) -> u8 {
    (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(u8::MAX)
}

/// Leaves out panics of parsers that become errors: the errors are printed.
fn stay_silent_about_caught_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panics_are_caught() {
                report(panic);
            }
        }));
    });
}

/// Time for rank 0 to print an error.
const SPEAKING_TIME: Duration = Duration::from_secs(1);

/// Refuses to run a whole command once per process of an MPI job. Only rank 0
/// prints the error.
fn check_mpi_job(command: &Command, arguments: &[OsString], output: Output) -> Result<(), ExitCode> {
    let Some(job) = MpiJob::detect().filter(|job| job.size > 1) else { return Ok(()) };
    let error = match command.mpi_use() {
        MpiUse::Ranks if cfg!(feature = "mpi") => return Ok(()),
        MpiUse::Ranks => LaunchError::BuiltWithoutMpi { rank: job.rank, size: job.size },
        MpiUse::OneProcess => {
            let name = arguments.iter().skip(1).filter_map(|argument| argument.to_str());
            let name = name.into_iter().find(|argument| !argument.starts_with('-')).unwrap_or_default();
            LaunchError::OneProcess { command: name.to_owned(), size: job.size }
        }
    };
    let failure = Failure::from(error);
    match job.rank {
        0 => output.failure(&failure),
        // mpirun ends the job with the first process that exits: let rank 0 speak before.
        _ => std::thread::sleep(SPEAKING_TIME),
    }
    Err(ExitCode::from(failure.code()))
}

/// Prints help and version to stdout, and usage errors to stderr.
fn usage(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    if error.use_stderr() && arguments.iter().any(|argument| argument == "--json") {
        let failure = Failure::usage(error);
        Output::TEXT.with_format(Format::Json).failure(&failure);
        return ExitCode::from(failure.code());
    }
    if error.use_stderr() {
        let text = error.render().to_string();
        // There is no way to report a closed stderr.
        let _ = match escape::escaped(&text) {
            // Names of files come with the arguments.
            Cow::Owned(text) => writeln!(io::stderr().lock(), "{}", text.trim_end()),
            Cow::Borrowed(_) => error.print(),
        };
        return ExitCode::from(2);
    }
    match error.print().and_then(|()| io::stdout().flush()) {
        // Ignore a broken pipe: a reader such as `head` may end early.
        Err(lost) if lost.kind() != io::ErrorKind::BrokenPipe => {
            let failure = Failure::operational(&lost).about("cannot write to stdout");
            Output::TEXT.failure(&failure);
            ExitCode::from(failure.code())
        }
        _ => ExitCode::SUCCESS,
    }
}

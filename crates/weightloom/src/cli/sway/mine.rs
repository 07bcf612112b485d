//! `weightloom sway mine`: where a fine-tuned model differs most, in the user's
//! data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use serde_json::json;
use weightloom::Registry;
use weightloom::hub::adapter_folder;
use weightloom::sway::Suite;
use weightloom::sway::backend::build::check_adapter;
use weightloom::sway::mine::{Candidates, MineError, Mined, Mining, mine, mined_suite};
use weightloom::sway::quick_check::base_of;
use weightloom::sway::runner::CancelFlag;

use super::super::device::DeviceOverride;
use super::super::failure::Failure;
use super::super::hub::{ArgumentError, HubArgs};
use super::super::output::{Output, counted, table};
use super::backend::{BackendArgs, build};
use super::files::{TargetError, check_target, put, relative_to};
use super::interruption::Interruption;
use super::pack::cached;
use super::progress::SuiteProgress;
use super::session::cache_folder;

/// The longest prompt that the table shows, in characters.
const SHOWN: usize = 70;

#[derive(Args)]
pub(in crate::cli) struct MineArgs {
    /// Data: `.jsonl`, `.txt` with one prompt per line, or `.md` with one per paragraph.
    #[arg(value_hint = ValueHint::FilePath)]
    data: PathBuf,

    /// Folder of the adapter, in PEFT's or MLX's format.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    adapter: PathBuf,

    /// Base model [default: the one that adapter_config.json names].
    #[arg(long, value_name = "ID", value_hint = ValueHint::AnyPath)]
    base: Option<String>,

    /// Select this many prompts, at most a quarter of each half.
    #[arg(long, value_name = "N", default_value_t = 16, value_hint = ValueHint::Other)]
    top: usize,

    /// Ask about this many prompts at most, in the order of the file.
    #[arg(long, value_name = "N", default_value_t = 1000, value_hint = ValueHint::Other)]
    limit: usize,

    /// Suite file to write. Its paths are relative to its folder.
    #[arg(long, short, value_name = "FILE", default_value = "mined.yaml", value_hint = ValueHint::FilePath)]
    out: PathBuf,

    /// Replace an existing file.
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    device: DeviceOverride,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Serialize)]
struct MineOutput<'a> {
    written: String,
    prompts: usize,
    /// Prompts beyond `--limit`.
    left_out: usize,
    /// Lines of records without a prompt.
    without_prompt: &'a [usize],
    confirmed: bool,
    #[serde(flatten)]
    mined: &'a Mined,
}

pub(super) fn run(args: &MineArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    if args.out.exists() && !args.overwrite {
        return Err(Failure::user(&TargetError::Exists { file: args.out.display().to_string() }));
    }
    check_target(&args.out)?;
    let adapter = adapter_folder(&args.adapter)?;
    check_adapter("--adapter", &adapter).map_err(|error| Failure::user(&error))?;
    let Some(base) = args.base.clone().or_else(|| base_of(&adapter)) else {
        let fact = format!("`{}` does not name its base model", adapter.display());
        return Err(Failure::user(&ArgumentError {
            fact,
            fix: Some("name the base with --base".to_owned()),
        }));
    };
    let mut data = Candidates::read_file(&args.data).map_err(failed)?;
    let left_out = data.prompts.len().saturating_sub(args.limit);
    data.prompts.truncate(args.limit);
    let suite = suite(&base, &adapter)?;
    let mut backend = build(&suite, &BackendArgs::local(&args.hub, args.device), registry, output)?;
    let mut cache = cache_folder().and_then(|folder| cached(&*backend, &folder));
    let mined = {
        let mut progress = SuiteProgress::new(output);
        let _interruption = Interruption::watch(&progress, output, &CancelFlag::default());
        let top_k = usize::try_from(suite.defaults.top_k).unwrap_or(usize::MAX);
        let mining = Mining { prompts: &data.prompts, top: args.top, top_k, seed: 0 };
        mine(&mining, &mut *backend, cache.as_mut(), &mut progress).map_err(failed)?
    };
    // A base that is a folder is written as a path from the suite.
    let base = if Path::new(&base).exists() { relative_to(&args.out, Path::new(&base)) } else { base };
    put(&args.out, &mined_suite(&mined, &base, &relative_to(&args.out, &adapter)))?;
    let shown = MineOutput {
        written: args.out.display().to_string(),
        prompts: data.prompts.len(),
        left_out,
        without_prompt: &data.without,
        confirmed: mined.is_confirmed(),
        mined: &mined,
    };
    output.show(&shown, text)
}

/// The models as a suite without probes.
fn suite(base: &str, adapter: &Path) -> Result<Suite, Failure> {
    let folder = std::path::absolute(adapter).unwrap_or_else(|_| adapter.to_owned());
    let text = json!({"models": {"base": {"base": base}, "ft": {"base": base, "adapter": folder}}});
    let variable = |name: &str| std::env::var(name).ok();
    Suite::read(&text.to_string(), Path::new("mine"), &variable).map_err(|error| Failure::user(&error))
}

fn failed(error: MineError) -> Failure {
    match &error {
        MineError::Backend(_) => Failure::operational_with_hint(&error),
        _ => Failure::user(&error),
    }
}

fn text(shown: &MineOutput<'_>) -> String {
    let mined = shown.mined;
    let mut table = table(&["divergence", "prompt"], &[0]);
    for one in &mined.selected {
        let flat: String = one.prompt.split_whitespace().collect::<Vec<_>>().join(" ");
        let cut: String = flat.chars().take(SHOWN).collect();
        let more = if cut.len() < flat.len() { "…" } else { "" };
        table.add_row([format!("{:.4}", one.divergence), format!("{cut}{more}")]);
    }
    let mut lines = vec![
        format!(
            "{} that differ most, of one half of the data (its mean: {:.4} nats)",
            counted(mined.selected.len(), "prompt"),
            mined.mean
        ),
        table.to_string(),
    ];
    let verdict = match shown.confirmed {
        true => "confirmed on the other half: prompts with similar words differ more than others",
        false => "NOT confirmed on the other half: prompts with similar words do not differ more than others",
    };
    lines.push(verdict.to_owned());
    lines.push(format!(
        "{:.4} nats after {}, {:.4} after {} others, p = {:.4}",
        mined.predicted_mean,
        counted(mined.predicted.len(), "prompt"),
        mined.others_mean,
        mined.others.len(),
        mined.p_value
    ));
    if !shown.without_prompt.is_empty() {
        let first: Vec<String> = shown.without_prompt.iter().take(5).map(ToString::to_string).collect();
        lines.push(format!(
            "{} without a prompt, from line {}",
            counted(shown.without_prompt.len(), "record"),
            first.join(", ")
        ));
    }
    if shown.left_out > 0 {
        lines.push(format!("{} left out by --limit", counted(shown.left_out, "prompt")));
    }
    if mined.failed > 0 {
        lines.push(format!("{} could not be asked", counted(mined.failed, "prompt")));
    }
    lines.push(format!("wrote {}", shown.written));
    lines.join("\n")
}

//! `weightloom sway gate --same`: whether two checkpoints are the same model.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::{Source, fingerprint};
use weightloom::sway::backend::build::check_adapter;
use weightloom::sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom::sway::sameness::{
    DEFAULT_MARGIN, PromptPair, Sameness, SamenessError, SamenessOutcome, compare, default_prompts,
    next_tokens,
};
use weightloom::sway::{Distribution, View};

use super::super::failure::Failure;
use super::super::hub::ArgumentError;
use super::super::located::OpenedModel;
use super::super::output::Output;
use super::super::progress::Progress;
use super::check::prompts_of;
use super::judge_args::JudgeArgs;
use super::progress::SuiteProgress;

#[derive(Args)]
pub(super) struct SameArgs {
    /// Compare two checkpoints instead of running a suite.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["spec", "threshold"], value_hint = ValueHint::AnyPath)]
    same: Vec<String>,

    /// Apply this adapter to A, for a B that it was merged into.
    #[arg(long, value_name = "ADAPTER", requires = "same", value_hint = ValueHint::DirPath)]
    adapter: Option<String>,

    /// Largest mean divergence, in nats, at which two models count as the same.
    #[arg(long, value_name = "F", requires = "same", default_value_t = DEFAULT_MARGIN, value_hint = ValueHint::Other)]
    margin: f64,

    /// File with one prompt per line [default: built-in prompts].
    #[arg(long, value_name = "FILE", requires = "same", value_hint = ValueHint::FilePath)]
    prompts: Option<PathBuf>,
}

#[derive(Serialize)]
struct SameOutput {
    first: String,
    second: String,
    /// Whether all tensors are bit-identical; none if names or dtypes differ,
    /// so that bits cannot be compared.
    identical: Option<bool>,
    same: bool,
    behaviour: Option<Sameness>,
}

pub(super) fn run(
    args: &SameArgs,
    judge: &JudgeArgs,
    registry: &Registry,
    output: Output,
) -> Result<ExitCode, Failure> {
    let [first, second] = args.same.as_slice() else {
        let fact = "--same takes two checkpoints".to_owned();
        return Err(Failure::user(&ArgumentError { fact, fix: None }));
    };
    if !(args.margin > 0.0 && args.margin.is_finite()) {
        let fact = format!("--margin {} is not a positive number", args.margin);
        return Err(Failure::user(&ArgumentError { fact, fix: Some("give one above 0".to_owned()) }));
    }
    let prompts = match &args.prompts {
        Some(file) => prompts_of(file)?,
        None => default_prompts(),
    };
    let hub = judge.hub(registry)?;
    let one = OpenedModel::open(&hub, first, args.adapter.as_deref(), output)?;
    let other = OpenedModel::open(&hub, second, None, output)?;
    if let Some(adapter) = &one.adapter {
        check_adapter("--adapter", adapter).map_err(|error| Failure::user(&error))?;
    }
    let identical = match (&one.adapter, &other.adapter) {
        (None, None) => identical(one.model.source(), other.model.source(), output)?,
        _ => None,
    };
    let mut shown = SameOutput {
        first: first.clone(),
        second: second.clone(),
        identical,
        same: identical == Some(true),
        behaviour: None,
    };
    if !shown.same {
        // One after the other, so that only one is in memory.
        let before = distributions(one, &prompts, output)?;
        let after = distributions(other, &prompts, output)?;
        let asked: Vec<PromptPair> = prompts
            .iter()
            .zip(before.into_iter().zip(after))
            .map(|(prompt, (first, second))| PromptPair { prompt: prompt.clone(), first, second })
            .collect();
        let found = compare(&asked, args.margin);
        let found =
            found.map_err(|error| Failure::check(format!("cannot compare {first} and {second}: {error}")))?;
        shown.same = found.as_ref().is_some_and(|found| found.outcome == SamenessOutcome::Same);
        shown.behaviour = found;
    }
    output.show(&shown, text)?;
    Ok(if shown.same { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Whether all tensors are bit-identical. Nothing if names or dtypes differ: the
/// same model can be stored in many ways.
fn identical(first: &Source, second: &Source, output: Output) -> Result<Option<bool>, Failure> {
    let names = |source: &Source| -> Vec<_> {
        let tensors = source.index.tensors().iter();
        tensors.map(|(name, entry)| (name.clone(), entry.dtype, entry.shape.clone())).collect()
    };
    if names(first) != names(second) {
        return Ok(None);
    }
    let (one, other) =
        (fingerprint(first, &Progress::new(output))?, fingerprint(second, &Progress::new(output))?);
    Ok(Some(one.fingerprint == other.fingerprint))
}

fn distributions(
    OpenedModel { model, adapter }: OpenedModel,
    prompts: &[String],
    output: Output,
) -> Result<Vec<Distribution>, Failure> {
    let (tuned, view) = match adapter {
        Some(folder) => (Tuned::Adapter(folder), View::Tuned),
        None => (Tuned::None, View::Base),
    };
    let mut backend = LocalBackend::new("hf", model, tuned, LocalOptions::default())
        .map_err(|error| Failure::user(&error))?;
    let found = next_tokens(&mut backend, &view, prompts, &mut SuiteProgress::new(output));
    found.map_err(|error| match &error {
        SamenessError::Backend(error) => Failure::operational_with_hint(error),
        _ => Failure::check(error.to_string()),
    })
}

fn text(shown: &SameOutput) -> String {
    let (first, second) = (&shown.first, &shown.second);
    let Some(found) = &shown.behaviour else {
        return match shown.same {
            true => format!("the same model: all tensors of {first} and {second} are bit-identical"),
            false => format!("cannot compare {first} and {second}: there are no prompts"),
        };
    };
    let verdict = match found.outcome {
        SamenessOutcome::Same => "the same model within the margin",
        SamenessOutcome::Different => "different models",
        SamenessOutcome::Undecided => "undecided: give more prompts with --prompts, or a wider --margin",
    };
    let interval = found.ci_95.map_or_else(String::new, |[low, high]| format!(" [{low:.2e}, {high:.2e}]"));
    format!(
        "{verdict}\n{first} and {second} are {:.2e} nats{interval} apart over {} prompts; the margin is {}\n\
         both rank the same token first after {:.0} % of the prompts\n\
         furthest apart ({:.2e}) after {:?}",
        found.divergence,
        found.prompts,
        found.margin,
        100.0 * found.agreement,
        found.worst.0,
        found.worst.1,
    )
}

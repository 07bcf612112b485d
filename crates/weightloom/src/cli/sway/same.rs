//! `weightloom sway gate --same`: whether two checkpoints are the same model.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::checkpoint::{Source, fingerprint};
use weightloom::hub::Model;
use weightloom::sway::backend::build::check_adapter;
use weightloom::sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom::sway::inquiry::inquire;
use weightloom::sway::packs::Packs;
use weightloom::sway::sameness::{Expectations, Sameness, SamenessOutcome, USUAL_MARGIN, compare};
use weightloom::sway::{AnswerStore, Distribution, Missing, Query, Question, View};

use super::super::failure::Failure;
use super::super::hub::{ArgumentError, Downloads};
use super::super::output::Output;
use super::super::progress::Progress;
use super::check::prompts_of;
use super::judging::JudgingArgs;
use super::screen::Screen;

#[derive(Args)]
pub(super) struct SameArgs {
    /// Instead of a suite: whether two checkpoints are the same model.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["spec", "threshold"], value_hint = ValueHint::AnyPath)]
    same: Vec<String>,

    /// An adapter of A, for a B that it was merged into.
    #[arg(long, value_name = "DIR", requires = "same", value_hint = ValueHint::DirPath)]
    adapter: Option<PathBuf>,

    /// How far apart two models may be and still count as the same: nats of mean divergence.
    #[arg(long, value_name = "F", requires = "same", default_value_t = USUAL_MARGIN, value_hint = ValueHint::Other)]
    margin: f64,

    /// A file with prompts, one to a line [default: prompts of our own].
    #[arg(long, value_name = "FILE", requires = "same", value_hint = ValueHint::FilePath)]
    prompts: Option<PathBuf>,
}

/// What was found of two checkpoints.
#[derive(Serialize)]
struct Answer {
    first: String,
    second: String,
    /// Whether all tensors are the same, bit for bit; none if they have other
    /// names or types, so that bits say nothing.
    identical: Option<bool>,
    same: bool,
    behaviour: Option<Sameness>,
}

pub(super) fn run(args: &SameArgs, judging: &JudgingArgs, output: Output) -> Result<ExitCode, Failure> {
    let [first, second] = args.same.as_slice() else {
        let fact = "two checkpoints are compared".to_owned();
        return Err(Failure::user(&ArgumentError { fact, fix: None }));
    };
    if !(args.margin > 0.0 && args.margin.is_finite()) {
        let fact = format!("a margin of {} leaves nothing between the same and another", args.margin);
        return Err(Failure::user(&ArgumentError { fact, fix: Some("give one above 0".to_owned()) }));
    }
    let prompts = match &args.prompts {
        Some(file) => prompts_of(file)?,
        None => own_prompts(),
    };
    if let Some(adapter) = &args.adapter {
        check_adapter("--adapter", adapter).map_err(|error| Failure::user(&error))?;
    }
    let hub = judging.hub()?;
    let open = |name: &String| -> Result<Model, Failure> { Ok(hub.open(name, &Downloads::new(output))?) };
    let (one, other) = (open(first)?, open(second)?);
    let identical = match args.adapter {
        Some(_) => None,
        None => identical(one.source(), other.source(), output)?,
    };
    let mut answer = Answer {
        first: first.clone(),
        second: second.clone(),
        identical,
        same: identical == Some(true),
        behaviour: None,
    };
    if !answer.same {
        let (tuned, view) = match &args.adapter {
            Some(folder) => (Tuned::Adapter(folder.clone()), View::Tuned),
            None => (Tuned::Nothing, View::Base),
        };
        // One after the other, so that only one is in memory.
        let before = expectations(one, tuned, &view, &prompts, output)?;
        let after = expectations(other, Tuned::Nothing, &View::Base, &prompts, output)?;
        let asked: Vec<Expectations> = prompts
            .iter()
            .zip(before.into_iter().zip(after))
            .map(|(prompt, (first, second))| Expectations { prompt: prompt.clone(), first, second })
            .collect();
        let found = compare(&asked, args.margin);
        let found = found.map_err(|error| Failure::check(format!("{first} and {second}: {error}")))?;
        answer.same = found.as_ref().is_some_and(|found| found.outcome == SamenessOutcome::Same);
        answer.behaviour = found;
    }
    output.show(&answer, text)?;
    Ok(if answer.same { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Prompts that many kinds of text begin with.
fn own_prompts() -> Vec<String> {
    let packs = Packs::own();
    let facts = packs.calibration_pack.iter().map(|(prompt, _)| prompt).take(32);
    packs.check_quick_prompts.iter().chain(&packs.sentinel_prompts).chain(facts).cloned().collect()
}

/// Whether all tensors are the same, bit for bit. Nothing if names or types
/// differ: the same model may be written in many ways.
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

/// What a model expects behind each prompt, over its whole vocabulary.
fn expectations(
    model: Model,
    tuned: Tuned,
    view: &View,
    prompts: &[String],
    output: Output,
) -> Result<Vec<Distribution>, Failure> {
    let mut backend = LocalBackend::new("hf", model, tuned, LocalOptions::default())
        .map_err(|error| Failure::user(&error))?;
    let question =
        |prompt: &String| Question::new(view, Query::Next { prompt: prompt.clone(), top_k: usize::MAX });
    let questions: Vec<Question> = prompts.iter().map(question).collect();
    let mut screen = Screen::quiet(output);
    let answers = inquire(&questions, &mut backend, None, &mut screen)
        .map_err(|error| Failure::operational_with_hint(&error))?;
    let found =
        AnswerStore::all(prompts.iter().map(|prompt| answers.next_token(view, prompt, usize::MAX).cloned()));
    found.map_err(|missing| match missing {
        Missing::Failed(error) => Failure::check(error.to_string()),
        Missing::Pending => Failure::check("a question has no answer".to_owned()),
    })
}

fn text(answer: &Answer) -> String {
    let (first, second) = (&answer.first, &answer.second);
    let Some(found) = &answer.behaviour else {
        return match answer.same {
            true => format!("the same model: all tensors of {first} and {second} are equal, bit for bit"),
            false => format!("{first} and {second} could not be compared: there are no prompts"),
        };
    };
    let verdict = match found.outcome {
        SamenessOutcome::Same => "the same model within the margin",
        SamenessOutcome::Different => "another model",
        SamenessOutcome::Undecided => "undecided: give more prompts with --prompts, or a wider --margin",
    };
    let interval = found.ci_95.map_or_else(String::new, |[low, high]| format!(" [{low:.2e}, {high:.2e}]"));
    format!(
        "{verdict}\n{first} and {second} are {:.2e} nats{interval} apart, over {} prompts; the margin is {}\n\
         they find the same token likeliest behind {:.0} % of the prompts\n\
         furthest apart ({:.2e}) behind {:?}",
        found.divergence,
        found.prompts,
        found.margin,
        100.0 * found.agreement,
        found.worst.0,
        found.worst.1,
    )
}

//! `weightloom quickstart`: trains a small model on several ranks, loads it on
//! others, fine-tunes it, generates text and judges the adapter.
//!
//! All inputs are embedded in the binary. All outputs stay in a folder, with
//! configs that can be run again.

mod folder;
mod judgement;
mod reshard_check;
mod sample;
mod summary;
mod training_run;

use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, ValueHint};

use weightloom::Registry;

use super::device::DeviceArgs;
use super::failure::Failure;
use super::hub::HubArgs;
use super::output::Output;
use super::train::stop_signal;
use folder::{FolderError, TourFolder};
use judgement::judge;
use reshard_check::check_reshard;
use sample::samples;
use summary::Summary;
use training_run::{RunContext, run_config};

/// Ranks of the pretraining, and ranks of all later steps.
const PRETRAIN_RANKS: usize = 4;
const LATER_RANKS: usize = 2;

/// Steps after which the model and its adapter have learned their texts.
const PRETRAIN_STEPS: u64 = 240;
const TUNE_STEPS: u64 = 120;

#[derive(Args)]
pub(super) struct QuickstartArgs {
    /// Output folder; must be new or empty.
    #[arg(long, value_name = "DIR", default_value = "weightloom-quickstart", value_hint = ValueHint::DirPath)]
    dir: String,

    #[command(flatten)]
    device: DeviceArgs,

    /// Steps of each training run, for a fast tour that learns little.
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
}

impl From<FolderError> for Failure {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::Exists { .. } => Self::user(&error),
            FolderError::Write { .. } => Self::operational_with_hint(&error),
        }
    }
}

pub(super) fn run(
    args: &QuickstartArgs,
    registry: &Registry,
    output: Output,
    program: &OsStr,
) -> Result<ExitCode, Failure> {
    let started = Instant::now();
    let folder = TourFolder::create(&args.dir)?;
    let hub = HubArgs::default().hub(registry)?;
    let device = args.device.resolve(0, output)?;
    let context = RunContext { hub: &hub, stop: &stop_signal()?, device: args.device.choice(), output };
    let status = |text: String| output.status(&text);

    let file = folder.pretrain_config(args.steps.unwrap_or(PRETRAIN_STEPS))?;
    let pretrain = run_config(&file, PRETRAIN_RANKS, &context)?;
    status(summary::pretrained(&pretrain, &folder.primer()));

    let certificate = check_reshard(&hub, &pretrain.checkpoint, LATER_RANKS, device)?;
    status(summary::resharded(&certificate, &pretrain));

    let file = folder.tune_config(&pretrain.checkpoint, args.steps.unwrap_or(TUNE_STEPS))?;
    let tune = run_config(&file, LATER_RANKS, &context)?;
    status(summary::tuned(&tune, &folder.kitchen()));

    let samples = samples(&hub, &pretrain.checkpoint, &tune.checkpoint, args.device)?;
    status(summary::sampled(&samples));

    let verdict = judge(&folder, &pretrain.checkpoint, &tune.checkpoint, registry, &context)?;
    status(summary::judged(&verdict));

    let next = summary::next(program, folder.path(), &pretrain, &tune, &verdict);
    let folder = folder.path().to_owned();
    let seconds = started.elapsed().as_secs_f64();
    output.show(
        &Summary { folder, pretrain, certificate, tune, samples, verdict, next, seconds },
        summary::ending,
    )
}

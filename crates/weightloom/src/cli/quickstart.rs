//! `weightloom quickstart`: the whole road in a minute. A small model is trained
//! on several ranks, loaded on others, tuned, asked, and judged.
//!
//! Everything it needs is inside of the program, and everything it makes is
//! left in a folder, with run files that can be run again.

mod certificate;
mod lesson;
mod material;
mod sample;
mod story;
mod verdict;

use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, ValueHint};
use weightloom::errors::Hint;
use weightloom::launch::mpi_job;

use super::failure::Failure;
use super::hub::HubArgs;
use super::output::Output;
use super::train::stop_signal;
use certificate::certify;
use lesson::{Room, learn};
use material::{Material, MaterialError};
use sample::samples;
use story::Story;
use verdict::judge;

/// Ranks that train, and ranks that everything after is done on.
const MANY: usize = 4;
const FEW: usize = 2;

/// Steps after which the model knows its text, and its adapter the other one.
const PRETRAIN_STEPS: u64 = 240;
const TUNE_STEPS: u64 = 120;

#[derive(Args)]
pub(super) struct QuickstartArgs {
    /// The folder for everything that is made. It must be new or empty.
    #[arg(long, value_name = "DIR", default_value = "weightloom-quickstart", value_hint = ValueHint::DirPath)]
    dir: String,

    /// Steps of each run, for a tour that shows the way but learns little.
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
}

/// The tour was started by an MPI launcher.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process is rank {rank} of an MPI job of {size}, but quickstart starts its own ranks")]
struct UnderMpirun {
    rank: String,
    size: String,
}

impl Hint for UnderMpirun {
    fn hint(&self) -> Option<String> {
        Some(
            "start it without mpirun; what it leaves can be trained on with \
             `mpirun -n 4 weightloom train weightloom-quickstart/pretrain.yaml`"
                .to_owned(),
        )
    }
}

impl From<MaterialError> for Failure {
    fn from(error: MaterialError) -> Self {
        match error {
            MaterialError::Taken { .. } => Self::user(&error),
            MaterialError::Write { .. } => Self::operational_with_hint(&error),
        }
    }
}

pub(super) fn run(args: &QuickstartArgs, output: Output) -> Result<ExitCode, Failure> {
    // Each process of a job would otherwise do the whole tour in one folder.
    if let Some((rank, size)) = mpi_job() {
        return Err(Failure::user(&UnderMpirun { rank, size }));
    }
    let begun = Instant::now();
    let material = Material::lay_out(&args.dir)?;
    let hub = HubArgs::default().hub()?;
    let room = Room { hub: &hub, stop: &stop_signal()?, output };
    let say = |text: String| {
        if output == Output::Text {
            // Whoever has seen enough is no reason to end the tour.
            let _ = output.line(&text, String::clone);
        }
    };

    let file = material.pretrain_file(args.steps.unwrap_or(PRETRAIN_STEPS))?;
    let pretrain = learn(&file, MANY, &room)?;
    say(story::pretrained(&pretrain, &material.primer()));

    let certificate = certify(&hub, &pretrain.checkpoint, FEW)?;
    say(story::certified(&certificate, &pretrain));

    let file = material.tune_file(&pretrain.checkpoint, args.steps.unwrap_or(TUNE_STEPS))?;
    let tune = learn(&file, FEW, &room)?;
    say(story::tuned(&tune, &material.kitchen()));

    let samples = samples(&hub, &pretrain.checkpoint, &tune.checkpoint)?;
    say(story::sampled(&samples));

    let verdict = judge(&material, &pretrain.checkpoint, &tune.checkpoint, output)?;
    say(story::judged(&verdict));

    let next = story::next(material.folder(), &pretrain, &tune, &verdict);
    let folder = material.folder().to_owned();
    let seconds = begun.elapsed().as_secs_f64();
    output
        .show(&Story { folder, pretrain, certificate, tune, samples, verdict, next, seconds }, story::ending)
}

//! `weightloom gang`.

use std::process::ExitCode;
use std::time::Instant;

use clap::Subcommand;
use serde::Serialize;
use weightloom::gang::conformance;
use weightloom::launch::Launch;

use super::RankArgs;
use super::failure::Failure;
use super::output::Output;

#[derive(Subcommand)]
pub(super) enum GangCommand {
    /// Run the conformance suite of all collectives and dtypes.
    ///
    /// Run this first on a new cluster. It covers sub-gangs of 1 to 5 ranks, all
    /// neighbours, and all ranks together, and compares every result bit for bit
    /// with a single rank.
    #[command(after_help = "Examples:
  weightloom gang check                  on four thread ranks
  weightloom gang check --ranks 8
  mpirun -n 4 weightloom gang check      on MPI ranks (build with --features mpi)")]
    Check(RankArgs),
}

#[derive(Serialize)]
struct Checked {
    engine: String,
    ranks: usize,
    /// Cases of rank 0.
    cases: usize,
    seconds: f64,
}

pub(super) fn run(command: &GangCommand, output: Output) -> Result<ExitCode, Failure> {
    let GangCommand::Check(ranks) = command;
    let begun = Instant::now();
    let launch = Launch::detect(ranks.ranks, 4)?;
    let checked = launch.run(
        ranks.options(),
        |gang| {
            let summary = conformance::check(&*gang)?;
            Ok::<_, Failure>((gang.engine().to_owned(), gang.size(), summary.cases))
        },
        |failure| output.failure(failure),
    )?;
    let Some((engine, ranks, cases)) = checked else { return Ok(ExitCode::SUCCESS) };
    let checked = Checked { engine, ranks, cases, seconds: begun.elapsed().as_secs_f64() };
    output.show(&checked, |checked| {
        format!(
            "{} ranks ({}) pass the conformance suite: {} cases on rank 0 in {:.1} s",
            checked.ranks, checked.engine, checked.cases, checked.seconds
        )
    })
}

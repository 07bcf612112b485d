//! `weightloom dtensor`.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;
use weightloom::dtensor::check;
use weightloom::gang::{GangOptions, solo};
use weightloom::launch::Launch;

use super::RankArgs;
use super::device::DeviceArgs;
use super::failure::Failure;
use super::output::{Output, table};

/// Tolerance for f32 sums in another order.
const TOLERANCE: f32 = 1e-5;

#[derive(Subcommand)]
pub(super) enum DTensorCommand {
    /// Train a small transformer with every kind of parallelism and compare with one rank.
    ///
    /// Covers data parallelism, tensor parallelism with and without sequence
    /// parallelism, full sharding, and combinations. Every loss must match that of
    /// a single rank within 1e-5.
    #[command(after_help = "Examples:
  weightloom dtensor check                  on four thread ranks
  weightloom dtensor check --ranks 2 --steps 10
  weightloom dtensor check --device cpu
  mpirun -n 4 weightloom dtensor check      on MPI ranks (build with --features mpi)")]
    Check(CheckArgs),
}

#[derive(Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    ranks: RankArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Number of training steps.
    #[arg(long, value_name = "N", default_value_t = 50, value_hint = ValueHint::Other)]
    steps: usize,
}

#[derive(Serialize)]
struct Checked {
    engine: String,
    ranks: usize,
    steps: usize,
    /// The loss of one rank at the first and the last step.
    first_loss: Option<f32>,
    last_loss: Option<f32>,
    arrangements: Vec<Arrangement>,
}

#[derive(Serialize)]
struct Arrangement {
    name: String,
    mesh: String,
    /// The largest difference of any loss, relative to that of one rank.
    apart: f32,
    /// Collectives of rank 0 in one step.
    collectives_per_step: usize,
    /// Bytes that rank 0 received in one step.
    received_per_step: u64,
}

pub(super) fn run(command: &DTensorCommand, output: Output) -> Result<ExitCode, Failure> {
    let DTensorCommand::Check(CheckArgs { ranks, device, steps }) = command;
    let launch = Launch::detect(ranks.ranks, 4)?;
    let checked = launch.run(
        ranks.options(),
        |gang| {
            let device =
                device.resolve(gang.rank(), if gang.rank() == 0 { output } else { output.quiet() })?;
            let outcomes =
                check::run(&gang, device, *steps).map_err(|error| Failure::operational_with_hint(&error))?;
            Ok::<_, Failure>((gang.engine().to_owned(), gang.size(), outcomes))
        },
        |failure| output.failure(failure),
    )?;
    let Some((engine, ranks, outcomes)) = checked else { return Ok(ExitCode::SUCCESS) };
    let alone = check::run(&solo(GangOptions::default()), device.resolve(0, output.quiet())?, *steps);
    let alone = alone.map_err(|error| Failure::operational_with_hint(&error))?;
    let alone = alone.first().map(|outcome| outcome.losses.clone()).unwrap_or_default();
    let arrangements: Vec<Arrangement> = outcomes
        .iter()
        .map(|outcome| Arrangement {
            name: outcome.name.to_owned(),
            mesh: outcome.mesh.to_string(),
            apart: outcome.apart_from(&alone),
            collectives_per_step: outcome.collectives,
            received_per_step: outcome.received,
        })
        .collect();
    let (first_loss, last_loss) = (alone.first().copied(), alone.last().copied());
    let checked = Checked { engine, ranks, steps: *steps, first_loss, last_loss, arrangements };
    let wrong = checked
        .arrangements
        .iter()
        .find(|arrangement| arrangement.apart.is_nan() || arrangement.apart > TOLERANCE);
    if let Some(wrong) = wrong {
        let Arrangement { name, apart, .. } = wrong;
        return Err(Failure::check(format!("{name} differs from one rank by {apart:.1e}")));
    }
    output.show(&checked, text)
}

fn text(checked: &Checked) -> String {
    let mut rows = table(&["arrangement", "mesh", "apart", "collectives/step", "received/step"], &[2, 3, 4]);
    for arrangement in &checked.arrangements {
        rows.add_row([
            arrangement.name.clone(),
            arrangement.mesh.clone(),
            format!("{:.1e}", arrangement.apart),
            arrangement.collectives_per_step.to_string(),
            format!("{:.1} KiB", arrangement.received_per_step as f64 / 1024.0),
        ]);
    }
    let losses = match (checked.first_loss, checked.last_loss) {
        (Some(first), Some(last)) => format!(", loss {first:.3} to {last:.3}"),
        _ => String::new(),
    };
    format!(
        "{rows}\n{} ranks ({}) match one rank: {} steps{losses}",
        checked.ranks, checked.engine, checked.steps
    )
}

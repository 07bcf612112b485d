//! `shardloom quickstart`: what exists today, on real ranks, with its proof.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use shardloom::gang::{Gang, GangError, GangExt, RedistributeError, Redistributor};
use shardloom::launch::Launch;
use shardloom::layout::{
    DType, Layout, LayoutError, Mesh, MeshError, PlanError, Prices, ReduceOp, Region, Shape, check_tiling,
    plan,
};

use super::RankArgs;
use super::failure::Failure;
use super::output::{Output, bytes, table};

/// Large enough to be worth moving, and divisible by nothing convenient.
const ROWS: usize = 3001;
const COLUMNS: usize = 1999;

#[derive(Serialize)]
struct Quickstart {
    engine: String,
    ranks: usize,
    tensor: String,
    stations: Vec<Station>,
    seconds: f64,
}

/// One thing done to the tensor.
#[derive(Serialize)]
struct Station {
    what: String,
    layout: String,
    steps: Vec<String>,
    /// Bytes received by the rank that receives most.
    bytes_per_rank: u64,
    seconds: f64,
}

pub(super) fn run(ranks: &RankArgs, output: Output) -> Result<ExitCode, Failure> {
    let begun = Instant::now();
    let launch = Launch::detect(ranks.ranks, 4)?;
    let shown = launch.run(ranks.options(), tour, |failure| output.failure(failure))?;
    let Some(mut shown) = shown else { return Ok(ExitCode::SUCCESS) };
    shown.seconds = begun.elapsed().as_secs_f64();
    output.show(&shown, text)
}

fn text(shown: &Quickstart) -> String {
    let mut table = table(&["what", "layout", "steps", "received per rank", "time"], &[3, 4]);
    for station in &shown.stations {
        table.add_row([
            station.what.clone(),
            station.layout.clone(),
            station.steps.join("\n"),
            bytes(station.bytes_per_rank),
            format!("{:.1} ms", station.seconds * 1e3),
        ]);
    }
    format!(
        "{} ranks ({}), a {} tensor\n{table}\n\
         Every element on every rank was compared with the tensor it started from: all equal.\n\
         Next: shardloom layout move --help, shardloom gang check, shardloom doctor",
        shown.ranks, shown.engine, shown.tensor
    )
}

/// What every rank does.
fn tour(gang: Arc<dyn Gang>) -> Result<Quickstart, Failure> {
    let shape = Shape::new(&[ROWS, COLUMNS]).map_err(|error| Failure::user(&error))?;
    let mesh = mesh(gang.size())?;
    let at = |placements: &str| -> Result<Layout, Failure> {
        format!("{mesh} {placements}").parse().map_err(|error| Failure::user(&error))
    };
    let sharded = at("[S(0), S(1)]")?;
    let tiles = sharded.tiles(&shape).map_err(user)?;
    check_tiling(&shape, &tiles).map_err(|error| Failure::check(error.to_string()))?;

    let rank = gang.rank();
    let mut traveller = Traveller {
        redistributor: Redistributor::new(Arc::clone(&gang)),
        local: elements(&sharded.region_of(&shape, rank).map_err(user)?),
        layout: sharded,
        stations: vec![Station {
            what: format!("shard over {} ranks, proven to tile", gang.size()),
            layout: sharded.to_string(),
            steps: vec!["each rank makes its own region".to_owned()],
            bytes_per_rank: 0,
            seconds: 0.0,
        }],
        shape,
        gang,
    };
    traveller.go("gather for data parallelism", at("[R, S(1)]")?)?;
    traveller.go("turn columns into rows", at("[R, S(0)]")?)?;

    // Every rank now holds a share of a gradient: its values divided by the
    // number of ranks along the first axis.
    let ways = mesh.axis_size(0) as f64;
    traveller.local.iter_mut().for_each(|value| *value /= ways);
    traveller.layout = at("[P(sum), S(0)]")?;
    traveller.go("sum gradients, keep a shard", at("[S(1), S(0)]")?)?;
    traveller.go("whole tensor everywhere", at("[R, R]")?)?;

    let Traveller { gang, shape, stations, .. } = traveller;
    Ok(Quickstart {
        engine: gang.engine().to_owned(),
        ranks: gang.size(),
        tensor: format!("{shape} {}", DType::F64),
        stations,
        seconds: 0.0,
    })
}

/// Two axes, as square as the number of ranks allows.
fn mesh(ranks: usize) -> Result<Mesh, Failure> {
    let dp = (1..=ranks)
        .take_while(|dp| dp * dp <= ranks)
        .filter(|dp| ranks.is_multiple_of(*dp))
        .last()
        .unwrap_or(1);
    Mesh::new(&[("dp", dp), ("tp", ranks / dp)]).map_err(|error: MeshError| Failure::user(&error))
}

/// The true value of an element: a multiple of every small number of ranks, so
/// that shares of it sum up exactly.
fn truth(row: usize, column: usize) -> f64 {
    const SHARES: f64 = 27_720.0;
    ((row * 31 + column * 7) % 1000) as f64 * SHARES
}

fn elements(region: &Region) -> Vec<f64> {
    region.range(0).flat_map(|row| region.range(1).map(move |column| truth(row, column))).collect()
}

fn user(error: LayoutError) -> Failure {
    Failure::user(&error)
}

/// A tensor on its way through layouts.
struct Traveller {
    gang: Arc<dyn Gang>,
    redistributor: Redistributor,
    shape: Shape,
    layout: Layout,
    local: Vec<f64>,
    stations: Vec<Station>,
}

impl Traveller {
    fn go(&mut self, what: &str, target: Layout) -> Result<(), Failure> {
        let plan = plan(self.layout, target, &self.shape, DType::F64, Prices::default())
            .map_err(|error: PlanError| Failure::user(&error))?;
        let begun = Instant::now();
        let local = std::mem::take(&mut self.local);
        self.local = self
            .redistributor
            .run(&plan, local)
            .map_err(|error: RedistributeError| Failure::operational_with_hint(&error))?;
        let elapsed = begun.elapsed().as_secs_f64();
        self.layout = target;
        self.compare(what)?;
        let received = plan.received(self.gang.rank()).map_err(|error| Failure::user(&error))?;
        let mut most = [received];
        self.gang
            .all_reduce(&mut most, ReduceOp::Max)
            .map_err(|error: GangError| Failure::operational_with_hint(&error))?;
        self.stations.push(Station {
            what: what.to_owned(),
            layout: target.to_string(),
            steps: plan.stages().iter().map(ToString::to_string).collect(),
            bytes_per_rank: most[0],
            seconds: elapsed,
        });
        Ok(())
    }

    /// Compares every element with the tensor it should be.
    fn compare(&self, what: &str) -> Result<(), Failure> {
        let rank = self.gang.rank();
        let region = self.layout.region_of(&self.shape, rank).map_err(user)?;
        if self.local == elements(&region) {
            return Ok(());
        }
        Err(Failure::check(format!("{what}: rank {rank} holds wrong values for {region} of {}", self.layout)))
    }
}

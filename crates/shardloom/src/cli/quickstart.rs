//! `shardloom quickstart`: what exists today, on real ranks, with its proof.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use shardloom::checkpoint::plan::LoadState;
use shardloom::checkpoint::{
    Held, LoadOptions, LocalTensor, SaveOptions, Saver, Source, State, Target, TensorSpec, load,
};
use shardloom::gang::{Gang, GangError, GangExt, RedistributeError, Redistributor};
use shardloom::launch::Launch;
use shardloom::layout::{
    DType, Layout, LayoutError, Mesh, MeshError, PlanError, Prices, ReduceOp, Region, Shape, check_tiling,
    plan,
};

use super::RankArgs;
use super::failure::Failure;
use super::output::{Output, bytes, table};

/// Sizes that are divisible by nothing convenient: large enough to be worth
/// moving, and smaller where many ranks will each hold all of it.
fn sizes(ranks: usize) -> [usize; 2] {
    if ranks <= 8 { [3001, 1999] } else { [307, 211] }
}

#[derive(Serialize)]
struct Quickstart {
    engine: String,
    ranks: usize,
    mesh: String,
    tensor: String,
    stations: Vec<Station>,
    /// Every element on every rank was compared after every move. There is no
    /// report if one differs.
    all_equal: bool,
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
    let mut table = table(&["what", "layout", "steps", "received", "time"], &[3, 4]);
    for station in &shown.stations {
        table.add_row([
            station.what.clone(),
            // The mesh is the same for all and stands in the title.
            station.layout.trim_start_matches(&shown.mesh).trim().to_owned(),
            station.steps.join("\n"),
            bytes(station.bytes_per_rank),
            // A fixed width: the table looks the same however long it took.
            format!("{:>8.1} ms", station.seconds * 1e3),
        ]);
    }
    format!(
        "{} ({}) as {}, a {} tensor\n{table}\n\
         Every element on every rank was compared with the true tensor: all equal.\n\
         Next: shardloom inspect --help, shardloom convert --help, shardloom doctor",
        counted(shown.ranks),
        shown.engine,
        shown.mesh,
        shown.tensor
    )
}

fn counted(ranks: usize) -> String {
    if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") }
}

/// What every rank does.
fn tour(gang: Arc<dyn Gang>) -> Result<Quickstart, Failure> {
    let begun = Instant::now();
    let shape = Shape::new(&sizes(gang.size())).map_err(|error| Failure::user(&error))?;
    let mesh = mesh(gang.size())?;
    let at = |placements: &str| -> Result<Layout, Failure> {
        format!("{mesh} {placements}").parse().map_err(|error| Failure::user(&error))
    };
    let sharded = at("[S(0), S(1)]")?;
    let tiles = sharded.tiles(&shape).map_err(user)?;
    check_tiling(&shape, &tiles).map_err(|error| Failure::check(error.to_string()))?;

    let rank = gang.rank();
    let local = elements(&sharded.region_of(&shape, rank).map_err(user)?);
    let mut traveller = Traveller {
        redistributor: Redistributor::new(Arc::clone(&gang)),
        local,
        layout: sharded,
        stations: vec![Station {
            what: format!("shard over {}, proven to tile", counted(gang.size())),
            layout: sharded.to_string(),
            steps: vec!["each rank makes its own region".to_owned()],
            bytes_per_rank: 0,
            seconds: begun.elapsed().as_secs_f64(),
        }],
        shape,
        gang,
    };
    traveller.go("gather for data parallelism", at("[R, S(1)]")?)?;
    traveller.go("turn columns into rows", at("[R, S(0)]")?)?;

    // Every rank along dp takes a share of a gradient, which only the sum of
    // all shares makes whole.
    let begun = Instant::now();
    let pending = at("[P(sum), S(0)]")?;
    let index = mesh.coordinate(rank).map_err(|error| user(error.into()))?[0];
    let others = (1..mesh.axis_size(0)).sum::<usize>() as f64;
    traveller
        .local
        .iter_mut()
        .for_each(|value| *value = if index == 0 { *value - others } else { index as f64 });
    traveller.layout = pending;
    traveller.stations.push(Station {
        what: "a gradient, pending its sum".to_owned(),
        layout: pending.to_string(),
        steps: vec!["each rank takes a share".to_owned()],
        bytes_per_rank: 0,
        seconds: begun.elapsed().as_secs_f64(),
    });
    traveller.go("sum gradients, keep a shard", at("[S(1), S(0)]")?)?;
    traveller.keep(at("[S(0), R]")?)?;
    traveller.go("whole tensor everywhere", at("[R, R]")?)?;

    let Traveller { gang, shape, stations, .. } = traveller;
    Ok(Quickstart {
        engine: gang.engine().to_owned(),
        ranks: gang.size(),
        mesh: mesh.to_string(),
        tensor: format!("{shape} {}", DType::F64),
        stations,
        all_equal: true,
        seconds: 0.0,
    })
}

/// Two axes: the smallest number of data-parallel groups above one.
fn mesh(ranks: usize) -> Result<Mesh, Failure> {
    let dp = (2..=ranks).find(|dp| ranks.is_multiple_of(*dp)).unwrap_or(1);
    Mesh::new(&[("dp", dp), ("tp", ranks / dp)]).map_err(|error: MeshError| Failure::user(&error))
}

/// The true value of an element: a whole number, so that shares add up exactly.
fn truth(row: usize, column: usize) -> f64 {
    ((row * 31 + column * 7) % 1000) as f64
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

    /// Saves a checkpoint with all ranks, and loads it in another layout.
    fn keep(&mut self, target: Layout) -> Result<(), Failure> {
        let folder = match self.gang.rank() {
            0 => Some(std::env::temp_dir().join(format!("shardloom-quickstart-{}", std::process::id()))),
            _ => None,
        };
        let folder: PathBuf = self
            .gang
            .broadcast_object(folder.as_ref(), 0)
            .map_err(|error: GangError| Failure::operational_with_hint(&error))?;
        let kept = self.keep_in(&folder, target);
        if self.gang.rank() == 0 {
            // Nothing depends on its going.
            let _ = std::fs::remove_dir_all(&folder);
        }
        kept
    }

    fn keep_in(&mut self, folder: &Path, target: Layout) -> Result<(), Failure> {
        let path = folder.join("step_1");
        let spec =
            |layout| TensorSpec { dtype: DType::F64, shape: self.shape.clone(), held: Held::Layout(layout) };
        let begun = Instant::now();
        let mut state = State::new();
        let bytes = self.local.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        state.model("weight", LocalTensor { spec: spec(self.layout), bytes: &bytes });
        let mut saver = Saver::new(Arc::clone(&self.gang))
            .map_err(|error: GangError| Failure::operational_with_hint(&error))?;
        let (plan, _) = saver.plan(&state)?;
        let saved = saver.save(&state, &Target::Folder(path.clone()), &SaveOptions::default(), &())?;
        let exchanged = plan.exchanges.iter().map(|_| "exchange parts for whole rows".to_owned());
        let steps = exchanged.chain(["write in place, sync, commit".to_owned()]);
        self.stations.push(Station {
            what: "save one safetensors file together".to_owned(),
            layout: self.layout.to_string(),
            steps: steps.collect(),
            bytes_per_rank: 0,
            seconds: begun.elapsed().as_secs_f64(),
        });

        let begun = Instant::now();
        let region = target.region_of(&self.shape, self.gang.rank()).map_err(user)?;
        let mut bytes = vec![0; region.volume() * 8];
        let mut wanted = LoadState::new();
        wanted.tensor("weight", spec(target), &mut bytes);
        let source = Source::open(&path)?;
        load(&source, wanted, &*self.gang, &LoadOptions::default(), &())?;
        self.local = bytes.as_chunks().0.iter().map(|&value| f64::from_le_bytes(value)).collect();
        self.layout = target;
        self.compare("load the checkpoint")?;
        self.stations.push(Station {
            what: "load it in another layout, verified".to_owned(),
            layout: target.to_string(),
            steps: vec![format!("fingerprint {}", &saved.fingerprint.to_string()[..8])],
            bytes_per_rank: 0,
            seconds: begun.elapsed().as_secs_f64(),
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

//! Saving, loading and planning checkpoints of a 1B Llama, against raw reads and
//! writes of the same bytes, torch DCP and safetensors.
//!
//! Set `WEIGHTLOOM_PEER_PYTHON` to a Python with torch and safetensors,
//! `WEIGHTLOOM_BENCH_FOLDER` to choose the disk, and `WEIGHTLOOM_BENCH_LAYERS`
//! for a smaller model. Arguments after `--` select the cases whose names
//! contain one of them. Cold reads need permission to drop the page cache;
//! without it they are skipped, and the report says so.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use weightloom_bench::{Against, Goal, Peer, Report, duration, median_time, throughput};
use weightloom_checkpoint::plan::{LoadState, PlanContext, SavePlanner as _, StandardSavePlanner};
use weightloom_checkpoint::{
    CheckpointError, EntryKind, FileSharing, Fingerprint, LoadOptions, LocalTensor, Manifest, ManifestTensor,
    SaveOptions, Saver, Section, Sharding, Source, State, Target, TensorSpec, Verify, chunk_size_for, load,
};
use weightloom_gang::{GangOptions, solo, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};

const ROUNDS: usize = 5;

fn main() -> Result<(), CheckpointError> {
    let filters: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_selected = |name: &str| filters.is_empty() || filters.iter().any(|word| name.contains(word));
    let mut report = Report::new("checkpoint");
    let folder = std::env::var_os("WEIGHTLOOM_BENCH_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("weightloom-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for the files");
    if is_selected("planning") {
        planning(&mut report)?;
        planning_beside_torch(&mut report, &folder)?;
        manifest_size(&mut report);
    }
    if is_selected("one rank") {
        one_rank(&mut report, &folder)?;
    }
    if is_selected("two ranks") {
        two_ranks(&mut report, &folder)?;
    }
    if is_selected("tensor parallel") {
        tensor_parallel(&mut report, &folder)?;
    }
    let _ = fs::remove_dir_all(&folder);
    report.finish();
    Ok(())
}

/// Names and shapes of Llama-3.2-1B with `WEIGHTLOOM_BENCH_LAYERS` layers.
fn tensors() -> Vec<(String, Shape)> {
    let layers =
        std::env::var("WEIGHTLOOM_BENCH_LAYERS").ok().and_then(|text| text.parse().ok()).unwrap_or(16);
    llama(layers, 128_256)
}

fn llama(layers: usize, vocabulary: usize) -> Vec<(String, Shape)> {
    let shape = |dims: &[usize]| Shape::new(dims).expect("a shape");
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), shape(&[vocabulary, 2048]))];
    for layer in 0..layers {
        for (name, dims) in [
            ("self_attn.q_proj", [2048, 2048].as_slice()),
            ("self_attn.k_proj", &[512, 2048]),
            ("self_attn.v_proj", &[512, 2048]),
            ("self_attn.o_proj", &[2048, 2048]),
            ("mlp.gate_proj", &[8192, 2048]),
            ("mlp.up_proj", &[8192, 2048]),
            ("mlp.down_proj", &[2048, 8192]),
            ("input_layernorm", &[2048]),
            ("post_attention_layernorm", &[2048]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape(dims)));
        }
    }
    tensors.push(("model.norm.weight".to_owned(), shape(&[2048])));
    tensors
}

/// The dim that tensor parallelism shards.
fn tensor_parallel_dim(name: &str) -> Option<usize> {
    let rows = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens"];
    if rows.iter().any(|word| name.contains(word)) {
        Some(0)
    } else if name.contains("o_proj") || name.contains("down_proj") {
        Some(1)
    } else {
        None
    }
}

/// A rank's shard of a tensor.
struct Local {
    name: String,
    spec: TensorSpec,
    bytes: Vec<u8>,
}

impl Local {
    /// A zeroed tensor of the same spec.
    fn blank(&self) -> Self {
        let bytes = vec![0; self.bytes.len()];
        Self { name: self.name.clone(), spec: self.spec.clone(), bytes }
    }
}

fn locals(rank: usize, layout: impl Fn(&str) -> Layout) -> Vec<Local> {
    let tensors = tensors().into_iter().enumerate();
    let fill = |number: usize, length: usize| -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (at, word) in bytes.chunks_mut(8).enumerate() {
            let value = (at as u64 ^ (number as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
        bytes
    };
    tensors
        .map(|(number, (name, shape))| {
            let layout = layout(&name);
            let length = layout.region_of(&shape, rank).expect("a part").volume() * 2;
            let spec = TensorSpec { dtype: DType::Bf16, shape, sharding: Sharding::Layout(layout) };
            Local { bytes: fill(number, length), name, spec }
        })
        .collect()
}

fn state(locals: &[Local]) -> State<'_> {
    let mut state = State::new();
    for local in locals {
        state.model(&local.name, LocalTensor { spec: local.spec.clone(), bytes: (&local.bytes).into() });
    }
    state
}

fn wanted(locals: &mut [Local]) -> LoadState<'_> {
    let mut state = LoadState::new();
    for local in locals {
        state.tensor(&local.name, local.spec.clone(), &mut local.bytes);
    }
    state
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let started = Instant::now();
    let result = work();
    (started.elapsed(), result)
}

/// Drops the page cache; `None` if that is not permitted.
fn drop_caches() -> Option<()> {
    // Only clean pages can be dropped.
    let _ = Command::new("sync").status();
    fs::write("/proc/sys/vm/drop_caches", "3").ok()
}

/// Bytes per call; the fastest sizes found.
const WRITE_BYTES: usize = 512 << 10;
const READ_BYTES: usize = 4 << 20;

/// Writes the buffers to a file and syncs it. One thread is faster than two.
fn raw_write(path: &Path, buffers: &[&[u8]]) {
    let file = File::create(path).expect("a file");
    let mut offset = 0;
    for chunk in buffers.iter().flat_map(|buffer| buffer.chunks(WRITE_BYTES)) {
        file.write_all_at(chunk, offset).expect("written");
        offset += chunk.len() as u64;
    }
    file.sync_all().expect("synced");
}

/// Reads a file into the buffers, with two threads.
fn raw_read(path: &Path, buffers: Vec<&mut [u8]>) {
    let file = File::open(path).expect("a file");
    let mut chunks = Vec::new();
    let mut offset = 0;
    for buffer in buffers {
        for chunk in buffer.chunks_mut(READ_BYTES) {
            let length = chunk.len() as u64;
            chunks.push((offset, chunk));
            offset += length;
        }
    }
    let queue = std::sync::Mutex::new(chunks.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("a queue").next();
                    let Some((offset, chunk)) = next else { break };
                    file.read_exact_at(chunk, offset).expect("read");
                }
            });
        }
    });
}

/// Times by case.
#[derive(Default)]
struct Times(BTreeMap<String, Vec<Duration>>);

impl Times {
    fn add(&mut self, name: &str, time: Duration) {
        self.0.entry(name.to_owned()).or_default().push(time);
    }

    fn extend(&mut self, name: &str, time: Option<Duration>) {
        if let Some(time) = time {
            self.add(name, time);
        }
    }

    fn ask(&mut self, peer: Option<&mut Peer>, name: &str, case: &str) {
        if let Some(time) = peer.and_then(|peer| peer.time(case)) {
            self.add(name, time);
        }
    }

    fn median(&self, name: &str) -> Option<Duration> {
        self.0.get(name).map(|times| median_time(&mut times.clone()))
    }

    /// Reports how many times faster than `other` we are.
    fn compare(&self, report: &mut Report, bytes: usize, ours: &str, other: &str, goal: f64) {
        let (Some(mine), Some(theirs)) = (self.median(ours), self.median(other)) else { return };
        let ratio = theirs.as_secs_f64() / mine.as_secs_f64();
        let measured = format!("{} ({})", duration(mine), throughput(bytes, mine));
        let against = if other.starts_with("raw") { Against::floor(other) } else { Against::peer(other) };
        report.compare(ours, against, [&measured, &duration(theirs)], ratio, Goal::AtLeast(goal));
    }
}

fn peer(folder: &Path) -> Option<Peer> {
    let python = std::env::var("WEIGHTLOOM_PEER_PYTHON").ok()?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/torch_checkpoint.py");
    let layers = std::env::var("WEIGHTLOOM_BENCH_LAYERS").unwrap_or_else(|_| "16".to_owned());
    Some(Peer::start_unchanged("torch", Command::new(python).arg(script).arg(folder).arg(layers)))
}

/// One process, against raw reads and writes. Every round runs all cases in a
/// different order, because the disk is faster after a pause.
fn one_rank(report: &mut Report, folder: &Path) -> Result<(), CheckpointError> {
    let layout = Layout::replicated(Mesh::new(&[("dp", 1)]).expect("a mesh"));
    let mut alone = Alone {
        locals: locals(0, |_| layout),
        saver: Saver::new(solo(GangOptions::default()))?,
        folder: folder.to_owned(),
        peer: peer(folder),
    };
    let bytes: usize = alone.locals.iter().map(|local| local.bytes.len()).sum();
    let mut times = Times::default();
    let saves = ["raw write", "save, synced", "DCP save", "safetensors save"];
    for round in 0..ROUNDS {
        for case in shuffled(&saves, round) {
            times.extend(case, alone.save(case)?);
        }
    }
    let mut stall = Vec::new();
    for _ in 0..3 {
        stall.push(alone.save_in_background()?);
    }
    let cold = drop_caches().is_some();
    if !cold {
        report.figure("cold reads", "skipped: no permission to drop the page cache");
    }
    let loads = [
        "load",
        "load, unverified",
        "raw read",
        "load into new memory",
        "raw read into new memory",
        "DCP load",
        "DCP load into new memory",
        "safetensors load",
    ];
    for (word, wanted) in [("cold", cold), ("warm", true)] {
        for round in (0..ROUNDS).filter(|_| wanted) {
            for case in shuffled(&loads, round) {
                // A warm read follows another read of the same file.
                let ready = if word == "cold" { drop_caches() } else { alone.load(case)?.map(drop) };
                if ready.is_some() {
                    times.extend(&format!("{case}, {word}"), alone.load(case)?);
                }
            }
        }
    }
    times.compare(report, bytes, "save, synced", "raw write", 0.95);
    times.compare(report, bytes, "save, synced", "DCP save", 2.0);
    times.compare(report, bytes, "save, synced", "safetensors save", 1.0);
    let stall = median_time(&mut stall);
    let measured = format!("{} ({})", duration(stall), throughput(bytes, stall));
    report.figure("stall of an asynchronous save", &measured);
    for word in ["warm", "cold"] {
        let load = format!("load, {word}");
        let unverified = format!("load, unverified, {word}");
        times.compare(report, bytes, &load, &format!("raw read, {word}"), 0.95);
        times.compare(report, bytes, &unverified, &format!("raw read, {word}"), 0.95);
        let dcp = if word == "warm" { 5.0 } else { 2.0 };
        times.compare(report, bytes, &load, &format!("DCP load, {word}"), dcp);
        let fresh = format!("load into new memory, {word}");
        times.compare(report, bytes, &fresh, &format!("raw read into new memory, {word}"), 0.95);
        times.compare(report, bytes, &fresh, &format!("DCP load into new memory, {word}"), 2.0);
        times.compare(report, bytes, &fresh, &format!("safetensors load, {word}"), 1.0);
    }
    Ok(())
}

/// Shuffles the cases with the round as seed.
fn shuffled<'a>(cases: &[&'a str], round: usize) -> Vec<&'a str> {
    let mut cases = cases.to_vec();
    let mut seed = round as u64 + 1;
    for last in (1..cases.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        cases.swap(last, (seed >> 33) as usize % (last + 1));
    }
    cases
}

/// One process with a model in memory, and a peer with the same model.
struct Alone {
    locals: Vec<Local>,
    saver: Saver,
    folder: PathBuf,
    peer: Option<Peer>,
}

impl Alone {
    fn save(&mut self, case: &str) -> Result<Option<Duration>, CheckpointError> {
        let (raw, ours) = (self.folder.join("raw"), self.folder.join("ours"));
        match case {
            "raw write" => {
                let _ = fs::remove_file(&raw);
                let buffers: Vec<&[u8]> = self.locals.iter().map(|local| local.bytes.as_slice()).collect();
                Ok(Some(timed(|| raw_write(&raw, &buffers)).0))
            }
            "save, synced" => {
                let _ = fs::remove_dir_all(&ours);
                let (state, target) = (state(&self.locals), Target::Folder(ours));
                let (time, saved) = timed(|| self.saver.save(&state, &target, &SaveOptions::default(), &()));
                saved.map(|_| Some(time))
            }
            "DCP save" => Ok(self.peer.as_mut().and_then(|peer| peer.time("save dcp"))),
            _ => Ok(self.peer.as_mut().and_then(|peer| peer.time("save safetensors"))),
        }
    }

    fn save_in_background(&mut self) -> Result<Duration, CheckpointError> {
        let ours = self.folder.join("ours");
        let _ = fs::remove_dir_all(&ours);
        let options = SaveOptions { budget: 8 << 30, ..SaveOptions::default() };
        let target = Target::Folder(ours);
        let stall =
            self.saver.save_async(&state(&self.locals), &target, &options, std::sync::Arc::new(()))?;
        self.saver.wait()?;
        Ok(stall)
    }

    fn load(&mut self, case: &str) -> Result<Option<Duration>, CheckpointError> {
        let (raw, ours) = (self.folder.join("raw"), self.folder.join("ours"));
        let gang = solo(GangOptions::default());
        let load_into = |locals: &mut [Local], verify| {
            let source = Source::open(&ours)?;
            load(&source, wanted(locals), &*gang, &LoadOptions { verify, ..LoadOptions::default() }, &())
        };
        let ask = |peer: &mut Option<Peer>, case| peer.as_mut().and_then(|peer| peer.time(case));
        let (time, loaded) = match case {
            "load" => timed(|| load_into(&mut self.locals, Verify::Checksums)),
            "load, unverified" => timed(|| load_into(&mut self.locals, Verify::Skip)),
            "load into new memory" => {
                let shapes = &self.locals;
                let (time, (fresh, loaded)) = timed(|| {
                    let mut fresh: Vec<Local> = shapes.iter().map(Local::blank).collect();
                    let loaded = load_into(&mut fresh, Verify::Checksums);
                    (fresh, loaded)
                });
                drop(fresh);
                (time, loaded)
            }
            "raw read" => {
                let buffers = self.locals.iter_mut().map(|local| local.bytes.as_mut_slice()).collect();
                return Ok(Some(timed(|| raw_read(&raw, buffers)).0));
            }
            "raw read into new memory" => {
                let (time, fresh) = timed(|| {
                    let mut fresh: Vec<Vec<u8>> =
                        self.locals.iter().map(|local| vec![0; local.bytes.len()]).collect();
                    raw_read(&raw, fresh.iter_mut().map(Vec::as_mut_slice).collect());
                    fresh
                });
                drop(fresh);
                return Ok(Some(time));
            }
            "DCP load" => return Ok(ask(&mut self.peer, "load dcp")),
            "DCP load into new memory" => return Ok(ask(&mut self.peer, "load dcp new")),
            _ => return Ok(ask(&mut self.peer, "load safetensors")),
        };
        loaded.map(|_| Some(time))
    }
}

/// Two ranks save and four load on another mesh; torch does the same with gloo.
fn two_ranks(report: &mut Report, folder: &Path) -> Result<(), CheckpointError> {
    let path = folder.join("two");
    let mut times = Times::default();
    let python = std::env::var("WEIGHTLOOM_PEER_PYTHON").ok();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/torch_checkpoint_ranks.py");
    let rows = |ranks: usize| -> Layout {
        Layout::new(Mesh::new(&[("dp", ranks)]).expect("a mesh"), &[Placement::Shard(0)]).expect("a layout")
    };
    let mixed = |name: &str| -> Layout {
        let mesh = Mesh::new(&[("tp", 4)]).expect("a mesh");
        let placement = tensor_parallel_dim(name).map_or(Placement::Replicate, Placement::Shard);
        Layout::new(mesh, &[placement]).expect("a layout")
    };
    let together =
        |ranks: usize, work: &(dyn Fn(std::sync::Arc<dyn weightloom_gang::Gang>) -> Duration + Sync)| {
            let times = threads::run(ranks, GangOptions::default(), work).expect("ranks");
            times.into_iter().max().unwrap_or_default()
        };
    let mut bytes = 0;
    for _ in 0..3 {
        let _ = fs::remove_dir_all(&path);
        let target = Target::Folder(path.clone());
        let options = SaveOptions { threads: Some(1), ..SaveOptions::default() };
        let time = together(2, &|gang| {
            let locals = locals(gang.rank(), |_| rows(2));
            let mut saver = Saver::new(gang).expect("a saver");
            timed(|| saver.save(&state(&locals), &target, &options, &()).expect("saved")).0
        });
        times.add("two ranks save", time);
        for (name, layout) in
            [("rows", &(|_: &str| rows(4)) as &(dyn Fn(&str) -> Layout + Sync)), ("tensor parallel", &mixed)]
        {
            let time = together(4, &|gang| {
                let mut locals = locals(gang.rank(), layout);
                let options = LoadOptions::default();
                timed(|| {
                    let source = Source::open(&path).expect("a checkpoint");
                    load(&source, wanted(&mut locals), &*gang, &options, &()).expect("loaded");
                })
                .0
            });
            times.add(&format!("four ranks load, {name}"), time);
        }
        let source = Source::open(&path)?;
        bytes = source.index.bytes() as usize;
        if let Some(python) = &python {
            let layers = std::env::var("WEIGHTLOOM_BENCH_LAYERS").unwrap_or_else(|_| "16".to_owned());
            let mut peer = Peer::start_unchanged(
                "torch",
                Command::new(python).arg(script).arg(folder.join("torch")).arg(layers),
            );
            times.ask(Some(&mut peer), "DCP, gloo save", "save");
            times.ask(Some(&mut peer), "DCP, gloo load, rows", "load rows");
            times.ask(Some(&mut peer), "DCP, gloo load, tensor parallel", "load tensor parallel");
        }
    }
    times.compare(report, bytes, "two ranks save", "DCP, gloo save", 2.0);
    times.compare(report, bytes, "four ranks load, rows", "DCP, gloo load, rows", 2.0);
    times.compare(report, bytes, "four ranks load, tensor parallel", "DCP, gloo load, tensor parallel", 2.0);
    let _ = fs::remove_dir_all(folder.join("torch"));
    let _ = fs::remove_dir_all(&path);
    Ok(())
}

/// Bytes that one rank of eight reads, against the bytes it keeps.
fn tensor_parallel(report: &mut Report, folder: &Path) -> Result<(), CheckpointError> {
    let path = folder.join("whole");
    let layout = Layout::replicated(Mesh::new(&[("dp", 1)]).expect("a mesh"));
    let gang = solo(GangOptions::default());
    Saver::new(gang.clone())?.save(
        &state(&locals(0, |_| layout)),
        &Target::Folder(path.clone()),
        &SaveOptions::default(),
        &(),
    )?;
    let mesh = Mesh::new(&[("tp", 8)]).expect("a mesh");
    let source = Source::open(&path)?;
    for rank in [0, 5] {
        let mut wanted = Vec::new();
        for (name, shape) in tensors() {
            let placement = tensor_parallel_dim(&name).map_or(Placement::Replicate, Placement::Shard);
            let layout = Layout::new(mesh, &[placement]).expect("a layout");
            let region = layout.region_of(&shape, rank).expect("a part");
            let bytes = vec![0; region.volume() * 2];
            wanted.push(Local {
                name,
                spec: TensorSpec { dtype: DType::Bf16, shape, sharding: Sharding::Region(region) },
                bytes,
            });
        }
        let (time, loaded) =
            timed(|| load(&source, self::wanted(&mut wanted), &*gang, &LoadOptions::default(), &()));
        let read = loaded?.read;
        let ratio = read.read as f64 / read.delivered as f64;
        let measured = format!("{} bytes, {} reads, {}", read.read, read.requests, duration(time));
        let what = format!("bytes read by rank {rank} of 8");
        let figures = [&*measured, &*read.delivered.to_string()];
        report.compare(&what, Against::floor("bytes kept"), figures, ratio, Goal::AtMost(1.02));
    }
    let _ = fs::remove_dir_all(&path);
    Ok(())
}

/// Planning at a size that torch's coordinator can finish.
fn planning_beside_torch(report: &mut Report, folder: &Path) -> Result<(), CheckpointError> {
    const TENSORS: usize = 200;
    const RANKS: usize = 256;
    let Some(mut peer) = peer(folder) else { return Ok(()) };
    let mesh = Mesh::new(&[("dp", RANKS)]).expect("a mesh");
    let layout = Layout::new(mesh, &[Placement::Shard(0)]).expect("a layout");
    let shape = Shape::new(&[8960, 64]).expect("a shape");
    let bytes = vec![0; 8960 / RANKS * 64 * 2];
    let mut state = State::new();
    for number in 0..TENSORS {
        let spec =
            TensorSpec { dtype: DType::Bf16, shape: shape.clone(), sharding: Sharding::Layout(layout) };
        state.model(format!("t{number}"), LocalTensor { spec, bytes: (&bytes).into() });
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let mut planner = StandardSavePlanner::new();
        let (time, planned) = timed(|| {
            planner.configure(&state, PlanContext { rank: 7, world: RANKS })?;
            planner.derived_plan()
        });
        planned?;
        ours.push(time);
        theirs.extend(peer.time(&format!("plan {TENSORS} {RANKS}")));
    }
    let (ours, theirs) = (median_time(&mut ours), median_time(&mut theirs));
    let what = format!("planning {TENSORS} tensors × {RANKS} ranks");
    let metadata = peer.ask(&format!("metadata {TENSORS} {RANKS}")).unwrap_or_default();
    let reference = format!("{}, {:.1} MB of metadata", duration(theirs), metadata / 1e6);
    let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
    report.compare(&what, Against::peer("DCP"), [&duration(ours), &reference], ratio, Goal::Higher);
    Ok(())
}

/// Size of the manifest of a model with 405 billion parameters in 1,200 tensors,
/// which does not depend on the number of ranks.
fn manifest_size(report: &mut Report) {
    let shape = Shape::new(&[16_384, 20_600]).expect("a shape");
    let total = 1200 * shape.volume() as u64 * 2;
    let chunk_size = chunk_size_for(total);
    let chunks = (shape.volume() as u64 * 2).div_ceil(chunk_size) as usize;
    let tensor = ManifestTensor {
        section: Section::Model,
        kind: EntryKind::Tensor,
        dtype: DType::Bf16,
        shape,
        layout: Some(0),
        fingerprint: Fingerprint(u128::MAX),
        chunks: "0123456789abcdef".repeat(chunks),
    };
    let names = (0..1200).map(|number| format!("model.layers.{number}.self_attn.q_proj.weight"));
    let manifest = Manifest {
        version: 1,
        writer: "weightloom".to_owned(),
        step: Some(1),
        fingerprint: Fingerprint(u128::MAX),
        model: Fingerprint(u128::MAX),
        chunk_size,
        storage: FileSharing::Shared,
        layouts: vec!["mesh(dp=8960) [S(0)]".to_owned()],
        files: Vec::new(),
        tensors: names.map(|name| (name, tensor.clone())).collect(),
        assets: BTreeMap::new(),
        paths: BTreeMap::new(),
        planner_data: None,
        storage_data: BTreeMap::new(),
    };
    let bytes = manifest.to_bytes().expect("a manifest").len();
    let what = "manifest of 1,200 tensors, 405 B parameters";
    let ratio = bytes as f64 / 1e6;
    report.compare(what, Against::Limit, [&format!("{bytes} bytes"), "1 MB"], ratio, Goal::AtMost(1.0));
}

/// Time of one of 8,960 ranks to plan a save of 1,200 tensors.
fn planning(report: &mut Report) -> Result<(), CheckpointError> {
    let mesh = |axes: &[(&str, usize)]| Mesh::new(axes).expect("a mesh");
    let cases: [(&str, Mesh, &[Placement]); 3] = [
        ("sharded", mesh(&[("dp", 8960)]), &[Placement::Shard(0)]),
        ("half sharded", mesh(&[("rdp", 2), ("sdp", 4480)]), &[Placement::Replicate, Placement::Shard(0)]),
        ("tensor parallel", mesh(&[("dp", 1120), ("tp", 8)]), &[Placement::Replicate, Placement::Shard(0)]),
    ];
    for (name, mesh, placements) in cases {
        let layout = Layout::new(mesh, placements).expect("a layout");
        let rank = 4321;
        let mut specs: Vec<(String, TensorSpec)> = Vec::new();
        for (name, shape) in llama(133, 128_256).into_iter().take(1200) {
            specs.push((name, TensorSpec { dtype: DType::Bf16, shape, sharding: Sharding::Layout(layout) }));
        }
        let buffers: Vec<Vec<u8>> = specs
            .iter()
            .map(|(_, spec)| {
                let region = spec.region(rank).expect("a part").expect("inside of the mesh");
                vec![0; region.volume() * 2]
            })
            .collect();
        let mut state = State::new();
        for ((name, spec), bytes) in specs.iter().zip(&buffers) {
            state.model(name, LocalTensor { spec: spec.clone(), bytes: bytes.into() });
        }
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let mut planner = StandardSavePlanner::new();
            let (time, planned) = timed(|| {
                planner.configure(&state, PlanContext { rank, world: 8960 })?;
                planner.derived_plan()
            });
            planned?;
            times.push(time);
        }
        let what = format!("planning 1,200 tensors × 8,960 ranks, {name}");
        report.at_most(&what, median_time(&mut times), Duration::from_millis(200));
    }
    Ok(())
}

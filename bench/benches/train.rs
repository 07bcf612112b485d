//! Training steps against PyTorch and peft, and the cost of an asynchronous save.
//!
//! Every measurement runs in a separate process, ours and theirs in alternation.
//! Set `WEIGHTLOOM_PEER_PYTHON` to a Python with torch, transformers and peft,
//! and `WEIGHTLOOM_BENCH_SMALL` to a Hugging Face folder of SmolLM2-135M in f32.
//! Arguments after `--` select cases: full, lora, f32, bf16, save, shared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use weightloom_bench::{
    Against, Goal, Report, gigabytes, json_f64, json_output, median_f64, peak_memory, seconds,
};
use weightloom_checkpoint::{Saver, Target};
use weightloom_dtensor::DistContext;
use weightloom_gang::{Gang, GangOptions, GangSizes, Gangs, solo, threads};
use weightloom_hub::cards::CardStore;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub, ModelLoadOptions};
use weightloom_layout::DType;
use weightloom_nn::{ActivationCheckpointing, Adapter};
use weightloom_train::checkpointing::{Progress, SaveMode};
use weightloom_train::config::{Accelerator, OptimizerConfig, PipelineSchedule, Precision};
use weightloom_train::engine::{ClipNorm, Engine, EngineSettings, MicroBatch, StepSettings};
use weightloom_train::optimizer::{Patterns, WeightDecay, from_config};
use weightloom_train::pipeline::Schedule;

const ROUNDS: usize = 3;
const ROWS: usize = 4;
const TIME: usize = 128;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--bench")).collect();
    if let [own, case, folder, dtype] = words.as_slice()
        && own == "ours"
    {
        return ours(case, Path::new(folder), dtype);
    }
    let Some(folder) = std::env::var_os("WEIGHTLOOM_BENCH_SMALL").map(PathBuf::from) else { return };
    let wanted = |name: &str| words.is_empty() || words.iter().all(|word| name.contains(word.as_str()));
    let mut report = Report::new("train");
    for case in ["full", "lora"] {
        for (dtype, theirs) in [("f32", "float32"), ("bf16", "bfloat16")] {
            if wanted(&format!("{case} {dtype}")) {
                step(&mut report, &folder, case, [dtype, theirs]);
            }
        }
    }
    if wanted("save") {
        save(&mut report, &folder);
    }
    if wanted("shared") {
        shared(&mut report, &folder);
    }
    report.finish();
}

fn engine(root: Arc<dyn Gang>, folder: &Path, case: &str, dtype: &str) -> Engine {
    let mut families = Families::new();
    weightloom_models::register(&mut families).expect("families differ in name");
    let hub = Hub::new(CardStore::new([]), families, Ok(FetchSettings::in_folders("none", "none")));
    let lora = case == "lora";
    let compute: DType = dtype.parse().expect("a dtype");
    let model = hub.open(&folder.display().to_string(), &()).expect("a model");
    let gangs = Gangs::new(root, &GangSizes::default()).expect("gangs");
    let dist = DistContext::new(Arc::clone(&gangs.root));
    let precision = if compute == DType::F32 { Precision::F32 } else { Precision::Bf16 };
    let usage = Accelerator::default().usage(precision, gangs.sdp.size());
    let options = ModelLoadOptions {
        gangs: Some(gangs.clone()),
        dtype: Some(if lora { compute } else { DType::F32 }),
        usage,
        dist: Some(Arc::clone(&dist)),
        ..ModelLoadOptions::default()
    };
    let decoder = model.load(&options, &()).expect("loaded").model;
    let adapter = lora.then(|| {
        let ends = ["q_proj", "k_proj", "v_proj", "o_proj"];
        let modules: Vec<String> = decoder
            .parameters()
            .iter()
            .filter_map(|(name, _)| name.strip_suffix(".weight"))
            .filter(|module| ends.iter().any(|end| module.ends_with(end)))
            .map(str::to_owned)
            .collect();
        let mut adapter = Adapter::new();
        for module in modules {
            adapter.add_new(&*decoder, &module, 8, 2.0, 0).expect("a module");
        }
        adapter
    });
    let optimizer = OptimizerConfig { lr: 1e-4, ..OptimizerConfig::default() };
    let settings = EngineSettings {
        gangs,
        dist,
        schedule: Arc::new(Schedule::new(PipelineSchedule::default(), 1, 1, 1).expect("a schedule")),
        optimizer: from_config(&optimizer).expect("an optimizer"),
        decay: &WeightDecay::new(&optimizer, []).expect("no patterns"),
        frozen: &Patterns::new("none", &[]).expect("no patterns"),
        checkpointing: ActivationCheckpointing::Off,
        dropout: 0.0,
    };
    Engine::new(settings, vec![(0, decoder, adapter)]).expect("an engine")
}

fn one_step(engine: &mut Engine, number: u64, rows: usize) -> f64 {
    let vocabulary = engine.stages()[0].model.definition().vocabulary();
    let token = |row: usize, place: usize| ((7919 * (row * TIME + place) + 13) % vocabulary) as i64;
    let all = |ahead: usize| {
        (0..rows).flat_map(move |row| (0..TIME).map(move |place| token(row, place + ahead))).collect()
    };
    let batch = MicroBatch { rows, inputs: all(0), targets: all(1), ..MicroBatch::default() };
    let settings = StepSettings { number, learning_rate: 1e-4 };
    engine.step(&settings, &[batch], &mut ClipNorm(1.0)).expect("a step").loss
}

/// Runs one measurement and prints it as a line of JSON.
#[expect(clippy::print_stdout, reason = "the output of a measuring process")]
fn ours(case: &str, folder: &Path, dtype: &str) {
    if case == "shared" {
        let ranks: usize = dtype.parse().expect("a number of ranks");
        println!("{}", memory_of(ranks, folder));
        return;
    }
    let mut engine = engine(solo(GangOptions::default()), folder, case, dtype);
    let (mut times, mut losses) = (Vec::new(), Vec::new());
    for number in 1..=7 {
        let begin = Instant::now();
        losses.push(one_step(&mut engine, number, ROWS));
        times.push(begin.elapsed().as_secs_f64());
    }
    let seconds = median_f64(times.split_off(2));
    let memory = peak_memory();
    let mut stalls = Vec::new();
    if case == "save" {
        let gang = solo(GangOptions::default());
        let mut saver = Saver::new(gang).expect("a saver");
        let folder = std::env::temp_dir().join(format!("weightloom-bench-train-{}", std::process::id()));
        for step in 0..4 {
            let progress = Progress { step, optimizer: "adamw".to_owned(), ..Progress::default() };
            let target = Target::Folder(folder.join(format!("step_{step}")));
            let begin = Instant::now();
            let pace = SaveMode::Background(Arc::new(()));
            engine.save(&mut saver, &target, &progress, BTreeMap::new(), pace).expect("saved");
            let stall = begin.elapsed().as_secs_f64();
            // Steps during the save are slower, which is part of its cost.
            let begin = Instant::now();
            let mut beside = 0;
            while beside < 2 || saver.is_saving() {
                one_step(&mut engine, 8 + step, ROWS);
                beside += 1;
            }
            let slower = begin.elapsed().as_secs_f64() - f64::from(beside) * seconds;
            saver.wait().expect("saved");
            stalls.push(json!({"stall": stall, "slower": slower, "beside": beside}));
        }
        let _ = std::fs::remove_dir_all(folder);
    }
    println!("{}", json!({"seconds": seconds, "peak": memory, "losses": losses, "stalls": stalls}));
}

fn ask_ours(case: &str, folder: &Path, dtype: &str) -> Value {
    let own = std::env::current_exe().expect("this program");
    json_output(Command::new(own).args(["ours", case]).arg(folder).arg(dtype).env("WEIGHTLOOM_THREADS", "2"))
}

fn ask_theirs(case: &str, folder: &Path, dtype: &str) -> Option<Value> {
    let python = std::env::var_os("WEIGHTLOOM_PEER_PYTHON")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/train_torch.py");
    let mut command = Command::new(python);
    command.arg(script).arg(case).arg(folder).args(["--dtype", dtype]);
    Some(json_output(command.env("HF_HUB_OFFLINE", "1")))
}

fn step(report: &mut Report, folder: &Path, case: &str, [dtype, theirs]: [&str; 2]) {
    let (mut own, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.push(ask_ours(case, folder, dtype));
        beside.extend(ask_theirs(case, folder, theirs));
    }
    let of = |all: &[Value], path: &str| median_f64(all.iter().map(|value| json_f64(value, path)).collect());
    if beside.is_empty() {
        report.figure(&format!("{case} step in {dtype}"), &seconds(of(&own, "/seconds")));
        return;
    }
    let (ours, peer) = (of(&own, "/seconds"), of(&beside, "/seconds"));
    let what = format!("{case} step in {dtype}");
    let figures = [&*seconds(ours), &*seconds(peer)];
    report.compare(&what, Against::peer("PyTorch"), figures, peer / ours, Goal::AtLeast(1.2));
    let (ours, peer) = (of(&own, "/peak"), of(&beside, "/peak"));
    let figures = [&*gigabytes(ours), &*gigabytes(peer)];
    let memory = format!("{what}, peak memory");
    report.compare(&memory, Against::peer("PyTorch"), figures, ours / peer, Goal::AtMost(0.7));
    let deviation = (0..7)
        .map(|step| format!("/losses/{step}"))
        .map(|path| (json_f64(&own[0], &path) / json_f64(&beside[0], &path) - 1.0).abs())
        .fold(0.0, f64::max);
    report.figure(&format!("{what}, largest relative difference of losses"), &format!("{deviation:.1e}"));
}

/// Peak bytes of tensors of all ranks in full training with one row per rank,
/// and the figures to compare them with.
fn memory_of(ranks: usize, folder: &Path) -> Value {
    let all = threads::run(ranks, GangOptions::default(), |root| {
        let mut engine = engine(root, folder, "full", "f32");
        for number in 1..=2 {
            one_step(&mut engine, number, 1);
        }
        let stage = &engine.stages()[0].model;
        let sizes = stage.parameters().iter().map(|(_, value)| 4 * value.shape().volume() as u64);
        (sizes.clone().sum::<u64>(), sizes.max().unwrap_or(0))
    });
    let (weights, largest) = all.expect("no rank panics")[0];
    json!({
        "high_water": weightloom_tensor::memory::statistics().high_water,
        "states": 4 * weights,
        "largest": largest,
    })
}

/// Memory of a rank that shards everything with three others, against a quarter
/// of weights, gradients and moments, the largest gathered parameter, and the
/// activations of one row.
fn shared(report: &mut Report, folder: &Path) {
    let (alone, four) = (ask_ours("shared", folder, "1"), ask_ours("shared", folder, "4"));
    let states = json_f64(&alone, "/states");
    let activations = json_f64(&alone, "/high_water") - states;
    let bound = states / 4.0 + json_f64(&alone, "/largest") + activations;
    let each = json_f64(&four, "/high_water") / 4.0;
    let megabytes = |bytes: f64| format!("{:.0} MB", bytes / 1e6);
    let what = "memory of one of 4 ranks; limit: a quarter of the states, the largest parameter, activations";
    let figures = [&*megabytes(each), &*megabytes(bound)];
    report.compare(what, Against::Limit, figures, each / bound, Goal::AtMost(1.0));
}

/// The cost of an asynchronous save every hundred steps.
fn save(report: &mut Report, folder: &Path) {
    let found = ask_ours("save", folder, "f32");
    let step = json_f64(&found, "/seconds");
    // The first save allocates memory that the others reuse.
    let later =
        |path: &str| median_f64((1..4).map(|at| json_f64(&found, &format!("/stalls/{at}/{path}"))).collect());
    let (stall, slower) = (later("stall"), later("slower"));
    let (what, limit) = ("stall of an asynchronous save; limit: 5 % of 100 steps", 5.0 * step);
    let figures = [&*seconds(stall), &*seconds(limit)];
    report.compare(what, Against::Limit, figures, stall / limit, Goal::AtMost(1.0));
    report.figure("one step, without a save", &seconds(step));
    report.figure("slowdown of the steps during an asynchronous save", &seconds(slower.max(0.0)));
}

//! Training steps and kernels on a GPU, with what each step spends its time on.
//!
//! Arguments after `--` select the cases whose names contain one of them. Set
//! `WEIGHTLOOM_PEER_PYTHON` to a Python with torch to run `peers/torch_gpu.py` beside.
//! Shapes are those of Llama 3.2 1B: 8 rows of 2,048 tokens.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use weightloom_bench::{Against, Goal, Report, json_f64, json_output};
use weightloom_dtensor::{DistContext, DistOptions};
use weightloom_gang::{GangOptions, GangSizes, Gangs, solo};
use weightloom_hub::{ModelLoadOptions, new_model};
use weightloom_layout::DType;
use weightloom_nn::{
    Activation, ActivationCheckpointing, Adapter, AttentionConfig, DecoderConfig, Gating, HeadConfig,
    MlpConfig, NormConfig, NormKind, Parallel, PositionConfig, ResidualForm, RopeConfig, Usage,
};
use weightloom_tensor::{
    AdamW, Attention, CrossEntropy, Device, DeviceChoice, Moments, RopeStyle, Stream, Tensor, TensorError,
    WorkSpan, backward, begin_profile, end_profile, memory,
};
use weightloom_train::config::{OptimizerConfig, PipelineSchedule};
use weightloom_train::engine::{ClipNorm, Engine, EngineSettings, MicroBatch, StepSettings};
use weightloom_train::optimizer::{Patterns, WeightDecay, from_config};
use weightloom_train::pipeline::Schedule;

type Outcome<T> = Result<T, TensorError>;

const ROWS: usize = 8;
const TIME: usize = 2048;

/// Steps before a measurement, and steps measured.
const WARM: u64 = 3;
const MEASURED: u64 = 5;

/// Bytes per second of a large copy on the H200, for the share of each kernel.
const COPY_RATE: f64 = 4.3e12;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--bench")).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let Ok(chosen) = DeviceChoice::Cuda(None).resolve(0) else { return Ok(()) };
    let device = chosen.device;
    let mut report = Report::new("gpu");
    if wanted("kernels") {
        kernels(&mut report, device)?;
        memory::release_of(device)?;
    }
    if wanted("attention") {
        attention(&mut report, device)?;
        memory::release_of(device)?;
    }
    for case in ["full", "lora"].into_iter().filter(|case| wanted(case)) {
        let ours = steps(&mut report, case, device)?;
        memory::release_of(device)?;
        if let Some(theirs) = peer(case) {
            compare(&mut report, case, ours, &theirs);
        }
    }
    report.finish();
    Ok(())
}

/// What torch does with the same shapes, if there is one.
fn peer(case: &str) -> Option<Value> {
    let python = std::env::var_os("WEIGHTLOOM_PEER_PYTHON")?;
    // Another folder than that of the build, on a machine without cargo.
    let folder =
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let script = format!("{folder}/peers/torch_gpu.py");
    Some(json_output(Command::new(python).args([&script, case])))
}

fn compare(report: &mut Report, case: &str, [rate, peak]: [f64; 2], theirs: &Value) {
    let (peer_rate, peer_peak) = (json_f64(theirs, "/tokens_per_second"), json_f64(theirs, "/peak"));
    let rates = [&*format!("{rate:.0}"), &*format!("{peer_rate:.0}")];
    let what = format!("{case}, tokens per second");
    report.compare(&what, Against::peer("torch"), rates, rate / peer_rate, Goal::AtLeast(1.0));
    let peaks = [&*gigabytes(peak), &*gigabytes(peer_peak)];
    let goal = if case == "full" { 0.73 } else { 0.8 };
    let what = format!("{case}, peak memory of tensors");
    report.compare(&what, Against::peer("torch"), peaks, peak / peer_peak, Goal::AtMost(goal));
}

fn gigabytes(bytes: f64) -> String {
    format!("{:.1} GB", bytes / 1e9)
}

fn llama() -> DecoderConfig {
    DecoderConfig {
        vocabulary: 128_256,
        hidden: 2048,
        layers: 16,
        max_positions: TIME,
        attention: AttentionConfig {
            heads: 32,
            kv_heads: 8,
            width: 64,
            scale: None,
            input_bias: false,
            output_bias: false,
            qk_norm: None,
            window: None,
            soft_cap: None,
            latent: None,
            temperature: None,
        },
        positions: PositionConfig::Rope(RopeConfig::default()),
        norm: NormConfig { kind: NormKind::Rms, eps: 1e-5, offset: 0.0 },
        residual: ResidualForm::Before,
        mlp: MlpConfig { inner: 8192, activation: Activation::Silu, gating: Gating::Gated, bias: false },
        experts: None,
        embedding_scale: None,
        head: HeadConfig { tied: true, bias: false, soft_cap: None },
        initializer: 0.02,
    }
}

fn engine(case: &str, device: Device) -> Engine {
    let lora = case == "lora";
    let gangs = Gangs::new(solo(GangOptions::default()), &GangSizes::default()).expect("gangs");
    let options = DistOptions { device, ..DistOptions::default() };
    let dist = DistContext::with_options(Arc::clone(&gangs.root), options);
    let options = ModelLoadOptions {
        gangs: Some(gangs.clone()),
        dtype: Some(if lora { DType::Bf16 } else { DType::F32 }),
        usage: Usage { dtype: Some(DType::Bf16), ..Usage::default() },
        dist: Some(Arc::clone(&dist)),
        ..ModelLoadOptions::default()
    };
    let decoder = new_model(&llama(), &Parallel::default(), 7, &options).expect("a model");
    let adapter = lora.then(|| {
        let ends = ["q_proj", "k_proj", "v_proj", "o_proj"];
        let names = decoder.parameters().iter().filter_map(|(name, _)| name.strip_suffix(".weight"));
        let modules = names.filter(|module| ends.iter().any(|end| module.ends_with(end)));
        let mut adapter = Adapter::new();
        for module in modules {
            adapter.add_new(&*decoder, module, 16, 2.0, 0).expect("a module");
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

fn one_step(engine: &mut Engine, number: u64) -> f64 {
    let token = |place: usize| ((7919 * (place + 31 * number as usize) + 13) % 128_256) as i64;
    let all = |ahead: usize| (0..ROWS * TIME).map(|place| token(place + ahead)).collect();
    let batch = MicroBatch { rows: ROWS, inputs: all(0), targets: all(1), ..MicroBatch::default() };
    let settings = StepSettings { number, learning_rate: 1e-4 };
    engine.step(&settings, &[batch], &mut ClipNorm(1.0)).expect("a step").loss
}

/// Tokens per second and peak bytes of tensors.
fn steps(report: &mut Report, case: &str, device: Device) -> Outcome<[f64; 2]> {
    let mut engine = engine(case, device);
    let mut losses: Vec<f64> = (1..=WARM).map(|number| one_step(&mut engine, number)).collect();
    memory::reset_high_water_of(device)?;
    let begin = Instant::now();
    losses.extend((WARM + 1..=WARM + MEASURED).map(|number| one_step(&mut engine, number)));
    let seconds = begin.elapsed().as_secs_f64() / MEASURED as f64;
    let statistics = memory::statistics_of(device)?;
    let peak = statistics.high_water as f64;
    begin_profile(device)?;
    one_step(&mut engine, WARM + MEASURED + 1);
    let spans = end_profile(device)?;
    let rate = (ROWS * TIME) as f64 / seconds;
    report.figure(&format!("{case} step"), &format!("{:.1} ms, {rate:.0} tokens/s", seconds * 1e3));
    let held = (statistics.cached + statistics.in_use) as f64;
    report.figure(
        &format!("{case} step, peak memory of tensors; with the cache"),
        &format!("{}, {}", gigabytes(peak), gigabytes(held)),
    );
    report.figure(
        &format!("{case} step, losses"),
        &format!("{:.4} {:.4}", losses[0], losses[losses.len() - 1]),
    );
    breakdown(report, case, &spans);
    Ok([rate, peak])
}

/// The kernels that take most of a step.
fn breakdown(report: &mut Report, case: &str, spans: &[WorkSpan]) {
    let mut kernels: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for span in spans {
        let kernel = kernels.entry(&span.name).or_default();
        *kernel = (kernel.0 + 1, kernel.1 + span.seconds);
    }
    let busy: f64 = spans.iter().map(|span| span.seconds).sum();
    let whole = spans.last().map_or(0.0, |last| last.start + last.seconds)
        - spans.first().map_or(0.0, |first| first.start);
    let mut sorted: Vec<_> = kernels.into_iter().collect();
    sorted.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    for (name, (count, seconds)) in sorted.iter().take(24) {
        report.figure(&format!("{case} step: {name}"), &format!("{:.2} ms in {count}", seconds * 1e3));
    }
    let idle = format!("{:.2} of {:.2} ms in {} launches", (whole - busy) * 1e3, whole * 1e3, spans.len());
    report.figure(&format!("{case} step: idle, with a profile"), &idle);
}

/// Seconds of some work on the device: the median of several times, each kernel alone.
fn measured(device: Device, mut work: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    work()?;
    let mut times = Vec::new();
    for _ in 0..7 {
        begin_profile(device)?;
        work()?;
        times.push(end_profile(device)?.iter().map(|span| span.seconds).sum::<f64>());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn attention(report: &mut Report, device: Device) -> Outcome<()> {
    let options = Attention { causal: true, ..Attention::default() };
    for (heads, kv_heads, width, rows) in [(32, 8, 64, 8), (32, 8, 128, 4), (16, 16, 96, 4), (8, 8, 256, 4)] {
        let random = |heads: usize, number| -> Outcome<Tensor> {
            let x = Tensor::normal(DType::Bf16, &[rows, TIME, heads, width], Stream { seed: 1, number }, 0)?;
            x.to(device)?.transpose(1, 2)
        };
        let (q, k, v) = (random(heads, 0)?, random(kv_heads, 1)?, random(kv_heads, 2)?);
        let gradient = random(heads, 3)?;
        let flops = (4 * rows * heads * TIME * TIME * width) as f64 / 2.0;
        let forward = measured(device, || q.attention(&k, &v, options).map(drop))?;
        let both = measured(device, || {
            let [q, k, v] = [&q, &k, &v].map(|x| x.detach().requires_grad());
            backward([(q.attention(&k, &v, options)?, Some(gradient.clone()))]).map(drop)
        })?;
        let name = format!("attention {rows} × {heads}/{kv_heads} × {TIME} × {width}");
        report.figure(&format!("{name}, forward"), &format!("{:.0} TFLOP/s", flops / forward / 1e12));
        let backward = 2.5 * flops / (both - forward) / 1e12;
        report.figure(&format!("{name}, backward"), &format!("{backward:.0} TFLOP/s"));
    }
    Ok(())
}

/// Kernels that move memory, as shares of what a copy reaches.
fn kernels(report: &mut Report, device: Device) -> Outcome<()> {
    const TOKENS: usize = ROWS * TIME;
    let random = |dtype: DType, dims: &[usize]| {
        Tensor::normal(dtype, dims, Stream { seed: 1, number: 0 }, 0)?.to(device)
    };
    let half = |columns: usize| random(DType::Bf16, &[TOKENS, columns]);
    let (x, gradient, weight) = (half(2048)?, half(2048)?, random(DType::Bf16, &[2048])?);
    let (gate, up, of_inner) = (half(8192)?, half(8192)?, half(8192)?);
    let mut all: Vec<(&str, f64, f64)> = Vec::new();
    let size = |x: &Tensor| (x.shape().volume() * x.dtype().size()) as f64;
    let mut case = |name: &'static str, bytes: f64, seconds: f64| all.push((name, bytes, seconds));
    case("swiglu", 3.0 * size(&gate), measured(device, || gate.swiglu(&up).map(drop))?);
    let both = measured(device, || {
        let [a, b] = [&gate, &up].map(|x| x.detach().requires_grad());
        backward([(a.swiglu(&b)?, Some(of_inner.clone()))]).map(drop)
    })?;
    case("swiglu and its gradient", 8.0 * size(&gate), both);
    case("rms_norm", 2.0 * size(&x), measured(device, || x.rms_norm(&weight, 1e-5).map(drop))?);
    let both = measured(device, || {
        let [x, weight] = [&x, &weight].map(|x| x.detach().requires_grad());
        backward([(x.rms_norm(&weight, 1e-5)?, Some(gradient.clone()))]).map(drop)
    })?;
    case("rms_norm and its gradient", 5.0 * size(&x), both);
    case("add", 3.0 * size(&x), measured(device, || x.add(&gradient).map(drop))?);
    let heads = random(DType::Bf16, &[ROWS, TIME, 32, 64])?.transpose(1, 2)?;
    let table = random(DType::F32, &[TIME, 32])?;
    let rope = measured(device, || heads.rope(&table, &table, RopeStyle::Half).map(drop))?;
    case("rope", 2.0 * size(&heads), rope);
    let wide = random(DType::F32, &[TOKENS, 2048])?;
    case("cast f32 to bf16", 1.5 * size(&wide), measured(device, || wide.cast(DType::Bf16).map(drop))?);
    let mut parameter = wide;
    let mut moments = Moments::zero(&parameter)?;
    let adamw = measured(device, || AdamW::default().step(1, &mut parameter, &gradient, &mut moments))?;
    case("adamw f32 with bf16 gradients", 6.5 * size(&parameter), adamw);
    let norm = measured(device, || weightloom_tensor::global_norm(&[&x]).map(drop))?;
    case("norm of gradients", size(&x), norm);
    let targets: Vec<i64> = (0..4096).map(|row| row * 31 % 128_256).collect();
    let targets = Tensor::from_slice(&targets, &[4096])?.to(device)?;
    let (hidden, head) = (x.narrow(0, 0, 4096)?, random(DType::Bf16, &[128_256, 2048])?);
    begin_profile(device)?;
    for _ in 0..2 {
        let hidden = hidden.detach().requires_grad();
        let loss = hidden.projected_cross_entropy(&head, &targets, CrossEntropy::default())?;
        drop(backward([(loss, None)])?);
    }
    let spans = end_profile(device)?;
    let loss = spans
        .iter()
        .rfind(|span| span.name.starts_with("loss_and_gradient"))
        .map_or(0.0, |span| span.seconds);
    case("cross-entropy and its gradient, three passes", 3.0 * 4096.0 * 128_256.0 * 2.0, loss);
    for (name, bytes, seconds) in all {
        let rate = bytes / seconds;
        let figures = [&*format!("{:.2} TB/s", rate / 1e12), &*format!("{:.2} TB/s", COPY_RATE / 1e12)];
        report.compare(
            name,
            Against::Floor("a copy".to_owned()),
            figures,
            rate / COPY_RATE,
            Goal::AtLeast(0.85),
        );
    }
    Ok(())
}

//! The same run as PyTorch's: every loss and every norm, from the same weights.
//!
//! `fixtures/torch_run.py` says what is trained: transformers' Llama and peft's
//! LoRA, with AdamW, clipped gradients, a warmup, a cosine, and two
//! micro-batches whose targets are not equally many.

use std::path::PathBuf;
use std::sync::Arc;

use crate::device::{device, package_folder};
use crate::setup::{Recipe, Setup, Trained, Trainer, Weights, models};
use serde::Deserialize;
use weightloom_checkpoint::{ReadOptions, ReadRequest, Source, read};
use weightloom_gang::{GangOptions, threads};
use weightloom_layout::{DType, Region};
use weightloom_nn::{AttentionConfig, DecoderConfig, MlpConfig};
use weightloom_tensor::{HostMemory, Tensor};
use weightloom_train::config::{OptimizerConfig, ScheduleConfig};
use weightloom_train::engine::StepResult;
use weightloom_train::schedule::LearningRate;

#[derive(Deserialize)]
struct Fixture {
    rows: usize,
    micros: usize,
    rate: f64,
    lora_rate: f64,
    warmup: u64,
    scale: f64,
    /// Inputs and targets.
    batches: Vec<[Vec<i64>; 2]>,
    /// Loss and norm of each step.
    full: Vec<[f64; 2]>,
    lora: Vec<[f64; 2]>,
}

fn path(name: &str) -> PathBuf {
    package_folder(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn fixture() -> Fixture {
    serde_json::from_slice(&std::fs::read(path("torch_run.json")).unwrap()).unwrap()
}

fn config() -> DecoderConfig {
    let base = models::llama();
    DecoderConfig {
        vocabulary: 96,
        hidden: 32,
        layers: 2,
        attention: AttentionConfig { heads: 4, kv_heads: 2, width: 8, ..base.attention },
        mlp: MlpConfig { inner: 56, ..base.mlp },
        ..base
    }
}

/// Everything as the script has it; only who does what may differ.
fn run(fixture: &Fixture, how: &Setup, trained: &Trained) -> Vec<StepResult> {
    let (rate, steps) = match trained {
        Trained::Weights => (fixture.rate, fixture.full.len()),
        _ => (fixture.lora_rate, fixture.lora.len()),
    };
    let optimizer = OptimizerConfig { betas: [0.9, 0.95], weight_decay: 0.1, ..OptimizerConfig::default() };
    let recipe =
        Recipe { config: config(), trained: trained.clone(), optimizer, ema: None, device: device() };
    let schedule = ScheduleConfig { warmup_steps: fixture.warmup, ..ScheduleConfig::default() };
    let rates = LearningRate::new(rate, &schedule, steps as u64).unwrap();
    let all = threads::run(how.ranks, GangOptions::default(), |root| {
        let source = Source::open(path("torch_run.safetensors")).unwrap();
        let mut trainer = Trainer::new(root, &recipe, how, Weights::Of(&source));
        let step = |number: u64| {
            let [inputs, targets] = &fixture.batches[(number as usize - 1) % fixture.batches.len()];
            trainer.step_with(number, rates.at(number), inputs, targets, fixture.rows)
        };
        (1..=steps as u64).map(step).collect::<Vec<_>>()
    });
    all.unwrap().remove(0)
}

/// The greatest share by which a loss or a norm is off.
fn off(found: &[StepResult], expected: &[[f64; 2]]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found
        .iter()
        .zip(expected)
        .flat_map(|(found, expected)| [(found.loss, expected[0]), (found.gradient_norm, expected[1])]);
    let shares = pairs.map(|(found, expected)| (found / expected - 1.0).abs());
    shares.map(|share| if share.is_nan() { f64::INFINITY } else { share }).fold(0.0, f64::max)
}

fn check(trained: &Trained) {
    let fixture = fixture();
    let expected = if matches!(trained, Trained::Weights) { &fixture.full } else { &fixture.lora };
    let hows = [
        Setup::single().micro_batches(fixture.micros),
        Setup::ranks(2).fsdp(2).reshard_after_forward().checkpointed().micro_batches(fixture.micros),
        Setup::ranks(2).tp(2).sequence_parallel(),
        Setup::ranks(2).pp(2).one_f_one_b().micro_batches(fixture.micros),
    ];
    for how in &hows {
        let found = run(&fixture, how, trained);
        let most = off(&found, expected);
        println!("{most:.1e} from PyTorch with {how:?}");
        assert!(most < 1e-3, "{how:?}: {most:.1e} from PyTorch");
    }
}

#[test]
fn a_model_trains_as_with_pytorch() {
    check(&Trained::Weights);
}

#[test]
fn an_adapter_trains_as_with_peft() {
    let source = Source::open(path("torch_run_lora.safetensors")).unwrap();
    let tensors = source.index.tensors();
    let whole = |name: &str| -> Tensor {
        let entry = &tensors[name];
        let mut memory = HostMemory::new(DType::F32, &entry.shape).unwrap();
        let region = Region::whole(&entry.shape);
        let want = ReadRequest { name, entry, region, dtype: DType::F32, into: memory.bytes_mut() };
        read(&source, vec![want], &ReadOptions::default(), &()).unwrap();
        memory.into_tensor()
    };
    let matrices: Vec<(String, [Tensor; 2])> = tensors
        .keys()
        .filter_map(|name| name.strip_suffix(".lora_A.weight"))
        .map(|module| {
            let [a, b] = ["A", "B"].map(|which| whole(&format!("{module}.lora_{which}.weight")));
            (module.trim_start_matches("base_model.model.").to_owned(), [a, b])
        })
        .collect();
    assert_eq!(matrices.len(), 8, "four projections of two layers");
    check(&Trained::Adapter(Arc::new(matrices), fixture().scale));
}

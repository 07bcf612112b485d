//! The memory that a dry run predicts, beside what the allocator gives out. One
//! test, because the allocator's figures are those of the whole process.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

#[path = "it/setup/models.rs"]
mod models;

use std::sync::Arc;

use serde_json::json;
use weightloom_dtensor::DistContext;
use weightloom_gang::{GangOptions, GangSizes, Gangs, solo};
use weightloom_hub::{ModelLoadOptions, new_model};
use weightloom_layout::DType;
use weightloom_nn::{
    ActivationCheckpointing, AttentionConfig, DecoderConfig, ForwardArgs, Input, MlpConfig, Parallel, Stage,
};
use weightloom_tensor::memory;
use weightloom_train::Extensions;
use weightloom_train::config::{Config, PipelineSchedule};
use weightloom_train::dry_run::{self, DryRunSettings, MemoryReport, StageReport};
use weightloom_train::engine::{Engine, EngineSettings, MicroBatch, StepSettings};
use weightloom_train::optimizer::{Patterns, WeightDecay, from_config};
use weightloom_train::pipeline::Schedule;

const TIME: usize = 256;
const ROWS: usize = 8;

fn decoder() -> DecoderConfig {
    let base = models::llama();
    DecoderConfig {
        vocabulary: 2000,
        hidden: 128,
        max_positions: 512,
        attention: AttentionConfig { width: 32, ..base.attention },
        mlp: MlpConfig { inner: 352, ..base.mlp },
        ..base
    }
}

fn predicted(config: &Config) -> (StageReport, MemoryReport) {
    let decoder = decoder();
    let settings = DryRunSettings {
        config,
        definition: &decoder,
        parallel: &Parallel::default(),
        stages: &[Stage::whole(decoder.layers)],
        sizes: GangSizes::default(),
        world: 1,
        data: None,
        extensions: &Extensions::standard(),
    };
    let found = dry_run::run(&settings).unwrap();
    let rank = &found.ranks[0];
    (rank.stages[0].clone(), rank.memory.clone())
}

/// Bytes that one micro-batch keeps, and the most that a step has in use.
fn measured(config: &Config, checkpointing: ActivationCheckpointing) -> (u64, u64) {
    let gangs = Gangs::new(solo(GangOptions::default()), &GangSizes::default()).unwrap();
    let dist = DistContext::new(Arc::clone(&gangs.root));
    let before = memory::statistics().in_use;
    let options = ModelLoadOptions {
        gangs: Some(gangs.clone()),
        dtype: Some(DType::F32),
        usage: config.train.accelerator.usage(config.train.precision, 1),
        dist: Some(Arc::clone(&dist)),
        ..ModelLoadOptions::default()
    };
    let decoder = new_model(&decoder(), &Parallel::default(), 7, &options).unwrap();
    let rows = config.train.micro_batch_size.unwrap_or(ROWS);
    let settings = EngineSettings {
        gangs,
        dist,
        schedule: Arc::new(Schedule::new(PipelineSchedule::GPipe, 1, 1, ROWS / rows).unwrap()),
        optimizer: from_config(&config.train.optimizer).unwrap(),
        decay: &WeightDecay::new(&config.train.optimizer, []).unwrap(),
        frozen: &Patterns::new("none", &[]).unwrap(),
        checkpointing,
        dropout: 0.0,
    };
    let mut engine = Engine::new(settings, vec![(0, decoder, None)]).unwrap();
    let tokens: Vec<i64> = (0..rows * TIME).map(|at| (at * 7 % 2000) as i64).collect();
    let micro = MicroBatch { rows, inputs: tokens.clone(), targets: tokens, documents: None };

    let decoder = &engine.stages()[0].model;
    let held = memory::statistics().in_use;
    let batch = decoder.shard().batch(&micro.inputs, rows).unwrap();
    let hidden = decoder
        .forward(Input::Tokens(batch.clone()), ForwardArgs { checkpointing, ..ForwardArgs::default() })
        .unwrap();
    let loss = decoder.loss(&hidden, &batch, 1.0, None).unwrap();
    drop((hidden, batch));
    let of_passes = memory::statistics().in_use - held;
    drop(loss);

    memory::reset_high_water();
    let settings = StepSettings { number: 1, learning_rate: 1e-3 };
    engine.step(&settings, &vec![micro; ROWS / rows], &mut ()).unwrap();
    (of_passes as u64, (memory::statistics().high_water - before) as u64)
}

/// Blocks of the allocator are at most a sixteenth larger than what is asked
/// for, and kernels have a little memory of their own.
#[test]
fn memory_is_as_predicted() {
    for (precision, recompute, micro, kept) in [
        ("f32", "off", 8, ActivationCheckpointing::Off),
        ("f32", "off", 2, ActivationCheckpointing::Off),
        ("f32", "full", 8, ActivationCheckpointing::Full),
        ("bf16", "off", 4, ActivationCheckpointing::Off),
        ("bf16", "full", 4, ActivationCheckpointing::Full),
    ] {
        let config: Config = serde_json::from_value(json!({
            "model": { "name": "llama" },
            "data": { "type": "dummy", "max_seq_len": TIME },
            "train": {
                "global_batch_size": ROWS,
                "micro_batch_size": micro,
                "precision": precision,
                "gradient_checkpointing": recompute,
                "accelerator": { "pp_schedule": "gpipe" },
            },
        }))
        .unwrap();
        let (stage, memory) = predicted(&config);
        let (of_passes, most) = measured(&config, kept);
        let said = stage.activations + stage.kept_weights;
        let about = format!("{precision}, recompute {recompute}, {micro} rows: {stage:?} {memory:?}");
        let off = of_passes as f64 / said as f64;
        assert!((0.995..1.02).contains(&off), "kept {of_passes}, not {said} ({off:.3}); {about}");
        let off = most as f64 / memory.peak as f64;
        assert!((0.99..1.08).contains(&off), "at most {most}, not {} ({off:.3}); {about}", memory.peak);
    }
}

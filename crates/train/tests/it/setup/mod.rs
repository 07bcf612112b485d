//! Small models, and thread ranks that train them: support of the engine tests.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]
#![allow(dead_code, reason = "no test needs all of it")]

pub mod models;

use std::sync::Arc;

use weightloom_checkpoint::{KeyMap, Source};
use weightloom_dtensor::{DistContext, DistOptions, Release};
use weightloom_gang::{Gang, GangOptions, GangSizes, Gangs, threads};
use weightloom_hub::{ModelLoadOptions, load_model, new_model};
use weightloom_layout::DType;
use weightloom_nn::{
    ActivationCheckpointing, Adapter, DecoderConfig, Model, Parallel, SequenceParallelism, Stage, Usage,
};
use weightloom_tensor::{Device, Tensor};
use weightloom_train::config::{EmaConfig, OptimizerConfig, OptimizerKind, PipelineSchedule};
use weightloom_train::engine::{ClipNorm, Engine, EngineSettings, MicroBatch, StepResult, StepSettings};
use weightloom_train::optimizer::{Patterns, WeightDecay, from_config, with_average};
use weightloom_train::pipeline::Schedule;

use models::VOCABULARY;

use crate::device::device;

/// Tokens in a row.
pub const TIME: usize = 12;
/// Rows per batch, divisible by two, three and four ranks.
pub const ROWS: usize = 12;

/// A model, its trained parameters and the optimizer.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub config: DecoderConfig,
    pub trained: Trained,
    pub optimizer: OptimizerConfig,
    pub ema: Option<EmaConfig>,
    pub device: Device,
}

impl Recipe {
    /// All weights of a model, with AdamW.
    pub fn of(config: DecoderConfig) -> Self {
        let optimizer = OptimizerConfig { lr: 1e-2, ..OptimizerConfig::default() };
        Self { config, trained: Trained::Weights, optimizer, ema: None, device: device() }
    }

    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }

    /// Trains a new adapter on every projection.
    pub fn with_adapter(self) -> Self {
        Self { trained: Trained::NewAdapter, ..self }
    }

    pub fn with_learning_rate(self, lr: f64) -> Self {
        Self { optimizer: OptimizerConfig { lr, ..self.optimizer }, ..self }
    }

    pub fn with_sgd(self) -> Self {
        let kind = OptimizerKind::Sgd;
        Self { optimizer: OptimizerConfig { kind, lr: 0.1, ..self.optimizer }, ..self }
    }
}

/// The trained parameters.
#[derive(Clone, Debug)]
pub enum Trained {
    /// All weights of the model.
    Weights,
    /// A new adapter, which starts as the identity.
    NewAdapter,
    /// An existing adapter: `A` and `B` of each module, and the scale.
    Adapter(Arc<Vec<(String, [Tensor; 2])>>, f64),
}

impl Trained {
    /// The adapter of a stage.
    fn adapter(&self, decoder: &dyn Model) -> Option<Adapter> {
        let mut adapter = Adapter::new();
        match self {
            Self::Weights => return None,
            Self::NewAdapter => {
                let names = decoder.parameters().iter().map(|(name, _)| name);
                let modules = names.filter_map(|name| name.strip_suffix(".weight"));
                for module in modules.filter(|module| module.ends_with("_proj")) {
                    adapter.add_new(decoder, module, 4, 2.0, 3).unwrap();
                }
            }
            Self::Adapter(matrices, scale) => {
                let here = |module: &str| decoder.parameter(&format!("{module}.weight")).is_some();
                for (module, [a, b]) in matrices.iter().filter(|(module, _)| here(module)) {
                    adapter.add(decoder, module, [a, b], None, None, *scale).unwrap();
                }
            }
        }
        Some(adapter)
    }
}

/// How ranks share the training of a model; see [`Setup::ranks`].
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub ranks: usize,
    pub sizes: GangSizes,
    pub micros: usize,
    pub schedule: PipelineSchedule,
    /// Pipeline stages per rank.
    pub chunks: usize,
    pub checkpointing: ActivationCheckpointing,
    pub usage: Usage,
}

impl Setup {
    /// One rank, one micro-batch.
    pub fn single() -> Self {
        Self::ranks(1)
    }

    /// Data parallelism over `ranks` replicas; `pp`, `tp` and `fsdp` change
    /// that.
    pub fn ranks(ranks: usize) -> Self {
        Self {
            ranks,
            sizes: GangSizes { pp: 1, tp: 1, sdp: Some(1) },
            micros: 1,
            schedule: PipelineSchedule::GPipe,
            chunks: 1,
            checkpointing: ActivationCheckpointing::Off,
            usage: Usage::default(),
        }
    }

    pub fn pp(self, pp: usize) -> Self {
        Self { sizes: GangSizes { pp, ..self.sizes }, ..self }
    }

    pub fn tp(self, tp: usize) -> Self {
        Self { sizes: GangSizes { tp, ..self.sizes }, ..self }
    }

    pub fn fsdp(self, ranks: usize) -> Self {
        Self { sizes: GangSizes { sdp: Some(ranks), ..self.sizes }, ..self }
    }

    pub fn micro_batches(self, micros: usize) -> Self {
        Self { micros, ..self }
    }

    /// Frees gathered parameters after use, and gathers one layer ahead.
    pub fn reshard_after_forward(self) -> Self {
        let usage = Usage { release: Release::AfterUse, prefetch: 1, ..self.usage };
        Self { usage, ..self }
    }

    pub fn sequence_parallel(self) -> Self {
        Self { usage: Usage { sequence_parallel: SequenceParallelism::On, ..self.usage }, ..self }
    }

    /// Gradient checkpointing of every layer.
    pub fn checkpointed(self) -> Self {
        Self { checkpointing: ActivationCheckpointing::Full, ..self }
    }

    /// Computes in bf16, with weights and accumulated gradients in f32.
    pub fn bf16(self) -> Self {
        Self { usage: Usage { dtype: Some(DType::Bf16), ..self.usage }, ..self }
    }

    /// The 1F1B pipeline schedule.
    pub fn one_f_one_b(self) -> Self {
        Self { schedule: PipelineSchedule::OneForwardOneBackward, ..self }
    }

    /// The interleaved pipeline schedule with `chunks` stages per rank.
    pub fn interleaved(self, chunks: usize) -> Self {
        Self { schedule: PipelineSchedule::Interleaved, chunks, ..self }
    }
}

/// Initial weights.
#[derive(Clone, Copy)]
pub enum Weights<'a> {
    /// Random initialization, the same for every setup.
    New,
    /// A checkpoint.
    Of(&'a Source),
}

/// One training rank.
pub struct Trainer {
    pub engine: Engine,
    pub gangs: Gangs,
    optimizer: OptimizerConfig,
    micros: usize,
}

impl Trainer {
    pub fn new(root: Arc<dyn Gang>, recipe: &Recipe, how: &Setup, weights: Weights<'_>) -> Self {
        let gangs = Gangs::new(root, &how.sizes).unwrap();
        let options = DistOptions { device: recipe.device, ..DistOptions::default() };
        let dist = DistContext::with_options(Arc::clone(&gangs.root), options);
        let schedule = Schedule::new(how.schedule, gangs.pp.size(), how.chunks, how.micros).unwrap();
        let mut stages = Vec::new();
        for number in schedule.stages_of(gangs.pp.rank()) {
            let options = ModelLoadOptions {
                gangs: Some(gangs.clone()),
                dtype: Some(DType::F32),
                stage: Some(Stage::one_of(recipe.config.layers, number, schedule.stages).unwrap()),
                usage: how.usage,
                dist: Some(Arc::clone(&dist)),
                ..ModelLoadOptions::default()
            };
            let parallel = Parallel::default();
            let decoder = match weights {
                Weights::New => new_model(&recipe.config, &parallel, 7, &options).unwrap(),
                Weights::Of(source) => {
                    let keys = KeyMap::default();
                    load_model(source, &recipe.config, &keys, &parallel, &options, &()).unwrap().model
                }
            };
            let adapter = recipe.trained.adapter(&*decoder);
            stages.push((number, decoder, adapter));
        }
        let settings = EngineSettings {
            gangs: gangs.clone(),
            dist,
            schedule: Arc::new(schedule),
            optimizer: with_average(from_config(&recipe.optimizer).unwrap(), recipe.ema.as_ref()),
            decay: &WeightDecay::new(&recipe.optimizer, []).unwrap(),
            frozen: &Patterns::new("none", &[]).unwrap(),
            checkpointing: how.checkpointing,
            dropout: 0.0,
        };
        let engine = Engine::new(settings, stages).unwrap();
        Self { engine, gangs, optimizer: recipe.optimizer.clone(), micros: how.micros }
    }

    /// One step on [`batch`]`(number)`.
    pub fn step(&mut self, number: u64) -> StepResult {
        let (inputs, targets) = batch(number);
        self.step_with(number, self.optimizer.lr, &inputs, &targets, ROWS)
    }

    /// One step on a global batch.
    pub fn step_with(
        &mut self,
        number: u64,
        learning_rate: f64,
        inputs: &[i64],
        targets: &[i64],
        rows: usize,
    ) -> StepResult {
        let micros = self.own_rows(inputs, targets, rows);
        let most = self.optimizer.max_grad_norm;
        self.engine.step(&StepSettings { number, learning_rate }, &micros, &mut ClipNorm(most)).unwrap()
    }

    /// This rank's rows of a batch, as micro-batches.
    pub fn own_rows(&self, inputs: &[i64], targets: &[i64], rows: usize) -> Vec<MicroBatch> {
        let time = inputs.len() / rows;
        let of_rank = rows / self.gangs.dp.size();
        let rows = of_rank / self.micros;
        assert_eq!(rows * self.micros * self.gangs.dp.size() * time, inputs.len(), "rows can be shared");
        (0..self.micros)
            .map(|micro| {
                let first = (self.gangs.dp.rank() * of_rank + micro * rows) * time;
                let part = first..first + rows * time;
                let (inputs, targets) = (inputs[part.clone()].to_vec(), targets[part].to_vec());
                MicroBatch { rows, inputs, targets, ..MicroBatch::default() }
            })
            .collect()
    }
}

/// A learnable batch: each token is a function of the previous one. Rows have
/// different numbers of masked targets.
pub fn batch(number: u64) -> (Vec<i64>, Vec<i64>) {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for row in 0..ROWS {
        let mut token = ((number as usize * 31 + row * 17) % VOCABULARY) as i64;
        for place in 0..TIME {
            inputs.push(token);
            token = (token * 5 + 7) % VOCABULARY as i64;
            targets.push(if (row * 3 + place * row) % 5 == 2 { weightloom_nn::IGNORED } else { token });
        }
    }
    (inputs, targets)
}

/// Trains for some steps on one rank.
pub fn train(root: Arc<dyn Gang>, recipe: &Recipe, how: &Setup, steps: u64) -> Vec<StepResult> {
    let mut trainer = Trainer::new(root, recipe, how, Weights::New);
    (1..=steps).map(|number| trainer.step(number)).collect()
}

/// Trains on thread ranks, whose results must be identical.
pub fn run(recipe: &Recipe, how: &Setup, steps: u64) -> Vec<StepResult> {
    let all =
        threads::run(how.ranks, GangOptions::default(), |root| train(root, recipe, how, steps)).unwrap();
    assert!(all.iter().all(|seen| *seen == all[0]), "{how:?}: ranks disagree");
    all.into_iter().next().unwrap()
}

/// The largest relative difference of losses and norms of two runs, and its
/// step.
pub fn apart(found: &[StepResult], expected: &[StepResult]) -> (f64, usize) {
    assert_eq!(found.len(), expected.len());
    let share = |a: f64, b: f64| if a == b { 0.0 } else { (a - b).abs() / b.abs() };
    let of_step = |(step, (found, expected)): (usize, (&StepResult, &StepResult))| {
        assert_eq!(found.targets, expected.targets, "step {step}");
        let norm = share(found.gradient_norm, expected.gradient_norm);
        let both = [share(found.loss, expected.loss), norm];
        // NaN counts as infinitely far.
        (both.into_iter().map(|one| if one.is_nan() { f64::INFINITY } else { one }).fold(0.0, f64::max), step)
    };
    found
        .iter()
        .zip(expected)
        .enumerate()
        .map(of_step)
        .fold((0.0, 0), |most, one| if one.0 > most.0 { one } else { most })
}

/// The largest relative difference of losses at any step.
pub fn losses_apart(found: &[StepResult], expected: &[StepResult]) -> f64 {
    let shares = found.iter().zip(expected).map(|(found, expected)| (found.loss / expected.loss - 1.0).abs());
    shares.map(|share| if share.is_nan() { f64::INFINITY } else { share }).fold(0.0, f64::max)
}

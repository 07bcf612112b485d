//! Dry runs compared with engines.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use weightloom_checkpoint::{LocalTensor, Saver, Sharding, State, Target, TensorSpec};
use weightloom_dtensor::{CommRecord, DTensor, DistContext, DistOptions, Release};
use weightloom_errors::Hint;
use weightloom_gang::{Gang, GangOptions, Gangs, threads};
use weightloom_hub::{ModelLoadOptions, new_model};
use weightloom_layout::{Placement, Shape};
use weightloom_nn::{Adapter, AttentionConfig, DecoderConfig, MlpConfig};
use weightloom_tensor::Tensor;

use super::*;
use crate::engine::{Engine, EngineSettings, MicroBatch, StepSettings};
use crate::models;
use crate::optimizer::WeightDecay;

const TIME: usize = 12;
const ROWS: usize = 8;
const VOCABULARY: usize = 50;

/// A decoder whose sizes do not divide evenly.
fn decoder() -> DecoderConfig {
    let base = models::llama();
    DecoderConfig {
        vocabulary: VOCABULARY,
        attention: AttentionConfig { input_bias: true, ..base.attention },
        mlp: MlpConfig { inner: 49, ..base.mlp },
        ..base
    }
}

fn tied() -> DecoderConfig {
    DecoderConfig { head: models::tied().head, ..decoder() }
}

fn with_experts() -> DecoderConfig {
    DecoderConfig { experts: models::experts().experts, ..decoder() }
}

fn config(train: &Value, model: &Value) -> Config {
    let mut all = json!({
        "model": { "name": "llama" },
        "data": { "type": "dummy", "max_seq_len": TIME },
        "train": { "global_batch_size": ROWS },
    });
    for (key, changes) in [("train", train), ("model", model)] {
        for (name, value) in changes.as_object().unwrap() {
            all[key][name] = value.clone();
        }
    }
    serde_json::from_value(all).unwrap()
}

/// A mesh of ranks; `pp`, `tp` and `fsdp` change its sizes from 1.
#[derive(Clone, Copy, Debug)]
struct Mesh {
    world: usize,
    sizes: GangSizes,
}

fn ranks(world: usize) -> Mesh {
    Mesh { world, sizes: GangSizes { pp: 1, tp: 1, sdp: Some(1) } }
}

impl Mesh {
    fn pp(self, pp: usize) -> Self {
        Self { sizes: GangSizes { pp, ..self.sizes }, ..self }
    }

    fn tp(self, tp: usize) -> Self {
        Self { sizes: GangSizes { tp, ..self.sizes }, ..self }
    }

    fn fsdp(self, ranks: usize) -> Self {
        Self { sizes: GangSizes { sdp: Some(ranks), ..self.sizes }, ..self }
    }
}

fn stages(decoder: &DecoderConfig, count: usize) -> Vec<Stage> {
    (0..count).map(|stage| Stage::one_of(decoder.layers, stage, count).unwrap()).collect()
}

fn dry(config: &Config, decoder: &DecoderConfig, mesh: Mesh) -> Result<DryRun, DryRunError> {
    let Mesh { world, sizes } = mesh;
    let chunks = match config.train.accelerator.pp_schedule {
        crate::config::PipelineSchedule::Interleaved => config.train.accelerator.vpp,
        _ => 1,
    };
    let stages = stages(decoder, sizes.pp * chunks);
    let parallel = Parallel::default();
    run(&DryRunSettings {
        config,
        definition: decoder,
        parallel: &parallel,
        stages: &stages,
        sizes,
        world,
        data: None,
        extensions: &Extensions::standard(),
    })
}

/// What an engine holds and sends in a step.
#[derive(Clone, Debug, PartialEq)]
struct Real {
    parameters: u64,
    gradients: u64,
    optimizer: u64,
    sent: Sent,
}

/// Counts and bytes by axis, collective, cause and pass.
type Sent = BTreeMap<[String; 4], (u64, u64)>;

fn added_up(items: &[CommRecord]) -> Sent {
    let mut sent = Sent::new();
    for item in items {
        let key =
            [item.axis, item.collective, item.cause.op, &item.cause.pass.to_string()].map(str::to_owned);
        let sum = sent.entry(key).or_default();
        *sum = (sum.0 + 1, sum.1 + item.bytes);
    }
    sent
}

fn bytes_of<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    tensors.into_iter().map(|x| (x.shape().volume() * x.dtype().size()) as u64).sum()
}

/// The engine of a config.
fn engine(root: Arc<dyn Gang>, config: &Config, decoder: &DecoderConfig, mesh: Mesh) -> Engine {
    let sizes = mesh.sizes;
    let gangs = Gangs::new(root, &sizes).unwrap();
    let options = DistOptions { log_comm: true, ..DistOptions::default() };
    let dist = DistContext::with_options(Arc::clone(&gangs.root), options);
    let whole = stages(decoder, 1);
    let parallel = Parallel::default();
    let alone = DryRunSettings {
        config: &Config {
            train: crate::config::TrainConfig {
                accelerator: crate::config::Accelerator {
                    pp_schedule: crate::config::PipelineSchedule::GPipe,
                    ..config.train.accelerator.clone()
                },
                ..config.train.clone()
            },
            ..config.clone()
        },
        definition: decoder,
        parallel: &parallel,
        stages: &whole,
        sizes: GangSizes { pp: 1, tp: 1, sdp: None },
        world: 1,
        data: None,
        extensions: &Extensions::standard(),
    };
    let context = RunContext::new(&alone).unwrap();
    let checkpointing = context.checkpointing();
    let usage = config.train.accelerator.usage(config.train.precision, gangs.sdp.size());
    let interleaved = config.train.accelerator.pp_schedule == crate::config::PipelineSchedule::Interleaved;
    let chunks = if interleaved { config.train.accelerator.vpp } else { 1 };
    let micros = micros_of(config, gangs.dp.size());
    let schedule =
        crate::pipeline::Schedule::new(config.train.accelerator.pp_schedule, sizes.pp, chunks, micros)
            .unwrap();
    let all = stages(decoder, schedule.stages);
    let mut made = Vec::new();
    for number in schedule.stages_of(gangs.pp.rank()) {
        let options = ModelLoadOptions {
            gangs: Some(gangs.clone()),
            dtype: Some(config.weights_dtype()),
            stage: Some(all[number].clone()),
            usage,
            dist: Some(Arc::clone(&dist)),
            ..ModelLoadOptions::default()
        };
        let decoder = new_model(decoder, &parallel, 7, &options).unwrap();
        let adapter = config.model.lora.as_ref().map(|lora| {
            let mut adapter = Adapter::new();
            let modules: Vec<String> = decoder
                .parameters()
                .iter()
                .filter_map(|(name, _)| name.strip_suffix(".weight"))
                .filter(|name| lora.target_modules.iter().any(|target| name.ends_with(&format!(".{target}"))))
                .map(str::to_owned)
                .collect();
            for module in modules {
                adapter.add_new(&*decoder, &module, lora.rank, 2.0, 3).unwrap();
            }
            adapter
        });
        made.push((number, decoder, adapter));
    }
    let settings = EngineSettings {
        gangs,
        dist,
        schedule: Arc::new(schedule),
        optimizer: crate::optimizer::with_average(
            crate::optimizer::from_config(&config.train.optimizer).unwrap(),
            config.train.ema.as_ref(),
        ),
        decay: &WeightDecay::new(&config.train.optimizer, []).unwrap(),
        frozen: &crate::optimizer::Patterns::new("frozen", &config.model.freeze_modules).unwrap(),
        checkpointing,
        dropout: 0.0,
    };
    let mut engine = Engine::new(settings, made).unwrap();
    engine.set_loss(crate::loss::Losses::standard().build(&config.train.loss).unwrap());
    engine
}

fn micros_of(config: &Config, dp: usize) -> usize {
    let rows = config.train.global_batch_size / dp;
    rows / config.train.micro_batch_size.unwrap_or(rows)
}

fn micro_batches(config: &Config, dp: usize) -> Vec<MicroBatch> {
    let rows = config.train.global_batch_size / dp / micros_of(config, dp);
    let tokens: Vec<i64> = (0..rows * TIME).map(|at| (at * 7 % VOCABULARY) as i64).collect();
    vec![
        MicroBatch { rows, inputs: tokens.clone(), targets: tokens, ..MicroBatch::default() };
        micros_of(config, dp)
    ]
}

/// What each rank holds and sends in its first step.
fn real(config: &Config, decoder: &DecoderConfig, mesh: Mesh) -> Vec<Real> {
    threads::run(mesh.world, GangOptions::default(), |root| {
        let mut engine = engine(root, config, decoder, mesh);
        let micros = micro_batches(config, engine.gangs.dp.size());
        engine.dist.finish().unwrap();
        engine.dist.take_comm_log();
        let settings = StepSettings { number: 1, learning_rate: 1e-3 };
        engine.step(&settings, &micros, &mut ()).unwrap();
        engine.dist.finish().unwrap();
        let sent = added_up(&engine.dist.take_comm_log());
        engine.forward_backward(&StepSettings { number: 2, ..settings }, &micros, 1.0, &mut ()).unwrap();
        let mut found = Real { parameters: 0, gradients: 0, optimizer: 0, sent };
        for stage in &engine.stages {
            found.parameters += bytes_of(stage.model.parameters().iter().map(|(_, value)| value.to_local()));
            let matrices = stage.adapter.iter().flat_map(Adapter::matrices);
            found.parameters += bytes_of(matrices.map(|(_, value)| value.to_local()).collect::<Vec<_>>());
            found.optimizer += bytes_of(stage.states.values().flat_map(|states| &states.tensors));
            for (_, value) in stage.trained() {
                found.gradients += bytes_of([value.take_gradient().unwrap().unwrap().to_local()]);
            }
        }
        found
    })
    .unwrap()
}

/// The predictions for a pipeline rank. Engines do not log their own messages.
fn predicted(rank: &RankReport) -> Real {
    let sent = rank
        .traffic
        .iter()
        .filter(|item| !["pp", "world"].contains(&item.axis.as_str()))
        .map(|item| {
            let key = [&item.axis, &item.collective, &item.cause, &item.pass].map(Clone::clone);
            (key, (item.count, item.bytes))
        })
        .collect();
    let memory = &rank.memory;
    let (parameters, gradients, optimizer) = (memory.parameters, memory.gradients, memory.optimizer);
    Real { parameters, gradients, optimizer, sent }
}

fn agrees(train: Value, model: Value, decoder: &DecoderConfig, mesh: Mesh) {
    let config = config(&train, &model);
    let dry = dry(&config, decoder, mesh).unwrap();
    let real = real(&config, decoder, mesh);
    for place in &dry.ranks {
        let found = predicted(place);
        // Gradients that nothing is added to stay as narrow as they came.
        let gradients = real[place.rank].gradients;
        let narrow = config.train.precision == crate::config::Precision::Bf16;
        let least = if narrow { found.gradients / 2 } else { found.gradients };
        assert!((least..=found.gradients).contains(&gradients), "{gradients} of {found:?}");
        let expected = &Real { gradients: found.gradients, ..real[place.rank].clone() };
        assert_eq!(&found, expected, "{train} {model} {mesh:?}, rank {}", place.rank);
        // No rank of the place holds more, and one holds as little as is said.
        let ranks = &real[place.rank..place.rank + mesh.world / mesh.sizes.pp];
        assert!(ranks.iter().all(|rank| rank.parameters <= found.parameters));
        let least = ranks.iter().map(|rank| rank.parameters).min().unwrap();
        assert_eq!(place.memory.least_parameters, least);
    }
}

/// FSDP with or without resharding after the forward pass.
fn sharded(release: Release, prefetch: usize) -> Value {
    let reshard = release == Release::AfterUse;
    json!({ "accelerator": { "reshard_after_forward": reshard, "prefetch": prefetch } })
}

#[test]
fn memory_and_traffic_match_the_engine() {
    let plain = json!({});
    for decoder in [decoder(), tied(), with_experts()] {
        agrees(plain.clone(), plain.clone(), &decoder, ranks(1));
        agrees(plain.clone(), plain.clone(), &decoder, ranks(2));
        let (keep, after_use) = (Release::Keep, Release::AfterUse);
        for (release, prefetch) in [(keep, 0), (keep, 1), (after_use, 0), (after_use, 1), (after_use, 2)] {
            agrees(sharded(release, prefetch), plain.clone(), &decoder, ranks(2).fsdp(2));
        }
        agrees(plain.clone(), plain.clone(), &decoder, ranks(2).tp(2));
        let shared = json!({ "accelerator": { "sequence_parallel": true } });
        agrees(shared, plain.clone(), &decoder, ranks(2).tp(2));
        agrees(json!({ "micro_batch_size": 2 }), plain.clone(), &decoder, ranks(2).pp(2));
    }
}

#[test]
fn combined_parallelism_matches_the_engine() {
    let plain = json!({});
    let all = |schedule: &str, vpp: usize| {
        json!({
            "micro_batch_size": 1,
            "precision": "bf16",
            "gradient_checkpointing": "full",
            "accelerator": { "pp_schedule": schedule, "vpp": vpp, "sequence_parallel": true },
        })
    };
    agrees(all("1f1b", 1), plain.clone(), &decoder(), ranks(8).pp(2).tp(2).fsdp(2));
    agrees(all("gpipe", 1), plain.clone(), &tied(), ranks(8).pp(2).fsdp(2));
    agrees(all("interleaved", 2), plain.clone(), &decoder(), ranks(4).pp(2).fsdp(2));
    agrees(all("1f1b", 1), plain, &with_experts(), ranks(4).tp(2).fsdp(2));
    let sgd = json!({ "optimizer": { "kind": "sgd" }, "micro_batch_size": 2 });
    agrees(
        sgd,
        json!({ "freeze_modules": ["model.embed_tokens", "model.layers.0"] }),
        &decoder(),
        ranks(2).fsdp(2),
    );
}

#[test]
fn states_and_traffic_of_each_optimizer_match_the_engine() {
    for optimizer in ["lion", "adafactor", "schedule_free_adamw", "muon", "adamw_8bit"] {
        let train = json!({ "optimizer": { "kind": optimizer }, "ema": {} });
        for mesh in [ranks(1), ranks(2).fsdp(2), ranks(4).tp(2).fsdp(2)] {
            agrees(train.clone(), json!({}), &decoder(), mesh);
        }
    }
    let wide = DecoderConfig { mlp: MlpConfig { inner: 512, ..decoder().mlp }, ..decoder() };
    let train = json!({ "optimizer": { "kind": "adamw_8bit", "options": { "min_8bit_size": 1 } } });
    for mesh in [ranks(1), ranks(4).tp(2).fsdp(2)] {
        agrees(train.clone(), json!({}), &wide, mesh);
    }
    let optimizer_bytes = |train: Value| {
        let found = dry(&config(&train, &json!({})), &decoder(), ranks(1)).unwrap();
        found.ranks[0].memory.optimizer as f64 / found.ranks[0].memory.parameters as f64
    };
    // So many bytes for each byte of the parameters; vectors and numbers add a little.
    for (train, expected) in [
        (json!({ "optimizer": { "kind": "lion" } }), 1.0),
        (json!({ "optimizer": { "kind": "adafactor" } }), 0.05),
        (json!({ "optimizer": { "kind": "schedule_free_adamw" } }), 2.0),
        (json!({ "optimizer": { "kind": "adamw" }, "ema": {} }), 3.0),
    ] {
        let found = optimizer_bytes(train.clone());
        assert!((found - expected).abs() < 0.05, "{train}: {found}");
    }
}

#[test]
fn a_smoothed_loss_with_a_penalty_matches_the_engine() {
    let train = json!({ "loss": { "label_smoothing": 0.1, "z_loss": 1e-4 } });
    for mesh in [ranks(1), ranks(2).fsdp(2), ranks(2).tp(2)] {
        agrees(train.clone(), json!({}), &decoder(), mesh);
    }
}

#[test]
fn adapters_match_the_engine() {
    let lora = json!({ "lora": { "rank": 4, "target_modules": ["q_proj", "o_proj", "down_proj"] } });
    for (train, mesh) in [
        (json!({}), ranks(1)),
        (sharded(Release::AfterUse, 1), ranks(2).fsdp(2)),
        (json!({ "precision": "bf16" }), ranks(2).tp(2)),
        (json!({ "micro_batch_size": 2 }), ranks(2).pp(2)),
    ] {
        agrees(train, lora.clone(), &decoder(), mesh);
    }
}

#[test]
fn a_pipeline_sends_activations_forward_and_gradients_backward() {
    let config = config(&json!({ "micro_batch_size": 2, "precision": "bf16" }), &json!({}));
    let found = dry(&config, &tied(), ranks(2).pp(2)).unwrap();
    let message = (2 * TIME * 32 * 2) as u64;
    let received = |place: usize, cause: &str| {
        let items = found.ranks[place].traffic.iter().filter(|item| item.cause == cause && item.axis == "pp");
        items.map(|item| (item.count, item.bytes)).next()
    };
    assert_eq!(received(0, "activation"), None);
    assert_eq!(received(1, "activation"), Some((4, 4 * message)));
    assert_eq!(received(0, "gradient"), Some((4, 4 * message)));
    assert_eq!(received(1, "gradient"), None);
    for place in 0..2 {
        assert_eq!(received(place, "tied embedding"), Some((1, (VOCABULARY * 32 * 4) as u64)));
    }
}

#[test]
fn stages_of_the_same_kind_have_the_same_costs() {
    let deep = DecoderConfig { layers: 12, ..decoder() };
    let config = config(&json!({ "micro_batch_size": 2 }), &json!({}));
    let found = dry(&config, &deep, ranks(4).pp(4)).unwrap();
    let [_, second, third, _] = &found.ranks[..] else { panic!("four places") };
    assert_eq!(second.stages[0].forward_flops, third.stages[0].forward_flops);
    // Freezing a layer of one makes them differ.
    let frozen =
        self::config(&json!({ "micro_batch_size": 2 }), &json!({ "freeze_modules": ["model.layers.4"] }));
    let found = dry(&frozen, &deep, ranks(4).pp(4)).unwrap();
    assert!(found.ranks[1].memory.gradients < found.ranks[2].memory.gradients);
}

#[test]
fn available_data_has_an_order_digest() {
    use crate::data::{DataSettings, Epochs};
    let config = config(&json!({ "max_steps": 3 }), &json!({}));
    let settings = DataSettings {
        config: config.data.clone(),
        tokenizer: None,
        templates: Default::default(),
        seed: 1,
        vocabulary: VOCABULARY,
        epochs: Epochs::Endless,
        formats: Default::default(),
        cache: None,
    };
    let loader = Loader::new(settings).unwrap();
    let decoder = decoder();
    let stages = stages(&decoder, 1);
    let parallel = Parallel::default();
    let settings = DryRunSettings {
        config: &config,
        definition: &decoder,
        parallel: &parallel,
        stages: &stages,
        sizes: ranks(1).sizes,
        world: 1,
        data: Some(crate::dry_run::DryRunData { loader: &loader, summary: None }),
        extensions: &Extensions::standard(),
    };
    let digest = loader.order_digest(3, ROWS);
    assert_eq!(run(&settings).unwrap().data, DataReport::Order { steps: 3, digest, summary: None });
    let without = run(&DryRunSettings { data: None, ..settings }).unwrap();
    assert_eq!(without.data, DataReport::NotAvailable);
}

fn fails(train: &Value, model: &Value, mesh: Mesh) -> DryRunError {
    dry(&config(train, model), &decoder(), mesh).unwrap_err()
}

#[test]
fn impossible_runs_are_errors_with_hints() {
    let (none, one) = (json!({}), ranks(1));
    let error = fails(&json!({ "global_batch_size": 7 }), &none, ranks(2));
    assert_eq!(error, DryRunError::Rows { rows: 7, dp: 2 });
    assert!(error.hint().unwrap().contains("`train.global_batch_size` to 8"));
    let error = fails(&json!({ "micro_batch_size": 3 }), &none, one);
    assert_eq!(error, DryRunError::MicroBatches { rows: 8, at_once: 3 });
    assert_eq!(error.hint().unwrap(), "set `train.micro_batch_size` to one of 1, 2, 4, 8");
    let error = fails(&none, &json!({ "lora": { "target_modules": ["q_prj"] } }), one);
    assert_eq!(error.to_string(), "unknown module `q_prj` in `model.lora.target_modules`");
    assert_eq!(error.hint().unwrap(), "did you mean `q_proj`?");
    assert!(matches!(fails(&none, &none, ranks(4).pp(3)), DryRunError::Gangs(_)));
    assert!(matches!(fails(&none, &none, ranks(64).tp(64)), DryRunError::Nn(_)));
    let sgd = json!({ "optimizer": { "lr": -1.0 } });
    assert!(matches!(fails(&sgd, &none, one), DryRunError::Optimizer(_)));
    let error = fails(&none, &json!({ "freeze_modules": ["model.layer.0"] }), one);
    assert!(matches!(error, DryRunError::Pattern(_)), "{error}");
    assert!(error.hint().unwrap().contains("model.layers.0"));
    let uneven = json!({
        "micro_batch_size": 8,
        "accelerator": { "pp_schedule": "interleaved", "vpp": 2 },
    });
    assert!(matches!(fails(&uneven, &none, ranks(2).pp(2)), DryRunError::Pipeline(_)));
    let mut empty = config(&none, &none);
    empty.data.max_seq_len = 0;
    let error = dry(&empty, &decoder(), one).unwrap_err();
    assert_eq!(error, DryRunError::NoTokens);
    assert_eq!(error.hint().unwrap(), "set `data.max_seq_len` to at least 1");
    let (config, decoder, parallel) = (config(&none, &none), decoder(), Parallel::default());
    let stages = stages(&decoder, 3);
    let settings = DryRunSettings {
        config: &config,
        definition: &decoder,
        parallel: &parallel,
        stages: &stages,
        sizes: ranks(2).pp(2).sizes,
        world: 2,
        data: None,
        extensions: &Extensions::standard(),
    };
    let error = run(&settings).unwrap_err();
    assert_eq!(error, DryRunError::Stages { found: 3, ranks: 2, chunks: 1 });
    assert_eq!(error.hint().unwrap(), "split the model into 2 stages");
}

proptest! {
    /// Justifies measuring only the first rank.
    #[test]
    fn no_rank_holds_more_than_the_first(
        dims in proptest::collection::vec(1usize..23, 2),
        sizes in proptest::array::uniform3(1usize..5),
        placements in proptest::array::uniform3(0usize..3),
        turned in any::<bool>(),
    ) {
        let [rdp, sdp, tp] = sizes;
        let mesh = weightloom_layout::Mesh::new(&[("rdp", rdp), ("sdp", sdp), ("tp", tp)]).unwrap();
        let placements = placements.map(|dim| if dim < 2 { Placement::Shard(dim) } else { Placement::Replicate });
        let shape = Shape::new(&dims).unwrap();
        let order: &[(usize, &[&str])] =
            if turned && placements[1..] == [Placement::Shard(0); 2] && placements[0] == Placement::Replicate {
                &[(0, &["tp", "sdp"])]
            } else {
                &[]
            };
        let layout = weightloom_layout::Layout::with_split_order(mesh, &placements, order).unwrap();
        let held: Vec<usize> =
            mesh.ranks().map(|rank| layout.local_shape(&shape, rank).unwrap().volume()).collect();
        prop_assert_eq!(held.iter().max(), held.first());
    }
}

fn part<'a>(value: &DTensor, local: &'a Tensor) -> LocalTensor<'a> {
    let (dtype, shape, sharding) = (value.dtype(), value.shape().clone(), Sharding::Layout(value.layout()));
    LocalTensor { spec: TensorSpec { dtype, shape, sharding }, bytes: local.host_bytes().unwrap().into() }
}

/// Bytes and items that each rank writes, from the save planner.
fn planned(config: &Config, decoder: &DecoderConfig, mesh: Mesh) -> Vec<(u64, u64)> {
    threads::run(mesh.world, GangOptions::default(), |root| {
        let engine = engine(Arc::clone(&root), config, decoder, mesh);
        let mut state = State::new();
        for stage in &engine.stages {
            let leaves = |name: &str| stage.number > 0 && decoder.head.tied && name.contains("embed_tokens");
            for (name, value) in stage.model.parameters().iter().filter(|(name, _)| !leaves(name)) {
                state.model(name.clone(), part(value, value.to_local()));
            }
            for (name, value) in stage.trained().into_iter().filter(|(name, _)| !leaves(name)) {
                for (kept, local) in stage.states[&name].iter() {
                    let spec = crate::checkpointing::state_spec(kept);
                    let bytes = local.host_bytes().unwrap().into();
                    state.training(format!("optimizer.{}.{name}", kept.name), LocalTensor { spec, bytes });
                }
                if engine.evaluates_average() {
                    state.training(format!("trained.{name}"), part(value, value.to_local()));
                }
            }
        }
        let (plan, _) = Saver::new(root).unwrap().plan(&state).unwrap();
        (plan.bytes(), plan.items.len() as u64)
    })
    .unwrap()
}

#[test]
fn checkpoint_writes_match_the_save_planner() {
    let plain = config(&json!({ "micro_batch_size": 1 }), &json!({}));
    for (config, mesh) in [
        (json!({ "optimizer": { "kind": "adafactor" } }), ranks(4).tp(2).fsdp(2)),
        (json!({ "optimizer": { "kind": "schedule_free_adamw" } }), ranks(2).fsdp(2)),
        (json!({ "optimizer": { "kind": "muon" }, "ema": { "evaluate": true } }), ranks(2).pp(2)),
    ] {
        let config = self::config(&config, &json!({}));
        let found = dry(&config, &tied(), mesh).unwrap().checkpoint;
        let real = planned(&config, &tied(), mesh);
        assert_eq!(found.bytes, real.iter().map(|(bytes, _)| bytes).sum::<u64>(), "{mesh:?}");
        assert_eq!(found.most_of_a_rank, real.iter().map(|(bytes, _)| *bytes).max().unwrap(), "{mesh:?}");
    }
    for decoder in [decoder(), tied()] {
        for mesh in
            [ranks(1), ranks(4).fsdp(2), ranks(4).tp(2).fsdp(2), ranks(4).pp(2).fsdp(2), ranks(4).pp(2).tp(2)]
        {
            let found = dry(&plain, &decoder, mesh).unwrap().checkpoint;
            let real = planned(&plain, &decoder, mesh);
            let about = format!("{mesh:?}: {real:?}");
            let total: u64 = real.iter().map(|(bytes, _)| bytes).sum();
            assert_eq!(found.bytes, total, "{about}");
            assert_eq!(found.mean_of_ranks, total as f64 / mesh.world as f64, "{about}");
            assert_eq!(found.most_of_a_rank, real.iter().map(|(bytes, _)| *bytes).max().unwrap(), "{about}");
            assert_eq!(found.items, real.iter().map(|(_, items)| items).sum::<u64>(), "{about}");
        }
    }
}

#[test]
fn a_saved_checkpoint_matches_the_prediction() {
    for model in
        [json!({}), json!({ "lora": { "rank": 4 } }), json!({ "freeze_modules": ["model.layers.1"] })]
    {
        let config = config(&json!({}), &model);
        let found = dry(&config, &decoder(), ranks(2).fsdp(2)).unwrap().checkpoint;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        threads::run(2, GangOptions::default(), |root| {
            let engine = engine(Arc::clone(&root), &config, &decoder(), ranks(2).fsdp(2));
            let progress = crate::checkpointing::Progress {
                step: 1,
                tokens: 0,
                targets: 0,
                data: Value::Null,
                best: None,
                guard: crate::GuardState::default(),
                optimizer: "adamw".to_owned(),
                config: Value::Null,
            };
            let mut saver = Saver::new(root).unwrap();
            let target = Target::Folder(path.clone());
            engine
                .save(
                    &mut saver,
                    &target,
                    &progress,
                    BTreeMap::new(),
                    crate::checkpointing::SaveMode::Blocking(&()),
                )
                .unwrap();
        })
        .unwrap();
        let names =
            std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| name.ends_with(".safetensors")).count(), found.files, "{model}");
        let source = weightloom_checkpoint::Source::open(&path).unwrap();
        let tensors = source.index.tensors();
        let bytes =
            |entry: &weightloom_checkpoint::TensorEntry| (entry.shape.volume() * entry.dtype.size()) as u64;
        let of_model = tensors.iter().filter(|(name, _)| !name.starts_with("optimizer."));
        assert_eq!(tensors.len(), found.tensors, "{model}");
        assert_eq!(tensors.values().map(bytes).sum::<u64>(), found.bytes, "{model}");
        assert_eq!(of_model.map(|(_, entry)| bytes(entry)).sum::<u64>(), found.model_bytes, "{model}");
    }
}

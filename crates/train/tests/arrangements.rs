//! The same training however ranks share the work: losses and norms of every
//! step agree.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::sync::Arc;

use shardloom_dtensor::{Ranks, Release};
use shardloom_gang::{Gang, GangOptions, GangSizes, Gangs, threads};
use shardloom_hub::{LoadOptions, new_decoder};
use shardloom_layout::DType;
use shardloom_nn::{
    Activation, Adapter, AttentionConfig, DecoderConfig, ExpertsConfig, Gating, HeadConfig, Kept, MlpConfig,
    NormConfig, NormKind, Parallel, PositionConfig, Positions, ResidualForm, RopeConfig, RopeScaling, Stage,
    Usage,
};
use shardloom_train::config::OptimizerConfig;
use shardloom_train::engine::{Engine, EngineSettings, MicroBatch, StepSettings};
use shardloom_train::optimizer::{Patterns, WeightDecay, clipping, from_config};
use shardloom_train::pipeline::Schedule;

const TIME: usize = 12;
const ROWS: usize = 8;
const VOCABULARY: usize = 48;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Dense,
    Tied,
    Experts,
}

fn config(kind: Kind) -> DecoderConfig {
    DecoderConfig {
        vocabulary: VOCABULARY,
        hidden: 32,
        layers: 4,
        max_positions: 64,
        attention: AttentionConfig {
            heads: 4,
            kv_heads: 2,
            width: 8,
            scale: None,
            input_bias: false,
            output_bias: false,
            qk_norm: None,
            window: None,
            soft_cap: None,
        },
        positions: PositionConfig::Rope(RopeConfig { theta: 1e4, turned: None, scaling: RopeScaling::None }),
        norm: NormConfig { kind: NormKind::Rms, eps: 1e-5, offset: 0.0 },
        residual: ResidualForm::Before,
        mlp: MlpConfig { inner: 48, activation: Activation::Silu, gating: Gating::Gated, bias: false },
        experts: matches!(kind, Kind::Experts).then(|| ExpertsConfig {
            count: 4,
            chosen: 2,
            inner: 24,
            weights: Default::default(),
            layers: Default::default(),
        }),
        embedding_scale: None,
        head: HeadConfig { tied: matches!(kind, Kind::Tied), bias: false, soft_cap: None },
        initializer: 0.1,
    }
}

/// How ranks share the work.
#[derive(Clone, Copy, Debug)]
struct Arrangement {
    ranks: usize,
    sizes: GangSizes,
    micros: usize,
    kept: Kept,
    usage: Usage,
    lora: bool,
}

fn alone() -> Arrangement {
    Arrangement {
        ranks: 1,
        sizes: GangSizes { pp: 1, tp: 1, sdp: Some(1) },
        micros: 1,
        kept: Kept::All,
        usage: Usage::default(),
        lora: false,
    }
}

fn shared(ranks: usize, pp: usize, tp: usize, sdp: usize) -> Arrangement {
    Arrangement { ranks, sizes: GangSizes { pp, tp, sdp: Some(sdp) }, ..alone() }
}

/// A batch to learn: each token follows from the one before, some do not count.
fn batch(step: usize) -> (Vec<i64>, Vec<i64>) {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for row in 0..ROWS {
        let mut token = ((step * 31 + row * 17) % VOCABULARY) as i64;
        for place in 0..TIME {
            inputs.push(token);
            token = (token * 5 + 7) % VOCABULARY as i64;
            targets.push(if (row * 3 + place * row) % 5 == 2 { shardloom_nn::IGNORED } else { token });
        }
    }
    (inputs, targets)
}

fn train(root: Arc<dyn Gang>, kind: Kind, how: Arrangement, steps: usize) -> Vec<[f64; 2]> {
    let config = config(kind);
    let gangs = Gangs::new(root, &how.sizes).unwrap();
    let ranks = Ranks::new(Arc::clone(&gangs.root));
    let stage = Stage::one_of(config.layers, gangs.pp.rank(), gangs.pp.size()).unwrap();
    let options = LoadOptions {
        gangs: Some(gangs.clone()),
        dtype: Some(DType::F32),
        stage: Some(stage),
        usage: how.usage,
        ranks: Some(Arc::clone(&ranks)),
        ..LoadOptions::default()
    };
    let decoder = new_decoder(&config, &Parallel::default(), 7, &options).unwrap();
    let adapter = how.lora.then(|| {
        let mut adapter = Adapter::new();
        let modules: Vec<String> = decoder
            .parameters()
            .iter()
            .filter_map(|(name, _)| name.strip_suffix("_proj.weight").map(|module| format!("{module}_proj")))
            .collect();
        for module in modules {
            adapter.add_new(&decoder, &module, 4, 2.0, 3).unwrap();
        }
        adapter
    });
    let optimizer = OptimizerConfig { lr: 1e-2, ..OptimizerConfig::default() };
    let settings = EngineSettings {
        gangs: gangs.clone(),
        ranks,
        schedule: Arc::new(Schedule::gpipe(gangs.pp.size(), how.micros)),
        optimizer: from_config(&optimizer).unwrap(),
        decay: &WeightDecay::new(&optimizer, []).unwrap(),
        frozen: &Patterns::new("none", &[]).unwrap(),
        kept: how.kept,
        dropout: 0.0,
    };
    let mut engine = Engine::new(settings, vec![(gangs.pp.rank(), decoder, adapter)]).unwrap();
    let (dp, of_rank) = (gangs.dp.rank(), ROWS / gangs.dp.size());
    (0..steps)
        .map(|step| {
            let (inputs, targets) = batch(step);
            let rows = of_rank / how.micros;
            let micros: Vec<MicroBatch> = (0..how.micros)
                .map(|micro| {
                    let first = (dp * of_rank + micro * rows) * TIME;
                    let part = first..first + rows * TIME;
                    MicroBatch {
                        rows,
                        inputs: inputs[part.clone()].to_vec(),
                        targets: targets[part].to_vec(),
                    }
                })
                .collect();
            let clip = |norm: f64| clipping(norm, 1.0);
            let settings = StepSettings { number: step as u64 + 1, learning_rate: 1e-2, clip: &clip };
            let stepped = engine.step(&settings, &micros).unwrap();
            [stepped.loss, stepped.gradient_norm]
        })
        .collect()
}

fn run(kind: Kind, how: Arrangement, steps: usize) -> Vec<[f64; 2]> {
    let all = threads::run(how.ranks, GangOptions::default(), |root| train(root, kind, how, steps)).unwrap();
    assert!(all.iter().all(|losses| *losses == all[0]), "{how:?}: ranks disagree");
    all.into_iter().next().unwrap()
}

fn compare(kind: Kind, hows: &[Arrangement], steps: usize, tolerance: f64) {
    let lora = hows[0].lora;
    let expected = run(kind, Arrangement { lora, ..alone() }, steps);
    assert!(expected[steps - 1][0] < 0.8 * expected[0][0], "{expected:?}");
    for how in hows {
        let found = run(kind, *how, steps);
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (found, expected) in found.iter().zip(expected) {
                let off = (found - expected).abs() / expected.abs();
                assert!(off < tolerance, "{kind:?} {how:?} step {step}: {found}, not {expected}");
            }
        }
    }
}

const AFTER_USE: Usage =
    Usage { dtype: None, release: Release::AfterUse, ahead: 1, positions: Positions::Whole };

#[test]
fn however_ranks_share_the_work_losses_are_the_same() {
    let sequence = Usage { positions: Positions::Shared, ..AFTER_USE };
    let hows = [
        Arrangement { micros: 4, ..alone() },
        Arrangement { kept: Kept::Input, ..alone() },
        shared(2, 1, 1, 1),
        shared(2, 1, 1, 2),
        Arrangement { usage: AFTER_USE, ..shared(2, 1, 1, 2) },
        Arrangement { usage: AFTER_USE, kept: Kept::Input, micros: 2, ..shared(4, 1, 1, 2) },
        shared(2, 1, 2, 1),
        Arrangement { usage: sequence, ..shared(2, 1, 2, 1) },
        Arrangement { usage: sequence, kept: Kept::Input, ..shared(4, 1, 2, 2) },
        Arrangement { micros: 4, ..shared(2, 2, 1, 1) },
        Arrangement { micros: 2, usage: AFTER_USE, ..shared(4, 2, 1, 2) },
        Arrangement { micros: 2, usage: sequence, ..shared(4, 2, 2, 1) },
    ];
    for kind in [Kind::Dense, Kind::Tied, Kind::Experts] {
        compare(kind, &hows, 8, 1e-4);
    }
}

#[test]
fn adapters_train_alike_too() {
    let hows = [
        Arrangement { micros: 2, ..alone() },
        Arrangement { usage: AFTER_USE, ..shared(2, 1, 1, 2) },
        Arrangement { kept: Kept::Input, ..shared(2, 1, 2, 1) },
        Arrangement { micros: 2, ..shared(2, 2, 1, 1) },
    ]
    .map(|how| Arrangement { lora: true, ..how });
    compare(Kind::Dense, &hows, 12, 1e-4);
}

//! A run of sixteen thousand ranks, looked at on one thread.

use crate::setup::models;
use serde_json::json;
use weightloom_gang::GangSizes;
use weightloom_nn::{AttentionConfig, DecoderConfig, MlpConfig, Parallel, PositionConfig, RopeConfig, Stage};
use weightloom_train::Extensions;
use weightloom_train::config::Config;
use weightloom_train::dry_run::{self, DryRun, DryRunSettings};

const WORLD: usize = 16_384;

/// Llama 3.1 405B.
fn largest_llama() -> DecoderConfig {
    let base = models::llama();
    DecoderConfig {
        vocabulary: 128_256,
        hidden: 16_384,
        layers: 126,
        max_positions: 131_072,
        attention: AttentionConfig { heads: 128, kv_heads: 8, width: 128, ..base.attention },
        positions: PositionConfig::Rope(RopeConfig { theta: 5e5, ..RopeConfig::default() }),
        mlp: MlpConfig { inner: 53_248, ..base.mlp },
        initializer: 0.02,
        ..base
    }
}

fn run(schedule: &str, vpp: usize, recompute: &str) -> DryRun {
    let config: Config = serde_json::from_value(json!({
        "model": { "name": "llama", "arch": "llama3_1_405b" },
        "data": { "type": "dummy", "max_seq_len": 8192 },
        "train": {
            "global_batch_size": 2048,
            "micro_batch_size": 1,
            "precision": "bf16",
            "gradient_checkpointing": recompute,
            "accelerator": {
                "dp_replicate": 8, "dp_shard": 16, "tp": 8, "pp": 16,
                "sequence_parallel": true, "pp_schedule": schedule, "vpp": vpp,
            },
        },
    }))
    .unwrap();
    let decoder = largest_llama();
    let stages: Vec<Stage> =
        (0..16 * vpp).map(|stage| Stage::one_of(decoder.layers, stage, 16 * vpp).unwrap()).collect();
    let settings = DryRunSettings {
        config: &config,
        definition: &decoder,
        parallel: &Parallel::default(),
        stages: &stages,
        sizes: GangSizes { pp: 16, tp: 8, sdp: Some(16) },
        world: WORLD,
        data: None,
        extensions: &Extensions::standard(),
    };
    dry_run::run(&settings).unwrap()
}

#[test]
fn sixteen_thousand_ranks_of_the_largest_llama() {
    let found = run("1f1b", 1, "full");
    assert_eq!(found.parameters, 405_853_388_800);
    assert_eq!((found.mesh.world, found.mesh.pp, found.mesh.rdp, found.mesh.sdp), (WORLD, 16, 8, 16));
    assert_eq!(found.batch.micro_batches, 16);
    assert_eq!(found.batch.tokens, 2048 * 8192);
    assert_eq!(found.ranks.len(), 16);
    // Parameters are spread over all ranks but their copies, in 4 bytes each;
    // every size here divides evenly.
    let held: u64 = found.ranks.iter().map(|rank| rank.memory.parameters).sum();
    let norms = (126 * 2 + 1) * 16_384;
    assert_eq!(held * 16 * 8, 4 * (405_853_388_800 + 7 * norms));
    for (place, rank) in found.ranks.iter().enumerate() {
        let memory = &rank.memory;
        assert_eq!(rank.rank, place * 1024);
        assert_eq!(memory.gradients, memory.parameters);
        assert_eq!(memory.optimizer, 2 * memory.parameters);
        assert_eq!(memory.least_parameters, memory.parameters);
        // 1F1B: the first place keeps most micro-batches.
        assert_eq!(memory.in_flight, 16 - place);
        let parts = memory.activations + memory.kept_weights + memory.gradients_then + memory.working;
        assert_eq!(memory.peak, memory.parameters + memory.optimizer + parts);
        assert!(memory.peak < 80 << 30, "{memory:?}");
        // One layer's input is kept: a row of bf16, of which ranks share positions.
        if (1..15).contains(&place) {
            let stage = &rank.stages[0];
            let input = 8192 * 16_384 * 2 / 8;
            assert_eq!(stage.message, input);
            assert!((stage.layers as u64..=stage.layers as u64 + 2).contains(&(stage.activations / input)));
        }
        let axes: Vec<&str> = rank.by_axis.iter().map(|axis| axis.axis.as_str()).collect();
        assert_eq!(axes, ["pp", "rdp", "sdp", "tp", "world"]);
        assert_eq!(
            rank.by_axis.iter().map(|axis| axis.bytes).sum::<u64>(),
            rank.traffic.iter().map(|item| item.bytes).sum::<u64>()
        );
    }
    // Six operations for each weight and token, two more to compute layers
    // again, and attention on top.
    let floor = 8.0 * 403e9 * found.batch.tokens as f64;
    let ratio = found.flops.per_step / floor;
    assert!((1.0..1.2).contains(&ratio), "{ratio}");
    // Model and two states, in f32.
    assert_eq!(found.checkpoint.bytes, 3 * 4 * 405_853_388_800);
    assert_eq!(found.checkpoint.tensors, 3 * (126 * 9 + 3));
    assert!(found.checkpoint.files > 600);
    let balance = found.checkpoint.most_of_a_rank as f64 / found.checkpoint.mean_of_ranks;
    assert!((1.0..1.5).contains(&balance), "{balance}");
    assert!((found.checkpoint.mean_of_ranks * WORLD as f64 - found.checkpoint.bytes as f64).abs() < 1e6);
    assert_eq!(found.pipeline.drawing.lines().count(), 16);
    // 15 of 31 slots are empty at the ends, if all stages took the same.
    assert!((0.3..0.6).contains(&found.pipeline.overall_bubble), "{}", found.pipeline.overall_bubble);
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["data"], "not_available");
}

#[test]
fn interleaving_waits_less_and_keeps_more() {
    let (plain, interleaved) = (run("1f1b", 1, "full"), run("interleaved", 7, "full"));
    assert_eq!(interleaved.ranks[0].stages.len(), 7);
    assert!(interleaved.pipeline.overall_bubble < plain.pipeline.overall_bubble);
    assert!(interleaved.ranks[0].memory.in_flight > plain.ranks[0].memory.in_flight);
    // The same work, on the same number of ranks.
    let ratio = interleaved.flops.per_step / plain.flops.per_step;
    assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    let kept = run("1f1b", 1, "off");
    assert!(kept.ranks[0].memory.peak > 2 * plain.ranks[0].memory.peak);
    assert!(kept.flops.per_step < plain.flops.per_step);
}

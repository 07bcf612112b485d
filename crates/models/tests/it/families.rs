//! Every family against what transformers computes with the same numbers: on
//! one rank, and shared in different ways.

use crate::fixture::{Fixture, apart, greedy, logits};
use weightloom_gang::{GangOptions, GangSizes, Gangs, threads};
use weightloom_hub::ModelLoadOptions;

/// What single precision may differ by.
const TOLERANCE: f32 = 1e-4;

const CASES: &[&str] = &[
    "llama",
    "llama_tied",
    "llama3_rope",
    "llama_linear_rope",
    "llama_yarn",
    "llama_bias",
    "mistral",
    "mistral_no_window",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_listed",
    "qwen3_moe_plain",
    "gpt2",
    "gpt2_prefixed",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "phi3_longrope",
    "olmo2",
    "mixtral",
    "deepseek_v2",
    "deepseek_v2_groups",
    "deepseek_v3",
    "llama4_text",
];

#[test]
fn logits_and_greedy_texts_are_those_of_transformers() {
    for case in CASES {
        let fixture = Fixture::open(case);
        let decoder = fixture.load(&ModelLoadOptions::default()).model;
        let prompts = fixture.prompts();
        for (row, prompt) in prompts.iter().enumerate() {
            let apart = apart(&logits(&*decoder, prompt), &fixture.logits(row));
            assert!(apart <= TOLERANCE, "{case}: row {row} is {apart} apart");
            assert_eq!(
                greedy(&*decoder, std::slice::from_ref(prompt)),
                [fixture.greedy(row)],
                "{case}: row {row}"
            );
        }
        // Together, although they differ in length.
        assert_eq!(greedy(&*decoder, &prompts), [fixture.greedy(0), fixture.greedy(1)], "{case}: both rows");
    }
}

/// Before its version 5, transformers wrote some keys otherwise. Both are read.
#[test]
fn older_configurations_mean_the_same() {
    for case in CASES {
        let fixture = Fixture::open(case);
        let serde_json::Value::Object(older) =
            crate::fixture::json(&fixture.folder.join("config_published.json"))
        else {
            panic!("no map")
        };
        let definition = |config| fixture.family.definition(config).unwrap();
        assert!(definition(&older).is_same(&*definition(&fixture.config)), "{case}");
    }
}

#[test]
fn shared_models_compute_the_same() {
    let tp = |tp| GangSizes { tp, sdp: Some(1), ..GangSizes::default() };
    let fsdp = GangSizes::default();
    let ways = [
        ("tp=2", 2, tp(2)),
        ("tp=3", 3, tp(3)),
        ("fsdp=2", 2, fsdp),
        ("fsdp=3", 3, fsdp),
        ("fsdp=2 × tp=2", 4, GangSizes { tp: 2, ..fsdp }),
    ];
    for case in CASES {
        let fixture = Fixture::open(case);
        for (way, world, sizes) in ways {
            let found = threads::run(world, GangOptions::default(), |root| {
                let gangs = Some(Gangs::new(root, &sizes).unwrap());
                let decoder = fixture.load(&ModelLoadOptions { gangs, ..ModelLoadOptions::default() }).model;
                let prompts = fixture.prompts();
                (logits(&*decoder, &prompts[0]), greedy(&*decoder, &prompts))
            });
            for (logits, greedy) in found.unwrap() {
                let apart = apart(&logits, &fixture.logits(0));
                assert!(apart <= TOLERANCE, "{case} with {way} is {apart} apart");
                assert_eq!(greedy, [fixture.greedy(0), fixture.greedy(1)], "{case} with {way}");
            }
        }
    }
}

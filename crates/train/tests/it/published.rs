//! What training saves has the names and shapes of published models, and runs resume
//! from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use weightloom_checkpoint::{Section, Source};
use weightloom_gang::{GangOptions, threads};
use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub};
use weightloom_train::config::read;
use weightloom_train::{Outcome, TrainError, TrainRequest, train};

use crate::device::package_folder;

/// One folder of transformers' own weights for each family and each way to store
/// weights.
const FOLDERS: &[&str] = &[
    "llama",
    "llama_tied",
    "mistral",
    "mistral_no_window",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gpt2_prefixed",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "olmo2",
    "mixtral",
    "deepseek_v2",
    "deepseek_v2_groups",
    "deepseek_v3",
    "llama4_text",
];

fn fixtures() -> PathBuf {
    package_folder(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures")
}

fn hub(model_path: &[PathBuf]) -> Hub {
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    let cards = StoreSettings::default().store(weightloom_models::CARDS);
    Hub::new(cards, families, Ok(FetchSettings::in_folders("none", "none")))
        .with_model_path(model_path.to_vec())
}

/// Names and shapes of the model in a checkpoint.
fn model_tensors(path: &Path) -> BTreeMap<String, Vec<usize>> {
    let source = Source::open(path).unwrap();
    let manifest = source.manifest.clone();
    let is_model = |name: &str| {
        manifest.as_ref().is_none_or(|manifest| manifest.tensors[name].section == Section::Model)
    };
    let tensors = source.index.tensors().iter().filter(|(name, _)| is_model(name));
    tensors.map(|(name, entry)| (name.clone(), entry.shape.to_vec())).collect()
}

/// Trains on random tokens: two steps, each of which is saved.
fn run(
    hub: &Hub,
    model: &Value,
    out: &Path,
    ranks: usize,
    accelerator: &Value,
) -> Result<Outcome, TrainError> {
    let text = json!({
        "model": model,
        "data": {"type": "dummy", "max_seq_len": 12},
        "train": {
            "global_batch_size": 2, "max_steps": 2, "accelerator": accelerator,
            "checkpoint": {"output_dir": out, "save_steps": 1, "keep_last": 0},
        },
    });
    let config =
        read(&text.to_string(), "the test", &[], &|_| None).unwrap_or_else(|errors| panic!("{errors}"));
    let all =
        threads::run(ranks, GangOptions::default(), |root| train(TrainRequest::new(&config, hub, root)));
    all.unwrap().into_iter().next().unwrap()
}

/// The keys of a folder's configuration that its family knows.
fn model_of(hub: &Hub, folder: &Path) -> (String, Map<String, Value>) {
    let config: Map<String, Value> =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let family = hub.families.of_config(&config).unwrap();
    let known = family.complete(&config).unwrap();
    (family.name().to_owned(), known)
}

#[test]
fn checkpoints_of_every_family_are_published_models_that_runs_resume_from() {
    let hub = hub(&[]);
    for name in FOLDERS {
        let (family, config) = model_of(&hub, &fixtures().join(name));
        let model = json!({"name": family, "config_overrides": config});
        let published = model_tensors(&fixtures().join(name).join("model.safetensors"));
        for (ranks, accelerator) in [(1, json!({})), (4, json!({"tp": 2, "dp_shard": 2}))] {
            let place = tempfile::tempdir().unwrap();
            let out = place.path().join("out");
            let step = |step: u64| out.join(format!("checkpoints/step_{step}"));
            let outcome =
                run(&hub, &model, &out, ranks, &accelerator).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(outcome.step, 2, "{name} on {ranks} ranks");
            assert_eq!(model_tensors(&step(2)), published, "{name} on {ranks} ranks");
            let saved = hub.open(step(2).to_str().unwrap(), &()).unwrap();
            assert_eq!(*saved.config(), config, "{name}");
            // From the first step to the second again: the same bits.
            let fingerprint = || Source::open(step(2)).unwrap().manifest.unwrap().fingerprint;
            let expected = fingerprint();
            std::fs::remove_dir_all(step(2)).unwrap();
            let outcome = run(&hub, &model, &out, ranks, &accelerator).unwrap();
            assert_eq!((outcome.began, outcome.step), (1, 2), "{name}");
            assert_eq!(fingerprint(), expected, "{name} on {ranks} ranks");
        }
    }
}

/// Weights that are transformed while they are loaded are compared with their
/// checksums too.
#[test]
fn damage_of_fused_weights_is_noticed() {
    let hub = hub(&[]);
    let (family, config) = model_of(&hub, &fixtures().join("phi3"));
    let model = json!({"name": family, "config_overrides": config});
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    run(&hub, &model, &out, 1, &json!({})).unwrap();
    let folder = out.join("checkpoints/step_2");
    let file = folder.join("model.safetensors");
    let source = Source::open(&folder).unwrap();
    let entry = &source.index.tensors()["model.layers.1.self_attn.qkv_proj.weight"];
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[entry.tiles[0].offset as usize + 5] ^= 0x40;
    std::fs::write(&file, bytes).unwrap();
    // The damaged step is set aside, and computed again from the one before.
    let outcome = run(&hub, &model, &out, 1, &json!({})).unwrap();
    assert_eq!((outcome.began, outcome.step), (1, 2));
    assert!(out.join("checkpoints/step_2.damaged").is_dir());
}

/// Nine heads, of which three have keys, on two ranks.
#[test]
fn heads_need_not_be_divisible_by_ranks() {
    let hub = hub(&[]);
    let model = json!({"name": "llama", "config_overrides": {
        "vocab_size": 97, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 2,
        "num_attention_heads": 9, "num_key_value_heads": 3,
    }});
    let loss = |ranks: usize, accelerator: Value| {
        let place = tempfile::tempdir().unwrap();
        let outcome = run(&hub, &model, &place.path().join("out"), ranks, &accelerator);
        outcome.unwrap().loss.unwrap()
    };
    let (alone, shared) = (loss(1, json!({})), loss(2, json!({"tp": 2})));
    // What the order of additions changes in f32.
    assert!((alone - shared).abs() < 1e-4, "{alone} and {shared}");
}

/// A described family without a model type reads weights of any, also of one that
/// another family has.
#[test]
fn a_description_without_a_type_trains_any_weights() {
    let place = tempfile::tempdir().unwrap();
    let described = place.path().join("models/org/model");
    std::fs::create_dir_all(&described).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models");
    let text = std::fs::read_to_string(examples.join("families/olmo2/model.yaml")).unwrap();
    std::fs::write(described.join("model.yaml"), text.replace("model_type: olmo2\n", "")).unwrap();
    let hub = hub(&[place.path().join("models")]);
    for model_type in ["olmo2", "whatever"] {
        let weights = place.path().join(model_type);
        std::fs::create_dir(&weights).unwrap();
        std::fs::copy(fixtures().join("olmo2/model.safetensors"), weights.join("model.safetensors")).unwrap();
        let config = std::fs::read_to_string(fixtures().join("olmo2/config.json")).unwrap();
        let config =
            config.replace("\"model_type\": \"olmo2\"", &format!("\"model_type\": \"{model_type}\""));
        std::fs::write(weights.join("config.json"), config).unwrap();
        let tokenizer = place.path().join(model_type).join("tokenizer.json");
        std::fs::write(&tokenizer, TOKENIZER).unwrap();
        let model = json!({"name": "org.model", "weights_path": weights});
        let out = place.path().join(format!("out_{model_type}"));
        let outcome = run(&hub, &model, &out, 1, &json!({})).unwrap_or_else(|e| panic!("{model_type}: {e}"));
        assert_eq!(outcome.step, 2);
        let published = model_tensors(&weights.join("model.safetensors"));
        assert_eq!(model_tensors(&out.join("checkpoints/step_2")), published);
    }
}

/// The smallest tokenizer: one word.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;

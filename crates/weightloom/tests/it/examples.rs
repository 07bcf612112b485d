//! Every file in `examples/` runs, scaled down. A new file that no test here knows
//! how to run is an error. `examples/own` is a crate with tests of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::train::place::{Place, ended};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().unwrap()
}

/// All files below a folder, relative to it.
fn files(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(root, &path, found),
            false => {
                found.insert(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
}

/// Names that the examples use, as tiny local models: cards, and a repository in
/// the cache of Hugging Face.
pub fn with_named_models(place: &Place) {
    place.train(&["train.checkpoint.output_dir=pretrained", "data.max_seq_len=64"]);
    let model = place.path("pretrained/checkpoints/step_2");
    let mut cards = Vec::new();
    for name in ["smollm2_135m", "smollm2_135m_instruct"] {
        cards.push(format!("name: {name}\nmodel_family: llama\ncheckpoint: {}\n", model.display()));
    }
    place.write("cards/tiny.yaml", cards.join("---\n"));
    let repo = ".cache/huggingface/hub/models--HuggingFaceTB--SmolLM2-135M";
    let commit = "93efa2f097d58c2a74874c7e644dbc9b0cee75a2";
    place.write(&format!("{repo}/refs/main"), commit);
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let bytes = std::fs::read(place.path("tokenizer").join(file)).unwrap();
        place.write(&format!("{repo}/snapshots/{commit}/{file}"), bytes);
    }
}

/// Data under the names that the examples use.
fn with_data(place: &Place) {
    place.write("texts/deep/er.txt", "A text in a folder of a folder.\n");
    place.write("held-out/1.txt", "Sheep that were never seen before.\n");
    let chat = |number: usize| {
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{number} sheep?\"}}, \
             {{\"role\": \"assistant\", \"content\": \"{number} sheep.\"}}]}}\n"
        )
    };
    place.write("chats.jsonl", (0..6).map(chat).collect::<String>());
    place.write("chats-held-out.jsonl", (6..8).map(chat).collect::<String>());
    let pair = |number: usize| {
        format!("{{\"prompt\": \"{number} sheep? \", \"chosen\": \"{number}\", \"rejected\": \"none\"}}\n")
    };
    place.write("preferences.jsonl", (0..6).map(pair).collect::<String>());
    place.write("preferences-held-out.jsonl", (6..8).map(pair).collect::<String>());
}

/// Sizes of a tiny model, by the keys of the config that an example may have.
const SIZES: [(&str, usize); 16] = [
    ("vocab_size", 259),
    ("hidden_size", 16),
    ("intermediate_size", 24),
    ("num_hidden_layers", 2),
    ("num_attention_heads", 4),
    ("num_key_value_heads", 2),
    ("head_dim", 4),
    ("max_position_embeddings", 64),
    ("num_local_experts", 4),
    ("vocab", 259),
    ("width", 32),
    ("depth", 2),
    ("heads", 4),
    ("experts", 4),
    ("expert_width", 24),
    ("context", 64),
];

/// Overrides for the keys of `config_overrides` in a config, or of `config` in a
/// family.
fn sizes(text: &str, section: &str) -> Vec<String> {
    let below = text.lines().skip_while(|line| line.trim() != section).skip(1);
    let indent = |line: &str| line.len() - line.trim_start().len();
    let below: Vec<&str> = below.take_while(|line| indent(line) > 0).collect();
    let least = below.first().map_or(0, |line| indent(line));
    let keys = below.iter().take_while(|line| indent(line) >= least).filter_map(|line| line.split_once(':'));
    keys.filter_map(|(key, _)| SIZES.iter().find(|(known, _)| *known == key.trim()))
        .map(|(key, size)| format!("model.config_overrides.{key}={size}"))
        .collect()
}

/// Runs a training config for two steps.
fn train(place: &Place, file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let mut arguments = vec![file.display().to_string()];
    arguments.extend(["--asset-dir", "cards", "--ranks", "2"].map(str::to_owned));
    let small = [
        "train.max_steps=2",
        "train.global_batch_size=2",
        "train.micro_batch_size=1",
        "data.max_seq_len=64",
        "train.schedule.warmup_steps=1",
        "train.checkpoint.save_steps=1",
    ];
    arguments.extend(small.map(str::to_owned));
    arguments.extend(sizes(&text, "config_overrides:"));
    if text.contains("decay_steps:") {
        arguments.push("train.schedule.decay_steps=1".to_owned());
    }
    if text.contains("eval_steps:") {
        arguments.push("train.eval.eval_steps=1".to_owned());
    }
    let output = place.command().args(["--json", "train"]).args(&arguments).output().unwrap();
    let summary = ended(&output);
    assert_eq!((summary["end"].as_str(), summary["step"].as_u64()), (Some("finished"), Some(2)), "{summary}");
    // What the run saved works by the name of its folder.
    let folder = summary["output_dir"].as_str().unwrap().to_owned();
    let hello = ["generate", folder.as_str(), "Hello", "--max-new-tokens", "2", "--asset-dir", "cards"];
    assert_eq!(place.json(&hello)["model"], folder);
}

/// Trains a described family from scratch for a step.
fn train_family(place: &Place, file: &str) {
    let name = file.strip_prefix("models/").and_then(|file| file.strip_suffix("/model.yaml")).unwrap();
    let text = std::fs::read_to_string(examples().join(file)).unwrap();
    let name = name.replace('/', ".");
    let models = examples().join("models").display().to_string();
    let mut arguments = vec![
        "run.yaml".to_owned(),
        format!("model={{name: {name}, tokenizer_path: ./tokenizer}}"),
        format!("train.checkpoint.output_dir=runs/{name}"),
        "train.max_steps=1".to_owned(),
    ];
    let sizes = sizes(&text, "config:");
    assert!(sizes.len() > 5, "{file}: {sizes:?}");
    arguments.extend(sizes);
    let output =
        place.command().args(["--json", "train", "--model-path", &models]).args(&arguments).output().unwrap();
    assert_eq!(ended(&output)["end"], "finished", "{file}");
}

#[test]
fn every_example_runs() {
    let place = Place::new();
    with_data(&place);
    with_named_models(&place);
    let mut found = BTreeSet::new();
    files(&examples(), &examples(), &mut found);
    assert!(found.len() >= 9, "{found:?}");
    for file in &found {
        match file.split('/').next() {
            Some("train") if file.ends_with(".yaml") => train(&place, &examples().join(file)),
            Some("models") if file.ends_with("/model.yaml") => train_family(&place, file),
            // A crate with tests, and a notebook that `./test python` runs.
            Some("own" | "tour.ipynb") => {}
            _ => panic!("no test runs examples/{file}: add one here"),
        }
    }
}

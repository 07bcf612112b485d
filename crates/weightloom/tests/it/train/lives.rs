//! What becomes of a run's checkpoints: kept, found by name, written with,
//! trained on.

use serde_json::{Value, json};

use super::place::Place;

fn names(place: &Place, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(place.path(folder)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_last_and_the_best_are_kept() {
    let place = Place::new();
    // A rate that ruins the model, so that the first is the best.
    place.train(&[
        "train.max_steps=6",
        "train.optimizer.lr=1.0",
        "train.optimizer.max_grad_norm=0",
        "train.schedule.kind=constant",
        "train.checkpoint={output_dir: out, save_steps: 1, keep_last: 2, keep_best: 1}",
        "train.eval.eval_steps=1",
        "data.eval_paths=[texts]",
    ]);
    let losses: Vec<f64> =
        place.metrics("out").iter().filter_map(|line| line["scalars"]["eval/loss"].as_f64()).collect();
    assert_eq!(losses.len(), 6);
    let best = 1 + (0..6).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap();
    let mut steps: Vec<String> = [best, 5, 6].iter().map(|step| format!("step_{step}")).collect();
    steps.sort();
    steps.dedup();
    let there: Vec<String> =
        names(&place, "out/checkpoints").into_iter().filter(|name| name.starts_with("step_")).collect();
    assert_eq!(there, steps, "{losses:?}");
}

#[test]
fn a_runs_checkpoints_have_cards() {
    let place = Place::new();
    place.train(&[]);
    let listed = place.run(&["models", "list", "--asset-dir", "out/checkpoints"]);
    assert!(listed.contains("step_2"), "{listed}");
}

#[test]
fn an_adapter_is_trained_and_written_with() {
    let place = Place::new();
    place.train(&["train.max_steps=6", "train.checkpoint.output_dir=first"]);
    let base = "./first/checkpoints/step_6";
    let lora = [
        "model.weights_path=./first/checkpoints/step_6",
        "model.lora={rank: 4, alpha: 8, target_modules: [q_proj, v_proj, up_proj], dropout: 0.1}",
        "train.max_steps=8",
        "train.checkpoint.save_steps=4",
        "train.optimizer.lr=0.05",
    ];
    let ended = place.train(&lora);
    assert_eq!((&ended["step"], &ended["adapter"]), (&json!(8), &json!(true)));
    let (whole, fingerprint) = (place.losses("out"), place.fingerprint("out/checkpoints/step_8"));
    place.remove("out/checkpoints/step_8");
    assert_eq!(place.train(&lora)["steps_done"], 4);
    assert_eq!(place.losses("out"), whole);
    assert_eq!(place.fingerprint("out/checkpoints/step_8"), fingerprint);
    // Merged it writes as beside; without it, something else is likely.
    let adapter = "out/checkpoints/step_8";
    let text = "3 sheep jumped over";
    let score = |more: &[&str]| place.json(&[&["score", base, text], more].concat());
    let with = score(&["--adapter", adapter]);
    assert_ne!(with, score(&[]));
    let total = |answer: &Value| -> f64 {
        answer["tokens"].as_array().unwrap().iter().filter_map(|one| one["log_probability"].as_f64()).sum()
    };
    let merged = score(&["--adapter", adapter, "--merge"]);
    assert!((total(&with) - total(&merged)).abs() < 1e-3, "{with} {merged}");
    // It goes on as a new run, and says of itself what it is.
    let more = [
        "model.weights_path=./first/checkpoints/step_6",
        "model.lora.adapter_path=./out/checkpoints/step_8",
        "train.checkpoint.output_dir=more",
        "train.max_steps=2",
    ];
    place.train(&more);
    let file =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(place.path(name)).unwrap()).unwrap() };
    let (first, second) = (
        file("out/checkpoints/step_8/adapter_config.json"),
        file("more/checkpoints/step_2/adapter_config.json"),
    );
    for key in ["r", "lora_alpha", "target_modules", "use_rslora"] {
        assert_eq!(first[key], second[key], "{key}: {first} {second}");
    }
    let after = score(&["--adapter", "more/checkpoints/step_2"]);
    assert!((total(&after) - total(&with)).abs() > 1e-6, "it learnt nothing");
}

#[test]
fn weights_of_a_run_begin_another() {
    let place = Place::new();
    place.train(&["train.checkpoint.output_dir=first", "train.max_steps=6"]);
    // Nothing but the weights: no sizes, no tokenizer, no name of a preset.
    place.write(
        "run.yaml",
        "model: {name: llama, weights_path: ./first/checkpoints/step_6}\ndata: {paths: [texts], max_seq_len: 16}\n\
         train: {max_steps: 2, checkpoint: {output_dir: out}}\n",
    );
    place.train(&[]);
    let (first, second) = (place.losses("first"), place.losses("out"));
    assert!(second[0] < first[0], "{first:?} {second:?}");
    let config =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(place.path(name)).unwrap()).unwrap() };
    assert_eq!(config("first/checkpoints/step_6/config.json"), config("out/checkpoints/step_2/config.json"));
}

/// Another run's checkpoint is only the beginning: once a run has its own, it
/// goes on from those.
#[test]
fn a_run_that_goes_on_from_another_has_a_life_of_its_own() {
    let place = Place::new();
    place.train(&["train.checkpoint.output_dir=first"]);
    let own = ["train.checkpoint={output_dir: out, resume_from: first/checkpoints/step_2}"];
    let begun = place.train(&[&own[..], &["train.max_steps=4"]].concat());
    assert_eq!((&begun["step"], &begun["steps_done"]), (&json!(4), &json!(2)));
    let more = place.train(&[&own[..], &["train.max_steps=6"]].concat());
    assert_eq!((&more["step"], &more["steps_done"]), (&json!(6), &json!(2)));
    let steps: Vec<Value> = place.records("out").iter().map(|line| line["step"].clone()).collect();
    assert_eq!(steps, [3, 4, 5, 6].map(|step| json!(step)));
}

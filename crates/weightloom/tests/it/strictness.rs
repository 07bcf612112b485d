//! Checkpoints that do not match their model, on the command line, in training and
//! in the library.

use serde_json::{Value, json};
use weightloom::hub::{ModelLoadOptions, Strictness};

use crate::train::place::Place;

/// A run in `base`, whose folder `deep` says that there is a third layer.
fn deep_model() -> Place {
    let place = Place::new();
    place.train(&["train.checkpoint.output_dir=base"]);
    crate::checkpoints::copy(&place.path("base/checkpoints/step_2"), &place.path("deep"));
    let path = place.path("deep/config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["num_hidden_layers"] = json!(3);
    place.write("deep/config.json", config.to_string());
    place
}

/// Stdout and stderr of a command with this exit code.
fn run(place: &Place, code: i32, arguments: &[&str]) -> (String, String) {
    let output = place.command().args(arguments).output().unwrap();
    let [out, error] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}{error}");
    (out, error)
}

fn is_third_layer(name: &Value) -> bool {
    name.as_str().unwrap().starts_with("model.layers.2.")
}

#[test]
fn commands_list_every_tensor_that_they_initialize_or_ignore() {
    let place = deep_model();
    let generate = ["generate", "deep", "Hi", "--max-new-tokens", "2"];
    let (_, error) = run(&place, 1, &generate);
    assert!(error.contains("9 keys missing"), "{error}");
    for (command, quiet) in [(&generate[..], ""), (&["score", "deep", "Hi there"], "--quiet")] {
        let mut more = [command, &["--json", "--non-strict"]].concat();
        more.extend(Some(quiet).filter(|option| !option.is_empty()));
        let (out, error) = run(&place, 0, &more);
        let shown: Value = serde_json::from_str(&out).unwrap();
        let missing = shown["mismatch"]["missing"].as_array().unwrap();
        assert!(missing.len() == 9 && missing.iter().all(is_third_layer), "{shown}");
        let warnings = error.lines().filter(|line| line.starts_with("warning: initialized `model.layers.2."));
        assert_eq!(warnings.count(), 9, "{error}");
    }
    // On two ranks, one reports.
    let (_, error) = run(&place, 0, &[&generate[..], &["--non-strict", "--tp", "2"]].concat());
    assert_eq!(error.matches("warning: ").count(), 9, "{error}");
    // What matches is not mentioned.
    let matching = place.json(&["score", "base", "Hi there", "--non-strict"]);
    assert_eq!(matching.get("mismatch"), None);
}

#[test]
fn other_shapes_are_initialized_only_if_asked_for() {
    let place = deep_model();
    let path = place.path("deep/config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    (config["num_hidden_layers"], config["intermediate_size"]) = (json!(2), json!(20));
    place.write("deep/config.json", config.to_string());
    let (_, error) = run(&place, 1, &["score", "deep", "Hi there", "--non-strict"]);
    assert!(error.contains("6 keys with the wrong shape"), "{error}");
    let shown = place.json(&["score", "deep", "Hi there", "--ignore-mismatched-sizes"]);
    let shapes = shown["mismatch"]["wrong_shape"].as_array().unwrap();
    assert_eq!(shapes.len(), 6, "{shown}");
    assert!(
        shapes.iter().any(|shape| shape["found"] == json!([24, 16]) && shape["expected"] == json!([20, 16]))
    );
}

#[test]
fn training_lists_them_at_the_start_at_the_end_and_in_its_metrics() {
    let place = deep_model();
    let changes = ["model.weights_path=deep", "model.tokenizer_path=null", "model.config_overrides={}"];
    let train = |more: &[&'static str]| [&["train", "run.yaml"], &changes[..], more].concat();
    let (_, error) = run(&place, 1, &train(&[]));
    assert!(error.contains("9 keys missing"), "{error}");
    let (out, _) = run(&place, 0, &train(&["model.strictness=non_strict", "--ranks", "2"]));
    let lines = out.lines().filter(|line| line.starts_with("weights: initialized `model.layers.2."));
    assert_eq!(lines.count(), 18, "{out}");
    let start = &place.metrics("out")[0];
    let missing = start["weights_mismatch"]["missing"].as_array().unwrap();
    assert!(missing.len() == 9 && missing.iter().all(is_third_layer), "{start}");
    // Saved whole: its checkpoint loads strictly, and a resumed run loads no weights.
    run(&place, 0, &["score", "out", "Hi there"]);
    let ended = place.train(&[&changes[..], &["train.max_steps=3"]].concat());
    assert_eq!(ended.get("weights_mismatch"), None, "{ended}");
    let ended = place.train(
        &[&changes[..], &["model.strictness=non_strict", "train.checkpoint.output_dir=again"]].concat(),
    );
    assert_eq!(ended["weights_mismatch"]["missing"].as_array().unwrap().len(), 9);
    // An adapter would not save what was initialized.
    let lora = ["model.strictness=non_strict", "model.lora={rank: 2}", "train.checkpoint.output_dir=lora"];
    let (_, error) = run(&place, 2, &train(&lora));
    assert!(error.contains("cannot train an adapter of `deep`: it does not provide"), "{error}");
}

#[test]
fn the_library_returns_the_list() {
    let place = deep_model();
    let deep = place.path("deep");
    let load = |strictness| {
        let options = ModelLoadOptions { strictness, ..ModelLoadOptions::default() };
        weightloom::load_with(deep.to_str().unwrap(), None, &options)
    };
    assert!(load(Strictness::Strict).is_err());
    let loaded = load(Strictness::NonStrict).unwrap();
    assert_eq!(loaded.mismatch.missing.len(), 9);
    assert_eq!(loaded.generator.model.definition().layers(), 3);
}

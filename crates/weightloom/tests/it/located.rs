//! A run folder, an adapter or `org/name` works wherever a model or an adapter is
//! expected.

use serde_json::Value;

use crate::train::place::Place;

const COMMIT: &str = "0123456789012345678901234567890123456789";

/// A run of all weights in `base`, and one of an adapter of it in `tuned`, each
/// with two checkpoints.
fn runs() -> Place {
    let place = Place::new();
    place.train(&["train.checkpoint.output_dir=base", "train.checkpoint.save_steps=1"]);
    place.train(&[
        "model.weights_path=base",
        "model.tokenizer_path=null",
        "model.config_overrides={}",
        "model.lora={rank: 2, target_modules: all-linear}",
        "train.optimizer.lr=0.5",
        "train.checkpoint.output_dir=tuned",
        "train.checkpoint.save_steps=1",
    ]);
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

fn tokens(place: &Place, arguments: &[&str]) -> Value {
    let command = ["generate"].iter().chain(arguments).chain(&["--max-new-tokens", "8", "--ignore-eos"]);
    place.json(&command.copied().collect::<Vec<_>>())["tokens"].clone()
}

#[test]
fn a_run_folder_is_its_newest_checkpoint_for_every_command() {
    let place = runs();
    let newest = "using base/checkpoints/step_2, the newest checkpoint of base\n";
    let commands: [&[&str]; 9] = [
        &["generate", "base", "Hi", "--max-new-tokens", "2"],
        &["score", "base", "Hi there"],
        &["tokenize", "base", "Hi"],
        &["inspect", "base"],
        &["fingerprint", "base"],
        &["verify", "base"],
        &["plan", "base", "--tp", "2"],
        &["plan", "base", "--mesh", "tp=2"],
        &["export", "base", "exported"],
    ];
    for command in commands {
        let (_, error) = run(&place, 0, command);
        assert_eq!(error, newest, "{command:?}");
        // The note is not an answer, and not wanted by everyone.
        if command[0] != "export" {
            let (_, error) = run(&place, 0, &[command, &["--quiet"]].concat());
            assert_eq!(error, "", "{command:?}");
        }
    }
    let (_, error) = run(&place, 0, &["convert", "base", "converted", "--to", "hf"]);
    assert_eq!(error, newest);
    let (out, error) = run(&place, 0, &["diff", "base", "base/checkpoints/step_2"]);
    assert!(out.starts_with("identical: ") && error == newest, "{out}{error}");
    assert_eq!(place.fingerprint("base"), place.fingerprint("base/checkpoints/step_2"));
    assert_ne!(place.fingerprint("base"), place.fingerprint("base/checkpoints/step_1"));
    // A run that has saved nothing is an error that says so.
    place.write("young/metrics.jsonl", "");
    let (_, error) = run(&place, 2, &["generate", "young", "Hi"]);
    assert!(error.contains("cannot find a complete checkpoint in `young/checkpoints`"), "{error}");
}

#[test]
fn an_adapter_brings_its_base_for_every_command() {
    let place = runs();
    let adapter = "tuned/checkpoints/step_2";
    let with = |name: &'static str, more: &[&'static str]| tokens(&place, &[&[name, "Hi"], more].concat());
    let plain = with("base", &[]);
    let tuned = with("base", &["--adapter", adapter]);
    assert_ne!(plain, tuned);
    for (name, more) in [
        ("tuned", &[][..]),
        (adapter, &[]),
        ("tuned/checkpoints/step_2/adapter_model.safetensors", &[]),
        ("base", &["--adapter", "tuned"]),
        ("tuned", &["--merge"]),
    ] {
        assert_eq!(with(name, more), tuned, "{name} {more:?}");
    }
    assert_eq!(with("tuned", &["--adapter-scale", "0"]), plain);
    let (_, error) = run(&place, 0, &["score", "tuned", "Hi there"]);
    assert_eq!(
        error,
        "using tuned/checkpoints/step_2, the newest checkpoint of tuned\n\
         using base, the base model of adapter tuned/checkpoints/step_2\n\
         using base/checkpoints/step_2, the newest checkpoint of base\n"
    );
    // Exported with its adapter merged.
    run(&place, 0, &["export", "tuned", "merged"]);
    assert_eq!(with("merged", &[]), tuned);
    for command in ["inspect", "fingerprint", "verify", "plan"] {
        run(&place, 0, &[command, "tuned"]);
    }
    run(&place, 0, &["tokenize", "tuned", "Hi"]);
    run(&place, 0, &["convert", adapter, "peft", "--to", "native"]);

    let (_, error) = run(&place, 2, &["generate", "tuned", "Hi", "--adapter", "tuned"]);
    assert!(error.contains("it is an adapter too"), "{error}");
    let (_, error) = run(&place, 2, &["generate", "base", "Hi", "--adapter", "base"]);
    assert!(error.contains("cannot use `base/checkpoints/step_2` as an adapter"), "{error}");
    let (_, error) = run(&place, 2, &["generate", "base", "Hi", "--merge"]);
    assert!(error.contains("cannot use `--merge` with `base`: it has no adapter"), "{error}");
    // A training run on top of an adapter's weights needs them as an adapter.
    let (_, error) = run(&place, 2, &["train", "run.yaml", "model.weights_path=tuned"]);
    assert!(error.contains("it is an adapter"), "{error}");
    let more = ["model.weights_path=base", "model.tokenizer_path=null", "model.config_overrides={}"];
    let more =
        [&more[..], &["model.lora={adapter_path: tuned}", "train.checkpoint.output_dir=more"]].concat();
    assert_eq!(place.train(&more)["end"], "finished");
}

#[test]
fn all_linear_adapts_every_linear_layer_but_the_head() {
    let place = runs();
    let config = std::fs::read(place.path("tuned/checkpoints/step_2/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let modules = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"];
    assert_eq!(config["target_modules"], serde_json::json!(modules));
    let inspected = place.json(&["inspect", "tuned/checkpoints/step_2/adapter_model.safetensors"]);
    let tensors = inspected["tensors"].as_object().unwrap();
    // Two matrices for each of seven modules in each of two layers.
    assert_eq!(tensors.len(), 28);
    assert!(tensors.keys().all(|name| !name.contains("lm_head") && !name.contains("embed")), "{tensors:?}");
    let more = ["model.weights_path=base", "model.tokenizer_path=null", "model.config_overrides={}"];
    for targets in ["all-linear", "[all-linear]"] {
        let lora = format!("model.lora={{rank: 2, target_modules: {targets}}}");
        place.json(&[&["train", "run.yaml", "--dry-run", &lora], &more[..]].concat());
    }
}

#[test]
fn sway_judges_runs_adapters_and_full_fine_tunes() {
    let place = runs();
    place.train(&[
        "model.weights_path=base",
        "model.tokenizer_path=null",
        "model.config_overrides={}",
        "train.optimizer.lr=0.1",
        "train.checkpoint.output_dir=full",
    ]);
    let suite = |tuned: &str| {
        format!(
            "models: {{base: {{base: base}}, ft: {tuned}}}\n\
             suite: [{{name: change, kind: delta_kl, prompts: [\"One sheep\", \"Two sheep\", \"More\"]}}]\n"
        )
    };
    let newest = "base/checkpoints/step_2";
    let mut raws = Vec::new();
    for (file, tuned) in [
        ("run.sway.yaml", "{base: base, adapter: tuned}"),
        ("adapter.sway.yaml", "{base: tuned/checkpoints/step_2}"),
        ("only.sway.yaml", "{base: tuned}"),
        ("full.sway.yaml", "{base: full}"),
    ] {
        place.write(file, suite(tuned));
        let report = place.json(&["sway", "run", file, "--no-cache"]);
        let record = &report["probes"][0];
        assert!(record["raw"].as_f64().is_some_and(|raw| raw > 0.0), "{file}: {record}");
        assert!(report["base_model_id"].as_str().unwrap().ends_with(newest), "{report}");
        raws.push(record["raw"].clone());
        let (_, error) = run(&place, 0, &["sway", "run", file, "--dry-run"]);
        assert!(error.contains("the newest checkpoint of"), "{file}: {error}");
    }
    // The same adapter, named in three ways; the full fine-tune is another model.
    assert!(raws[0] == raws[1] && raws[1] == raws[2] && raws[2] != raws[3], "{raws:?}");

    // A quick check: the base from the adapter's config, or of a full fine-tune.
    let statistics = ["--statistics", "reference"];
    let check = |arguments: &[&str]| {
        let output = place.command().args(["--json", "sway", "check"]).args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{error}");
        (serde_json::from_slice::<Value>(&output.stdout).unwrap(), error)
    };
    let (report, error) = check(&[&["tuned"], &statistics[..]].concat());
    assert!(error.contains("using base, the base model of adapter tuned/checkpoints/step_2"), "{error}");
    assert_eq!(report["report"]["probes"].as_array().unwrap().len(), 4);
    check(&["full", "--base", "base"]);
    let (_, error) = run(&place, 2, &["sway", "check", "full"]);
    assert!(error.contains("does not name its base model"), "{error}");

    run(&place, 0, &["sway", "diff", "run.sway.yaml", "--a", "tuned", "--b", "full"]);
    run(&place, 0, &["export", "tuned", "merged"]);
    let same = ["sway", "gate", "--same", "tuned", "merged", "--margin", "1e-4"];
    assert!(run(&place, 0, &same).0.starts_with("the same model within the margin"));
}

#[test]
fn org_name_is_a_model_on_hugging_face() {
    let place = runs();
    let repo = ".cache/huggingface/hub/models--org--tiny";
    place.write(&format!("{repo}/refs/main"), COMMIT);
    run(&place, 0, &["export", "base", "published"]);
    for entry in std::fs::read_dir(place.path("published")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        place.write(&format!("{repo}/snapshots/{COMMIT}/{name}"), std::fs::read(&path).unwrap());
    }
    assert_eq!(tokens(&place, &["org/tiny", "Hi"]), tokens(&place, &["base", "Hi"]));
    assert_eq!(tokens(&place, &["org/tiny@main", "Hi"]), tokens(&place, &["base", "Hi"]));
    for command in ["inspect", "fingerprint", "verify", "plan"] {
        run(&place, 0, &[command, "org/tiny"]);
    }
    let ended =
        place.train(&["model.tokenizer_path=org/tiny", "train.checkpoint.output_dir=from_repository"]);
    assert_eq!(ended["end"], "finished");
    // Not in the cache, and no network: the message names both meanings.
    let (_, error) = run(&place, 2, &["generate", "org/other", "Hi"]);
    assert!(
        error.contains("cannot find file or folder `org/other`, nor fetch it from Hugging Face")
            && error.contains("offline mode"),
        "{error}"
    );
    let (_, error) = run(&place, 2, &["plan", "org/other"]);
    assert!(error.contains("weightloom fetch org/other"), "{error}");
}

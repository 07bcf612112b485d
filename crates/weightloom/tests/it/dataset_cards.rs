//! Datasets by name, and adapters of training runs by name.

use serde_json::{Value, json};

use crate::train::place::Place;

/// Stdout and stderr of a command with this exit code.
fn run(place: &Place, code: i32, arguments: &[&str]) -> (String, String) {
    let output = place.command().args(arguments).output().unwrap();
    let [out, error] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}{error}");
    (out, error)
}

const SHEEP: &str = "name: sheep\nlicense: mit\ndataset_config:\n  paths: [../texts]\n---\n\
                     name: sheep@small\nbase: sheep\ndataset_config: {paths: [../texts/1.txt]}\n---\n\
                     name: more_sheep\nbase: sheep\ndataset_config: {eval_paths: [../texts/0.txt]}\n---\n\
                     name: odd\ndataset_config: {pths: [x]}\n";

/// The run without paths, and a card of them.
fn place() -> Place {
    let place = Place::new();
    let text = crate::train::place::RUN.replace("  paths: [texts]\n", "  dataset: sheep\n");
    place.write("named.yaml", text);
    place.write("cards/sheep.yaml", SHEEP);
    place
}

#[test]
fn training_on_a_dataset_is_training_on_its_files() {
    let place = place();
    place.train(&["train.checkpoint.output_dir=by-paths"]);
    let train = |more: &[&str]| {
        let command = ["--json", "train", "named.yaml", "--asset-dir", "cards"];
        run(&place, 0, &[&command, more].concat()).0
    };
    train(&[]);
    assert_eq!(place.losses("out"), place.losses("by-paths"));
    let start = &place.metrics("out")[0];
    assert_eq!((&start["dataset"], &start["data"]["files"]), (&json!("sheep"), &json!(8)));
    // The name is recorded, and resumed from wherever the cards are.
    let recorded = std::fs::read_to_string(place.path("out/config.yaml")).unwrap();
    assert!(recorded.contains("dataset: sheep"), "{recorded}");
    train(&["train.max_steps=3"]);
    // In an environment, and with evaluation data.
    train(&["train.checkpoint.output_dir=small", "--env", "small", "train.max_steps=1"]);
    let start = &place.metrics("small")[0];
    assert_eq!((&start["dataset"], &start["data"]["files"]), (&json!("sheep@small"), &json!(1)));
    train(&["train.checkpoint.output_dir=more", "data.dataset=more_sheep", "train.max_steps=1"]);
    assert_eq!(place.metrics("more")[0]["eval"]["read"], 1);
    // Other files are another dataset.
    let (_, error) = run(
        &place,
        2,
        &["train", "named.yaml", "--asset-dir", "cards", "--env", "small", "train.max_steps=4"],
    );
    assert!(error.contains("the data changed since the checkpoint"), "{error}");
}

#[test]
fn datasets_are_listed_shown_and_checked() {
    let place = place();
    let listed = place.json(&["data", "list", "--asset-dir", "cards"]);
    let names: Vec<&Value> = listed["datasets"].as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["more_sheep", "sheep", "sheep@small"]);
    let texts = place.path("cards/../texts").display().to_string();
    assert_eq!(listed["datasets"][1]["paths"], json!([texts]));
    assert!(listed["broken"][0]["problem"].as_str().unwrap().contains("unknown key `pths`"), "{listed}");
    let (out, _) = run(&place, 0, &["data", "list", "--asset-dir", "cards"]);
    assert!(out.contains("3 datasets\nbroken: unknown key `pths`"), "{out}");
    let (out, _) = run(&place, 0, &["models", "show", "more_sheep", "--asset-dir", "cards"]);
    assert!(out.contains("../texts/0.txt") && !out.contains("unknown"), "{out}");
    let (out, _) = run(&place, 1, &["models", "check", "--asset-dir", "cards"]);
    assert!(out.contains("odd: unknown key `pths`") && out.contains("hint: did you mean `paths`?"), "{out}");
    let (out, _) = run(&place, 0, &["data", "show", "named.yaml", "--asset-dir", "cards", "-n", "1"]);
    assert!(out.starts_with("dataset: sheep\n"), "{out}");
    run(&place, 0, &["train", "named.yaml", "--dry-run", "--asset-dir", "cards"]);
    for (name, error) in [
        ("shep", "unknown dataset `shep`\nhint: did you mean `sheep`?"),
        ("odd", "unknown key `pths` in `dataset_config` of card `odd`"),
        ("gpt2", "card `gpt2` does not describe a dataset"),
    ] {
        let override_ = format!("data.dataset={name}");
        for command in ["train", "data"] {
            let show = if command == "data" { &["data", "show"][..] } else { &["train"] };
            let arguments = [show, &["named.yaml", "--asset-dir", "cards", override_.as_str()]].concat();
            let (_, found) = run(&place, 2, &arguments);
            assert!(found.contains(error), "{arguments:?} {found}");
        }
    }
}

#[test]
fn a_file_that_is_not_the_cards_ends_the_run_before_it_starts() {
    let place = place();
    let sum = "0".repeat(64);
    place.write(
        "cards/sheep.yaml",
        format!("{SHEEP}---\nname: other\nbase: sheep\nsha256: {{../texts/3.txt: '{sum}'}}\n"),
    );
    let command = ["train", "named.yaml", "--asset-dir", "cards", "data.dataset=other", "--ranks", "2"];
    let (_, error) = run(&place, 2, &command);
    assert!(error.contains("texts/3.txt` has SHA-256 ") && error.contains(&sum), "{error}");
    assert!(!place.path("out/checkpoints/step_1").exists());
}

#[test]
fn an_adapter_is_found_by_the_name_of_its_run() {
    let place = Place::new();
    place.train(&["train.checkpoint.output_dir=runs/base"]);
    let tokens = |arguments: &[&str]| {
        let more = ["--max-new-tokens", "8", "--ignore-eos"];
        place.json(&[&["generate"], arguments, &more[..]].concat())["tokens"].clone()
    };
    // A full run has the same.
    let base = tokens(&["runs/base", "Hi"]);
    assert_eq!(tokens(&["base", "Hi", "--asset-dir", "runs"]), base);
    let lora = |weights: &str, output: &str| {
        let run = [
            format!("model.weights_path={weights}"),
            "model.tokenizer_path=null".to_owned(),
            "model.config_overrides={}".to_owned(),
            "model.lora={rank: 2, target_modules: all-linear}".to_owned(),
            "train.optimizer.lr=0.5".to_owned(),
            format!("train.checkpoint.output_dir={output}"),
            "--asset-dir=runs".to_owned(),
        ];
        place.train(&run.iter().map(String::as_str).collect::<Vec<_>>());
    };
    lora("./runs/base", "runs/my_adapter");
    lora("base", "runs/of_card");
    let tuned = tokens(&["runs/base", "Hi", "--adapter", "runs/my_adapter"]);
    assert_ne!(tuned, base);
    for name in ["my_adapter", "of_card"] {
        assert_eq!(tokens(&[name, "Hi", "--asset-dir", "runs"]), tuned, "{name}");
        assert_eq!(tokens(&["base", "Hi", "--adapter", name, "--asset-dir", "runs"]), tuned, "{name}");
    }
    // From elsewhere, and after a move.
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    std::fs::rename(place.path("runs/my_adapter"), place.path("elsewhere/moved")).unwrap();
    let mut command = place.command();
    let arguments = ["--json", "generate", "my_adapter", "Hi", "--asset-dir", "."];
    command.current_dir(place.path("elsewhere")).args(arguments);
    let output = command.args(["--max-new-tokens", "8", "--ignore-eos"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["tokens"], tuned);
    // Every checkpoint has a card, and all commands know what it is.
    let listed = place.json(&["models", "list", "--asset-dir", "runs/of_card"]);
    let rows: Vec<&Value> =
        listed["models"].as_array().unwrap().iter().filter(|row| row.get("base_model").is_some()).collect();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["checkpoint_step_2", "last_checkpoint", "of_card"]);
    assert!(rows.iter().all(|row| row["base_model"] == "base"), "{listed}");
    let shown = place.json(&["models", "show", "of_card", "--asset-dir", "runs"]);
    assert_eq!((&shown["base_model"], &shown["config"]["hidden_size"]), (&json!("base"), &json!(16)));
    run(&place, 0, &["fingerprint", "elsewhere/moved"]);
    run(&place, 0, &["export", "of_card", "merged", "--asset-dir", "runs"]);
    assert_eq!(tokens(&["merged", "Hi"]), tuned);
}
